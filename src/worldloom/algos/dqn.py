"""Double DQN (van Hasselt et al. 2016) with n-step returns and a target that follows slowly."""

from dataclasses import dataclass
from typing import Any

import jax
import optax

from worldloom.algos import targets
from worldloom.algos.metrics import LearnMetrics
from worldloom.algos.targets import TargetLearner
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.layers import MLP
from worldloom.nn.values import (
    blank_observation,
    epsilon_greedy,
    flatten,
    huber,
    num_actions,
    take_action,
    weighted,
)


@dataclass(frozen=True)
class DQNConfig:
    """Every option of the algorithm.

    hidden: widths of the layers between observation and values. target_rate: share of the
    online parameters that flows into the target in each update. gamma and n_step are for the
    memory, which hands the learner n-step sums and the discount of what follows.
    """

    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    gamma: float = 0.9
    n_step: int = 1
    target_rate: float = 0.05
    batch_size: int = 64

    def __post_init__(self):
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list, when read from a file
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"dqn: hidden={self.hidden}; every width must be at least 1")
        for name in ("n_step", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"dqn: {name}={getattr(self, name)}; it must be at least 1")
        for name in ("gamma", "target_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"dqn: {name}={getattr(self, name):g}; it must be in [0, 1]")
        for name in ("learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"dqn: {name}={getattr(self, name):g}; it must be positive")


@dataclass(frozen=True)
class DQN:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: DQNConfig
    num_actions: int

    @property
    def network(self) -> MLP:
        return MLP((*self.config.hidden, self.num_actions))

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return targets.clipped_adam(self.config.learning_rate, self.config.max_grad_norm)

    def init(self, key: Key, spec: EnvSpec) -> TargetLearner:
        """A learner with fresh parameters, and a target equal to them."""
        params = self.network.init(key, flatten(blank_observation(spec)))
        return targets.start(params, self.optimiser)

    def values(self, params: PyTree, obs: Array) -> Any:
        """Expected returns (B, actions) of obs (B, frames, *frame)."""
        return self.network.apply(params, flatten(obs))

    def act(
        self, params: PyTree, obs: Array, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Actions (B,) and their values (B, actions) for obs (B, frames, *frame)."""
        q = self.values(params, obs)
        return epsilon_greedy(q, key, explore), q

    def loss(self, params: PyTree, target: PyTree, batch: Batch) -> tuple[Array, Array]:
        """Huber loss with a double-Q target, and the mean value of the actions taken."""
        best = self.values(params, batch.next_obs).argmax(axis=-1)
        after = take_action(self.values(target, batch.next_obs), best)  # (B,)
        aim = jax.lax.stop_gradient(batch.reward + batch.discount * after)
        now = take_action(self.values(params, batch.obs), batch.action)
        return weighted(huber(aim - now), batch).mean(), now.mean()

    def update(
        self, learner: TargetLearner, batch: Batch, key: Key
    ) -> tuple[TargetLearner, LearnMetrics]:
        """One gradient step, then the target follows; nothing here is random."""

        def loss(params):
            return self.loss(params, learner.target, batch)

        return targets.descend(learner, loss, self.optimiser, self.config.target_rate)


def make(config: DQNConfig, spec: EnvSpec) -> DQN:
    """The agent for a world of `spec`."""
    return DQN(config, num_actions(spec))
