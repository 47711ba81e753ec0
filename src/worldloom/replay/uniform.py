"""Uniform replay: a flat ring of single transitions, each as likely to be sampled.

For worlds that are stepped, of one agent or many in parallel. A transition carries the observation
it led to, so nothing has to be put together when it is sampled: adding and sampling take the same
time however much is stored. Frame stacks and n-step returns over turns are `replay.ring`'s.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Bool, Float, Int, Shaped

from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.replay.ring import empty_rows

LARGEST = 2**24  # rows that a float32 can tell apart


class UniformState(struct.PyTreeNode):
    """What is stored: leaves (capacity, ...), of which the first `size` rows are filled."""

    obs: PyTree
    action: Array
    reward: Array
    next_obs: PyTree
    terminated: Array
    head: Array  # () where the next row goes
    size: Array  # () rows written, at most capacity


@dataclass(frozen=True)
class UniformBuffer:
    """The newest `capacity` transitions; functions over `UniformState`."""

    capacity: int
    gamma: float = 0.99

    def __post_init__(self):
        check_fields("UniformBuffer", self, at_least={"capacity": 1}, fractions=("gamma",))
        if self.capacity > LARGEST:
            raise ValueError(
                f"UniformBuffer: capacity={self.capacity}; it must be at most {LARGEST}"
            )

    def init(self, obs: PyTree, action: Array, reward: Array) -> UniformState:
        """An empty buffer for transitions like this one, given without leading axes."""
        row = (obs, action, reward, obs, False)
        return UniformState(*empty_rows(row, self.capacity), head=jnp.int32(0), size=jnp.int32(0))

    def add(
        self,
        state: UniformState,
        obs: PyTree,
        action: Shaped[Array, "B ..."],
        reward: Float[Array, " B"],
        next_obs: PyTree,
        terminated: Shaped[Array, " B"],
    ) -> UniformState:
        """Writes B transitions over the oldest; of too many the last stay.

        next_obs: what the action led to, before any automatic reset. A transition that was cut
        short is not `terminated`: it is bootstrapped from.
        """
        count = min(reward.shape[0], self.capacity)
        slots = (state.head + jnp.arange(count)) % self.capacity

        def write(old: Array, new: Array) -> Array:
            return old.at[slots].set(new[-count:].astype(old.dtype))

        new = (obs, action, reward, next_obs, terminated)
        old = (state.obs, state.action, state.reward, state.next_obs, state.terminated)
        return UniformState(
            *jax.tree.map(write, old, new),
            head=(state.head + count) % self.capacity,
            size=jnp.minimum(state.size + count, self.capacity),
        )

    def can_sample(
        self, state: UniformState, batch_size: Int[Array, ""] | int = 1
    ) -> Bool[Array, ""]:
        """Whether at least `batch_size` different transitions are there."""
        return state.size >= batch_size

    def sample(self, state: UniformState, key: Key, batch_size: int) -> Batch:
        """`batch_size` transitions, each as likely, with replacement.

        Of an empty buffer the result is zeros: ask `can_sample` first.
        """
        place = (draws.uniform(key, (batch_size,)) * state.size).astype(jnp.int32)
        place = jnp.clip(place, 0, jnp.maximum(state.size - 1, 0))
        obs, next_obs = jax.tree.map(lambda x: x[place], (state.obs, state.next_obs))
        return Batch(
            obs=obs,
            action=state.action[place],
            reward=state.reward[place],
            discount=jnp.where(state.terminated[place], 0.0, jnp.float32(self.gamma)),
            next_obs=next_obs,
        )
