"""PPO learns a grid puzzle from nothing: find the coloured cell, repaint it, submit.

python examples/09_arc_train_ppo.py            well under a minute; writes runs/<run>/report.html
python examples/09_arc_train_ppo.py --quick    a few steps, to see that it works

Tasks of your own are JSON files in a folder, in ARC's structure. With tasks="mini-arc" or
"arc-agi-1" the same call trains on those.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import worldloom

LEARNING = {
    "unroll_length": 16,
    "learning_rate": 2e-3,
    "gamma": 0.95,
    "gae_lambda": 0.95,
    "entropy_cost": 0.05,
    "normalise_advantages": True,
    "anneal_updates": 0,
}


def write_tasks(folder: Path) -> None:
    """Two tasks of 3x3: blue becomes red, and green becomes blue, wherever the cell is."""

    def pair(place: int, before: int, after: int) -> dict[str, list]:
        cells = np.zeros((2, 9), int)
        cells[:, place] = before, after
        grids = cells.reshape(2, 3, 3).tolist()
        return {"input": grids[0], "output": grids[1]}

    folder.mkdir(exist_ok=True)
    for name, before, after in (("blue-to-red", 1, 2), ("green-to-blue", 3, 1)):
        train = [pair(place, before, after) for place in (0, 4, 8)]
        task = {"train": train, "test": [pair(2, before, after)]}
        (folder / f"{name}.json").write_text(json.dumps(task))


def main(quick: bool) -> None:
    write_tasks(Path("puzzles"))
    run = worldloom.train(
        "arc",
        algo="ppo",  # or "dqn", which needs fewer steps and more time for each
        tasks="puzzles",
        num_worlds=8 if quick else 256,
        steps=64 if quick else 250_000,
        chunk=1 if quick else 10,
        eval_every=0 if quick else 80_000,
        # The world in training: three colours and submission, and a few steps only.
        world={"operations": (0, 1, 2, 34), "max_steps": 6, "wrong_penalty": 0.0},
        network={"context": 32},
        ppo={"unroll_length": 4} if quick else LEARNING,
        report=not quick,
    )
    timing = run.timing()
    print(f"{run.steps:,} steps in {timing['train_seconds']:.1f} s", end=" ")
    print(f"after compiling for {timing['compile_seconds']:.1f} s; see {run.folder}")

    # It trained on the demonstrations alone. A test pair shows the colour at another place: what
    # was learned by heart does not help there, and the score says so.
    for group, name in (("demo", "demonstrations"), ("test", "test pairs")):
        rates = run.evaluation.rates(group)
        print(f"{name}: {rates['pairs']:.0%} solved greedily", end=", ")
        print(f"{rates['pass_at_k']:.0%} in any of {run.evaluation.k} sampled attempts")
    for row in run.evaluation.table():
        print(f"  {row['task']}: {row['demos_solved']} of {row['demos']} demonstrations")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps only")
    main(parser.parse_args().quick)
