"""TD3+BC (Fujimoto & Gu 2021): TD3 whose actor is held to the data by a cloning term."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from worldloom.algos.actor_critic import Metrics
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least
from worldloom.algos.offline_actor_critic import (
    DelayedActorCritic,
    DelayedConfig,
    DelayedHyper,
    DelayedLearner,
)
from worldloom.core.types import Array
from worldloom.nn.offline import Weights, critic, deterministic, member
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class TD3BCHyper(DelayedHyper):
    """Numbers that may differ between learners of one program; the paper's."""

    alpha: float = at_least(0, 2.5)  # how much values count beside the data's actions


@dataclass(frozen=True)
class TD3BCConfig(DelayedConfig):
    """Options of the algorithm."""

    hyper: TD3BCHyper = field(default_factory=TD3BCHyper)


@dataclass(frozen=True)
class TD3BC(DelayedActorCritic):
    """The algorithm, as pure functions."""

    config: TD3BCConfig = field(default_factory=TD3BCConfig)

    def actor_loss(
        self, weights: Weights, learner: DelayedLearner, rows: Rows, metrics: Metrics
    ) -> tuple[Array, Metrics]:
        """-lambda Q(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 3 and 5).

        Q is the first critic.
        """
        action = deterministic(weights, rows.obs)
        q = critic(member(learner.critic.params, 0), rows.obs, action)
        scale = learner.hyper.alpha / jax.lax.stop_gradient(jnp.abs(q).mean() + 1e-8)
        clone = jnp.square(action - rows.action).mean()
        loss = clone - scale * q.mean()
        return loss, {"actor_loss": loss, "clone_error": clone}

    def policy(self, learner: DelayedLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the actor."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, deterministic)


ABOUT = ("td3bc", "TD3 with a cloning term in the actor", "offline", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, TD3BCConfig, TD3BC.make)
