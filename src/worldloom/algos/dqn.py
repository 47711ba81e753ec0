"""Double DQN (van Hasselt et al. 2016) with n-step returns and a target that follows slowly."""

from dataclasses import dataclass

import jax
from jaxtyping import Float, Int

from worldloom.algos.algorithm import DISCRETE, Algorithm
from worldloom.algos.off_policy import (
    LearnMetrics,
    TargetLearner,
    TargetNetworkAgent,
    TargetNetworkConfig,
)
from worldloom.core.checks import check_fields
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.layers import MLP
from worldloom.nn.networks import Network
from worldloom.nn.values import epsilon_greedy, huber, make_q_network, take_action, weighted


@dataclass(frozen=True)
class DQNConfig(TargetNetworkConfig):
    """hidden: widths of the layers between observation and values, of which there may be none,
    where the world brings no network of its own."""

    hidden: tuple[int, ...] = (64, 64)

    def __post_init__(self):
        super().__post_init__()
        if self.hidden:
            check_fields(self.name, self, at_least={"hidden": 1})


@dataclass(frozen=True)
class DQN(TargetNetworkAgent):
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    @property
    def network(self) -> Network:
        net = MLP((*self.config.hidden, self.num_actions))
        return make_q_network(self.networks, self.config, net)

    def init(self, key: Key, obs: PyTree) -> TargetLearner:
        """A learner for observations like obs (B, ...), with a target equal to its parameters."""
        return self.start(self.network.init(key, obs))

    def act(
        self, params: PyTree, obs: PyTree, key: Key, *, explore: Float[Array, ""] | float = 0.0
    ) -> tuple[Int[Array, " B"], Float[Array, "B actions"]]:
        """Actions and their values for obs (B, ...)."""
        q = self.network.apply(params, obs)
        return epsilon_greedy(q, key, explore, masked=self.networks.masked), q

    def loss(
        self, params: PyTree, target: PyTree, batch: Batch
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Huber loss with a double-Q target, and the mean value of the actions taken."""
        values = self.network.apply
        best = values(params, batch.next_obs).argmax(axis=-1)
        after = take_action(values(target, batch.next_obs), best)  # (B,)
        td_target = jax.lax.stop_gradient(batch.reward + batch.discount * after)
        q = take_action(values(params, batch.obs), batch.action)
        return weighted(huber(td_target - q), batch).mean(), q.mean()

    def update(
        self, learner: TargetLearner, batch: Batch, key: Key
    ) -> tuple[TargetLearner, LearnMetrics]:
        """One gradient step, then the target follows; nothing here is random."""
        return self.gradient_step(learner, batch)


ABOUT = ("dqn", "double DQN: learns the mean of returns", "off_policy", DISCRETE)
ALGORITHM = Algorithm(*ABOUT, DQNConfig, DQN.make)
