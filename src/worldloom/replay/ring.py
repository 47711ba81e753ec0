"""A ring of frames that never mixes episodes.

Rows are single frames; stacks and n-step returns are put together when they are sampled. Every
row knows its episode and its place in it, so a window is used only if all of it is still in the
ring and of one episode. `lanes` parallel worlds share one write head: row t of all lanes is
written at once.

What silently breaks elsewhere, and cannot here: stacks that reach into an older episode, windows
across the write head, a last step that bootstraps from the next episode's first frame.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Bool, Int, Shaped

from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.cumsum import running_count, running_sum
from worldloom.core.types import Array, Batch, Key, PyTree, Transition

SHORT = 1024  # up to this capacity a row is found by comparing with all rows at once


class RingState(struct.PyTreeNode):
    rows: Transition  # leaves (capacity, lanes, ...)
    episode: Array  # (capacity, lanes) number of the episode a row belongs to
    step: Array  # (capacity, lanes) place of the row in its episode
    head: Array  # () where the next row goes
    size: Array  # () rows written, at most capacity


def empty_rows(example: PyTree, *axes: int) -> PyTree:
    """Zeros in the form of `example`, with leading axes of these sizes."""
    return jax.tree.map(lambda x: jnp.zeros((*axes, *jnp.shape(x)), jnp.result_type(x)), example)


@dataclass(frozen=True)
class Ring:
    """A ring of `capacity` rows of `lanes` worlds; functions over `RingState`.

    A sampled window is a step with its frame stack, the discounted sum of up to `n_step`
    rewards, and the stack to bootstrap from. Near the end of an episode, or of what has been
    written, fewer rewards are summed and the discount says so.
    """

    capacity: int
    lanes: int = 1
    num_frames: int = 1
    n_step: int = 1
    gamma: float = 0.99

    def __post_init__(self):
        least = {"lanes": 1, "num_frames": 1, "n_step": 1}
        check_fields("Ring", self, at_least=least, fractions=("gamma",))
        if self.capacity < self.num_frames + self.n_step:
            raise ValueError(
                f"Ring: capacity={self.capacity} cannot hold one window of "
                f"{self.num_frames} frames and {self.n_step} steps; use at least "
                f"{self.num_frames + self.n_step}"
            )

    def init(self, example: Transition) -> RingState:
        """An empty ring for rows like `example` (one lane, no leading axes)."""
        blank = empty_rows(example, self.capacity, self.lanes)
        # Two arrays, not one twice: a donated buffer must appear once.
        episode = jnp.full((self.capacity, self.lanes), -1, jnp.int32)
        step = jnp.zeros((self.capacity, self.lanes), jnp.int32)
        return RingState(blank, episode, step, jnp.int32(0), jnp.int32(0))

    def add(self, ring: RingState, row: Transition) -> RingState:
        """Writes one row of every lane, leaves (lanes, ...)."""
        return self.extend(ring, jax.tree.map(lambda x: x[None], row))

    def extend(self, ring: RingState, rows: Transition) -> RingState:
        """Writes T rows of every lane, leaves (T, lanes, ...), T at most the capacity."""
        count = rows.first.shape[0]
        if count > self.capacity:
            raise ValueError(f"Ring: {count} rows do not fit a capacity of {self.capacity}")
        last = (ring.head - 1) % self.capacity
        opens = rows.first | ((ring.size == 0) & (jnp.arange(count) == 0)[:, None])
        episode = ring.episode[last] + running_count(opens)
        # Place in the episode: rows since the last opening one, or on from the last row.
        at = jnp.arange(count)[:, None]
        earlier = jnp.arange(count) <= at  # (T, T): the second is not after the first
        opened = jnp.where(opens & earlier[:, :, None], at, -1).max(axis=1)
        step = jnp.where(opened >= 0, at - opened, ring.step[last] + 1 + at)
        slots = (ring.head + jnp.arange(count)) % self.capacity

        def write(old, new):
            return old.at[slots].set(new.astype(old.dtype))

        return RingState(
            rows=jax.tree.map(write, ring.rows, rows),
            episode=write(ring.episode, episode),
            step=write(ring.step, step),
            head=(ring.head + count) % self.capacity,
            size=jnp.minimum(ring.size + count, self.capacity),
        )

    def age(self, ring: RingState, slot: Int[Array, "*rows"]) -> Int[Array, "*rows"]:
        """How many rows were written after the one in `slot`."""
        return (ring.head - 1 - slot) % self.capacity

    def valid(self, ring: RingState) -> Bool[Array, "capacity lanes"]:
        """Steps whose stack is whole and that can bootstrap or have ended."""
        age = self.age(ring, jnp.arange(self.capacity))[:, None]
        reach_back = jnp.minimum(ring.step, self.num_frames - 1)
        stack_is_here = age + reach_back < ring.size
        goes_on = (age >= 1) & (jnp.roll(ring.episode, -1, axis=0) == ring.episode)
        return stack_is_here & ~ring.rows.final & (goes_on | ring.rows.terminated)

    def can_sample(self, ring: RingState, batch_size: Int[Array, ""] | int = 1) -> Bool[Array, ""]:
        """Whether at least `batch_size` different windows are there."""
        return self.valid(ring).sum() >= batch_size

    def sample(self, ring: RingState, key: Key, batch_size: int) -> Batch:
        """`batch_size` windows, each valid one as likely, with replacement.

        Where no window is valid the result is arbitrary: ask `can_sample` first.
        """
        return self.windows(ring, *self.choose(ring, key, batch_size))

    def choose(
        self, ring: RingState, key: Key, batch_size: int
    ) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
        """Slots and lanes of uniformly drawn valid windows.

        Inverse of the cumulative counts: first over rows, then over the lanes of each row.
        """
        valid = self.valid(ring)
        per_row = running_sum(valid.sum(axis=1).astype(jnp.float32))
        u = draws.uniform(key, (2, batch_size))
        nth = jnp.floor(u[0] * per_row[-1])
        method = "compare_all" if self.capacity <= SHORT else "scan"
        slot = jnp.searchsorted(per_row, nth, side="right", method=method)
        slot = slot.clip(0, self.capacity - 1)
        if self.lanes == 1:
            return slot, jnp.zeros_like(slot)
        in_row = running_count(valid[slot].T)  # (lanes, B)
        rank = jnp.floor(u[1] * in_row[-1]).astype(jnp.int32)
        lane = (in_row <= rank).sum(axis=0).clip(0, self.lanes - 1)
        return slot, lane

    def windows(self, ring: RingState, slot: Int[Array, " B"], lane: Int[Array, " B"]) -> Batch:
        """The windows that start in the given slots and lanes."""
        steps = (slot[:, None] + jnp.arange(self.n_step)) % self.capacity  # (B, n)
        age = self.age(ring, slot)[:, None] - jnp.arange(self.n_step)
        lanes = lane[:, None]
        same = (ring.episode[steps, lanes] == ring.episode[slot, lane][:, None]) & (age >= 0)
        ended = ring.rows.terminated[steps, lanes] & same
        nexts = (steps + 1) % self.capacity
        same_next = (ring.episode[nexts, lanes] == ring.episode[slot, lane][:, None]) & (age >= 1)
        # A step counts if it is an action of this episode, with a successor or an end.
        counts = same & ~ring.rows.final[steps, lanes] & (same_next | ended)
        ended_before = jnp.cumsum(ended, axis=1) - ended
        counts = (jnp.cumprod(counts, axis=1) > 0) & (ended_before == 0)
        length = counts.sum(axis=1)  # k
        discounts = self.gamma ** jnp.arange(self.n_step, dtype=jnp.float32)
        reward = (ring.rows.reward[steps, lanes] * discounts * counts).sum(axis=1)
        discount = jnp.where((ended & counts).any(axis=1), 0.0, jnp.float32(self.gamma) ** length)
        return Batch(
            obs=self.stacks(ring, slot, lane),
            action=ring.rows.action[slot, lane],
            reward=reward,
            discount=discount,
            next_obs=self.stacks(ring, (slot + length) % self.capacity, lane),
        )

    def stacks(
        self, ring: RingState, slot: Int[Array, " B"], lane: Int[Array, " B"]
    ) -> Shaped[Array, "B frames *frame"]:
        """Frame stacks that end in the given rows; zeros before the start."""
        back = jnp.arange(self.num_frames - 1, -1, -1)
        slots = (slot[:, None] - back) % self.capacity
        frames = ring.rows.frame[slots, lane[:, None]]
        exists = ring.step[slot, lane][:, None] >= back
        return jnp.where(exists.reshape(exists.shape + (1,) * (frames.ndim - 2)), frames, 0)
