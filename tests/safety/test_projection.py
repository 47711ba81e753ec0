"""The nearest point of a box with rows: known answers, scipy, and sampled competitors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from worldloom.safety.projection import project

NEAREST = 2e-4  # how much farther than the best a projection may be
PIVOTS = 30


@pytest.fixture(scope="module")
def solve():
    """solve(points, rows, bounds, low, high): the projections of a batch of problems."""

    @jax.jit
    def run(point, rows, bounds, low, high):
        return jax.vmap(lambda *x: project(*x, PIVOTS))(point, rows, bounds, low, high)

    return lambda *arrays: np.asarray(run(*(np.asarray(x, np.float32) for x in arrays)), np.float64)


def problems(count, rows, size, seed=0):
    """Random problems with a feasible interior: rows leave a point of the box some room."""
    luck = np.random.default_rng(seed)
    a = luck.standard_normal((count, rows, size)) * 10.0 ** luck.uniform(-2, 2, (count, rows, 1))
    low, high = -luck.uniform(0.3, 1.0, (count, size)), luck.uniform(0.3, 1.0, (count, size))
    inner = low + (high - low) * luck.uniform(0.05, 0.95, (count, size))
    room = np.abs(a).sum(-1) * luck.uniform(0.0, 0.3, (count, rows))
    point = luck.uniform(-2.0, 2.0, (count, size))
    return [
        x.astype(np.float32) for x in (point, a, (a @ inner[..., None])[..., 0] + room, low, high)
    ]


def violation(u, rows, bounds):
    """The furthest that a row is crossed, in lengths of the row."""
    over = (rows @ u[..., None])[..., 0] - bounds
    return (over / np.linalg.norm(rows, axis=-1)).max(-1)


def test_without_rows_it_is_the_box(solve):
    ends = -np.ones((1, 3)), np.ones((1, 3))
    found = solve([[2.0, -3.0, 0.25]], np.zeros((1, 0, 3)), np.zeros((1, 0)), *ends)
    assert found.tolist() == [[1.0, -1.0, 0.25]]


@pytest.mark.parametrize(
    ("point", "row", "bound", "expected"),
    [
        ([1.0, 1.0], [1.0, 1.0], 1.0, [0.5, 0.5]),
        ([0.2, 0.1], [1.0, 1.0], 1.0, [0.2, 0.1]),  # it holds already
        ([1.0, 0.0], [1.0, 0.1], 0.0, [0.01 / 1.01, -0.1 / 1.01]),
        ([1.0, 1.0], [1.0, 3.0], -3.0, [0.0, -1.0]),  # the second reaches its end on the way
        ([3.0, 0.0], [1.0, 1.0], 1.0, [1.0, 0.0]),  # the box alone is enough
        ([3.0, 0.9], [0.0, 1.0], 0.5, [1.0, 0.5]),
    ],
)  # fmt: skip
def test_one_row_gives_known_answers(solve, point, row, bound, expected):
    found = solve([point], [[row]], [[bound]], [[-1.0, -1.0]], [[1.0, 1.0]])
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (1, 2), (1, 6), (3, 2), (4, 4), (8, 4)])
def test_it_is_where_scipy_finds_the_nearest_point(solve, rows, size):
    data = problems(12, rows, size, seed=rows * 10 + size)
    found = solve(*data)
    solved = 0
    for u, point, a, b, low, high in zip(found, *(x.astype(float) for x in data), strict=True):
        length = np.linalg.norm(a, axis=-1)
        best = minimize(
            lambda x, p=point: ((x - p) ** 2).sum(), (low + high) / 2, method="SLSQP",
            bounds=list(zip(low, high, strict=True)), tol=1e-12,
            constraints={"type": "ineq", "fun": lambda x, a=a, b=b, n=length: (b - a @ x) / n},
        )  # fmt: skip
        assert best.status in (0, 8)  # 8: no step improves it any more
        near = np.linalg.norm(u - point), np.linalg.norm(best.x - point)
        assert near[0] <= near[1] + NEAREST
        solved += violation(u, a, b) <= 1e-5 and abs(near[0] - near[1]) <= NEAREST
    assert solved >= (12 if rows < 8 else 11)


@pytest.mark.parametrize(("rows", "size", "share"), [(1, 3, 1.0), (2, 2, 0.999), (4, 4, 0.99)])
def test_no_sampled_feasible_point_is_nearer(solve, rows, size, share):
    """20,000 problems with 200 competitors each; `share` of them must be solved to 1e-5."""
    data = problems(20_000, rows, size, seed=7)
    point, a, b, low, high = (x.astype(np.float64) for x in data)
    found = solve(*data)
    assert (found >= data[3]).all()
    assert (found <= data[4]).all()
    solved = violation(found, a, b) <= 1e-5
    assert solved.mean() >= share, solved.mean()
    mine = np.linalg.norm(found - point, axis=-1)
    luck = np.random.default_rng(1)
    for i in range(200):
        other = low + (high - low) * luck.uniform(0.0, 1.0, low.shape)
        if i % 2:  # near to the projection, where a competitor has its best chance
            other = np.clip(found + 0.03 * luck.standard_normal(low.shape), low, high)
        feasible = violation(other, a, b) <= 0.0
        nearer = np.linalg.norm(other - point, axis=-1) < mine - NEAREST
        assert not (feasible & nearer & solved).any()


def test_what_cannot_be_satisfied_stays_in_the_box_and_as_near_to_the_row_as_that_allows(solve):
    found = solve([[0.3, 0.2]], [[[1.0, 2.0]]], [[-9.0]], [[-1.0, -1.0]], [[1.0, 1.0]])
    np.testing.assert_allclose(found, [[-1.0, -1.0]], atol=1e-6)


def test_contradicting_rows_still_give_a_finite_point_of_the_box(solve):
    rows, bounds = [[[1.0, 0.0], [-1.0, 0.0]]], [[-0.5, -0.5]]
    found = solve([[0.3, 0.2]], rows, bounds, [[-1.0, -1.0]], [[1.0, 1.0]])
    assert np.isfinite(found).all()
    assert (np.abs(found) <= 1.0).all()


def test_a_row_without_weights_moves_nothing(solve):
    rows = [[[0.0, 0.0], [1.0, 0.0]]]
    found = solve([[0.9, 0.2]], rows, [[-1.0, 0.5]], [[-1.0, -1.0]], [[1.0, 1.0]])
    np.testing.assert_allclose(found, [[0.5, 0.2]], atol=1e-6)


def test_rows_of_any_length_mean_the_same():
    point, low, high = jnp.asarray([0.8, 0.7]), -jnp.ones(2), jnp.ones(2)
    rows, bounds = jnp.asarray([[1.0, 0.5], [0.2, 1.0]]), jnp.asarray([0.3, 0.1])
    run = jax.jit(lambda f: project(point, rows * f, bounds * f, low, high, PIVOTS))
    expected = run(1.0)
    for factor in (1e-12, 1e-3, 1e4, 1e15):
        np.testing.assert_allclose(run(factor), expected, atol=2e-6)
