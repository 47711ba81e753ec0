"""A small biped learns to walk at the speed it is asked for, and is filmed.

python examples/12_walk.py                   tens of minutes on a small CPU
python examples/12_walk.py --task stand      to take pushes, in a quarter of the time
python examples/12_walk.py --quick           two updates, to see that it works

Needs: pip install 'worldloom[robot]'. Look at runs/<run>/report.html, and at replay.html there.
"""

import argparse

import worldloom
from worldloom.algos.ppo import PPOConfig
from worldloom.train.robot_config import RobotNetwork

# Few robots, and episodes of a second: enough to see every part move.
SMALL = {
    "updates": 2, "chunk": 1, "eval_episodes": 4, "world": {"horizon": 50},
    "ppo": PPOConfig(num_worlds=8, unroll_length=4), "network": RobotNetwork(hidden=(16,)),
}  # fmt: skip
UPDATES = {"stand": 100, "push": 200, "walk": 400}


def main(task: str, quick: bool) -> None:
    settings = SMALL if quick else {"updates": UPDATES[task]}
    run = worldloom.train("biped", task=task, **settings)
    timing = run.timing()
    print(f"{run.steps:,} steps in {timing['train_seconds']:.0f} s", end=" ")
    print(f"after compiling for {timing['compile_seconds']:.0f} s; see {run.folder}/report.html")

    # The newest checkpoint again, in episodes that training has not seen.
    scores = worldloom.evaluate(run.folder, seed=1)
    print(f"stays up in {(~scores.fell).sum()} of {len(scores.fell)} episodes", end="")
    if task == "walk":
        print(f"; {scores.good.sum()} as fast as asked, {scores.error.mean():.2f} m/s off", end="")
    print(f"; return {scores.mean:.1f}")

    policy = worldloom.load(run.folder)
    for rung in policy.ladder(seed=1) if task != "walk" else ():
        print(f"pushed by {rung.newtons:g} N: {rung.survived:.0%} stay up", end=", ")
        print(f"{rung.held:.0%} of those that only hold their pose")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=tuple(UPDATES), default="walk")
    parser.add_argument("--quick", action="store_true", help="two updates only")
    args = parser.parse_args()
    main(args.task, args.quick)
