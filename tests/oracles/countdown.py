"""A turn-based world that ends by itself."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import (
    apply_in_order,
    first_step,
    frame_stack,
    step_by_turn,
    time_limit,
)


class CountdownState(struct.PyTreeNode):
    length: jax.Array
    turn: jax.Array


@dataclass(frozen=True)
class Countdown:
    """The task ends after a number of turns drawn at reset, 2 to 7. Every act pays 1, for ever.

    An observation is (turns so far, turns in all).
    """

    num_agents: int

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            "countdown", Box(0, 100, (2,), "int32"), Discrete(3), self.num_agents,
            turn_order="interleaved",
        )  # fmt: skip

    def default_params(self):
        return ()

    def reset(self, key, params):
        state = CountdownState(2 + draws.integers(key, (), 6), jnp.int32(0))
        return state, first_step(self, state, params)

    def step(self, key, state, action, params):
        return step_by_turn(self, key, state, action, params)

    def observe_agent(self, state, i, params):
        return jnp.stack([state.turn, state.length])

    def apply_agent(self, key, state, i, action, params):
        return state, (jnp.arange(self.num_agents) == i).astype(jnp.float32)

    def apply_all(self, key, state, action, params):
        return apply_in_order(self, key, state, action, params)

    def end_turn(self, key, state, params):
        state = state.replace(turn=state.turn + 1)
        return state, state.turn == state.length, jnp.asarray(False)


def countdown(num_agents: int, horizon: int) -> PureEnv:
    """The world as training wants it: frame-stacked, with a time limit."""
    return time_limit(frame_stack(Countdown(num_agents), 1), horizon)
