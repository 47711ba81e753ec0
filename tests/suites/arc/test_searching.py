"""The search for programs: what tokens do, that planted ones are found, that no answer is seen."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.arc import make_config, planes, programs, searching
from worldloom.suites.arc.environment import create_observation, start_at
from worldloom.suites.arc.evaluate import random_object_agent
from worldloom.suites.arc.operations import Canvas
from worldloom.suites.arc.policy import DemonstrationPolicy
from worldloom.suites.arc.programs import OPERATION_NAMES, SELECTORS, TOKENS, describe
from worldloom.suites.arc.searching import Searching, SearchingEvaluator
from worldloom.suites.arc.tasks import Pair, Task, TaskSet

SHAPE = (8, 8)
BRUTE = Searching(None, width=4, branch=32, depth=2)


def token(operation, selector):
    chosen = (OPERATION_NAMES.index(operation), SELECTORS.index(selector))
    return int(np.flatnonzero((chosen == TOKENS).all(1))[0])


GRID = np.array(
    [
        [0, 0, 0, 0, 0],
        [0, 3, 3, 0, 0],
        [0, 3, 0, 0, 7],
        [0, 0, 0, 0, 0],
    ]
)


def edited(cells, *rows):
    """The cells with these at (row, column)."""
    cells = np.array(cells)
    for row, column, colour in rows:
        cells[row, column] = colour
    return cells


# By hand: what a program of one or two tokens makes of GRID.
BY_HAND = {
    ("fill the most frequent colour: whole",): np.full((4, 5), 3),
    ("fill the least frequent colour: coloured",): np.where(GRID > 0, 7, 0),
    ("fill the smallest component's colour: component 0",): np.where(GRID > 0, 7, 0),
    ("fill 5: gaps in box of coloured",): edited(GRID, (1, 3, 5), (1, 4, 5), (2, 2, 5), (2, 3, 5)),
    ("fill 5: gaps in box of colour 3",): edited(GRID, (2, 2, 5)),
    ("fill 0: all but the largest component",): edited(GRID, (2, 4, 0)),
    ("fill 1: single cells",): edited(GRID, (2, 4, 1)),
    ("fill 1: components at the edge",): edited(GRID, (2, 4, 1)),
    ("fill 1: components off the edge",): np.where(GRID == 3, 1, GRID),
    ("slide left: smallest component",): edited(GRID, (2, 4, 0), (2, 2, 7)),
    ("slide up: colour 7",): edited(GRID, (2, 4, 0), (0, 4, 7)),
    ("slide right: component 0",): np.array(
        [[0, 0, 0, 0, 0], [0, 0, 0, 3, 3], [0, 0, 0, 3, 7], [0, 0, 0, 0, 0]]
    ),
    ("slide down: coloured",): np.roll(GRID, 1, axis=0),
    ("crop: box of most frequent colour",): np.array([[3, 3], [3, 0]]),
    ("fill 2: outline by sides", "fill 0: colour 3"): np.array(
        [[0, 2, 2, 0, 0], [2, 0, 0, 2, 2], [2, 0, 2, 2, 7], [0, 2, 0, 0, 2]]
    ),
    ("resize: 0.5 heights x 1 widths",): GRID[:2],
    ("resize: 1 x the coloured cells", "fill 4: whole"): np.full((1, 4), 4),
    ("resize: the size of all answers",): GRID[:3, :3],
    ("fill 6: diagonal",): edited(GRID, *((n, n, 6) for n in range(4))),
    ("fill 6: bottom half", "fill 0: last row"): edited(GRID, *((2, n, 6) for n in range(5))),
}


def run(program, cells):
    """A program of names, made of a grid by the compiled function."""
    tokens = [token(*name.split(": ")) for name in program]
    padded = np.full((1, 2), -1, np.int32)
    padded[0, : len(tokens)] = tokens
    pair = Pair(np.array(cells, np.int8), np.zeros((3, 3), np.int8))
    buffer = TaskSet((Task("t", (pair,), ()),)).buffer(SHAPE)
    canvas = searching.run_programs(
        jnp.asarray(padded), jnp.zeros(1, jnp.int32), jnp.array([3, 3]), buffer
    )
    h, w = np.asarray(canvas.size)[0, 0]
    return np.asarray(planes.unpack(canvas.grid, SHAPE))[0, 0, :h, :w]


@pytest.mark.parametrize("program", BY_HAND, ids="; ".join)
def test_tokens_do_what_is_said_of_them(program):
    np.testing.assert_array_equal(run(program, GRID), BY_HAND[program])


def test_what_selects_nothing_does_nothing():
    np.testing.assert_array_equal(run(("fill 5: colour 8", "crop: component 4"), GRID), GRID)
    empty = np.zeros((3, 3), int)
    np.testing.assert_array_equal(run(("fill the most frequent colour: whole",), empty), empty)


def test_selectors_go_by_the_object_actions_that_select_the_same():
    grid = planes.pack_numpy(np.pad(GRID, ((0, 4), (0, 3)))[None], 8)
    size = jnp.array([[4, 5]])
    canvas = Canvas(jnp.asarray(grid), size, jnp.zeros_like(grid), jnp.zeros_like(size))
    meaning = jax.jit(programs.mean, static_argnums=3)(canvas, size, size * 0, SHAPE)
    selector = dict(zip(SELECTORS, np.asarray(meaning.selector)[0].tolist(), strict=True))
    assert selector["whole"] == 0
    assert selector["most frequent colour"] == selector["colour 3"] == selector["component 0"]
    assert selector["outline by sides"] == selector["colour 8"] == -1
    assert selector["the cell at 0 heights, 1 widths"] == programs.NAMED + 5
    assert selector["3 heights x 3 widths"] == -1  # beyond the canvas


# The search: tasks of four pairs each, so that they share what is compiled -----------------------


def planted(program, demos=3, tests=1, seed=0):
    """A task whose answers are those of a program."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(demos + tests):
        cells = np.where(rng.random((5, 6)) < 0.5, 0, rng.integers(1, 5, (5, 6)))
        pairs.append(Pair(cells.astype(np.int8), run(program, cells)))
    return Task("planted", tuple(pairs[:demos]), tuple(pairs[demos:]))


