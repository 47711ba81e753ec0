"""ReBRAC (Tarasov et al. 2023): TD3+BC with two penalties of their own and critics that are normed.

Being unlike the data costs the actor by one factor and the critics' targets by another; a layer
norm keeps critics from growing where there are no data.
"""

from dataclasses import dataclass, field

import jax.numpy as jnp

from worldloom.algos.actor_critic import Metrics
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least
from worldloom.algos.offline import LinkedRows, bootstrapped
from worldloom.algos.offline_actor_critic import (
    DelayedActorCritic,
    DelayedConfig,
    DelayedHyper,
    DelayedLearner,
)
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights, critics, deterministic
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class ReBRACHyper(DelayedHyper):
    """Numbers that may differ between learners of one program.

    The paper chose its two penalties for each dataset among 0.001 to 0.1 (actor) and 0 to 0.1
    (critic) and learned at a rate of 1e-3 from batches of 1,024; here they are fixed, and the
    rate is that of batches of 256.
    """

    actor_penalty: float = at_least(0, 0.03)
    critic_penalty: float = at_least(0, 0.01)


@dataclass(frozen=True)
class ReBRACConfig(DelayedConfig):
    """Options of the algorithm."""

    hyper: ReBRACHyper = field(default_factory=ReBRACHyper)


@dataclass(frozen=True)
class ReBRAC(DelayedActorCritic):
    """The algorithm, as pure functions."""

    config: ReBRACConfig = field(default_factory=ReBRACConfig)
    critic_norm = True

    def target(self, learner: DelayedLearner, rows: LinkedRows, key: Key) -> Array:
        """What the critics shall say of rows, (B,) (eq. 4): less where the data did otherwise.

        The last row of a log that was cut has no next action to be held to.
        """
        next_value, action = self.next_value(learner, rows, key)
        unlike = jnp.square(action - rows.next_action).sum(-1)
        penalty = jnp.where(rows.followed, learner.hyper.critic_penalty * unlike, 0.0)
        return bootstrapped(rows, learner.hyper.gamma, next_value - penalty)

    def critic_loss(self, weights: Weights, rows: Rows, target: Array) -> tuple[Array, Metrics]:
        """Squared errors, summed over both critics; and how far values lie from their mean."""
        q = critics(weights, rows.obs, rows.action)
        loss = jnp.square(q - target).mean(-1).sum()
        return loss, {"critic_loss": loss, "q": q.mean(), "spread": jnp.abs(q - q.mean()).mean()}

    def actor_loss(
        self, weights: Weights, learner: DelayedLearner, rows: Rows, metrics: Metrics
    ) -> tuple[Array, Metrics]:
        """penalty |pi(s) - a|^2 - Q(s, pi(s)) / spread (eq. 3), Q the lesser of two.

        The paper divides by the mean of |Q|, and a constant that is added to all rewards decides
        how much values count. The spread (), their mean distance from their mean over what is in
        the data, does not change by that.
        """
        action = deterministic(weights, rows.obs)
        q = critics(learner.critic.params, rows.obs, action).min(0)
        clone = jnp.square(action - rows.action).sum(-1).mean()
        loss = learner.hyper.actor_penalty * clone - q.mean() / (metrics["spread"] + 1e-8)
        return loss, {"actor_loss": loss, "clone_error": clone}

    def policy(self, learner: DelayedLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the target actor, which errors of the critics move less."""
        return PolicyState(learner.target_actor, dataset.mean, dataset.std, deterministic)


ABOUT = ("rebrac", "TD3+BC that penalises actor and critic, layer norm", "offline", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, ReBRACConfig, ReBRAC.make)
