"""Brute force: short sequences of object edits that solve all demonstrations, found by trying.

An edit is an operation and a named selector (a colour, a component by size, a box, ...), so that
the same sequence means something in every pair of a task. Sequences are grown from the one whose
grids are most like the answers of the demonstrations; what solves all of these answers the test.

Two languages: object edits alone, and the programs that a policy's search has, without a policy.
"""

import heapq
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.suites.arc import planes, selectors
from worldloom.suites.arc.environment import make_config, start_at, step_worlds
from worldloom.suites.arc.operations import COPY_INPUT, NOWHERE, RESIZE, UP
from worldloom.suites.arc.programs import TOKENS
from worldloom.suites.arc.searching import KEPT as MOST_FOUND
from worldloom.suites.arc.searching import (
    Nodes,
    Searching,
    answer,
    begin,
    look,
    without_answers,
)
from worldloom.suites.arc.searching import grow as grow_programs
from worldloom.suites.arc.tasks import Task, TaskSet
from worldloom.suites.arc.types import MaskAction, ObjectAction, TaskBuffer

MOST_PAIRS = 4  # demonstrations that are tried
ROOM = 16  # pairs of a task at most
ANSWERS = 2  # of a task
DEEPEST = 4  # edits of a sequence
KEPT = 48  # of the sequences that one grows into
LENGTH_COST = 0.1  # of an edit, in similarity

# solve(task, seconds, side): what up to two sequences solve, of each its pairs; which are tests
Solver = Callable[[Task, float, int], tuple[list[list[bool]], list[bool]]]


def edits(num_operations: int, grid_shape: tuple[int, int]) -> np.ndarray:
    """The object actions (E,) that are tried: every operation with every named selector."""
    total = selectors.count_selectors(grid_shape)
    floods = range(10, UP)
    operations = [
        n for n in range(num_operations) if n not in (*NOWHERE, *floods, RESIZE, COPY_INPUT)
    ]
    return np.array([n * total + s for n in operations for s in range(selectors.NAMED)], np.int32)


