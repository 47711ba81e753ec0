"""TD3+BC (Fujimoto & Gu 2021): TD3 whose actor is held to the data by a cloning term."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.offline import (
    Metrics,
    Trained,
    as_arrays,
    averaged,
    bootstrapped,
    check_numbers,
    check_sizes,
    compute_gradients,
    descend,
    trained,
)
from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.offline import (
    Weights,
    critic,
    critics,
    deterministic,
    make_critics,
    make_mlp,
    member,
)
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class TD3BCHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program; the paper's."""

    actor_rate: float = 3e-4
    critic_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    alpha: float = 2.5  # how much values count beside the data's actions
    policy_noise: float = 0.2  # on the target's actions, of range [-1, 1]
    noise_clip: float = 0.5


@dataclass(frozen=True)
class TD3BCConfig:
    """The actor and all targets move once in `policy_delay` updates."""

    hidden: tuple[int, ...] = (256, 256)
    policy_delay: int = 2
    hyper: TD3BCHyper = field(default_factory=TD3BCHyper)

    def __post_init__(self):
        check_sizes("td3bc", self, "policy_delay")
        check_numbers(
            "td3bc", self.hyper, positive=("actor_rate", "critic_rate"),
            at_least_0=("alpha", "policy_noise", "noise_clip"), shares=("gamma", "tau"),
        )  # fmt: skip


class TD3BCLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: Trained
    critic: Trained
    target_actor: Weights
    target_critic: Weights
    hyper: TD3BCHyper
    step: Array
    actor_metrics: Metrics  # of the newest step of the actor


@dataclass(frozen=True)
class TD3BC:
    """The algorithm, as pure functions."""

    config: TD3BCConfig = field(default_factory=TD3BCConfig)

    @property
    def period(self) -> int:
        return self.config.policy_delay

    def init(
        self, key: Key, obs_size: int, action_size: int, hyper: TD3BCHyper | None = None
    ) -> TD3BCLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        actor_key, critic_key = draws.split(key)
        hidden = self.config.hidden
        actor = make_mlp(actor_key, (obs_size, *hidden, action_size))
        critic = make_critics(critic_key, 2, obs_size, action_size, hidden)
        return TD3BCLearner(
            trained(actor), trained(critic), actor, critic,
            as_arrays(hyper or self.config.hyper), jnp.int32(0),
            {"actor_loss": jnp.float32(0.0), "clone_error": jnp.float32(0.0)},
        )  # fmt: skip

    # Losses ------------------------------------------------------------------------------------

    def target(self, learner: TD3BCLearner, rows: Rows, key: Key) -> Array:
        """What the critics shall say of rows, (B,): clipped double Q with smoothed actions."""
        hyper = learner.hyper
        action = deterministic(learner.target_actor, rows.next_obs)
        noise = hyper.policy_noise * draws.normal(key, action.shape)
        noise = jnp.clip(noise, -hyper.noise_clip, hyper.noise_clip)
        action = jnp.clip(action + noise, -1.0, 1.0)
        next_value = critics(learner.target_critic, rows.next_obs, action).min(0)
        return bootstrapped(rows, hyper.gamma, next_value)

    def critic_loss(self, weights: Weights, rows: Rows, target: Array) -> tuple[Array, Metrics]:
        """Squared errors, summed over both critics."""
        q = critics(weights, rows.obs, rows.action)
        loss = jnp.square(q - target).mean(-1).sum()
        return loss, {"critic_loss": loss, "q": q.mean()}

    def actor_loss(
        self, weights: Weights, rows: Rows, first_critic: Weights, alpha: Array
    ) -> tuple[Array, Metrics]:
        """-lambda Q(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 3 and 5)."""
        action = deterministic(weights, rows.obs)
        q = critic(first_critic, rows.obs, action)
        scale = alpha / jax.lax.stop_gradient(jnp.abs(q).mean() + 1e-8)
        clone = jnp.square(action - rows.action).mean()
        loss = clone - scale * q.mean()
        return loss, {"actor_loss": loss, "clone_error": clone}

    # Update ------------------------------------------------------------------------------------

    def update(
        self, learner: TD3BCLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[TD3BCLearner, Metrics]:
        """One step of the critics on rows (B, ...), and in its turn one of the actor."""
        target = self.target(learner, rows, key)
        grads, metrics = compute_gradients(self.critic_loss, learner.critic.params, rows, target)
        critic = descend(learner.critic, grads, learner.hyper.critic_rate)
        learner = learner.replace(critic=critic, step=learner.step + 1)
        if turn is None:
            due = learner.step % self.config.policy_delay == 0
            learner = jax.lax.cond(due, self._delayed, lambda learner, _: learner, learner, rows)
        elif turn == self.config.policy_delay - 1:
            learner = self._delayed(learner, rows)
        return learner, metrics | learner.actor_metrics

    def _delayed(self, learner: TD3BCLearner, rows: Rows) -> Any:
        hyper, critic = learner.hyper, learner.critic.params
        grads, metrics = compute_gradients(
            self.actor_loss, learner.actor.params, rows, member(critic, 0), hyper.alpha
        )
        actor = descend(learner.actor, grads, hyper.actor_rate)
        return learner.replace(
            actor=actor,
            target_actor=averaged(learner.target_actor, actor.params, hyper.tau),
            target_critic=averaged(learner.target_critic, critic, hyper.tau),
            actor_metrics=metrics,
        )

    def policy(self, learner: TD3BCLearner, dataset: Dataset) -> PolicyState:
        """What can be executed."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, deterministic)
