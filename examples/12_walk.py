"""A small biped learns to walk at the speed it is asked for, and is filmed.

python examples/12_walk.py                   tens of minutes on a small CPU
python examples/12_walk.py --task stand      to take pushes, in a quarter of the time
python examples/12_walk.py --quick           two updates, to see that it works

Needs: pip install 'worldloom[robot]'. Look at runs/<run>/report.html, and at replay.html there.
"""

import argparse

import worldloom
from worldloom.suites.robot.evaluate import push_ladder

# Few robots, and episodes of a second: enough to see every part move.
SMALL = {
    "num_worlds": 8,
    "steps": 64,
    "chunk": 1,
    "eval_episodes": 4,
    "world": {"horizon": 50},
    "ppo": {"unroll_length": 4, "hidden": (16,)},
}
STEPS = {"stand": 1_200_000, "push": 2_400_000, "walk": 4_900_000}


def main(task: str, quick: bool) -> None:
    settings = SMALL if quick else {"steps": STEPS[task]}
    run = worldloom.train("biped", task=task, **settings)
    timing = run.timing()
    print(f"{run.steps:,} steps in {timing['train_seconds']:.0f} s", end=" ")
    print(f"after compiling for {timing['compile_seconds']:.0f} s; see {run.folder}/report.html")

    # In episodes that training has not seen; worldloom.load(run.folder) is the same run again.
    scores = run.evaluate(seed=1)
    for name, words in scores.lines().items():
        print(f"{name}: {words}")
    for rung in push_ladder(run, seed=1) if task != "walk" else ():
        print(": ".join(rung.line()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=tuple(STEPS), default="walk")
    parser.add_argument("--quick", action="store_true", help="two updates only")
    args = parser.parse_args()
    main(args.task, args.quick)
