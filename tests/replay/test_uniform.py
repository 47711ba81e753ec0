"""The uniform buffer against a list of transitions in Python."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from worldloom.replay.uniform import UniformBuffer

CAPACITY, GAMMA = 7, 0.9
BUFFER = UniformBuffer(CAPACITY, GAMMA)

add = jax.jit(BUFFER.add)
sample = jax.jit(BUFFER.sample, static_argnums=2)


def empty():
    obs = {"state": jnp.zeros(2), "count": jnp.int32(0)}
    return BUFFER.init(obs, jnp.zeros(3), jnp.float32(0))


def transitions(first: int, count: int):
    """Transitions number first .. first + count - 1; every entry says which one it is of."""
    number = np.arange(first, first + count)

    def seen(offset):
        state = np.stack([number + offset, -number - offset], 1).astype(np.float32)
        return {"state": state, "count": (number + offset).astype(np.int32)}

    action = np.repeat(number[:, None], 3, 1).astype(np.float32)
    return seen(0), action, 10.0 * number.astype(np.float32), seen(0.5), number % 3 == 0


@settings(max_examples=25)
@given(counts=st.lists(st.sampled_from([1, 2, 3, 5, 7, 9]), min_size=1, max_size=8))
def test_it_holds_the_newest_transitions_and_samples_nothing_else(counts):
    """Additions of any size, wrapping anywhere, some of them larger than the buffer."""
    state, oracle = empty(), []
    for count in counts:
        first = len(oracle)
        state = add(state, *transitions(first, count))
        oracle += range(first, first + count)
    held = oracle[-CAPACITY:]
    assert state.size == len(held)
    assert BUFFER.can_sample(state, len(held))
    assert not BUFFER.can_sample(state, len(held) + 1)
    batch = sample(state, jax.random.key(len(oracle)), 200)
    number = np.asarray(batch.action[:, 0]).astype(int)
    assert set(number) == set(held), "each of those held is drawn in 200 tries, and no other"
    obs, action, reward, next_obs, terminated = transitions(0, len(oracle))
    for found, expected in ((batch.obs, obs), (batch.next_obs, next_obs)):
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name][number])
    np.testing.assert_array_equal(batch.action, action[number])
    np.testing.assert_array_equal(batch.reward, reward[number])
    np.testing.assert_allclose(batch.discount, np.where(terminated, 0.0, GAMMA)[number], rtol=1e-6)


def test_every_transition_is_as_likely():
    state = add(empty(), *transitions(0, 5))
    number = sample(state, jax.random.key(0), 10_000).action[:, 0].astype(int)
    assert np.abs(np.bincount(number, minlength=CAPACITY)[:5] - 2000).max() < 200


def test_what_is_stored_keeps_its_type():
    buffer = UniformBuffer(4)
    state = buffer.init(jnp.zeros((2, 2), jnp.uint8), jnp.int32(0), jnp.float32(0))
    rows = (np.full((3, 2, 2), 255), np.arange(3), np.ones(3), np.zeros((3, 2, 2)), np.ones(3))
    state = buffer.add(state, *map(jnp.asarray, rows))
    assert (state.obs.dtype, state.action.dtype, state.terminated.dtype) == (
        jnp.uint8,
        jnp.int32,
        jnp.bool_,
    )
    assert state.obs[2].max() == 255
    assert state.obs[3].max() == 0


def test_an_empty_buffer_says_that_it_cannot_be_sampled():
    state = empty()
    assert not BUFFER.can_sample(state)
    batch = sample(state, jax.random.key(0), 3)
    assert (batch.reward == 0).all(), "and gives zeros, not whatever lies beyond"


def test_no_buffer_is_held_twice():
    state = jax.jit(empty)()
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(pointers)) == len(pointers), "so that all of it can be donated"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 0}, "UniformBuffer: capacity=0; it must be at least 1"),
        ({"capacity": 2**25}, "capacity=33554432; it must be at most 16777216"),
        ({"capacity": 5, "gamma": 1.5}, r"gamma=1.5; it must be in \[0, 1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        UniformBuffer(**wrong)
