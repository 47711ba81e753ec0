"""The filter against oracles: the nearest action by enumeration, and faults by the thousand."""

import jax
import numpy as np
import pytest

from oracles import safety as oracle
from worldloom.safety.projection import project


def test_the_projection_is_the_nearest_point_that_an_enumeration_finds():
    rng = np.random.default_rng(0)
    run = jax.jit(jax.vmap(lambda *x: project(*x, 24)))
    count, size, rows = 200, 3, 4
    a = oracle.random_rows(rng, count, size, rows)
    low, high = -rng.uniform(0.3, 1.0, (count, size)), rng.uniform(0.3, 1.0, (count, size))
    inner = low + (high - low) * rng.uniform(size=(count, size))
    b = (a @ inner[..., None])[..., 0] + np.abs(a).sum(-1) * rng.uniform(0.01, 0.3, (count, rows))
    point = rng.uniform(-2.0, 2.0, (count, size))
    data = [x.astype(np.float32) for x in (point, a, b, low, high)]
    found = np.asarray(run(*data), np.float64)
    for u, case in zip(found, zip(*data, strict=True), strict=True):
        expected = oracle.nearest(*(x.astype(np.float64) for x in case))
        far = np.linalg.norm(case[0] - u), np.linalg.norm(case[0] - expected)
        assert far[0] <= far[1] + 1e-5
        over = (case[1] @ u - case[2]) / np.linalg.norm(case[1], axis=-1)
        assert over.max() <= 5e-6


def test_the_oracle_of_room_knows_slabs():
    rows, box = np.asarray([[1.0], [-2.0]]), (np.asarray([-1.0]), np.asarray([1.0]))
    assert oracle.most_room(rows, np.asarray([0.5, 0.0]), *box) == pytest.approx(0.25)
    assert oracle.most_room(rows, np.asarray([-0.5, 0.0]), *box) == pytest.approx(-0.25)


@pytest.mark.slow
def test_no_promise_is_broken_and_no_emergency_is_needless():
    """A slice of every shape."""
    cases = oracle.BATCH * len(oracle.SHAPES)
    found = oracle.count_faults(cases, seed=1)
    assert found["cases"] == cases
    assert found["feasible"] > 0.5 * cases
    assert found["broken_promises"] == found["altered"] == 0
    assert found["needless_emergencies"] <= 1e-4 * cases
