"""Many ARC worlds in one program: random play, and an editor that knows the answer.

python examples/08_arc_random_play.py            1,024 worlds; writes arc-episode.svg
python examples/08_arc_random_play.py --quick    16 worlds
"""

import argparse
import time
from pathlib import Path

import jax
import numpy as np

from worldloom.suites.arc import (
    VectorizedRandomAgent,
    batch_reset,
    create_batch_episode_runner,
    greedy_editor,
    load,
    make_config,
)
from worldloom.suites.arc.draw import episode_picture, operation_name, shots_of

STEPS = 40


def main(num_worlds: int) -> None:
    tasks = load("examples")  # twelve small tasks that come with the package
    config = make_config(tasks, max_steps=STEPS)
    keys = jax.random.split(jax.random.key(0), num_worlds)
    states, first = batch_reset(keys, config)
    print(f"{num_worlds} worlds on {len(tasks)} tasks, canvas {config.grid_shape}")

    # An agent is a function of the states, its own state and a key: this one needs the key alone.
    player = VectorizedRandomAgent(config.grid_shape)
    play_key = jax.random.key(1)
    play = create_batch_episode_runner(player.select_batch_actions, STEPS)
    play = play.lower(states, config, play_key).compile()
    start = time.perf_counter()
    last, rewards, steps = play(states, config, play_key)
    active = np.asarray(steps.active)
    seconds = time.perf_counter() - start
    print(f"random play: {active.sum():,} steps in {1000 * seconds:.1f} ms, every one recorded")
    print(f"  solved {np.mean(last.solved):.1%}, mean return {np.mean(rewards):.2f}")
    used = np.asarray(steps.info.operation_type)[active]
    number = np.bincount(used, minlength=config.num_operations).argmax()
    print(f"  most often: {operation_name(int(number))}")

    # The editor reads the target, which no observation shows: how much the rules let one solve.
    edit = create_batch_episode_runner(greedy_editor(config), STEPS)
    last, rewards, steps = edit(states, config, play_key)
    length = np.asarray(steps.active).sum(axis=0)
    print(f"editor: solved {np.mean(last.solved):.1%} in {length.mean():.1f} steps on average")

    # One episode as a picture: every operation, the cells it was done to, and the answer.
    world = int(length.argmin())
    shots = shots_of(first, steps, world)
    name = tasks[int(config.tasks.task[states.pair[world]])].name
    solved = bool(last.solved[world])
    picture = episode_picture(shots, solved=solved, title=name)
    Path("arc-episode.svg").write_text(picture.svg(name))
    print(f"the shortest, on {name}, is drawn in arc-episode.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few worlds only")
    main(16 if parser.parse_args().quick else 1024)
