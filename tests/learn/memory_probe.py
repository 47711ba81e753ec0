"""A world that cannot be played well without a memory: say at the end what was shown at first."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import apply_in_order, first_step, step_by_turn
from worldloom.core.types import TimeStep

TURNS = 4
OBSERVATION, ACTION = Box(0, 1, (3,)), Discrete(2)


class State(struct.PyTreeNode):
    cue: jax.Array  # () or (A,): 0 or 1
    turn: jax.Array


def seen(cue, turn):
    """The cue in the first turn, and in the last one that it is time to answer."""
    shown = jax.nn.one_hot(cue, 2) * (turn == 0)
    return jnp.append(shown, (turn == TURNS - 1).astype(jnp.float32))


def paid(state, action):
    """1 for the right answer, of which a guess is half of the time."""
    return ((state.turn == TURNS - 1) & (action == state.cue)).astype(jnp.float32)


class Recall:
    """One agent; a step is a turn."""

    spec = EnvSpec("recall", OBSERVATION, ACTION, horizon=TURNS)

    def default_params(self):
        return ()

    def reset(self, key, params):
        state = State(jax.random.randint(key, (), 0, 2), jnp.int32(0))
        no = jnp.asarray(False)
        obs = seen(state.cue, state.turn)
        return state, TimeStep(obs, jnp.float32(0), no, no, obs, ())

    def step(self, key, state, action, params):
        reward, new = paid(state, action), state.replace(turn=state.turn + 1)
        obs, over = seen(new.cue, new.turn), new.turn == TURNS
        return new, TimeStep(obs, reward, over, over & False, obs, ())


class RecallTogether:
    """Two agents in turns, each with a cue of its own."""

    spec = EnvSpec("recall_together", OBSERVATION, ACTION, 2, TURNS, turn_order="interleaved")
    kinds: tuple[Any, ...] = ()

    def default_params(self):
        return ()

    def reset(self, key, params):
        state = State(jax.random.randint(key, (2,), 0, 2), jnp.int32(0))
        return state, first_step(self, state, params)

    def step(self, key, state, action, params):
        return step_by_turn(self, key, state, action, params)

    def observe_agent(self, state, i, params):
        return seen(state.cue[i], state.turn)

    def apply_agent(self, key, state, i, action, params):
        alone = State(state.cue[i], state.turn)
        return state, jnp.zeros(2).at[i].set(paid(alone, action))

    def apply_all(self, key, state, action, params):
        return apply_in_order(self, key, state, action, params)

    def end_turn(self, key, state, params):
        state = state.replace(turn=state.turn + 1)
        over = state.turn == TURNS
        return state, over & False, over
