"""Implicit Q-learning (Kostrikov et al. 2021): values of actions in the data alone.

V is an upper expectile of Q over the data's actions, so no action is ever asked for that was not
logged; the policy imitates the data's actions, the better the more.
"""

import math
from dataclasses import dataclass, field

import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos import actor_critic
from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    apply_gradients,
    compute_gradients,
    init_train_state,
)
from worldloom.algos.algorithm import Algorithm
from worldloom.algos.offline import OfflineAgent, OfflineConfig, as_arrays, bootstrapped
from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.types import Array, Key, PyTree
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


class IQLHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program; the paper's for locomotion."""

    actor_rate: float = 3e-4
    critic_rate: float = 3e-4
    value_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    expectile: float = 0.7
    beta: float = 3.0  # how much better an action must be to count e times as much
    largest_weight: float = 100.0


@dataclass(frozen=True)
class IQLConfig(OfflineConfig):
    """Options of the algorithm."""

    hyper: IQLHyper = field(default_factory=IQLHyper)

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            "iql",
            self.hyper,
            at_least={"beta": 0},
            positive=("actor_rate", "critic_rate", "value_rate", "largest_weight"),
            fractions=("gamma", "tau", "expectile"),
        )


class IQLLearner(struct.PyTreeNode):
    """All that is learned; the actor's params are {"mean": Weights, "log_std": (m,)}."""

    actor: TrainState
    critic: TrainState
    value: TrainState
    target_critic: Weights
    hyper: IQLHyper
    step: Array


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

    def init(
        self, key: Key, obs_size: int, action_size: int, hyper: IQLHyper | None = None
    ) -> IQLLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        actor_key, critic_key, value_key = draws.split(key, 3)
        hidden = self.config.hidden
        mean = make_mlp(actor_key, (obs_size, *hidden, action_size))
        critic = make_critics(critic_key, 2, obs_size, action_size, hidden)
        value = make_mlp(value_key, (obs_size, *hidden, 1))
        return IQLLearner(
            actor=init_train_state({"mean": mean, "log_std": jnp.zeros(action_size)}),
            critic=init_train_state(critic),
            value=init_train_state(value),
            target_critic=critic,
            hyper=as_arrays(hyper or self.config.hyper),
            step=jnp.int32(0),
        )

    # Losses ------------------------------------------------------------------------------------

    def value_loss(
        self, weights: Weights, rows: Rows, q: Array, expectile: Array
    ) -> tuple[Array, Metrics]:
        """V(s) becomes the expectile of Q(s, a) over the data's actions (eq. 5)."""
        value = mlp(weights, rows.obs)[:, 0]
        loss = expectile_loss(q - value, expectile).mean()
        return loss, {"value_loss": loss, "value": value.mean()}

    def critic_loss(self, weights: Weights, rows: Rows, target: Array) -> tuple[Array, Metrics]:
        """Squared errors to r + gamma V(s') (eq. 6), summed over both critics."""
        return actor_critic.critic_loss(weights, rows.obs, rows.action, target)

    def actor_loss(self, params: PyTree, rows: Rows, weight: Array) -> tuple[Array, Metrics]:
        """-weight log pi(a | s) (eq. 7), weight (B,)."""
        mean = deterministic(params["mean"], rows.obs)
        log_std = jnp.clip(params["log_std"], *LOG_STD_RANGE)
        z = (rows.action - mean) * jnp.exp(-log_std)
        log_prob = -(0.5 * z * z + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1)
        loss = -(weight * log_prob).mean()
        return loss, {"actor_loss": loss, "clone_error": jnp.square(mean - rows.action).mean()}

    # Update ------------------------------------------------------------------------------------

    def update(
        self, learner: IQLLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[IQLLearner, Metrics]:
        """One step of value, critics and actor on rows (B, ...); nothing is drawn."""
        hyper = learner.hyper
        # All three look at what was known before: the steps do not wait for each other.
        q = critics(learner.target_critic, rows.obs, rows.action).min(0)
        value = learner.value.params
        advantage = q - mlp(value, rows.obs)[:, 0]
        weight = jnp.minimum(jnp.exp(hyper.beta * advantage), hyper.largest_weight)
        target = bootstrapped(rows, hyper.gamma, mlp(value, rows.next_obs)[:, 0])
        value_grads, metrics = compute_gradients(self.value_loss, value, rows, q, hyper.expectile)
        critic_grads, critic_metrics = compute_gradients(
            self.critic_loss, learner.critic.params, rows, target
        )
        actor_grads, actor_metrics = compute_gradients(
            self.actor_loss, learner.actor.params, rows, weight
        )
        critic = apply_gradients(learner.critic, critic_grads, hyper.critic_rate)
        learner = learner.replace(
            actor=apply_gradients(learner.actor, actor_grads, hyper.actor_rate),
            critic=critic,
            value=apply_gradients(learner.value, value_grads, hyper.value_rate),
            target_critic=optax.incremental_update(critic.params, learner.target_critic, hyper.tau),
            step=learner.step + 1,
        )
        metrics |= critic_metrics | actor_metrics | {"weight": weight.mean()}
        return learner, metrics

    def policy(self, learner: IQLLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the mean action."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, mean_action)


ALGORITHM = Algorithm(
    name="iql",
    description="implicit Q-learning: values of actions in the data alone",
    loop="offline",
    actions=frozenset({"continuous"}),
    config=IQLConfig,
    make=lambda config, spec=None, networks=None: IQL(config),
)
