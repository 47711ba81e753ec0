"""The stateful memory against the numpy rings, and its errors."""

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

from oracles.ring import EpisodeRing
from worldloom.replay.buffer import JAXBuffer
from worldloom.suites.grid.numpy_ring import LegacyRing as NumpyRing

CAPACITY, OBS, FRAMES, STEPS, GAMMA, BATCH = 12, 2, 3, 2, 0.5, 32


def buffer(**changes) -> JAXBuffer:
    options = {"n_frames": FRAMES, "n_step": STEPS, "gamma": GAMMA} | changes
    return JAXBuffer(CAPACITY, (OBS,), **options)


def frame(number: int) -> list[float]:
    return [float(number), -float(number)]


def fill(memory: JAXBuffer, count: int, start: int = 1) -> None:
    for number in range(start, start + count):
        memory.add(frame(number), number % 4, float(number), False)


class EpisodeMemory:
    """`EpisodeRing` behind the methods of the buffer."""

    def __init__(self) -> None:
        self.ring = EpisodeRing(CAPACITY, FRAMES, STEPS, GAMMA)
        self.opens, self.episode = True, []

    def add(self, obs, action, reward, done) -> None:
        self.ring.add(obs, action, reward, done, first=self.opens, final=False)
        self.episode = [obs] if self.opens else [*self.episode, obs]
        self.opens = done

    def add_empty(self) -> None:
        self.opens = True

    def current_state(self) -> np.ndarray:
        zeros = [[0.0] * OBS] * (FRAMES - 1)
        return np.array((zeros + ([] if self.opens else self.episode))[-(FRAMES - 1) :])


events = st.lists(st.sampled_from(["row", "row", "row", "row", "done", "empty"]), max_size=40)


@settings(max_examples=40)
@given(events=events)
def test_the_memory_holds_what_the_oracle_holds(events):
    ours, oracle = buffer(), EpisodeMemory()
    for number, event in enumerate(events, start=1):
        for memory in (ours, oracle):
            if event == "empty":
                memory.add_empty()
            else:
                memory.add(frame(number), number % 4, float(number), event == "done")
        np.testing.assert_array_equal(ours.current_state(), oracle.current_state())
    assert len(ours) == len(oracle.ring)
    by_state = {}
    for slot in oracle.ring.valid_rows():
        window = oracle.ring.window(slot)
        by_state[tuple(window["obs"].ravel())] = window
    assert ours.can_sample() == bool(by_state)
    if not by_state:
        return
    states, actions, rewards, next_states, dones, valid = ours.sample(BATCH)
    assert states.shape == next_states.shape == (BATCH, FRAMES * OBS)
    assert actions.shape == rewards.shape == dones.shape == valid.shape == (BATCH, 1)
    assert (valid == 1).all()
    for i in range(BATCH):
        window = by_state[tuple(states[i])]
        assert actions[i, 0] == window["action"]
        assert rewards[i, 0] == window["reward"]
        assert dones[i, 0] == (window["discount"] == 0)
        if not dones[i, 0]:
            np.testing.assert_array_equal(next_states[i], window["next_obs"].ravel())


@settings(max_examples=40)
@given(events=events)
def test_the_legacy_memory_holds_what_the_original_holds(events):
    ours, original = buffer(legacy=True), NumpyRing(CAPACITY, OBS, FRAMES)
    for number, event in enumerate(events, start=1):
        for memory in (ours, original):
            if event == "empty":
                memory.add_empty()
            else:
                memory.add(frame(number), number % 4, float(number), event == "done")
        np.testing.assert_array_equal(ours.current_state(), original.current_state())
    assert len(ours) == len(original)
    count = original.num_starts
    assert ours.can_sample(4) == (count >= 4)
    if count < 4:
        return
    every = original.windows(np.arange(count))
    columns = zip(*ours.sample(4), strict=True)
    rows = [np.concatenate([np.ravel(x) for x in each]).tolist() for each in columns]
    expected = [
        np.concatenate([np.ravel(x) for x in each]).tolist() for each in zip(*every, strict=True)
    ]
    left = list(expected)
    for each in rows:
        assert each in left, "not a window of the original, or drawn twice"
        left.remove(each)


def test_the_current_state_never_shows_an_older_episode():
    memory = buffer()
    fill(memory, 5)
    memory.add_empty()
    assert not memory.current_state().any()
    memory.add(frame(6), 0, 0.0, False)
    np.testing.assert_array_equal(memory.current_state(), [[0, 0], [6, -6]])
    memory.add(frame(7), 0, 0.0, True)
    assert not memory.current_state().any(), "done closes an episode too"


