"""The original's ring, faults included, for parity and honest comparison only.

Sorrel's buffer skips `num_frames - 1` rows at the start of an epoch without clearing them and
samples windows without looking at the write head or at episodes, so stacks mix epochs once the
ring has wrapped. Rewards are single steps; the learner multiplies by gamma ** n_step.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Batch, Key, Transition
from worldloom.replay.ring import empty_rows


class LegacyRingState(struct.PyTreeNode):
    rows: Transition  # leaves (capacity, 1, ...)
    head: Array
    size: Array


@dataclass(frozen=True)
class LegacyRing:
    """Same interface as `Ring`; `lanes` must be 1, as the original knows one world."""

    capacity: int
    lanes: int = 1
    num_frames: int = 5
    n_step: int = 3
    gamma: float = 0.99

    def __post_init__(self):
        if self.lanes != 1:
            raise ValueError(f"LegacyRing: lanes={self.lanes}; the original memory has one world")

    def init(self, example: Transition) -> LegacyRingState:
        return LegacyRingState(empty_rows(example, self.capacity, 1), jnp.int32(0), jnp.int32(0))

    def add_empty(self, ring: LegacyRingState) -> LegacyRingState:
        """Moves the head on by `num_frames - 1` rows and leaves their old content in place."""
        return ring.replace(head=(ring.head + self.num_frames - 1) % self.capacity)

    def add(self, ring: LegacyRingState, row: Transition) -> LegacyRingState:
        rows = jax.tree.map(lambda old, new: old.at[ring.head].set(new), ring.rows, row)
        head, size = (ring.head + 1) % self.capacity, jnp.minimum(ring.size + 1, self.capacity)
        return LegacyRingState(rows, head, size)

    def extend(self, ring: LegacyRingState, rows: Transition) -> LegacyRingState:
        """An epoch at once: a gap, then every row in which an action was taken.

        `rows` ends with a final row, which the original does not keep.
        """
        ring = self.add_empty(ring)
        count = rows.first.shape[0] - 1
        slots = (ring.head + jnp.arange(count)) % self.capacity
        return LegacyRingState(
            rows=jax.tree.map(lambda old, new: old.at[slots].set(new[:count]), ring.rows, rows),
            head=(ring.head + count) % self.capacity,
            size=jnp.minimum(ring.size + count, self.capacity),
        )

    def can_sample(self, ring: LegacyRingState, batch_size: int = 1) -> Array:
        return ring.size - self.num_frames - 1 >= batch_size

    def choose(self, ring: LegacyRingState, key: Key, batch_size: int) -> Array:
        """Starts (B,) of windows, without replacement from 0 .. size - num_frames - 2."""
        order = draws.uniform(key, (self.capacity,))
        allowed = jnp.arange(self.capacity) < ring.size - self.num_frames - 1
        return jax.lax.top_k(jnp.where(allowed, order, -1.0), batch_size)[1]

    def windows(self, ring: LegacyRingState, start: Array) -> Batch:
        """The windows of the given starts (B,).

        One with an end before its last frame counts 0, and the loss is still divided by all of
        them: the original's mask.
        """
        last = start + self.num_frames - 1
        stack = start[:, None] + jnp.arange(self.num_frames)
        done = ring.rows.terminated[:, 0]
        return Batch(
            obs=ring.rows.frame[stack, 0],
            action=ring.rows.action[last, 0],
            reward=ring.rows.reward[last, 0],
            discount=jnp.where(done[last], 0.0, self.gamma**self.n_step),
            next_obs=ring.rows.frame[stack + 1, 0],
            weight=(~done[stack[:, :-1]].any(axis=1)).astype(jnp.float32),
        )

    def sample(self, ring: LegacyRingState, key: Key, batch_size: int) -> Batch:
        return self.windows(ring, self.choose(ring, key, batch_size))
