"""The two numpy rings: the original's with its known flaws, and the oracle of ours."""

import numpy as np
import pytest

from oracles.ring import EpisodeRing
from worldloom.suites.grid.numpy_ring import LegacyRing

# --- the original's ring -------------------------------------------------------------------------


def fill_epochs(ring: LegacyRing, epochs: int, turns: int = 50) -> None:
    """Rows (epoch, turn), both counted from 1: a row of zeros is one that was never written."""
    for epoch in range(1, epochs + 1):
        ring.add_empty()
        for turn in range(1, turns + 1):
            ring.add([epoch, turn], action=turn % 4, reward=turn, done=0.0)


def in_order(stacks: np.ndarray) -> np.ndarray:
    """Which stacks (B, F, 2) hold successive turns of a single epoch."""
    steps = np.diff(stacks, axis=1)
    return np.all((steps[..., 0] == 0) & (steps[..., 1] == 1), axis=1)


def test_a_window_holds_stack_next_stack_and_the_last_rows_action():
    ring = LegacyRing(capacity=16, obs_size=2, n_frames=3)
    for row in range(8):
        ring.add([row, -row], action=row % 4, reward=10.0 * row, done=float(row == 4))
    windows = ring.windows([0, 2, 4])
    assert windows.states.tolist()[0] == [0, 0, 1, -1, 2, -2]
    assert windows.next_states.tolist()[0] == [1, -1, 2, -2, 3, -3]
    assert windows.actions.tolist() == [2, 0, 2]
    assert windows.rewards.tolist() == [20.0, 40.0, 60.0]
    assert windows.dones.tolist() == [0.0, 1.0, 0.0]
    assert windows.valid.tolist() == [1.0, 1.0, 0.0], "only a done before the last frame counts"
    assert [array.dtype.name for array in windows] == [
        "float32", "int64", "float32", "float32", "float32", "float32",
    ]  # fmt: skip


def test_samples_are_distinct_windows_among_the_sampleable_starts():
    ring = LegacyRing(capacity=64, obs_size=1, n_frames=5)
    for row in range(26):
        ring.add([row], 0, 0.0, 0.0)
    assert len(ring) == 26
    assert ring.num_starts == 20
    windows = ring.sample(20, np.random.default_rng(0))
    assert sorted(windows.states[:, 0]) == list(range(20))
    with pytest.raises(ValueError, match="larger sample than population"):
        ring.sample(21, np.random.default_rng(0))


def test_an_epoch_takes_54_rows_of_which_50_count():
    ring = LegacyRing(capacity=1024, obs_size=2, n_frames=5)
    fill_epochs(ring, 3)
    assert ring.idx == 3 * 54
    assert len(ring) == 3 * 50
    assert not ring.states[54:58].any(), "the gap of the second epoch was never written"


def test_the_current_state_is_read_before_the_write_head_across_the_end():
    ring = LegacyRing(capacity=6, obs_size=1, n_frames=5)
    for row in range(8):
        ring.add([row], 0, 0.0, 0.0)
    assert ring.current_state().ravel().tolist() == [4, 5, 6, 7]
    assert len(ring) == 6


def test_add_empty_moves_the_head_without_clearing_or_counting():
    ring = LegacyRing(capacity=8, obs_size=1, n_frames=5)
    for row in range(10):
        ring.add([row + 1], 0, 0.0, 0.0)
    before = ring.states.copy()
    ring.add_empty()
    assert ring.idx == 6
    assert len(ring) == 8
    np.testing.assert_array_equal(ring.states, before)
    assert ring.current_state().ravel().tolist() == [3, 4, 5, 6], "rows of long ago, not zeros"


def test_after_the_wrap_an_epoch_starts_on_frames_of_two_old_epochs():
    ring = LegacyRing(capacity=1024, obs_size=2, n_frames=5)
    fill_epochs(ring, 40)
    ring.add_empty()
    assert ring.current_state().tolist() == [[3, 1], [3, 2], [22, 1], [22, 2]]


