"""Tabular Q-learning (Watkins 1989) for gridworlds, from memory, over hashed observations.

The table has `table_size` rows; an observation is hashed to one of them. Two observations may
share a row, and then share their values: nothing detects it. With n different observations in m
rows, an observation meets another with chance about n / m, so take m at least ten times n. A
stack of frames is one observation: the more frames, the more of them there are.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float, Int, Int32, Shaped, UInt32

from worldloom.algos.algorithm import DISCRETE, Algorithm
from worldloom.algos.config import at_least, fraction
from worldloom.algos.off_policy import EpsilonGreedyConfig, LearnMetrics, ValueAgent
from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.values import epsilon_greedy, weighted


@dataclass(frozen=True)
class QLearningConfig(EpsilonGreedyConfig):
    """learning_rate: share of the error that an update removes."""

    table_size: int = at_least(1, 1 << 16)
    learning_rate: float = fraction(0.1)

    def __post_init__(self):
        super().__post_init__()
        check_fields(self.name, self, positive=("learning_rate",))


class QLearner(struct.PyTreeNode):
    params: PyTree  # (table_size, actions) values
    updates: Array


@dataclass(frozen=True)
class QLearning(ValueAgent):
    """The table of one agent, which hashes observations and needs no network."""

    def init(self, key: Key, obs: Array) -> QLearner:
        """A table of zeros, whatever the key and the observations."""
        return QLearner(
            jnp.zeros((self.config.table_size, self.num_actions), jnp.float32), jnp.int32(0)
        )

    def act(
        self,
        params: PyTree,
        obs: Shaped[Array, "B ..."],
        key: Key,
        *,
        explore: Float[Array, ""] | float = 0.0,
    ) -> tuple[Int[Array, " B"], Float[Array, "B actions"]]:
        """Actions and their values.

        Equal values are chosen among at random: where nothing was learned yet, the first action
        would otherwise be taken for ever.
        """
        explore_key, tie_key = jax.random.split(key)
        q = params[table_rows(obs, self.config.table_size)]
        best = q == q.max(axis=-1, keepdims=True)
        tie_break = jnp.where(best, draws.uniform(tie_key, q.shape), -1.0)
        return epsilon_greedy(tie_break, explore_key, explore), q

    def update(self, learner: QLearner, batch: Batch, key: Key) -> tuple[QLearner, LearnMetrics]:
        """Moves each value in the batch towards the mean of what the batch says of it.

        The mean makes the step independent of how often a step was drawn, so that a learning
        rate of at most 1 never overshoots.
        """
        table, size = learner.params, self.config.table_size
        row, after = table_rows(batch.obs, size), table_rows(batch.next_obs, size)
        td_target = batch.reward + batch.discount * table[after].max(axis=-1)
        q = table[row, batch.action]
        error = weighted(td_target - q, batch)
        same_action = batch.action[:, None] == batch.action[None, :]
        same = (row[:, None] == row[None, :]) & same_action  # (B, B)
        copies = same.sum(axis=1)
        mean_error = jnp.where(same, error[None, :], 0.0).sum(axis=1) / copies
        # Each of a cell's copies adds its share; together they add the mean once.
        step = self.config.learning_rate * mean_error / copies
        metrics = LearnMetrics(
            loss=0.5 * (error * error).mean(),
            grad_norm=jnp.sqrt((mean_error * mean_error / copies).sum()),
            q_mean=q.mean(),
        )
        return QLearner(table.at[row, batch.action].add(step), learner.updates + 1), metrics


def table_rows(obs: Shaped[Array, "B ..."], table_size: int) -> Int32[Array, " B"]:
    """Rows in 0 .. table_size - 1 for observations of integers or floats.

    A fixed random projection, in arithmetic modulo 2**32, of the scrambled entries. For two
    given observations, the chance over projections that they meet before the last reduction is
    about 2**-32.
    """
    if jnp.issubdtype(obs.dtype, jnp.floating):
        # Adding zero gives -0.0 and 0.0 the same bits.
        numbers = jax.lax.bitcast_convert_type(obs.astype(jnp.float32) + 0.0, jnp.uint32)
    else:
        numbers = obs.astype(jnp.uint32)
    features = math.prod(obs.shape[1:])
    # Odd weights can be inverted: observations that differ in one entry never meet here.
    weights = draws.bits(jax.random.key(2026), (features,)) | jnp.uint32(1)
    total = (scrambled(numbers.reshape(-1, features)) * weights).sum(axis=1, dtype=jnp.uint32)
    return (scrambled(total) % jnp.uint32(table_size)).astype(jnp.int32)


def scrambled(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A one-to-one map in which similar numbers go far apart (murmur3's last step)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


ABOUT = ("qlearning", "a table of values over hashed observations", "off_policy", DISCRETE)
ALGORITHM = Algorithm(*ABOUT, QLearningConfig, QLearning.make, one_array=True)
