"""Worlds as tables (states, actions), with known values: one program serves every probe."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import TimeStep

STATES, ACTIONS = 3, 2
GO_ON, TERMINATE, TRUNCATE = 0, 1, 2


class Table(struct.PyTreeNode):
    """What an action leads to in each state, (states, actions)."""

    start: jax.Array  # (states,): how likely an episode starts there
    then: jax.Array
    reward: jax.Array
    ending: jax.Array
    allowed: jax.Array


def table(start, then=0, reward=0.0, ending=TERMINATE, allowed=True) -> Table:
    """A table from numbers, or from one number or pair for each state."""
    shape = (STATES, ACTIONS)

    def full(value, dtype):
        value = np.asarray(value, dtype)
        return jnp.asarray(np.broadcast_to(value[:, None] if value.ndim == 1 else value, shape))

    weights = np.zeros(STATES, np.float32)
    weights[list(start)] = 1 / len(start)
    return Table(
        jnp.asarray(weights),
        full(then, np.int32),
        full(reward, np.float32),
        full(ending, np.int32),
        full(allowed, bool),
    )


class Seen(NamedTuple):
    state: jax.Array  # (states,) one-hot
    allowed: jax.Array  # (actions,)


class TableWorld:
    spec = EnvSpec("table", Box(0, 1, (STATES,)), Discrete(ACTIONS))

    def default_params(self):
        return table([0])

    def _timestep(self, state, reward, ending, params):
        seen = Seen(jax.nn.one_hot(state, STATES), params.allowed[state])
        return state, TimeStep(seen, reward, ending == TERMINATE, ending == TRUNCATE, seen, ())

    def reset(self, key, params):
        state = jax.random.categorical(key, jnp.log(params.start)).astype(jnp.int32)
        return self._timestep(state, jnp.float32(0), jnp.int32(GO_ON), params)

    def step(self, key, state, action, params):
        paid, ending = params.reward[state, action], params.ending[state, action]
        return self._timestep(params.then[state, action], paid, ending, params)


def gae_by_loop(rewards, values, next_values, terminated, truncated, gamma, gae_lambda):
    """Generalised advantages (T, B), step by step."""
    advantages = np.zeros(rewards.shape)
    for world in range(rewards.shape[1]):
        after = 0.0
        for t in reversed(range(len(rewards))):
            at = (t, world)
            follows = 0.0 if terminated[at] else float(next_values[at])
            if terminated[at] or truncated[at]:
                after = 0.0
            after = rewards[at] + gamma * follows - values[at] + gamma * gae_lambda * after
            advantages[at] = after
    return advantages
