"""A world without code: kinds and a map in a YAML file, looked at, played at random, and learned.

python examples/04_yaml_world.py [--quick]
"""

import argparse
from pathlib import Path

import jax

import worldloom
from worldloom.core.transforms import base_state
from worldloom.suites.grid.views import ascii_map

FILE = Path(__file__).parent / "worlds" / "berries.yaml"


def main(quick: bool) -> None:
    env = worldloom.make(str(FILE))
    state, _ = env.reset(jax.random.key(0), env.default_params())
    print(ascii_map(env.base, base_state(state)))

    # Wherever a world's name is asked for, a file will do: `worldloom train berries.yaml` too.
    small = {"algo": "dqn", "steps": 160, "num_worlds": 2, "eval_episodes": 4}
    settings = small if quick else {"eval_episodes": 200}
    at_random = settings | {"algo": "random", "steps": 1}
    by_chance = worldloom.train(str(FILE), report=False, **at_random)
    print(f"random play scores {by_chance.evaluation.mean:.1f}")
    trained = worldloom.train(str(FILE), report=not quick, **settings)
    print(f"after {trained.steps:,} steps the agents score {trained.evaluation.mean:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few iterations only")
    main(parser.parse_args().quick)
