"""The table's updates against a dictionary, and the hash that finds its rows."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from worldloom.algos.qlearning import QLearner, QLearning, QLearningConfig, table_rows
from worldloom.core.types import Batch

ACTIONS, BATCH, SIZE = 2, 12, 251
AGENT = QLearning(QLearningConfig(table_size=SIZE, learning_rate=0.5, batch_size=BATCH), ACTIONS)

update = jax.jit(AGENT.update)
act = jax.jit(AGENT.act)
rows_of = jax.jit(lambda obs: table_rows(obs, SIZE))


def frames(states: np.ndarray) -> np.ndarray:
    """States 0 .. 7 as three bits, (B, 1, 3)."""
    return ((states[:, None, None] >> np.arange(3)) & 1).astype(np.uint8)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_an_update_moves_each_value_to_the_mean_of_what_the_batch_says(seed):
    rng = np.random.default_rng(seed)
    # Few states, so that most batches repeat some and contradict themselves.
    state, after = rng.integers(0, 3, BATCH), rng.integers(0, 3, BATCH)
    batch = Batch(
        obs=frames(state),
        action=rng.integers(0, ACTIONS, BATCH).astype(np.int32),
        reward=rng.normal(size=BATCH).astype(np.float32),
        discount=rng.choice([0.0, 0.9], BATCH).astype(np.float32),
        next_obs=frames(after),
    )
    table = rng.normal(size=(SIZE, ACTIONS)).astype(np.float32)
    row, row_after = np.asarray(rows_of(batch.obs)), np.asarray(rows_of(batch.next_obs))
    said: dict[tuple[int, int], list[float]] = {}
    for i in range(BATCH):
        aim = batch.reward[i] + batch.discount[i] * table[row_after[i]].max()
        said.setdefault((int(row[i]), int(batch.action[i])), []).append(float(aim))
    expected = table.copy()
    for cell, aims in said.items():
        expected[cell] += 0.5 * (np.mean(aims) - table[cell])
    learner, metrics = update(QLearner(jnp.asarray(table), jnp.int32(0)), batch, jax.random.key(0))
    np.testing.assert_allclose(learner.params, expected, atol=1e-5)
    moved = (expected - table) / 0.5
    assert metrics.grad_norm == pytest.approx(np.linalg.norm(moved), rel=1e-3, abs=1e-5)
    assert learner.updates == 1


def test_a_row_of_weight_zero_moves_nothing():
    state = np.arange(BATCH) % 8
    batch = Batch(
        obs=frames(state),
        action=np.zeros(BATCH, np.int32),
        reward=np.ones(BATCH, np.float32),
        discount=np.zeros(BATCH, np.float32),
        next_obs=frames(state),
        weight=(state == 3).astype(np.float32),
    )
    learner = QLearner(jnp.zeros((SIZE, ACTIONS)), jnp.int32(0))
    table = np.asarray(update(learner, batch, jax.random.key(0))[0].params)
    moved = rows_of(frames(np.array([3])))
    np.testing.assert_array_equal(np.flatnonzero(table.any(axis=1)), moved)


def test_the_values_of_an_observation_are_its_rows():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(SIZE, ACTIONS)), jnp.float32)
    obs = frames(np.arange(8))
    action, q = act(table, obs, jax.random.key(0), explore=0.0)
    np.testing.assert_array_equal(q, np.asarray(table)[np.asarray(rows_of(obs))])
    np.testing.assert_array_equal(action, np.asarray(q).argmax(axis=1))


def test_equal_values_are_chosen_among_at_random():
    table = jnp.zeros((SIZE, ACTIONS))
    action, _ = act(table, np.zeros((1000, 1, 3), np.uint8), jax.random.key(0), explore=0.0)
    assert 420 < np.asarray(action).sum() < 580


def gridlike(count: int, seed: int = 0) -> np.ndarray:
    """Different sparse observations (B, frames, channels, 5, 5), as gridworlds show them."""
    rng = np.random.default_rng(seed)
    flat = (rng.random((count, 2 * 3 * 5 * 5)) < 0.1).astype(np.uint8)
    return np.unique(flat, axis=0).reshape(-1, 2, 3, 5, 5)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [1 << 14, 10_007])
def test_collisions_are_as_rare_as_if_rows_were_drawn_at_random(size, dtype):
    obs = gridlike(4000).astype(dtype)
    rows = np.asarray(table_rows(jnp.asarray(obs), size))
    assert rows.min() >= 0
    assert rows.max() < size
    lost = len(obs) - len(np.unique(rows))
    expected = len(obs) - size * (1 - (1 - 1 / size) ** len(obs))
    assert abs(lost - expected) < 5 * np.sqrt(expected)


def test_a_row_depends_on_every_entry_and_on_its_place():
    blank = np.zeros((1, 2, 3, 5, 5), np.uint8)
    one_lit = np.repeat(blank, 150, axis=0)
    one_lit.reshape(150, 150)[range(150), range(150)] = 1
    two = one_lit * 2
    rows = np.asarray(table_rows(jnp.asarray(np.concatenate([blank, one_lit, two])), 1 << 30))
    assert len(set(rows.tolist())) == 301


def test_zeros_of_either_sign_are_the_same_observation():
    rows = table_rows(jnp.array([[0.0, 1.0], [-0.0, 1.0], [0.5, 1.0]]), SIZE)
    assert rows[0] == rows[1] != rows[2]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"table_size": 0}, "table_size=0; it must be at least 1"),
        ({"learning_rate": 1.5}, r"learning_rate=1.5; it must be in \[0, 1\]"),
        ({"gamma": -0.1}, r"gamma=-0.1; it must be in \[0, 1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        QLearningConfig(**wrong)
