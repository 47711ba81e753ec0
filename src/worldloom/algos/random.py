"""The uniform random agent: the score that learning has to beat."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.algorithm import ANY, Algorithm
from worldloom.algos.config import at_least, fraction
from worldloom.algos.off_policy import LearnMetrics, OffPolicyConfig
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.networks import Networks


@dataclass(frozen=True)
class RandomConfig(OffPolicyConfig):
    """Options that loops ask of every agent; none of them changes how this one plays."""

    gamma: float = fraction(0.9)
    batch_size: int = at_least(1, 1)
    gradient_steps: int = at_least(0, 0)


class RandomLearner(struct.PyTreeNode):
    params: PyTree  # () a zero, so that learners can be stacked, indexed and stored like any


def uniform_actions(space: Discrete | Box, key: Key, count: int) -> Array:
    """Actions (count, ...), each as likely as any other."""
    if isinstance(space, Discrete):
        return draws.integers(key, (count,), space.n)
    unit = draws.uniform(key, (count, *space.shape))
    return (space.low + (space.high - space.low) * unit).astype(space.dtype)


@dataclass(frozen=True)
class Random:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: RandomConfig
    action: Discrete | Box

    def init(self, key: Key, obs: PyTree) -> RandomLearner:
        """Nothing to draw: every random agent is the same."""
        return RandomLearner(jnp.float32(0.0))

    def act(
        self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Uniform actions (B, ...), whatever `explore` is.

        Of discrete actions the values (B, actions), all zero; of continuous ones (B,) zeros.
        """
        count, space = jax.tree.leaves(obs)[0].shape[0], self.action
        values = (count, space.n) if isinstance(space, Discrete) else (count,)
        return uniform_actions(space, key, count), jnp.zeros(values, jnp.float32)

    def update(
        self, learner: RandomLearner, batch: Batch, key: Key
    ) -> tuple[RandomLearner, LearnMetrics]:
        """Learns nothing, and says so: every metric is NaN."""
        nan = jnp.float32(jnp.nan)
        return learner, LearnMetrics(nan, nan, nan)


def make(config: RandomConfig, spec: EnvSpec, networks: Networks) -> Random:
    """The agent for a world of `spec`."""
    space = spec.action
    if not isinstance(space, Discrete | Box):
        raise ValueError(f"random: the actions of {spec.name} are a {type(space).__name__}")
    if isinstance(space, Box) and not math.isfinite(space.high - space.low):
        raise ValueError(
            f"random: nothing is uniform on the actions of {spec.name}, "
            f"[{space.low:g}, {space.high:g}]; give them finite bounds"
        )
    return Random(config, space)


ABOUT = ("random", "plays at random and learns nothing", "off_policy", ANY)
ALGORITHM = Algorithm(*ABOUT, RandomConfig, make)
