"""Test-time search for programs that solve all demonstrations, where a policy points.

A beam of programs grows by a token at a time in all demonstrations at once. What the policy thinks
of a token is its probability for the object action that the token is in each grid, averaged over
these as log-probabilities. The likeliest program that solves all demonstrations answers the test;
its input is looked at, its answer is not there (see `without_answers`).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.compiling import quick_compile
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.arc import planes
from worldloom.suites.arc.environment import overlap, similarity
from worldloom.suites.arc.evaluate import Agent, ArcEvaluator
from worldloom.suites.arc.generators.grids import MOST_EDITS
from worldloom.suites.arc.operations import Canvas
from worldloom.suites.arc.policy import Context, DemonstrationPolicy
from worldloom.suites.arc.programs import OPERATIONS, SELECTORS, TOKENS, Meaning, execute, mean
from worldloom.suites.arc.tasks import TaskSet
from worldloom.suites.arc.types import ArcConfig, Demonstrations, Observation, TaskBuffer

MOST_DEMONSTRATIONS = 4  # in which programs grow; those found are tried in all
ROOM = 16  # pairs of a task at most
KEPT = 8  # programs found in a step

# How much of a token's probability is that of its operation on its cells; of its operation, on
# whatever; of its cells, whatever is done to them; and of any token.
_SHARES = (0.7, 0.15, 0.1, 0.05)


@dataclass(frozen=True)
class Searching:
    """How far programs are looked for: compiled once for each.

    Without a policy every token is as likely: that is brute force.
    """

    policy: DemonstrationPolicy | None
    width: int = 16  # programs that grow in a step
    branch: int = 64  # tokens that each grows by; all in the first step, and without a policy
    depth: int = 6  # tokens of a program
    similarity: float = 12.0  # what likeness to the answers is worth, in log-probability


class View(NamedTuple):
    """What is seen of a task: K demonstrations, and after them a test input, of which no more."""

    pair: Array  # int32 (K + 1,)
    target: Array  # uint32 (K, 4, S)
    target_size: Array  # int32 (K, 2)
    present: Array  # bool (K,)
    answer_size: Array  # int32 (2,): of all demonstrations, or 0
    context: PyTree  # Context (1, ...), or none


class Nodes(NamedTuple):
    """W programs, and where they lead in each world."""

    canvas: Canvas  # leaves (W, K + 1, ...)
    tokens: Array  # int32 (W, depth); -1 is none
    log_prob: Array  # float32 (W,): -inf where there is none


def without_answers(tasks: TaskBuffer) -> TaskBuffer:
    """The tasks with empty grids for the answers of test pairs."""
    test = jnp.arange(tasks.num_pairs) >= tasks.tests_start[tasks.task]
    hidden = jnp.stack([jnp.zeros_like(test), test], -1)
    return tasks.replace(
        grids=jnp.where(hidden[..., None, None], 0, tasks.grids),
        sizes=jnp.where(hidden[..., None], 0, tasks.sizes),
    )


def look(searching: Searching, params: PyTree, tasks: TaskBuffer, task: Array) -> View:
    """What is seen of a task of a buffer without answers."""
    shape = tasks.grid_shape
    count = jnp.minimum(tasks.demos_count[task], MOST_DEMONSTRATIONS)
    number = jnp.arange(MOST_DEMONSTRATIONS)
    present = number < count
    rows = tasks.demos_start[task] + jnp.where(present, number, 0)
    pair = jnp.append(rows, tasks.tests_start[task])
    grids, sizes = tasks.grids[rows], tasks.sizes[rows]
    alike = (sizes[:, 1] == sizes[0, 1]).all()
    context = None
    if searching.policy is not None:
        cells = planes.unpack(grids, shape)
        demos = Demonstrations(cells[:, 0], sizes[:, 0], cells[:, 1], sizes[:, 1], present)
        demos = jax.tree.map(lambda x: x[None], demos)
        test = planes.unpack(tasks.grids[pair[-1:], 0], shape)
        context = searching.policy.apply(params, demos, test, method="context")
    answer_size = jnp.where(alike, sizes[0, 1], 0)
    return View(pair, grids[:, 1], sizes[:, 1], present, answer_size, context)


def begin(view: View, tasks: TaskBuffer, depth: int) -> Nodes:
    """The empty program."""
    grid, size = tasks.grids[view.pair, 0], tasks.sizes[view.pair, 0]
    canvas = Canvas(grid, size, jnp.zeros_like(grid), jnp.zeros_like(size))
    canvas = Canvas(*(x[None] for x in canvas))
    return Nodes(canvas, jnp.full((1, depth), -1, jnp.int32), jnp.zeros(1))


def token_probabilities(chosen: Array, meaning: Meaning) -> Array:
    """Of tokens (B, T), from those of object actions (B, N, S)."""
    operation, selector = meaning.operation, meaning.selector
    total = chosen.shape[1]
    rows = jnp.clip(operation, 0, total - 1)[:, :, None]
    columns = jnp.maximum(selector, 0)[:, None, :]
    known = (operation >= 0)[:, :, None] & (selector >= 0)[:, None, :]
    both = jnp.take_along_axis(jnp.take_along_axis(chosen, rows, 1), columns, 2)
    both = jnp.where(known, both, 0.0)
    of_operation = jnp.take_along_axis(chosen.sum(2), rows[..., 0], 1) * (operation >= 0)
    of_selector = jnp.take_along_axis(chosen.sum(1), columns[:, 0], 1) * (selector >= 0)
    n, s = TOKENS.T
    share = _SHARES
    return (
        share[0] * both[:, n, s]
        + share[1] * of_operation[:, n] / len(SELECTORS)
        + share[2] * of_selector[:, s] / len(OPERATIONS)
        + share[3] / len(TOKENS)
    )


def _log_probs(
    searching: Searching,
    params: PyTree,
    view: View,
    canvas: Canvas,
    meaning: Meaning,
    tasks: TaskBuffer,
    step: Array,
) -> Array:
    """Of tokens (W, T) in canvases (W * (K + 1), ...)."""
    worlds = len(view.pair)
    batch = canvas.size.shape[0]
    if searching.policy is None:
        return jnp.full((batch // worlds, len(TOKENS)), -np.log(len(TOKENS)), jnp.float32)
    shape = tasks.grid_shape
    pair = jnp.tile(view.pair, batch // worlds)
    obs = Observation(
        grid=planes.unpack(canvas.grid, shape),
        size=canvas.size,
        input=planes.unpack(tasks.grids[pair, 0], shape),
        input_size=tasks.sizes[pair, 0],
        clipboard=planes.unpack(canvas.clipboard, shape),
        clipboard_size=canvas.clipboard_size,
        step_count=jnp.full(batch, step),
        trials=jnp.ones(batch, jnp.int32),
        operation_mask=jnp.ones((batch, searching.policy.num_operations), bool),
    )
    context = Context(*(jnp.repeat(x, batch, 0) for x in view.context))
    used = jnp.full(batch, step / MOST_EDITS)
    policy: Any = searching.policy.apply(params, obs, context, used, method="choose")[0]
    chosen = policy.probs.reshape(batch, searching.policy.num_operations, -1)
    each = jnp.log(token_probabilities(chosen, meaning)).reshape(-1, worlds, len(TOKENS))
    weight = jnp.append(view.present, True)[:, None]
    return jax.nn.log_softmax((each * weight).sum(1) / weight.sum())


def _digest(canvas: Canvas) -> Array:
    """A number for canvases (..., K + 1, ...) of a program, uint32 (...)."""
    lead = canvas.size.shape[:-2]
    every = [x.reshape(*lead, -1).astype(jnp.uint32) for x in canvas]
    flat = jnp.concatenate(every, -1)
    weight = np.random.default_rng(2).integers(0, 2**32, flat.shape[-1], np.uint32)
    return (flat * (weight | np.uint32(1))).sum(-1, dtype=jnp.uint32)


@partial(
    jax.jit, static_argnames=("searching", "branch", "width"), compiler_options=quick_compile()
)
def grow(
    searching: Searching,
    params: PyTree,
    view: View,
    nodes: Nodes,
    tasks: TaskBuffer,
    step: Array,
    seen: Array,
    branch: int,
    width: int,
) -> tuple[Nodes, Array, Array, Array, Array]:
    """Every program by its `branch` likeliest tokens, of which the best `width` are kept.

    They, with their scores and what they are known by (of which none in `seen` is kept), and those
    that solve all demonstrations: tokens (KEPT, depth) and log-probabilities.
    """
    shape, worlds = tasks.grid_shape, len(view.pair)
    many = nodes.log_prob.shape[0]
    canvas = Canvas(*(x.reshape(-1, *x.shape[2:]) for x in nodes.canvas))
    pair = jnp.tile(view.pair, many)
    answer_size = jnp.broadcast_to(view.answer_size, (many * worlds, 2))
    meaning = mean(canvas, tasks.sizes[pair, 0], answer_size, shape)
    each = _log_probs(searching, params, view, canvas, meaning, tasks, step)
    if branch < len(TOKENS):
        each, token = jax.lax.top_k(each, branch)
    else:
        token = jnp.broadcast_to(jnp.arange(branch), each.shape)
    log_prob = nodes.log_prob[:, None] + each  # (W, M)
    done = execute(canvas, meaning, jnp.repeat(token, worlds, 0), pair, tasks)
    new = Canvas(
        *(x.reshape(many, worlds, branch, *x.shape[1:]).swapaxes(1, 2) for x in done)
    )  # (W, M, K + 1, ...)
    old = Canvas(*(x[:, None] for x in nodes.canvas))
    differs = [
        (a != b).reshape(many, branch, worlds, -1).any(-1) for a, b in zip(new, old, strict=True)
    ]
    changed = jnp.stack(differs).any(0)[..., :-1] & view.present
    equal, union = overlap(new.grid[:, :, :-1], new.size[:, :, :-1], view.target, view.target_size)
    likeness = (equal / union * view.present).sum(-1) / view.present.sum()
    solves = ((equal == union) | ~view.present).all(-1)

    # Of programs that lead to the same, the likeliest.
    digest = _digest(new).reshape(-1)
    flat = log_prob.reshape(-1)
    order = jnp.lexsort((-flat, digest))
    ordered = digest[order]
    first = jnp.append(True, ordered[1:] != ordered[:-1])
    first = jnp.zeros_like(first).at[order].set(first)
    good = first & changed.any(-1).reshape(-1) & jnp.isfinite(flat)
    solves, likeness = solves.reshape(-1) & good, likeness.reshape(-1)

    def programs(which: Array) -> Array:
        node, last = which // branch, token.reshape(-1)[which]
        return nodes.tokens[node].at[:, step].set(last)

    best, which = jax.lax.top_k(jnp.where(solves, flat, -jnp.inf), KEPT)
    found = (programs(which), best)
    open_ = good & ~solves & ~(digest[:, None] == seen).any(-1)
    score = jnp.where(open_, flat + searching.similarity * likeness, -jnp.inf)
    score, which = jax.lax.top_k(score, width)
    kept = Canvas(*(x.reshape(-1, *x.shape[2:])[which] for x in new))
    log_prob = jnp.where(jnp.isfinite(score), flat[which], -jnp.inf)
    return Nodes(kept, programs(which), log_prob), score, digest[which], *found


@partial(jax.jit, compiler_options=quick_compile())
def run_programs(programs: Array, pair: Array, answer_size: Array, tasks: TaskBuffer) -> Canvas:
    """What programs (R, depth) make of the inputs of pairs (n,): leaves (R, n, ...)."""
    many, rooms = programs.shape[0], pair.shape[0]
    rows = jnp.tile(pair, many)
    grid, size = tasks.grids[rows, 0], tasks.sizes[rows, 0]
    sizes = jnp.broadcast_to(answer_size, (many * rooms, 2))

    def one(canvas: Canvas, token: Array) -> tuple[Canvas, None]:
        meaning = mean(canvas, tasks.sizes[rows, 0], sizes, tasks.grid_shape)
        return execute(canvas, meaning, jnp.repeat(token, rooms)[:, None], rows, tasks), None

    start = Canvas(grid, size, jnp.zeros_like(grid), jnp.zeros_like(size))
    canvas = jax.lax.scan(one, start, programs.T)[0]
    return Canvas(*(x.reshape(many, rooms, *x.shape[1:]) for x in canvas))


_look = jax.jit(look, static_argnums=0, compiler_options=quick_compile())
_begin = jax.jit(begin, static_argnums=2)


def search(
    searching: Searching, params: PyTree, tasks: TaskBuffer, task: int
) -> tuple[np.ndarray, np.ndarray]:
    """Programs that solve the demonstrations of a task: tokens (R, depth), log-probabilities (R,).

    The likeliest come first; the search ends with the step in which one is found.
    """
    view = _look(searching, params, tasks, jnp.int32(task))
    nodes = _begin(view, tasks, searching.depth)
    seen = np.zeros((searching.depth, searching.width), np.uint32)
    for step in range(searching.depth):
        guided = step > 0 and searching.policy is not None
        branch = searching.branch if guided else len(TOKENS)
        grown = grow(
            searching,
            params,
            view,
            nodes,
            tasks,
            jnp.int32(step),
            jnp.asarray(seen.reshape(-1)),
            branch,
            searching.width,
        )
        nodes, _, digest, programs, log_prob = grown
        seen[step] = digest
        there = np.isfinite(log_prob)
        if there.any():
            return np.asarray(programs)[there], np.asarray(log_prob)[there]
    return np.zeros((0, searching.depth), np.int32), np.zeros(0, np.float32)


class Answers(NamedTuple):
    """Up to two different answers for each test pair (n,) of a task."""

    grids: np.ndarray  # int8 (2, n, H, W)
    sizes: np.ndarray  # int32 (2, n, 2)
    lengths: np.ndarray  # int32 (2,): tokens of the programs; 0 where there is none


def answer(programs: np.ndarray, tasks: TaskBuffer, task: int) -> Answers:
    """The answers of the first two programs that solve all demonstrations and differ in tests."""
    start, demos = int(tasks.demos_start[task]), int(tasks.demos_count[task])
    tests = int(tasks.tests_count[task])
    shape = tasks.grid_shape
    result = Answers(
        np.zeros((2, tests, *shape), np.int8), np.zeros((2, tests, 2), np.int32), np.zeros(2, int)
    )
    if not len(programs):
        return result
    rows = start + np.minimum(np.arange(-(-(demos + tests) // ROOM) * ROOM), demos + tests - 1)
    padded = np.full((KEPT, programs.shape[1]), -1, np.int32)
    padded[: len(programs)] = programs
    shown = np.asarray(tasks.sizes)[start : start + min(demos, MOST_DEMONSTRATIONS), 1]
    size = shown[0] if (shown == shown[0]).all() else np.zeros(2, np.int32)
    canvas = run_programs(jnp.asarray(padded), jnp.asarray(rows), jnp.asarray(size), tasks)
    target, target_size = tasks.grids[rows, 1], tasks.sizes[rows, 1]
    right = np.asarray(similarity(canvas.grid, canvas.size, target, target_size))[:, :demos] == 1.0
    grids = np.asarray(planes.unpack(canvas.grid, shape))[:, demos : demos + tests]
    sizes = np.asarray(canvas.size)[:, demos : demos + tests]
    known: list[bytes] = []
    for n in np.flatnonzero(right[: len(programs)].all(1)):
        name = grids[n].tobytes() + sizes[n].tobytes()
        if name not in known and len(known) < 2:
            result.grids[len(known)], result.sizes[len(known)] = grids[n], sizes[n]
            result.lengths[len(known)] = (programs[n] >= 0).sum()
            known.append(name)
    return result


class SearchingEvaluator(ArcEvaluator):
    """Scores of a policy that looks for a program before it plays: for test pairs alone.

    Where one is found, greedy play is its answer, and every sampled attempt the answer of the
    second, if there is one that differs; in place of what is not found the policy plays.
    """

    def __init__(
        self,
        tasks: TaskSet,
        rules: ArcConfig,
        agent: Agent,
        attempts: int,
        explore: float,
        searching: Searching,
    ):
        super().__init__(tasks, rules, agent, attempts, explore)
        self.searching = searching
        self.blind = without_answers(rules.tasks)
        self.forget()

    def forget(self) -> None:
        """Nothing has been looked for."""
        self._found: tuple[PyTree, dict[int, Answers]] = (None, {})

    def answers(self, agents: PyTree, task: int) -> Answers:
        """Of a task; kept as long as the same weights ask."""
        if self._found[0] is not agents:
            self._found = (agents, {})
        kept = self._found[1]
        if task not in kept:
            programs, _ = search(self.searching, agents, self.blind, task)
            kept[task] = answer(programs, self.blind, task)
        return kept[task]

    def play(
        self, agents: PyTree, pairs: np.ndarray, key: Key, explore: float
    ) -> tuple[np.ndarray, ...]:
        """`ArcEvaluator.play`, where programs answer for test pairs."""
        played = super().play(agents, pairs, key, explore)
        solved, steps, grids, sizes = (np.array(part) for part in played)
        first_test = np.asarray(self.blind.tests_start)
        buffer, number = self.rules.tasks, int(explore > 0)
        ours = np.zeros(len(pairs), bool)
        for n in np.flatnonzero(self.is_test[pairs]):
            task = int(self.task[pairs[n]])
            found = self.answers(agents, task)
            if found.lengths[number]:
                own = pairs[n] - first_test[task]
                grids[n], sizes[n] = found.grids[number, own], found.sizes[number, own]
                steps[n], ours[n] = found.lengths[number] + 1, True
        target = planes.unpack(buffer.grids[pairs, 1], self.rules.grid_shape)
        target_size = np.asarray(buffer.sizes[pairs, 1])
        right = (sizes == target_size).all(-1) & (grids == np.asarray(target)).all((-1, -2))
        return np.where(ours, right, solved), steps, grids, sizes
