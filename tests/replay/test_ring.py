"""The functional ring against its numpy oracle, on random histories."""

from functools import cache

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings

from oracles.ring import EpisodeRing
from worldloom.core.types import Batch, Transition
from worldloom.replay.ring import Ring, RingState

ROWS = 30  # of a history; the rings are smaller, so that most histories wrap around
BATCH = 64
GAMMA = 0.5

RINGS = {
    "one frame, one step": Ring(8, lanes=1, num_frames=1, n_step=1, gamma=GAMMA),
    "stacks and returns": Ring(11, lanes=1, num_frames=3, n_step=3, gamma=GAMMA),
    "lanes": Ring(9, lanes=3, num_frames=2, n_step=2, gamma=GAMMA),
    "as small as can be": Ring(6, lanes=2, num_frames=4, n_step=2, gamma=GAMMA),
}


class Compiled:
    """A ring's functions, compiled once for all examples."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        blank = Transition(jnp.zeros((2,)), jnp.int32(0), jnp.float32(0), *[jnp.asarray(False)] * 3)
        self.empty = ring.init(blank)
        self.write = jax.jit(self._write)
        self.extend = jax.jit(ring.extend)
        self.choose = jax.jit(lambda state, key: ring.choose(state, key, BATCH))
        self.sample = jax.jit(lambda state, key: ring.sample(state, key, BATCH))
        self.look = jax.jit(self._look)
        self.can_sample = jax.jit(ring.can_sample)

    def _write(self, state: RingState, rows: Transition, count) -> RingState:
        """The first `count` rows, one by one; any count with one compilation."""

        def one(i, state):
            return self.ring.add(state, jax.tree.map(lambda x: x[i], rows))

        return jax.lax.fori_loop(0, count, one, state)

    def _look(self, state: RingState):
        """What is valid, (capacity, lanes), and the windows of all slots and lanes."""
        slot, lane = jnp.meshgrid(
            jnp.arange(self.ring.capacity), jnp.arange(self.ring.lanes), indexing="ij"
        )
        return self.ring.valid(state), self.ring.windows(state, slot.ravel(), lane.ravel())


@cache
def compiled(name: str) -> Compiled:
    return Compiled(RINGS[name])


def history(flags: np.ndarray) -> Transition:
    """Rows (T, lanes) of any flags; frame, action and reward tell row and lane apart."""
    count, lanes, _ = flags.shape
    number = np.arange(1, count + 1)[:, None] + 100 * np.arange(lanes)
    frame = np.stack([number, -number], axis=-1).astype(np.float32)
    terminated, first, final = np.moveaxis(flags, -1, 0)
    return Transition(
        frame, number.astype(np.int32), number.astype(np.float32), terminated, first, final
    )


def oracles(ring: Ring, rows: Transition, count: int) -> list[EpisodeRing]:
    """One oracle for each lane, after `count` rows."""
    made = []
    for lane in range(ring.lanes):
        oracle = EpisodeRing(ring.capacity, ring.num_frames, ring.n_step, ring.gamma)
        for t in range(count):
            row = jax.tree.map(lambda x, t=t, lane=lane: x[t, lane], rows)
            oracle.add(row.frame, row.action, row.reward, row.terminated, row.first, row.final)
        made.append(oracle)
    return made


def oracle_valid(ring: Ring, made: list[EpisodeRing]) -> np.ndarray:
    valid = np.zeros((ring.capacity, ring.lanes), bool)
    for lane, oracle in enumerate(made):
        valid[oracle.valid_rows(), lane] = True
    return valid


def assert_window_equal(ours: Batch, index: int, oracle: dict) -> None:
    np.testing.assert_array_equal(ours.obs[index], oracle["obs"])
    assert ours.action[index] == oracle["action"]
    np.testing.assert_allclose(ours.reward[index], oracle["reward"], rtol=1e-6)
    np.testing.assert_allclose(ours.discount[index], oracle["discount"], rtol=1e-6)
    if oracle["discount"] > 0:  # after termination nothing is looked at
        np.testing.assert_array_equal(ours.next_obs[index], oracle["next_obs"])


def flags_of(seed: int, lanes: int) -> np.ndarray:
    """(ROWS, lanes, 3): terminated, first, final; rare or frequent, in any combination."""
    rng = np.random.default_rng(seed)
    return rng.random((ROWS, lanes, 3)) < rng.choice([0.0, 0.1, 0.4], size=3)


histories = given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, ROWS))


@pytest.mark.parametrize("name", RINGS)
@settings(max_examples=40)
@histories
@example(seed=0, count=0)
@example(seed=0, count=ROWS)
def test_valid_rows_and_all_windows_are_those_of_the_oracle(name, seed, count):
    run, ring = compiled(name), RINGS[name]
    rows = history(flags_of(seed, ring.lanes))
    made = oracles(ring, rows, count)
    valid, windows = jax.device_get(run.look(run.write(run.empty, rows, count)))
    np.testing.assert_array_equal(valid, oracle_valid(ring, made))
    for slot, lane in np.argwhere(valid):
        assert_window_equal(windows, slot * ring.lanes + lane, made[lane].window(slot))


@pytest.mark.parametrize("name", RINGS)
@settings(max_examples=20)
@histories
def test_samples_are_windows_of_valid_rows(name, seed, count):
    run, ring = compiled(name), RINGS[name]
    rows = history(flags_of(seed, ring.lanes))
    state, key = run.write(run.empty, rows, count), jax.random.key(seed)
    made = oracles(ring, rows, count)
    valid = oracle_valid(ring, made)
    for enough in (1, 2, 5):
        assert bool(run.can_sample(state, enough)) == (valid.sum() >= enough)
    if not valid.any():
        return
    slot, lane = jax.device_get(run.choose(state, key))
    assert valid[slot, lane].all()
    sampled = jax.device_get(run.sample(state, key))
    for i in range(0, BATCH, 8):
        assert_window_equal(sampled, i, made[lane[i]].window(int(slot[i])))


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    chunks=st.lists(st.sampled_from([1, 4, 9]), min_size=1, max_size=4),
)
def test_extending_in_chunks_equals_adding_one_by_one(seed, chunks):
    run = compiled("lanes")
    rows, start, extended = history(flags_of(seed, 3)), 0, run.empty
    for size in chunks:
        take = slice(start, min(start + size, ROWS))
        if take.stop - take.start < size:
            break
        extended = run.extend(extended, jax.tree.map(lambda x, take=take: x[take], rows))
        start = take.stop
    one_by_one = run.write(run.empty, rows, start)
    jax.tree.map(np.testing.assert_array_equal, extended, one_by_one)


def episodes(ring: Ring, lengths: list[int]) -> Transition:
    """Whole episodes in every lane, frames (episode, step + 1), lanes apart by 1000."""
    frames, first, final = [], [], []
    for number, length in enumerate(lengths, start=1):
        frames += [(number, step + 1) for step in range(length + 1)]
        first += [True] + [False] * length
        final += [False] * length + [True]
    count = len(frames)
    frame = np.array(frames, np.float32)[:, None] + 1000 * np.arange(ring.lanes)[:, None]
    no = np.zeros((count, ring.lanes), bool)
    return Transition(
        frame=frame,
        action=frame[..., 1].astype(np.int32),
        reward=frame[..., 0],
        terminated=no,
        first=no | np.array(first)[:, None],
        final=no | np.array(final)[:, None],
    )


def test_no_sampled_window_mixes_episodes_or_lanes():
    run, ring = compiled("as small as can be"), RINGS["as small as can be"]
    rng = np.random.default_rng(0)
    rows = episodes(ring, [int(n) for n in rng.integers(1, 6, size=12)])
    seen = 0
    for count in range(4, rows.first.shape[0]):
        state = run.write(run.empty, rows, count)
        if not run.can_sample(state, 1):
            continue
        batch = jax.device_get(run.sample(state, jax.random.key(count)))
        for stack, after in zip(batch.obs, batch.next_obs, strict=True):
            both = np.concatenate([stack, after])
            shown = both[both.any(axis=1)]
            assert len(set(shown[:, 0])) == 1, f"after {count} rows: episodes {shown[:, 0]}"
            steps = stack[stack.any(axis=1)][:, 1]
            assert (np.diff(steps) == 1).all()
            assert len(steps) == ring.num_frames or steps[0] % 1000 == 1, "zeros only at a start"
            seen += 1
    assert seen > 1000


def test_the_last_step_before_a_truncation_bootstraps_from_the_final_frame():
    ring = Ring(12, num_frames=2, n_step=3, gamma=GAMMA)
    rows = episodes(ring, [4, 4])
    blank = jax.tree.map(lambda x: x[0, 0], rows)
    state = jax.jit(ring.extend)(ring.init(blank), rows)
    last = jax.jit(ring.windows)(state, jnp.array([3]), jnp.array([0]))
    assert last.reward[0] == 1.0
    assert last.discount[0] == GAMMA
    np.testing.assert_array_equal(last.next_obs[0], [[1, 4], [1, 5]])


def test_every_valid_window_is_as_likely_though_lanes_differ():
    ring = Ring(16, lanes=3, num_frames=3, n_step=2, gamma=GAMMA)
    draws = 30_000
    flags = np.random.default_rng(3).random((24, 3, 3)) < [0.2, 0.3, 0.2]
    rows = history(flags)
    blank = jax.tree.map(lambda x: jnp.asarray(x[0, 0]), rows)

    @jax.jit
    def counts(key):
        state = ring.extend(ring.init(blank), jax.tree.map(lambda x: x[:16], rows))
        state = ring.extend(state, jax.tree.map(lambda x: x[16:], rows))
        slot, lane = ring.choose(state, key, draws)
        return ring.valid(state), jnp.zeros((16, 3)).at[slot, lane].add(1)

    valid, found = jax.device_get(counts(jax.random.key(0)))
    assert len(set(valid.sum(axis=0))) > 1, "lanes must differ for the test to say anything"
    assert not found[~valid].any()
    expected = draws / valid.sum()
    chi_square = ((found[valid] - expected) ** 2 / expected).sum()
    freedom = valid.sum() - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 4, "num_frames": 3, "n_step": 2}, "use at least 5"),
        ({"capacity": 8, "num_frames": 0}, "num_frames=0; it must be at least 1"),
        ({"capacity": 8, "lanes": 0}, "lanes=0; it must be at least 1"),
        ({"capacity": 8, "gamma": float("nan")}, "gamma=nan; it must be a finite number"),
    ],
)
def test_rings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Ring(**wrong)


def test_more_rows_than_fit_are_refused():
    run = compiled("lanes")
    with pytest.raises(ValueError, match="10 rows do not fit a capacity of 9"):
        run.ring.extend(run.empty, jax.tree.map(lambda x: x[:10], history(flags_of(0, 3))))
