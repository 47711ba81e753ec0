"""A new world in sixty lines: bees carry pollen from blossoms to buds.

python examples/03_write_a_world.py [--quick]

The table of kinds says what grows where. One rule needs code: a blossom loads a bee with pollen,
and a bud pays only the bee that carries some.
"""

import argparse

import jax.numpy as jnp
from flax import struct

import worldloom
from worldloom.core.transforms import frame_stack, time_limit
from worldloom.suites.grid.kinds import Kind, bordered
from worldloom.suites.grid.world import GridWorld


@struct.dataclass
class Bees:
    laden: jnp.ndarray  # (A,) bool: who carries pollen


def setup(world, key, state, params):
    """Nobody carries anything at first."""
    return state.replace(extra=Bees(jnp.zeros(world.num_agents, bool)))


def interact(world, key, state, act, params):
    """After a bee has moved: what it met loads it, or takes its load and pays."""
    me = jnp.arange(world.num_agents) == act.agent
    loads = me & (act.met == world.index["Blossom"])
    pays = me & state.extra.laden & (act.met == world.index["Bud"])
    laden = (state.extra.laden | loads) & ~pays
    state = state.replace(extra=Bees(laden))
    # Everybody can see who is laden: such a bee is drawn as another kind.
    state = world.draw_agents(state, jnp.where(laden, world.index["Laden"], world.index["Bee"]))
    return state, jnp.where(pays, params.extra["bud_value"], 0.0)


def make(*, num_agents=4, bud_value=5.0, horizon=60, size=10):
    """The world, with a time limit and frame stacks as every training needs."""
    growth = (("Blossom", 0.01), ("Bud", 0.01))
    world = GridWorld(
        name="bees",
        kinds=(
            Kind("Empty", ".", (24, 60, 32), becomes=growth),
            Kind("Wall", "#", (88, 92, 108), value=-1.0, passable=False),
            Kind("Blossom", "*", (240, 120, 190)),
            Kind("Bud", "o", (120, 200, 90)),
            Kind("Bee", "b", (250, 210, 60), passable=False),
            Kind("Laden", "B", (250, 140, 40), passable=False),
        ),
        maps=(bordered(size, size, "#", "."),),
        num_agents=num_agents,
        agent="Bee",
        setup=setup,
        interact=interact,
        extra_params=lambda: {"bud_value": jnp.float32(bud_value)},
    )
    return time_limit(frame_stack(world, 1), horizon)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few iterations only")
    small = {"algo": "dqn", "steps": 240, "num_worlds": 2, "eval_episodes": 4}
    quick = parser.parse_args().quick
    worldloom.register("bees", make, description="bees carry pollen from blossoms to buds")
    run = worldloom.train("bees", report=not quick, **(small if quick else {}))
    print(f"greedy score {run.evaluation.mean:.1f} after {run.steps:,} steps: {run.folder}")
