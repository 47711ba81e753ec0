"""The compiled worlds do what the numpy oracle does; one world, a batch and no jit agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import arc_check
from oracles.arc import SUBMIT
from oracles.arc_check import SETTINGS, check_edit
from oracles.arc_random import random_tasks
from worldloom.suites.arc import PointAction, arc_step, batch_reset, batch_step, make_config
from worldloom.suites.arc.environment import step_worlds
from worldloom.suites.arc.tasks import pack_tasks

BY_NAME = {setting.name: setting for setting in SETTINGS}
# Each form in other worlds: settings on one line share a compiled program.
SLICES = {
    "mask": ["32x11 canvas"],
    "box": ["plain", "one trial, seven steps", "masked operations"],
    "point": ["extended", "evaluation"],
    "flat": ["5x5 canvas"],
}


@pytest.mark.parametrize("form", SLICES)
def test_no_random_step_differs_from_the_oracle(form):
    settings = [BY_NAME[name] for name in SLICES[form]]
    report = check_edit(4000, 7, batch=160, forms=[form], settings=settings)
    assert report.differences == 0, report.first
    assert report.steps >= 4000
    # The slice was worth something: most operations had effects, and every end was met.
    assert len(report.changes) >= (28 if form in ("point", "flat") else 33)
    assert min(report.invalid, report.solved, report.wrong) >= 10
    assert (report.truncated > 0) == any(setting.max_steps < 20 for setting in settings)


def test_the_check_tells_a_wrong_rule(monkeypatch):
    """An oracle that moves the wrong way is found out, and the report says where."""
    monkeypatch.setitem(arc_check.arc.MOVES, 20, (1, 0))
    setting = BY_NAME["5x5 canvas"]
    report = check_edit(3200, 0, batch=160, forms=["flat"], settings=[setting])
    assert 0 < report.differences < report.steps
    assert report.first is not None
    assert "operation 20" in report.first
    assert "grid" in report.first


# One world, a batch of one, a batch under vmap, and no compilation at all -------------------------

CANVAS = (5, 5)
WORLDS = 6
# Fill, flood, move, turn, copy, paste, resize, undo, submit and an invalid one.
STEPS = (3, 14, 21, 24, 28, 29, 33, 39, SUBMIT, 77)
QUICKLY = {"xla_backend_optimization_level": 0}  # half the compile time, and other machine code


@pytest.fixture(scope="module")
def config():
    tasks = random_tasks(np.random.default_rng(3), CANVAS, 4)
    return make_config(pack_tasks(tasks, CANVAS), extended=True)


@pytest.fixture(scope="module")
def steps(config):
    """States before, actions, and what `batch_step` answers, for each of a few steps."""
    states, _ = batch_reset(jax.random.split(jax.random.key(1), WORLDS), config)
    rng = np.random.default_rng(4)
    record = []
    for number in STEPS:
        row, column = rng.integers(0, 3, (2, WORLDS))
        operation = np.where(np.arange(WORLDS) == 0, rng.integers(41), number)
        action = PointAction(*map(jnp.asarray, (operation, row, column)))
        answer = batch_step(states, action, config)
        record.append((states, action, answer))
        states = answer[0]
    return record


def assert_same(found, expected):
    def compare(x, y):
        assert x.dtype == y.dtype
        if jnp.issubdtype(x.dtype, jnp.floating):  # two programs may round differently
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(x, y)

    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(compare, found, expected)


def test_vmap_of_the_single_step_is_the_batched_step(config, steps):
    step = jax.jit(jax.vmap(arc_step, (0, 0, None)), compiler_options=QUICKLY)
    for states, action, answer in steps:
        assert_same(step(states, action, config), answer)


def test_a_single_world_is_a_batch_of_one(config, steps):
    step = jax.jit(arc_step, compiler_options=QUICKLY)
    batched = jax.jit(step_worlds, compiler_options=QUICKLY)

    def one(tree, i):
        return jax.tree.map(lambda x: x[i], tree)

    for states, action, answer in steps:
        for i in range(WORLDS):
            found = step(one(states, i), one(action, i), config)
            assert_same(found, one(answer, i))
    states, action, _ = steps[-2]
    batch = jax.tree.map(lambda x: x[:1], (states, action))
    assert_same(step(*one(batch, 0), config), one(batched(*batch, config), 0))


@pytest.mark.slow
def test_without_jit_the_steps_are_the_same(config, steps):
    with jax.disable_jit():
        for states, action, answer in steps[::3]:
            assert_same(step_worlds(states, action, config), answer)
