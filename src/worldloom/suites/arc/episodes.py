"""Whole episodes of many worlds in one program, and agents that learn nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.core import Tracer

from worldloom.core import draws, rollout, stack
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.arc import planes
from worldloom.suites.arc.environment import step_worlds
from worldloom.suites.arc.operations import RESIZE, SUBMIT
from worldloom.suites.arc.types import (
    Action,
    ArcConfig,
    ArcState,
    BoxAction,
    Observation,
    PointAction,
    StepInfo,
)

# agent_fn(states, agent_state, key) -> (actions, agent_state)
AgentFn = Callable[[ArcState, PyTree, Key], tuple[Action, PyTree]]


class Trajectory(struct.PyTreeNode):
    """T steps of B worlds: leaves (T, B, ...).

    `active` is False from the step after an episode's end on: there the world stands still and
    pays nothing, and the other fields mean nothing.
    """

    observation: Observation  # after the action
    action: Action
    reward: Array
    done: Array
    info: StepInfo
    active: Array


def play_episodes(
    states: ArcState,
    agent_fn: AgentFn,
    max_steps: int,
    config: ArcConfig,
    key: Key,
    agent_state: PyTree = None,
) -> tuple[ArcState, Array, Trajectory]:
    """`run_episode_batch` as it stands inside of another compiled program."""

    def choose(carry, agent_state, key):
        return agent_fn(carry[0], agent_state, key)

    def step(carry, action, _):
        states, active, total = carry
        new, obs, reward, done, info = step_worlds(states, action, config)
        reward = jnp.where(active, reward, 0.0)
        record = Trajectory(obs, action, reward, done, info, active)
        return (stack.where(active, new, states), active & ~done, total + reward), record

    active = ~(states.solved | (states.trials == 0) | (states.step_count >= config.max_steps))
    start = (states, active, jnp.zeros(active.shape, jnp.float32))
    (states, _, total), _, steps = rollout.play_steps(
        choose, step, draws.as_key(key), start, agent_state, max_steps
    )
    return states, total, steps


_play_compiled = jax.jit(play_episodes, static_argnames=("agent_fn", "max_steps"))


def run_episode_batch(
    states: ArcState | tuple[ArcState, Observation],
    agent_fn: AgentFn,
    max_steps: int,
    config: ArcConfig,
    *,
    key: Key | None = None,
    agent_state: PyTree = None,
) -> tuple[ArcState, Array, Trajectory]:
    """Plays B worlds for `max_steps` steps, or until their episode ends; compiled.

    `states` may be what `batch_reset` returns. Returns the final states, the sum of rewards of
    each episode (B,), and every step. The program is kept for as long as `agent_fn` is the same
    object: what it reads beside its arguments is fixed in it.
    """
    if isinstance(states, tuple):
        states = states[0]
    key = draws.as_key(jax.random.key(0) if key is None else key)
    traced = any(isinstance(x, Tracer) for x in jax.tree.leaves((states, key, agent_state)))
    play = play_episodes if traced else _play_compiled
    return play(states, agent_fn, max_steps, config, key, agent_state)


def create_batch_episode_runner(
    agent_fn: AgentFn, max_steps: int
) -> Callable[..., tuple[ArcState, Array, Trajectory]]:
    """`run_episode_batch` of one agent, compiled: runner(states, config, key, agent_state=None)."""

    @jax.jit
    def runner(states: ArcState, config: ArcConfig, key: Key, agent_state: PyTree = None):
        return play_episodes(states, agent_fn, max_steps, config, key, agent_state)

    return runner


# Random agents ---------------------------------------------------------------------------------


def _nth_allowed(uniform: Array, operation_mask: Array) -> Array:
    """An operation drawn among those allowed, (B,) from numbers (B,) and masks (B, N), N <= 64."""
    # Packed into words by a product, of which float32 holds 16 bits exactly: sums over so few
    # columns are unrolled otherwise, which takes longer to compile than all else here.
    place = np.arange(operation_mask.shape[-1])
    weight = np.where(place[:, None] // 16 == np.arange(4), 2.0 ** (place[:, None] % 16), 0.0)
    halves = (operation_mask.astype(jnp.float32) @ weight.astype(np.float32)).astype(jnp.uint32)
    word, rest = halves[..., 0] | (halves[..., 1] << 16), halves[..., 2] | (halves[..., 3] << 16)
    count, more = jax.lax.population_count(word), jax.lax.population_count(rest)
    nth = jnp.floor(uniform * (count + more)).astype(jnp.uint32)
    # The bit of that rank, by halving: skip the lower half while the rank lies above it.
    place = jnp.where(nth >= count, 32, 0)
    word, nth = jnp.where(nth >= count, rest, word), jnp.where(nth >= count, nth - count, nth)
    for half in (16, 8, 4, 2, 1):
        below = jax.lax.population_count(word & jnp.uint32((1 << half) - 1))
        above = nth >= below
        place = place + jnp.where(above, half, 0)
        word = jnp.where(above, word >> half, word)
        nth = jnp.where(above, nth - below, nth)
    return place.astype(jnp.int32)


def random_boxes(key: Key, operation_mask: Array, grid_shape: tuple[int, int]) -> BoxAction:
    """A random allowed operation on a random box of the canvas for each of B worlds.

    Corners are drawn uniformly and put in order.
    """
    uniform = draws.uniform(key, (5, *operation_mask.shape[:-1]))
    height, width = grid_shape
    row = jnp.floor(uniform[1:3] * height).astype(jnp.int32)
    column = jnp.floor(uniform[3:5] * width).astype(jnp.int32)
    return BoxAction(
        _nth_allowed(uniform[0], operation_mask),
        row.min(0),
        column.min(0),
        row.max(0),
        column.max(0),
    )


@dataclass(frozen=True)
class RandomAgent:
    """Plays random boxes on a canvas of `grid_shape`, by default the world's; its state is a key.

    `init(key)` makes that state from a key of either kind.
    """

    grid_shape: tuple[int, int] | None = None

    def init(self, key: Key) -> Key:
        return draws.as_key(key)

    @partial(jax.jit, static_argnums=0)
    def select_action(
        self, agent_state: Key, state: ArcState, config: ArcConfig
    ) -> tuple[BoxAction, Key]:
        """An action for one world, and the next agent state."""
        agent_state, key = draws.split(agent_state)
        shape = self.grid_shape or config.grid_shape
        return random_boxes(key, state.operation_mask, shape), agent_state


@dataclass(frozen=True)
class VectorizedRandomAgent:
    """`RandomAgent` for a batch: one key draws for all worlds."""

    grid_shape: tuple[int, int]

    def init(self, key: Key) -> Key:
        return draws.as_key(key)

    def select_batch_actions(
        self, states: ArcState, agent_state: Key | None = None, key: Key | None = None
    ) -> tuple[BoxAction, Key | None]:
        """An `AgentFn`: actions (B,) drawn from `key`, or without one from the agent's state."""
        if key is not None:
            return random_boxes(key, states.operation_mask, self.grid_shape), agent_state
        if agent_state is None:
            raise ValueError("VectorizedRandomAgent: give a key, or an agent_state from init")
        following, own_key = draws.split(agent_state)
        return random_boxes(own_key, states.operation_mask, self.grid_shape), following


