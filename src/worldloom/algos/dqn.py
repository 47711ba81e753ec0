"""Double DQN (van Hasselt et al. 2016) with n-step returns and a target that follows slowly."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from worldloom.algos.algorithm import DISCRETE, Algorithm
from worldloom.algos.config import choice
from worldloom.algos.off_policy import (
    LearnMetrics,
    TargetLearner,
    TargetNetworkAgent,
    TargetNetworkConfig,
)
from worldloom.core.checks import check_fields
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.layers import ACTIVATIONS, MLP
from worldloom.nn.networks import Network
from worldloom.nn.values import epsilon_greedy, huber, make_q_network, take_action, weighted


@dataclass(frozen=True)
class DQNConfig(TargetNetworkConfig):
    """Options of the algorithm.

    loss: of the temporal-difference error; "huber" is linear beyond 1, so where rewards are not of
    that size it learns medians, "squared" always means. hidden (widths, of which there may be
    none) and activation are of the layers between observation and values, where the world brings
    no network of its own.
    """

    loss: Literal["huber", "squared"] = choice("huber", ("huber", "squared"))
    hidden: tuple[int, ...] = (64, 64)
    activation: str = choice("relu", tuple(ACTIVATIONS))

    def __post_init__(self):
        super().__post_init__()
        if self.hidden:
            check_fields(self.name, self, at_least={"hidden": 1})


@dataclass(frozen=True)
class DQN(TargetNetworkAgent):
    """One agent as pure functions; `worldloom.algos.independent` lifts it over many."""

    @property
    def network(self) -> Network:
        config = self.config
        net = MLP((*config.hidden, self.num_actions), config.activation)
        return make_q_network(self.networks, config, net)

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
        """Loss with a double-Q target, and the mean value of the actions taken."""
        values = self.network.apply
        best = values(params, batch.next_obs).argmax(axis=-1)
        after = take_action(values(target, batch.next_obs), best)  # (B,)
        td_target = jax.lax.stop_gradient(batch.reward + batch.discount * after)
        q = take_action(values(params, batch.obs), batch.action)
        each = huber if self.config.loss == "huber" else lambda error: 0.5 * jnp.square(error)
        return weighted(each(td_target - q), batch).mean(), q.mean()

    def update(
        self, learner: TargetLearner, batch: Batch, key: Key
    ) -> tuple[TargetLearner, LearnMetrics]:
        """One gradient step, then the target follows; nothing here is random."""
        return self.gradient_step(learner, batch)


ABOUT = ("dqn", "double DQN: learns the mean of returns", "off_policy", DISCRETE)
ALGORITHM = Algorithm(*ABOUT, DQNConfig, DQN.make)