def test_in_the_long_run_849_of_1018_windows_are_consistent():
    ring = LegacyRing(capacity=1024, obs_size=2, n_frames=5)
    fill_epochs(ring, 60)
    assert ring.num_starts == 1018
    windows = ring.windows(np.arange(1018))
    stacks = windows.states.reshape(-1, 5, 2)
    transitions = np.concatenate([stacks, windows.next_states.reshape(-1, 5, 2)[:, -1:]], axis=1)
    consistent, in_stack = in_order(transitions), in_order(stacks)
    assert consistent.sum() == 849
    assert (in_stack & ~consistent).sum() == 19, "wrong next state"
    assert (~in_stack).sum() == 150, "stacks that mix epochs"


def test_clear_forgets_everything():
    ring = LegacyRing(capacity=64, obs_size=2, n_frames=5)
    fill_epochs(ring, 2)
    ring.clear()
    assert len(ring) == 0
    assert ring.idx == 0
    assert not ring.states.any()


# --- the oracle of our ring ----------------------------------------------------------------------


def add_row(ring: EpisodeRing, number: int, terminated=False, first=False, final=False) -> None:
    """A row whose frame, reward and action all tell its number."""
    ring.add([number], number, float(number), terminated, first, final)


def make_ring(capacity=16, n_frames=3, n_step=2, gamma=0.5) -> EpisodeRing:
    return EpisodeRing(capacity, n_frames, n_step, gamma)


def test_a_window_in_the_middle_of_an_episode_has_a_full_stack_and_an_n_step_return():
    ring = make_ring()
    for number in range(1, 8):
        add_row(ring, number, first=number == 1)
    window = ring.window(3)
    assert window["obs"].ravel().tolist() == [2, 3, 4]
    assert window["action"] == 4
    assert window["reward"] == 4 + 0.5 * 5
    assert window["discount"] == 0.25
    assert window["next_obs"].ravel().tolist() == [4, 5, 6]


def test_the_very_first_row_starts_an_episode_unasked():
    ring = make_ring()
    add_row(ring, 1)
    add_row(ring, 2)
    assert ring.window(0)["obs"].ravel().tolist() == [0, 0, 1]


def test_stacks_are_zero_before_the_episode():
    ring = make_ring()
    for number in range(1, 8):
        add_row(ring, number, first=number in (1, 5))
    assert ring.window(4)["obs"].ravel().tolist() == [0, 0, 5]
    assert ring.window(4)["next_obs"].ravel().tolist() == [5, 6, 7]
    assert ring.window(5)["obs"].ravel().tolist() == [0, 5, 6]


def test_the_newest_row_is_not_valid_and_the_one_before_takes_fewer_steps():
    ring = make_ring(n_step=3)
    for number in range(1, 5):
        add_row(ring, number)
    assert ring.valid_rows() == [0, 1, 2]
    discounts = [float(ring.window(slot)["discount"]) for slot in ring.valid_rows()]
    assert discounts == [0.125, 0.25, 0.5]


def test_an_episode_cut_without_a_final_row_loses_its_last_step():
    ring = make_ring(n_step=1)
    for number in range(1, 7):
        add_row(ring, number, first=number in (1, 4))
    assert ring.valid_rows() == [0, 1, 3, 4]


def test_a_final_row_serves_as_next_state_only():
    ring = make_ring(n_step=2)
    for number in range(1, 4):
        add_row(ring, number)
    add_row(ring, 4, final=True)
    add_row(ring, 5, first=True)
    assert ring.valid_rows() == [0, 1, 2]
    last = ring.window(2)
    assert last["reward"] == 3
    assert last["discount"] == 0.5
    assert last["next_obs"].ravel().tolist() == [2, 3, 4]


def test_returns_stop_at_termination():
    ring = make_ring(n_step=3)
    for number in range(1, 4):
        add_row(ring, number, terminated=number == 3)
    add_row(ring, 4, first=True)
    assert ring.valid_rows() == [0, 1, 2]
    window = ring.window(1)
    assert window["reward"] == 2 + 0.5 * 3
    assert window["discount"] == 0
    assert not window["next_obs"].any()


