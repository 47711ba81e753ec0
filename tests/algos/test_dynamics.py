"""A learned model: right where there are data, unsure where there are none, and of use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.dynamics import DynamicsConfig, learn_dynamics
from worldloom.core import draws
from worldloom.replay.dataset import from_columns
from worldloom.safety import (
    Barrier,
    ControlState,
    filter_action,
    initial_memory,
    make_constraints,
)

A = np.asarray([[0.9, 0.1, 0.0], [0.0, 0.8, 0.0], [0.0, 0.0, 1.0]], np.float32)
B = np.asarray([0.3, 0.2, 0.0], np.float32)
QUICK = DynamicsConfig(hidden=(32, 32), num_members=4, updates=3000, batch_size=128)


def plant(obs, action):
    """Two signals that an actuator pushes, which saturates, and one that never moves."""
    return obs @ A.T + B * jnp.tanh(1.5 * action)


def in_units(x):
    """As the sensors say it, each in a unit of its own."""
    return x * np.asarray([1.0, 50.0, 1.0], np.float32) + np.asarray([0.0, 300.0, 7.0], np.float32)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1.5, 1.5, (4096, 3)).astype(np.float32)
    obs[:, 2] = 0.0
    action = rng.uniform(-1.0, 1.0, (4096, 1)).astype(np.float32)
    after = np.asarray(plant(obs, action)) + 0.002 * rng.normal(size=obs.shape) * (B > 0)
    no = np.zeros(4096, bool)
    return from_columns(in_units(obs), action, np.zeros(4096), in_units(after), no, no)


@pytest.fixture(scope="module")
def learned(data):
    return learn_dynamics(data, jax.random.key(0), QUICK)


def test_it_says_what_the_plant_does_next(learned):
    model, metrics = learned
    rng = np.random.default_rng(1)
    obs = rng.uniform(-1.2, 1.2, (500, 3)).astype(np.float32)
    obs[:, 2] = 0.0
    action = rng.uniform(-0.9, 0.9, (500, 1)).astype(np.float32)
    members = jax.jit(jax.vmap(model))(in_units(obs), action)
    assert members.shape == (500, 4, 3)
    wanted = in_units(np.asarray(plant(obs, action)))
    off = np.abs(np.asarray(members).mean(1) - wanted) / [1.0, 50.0, 1.0]
    assert off.max() < 0.03
    assert off[:, 2].max() < 1e-6  # what never moved in the data never moves
    assert metrics["model_loss"].shape == (4, 3000)
    assert (
        metrics["model_loss"][:, -100:].mean(1) < 0.05 * metrics["model_loss"][:, :5].mean(1)
    ).all()


def test_members_disagree_where_there_are_no_data(learned):
    run = jax.jit(jax.vmap(learned[0]))
    near = np.float32([[0.5, -0.5, 0.0], [-1.0, 0.3, 0.0], [0.0, 0.0, 0.0]])
    spread = [
        np.asarray(run(in_units(far * near), np.zeros((3, 1), np.float32))).std(1)[:, 0].mean()
        for far in (1.0, 8.0)
    ]
    assert spread[1] > 5.0 * spread[0]


def test_a_barrier_on_a_learned_model_keeps_the_plant_itself_within_its_limit(learned):
    """200 plants under a policy that pushes as hard as it can; only the filter knows the model."""
    barrier = Barrier("first", [-1.0, 0.0, 0.0], 1.0, gamma=0.3, disturbance=0.02)
    constraints = make_constraints(3, [-1.0], barriers=[barrier], model=learned[0])

    def one(start):
        def go(carry, _):
            x, memory = carry
            state = ControlState(in_units(x), memory)
            action, report = filter_action(jnp.ones(1), state, constraints)
            x = plant(x, action)
            return (x, report.memory), (x[0], report.emergency, report.model_uncertainty[0])

        carry = (start, initial_memory(constraints))
        return jax.lax.scan(go, carry, None, length=60)[1]

    starts = draws.uniform(jax.random.key(1), (200, 3)) * np.float32([0.9, 0.9, 0.0])
    first, emergency, uncertainty = jax.jit(jax.vmap(one))(starts)
    assert not emergency.any()
    assert first.max() <= 1.0
    assert first[:, -1].min() > 0.8  # near to the limit, for all its doubts
    assert (uncertainty > 0.0).all()


def test_the_same_key_learns_the_same_and_weights_are_leaves(data):
    tiny = DynamicsConfig(hidden=(8,), num_members=2, updates=20)
    one, same, other = (learn_dynamics(data, jax.random.key(k), tiny)[0] for k in (1, 1, 2))
    run = jax.jit(lambda model: model(data.rows.obs[0], data.rows.action[0]))
    np.testing.assert_array_equal(run(one), run(same))
    assert not np.array_equal(run(one), run(other))
    assert not np.array_equal(*run(one))  # members differ
    assert run._cache_size() == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_members": 1}, "num_members=1; it must be at least 2"),
        ({"updates": 0}, "updates=0"),
        ({"hidden": ()}, "hidden"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        DynamicsConfig(**changes)
