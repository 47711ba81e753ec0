"""The smallest world of one agent, as a user would write one in a file."""

import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import TimeStep


class Guess:
    """Name the number that is shown."""

    def __init__(self, choices=3, horizon=4):
        shown = Box(0.0, float(choices), (1,))
        self.spec = EnvSpec("guess", shown, Discrete(choices), horizon=horizon)

    def default_params(self):
        return jnp.float32(1.0)

    def _see(self, key, count, reward):
        number = draws.integers(key, (), self.spec.action.n)
        obs, no = number[None].astype(jnp.float32), jnp.asarray(False)
        out_of_time = count >= self.spec.horizon
        return (number, count), TimeStep(obs, reward, no, out_of_time, obs, ())

    def reset(self, key, params):
        return self._see(key, jnp.int32(0), jnp.float32(0.0))

    def step(self, key, state, action, params):
        number, count = state
        return self._see(key, count + 1, params * (action == number))


def make(choices=3, horizon=4):
    return Guess(choices, horizon)