def test_a_terminated_row_is_valid_as_the_newest_row():
    ring = make_ring()
    add_row(ring, 1, terminated=True)
    assert ring.valid_rows() == [0]
    assert ring.window(0)["reward"] == 1


def test_a_final_row_after_termination_changes_nothing():
    ring = make_ring(n_step=3)
    add_row(ring, 1)
    add_row(ring, 2, terminated=True)
    add_row(ring, 3, final=True)
    assert ring.valid_rows() == [0, 1]
    assert ring.window(0)["discount"] == 0
    assert ring.window(0)["reward"] == 2


def test_overwritten_rows_invalidate_the_stacks_that_need_them():
    ring = make_ring(capacity=6, n_frames=3, n_step=1)
    for number in range(1, 9):  # rows 1 and 2 are gone; row 3, in slot 2, is the oldest
        add_row(ring, number)
    assert len(ring) == 6
    assert ring.valid_rows() == [4, 5, 0], "rows 5, 6 and 7; row 8 is the newest"
    assert ring.window(0)["obs"].ravel().tolist() == [5, 6, 7]


def test_an_episode_start_needs_no_overwritten_row():
    ring = make_ring(capacity=4, n_frames=3, n_step=1)
    for number in range(1, 7):  # rows 3 to 6 are live
        add_row(ring, number, first=number in (1, 3))
    assert ring.valid_rows() == [2, 3, 0]
    assert ring.window(2)["obs"].ravel().tolist() == [0, 0, 3]


def test_window_refuses_a_row_that_starts_no_transition():
    ring = make_ring()
    add_row(ring, 1)
    for slot in (0, 5):
        with pytest.raises(ValueError, match=f"slot {slot} starts no transition"):
            ring.window(slot)


def test_frames_keep_their_shape_and_are_copied():
    ring = make_ring(n_frames=2)
    frame = np.ones((3, 4))
    for _ in range(3):
        ring.add(frame, 0, 0.0, False, False, False)
    frame[:] = 7.0
    assert ring.window(0)["obs"].shape == (2, 3, 4)
    assert ring.window(0)["next_obs"].max() == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_windows_of_random_episodes_agree_with_the_episodes_themselves(seed):
    rng = np.random.default_rng(seed)
    capacity, n_frames, n_step, gamma = 20, 3, 3, 0.9
    ring = EpisodeRing(capacity, n_frames, n_step, gamma)
    history = []  # of each row ever added: its episode and its place in it
    number, episodes = 0, []
    for _ in range(12):
        length, terminates = int(rng.integers(1, 8)), bool(rng.random() < 0.5)
        numbers = list(range(number, number + length + (not terminates)))
        for place, each in enumerate(numbers):
            last = place == len(numbers) - 1
            add_row(ring, each, terminates and last, place == 0, not terminates and last)
            history.append((len(episodes), place))
        episodes.append((numbers, terminates))
        number = numbers[-1] + 1
        oldest = max(len(history) - capacity, 0)
        expected_slots = []
        for time in range(oldest, len(history)):
            (numbers, terminates), place = episodes[history[time][0]], history[time][1]
            acted = terminates or place < len(numbers) - 1
            if acted and time - min(place, n_frames - 1) >= oldest:
                expected_slots.append(time % capacity)
        assert ring.valid_rows() == expected_slots
        for slot in expected_slots:
            time = max(t for t in range(len(history)) if t % capacity == slot)
            numbers, terminates = episodes[history[time][0]]
            place = history[time][1]
            actions = len(numbers) if terminates else len(numbers) - 1
            k = min(n_step, actions - place)
            ended = terminates and place + k == actions
            padded = [0] * (n_frames - 1) + numbers
            window = ring.window(slot)
            assert window["obs"].ravel().tolist() == padded[place : place + n_frames]
            expected = sum(gamma**j * numbers[place + j] for j in range(k))
            assert window["reward"] == pytest.approx(expected)
            assert window["discount"] == pytest.approx(0.0 if ended else gamma**k)
            if not ended:
                following = padded[place + k : place + k + n_frames]
                assert window["next_obs"].ravel().tolist() == following
