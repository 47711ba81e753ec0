"""A plant of somebody's own, as a user would write it: a tank that a town drinks from."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.suites.plant import Limit, Loop, Signal, make_world


class Numbers(struct.PyTreeNode):
    """What options may change by name."""

    area: Any = 10.0  # m2
    demand: Any = 5.0  # m3/h


@dataclass(frozen=True)
class Tank:
    """Level and demand; the pump must follow the demand."""

    name: str = "tank"
    observation: tuple[Signal, ...] = (
        Signal("level", "m", 0.0, 5.0),
        Signal("demand", "m3/h", 0.0, 20.0),
    )
    action: tuple[Signal, ...] = (Signal("pump", "m3/h", 0.0, 20.0),)
    limits: tuple[Limit, ...] = (
        Limit("overflow", "level", "at_most", 4.5),
        Limit("dry", "level", "at_least", 0.5),
    )
    loops: tuple[Loop, ...] = (Loop("pump", "level", 2.5, 2.0, 0.05),)
    horizon: int = 20
    step_seconds: float = 600.0

    def physics(self):
        return Numbers()

    def start(self, key, params):
        return jnp.stack([1.5 + 2.0 * draws.uniform(key), params.physics.demand])

    def advance(self, key, x, u, step, params):
        level, demand = self.model(x, u, params)
        return jnp.stack([level, jnp.maximum(demand + params.disturbance * draws.normal(key), 0.0)])

    def observe(self, x, params):
        return x

    def reward(self, x, u, next_x, params):
        return 1.0 - jnp.abs(next_x[0] - 2.5)

    def ended(self, x, params):
        return (x[0] <= 0.0) | (x[0] >= 5.0)

    def model(self, obs, u, params):
        hours = self.step_seconds / 3600.0
        level = obs[0] + hours * (u[0] - obs[1]) / params.physics.area
        return jnp.stack([level, 0.9 * obs[1] + 0.1 * params.physics.demand])


def make(**options):
    return make_world(Tank(), **options)
