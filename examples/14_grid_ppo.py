"""PPO with several agents: a network each, one network for all, and critics that see all.

python examples/14_grid_ppo.py            a minute or two
python examples/14_grid_ppo.py --quick    a few iterations of a small world, to see that it works

The agents of treasure hunt see little and act in turns; each way of learning is one setting.
"""

import argparse

import worldloom

WAYS = {
    "a network each": {"algo": "ppo"},
    "one network for all": {"algo": "ppo", "share_parameters": True},
    "a network each, critics that see all": {"algo": "mappo"},
}
QUICK = {
    "steps": 160,
    "num_worlds": 4,
    "eval_episodes": 4,
    "world": {"height": 6, "width": 6, "num_agents": 2, "horizon": 10},
}


def main(quick: bool) -> None:
    for name, way in WAYS.items():
        sizes = QUICK if quick else {"steps": 640_000}
        run = worldloom.train("treasurehunt", report=False, **sizes, **way)
        rate = run.timing()["steps_per_second"]
        print(f"{name}: greedy score {run.evaluation.mean:.0f} after {run.steps:,} steps")
        print(f"  {rate:,.0f} steps/s, compiled in {run.timing()['compile_seconds']:.1f} s")
        print(f"  {run.folder}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few iterations of a small world")
    main(parser.parse_args().quick)