# A scripted agent ------------------------------------------------------------------------------


def greedy_editor(config: ArcConfig) -> AgentFn:
    """An agent that knows the answer: resizes, mends one wrong cell after the other, submits.

    A yardstick, not a player: it reads the target, which no observation shows. It needs fills,
    resize and submit, and as many steps as there are wrong cells, and two. It needs the rules
    "edit" too: elsewhere a resize from one cell makes a grid of one cell.
    """
    if config.rules != "edit":
        raise ValueError(f'greedy_editor: rules={config.rules!r}; it can play under "edit" alone')
    tasks = config.tasks

    def act(states: ArcState, agent_state: PyTree, key: Key) -> tuple[PointAction, PyTree]:
        target, size = tasks.grids[states.pair, 1], tasks.sizes[states.pair, 1]
        inside = planes.area(size[:, 0], size[:, 1], tasks.words)
        wrong = ~planes.same_cells(states.grid, target) & inside
        rows = jnp.arange(tasks.words)
        row = jnp.where(wrong != 0, rows, tasks.words - 1).min(-1)
        word = jnp.take_along_axis(wrong, row[:, None], axis=-1)[:, 0]
        column = jax.lax.population_count((word & (~word + 1)) - 1).astype(jnp.int32)
        some = word != 0
        cell = planes.box_plane(planes.Box(row, column, row, column), tasks.words)
        bits = ((target & cell[:, None, :]) != 0).any(-1)
        colour = (bits << jnp.arange(planes.PLANES)).sum(-1)
        resize = (states.size != size).any(-1)
        operation = jnp.where(resize, RESIZE, jnp.where(some, colour, SUBMIT))
        return PointAction(
            operation,
            jnp.where(resize, size[:, 0] - 1, jnp.where(some, row, 0)),
            jnp.where(resize, size[:, 1] - 1, jnp.where(some, column, 0)),
        ), agent_state

    return act
