"""The stateful face of the rings, for object loops that add one row at a time."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32
from numpy.typing import ArrayLike, NDArray

from worldloom.core.draws import as_key
from worldloom.core.types import Array, Key, PyTree, Transition
from worldloom.replay.legacy import LegacyRing
from worldloom.replay.ring import Ring


class Samples(NamedTuple):
    """B windows of F frames; D features in a frame."""

    states: NDArray[np.float32]  # (B, F * D)
    actions: NDArray[np.int32]  # (B, 1)
    rewards: NDArray[np.float32]  # (B, 1)
    next_states: NDArray[np.float32]  # (B, F * D)
    dones: NDArray[np.float32]  # (B, 1)
    valid: NDArray[np.float32]  # (B, 1)


class JAXBuffer:
    """A memory of one agent that knows its own state and its own key.

    A sample's rewards are sums over up to `n_step` steps, and it is done where nothing follows
    them. `state` is what the functions of `ring` work on; every `add` consumes it, so read it and
    do not keep it. `states`, `actions`, `rewards` and `dones` are copies of its columns, in the
    order of the ring, whose next row is `idx`. `extra_data` is for columns of your own, arrays of
    `capacity` rows that `add` writes by name and learning does not read.

    Args:
        obs_shape: of one frame.
        legacy: the original's buffer, with rewards of single steps and windows that mix episodes;
            `n_step` and `gamma` then have no part in what `sample` returns.
        device: a jax.Device; None for JAX's default.
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: int | Sequence[int],
        n_frames: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        legacy: bool = False,
        seed: int = 0,
        device: Any = None,  # a jax.Device, which type checkers take for a variable
    ) -> None:
        shape = (obs_shape,) if isinstance(obs_shape, int | np.integer) else tuple(obs_shape)
        self.obs_shape = tuple(int(n) for n in shape)
        if legacy and not 1 <= n_frames <= capacity - 2:
            raise ValueError(
                f"JAXBuffer: capacity={capacity} cannot hold a window of {n_frames} frames and "
                f"the next; use n_frames >= 1 and capacity >= n_frames + 2"
            )
        kind = LegacyRing if legacy else Ring
        self.ring: Any = kind(capacity, num_frames=n_frames, n_step=n_step, gamma=gamma)
        self.capacity, self.n_frames, self.legacy = capacity, n_frames, legacy
        self.device = device
        self.extra_data: dict[str, NDArray[Any]] = {}
        self.key: Key = jax.device_put(jax.random.key(seed), device)
        self.clear()

    def clear(self) -> None:
        """Forgets every row; the stream of random numbers goes on."""
        no = jnp.asarray(False)
        blank = jnp.zeros(self.obs_shape, jnp.float32)
        example = Transition(blank, jnp.int32(0), jnp.float32(0), no, no, no)
        self.state: PyTree = jax.device_put(self.ring.init(example), self.device)
        self.opens = True  # the next row is the first of its episode

    def add(
        self, obs: ArrayLike, action: int, reward: float, done: bool | float, **extra: ArrayLike
    ) -> None:
        """Writes one row: the frame seen, the action taken on it, and what came of it.

        The frame may have leading axes of 1. After `done` the next row opens a new episode.
        extra: values for columns of `extra_data`.
        """
        frame = np.asarray(obs, np.float32)
        ones = frame.ndim - len(self.obs_shape)
        if ones < 0 or frame.shape != (1,) * ones + self.obs_shape:
            raise ValueError(
                f"JAXBuffer.add: obs has shape {frame.shape}; this memory holds frames of shape "
                f"{self.obs_shape}"
            )
        frame = frame.reshape(self.obs_shape)
        if not math.isfinite(reward):
            raise ValueError(f"JAXBuffer.add: reward={float(reward)}; it must be finite")
        if not np.isfinite(frame).all():
            raise ValueError("JAXBuffer.add: obs has entries that are not finite; mend the world")
        if int(action) != action:
            raise ValueError(f"JAXBuffer.add: action={action!r}; it must be a whole number")
        for name in extra.keys() - self.extra_data.keys():
            raise ValueError(
                f"JAXBuffer.add: no column {name!r}; first set extra_data[{name!r}] to an array of "
                f"{self.capacity} rows"
            )
        for name, value in extra.items():
            self.extra_data[name][self.idx] = value
        # One small array instead of four scalars: most of a call's cost is in its arguments.
        numbers = np.array((action, reward, bool(done), self.opens), np.float32)
        self.state = _add(self.ring, self.state, frame, numbers)
        self.opens = bool(done)

    def add_empty(self) -> None:
        """Closes the episode; the original leaves a gap of `n_frames - 1` rows as they are."""
        if self.legacy:
            self.state = _add_empty(self.ring, self.state)
        self.opens = True

    def sample(self, batch_size: int, rng_key: Key | None = None) -> Samples:
        """Random windows: with replacement, or without where `legacy`.

        Drawn by `rng_key`, of either kind, where one is given, and by the memory's own otherwise.
        """
        needed = batch_size if self.legacy else 1
        if not self.can_sample(needed):
            raise ValueError(
                f"JAXBuffer.sample: {len(self)} rows hold too few windows of {self.n_frames} "
                f"frames for batch_size={batch_size}; add more rows first"
            )
        if rng_key is None:
            self.key, samples = _sample(self.ring, self.state, self.key, batch_size)
        else:
            samples = _sample(self.ring, self.state, as_key(rng_key), batch_size)[1]
        return Samples(*(np.asarray(x) for x in samples))

    def can_sample(self, batch_size: int = 1) -> bool:
        """Whether at least `batch_size` different windows are there."""
        return bool(_can_sample(self.ring, self.state, batch_size))

    def current_state(self) -> Float32[np.ndarray, " past *frame"]:
        """The n_frames - 1 frames before the present one, oldest first.

        Zeros before the start of the episode; the original returns the rows before the write
        head, of whatever episode.
        """
        if self.opens and not self.legacy:
            return np.zeros((self.n_frames - 1, *self.obs_shape), np.float32)
        return np.asarray(_current_state(self.ring, self.state))

    states = property(lambda self: np.array(self.state.rows.frame[:, 0]))  # (capacity, *frame)
    actions = property(lambda self: np.array(self.state.rows.action[:, 0], np.int64))
    rewards = property(lambda self: np.array(self.state.rows.reward[:, 0]))
    dones = property(lambda self: np.array(self.state.rows.terminated[:, 0], np.float32))
    idx = property(lambda self: int(self.state.head))
    size = property(len)

    def getidx(self) -> int:
        """The row that is written next."""
        return self.idx

    def __getitem__(self, rows: Any) -> tuple[NDArray[Any], ...]:
        """The columns `states`, `actions`, `rewards` and `dones` of some rows."""
        return self.states[rows], self.actions[rows], self.rewards[rows], self.dones[rows]

    def __len__(self) -> int:
        return int(self.state.size)

    def __repr__(self) -> str:
        return (
            f"JAXBuffer({len(self)} of {self.capacity} rows, obs_shape={self.obs_shape}, "
            f"n_frames={self.n_frames}, legacy={self.legacy})"
        )


