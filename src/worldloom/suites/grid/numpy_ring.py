"""The original's replay ring in numpy, flaws included: the memory of the PyTorch baseline."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Windows(NamedTuple):
    """A batch of B stacked transitions; F frames of D features each."""

    states: NDArray[np.float32]  # (B, F * D)
    actions: NDArray[np.int64]  # (B,)
    rewards: NDArray[np.float32]  # (B,)
    next_states: NDArray[np.float32]  # (B, F * D)
    dones: NDArray[np.float32]  # (B,)
    valid: NDArray[np.float32]  # (B,)


class LegacyRing:
    """The original's ring. It knows neither episodes nor its own write head.

    What follows from that is kept, because the baseline learns from it: `add_empty` leaves gaps
    that hold zeros at first and rows of an old epoch later, and windows are sampled across gaps,
    across epochs and across the write head.
    """

    def __init__(self, capacity: int, obs_size: int, n_frames: int) -> None:
        self.capacity, self.obs_size, self.n_frames = capacity, obs_size, n_frames
        self.clear()

    def clear(self) -> None:
        """Forget everything, gaps included."""
        self.states = np.zeros((self.capacity, self.obs_size), dtype=np.float32)
        self.actions = np.zeros(self.capacity, dtype=np.int64)
        self.rewards = np.zeros(self.capacity, dtype=np.float32)
        self.dones = np.zeros(self.capacity, dtype=np.float32)
        self.idx = 0
        self.size = 0

    def __len__(self) -> int:
        return self.size

    @property
    def num_starts(self) -> int:
        """How many window starts `sample` chooses from; may be negative while filling."""
        return self.size - self.n_frames - 1

    def add(self, state: ArrayLike, action: int, reward: float, done: float) -> None:
        """Write one row; `state` is the single frame (obs_size,) seen before the action."""
        self.states[self.idx] = state
        self.actions[self.idx] = action
        self.rewards[self.idx] = reward
        self.dones[self.idx] = done
        self.idx = (self.idx + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)

    def add_empty(self) -> None:
        """Skip n_frames - 1 rows. They are not cleared and do not count towards the size."""
        self.idx = (self.idx + self.n_frames - 1) % self.capacity

    def current_state(self) -> NDArray[np.float32]:
        """The rows before the write head, oldest first: (n_frames - 1, obs_size)."""
        return self.states[np.arange(self.idx - self.n_frames + 1, self.idx) % self.capacity]

    def sample(self, batch: int, rng: np.random.Generator) -> Windows:
        """`batch` windows with different starts."""
        return self.windows(rng.choice(self.num_starts, batch, replace=False))

    def windows(self, starts: ArrayLike) -> Windows:
        """The windows that begin at rows `starts` (B,); the last frame is the one acted on."""
        starts = np.asarray(starts)
        rows = starts[:, None] + np.arange(self.n_frames)
        last = rows[:, -1]
        return Windows(
            states=self.states[rows].reshape(len(starts), -1),
            actions=self.actions[last],
            rewards=self.rewards[last],
            next_states=self.states[rows + 1].reshape(len(starts), -1),
            dones=self.dones[last],
            valid=1.0 - np.any(self.dones[rows[:, :-1]], axis=1).astype(np.float32),
        )
