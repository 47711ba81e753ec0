"""ARC through Gymnasium, singly and as a vector, for libraries that speak it.

python examples/10_arc_gymnasium.py [--quick]      needs: pip install 'worldloom[adapters]'
"""

import argparse

import gymnasium
import numpy as np

from worldloom.suites.arc import load
from worldloom.suites.arc.operations import NAMES

# The part before the colon is imported by Gymnasium: it registers the world.
ARC = "worldloom.adapters.gymnasium:worldloom/Arc-v0"


def solve_by_hand() -> None:
    """One world: a person looks at the demonstrations of a task, and sees what to do."""
    tasks = load("examples", tasks="flip-columns")
    env = gymnasium.make(ARC, tasks=tasks, action="box", render_mode="ansi")
    obs, info = env.reset(seed=0)
    print(env.render(), f"similarity {info['similarity']:.2f}", sep="\n", end="\n\n")
    height, width = obs["size"]
    everything = {"r1": 0, "c1": 0, "r2": height - 1, "c2": width - 1}
    for operation in (34, 26, 34):  # too early; then flipped; then right
        _, reward, terminated, _, info = env.step({"operation": operation, **everything})
        print(f"{NAMES[operation]}: reward {reward:.2f}, similarity {info['similarity']:.2f}")
    print(env.render(), f"solved: {info['solved']}, over: {terminated}", sep="\n")
    env.close()


def play_at_random(num_envs: int, steps: int) -> None:
    """Many worlds in one compiled step; a world whose episode has ended starts anew."""
    envs = gymnasium.make_vec(ARC, num_envs=num_envs, tasks="examples", max_steps=25)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=0)
    print(f"\n{num_envs} worlds; each sees", ", ".join(obs))
    episodes, best = 0, np.zeros(num_envs)
    for _ in range(steps):
        # A point action is one integer: operation * H * W + row * W + column.
        obs, _, terminated, truncated, infos = envs.step(envs.action_space.sample())
        episodes += int(np.sum(terminated | truncated))
        best = np.maximum(best, infos["similarity"])
    print(f"{steps} steps of each: {episodes} episodes ended")
    print(f"the nearest to an answer, on average: similarity {best.mean():.2f}")
    envs.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer worlds and steps")
    quick = parser.parse_args().quick
    solve_by_hand()
    play_at_random(num_envs=4 if quick else 64, steps=30 if quick else 200)
