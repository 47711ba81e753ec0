"""The uniform random agent: the score that learning has to beat."""

from dataclasses import dataclass

import jax.numpy as jnp
from flax import struct

from worldloom.algos.metrics import LearnMetrics
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.values import num_actions


@dataclass(frozen=True)
class RandomConfig:
    """What memory and loop ask of every agent; none of it changes how this one plays."""

    gamma: float = 0.9
    n_step: int = 1
    batch_size: int = 1

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"random: batch_size={self.batch_size}; it must be at least 1")


class RandomLearner(struct.PyTreeNode):
    params: PyTree  # () a zero, so that learners can be stacked, indexed and stored like any


@dataclass(frozen=True)
class Random:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: RandomConfig
    num_actions: int

    def init(self, key: Key, spec: EnvSpec) -> RandomLearner:
        """Nothing to draw: every random agent is the same."""
        return RandomLearner(jnp.float32(0.0))

    def act(
        self, params: PyTree, obs: Array, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Any actions (B,), whatever `explore` is; all values (B, actions) are zero."""
        count = obs.shape[0]
        action = draws.integers(key, (count,), self.num_actions)
        return action, jnp.zeros((count, self.num_actions), jnp.float32)

    def update(
        self, learner: RandomLearner, batch: Batch, key: Key
    ) -> tuple[RandomLearner, LearnMetrics]:
        """Learns nothing, and says so: every metric is NaN."""
        nan = jnp.float32(jnp.nan)
        return learner, LearnMetrics(nan, nan, nan)


def make(config: RandomConfig, spec: EnvSpec) -> Random:
    """The agent for a world of `spec`."""
    return Random(config, num_actions(spec))
