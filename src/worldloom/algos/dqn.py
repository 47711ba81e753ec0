"""Double DQN (van Hasselt et al. 2016) with n-step returns and a target that follows slowly."""

from dataclasses import dataclass, field
from typing import Any

import jax
import optax

from worldloom.algos import targets
from worldloom.algos.algorithm import Algorithm
from worldloom.algos.metrics import LearnMetrics
from worldloom.algos.off_policy import EpsilonGreedyConfig
from worldloom.algos.targets import TargetLearner
from worldloom.core.checks import check_fields
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.layers import MLP
from worldloom.nn.networks import Network, Networks
from worldloom.nn.values import (
    epsilon_greedy,
    huber,
    make_q_network,
    num_actions,
    take_action,
    weighted,
)


@dataclass(frozen=True)
class DQNConfig(EpsilonGreedyConfig):
    """Options of the algorithm; the defaults learn treasure hunt in seconds.

    hidden: widths of the layers between observation and values, where the world brings no network
    of its own. target_rate: share of the online parameters that flows into the target in each
    update.
    """

    hidden: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    gamma: float = 0.9
    target_rate: float = 0.05
    buffer_size: int = 13_056
    gradient_steps: int = 20

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a list, when read from a file
        check_fields(
            "dqn",
            self,
            at_least={"hidden": 1} if self.hidden else {},
            positive=("learning_rate", "max_grad_norm"),
            fractions=("target_rate",),
        )


@dataclass(frozen=True)
class DQN:
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    config: DQNConfig
    num_actions: int
    networks: Networks = field(default_factory=Networks)

    @property
    def network(self) -> Network:
        net = MLP((*self.config.hidden, self.num_actions))
        return make_q_network(self.networks, self.config, net)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return targets.clipped_adam(self.config.learning_rate, self.config.max_grad_norm)

    def init(self, key: Key, obs: PyTree) -> TargetLearner:
        """A learner for observations like obs (B, ...), with a target equal to its parameters."""
        return targets.start(self.network.init(key, obs), self.optimiser)

    def values(self, params: PyTree, obs: PyTree) -> Any:
        """Expected returns (B, actions) of obs (B, ...)."""
        return self.network.apply(params, obs)

    def act(
        self, params: PyTree, obs: PyTree, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Actions (B,) and their values (B, actions) for obs (B, ...)."""
        q = self.values(params, obs)
        return epsilon_greedy(q, key, explore, masked=self.networks.masked), q

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

        return targets.gradient_step(learner, loss, self.optimiser, self.config.target_rate)


def make(config: DQNConfig, spec: EnvSpec, networks: Networks) -> DQN:
    """The agent for a world of `spec`."""
    return DQN(config, num_actions(spec), networks)


ALGORITHM = Algorithm(
    name="dqn",
    description="double DQN: learns the mean of returns",
    loop="off_policy",
    actions=frozenset({"discrete"}),
    config=DQNConfig,
    make=make,
)
