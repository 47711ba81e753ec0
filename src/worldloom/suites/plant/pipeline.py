"""A long channel: what the gate lets in arrives at the outlet twenty steps later.

The task Pipeline of NeoRL-2 (arXiv 2503.19267). The action changes the flow at the gate, which
stays between 0 and 200; it travels 100 m at 5 m a step. The wanted flow at the outlet is one of
four and changes by chance (0.003 a step). The observation is the outlet's flow, the wanted one, the
25 flows before and the 25 last actions, newest first, from which the next outlet follows exactly:
outlet' = clip(outlet + the action of 18 steps ago, 0, 200). Reward: ((200 - |error|) / 100)^2 - 3.

NeoRL-2 names no units; litres a second, and a second a step, are ours. It has no other mode for
tests: published scores are of this plant as it is.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.plant.plant import Plant, make_world, remaining, score_between
from worldloom.suites.plant.types import Limit, Loop, PlantParams, Signal

HISTORY = 25  # flows and actions that are remembered
ARRIVING = 18  # steps ago: the action whose water reaches the outlet next
normalised_score = partial(score_between, -296.0, 751.0)


class Channel(struct.PyTreeNode):
    """The plant's state: the water under way is what the past actions say."""

    outlet: Array  # L/s
    wanted: Array  # L/s
    outlets: Array  # (25,) before, newest first
    changes: Array  # (25,) at the gate, newest first


class Flows(struct.PyTreeNode):
    """Numbers of the task."""

    most: Any = 200.0  # L/s, at the gate
    lowest_target: Any = 50.0  # L/s
    target_step: Any = 30.0  # L/s from one of the four targets to the next
    change: Any = 0.003  # chance, a step, that a target is drawn
    start_low: Any = 80.0  # L/s
    start_high: Any = 120.0
    stiction: Any = 0.3  # of the gate's travel, lost by the end of an episode that drifts


@dataclass(frozen=True)
class Pipeline(Plant):
    """See the module."""

    name: str = "pipeline"
    observation: tuple = (
        Signal("outlet", "L/s", 0.0, 200.0),
        Signal("wanted", "L/s", 0.0, 200.0),
        *(Signal(f"outlet_{i}_ago", "L/s", 0.0, 200.0) for i in range(1, HISTORY + 1)),
        *(Signal(f"gate_change_{i}_ago", "L/s", -1.0, 1.0) for i in range(HISTORY)),
    )
    action: tuple = (Signal("gate_change", "L/s", -1.0, 1.0),)
    limits: tuple = (
        Limit("flood", "outlet", "at_most", 180.0),
        Limit("dry", "outlet", "at_least", 20.0),
        Limit("valve_wear", "gate_change", "rate", 0.5, hard=False),
    )
    loops: tuple = (Loop("gate_change", "outlet", "wanted", 3.0, 0.0, 10.0),)
    horizon: int = 1000
    step_seconds: float = 1.0
    response: int = ARRIVING + 1
    physics: ClassVar[Any] = Flows

    def start(self, key: Key, params: PlantParams) -> Channel:
        numbers: Flows = params.physics
        uniform = draws.uniform(key, (2,))
        flow = numbers.start_low + (numbers.start_high - numbers.start_low) * uniform[0]
        return Channel(
            outlet=flow,
            wanted=self._target(uniform[1], numbers),
            outlets=jnp.full(HISTORY, flow),
            changes=jnp.zeros(HISTORY, jnp.float32),
        )

    def _target(self, uniform: Array, numbers: Flows) -> Array:
        return numbers.lowest_target + numbers.target_step * jnp.floor(4.0 * uniform)

    def advance(self, key: Key, x: Channel, u: Array, step: Array, params: PlantParams) -> Channel:
        numbers: Flows = params.physics
        uniform = draws.uniform(key, (2,))
        drawn = uniform[0] < numbers.change * params.disturbance
        moved = self._flow(x, u[0] * remaining(numbers.stiction, step, params), numbers)
        return moved.replace(wanted=jnp.where(drawn, self._target(uniform[1], numbers), x.wanted))

    def _flow(self, x: Channel, change: Array, numbers: Flows) -> Channel:
        """The channel a step later, while the wanted flow stays."""
        return Channel(
            outlet=jnp.clip(x.outlet + x.changes[ARRIVING], 0.0, numbers.most),
            wanted=x.wanted,
            outlets=jnp.concatenate([x.outlet[None], x.outlets[:-1]]),
            changes=jnp.concatenate([change[None], x.changes[:-1]]),
        )

    def observe(self, x: Channel, params: PlantParams) -> Array:
        now = jnp.stack([x.outlet, x.wanted])
        return jnp.concatenate([now, x.outlets, x.changes])

    def reward(self, x: Channel, u: Array, next_x: Channel, params: PlantParams) -> Array:
        return closeness(next_x.outlet, next_x.wanted)

    def observed_reward(self, obs: Array, u: Array, next_obs: Array, params: PlantParams) -> Array:
        return closeness(next_obs[0], next_obs[1])

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        """Exact but for a target that is drawn in this step."""
        x = Channel(obs[0], obs[1], obs[2 : 2 + HISTORY], obs[2 + HISTORY :])
        return self.observe(self._flow(x, u[0], params.physics), params)


def closeness(outlet: Array, wanted: Array) -> Array:
    """((200 - |error|) / 100)^2 - 3."""
    near = 200.0 - jnp.abs(outlet - wanted)
    return jnp.square(0.01 * near) - 3.0


make = partial(make_world, Pipeline())  # the environment, with the options of `make_world`