def blind(task):
    return searching.without_answers(TaskSet((task,)).buffer(SHAPE))


@pytest.fixture(scope="module")
def policy():
    """A policy that has learned nothing, and its weights."""
    net = DemonstrationPolicy(41, channels=10, context_size=16, token=16)
    rules = make_config(
        TaskSet((planted(("flip rows: whole",)),)).buffer(SHAPE), extended=True, demonstrations=3
    )
    state = start_at(jnp.zeros(1, jnp.int32), jax.random.split(jax.random.key(0), 1), rules)
    obs = create_observation(state, rules)
    return net, jax.jit(net.init)(jax.random.key(1), obs, jnp.zeros(1))


PLANTED = [
    ("fill the least frequent colour: most frequent colour",),
    ("slide down: colour 2",),
    ("flip rows: whole", "fill 9: first row"),
]


@pytest.mark.parametrize("program", PLANTED, ids="; ".join)
def test_a_planted_program_is_found_and_answers_the_test(program):
    task = planted(program)
    found, log_prob = searching.search(BRUTE, (), blind(task), 0)
    assert 0 < len(found) <= searching.KEPT
    assert (np.diff(log_prob) <= 0).all()
    assert ((found >= 0).sum(1) == len(program)).all()
    answers = searching.answer(found, blind(task), 0)
    size = answers.sizes[0, 0]
    np.testing.assert_array_equal(answers.grids[0, 0, : size[0], : size[1]], task.tests[0].output)
    assert answers.lengths[0] == len(program)


def test_the_two_answers_differ_and_each_solves_all_demonstrations():
    # Which of the two colours is meant, a demonstration that is shown thrice does not say.
    cells = np.array([[1, 2, 2], [0, 0, 0]], np.int8)
    asked = np.array([[1, 1, 2], [0, 0, 3]], np.int8)
    demo = Pair(cells, np.where(cells == 2, 5, cells).astype(np.int8))
    task = Task("unclear", (demo,) * 3, (Pair(asked, asked),))
    found, _ = searching.search(BRUTE, (), blind(task), 0)
    answers = searching.answer(found, blind(task), 0)
    assert (answers.lengths == 1).all()
    assert (answers.grids[0] != answers.grids[1]).any()


def test_nothing_is_found_where_no_short_program_is():
    rng = np.random.default_rng(3)
    pairs = [Pair(*rng.integers(0, 9, (2, 5, 5)).astype(np.int8)) for _ in range(4)]
    task = Task("noise", tuple(pairs[:3]), tuple(pairs[3:]))
    found, log_prob = searching.search(BRUTE, (), blind(task), 0)
    assert found.shape == (0, 2)
    assert log_prob.shape == (0,)
    assert not searching.answer(found, blind(task), 0).lengths.any()


@pytest.mark.slow
def test_a_policy_says_which_of_the_programs_is_likelier(policy):
    net, params = policy
    task = planted(("flip rows: whole",))
    found, log_prob = searching.search(replace(BRUTE, policy=net), params, blind(task), 0)
    assert describe(found[0]) == "flip rows: whole"
    assert np.isfinite(log_prob).all()
    # Of tokens that are one object action, whole probabilities; of others, a little.
    assert np.exp(log_prob).sum() <= 1.0 + 1e-4


@pytest.mark.slow
def test_answers_of_tests_are_not_looked_at(policy):
    """With other answers, of other sizes too, search and play give the same grids."""
    net, params = policy
    task = planted(("fill 9: first row",))
    wrong = tuple(replace(pair, output=np.full((2, 7), 6, np.int8)) for pair in task.tests)
    played = []
    for tests in (task.tests, wrong):
        tasks = TaskSet((replace(task, tests=tests),))
        rules = make_config(tasks.buffer(SHAPE), extended=True, max_steps=2, max_trials=1)
        evaluator = SearchingEvaluator(
            tasks, rules, random_object_agent, 0, 1.0, replace(BRUTE, policy=net)
        )
        pairs = np.flatnonzero(evaluator.is_test)
        played.append(evaluator.play(params, pairs, jax.random.key(0), 0.0))
    (solved, *right), (unsolved, *others) = played
    assert solved.all()
    assert not unsolved.any()
    for one, other in zip(right, others, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.asarray(evaluator.blind.grids)[pairs, 1].any()
    assert not np.asarray(evaluator.blind.sizes)[pairs, 1].any()


@pytest.mark.slow
def test_demonstrations_are_played_and_never_searched(policy):
    net, params = policy
    tasks = TaskSet((planted(("fill 9: first row",)),))
    rules = make_config(tasks.buffer(SHAPE), extended=True, max_steps=2, max_trials=1)
    evaluator = SearchingEvaluator(
        tasks, rules, random_object_agent, 0, 1.0, replace(BRUTE, policy=net)
    )
    played = evaluator(params, jax.random.key(0), attempts=1)
    assert played.solved[played.tests].all()
    assert not played.solved[~played.tests].any()