@partial(jax.jit, static_argnames="grid_shape")
def grow(states: Any, actions: Any, rules: Any, grid_shape: tuple[int, int]) -> Any:
    """Every action (E,) in every state (K, ...).

    Similarities (E, K), whether it does something (E,), and whether it copies (E,).
    """
    many, worlds = actions.shape[0], states.pair.shape[0]
    wide = jax.tree.map(lambda x: jnp.repeat(x[None], many, 0).reshape(-1, *x.shape[1:]), states)
    grid = planes.unpack(states.grid, grid_shape).astype(jnp.int32)
    cells = selectors.selectable(grid, states.size).cells.swapaxes(0, 1)  # (NAMED, K, H, W)
    total = selectors.count_selectors(grid_shape)
    chosen = cells[actions % total].reshape(-1, *grid_shape)
    there = chosen.any((-1, -2)).reshape(many, worlds).all(1)
    new, *_ = step_worlds(wide, MaskAction(jnp.repeat(actions // total, worlds), chosen), rules)
    copies = (new.clipboard != wide.clipboard).any((-1, -2))
    changes = copies | (new.grid != wide.grid).any((-1, -2)) | (new.size != wide.size).any(-1)
    useful = there & changes.reshape(many, worlds).any(1)
    return new.similarity.reshape(many, worlds), useful, copies.reshape(many, worlds).any(1)


@jax.jit
def follow(states: Any, actions: Any, rules: Any) -> Any:
    """The states after a sequence of actions (L,) in each; -1 is none."""

    def one(states: Any, action: Any) -> Any:
        batch = states.pair.shape
        new, *_ = step_worlds(states, ObjectAction(jnp.broadcast_to(action, batch)), rules)
        return new, None

    return jax.lax.scan(one, states, actions)[0]


def padded_buffer(task: Task, side: int) -> TaskBuffer:
    """The task alone, with room for more pairs, so that all tasks share a program."""
    buffer = TaskSet((task,)).buffer((side, side))
    more = ROOM - buffer.num_pairs

    def pad(x: Any) -> Any:
        return jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1), mode="edge")

    return buffer.replace(
        grids=pad(buffer.grids), sizes=pad(buffer.sizes), task=jnp.zeros(ROOM, jnp.int32)
    )


def solve(task: Task, seconds: float, side: int) -> tuple[list[list[bool]], list[bool]]:
    """What up to two sequences found in time solve: of each its pairs; and which are test pairs."""
    rules = make_config(padded_buffer(task, side), extended=True, max_steps=1000)
    shape = rules.grid_shape
    actions = edits(rules.num_operations, shape)
    number = min(len(task.demos), MOST_PAIRS)
    rows = jnp.arange(MOST_PAIRS) % number  # a fixed count, so that all tasks share a program
    start = start_at(rows, jax.random.split(jax.random.key(0), MOST_PAIRS), rules)
    began, order, found = time.process_time(), count(), []
    open_: list[tuple[float, int, tuple[int, ...]]] = [(0.0, next(order), ())]
    while open_ and len(found) < ANSWERS and time.process_time() - began < seconds:
        _, _, sequence = heapq.heappop(open_)
        padded = np.full(DEEPEST, -1, np.int32)
        padded[: len(sequence)] = sequence
        states = follow(start, jnp.asarray(padded), rules)
        score, useful, copied = map(np.asarray, grow(states, jnp.asarray(actions), rules, shape))
        for n in np.flatnonzero(useful & (score == 1.0).all(1))[: ANSWERS - len(found)]:
            found.append((*sequence, int(actions[n])))
        if len(sequence) + 1 < DEEPEST:
            mean = np.where(useful, score.mean(1), -1.0)
            best = np.argsort(-mean, kind="stable")[:KEPT]
            best = [*best, *np.flatnonzero(useful & copied)[:8]]
            for n in best:
                if mean[n] >= 0.0:
                    grown = (*sequence, int(actions[n]))
                    priority = LENGTH_COST * len(grown) - float(mean[n])
                    heapq.heappush(open_, (priority, next(order), grown))
    pairs = len(task.pairs)
    answers = []
    for sequence in found:
        padded = np.full(DEEPEST, -1, np.int32)
        padded[: len(sequence)] = sequence
        states = start_at(jnp.arange(ROOM), jax.random.split(jax.random.key(0), ROOM), rules)
        ends = follow(states, jnp.asarray(padded), rules)
        answers.append((np.asarray(ends.similarity)[:pairs] == 1.0).tolist())
    return answers, [index >= len(task.demos) for index in range(pairs)]


# Every token is as likely, so that what a program costs is its length.
BLIND = Searching(
    None, width=KEPT, depth=DEEPEST, similarity=float(np.log(len(TOKENS))) / LENGTH_COST
)


def solve_by_programs(task: Task, seconds: float, side: int) -> tuple[list[list[bool]], list[bool]]:
    """`solve` in the language of `worldloom.suites.arc.programs`."""
    tasks = without_answers(padded_buffer(task, side))
    began, order = time.process_time(), count()
    view = _look(tasks)
    first = _begin(view, tasks)
    open_: list[tuple[float, int, int, Nodes]] = [(0.0, next(order), 0, first)]
    found: list[np.ndarray] = []
    while open_ and len(found) < ANSWERS and time.process_time() - began < seconds:
        _, _, length, node = heapq.heappop(open_)
        nodes, score, _, programs, log_prob = grow_programs(
            BLIND,
            (),
            view,
            node,
            tasks,
            jnp.int32(length),
            jnp.zeros(1, jnp.uint32),
            len(TOKENS),
            KEPT,
        )
        found += list(np.asarray(programs)[np.isfinite(log_prob)])
        if length + 1 < DEEPEST:
            score, nodes = np.asarray(score), jax.device_get(nodes)
            for n in np.flatnonzero(np.isfinite(score)):
                own = jax.tree.map(lambda x, n=n: x[n : n + 1], nodes)
                heapq.heappush(open_, (-float(score[n]), next(order), length + 1, own))
    answered = answer(np.array(found[:MOST_FOUND]), tasks, 0)
    answers = []
    for grids, sizes, length in zip(*answered, strict=True):
        if length:
            right = [
                np.array_equal(grid[:h, :w], pair.output)
                for grid, (h, w), pair in zip(grids, sizes, task.tests, strict=True)
            ]
            answers.append([True] * len(task.demos) + right)
    return answers, [index >= len(task.demos) for index in range(len(task.pairs))]


_look = jax.jit(lambda tasks: look(BLIND, (), tasks, jnp.int32(0)))
_begin = jax.jit(lambda view, tasks: begin(view, tasks, DEEPEST))


def search(
    tasks: TaskSet, seconds: float, side: int, solve: Solver = solve
) -> tuple[np.ndarray, np.ndarray, float]:
    """Which test pairs the first sequence found solves, which the second, and the time in all.

    seconds: of processor time for each task. Compiling is not counted.
    """
    solve(tasks[0], 1e-3, side)  # compiles
    start = time.process_time()
    solved: list[list[bool]] = [[], []]
    for task in tasks:
        answers, tests = solve(task, seconds, side)
        for n in range(ANSWERS):
            pairs = answers[n] if n < len(answers) else [False] * len(tests)
            solved[n] += [pair for pair, test in zip(pairs, tests, strict=True) if test]
    spent = time.process_time() - start
    return np.array(solved[0], bool), np.array(solved[1], bool), spent
