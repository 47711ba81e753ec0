"""ReBRAC (Tarasov et al. 2023): TD3+BC with two penalties of their own and critics that are normed.

Being unlike the data costs the actor by one factor and the critics' targets by another; a layer
norm keeps critics from growing where there are no data.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.algos.offline import (
    LinkedRows,
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
from worldloom.nn.offline import Weights, critics, deterministic, make_critics, make_mlp
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class ReBRACHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program.

    The paper chose its two penalties for each dataset among 0.001 to 0.1 (actor) and 0 to 0.1
    (critic) and learned at a rate of 1e-3 from batches of 1,024; here they are fixed, and the
    rate is that of batches of 256.
    """

    actor_rate: float = 3e-4
    critic_rate: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    actor_penalty: float = 0.03
    critic_penalty: float = 0.01
    policy_noise: float = 0.2
    noise_clip: float = 0.5


@dataclass(frozen=True)
class ReBRACConfig:
    """The actor and all targets move once in `policy_delay` updates."""

    hidden: tuple[int, ...] = (256, 256)
    policy_delay: int = 2
    hyper: ReBRACHyper = field(default_factory=ReBRACHyper)

    def __post_init__(self):
        check_sizes("rebrac", self, "policy_delay")
        check_numbers(
            "rebrac", self.hyper, positive=("actor_rate", "critic_rate"),
            at_least_0=("actor_penalty", "critic_penalty", "policy_noise", "noise_clip"),
            shares=("gamma", "tau"),
        )  # fmt: skip


class ReBRACLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: Trained
    critic: Trained
    target_actor: Weights
    target_critic: Weights
    hyper: ReBRACHyper
    step: Array
    actor_metrics: Metrics  # of the newest step of the actor


@dataclass(frozen=True)
class ReBRAC:
    """The algorithm, as pure functions."""

    config: ReBRACConfig = field(default_factory=ReBRACConfig)

    @property
    def period(self) -> int:
        return self.config.policy_delay

    def init(
        self, key: Key, obs_size: int, action_size: int, hyper: ReBRACHyper | None = None
    ) -> ReBRACLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        actor_key, critic_key = draws.split(key)
        hidden = self.config.hidden
        actor = make_mlp(actor_key, (obs_size, *hidden, action_size))
        critic = make_critics(critic_key, 2, obs_size, action_size, hidden, norm=True)
        return ReBRACLearner(
            trained(actor), trained(critic), actor, critic,
            as_arrays(hyper or self.config.hyper), jnp.int32(0),
            {"actor_loss": jnp.float32(0.0), "clone_error": jnp.float32(0.0)},
        )  # fmt: skip

    # Losses ------------------------------------------------------------------------------------

    def target(self, learner: ReBRACLearner, rows: LinkedRows, key: Key) -> Array:
        """What the critics shall say of rows, (B,) (eq. 4): less where the data did otherwise.

        The last row of a log that was cut has no next action to be held to.
        """
        hyper = learner.hyper
        action = deterministic(learner.target_actor, rows.next_obs)
        noise = hyper.policy_noise * draws.normal(key, action.shape)
        noise = jnp.clip(noise, -hyper.noise_clip, hyper.noise_clip)
        action = jnp.clip(action + noise, -1.0, 1.0)
        next_value = critics(learner.target_critic, rows.next_obs, action).min(0)
        unlike = jnp.square(action - rows.next_action).sum(-1)
        penalty = jnp.where(rows.followed, hyper.critic_penalty * unlike, 0.0)
        return bootstrapped(rows, hyper.gamma, next_value - penalty)

    def critic_loss(self, weights: Weights, rows: Rows, target: Array) -> tuple[Array, Metrics]:
        """Squared errors, summed over both critics; and how far values lie from their mean."""
        q = critics(weights, rows.obs, rows.action)
        loss = jnp.square(q - target).mean(-1).sum()
        return loss, {"critic_loss": loss, "q": q.mean(), "spread": jnp.abs(q - q.mean()).mean()}

    def actor_loss(
        self, weights: Weights, rows: Rows, critic: Weights, spread: Array, penalty: Array
    ) -> tuple[Array, Metrics]:
        """penalty |pi(s) - a|^2 - Q(s, pi(s)) / spread (eq. 3), Q the lesser of two.

        The paper divides by the mean of |Q|, and a constant that is added to all rewards decides
        how much values count. The spread (), their mean distance from their mean over what is in
        the data, does not change by that.
        """
        action = deterministic(weights, rows.obs)
        q = critics(critic, rows.obs, action).min(0)
        clone = jnp.square(action - rows.action).sum(-1).mean()
        loss = penalty * clone - q.mean() / (spread + 1e-8)
        return loss, {"actor_loss": loss, "clone_error": clone}

    # Update ------------------------------------------------------------------------------------

    def update(
        self, learner: ReBRACLearner, rows: LinkedRows, key: Key, turn: int | None = None
    ) -> tuple[ReBRACLearner, Metrics]:
        """One step of the critics on rows (B, ...), and in its turn one of the actor."""
        target = self.target(learner, rows, key)
        grads, metrics = compute_gradients(self.critic_loss, learner.critic.params, rows, target)
        critic = descend(learner.critic, grads, learner.hyper.critic_rate)
        learner = learner.replace(critic=critic, step=learner.step + 1)
        if turn is None:
            due = learner.step % self.config.policy_delay == 0
            spread = metrics["spread"]
            learner = jax.lax.cond(
                due, self._delayed, lambda learner, *_: learner, learner, rows, spread
            )
        elif turn == self.config.policy_delay - 1:
            learner = self._delayed(learner, rows, metrics["spread"])
        return learner, metrics | learner.actor_metrics

    def _delayed(self, learner: ReBRACLearner, rows: Rows, spread: Array) -> Any:
        hyper, critic = learner.hyper, learner.critic.params
        grads, metrics = compute_gradients(
            self.actor_loss, learner.actor.params, rows, critic, spread, hyper.actor_penalty
        )
        actor = descend(learner.actor, grads, hyper.actor_rate)
        return learner.replace(
            actor=actor,
            target_actor=averaged(learner.target_actor, actor.params, hyper.tau),
            target_critic=averaged(learner.target_critic, critic, hyper.tau),
            actor_metrics=metrics,
        )

    def policy(self, learner: ReBRACLearner, dataset: Dataset) -> PolicyState:
        """What can be executed: the actor's average, which errors of the critics move less."""
        return PolicyState(learner.target_actor, dataset.mean, dataset.std, deterministic)
