"""What off-policy agents share: the options of memory, updates and exploration.

An off-policy agent has `init(key, obs)` that makes a learner, `act(learner.params, obs, key,
explore=...)` that returns actions and what they were chosen by, and `update(learner, batch, key)`
that returns the new learner and metrics. Options: `agent.config`, an `OffPolicyConfig`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp

from worldloom.core.checks import check_fields
from worldloom.core.types import Array, Batch, Key, PyTree


class OffPolicyAgent(Protocol):
    """DQN, SAC and their like."""

    @property
    def config(self) -> Any: ...
    def init(self, key: Key, obs: PyTree) -> Any: ...
    def act(
        self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Any]: ...
    def update(self, learner: Any, batch: Batch, key: Key) -> tuple[Any, Any]: ...


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Options of every off-policy algorithm.

    An iteration plays `unroll_length` steps in every world (turn-based worlds play whole episodes
    instead) and then takes `gradient_steps` updates, each from `batch_size` transitions of the
    newest `buffer_size`. Until `learning_starts` steps have been played, actions are random and
    nothing is learned. `n_step` returns are for worlds that are played in whole episodes.
    """

    gamma: float = 0.99
    n_step: int = 1
    batch_size: int = 64
    buffer_size: int = 10_000
    gradient_steps: int = 1
    unroll_length: int = 1
    learning_starts: int = 0

    def __post_init__(self):
        check_fields(
            self.name,
            self,
            at_least={
                "n_step": 1,
                "batch_size": 1,
                "buffer_size": 1,
                "gradient_steps": 0,
                "unroll_length": 1,
                "learning_starts": 0,
            },
            fractions=("gamma",),
        )

    @property
    def name(self) -> str:
        """How messages name the algorithm."""
        return type(self).__name__.removesuffix("Config").lower()

    def exploration(self, iteration: Array) -> Array:
        """How much an agent explores in an iteration: 1, all that it ever does."""
        return jnp.float32(1.0)


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedyConfig(OffPolicyConfig):
    """Options of algorithms that explore by a random action with chance epsilon.

    `epsilon` falls by the share `epsilon_decay` in every iteration, down to `epsilon_min`.
    """

    epsilon: float = 1.0
    epsilon_decay: float = 0.1
    epsilon_min: float = 0.05

    def __post_init__(self):
        super().__post_init__()
        check_fields(self.name, self, fractions=("epsilon", "epsilon_decay", "epsilon_min"))

    def exploration(self, iteration: Array) -> Array:
        """The chance of a random action in an iteration."""
        decayed = self.epsilon * (1.0 - self.epsilon_decay) ** iteration.astype(jnp.float32)
        return jnp.maximum(decayed, self.epsilon_min)
