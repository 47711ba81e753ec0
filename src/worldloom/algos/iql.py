"""Implicit Q-learning (Kostrikov et al. 2021): values of actions in the data alone.

V is an upper expectile of Q over the data's actions, so no action is ever asked for that was not
logged; the policy imitates the data's actions, the better the more.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp
import optax

from worldloom.algos import actor_critic
from worldloom.algos.actor_critic import Metrics, TrainState, gradient_step, init_train_state
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least, fraction, positive
from worldloom.algos.offline import (
    ActorCriticHyper,
    OfflineAgent,
    OfflineConfig,
    OfflineLearner,
    bootstrapped,
)
from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.distributions import DiagonalGaussian
from worldloom.nn.offline import (
    LOG_STD_RANGE,
    Weights,
    critics,
    deterministic,
    make_critics,
    make_mlp,
    mlp,
)
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class IQLHyper(ActorCriticHyper):
    """Numbers that may differ between learners of one program; the paper's for locomotion."""

    value_rate: float = positive(3e-4)
    expectile: float = fraction(0.7)
    beta: float = at_least(0, 3.0)  # how much better an action must be to count e times as much
    largest_weight: float = positive(100.0)


@dataclass(frozen=True)
class IQLConfig(OfflineConfig):
    """Options of the algorithm."""

    hyper: IQLHyper = field(default_factory=IQLHyper)


class IQLLearner(OfflineLearner):
    """All that is learned; the actor's params are {"mean": Weights, "log_std": (m,)}."""

    actor: TrainState
    critic: TrainState
    value: TrainState
    target_critic: Weights


def expectile_loss(gap: Array, expectile: Array | float) -> Array:
    """|expectile - 1(gap < 0)| gap^2 (eq. 5), of the shape of `gap`."""
    return jnp.where(gap < 0.0, 1.0 - expectile, expectile) * jnp.square(gap)


def mean_action(params: PyTree, obs: Array) -> Array:
    """The mean action (B, m) for obs (B, n)."""
    return deterministic(params["mean"], obs)


@dataclass(frozen=True)
class IQL(OfflineAgent):
    """The algorithm, as pure functions."""

    config: IQLConfig = field(default_factory=IQLConfig)

    learner = IQLLearner

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        actor_key, critic_key, value_key = draws.split(key, 3)
        hidden = self.config.hidden
        mean = make_mlp(actor_key, (obs_size, *hidden, action_size))
        critic = make_critics(critic_key, obs_size, action_size, hidden)
        return {
            "actor": init_train_state({"mean": mean, "log_std": jnp.zeros(action_size)}),
            "critic": init_train_state(critic),
            "value": init_train_state(make_mlp(value_key, (obs_size, *hidden, 1))),
            "target_critic": critic,
        }

    # Losses ------------------------------------------------------------------------------------

    def value_loss(
        self, weights: Weights, rows: Rows, q: Array, expectile: Array
    ) -> tuple[Array, Metrics]:
        """V(s) becomes the expectile of Q(s, a) over the data's actions (eq. 5)."""
        value = mlp(weights, rows.obs)[:, 0]
        loss = expectile_loss(q - value, expectile).mean()
        return loss, {"value_loss": loss, "value": value.mean()}

    def actor_loss(self, params: PyTree, rows: Rows, weight: Array) -> tuple[Array, Metrics]:
        """-weight log pi(a | s) (eq. 7), weight (B,)."""
        mean = deterministic(params["mean"], rows.obs)
        policy = DiagonalGaussian(mean, jnp.clip(params["log_std"], *LOG_STD_RANGE))
        loss = -(weight * policy.log_prob(rows.action)).mean()
        return loss, {"actor_loss": loss, "clone_error": jnp.square(mean - rows.action).mean()}

    # Update ------------------------------------------------------------------------------------

    def update(
        self, learner: IQLLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[IQLLearner, Metrics]:
        """One step of value, critics and actor on rows (B, ...); nothing is drawn."""
        hyper = learner.hyper
        # All three look at what was known before: the steps do not wait for each other.
        q = critics(learner.target_critic, rows.obs, rows.action).min(0)
        value_of = partial(mlp, learner.value.params)
        advantage = q - value_of(rows.obs)[:, 0]
        weight = jnp.minimum(jnp.exp(hyper.beta * advantage), hyper.largest_weight)
        target = bootstrapped(rows, hyper.gamma, value_of(rows.next_obs)[:, 0])
        critic, critic_metrics = gradient_step(
            learner.critic,
            hyper.critic_rate,
            actor_critic.critic_loss,
            rows.obs,
            rows.action,
            target,  # r + gamma V(s') (eq. 6)
        )
        actor, actor_metrics = gradient_step(
            learner.actor, hyper.actor_rate, self.actor_loss, rows, weight
        )
        value, metrics = gradient_step(
            learner.value, hyper.value_rate, self.value_loss, rows, q, hyper.expectile
        )
        learner = learner.replace(
            actor=actor,
            critic=critic,
            value=value,
            target_critic=optax.incremental_update(critic.params, learner.target_critic, hyper.tau),
            step=learner.step + 1,
        )
        metrics |= critic_metrics | actor_metrics | {"weight": weight.mean()}
        return learner, metrics

    def policy(self, learner: IQLLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the mean action."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, mean_action)


ABOUT = ("iql", "implicit Q-learning: values of actions in the data alone", "offline", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, IQLConfig, IQL.make)
