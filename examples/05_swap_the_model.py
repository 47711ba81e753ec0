"""An object-loop experiment, as Sorrel's users write them, with its PyTorch model swapped for ours.

python examples/05_swap_the_model.py [--quick]

The loop is the user's own and stays as it is. One line changes, the import of the model:

    from sorrel.models.pytorch import PyTorchIQN as Model
    from worldloom.adapters.sorrel import JAXIQN as Model

For a loop in Python the swap mostly mends learning; what compiling whole epochs brings is shown
by 02_compare_modes.py.
"""

import argparse
import time

import numpy as np

from worldloom.adapters.sorrel import JAXIQN as Model
from worldloom.suites.grid.object_world import ObjectTreasureHunt


def run_experiment(
    epochs: int, max_turns: int, num_agents: int, updates: int, **sizes
) -> list[float]:
    """Plays and learns; the score of every epoch."""
    world = ObjectTreasureHunt(num_agents=num_agents, tuned=True, rng=np.random.default_rng(0))
    models = [
        Model(input_size=world.obs_size, action_space=4, seed=n, **sizes) for n in range(num_agents)
    ]
    scores = []
    for epoch in range(epochs):
        world.reset()
        for model in models:
            model.start_epoch_action(epoch=epoch)
        for turn in range(max_turns):
            world.spawn()
            for i, model in enumerate(models):
                obs = world.pov(i)
                past = model.memory.current_state()
                action = model.take_action(np.concatenate([past.ravel(), obs.ravel()]))
                reward = world.act(i, action)
                model.memory.add(obs, action, reward, turn == max_turns - 1)
        for model in models:
            for _ in range(updates):
                model.train_step()
            model.epsilon_decay(0.02)
        scores.append(world.total_reward)
    return scores


def main(quick: bool) -> None:
    sizes = {"layer_size": 64, "n_frames": 2, "batch_size": 64, "TAU": 0.05, "GAMMA": 0.9}
    if quick:
        sizes |= {"layer_size": 8, "batch_size": 4, "memory_size": 64}
    epochs, turns, agents, updates = (2, 10, 2, 1) if quick else (100, 50, 5, 10)
    start = time.perf_counter()
    scores = run_experiment(epochs, turns, agents, updates, **sizes)
    seconds = time.perf_counter() - start
    tenth = max(1, epochs // 10)
    print(f"{epochs} epochs in {seconds:.1f} s, compiling included")
    print(f"first epochs: {np.mean(scores[:tenth]):.0f}; last: {np.mean(scores[-tenth:]):.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few epochs only")
    main(parser.parse_args().quick)
