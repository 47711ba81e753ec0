"""The two frames that offline actor-critic algorithms are set in: TD3's and soft actor-critic's.

An algorithm's own file says what is particular to it: targets and losses.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.algos import actor_critic
from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    delayed_step,
    gradient_step,
    init_actor_critic,
    init_train_state,
    smoothed_action,
    soft_step,
)
from worldloom.algos.config import at_least, positive
from worldloom.algos.offline import (
    ActorCriticHyper,
    LinkedRows,
    OfflineAgent,
    OfflineConfig,
    OfflineLearner,
    bootstrapped,
)
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights, critics, squashed_mode
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows

# TD3 (Fujimoto et al. 2018) --------------------------------------------------------------------


class DelayedHyper(ActorCriticHyper):
    """Numbers of TD3."""

    policy_noise: float = at_least(0, 0.2)  # on the target's actions, of range [-1, 1]
    noise_clip: float = at_least(0, 0.5)


@dataclass(frozen=True, kw_only=True)
class DelayedConfig(OfflineConfig):
    """The actor and all targets move once in `policy_delay` updates."""

    policy_delay: int = at_least(1, 2)


class DelayedLearner(OfflineLearner, actor_critic.DelayedLearner):
    """All that is learned."""


class DelayedActorCritic(OfflineAgent):
    """TD3 on logged rows."""

    learner = DelayedLearner
    critic_norm = False  # whether critics have layer norms

    @property
    def period(self) -> int:
        return self.config.policy_delay

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        sizes = (obs_size, obs_size, action_size)
        norm = {"norm": self.critic_norm}
        fields = init_actor_critic(key, sizes, action_size, self.config.hidden, **norm)
        zeros = {"actor_loss": jnp.float32(0.0), "clone_error": jnp.float32(0.0)}
        return fields | {"target_actor": fields["actor"].params, "actor_metrics": zeros}

    def next_value(
        self, learner: DelayedLearner, rows: LinkedRows, key: Key
    ) -> tuple[Array, Array]:
        """min Q'(s', a'), (B,), and a' (B, m), the target actor's smoothed action."""
        hyper, obs = learner.hyper, rows.next_obs
        action = smoothed_action(
            learner.target_actor, obs, key, hyper.policy_noise, hyper.noise_clip
        )
        return critics(learner.target_critic, obs, action).min(0), action

    def target(self, learner: DelayedLearner, rows: LinkedRows, key: Key) -> Array:
        """What the critics shall say of rows, (B,): clipped double Q with smoothed actions."""
        return bootstrapped(rows, learner.hyper.gamma, self.next_value(learner, rows, key)[0])

    def critic_loss(self, weights: Weights, rows: Rows, target: Array) -> tuple[Array, Metrics]:
        """Squared errors, summed over both critics."""
        return actor_critic.critic_loss(weights, rows.obs, rows.action, target)

    def actor_loss(
        self, weights: Weights, learner: DelayedLearner, rows: Rows, metrics: Metrics
    ) -> tuple[Array, Metrics]:
        """The actor's loss, and `actor_loss` and `clone_error`; metrics: of the critics' step."""
        raise NotImplementedError

    def update(
        self, learner: DelayedLearner, rows: LinkedRows, key: Key, turn: int | None = None
    ) -> tuple[DelayedLearner, Metrics]:
        """One step of the critics on rows (B, ...), and in its turn one of the actor."""
        target = self.target(learner, rows, key)
        critic, metrics = gradient_step(
            learner.critic, learner.hyper.critic_rate, self.critic_loss, rows, target
        )
        learner = learner.replace(critic=critic, step=learner.step + 1)

        def actor_step(learner: DelayedLearner) -> DelayedLearner:
            return delayed_step(learner, learner.hyper, self.actor_loss, learner, rows, metrics)

        if turn is None:
            due = learner.step % self.period == 0
            learner = jax.lax.cond(due, actor_step, lambda learner: learner, learner)
        elif turn == self.period - 1:
            learner = actor_step(learner)
        return learner, metrics | learner.actor_metrics


# Soft actor-critic (Haarnoja et al. 2018b) -----------------------------------------------------


class SoftHyper(ActorCriticHyper):
    """Numbers of soft actor-critic; the papers' for locomotion."""

    temperature_rate: float = positive(3e-4)
    entropy: float = -1.0  # target entropy of the policy, for each dimension of the action


class SoftLearner(OfflineLearner, actor_critic.SoftLearner):
    """All that is learned."""


class SoftActorCritic(OfflineAgent):
    """Soft actor-critic on logged rows, with an adapted temperature."""

    learner = SoftLearner

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        sizes = (obs_size, obs_size, action_size)
        count = {"count": getattr(self.config, "num_critics", 2)}
        fields = init_actor_critic(key, sizes, 2 * action_size, self.config.hidden, **count)
        return fields | {"log_temperature": init_train_state(jnp.float32(0.0))}

    def finish_update(
        self,
        learner: SoftLearner,
        critic: TrainState,
        rows: Rows,
        noise: Array,
        metrics: Metrics,
    ) -> tuple[SoftLearner, Metrics]:
        """One step of actor and temperature, given that of the critics and its metrics.

        noise (B, m) draws the actor's actions.
        """
        hyper, obs = learner.hyper, rows.obs
        target_entropy = hyper.entropy * rows.action.shape[-1]
        learner, actor_metrics = soft_step(learner, critic, hyper, target_entropy, obs, obs, noise)
        return learner.replace(step=learner.step + 1), metrics | actor_metrics

    def policy(self, learner: SoftLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the squashed mean."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, squashed_mode)