# Compiled once for each ring, shared by all buffers of one configuration. -------------------------


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add(ring: Any, state: PyTree, frame: Array, numbers: Array) -> PyTree:
    action, reward, done, opens = numbers
    row = Transition(
        frame=frame,
        action=action.astype(jnp.int32),
        reward=reward,
        terminated=done > 0,
        first=opens > 0,
        final=jnp.asarray(False),
    )
    return ring.add(state, jax.tree.map(lambda x: x[None], row))


_add_empty = jax.jit(LegacyRing.add_empty, static_argnums=0, donate_argnums=1)
_can_sample = jax.jit(lambda ring, state, size: ring.can_sample(state, size), static_argnums=0)


@partial(jax.jit, static_argnums=(0, 3))
def _sample(ring: Any, state: PyTree, key: Key, batch_size: int) -> tuple[Key, tuple[Array, ...]]:
    """The next key, and the fields of `Samples` in their order."""
    key, draw_key = jax.random.split(key)
    batch = ring.sample(state, draw_key, batch_size)
    valid = jnp.ones(batch_size) if batch.weight is None else batch.weight
    samples = (
        batch.obs.reshape(batch_size, -1),
        batch.action[:, None],
        batch.reward[:, None],
        batch.next_obs.reshape(batch_size, -1),
        (batch.discount == 0).astype(jnp.float32)[:, None],
        valid[:, None],
    )
    return key, samples


@partial(jax.jit, static_argnums=0)
def _current_state(ring: Any, state: PyTree) -> Array:
    if isinstance(ring, LegacyRing):
        before = (state.head - jnp.arange(ring.num_frames - 1, 0, -1)) % ring.capacity
        return state.rows.frame[before, 0]
    newest, lane = (state.head - 1) % ring.capacity, jnp.int32(0)
    return ring.stacks(state, newest[None], lane[None])[0, 1:]
