"""Worlds in which an agent edits a grid until it is the answer: rules, reset, step, observation.

Everything is written for B worlds on a leading axis (`reset_worlds`, `step_worlds`);
`reset_world` and `step_world` are the same code for one world, and become it again under `vmap`.
`arc_reset`, `arc_step`, `batch_reset` and `batch_step` are compiled: nothing in `ArcConfig` but
its static fields makes them compile again.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws, stack
from worldloom.core.names import suggest
from worldloom.core.sparse import lift
from worldloom.core.types import Array, Key
from worldloom.suites.arc import actions, o2arc, operations, planes, selectors
from worldloom.suites.arc.operations import SUBMIT, UNDO, Canvas
from worldloom.suites.arc.tasks import Task, TaskSet, pack_tasks
from worldloom.suites.arc.types import (
    NUM_EXTENDED_OPERATIONS,
    NUM_OPERATIONS,
    Action,
    ArcConfig,
    ArcState,
    Demonstrations,
    ObjectAction,
    Observation,
    Rules,
    Start,
    StepInfo,
    TaskBuffer,
    int32,
)

NAMES: dict[Rules, tuple[str, ...]] = {"edit": operations.NAMES, "o2arc": o2arc.NAMES}
NOWHERE: dict[Rules, tuple[int, ...]] = {"edit": operations.NOWHERE, "o2arc": o2arc.NOWHERE}

REWARDS = (
    "similarity_weight",
    "step_penalty",
    "success_bonus",
    "wrong_penalty",
    "invalid_penalty",
)


def make_config(
    tasks: TaskBuffer | TaskSet | Sequence[Task],
    *,
    operations: Sequence[int] | None = None,
    **options: Any,
) -> ArcConfig:
    """A checked `ArcConfig`, whose fields are the options; what it says of them holds here, too.

    `operations` lists the allowed ones (default: all of the rule set). `max_trials=-1` allows any
    number of submissions.
    """
    known = ["operations", *(f.name for f in fields(ArcConfig)[2:])]
    for name in options:
        if name not in known:
            raise ValueError(f"arc: there is no option {name!r}; {suggest(name, known)}")
    total = NUM_EXTENDED_OPERATIONS if options.get("extended") else NUM_OPERATIONS
    allowed = list(range(total) if operations is None else operations)
    for operation in allowed:
        if not 0 <= operation < total:
            raise ValueError(f"arc: there is no operation {operation}; they are 0 to {total - 1}")
    config = ArcConfig(
        tasks=tasks if isinstance(tasks, TaskBuffer) else pack_tasks(tuple(tasks)),
        operation_mask=jnp.asarray(np.isin(np.arange(total), allowed)),
        **options,
    )
    for name, value, kind in (("rules", config.rules, Rules), ("start", config.start, Start)):
        if value not in get_args(kind):
            raise ValueError(f"arc: there is no {name}={value!r}; {suggest(value, get_args(kind))}")
    if config.extended and config.rules != "edit":
        raise ValueError('arc: extended operations belong to rules="edit"')
    for name in REWARDS:
        if not np.isfinite(getattr(config, name)):
            raise ValueError(f"arc: {name}={getattr(config, name)}; rewards must be finite numbers")
    if config.max_steps < 1:
        raise ValueError(f"arc: max_steps={config.max_steps}; it must be at least 1")
    if config.max_trials == 0:
        raise ValueError("arc: max_trials=0 allows no submission; use 1 or more, or -1 for any")
    if config.demonstrations < 0 or config.start_edits < 0:
        raise ValueError(
            f"arc: demonstrations={config.demonstrations} and start_edits={config.start_edits} "
            "must be 0 or more"
        )
    if config.evaluation and config.start in ("target_blank", "curriculum"):
        raise ValueError(
            f'arc: start={config.start!r} tells of the answer, which evaluation hides; use "input" '
            'or "blank"'
        )
    if config.evaluation and not np.all(np.asarray(config.tasks.tests_count) > 0):
        raise ValueError("arc: evaluation needs test pairs with answers in every task")
    return config


# Scores ----------------------------------------------------------------------------------------


def overlap(grid: Array, size: Array, target: Array, target_size: Array) -> tuple[Array, Array]:
    """Equal cells inside both areas, and cells in the union of both, int32 (...).

    Their ratio is the similarity; the grids are equal iff the two are.
    """
    common = jnp.minimum(size, target_size)
    inside = planes.area(common[..., 0], common[..., 1], grid.shape[-1])
    equal = planes.count(planes.same_cells(grid, target) & inside)
    return equal, size.prod(-1) + target_size.prod(-1) - common.prod(-1)


def similarity(grid: Array, size: Array, target: Array, target_size: Array) -> Array:
    """Equal cells inside both areas over cells in the union of both: 1 iff the grids are equal."""
    equal, union = overlap(grid, size, target, target_size)
    return equal / union.astype(jnp.float32)


# Reset -----------------------------------------------------------------------------------------


def _below(uniform: Array, n: Array) -> Array:
    """An integer in 0 .. n-1 from a number in [0, 1), for a traced n."""
    return jnp.minimum((uniform * n).astype(jnp.int32), n - 1)


def draw_pairs(uniform: Array, config: ArcConfig) -> tuple[Array, Array]:
    """A task drawn uniformly, then one of its pairs: (B,) rows of the buffer from (B, 2) numbers.

    Demonstration pairs, or test pairs in evaluation. And whether there is such a pair, (B,):
    `make_config` sees to it, but a buffer or a flag may have been replaced since.
    """
    tasks = config.tasks
    task = _below(uniform[..., 0], int32(tasks.num_tasks))
    evaluation = jnp.asarray(config.evaluation, bool)
    start = jnp.where(evaluation, tasks.tests_start[task], tasks.demos_start[task])
    count = jnp.where(evaluation, tasks.tests_count[task], tasks.demos_count[task])
    exists = count > 0
    return jnp.where(exists, start + _below(uniform[..., 1], count), 0), exists


def _scribble(keys: Key, grid: Array, size: Array, edits: Array) -> Array:
    """The grid after `edits` random fills of one cell each: at most so many fills from it."""

    def one(i, carry):
        keys, grid = carry
        keys = jax.vmap(lambda k: draws.split(k, 2))(keys)
        u = jax.vmap(lambda k: draws.uniform(k, (3,)))(keys[:, 1])
        row, column = _below(u[:, 0], size[:, 0]), _below(u[:, 1], size[:, 1])
        cell = planes.box_plane(planes.Box(row, column, row, column), grid.shape[-1])[:, None]
        colour = planes.paint(_below(u[:, 2], int32(10)))
        return keys[:, 0], (grid & ~cell) | (colour & cell)

    return jax.lax.fori_loop(0, edits, one, (keys, grid))[1]


def start_at(pair: Array, keys: Key, config: ArcConfig) -> ArcState:
    """Fresh worlds on the pairs (B,); the keys (B,) matter for the curriculum only."""
    tasks = config.tasks
    batch = pair.shape
    input_size, target_size = tasks.sizes[pair, 0], tasks.sizes[pair, 1]
    target = tasks.grids[pair, 1]
    if config.start == "input":
        grid, size = tasks.grids[pair, 0], input_size
    elif config.start == "curriculum":
        edits = int32(config.start_edits)
        grid, size = _scribble(keys, target, target_size, edits), target_size
    else:
        grid = jnp.zeros((*batch, planes.PLANES, tasks.words), jnp.uint32)
        size = input_size if config.start == "blank" else target_size
    return ArcState(
        grid=grid,
        size=size,
        clipboard=jnp.zeros_like(grid),
        clipboard_size=jnp.zeros_like(size),
        pair=pair,
        step_count=jnp.zeros(batch, jnp.int32),
        trials=jnp.broadcast_to(int32(config.max_trials), batch),
        similarity=similarity(grid, size, target, target_size),
        solved=jnp.zeros(batch, bool),
        operation_mask=jnp.broadcast_to(config.operation_mask, (*batch, config.num_operations)),
        tasks_id=jnp.broadcast_to(tasks.identity, batch),
        undo=(grid, size) if config.extended else None,
        objects=o2arc.no_objects(batch, tasks.words) if config.rules == "o2arc" else None,
    )


def reset_worlds(keys: Key, config: ArcConfig) -> tuple[ArcState, Observation]:
    """B fresh worlds from keys (B,)."""
    keys = jax.vmap(draws.split)(keys)
    uniform = jax.vmap(lambda k: draws.uniform(k, (2,)))(keys[:, 0])
    pair, exists = draw_pairs(uniform, config)
    state = start_at(pair, keys[:, 1], config)
    # A world without a pair of its own knows no tasks: every action in it is invalid.
    state = state.replace(tasks_id=jnp.where(exists, state.tasks_id, ~state.tasks_id))
    return state, create_observation(state, config)


# Step ------------------------------------------------------------------------------------------


def step_worlds(
    state: ArcState, action: Action, config: ArcConfig
) -> tuple[ArcState, Observation, Array, Array, StepInfo]:
    """One action in each of B worlds: states, observations, rewards, dones, infos.

    An action that is invalid changes nothing, costs a step and says so: `operation_type` is -1.
    """
    tasks = config.tasks
    if isinstance(action, ObjectAction):
        action = selectors.resolve(action, state, tasks.grid_shape)
    operation, selection = actions.decode(action, tasks.grid_shape, tasks.words)
    # A pair number means nothing in a buffer other than the one the world was reset with.
    known = state.tasks_id == tasks.identity
    valid = actions.allowed(operation, state.operation_mask) & selection.valid & known
    doing = jnp.where(valid, operation, SUBMIT)  # submitting changes no cell
    canvas = Canvas(state.grid, state.size, state.clipboard, state.clipboard_size)
    objects = state.objects
    if config.rules == "o2arc":
        new, objects = o2arc.apply(canvas, objects, doing, selection, state.pair, tasks)
    else:
        new = operations.edit(canvas, doing, selection, state.pair, tasks)
    undo = state.undo
    if undo is not None:
        back = doing == UNDO
        grid, size = stack.where(back, undo, (new.grid, new.size))
        new = new._replace(grid=grid, size=size)
        # An invalid action and a submission are no steps to go back on.
        undo = stack.where(valid & (operation != SUBMIT), (state.grid, state.size), undo)

    target, target_size = tasks.grids[state.pair, 1], tasks.sizes[state.pair, 1]
    equal, union = overlap(new.grid, new.size, target, target_size)
    # With other tasks the target is another pair's.
    score = jnp.where(valid, equal / union.astype(jnp.float32), state.similarity)
    submits = valid & (operation == SUBMIT)
    correct = submits & (equal == union)
    trials = jnp.where(state.trials > 0, state.trials - submits, state.trials)
    step_count = state.step_count + 1
    solved = state.solved | correct
    terminated = solved | (trials == 0)
    truncated = step_count >= config.max_steps
    weight = jnp.where(jnp.asarray(config.evaluation, bool), 0.0, config.similarity_weight)
    improvement = score - state.similarity
    reward = (
        weight * improvement
        + config.step_penalty
        + jnp.where(correct, config.success_bonus, 0.0)
        + jnp.where(submits & ~correct, config.wrong_penalty, 0.0)
        + jnp.where(valid, 0.0, config.invalid_penalty)
    ).astype(jnp.float32)
    done = terminated | truncated
    state = state.replace(
        **new._asdict(),
        step_count=step_count,
        trials=trials,
        similarity=score,
        solved=solved,
        undo=undo,
        objects=objects,
    )
    info = StepInfo(
        similarity=score,
        similarity_improvement=improvement,
        operation_type=jnp.where(valid, operation, -1),
        step_count=step_count,
        episode_done=done,
        terminated=terminated,
        truncated=truncated,
        solved=solved,
        size_correct=(new.size == target_size).all(-1),
    )
    return state, create_observation(state, config), reward, done, info


# Observation -----------------------------------------------------------------------------------


def create_observation(state: ArcState, config: ArcConfig) -> Observation:
    """What an agent may see of one world or of B; no part of it depends on the answer.

    Inside jit, what is not used is not computed.
    """
    tasks = config.tasks
    return Observation(
        grid=planes.unpack(state.grid, tasks.grid_shape),
        size=state.size,
        input=planes.unpack(tasks.grids[state.pair, 0], tasks.grid_shape),
        input_size=tasks.sizes[state.pair, 0],
        clipboard=planes.unpack(state.clipboard, tasks.grid_shape),
        clipboard_size=state.clipboard_size,
        step_count=state.step_count,
        trials=state.trials,
        operation_mask=state.operation_mask,
        demonstrations=_demonstrations(state.pair, config) if config.demonstrations else None,
        selected=_selected(state, config) if config.rules == "o2arc" else None,
    )


def _selected(state: ArcState, config: ArcConfig) -> Array:
    """The cells of the object that an empty selection would go on with."""
    lead = state.pair.shape
    many = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(lead) :]), (state.objects, state.size))
    cells = planes.unpack_plane(o2arc.selected_cells(*many), config.grid_shape)
    return cells.reshape(*lead, *config.grid_shape)


def _demonstrations(pair: Array, config: ArcConfig) -> Demonstrations:
    """Up to `config.demonstrations` demonstration pairs of the task, without `pair` itself."""
    tasks = config.tasks
    task = tasks.task[pair]
    start, count = tasks.demos_start[task], tasks.demos_count[task]
    own = (pair >= start) & (pair < start + count)
    number = start[..., None] + jnp.arange(config.demonstrations)
    number = number + (own[..., None] & (number >= pair[..., None]))
    present = number < (start + count)[..., None]
    number = jnp.where(present, number, start[..., None])
    grids = jnp.where(present[..., None, None, None], tasks.grids[number], jnp.uint32(0))
    sizes = jnp.where(present[..., None, None], tasks.sizes[number], 0)
    cells = planes.unpack(grids, tasks.grid_shape)
    return Demonstrations(
        cells[..., 0, :, :], sizes[..., 0, :], cells[..., 1, :, :], sizes[..., 1, :], present
    )


# The functional interface ----------------------------------------------------------------------

_reset_one = lift(reset_worlds)
_step_one = lift(lambda items, config: step_worlds(items[0], items[1], config))


def reset_world(key: Key, config: ArcConfig) -> tuple[ArcState, Observation]:
    """`reset_worlds` for one world."""
    return _reset_one(key, config)


def step_world(
    state: ArcState, action: Action, config: ArcConfig
) -> tuple[ArcState, Observation, Array, Array, StepInfo]:
    """`step_worlds` for one world."""
    return _step_one((state, actions.as_action(action)), config)


def _with_tasks(config: ArcConfig, task_data: TaskBuffer | None) -> ArcConfig:
    return config if task_data is None else config.replace(tasks=task_data)


@jax.jit
def arc_reset(
    key: Key, config: ArcConfig, task_data: TaskBuffer | None = None
) -> tuple[ArcState, Observation]:
    """One fresh world, compiled. `task_data` replaces `config.tasks`: step with the same tasks,
    since the state only points to its pair (`config.replace(tasks=task_data)`)."""
    return reset_world(draws.as_key(key), _with_tasks(config, task_data))


@jax.jit
def arc_step(
    state: ArcState, action: Action, config: ArcConfig
) -> tuple[ArcState, Observation, Array, Array, StepInfo]:
    """One action in one world, compiled; see `step_worlds`.

    Never fails: invalid actions change nothing.
    """
    return step_world(state, action, config)


safe_arc_step = arc_step


@jax.jit
def batch_reset(
    keys: Key, config: ArcConfig, task_data: TaskBuffer | None = None
) -> tuple[ArcState, Observation]:
    """B fresh worlds from keys (B,), compiled; `task_data` as for `arc_reset`."""
    return reset_worlds(draws.as_key(keys), _with_tasks(config, task_data))


batch_step = jax.jit(step_worlds)
"""`step_worlds`, compiled: (states, actions, config) -> (states, obs, rewards, dones, infos)."""

batch_step_donating = jax.jit(step_worlds, donate_argnums=0)
"""`batch_step` that reuses the memory of the states it is given: **they are dead afterwards**."""
