"""A filter's model that is learned from a log: what is kept of it, and how careful it is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.replay.dataset import from_columns
from worldloom.safety import Barrier, ControlState, StateRow, initial_memory, make_constraints
from worldloom.safety.filter import validate_constraints
from worldloom.suites.plant.learned_model import (
    DEVIATIONS,
    MEMBERS,
    learn_model,
    load_model,
    save_model,
)


@pytest.fixture(scope="module")
def data():
    """x' = 0.9 x + 0.3 u with noise, in episodes of 20 rows."""
    rng = np.random.default_rng(0)
    x, u = rng.uniform(-1, 1, (400, 1)), rng.uniform(-1, 1, (400, 1))
    after = 0.9 * x + 0.3 * u + rng.normal(0, 0.01, (400, 1))
    ends = np.arange(400) % 20 == 19
    return from_columns(x, u, np.zeros(400), after, np.zeros(400, bool), ends)


@pytest.fixture(scope="module")
def learned(data):
    return learn_model(data, seed=0, updates=300)


def test_it_predicts_and_knows_by_how_much_it_errs(learned):
    members = jax.vmap(learned.function)(jnp.asarray([[0.5], [-0.5]]), jnp.asarray([[0.2], [0.9]]))
    assert members.shape == (2, MEMBERS, 1)
    np.testing.assert_allclose(members.mean(1)[:, 0], [0.51, -0.18], atol=0.05)
    assert learned.error.shape == (1,)
    assert 0.0 <= learned.error[0] < 0.1


def test_what_is_kept_predicts_the_same(learned, tmp_path):
    save_model(tmp_path / "model.npz", learned)
    kept = load_model(tmp_path / "model.npz")
    obs, action = jnp.asarray([0.3]), jnp.asarray([-0.7])
    np.testing.assert_array_equal(kept.function(obs, action), learned.function(obs, action))
    np.testing.assert_array_equal(kept.error, learned.error)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "model.npz").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"torn.npz cannot be read .* train again"):
        load_model(tmp_path / "torn.npz")
    with pytest.raises(ValueError, match="there is no such file; train the run again"):
        load_model(tmp_path / "gone.npz")


def held_to(model):
    """The constraint x <= 1, one step ahead and five, under a model."""
    return make_constraints(
        1, [0.0], model=model, deviations=DEVIATIONS,
        barriers=[Barrier("wall", [-1.0], 1.0, gamma=1.0)],
        lookahead=[StateRow("wall", [-1.0], 1.0)], horizon=5,
    )  # fmt: skip


def margins(model, obs, action):
    constraints = held_to(model)
    state = ControlState(obs, initial_memory(constraints, action))
    return validate_constraints(state, action, constraints).margins[1:]


def test_a_filter_is_never_less_careful_than_any_member():
    """Members that disagree take room away, whatever they say; none is outvoted."""
    rng, obs, action = np.random.default_rng(1), jnp.asarray([0.4]), jnp.asarray([0.3])

    @jax.jit
    def rooms(slopes, shifts):
        def ensemble(obs, action):
            return slopes * obs + shifts * action + shifts

        alone = 1.0 - ensemble(obs, action)[:, 0]  # what each member leaves by itself
        return margins(ensemble, obs, action)[0], alone

    for _ in range(50):
        together, alone = rooms(
            rng.normal(0.9, 0.3, (MEMBERS, 1)), rng.normal(0.0, 0.3, (MEMBERS, 1))
        )
        assert together <= alone.min() + 1e-5


def test_more_disagreement_leaves_less_room():
    obs, action = jnp.asarray([0.4]), jnp.asarray([0.3])
    spread = jnp.linspace(-1.0, 1.0, MEMBERS)[:, None]

    def room(width):
        found = margins(lambda o, a: 0.9 * o + 0.1 * a + width * spread, obs, action)
        return np.asarray(found)

    rooms = [room(width) for width in (0.0, 0.01, 0.1, 0.5)]
    assert all((more <= less + 1e-6).all() for less, more in itertools.pairwise(rooms))
    assert (rooms[-1] < rooms[0] - 0.3).all()
