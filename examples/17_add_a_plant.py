"""A plant of your own, in one file: learned from logs, held by a safety filter, like a built-in.

python examples/17_add_a_plant.py [--quick]; about a minute. A buffer tank: water leaves as the town
asks, a pump fills it, and it must neither run dry nor over.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import struct

import worldloom
from worldloom.core import draws
from worldloom.suites.plant.plant import make_world
from worldloom.suites.plant.types import Limit, Loop, Signal


class Numbers(struct.PyTreeNode):
    area: Any = 10.0  # m2
    usual: Any = 1.0  # m3/min that the town takes
    wander: Any = 0.05


@dataclass(frozen=True)
class BufferTank:
    """Level and demand are measured; the pump's flow is what can be set."""

    name: str = "buffer-tank"
    observation: tuple = (Signal("level", "m", 0.0, 5.0), Signal("demand", "m3/min", 0.0, 2.0))
    action: tuple = (Signal("flow", "m3/min", 0.0, 2.0),)
    limits: tuple = (
        Limit("overflow", "level", "at_most", 4.5),
        Limit("dry", "level", "at_least", 0.5),
    )
    loops: tuple = (Loop("flow", "level", 2.5, -1.0, bias=0.5),)  # a proportional controller
    horizon: int = 100
    step_seconds: float = 60.0

    def physics(self):
        return Numbers()

    def start(self, key, params):
        return jnp.stack([2.0 + draws.uniform(key), params.physics.usual])

    def advance(self, key, x, u, step, params):
        numbers = params.physics
        noise = params.disturbance * numbers.wander * draws.normal(key)
        demand = jnp.clip(x[1] + 0.1 * (numbers.usual - x[1]) + noise, 0.0, 2.0)
        return jnp.stack([jnp.clip(x[0] + (u[0] - x[1]) / numbers.area, 0.0, 5.0), demand])

    def observe(self, x, params):
        return x

    def reward(self, x, u, next_x, params):
        return -jnp.abs(next_x[0] - 2.5) - 0.1 * u[0]

    def ended(self, x, params):
        return jnp.asarray(False)

    def model(self, obs, u, params):
        return obs.at[0].add((u[0] - obs[1]) / params.physics.area)


def main(quick: bool) -> None:
    worldloom.register("buffer-tank", partial(make_world, BufferTank()), "plant")
    sizes = {"data_steps": 20_000, "ope_updates": 1_000}
    if quick:
        sizes = {"data_steps": 200, "ope_updates": 2, "eval_episodes": 2, "world": {"horizon": 10}}
    iql = {"batch_size": 16, "updates_per_iteration": 4, "hidden": (8,)} if quick else {}
    sizes |= {"steps": 8 if quick else 10_000, "report": not quick}
    run = worldloom.train("buffer-tank", algo="iql", iql=iql, **sizes)
    print("\n".join(f"{name}: {value}" for name, value in run.evaluation.lines().items()))
    print(f"see {run.folder}; ship it with: worldloom export {run.folder}")


if __name__ == "__main__":
    main("--quick" in sys.argv)
