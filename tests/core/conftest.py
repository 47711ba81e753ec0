"""Two worlds small enough to be worked out by hand."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, TurnOrder
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import apply_in_order, first_step, step_by_turn
from worldloom.core.types import TimeStep


class CounterInfo(struct.PyTreeNode):
    count: jax.Array


class CounterState(struct.PyTreeNode):
    start: jax.Array
    count: jax.Array
    key: jax.Array  # a world may keep a key of its own


@dataclass(frozen=True)
class Counter:
    """One agent, not turn based. Counts steps up to `length`; action 1 ends the task at once.

    An observation is (where this episode started, steps so far); a step pays `params` times the
    steps so far.
    """

    length: int = 5

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("counter", Box(0, 1000, (2,), "int32"), Discrete(2))

    def default_params(self):
        return jnp.float32(1.0)

    def reset(self, key, params):
        state = CounterState(draws.integers(key, (), 1000), jnp.int32(0), key)
        no = jnp.asarray(False)
        obs = self._look(state)
        return state, TimeStep(obs, jnp.float32(0), no, no, obs, CounterInfo(state.count))

    def step(self, key, state, action, params):
        state = state.replace(count=state.count + 1)
        over = (state.count >= self.length) | (action == 1)
        obs = self._look(state)
        reward = params * state.count.astype(jnp.float32)
        info = CounterInfo(state.count)
        return state, TimeStep(obs, reward, over, jnp.asarray(False), obs, info)

    def _look(self, state):
        return jnp.stack([state.start, state.count])


class BellState(struct.PyTreeNode):
    tally: jax.Array
    turn: jax.Array


@dataclass(frozen=True)
class Bell:
    """Turn based. Every act adds to one tally that all agents see; ends when it reaches `limit`.

    Agent i sees (tally, turn, i). An act pays its own size to the agent and half of it to agent 0.
    The world's own move adds 100 to the tally.
    """

    num_agents: int = 3
    turn_order: TurnOrder = "interleaved"
    limit: int = 10_000

    @property
    def spec(self) -> EnvSpec:
        observation = Box(0, 1e6, (3,), "int32")
        return EnvSpec(
            "bell", observation, Discrete(10), self.num_agents, turn_order=self.turn_order
        )

    def default_params(self):
        return ()

    def reset(self, key, params):
        state = BellState(draws.integers(key, (), 50), jnp.int32(0))
        return state, first_step(self, state, params)

    def step(self, key, state, action, params):
        return step_by_turn(self, key, state, action, params)

    def observe_agent(self, state, i, params):
        return jnp.stack([state.tally, state.turn, jnp.int32(i)])

    def apply_agent(self, key, state, i, action, params):
        own = jnp.arange(self.num_agents) == i
        gift = jnp.arange(self.num_agents) == 0
        paid = action * (own + 0.5 * gift)
        return state.replace(tally=state.tally + action), paid.astype(jnp.float32)

    def apply_all(self, key, state, action, params):
        return apply_in_order(self, key, state, action, params)

    def end_turn(self, key, state, params):
        state = BellState(state.tally + 100, state.turn + 1)
        return state, state.tally >= self.limit, jnp.asarray(False)


@pytest.fixture(scope="session")
def counter():
    return Counter


@pytest.fixture(scope="session")
def bell():
    return Bell
