"""The original's ring as pure functions, against the original's ring in numpy."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from worldloom.core.types import Transition
from worldloom.replay.legacy import LegacyRing, LegacyRingState
from worldloom.suites.grid.numpy_ring import LegacyRing as NumpyRing

RING = LegacyRing(13, num_frames=3, n_step=3, gamma=0.9)
BATCH = 4
BLANK = Transition(jnp.zeros((2,)), jnp.int32(0), jnp.float32(0), *[jnp.asarray(False)] * 3)
EMPTY = RING.init(BLANK)

add = jax.jit(RING.add)
add_empty = jax.jit(RING.add_empty)
extend = jax.jit(RING.extend)
can_sample = jax.jit(RING.can_sample)
windows = jax.jit(RING.windows)
choose = jax.jit(lambda state, key: RING.choose(state, key, BATCH))


def row(number: int, done: bool = False) -> Transition:
    """One row of one lane that tells its number."""
    frame = np.array([[number, -number]], np.float32)
    no = np.zeros(1, bool)
    return Transition(
        frame, np.array([number % 4], np.int32), np.array([number], np.float32), no | done, no, no
    )


def play(events: list[str]) -> tuple[LegacyRingState, NumpyRing]:
    """The same events in both: 'row', 'done' (a last row) or 'gap'."""
    ours, theirs = EMPTY, NumpyRing(RING.capacity, 2, RING.num_frames)
    for number, event in enumerate(events, start=1):
        if event == "gap":
            ours = add_empty(ours)
            theirs.add_empty()
        else:
            ours = add(ours, row(number, event == "done"))
            theirs.add([number, -number], number % 4, number, float(event == "done"))
    return ours, theirs


events = st.lists(st.sampled_from(["row", "row", "row", "done", "gap"]), max_size=40)


@settings(max_examples=40)
@given(events=events)
def test_contents_head_and_size_are_those_of_the_original(events):
    ours, theirs = play(events)
    np.testing.assert_array_equal(ours.rows.frame[:, 0], theirs.states)
    np.testing.assert_array_equal(ours.rows.action[:, 0], theirs.actions)
    np.testing.assert_array_equal(ours.rows.reward[:, 0], theirs.rewards)
    np.testing.assert_array_equal(ours.rows.terminated[:, 0], theirs.dones)
    assert (int(ours.head), int(ours.size)) == (theirs.idx, theirs.size)
    for batch_size in (1, 3):
        assert bool(can_sample(ours, batch_size)) == (theirs.num_starts >= batch_size)


@settings(max_examples=40)
@given(events=events)
def test_windows_are_those_of_the_original_gaps_and_mixed_epochs_included(events):
    ours, theirs = play(events)
    starts = np.arange(RING.capacity - RING.num_frames)
    batch = windows(ours, starts)
    expected = theirs.windows(starts)
    np.testing.assert_array_equal(batch.obs.reshape(len(starts), -1), expected.states)
    np.testing.assert_array_equal(batch.next_obs.reshape(len(starts), -1), expected.next_states)
    np.testing.assert_array_equal(batch.action, expected.actions)
    np.testing.assert_array_equal(batch.reward, expected.rewards)
    np.testing.assert_array_equal(batch.weight, expected.valid)
    np.testing.assert_allclose(batch.discount, 0.9**3 * (1.0 - expected.dones), rtol=1e-6)


def test_samples_have_different_starts_among_those_of_the_original():
    ours, theirs = play(["row"] * 12)
    found = set()
    for seed in range(40):
        starts = np.asarray(choose(ours, jax.random.key(seed)))
        assert len(set(starts.tolist())) == BATCH
        found |= set(starts.tolist())
    assert found == set(range(theirs.num_starts))


def test_an_epoch_at_once_is_a_gap_and_then_its_rows_without_the_last_observation():
    ours, _ = play(["row"] * 9)
    rows = jax.tree.map(lambda *x: np.stack(x), *[row(n) for n in range(20, 26)])
    one_by_one = add_empty(ours)
    for number in range(20, 25):
        one_by_one = add(one_by_one, row(number))
    jax.tree.map(np.testing.assert_array_equal, extend(ours, rows), one_by_one)


def test_several_worlds_are_refused():
    with pytest.raises(ValueError, match="lanes=2; the original memory has one world"):
        LegacyRing(64, lanes=2)