def test_clear_forgets_every_row_and_the_running_episode():
    memory = buffer()
    fill(memory, CAPACITY + 3)
    memory.clear()
    assert len(memory) == 0
    assert not memory.can_sample()
    assert not memory.current_state().any()


def test_the_same_seed_samples_the_same_windows_and_each_call_others():
    memories = [buffer(seed=s) for s in (7, 7, 8)]
    for memory in memories:
        fill(memory, CAPACITY)
    first, same, other = (memory.sample(BATCH).states for memory in memories)
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()
    assert (memories[0].sample(BATCH).states != first).any()


def test_an_add_writes_in_place():
    memory = buffer()
    fill(memory, 3)
    before = memory.state.rows.frame.unsafe_buffer_pointer()
    fill(memory, 1)
    jax.block_until_ready(memory.state)
    assert memory.state.rows.frame.unsafe_buffer_pointer() == before, "the frames were copied"


def test_frames_of_any_shape_with_leading_ones_are_taken():
    memory = JAXBuffer(CAPACITY, (2, 3), n_frames=2)
    for number in range(4):
        memory.add(np.full((1, 2, 3), number), np.int64(1), np.float32(0.5), False)
    assert memory.current_state().shape == (1, 2, 3)
    assert memory.sample(5).states.shape == (5, 12)
    assert "4 of 12 rows" in repr(memory)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (([1.0, 2.0, 3.0], 0, 0.0, False), r"obs has shape \(3,\).* frames of shape \(2,\)"),
        (([[1.0, 2.0], [3.0, 4.0]], 0, 0.0, False), r"obs has shape \(2, 2\)"),
        (([1.0, np.nan], 0, 0.0, False), "obs has entries that are not finite"),
        (([1.0, 2.0], 0, float("inf"), False), "reward=inf; it must be finite"),
        (([1.0, 2.0], 0.5, 0.0, False), "action=0.5; it must be a whole number"),
    ],
)
def test_bad_rows_are_refused_and_nothing_is_written(row, message):
    memory = buffer()
    fill(memory, 2)
    with pytest.raises(ValueError, match=message):
        memory.add(*row)
    assert len(memory) == 2
    np.testing.assert_array_equal(memory.current_state(), [frame(1), frame(2)])


@pytest.mark.parametrize("legacy", [False, True])
def test_sampling_too_early_says_so(legacy):
    memory = buffer(legacy=legacy)
    memory.add(frame(1), 0, 0.0, False)
    with pytest.raises(ValueError, match=r"1 rows hold too few windows of 3 frames .*add more"):
        memory.sample(2)


@pytest.mark.parametrize("options", [{"n_frames": 0}, {"n_frames": CAPACITY}])
@pytest.mark.parametrize("legacy", [False, True])
def test_memories_without_room_for_a_window_are_refused(options, legacy):
    with pytest.raises(ValueError, match=r"n_frames >= 1|at least"):
        buffer(legacy=legacy, **options)


# What returns over several steps are made of, and what the original's users find ------------------


def test_columns_read_as_those_of_the_original():
    memory = buffer()
    memory.extra_data["positions"] = np.zeros((CAPACITY, 2), np.int64)
    for number in range(CAPACITY + 2):
        memory.add(frame(number), number % 4, float(number), number == 5, positions=(number, 1))
    assert (memory.idx, memory.getidx(), memory.size) == (2, 2, CAPACITY)
    numbers = [12, 13, *range(2, 12)]
    assert memory.states[:, 0].tolist() == memory.rewards.tolist() == numbers
    assert memory.extra_data["positions"].tolist() == [[number, 1] for number in numbers]
    assert memory.actions.tolist() == [number % 4 for number in numbers]
    assert memory.dones.tolist() == [float(number == 5) for number in numbers]
    state, action, reward, done = memory[5]
    assert (state.tolist(), action, reward, done) == ([5.0, -5.0], 1, 5.0, 1.0)


def test_a_column_that_is_not_there_is_refused_and_nothing_is_written():
    memory = buffer()
    with pytest.raises(ValueError, match=r"no column 'positions'; first set extra_data"):
        memory.add(frame(1), 0, 0.0, False, positions=(1, 2))
    assert len(memory) == 0
