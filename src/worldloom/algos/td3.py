"""Twin delayed deep deterministic policy gradients, TD3 (Fujimoto et al. 2018).

Three answers to values that are too high: the lesser of two critics is what targets are made of,
the actor moves less often than the critics, and targets are smoothed over similar actions.
Equation numbers are those of arXiv:1802.09477.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from worldloom.algos.actor_critic import (
    DelayedLearner,
    Metrics,
    critic_loss,
    delayed_step,
    gradient_step,
    own_buffers,
    smoothed_action,
)
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least
from worldloom.algos.continuous import (
    ActorParams,
    ContinuousAgent,
    ContinuousConfig,
    ContinuousLearner,
)
from worldloom.core import draws
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.offline import Weights, critic, critics, deterministic, member


@dataclass(frozen=True)
class TD3Config(ContinuousConfig):
    """The actor and all targets move once in `policy_delay` updates.

    exploration_noise: deviation of what is added to actions that are played. policy_noise: of what
    is added to the target's actions, clipped to `noise_clip`.
    """

    policy_delay: int = at_least(1, 2)
    exploration_noise: float = at_least(0, 0.1)
    policy_noise: float = at_least(0, 0.2)
    noise_clip: float = at_least(0, 0.5)


class TD3Learner(ContinuousLearner, DelayedLearner):
    """All that is learned."""


@dataclass(frozen=True)
class TD3(ContinuousAgent):
    """The algorithm as pure functions."""

    config: TD3Config
    mean_action = staticmethod(deterministic)

    def init(self, key: Key, obs: PyTree) -> TD3Learner:
        """A fresh learner for observations like obs (B, ...)."""
        fields = self.init_fields(key, obs, self.action_size)
        return TD3Learner(
            **fields,
            target_actor=own_buffers(fields["actor"].params),
            actor_metrics={"actor_loss": jnp.float32(0.0)},
        )

    # Acting ------------------------------------------------------------------------------------

    def act(
        self, params: ActorParams, obs: PyTree, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Actions (B, m) for obs (B, ...), and what they were before noise was added.

        explore: what the exploration noise is multiplied by; 0 is the deterministic action.
        """
        action = deterministic(params.actor, self.inputs(params.normaliser, obs)[0])
        noise = explore * self.config.exploration_noise * draws.normal(key, action.shape)
        return jnp.clip(action + noise, -1.0, 1.0), action

    # Learning ----------------------------------------------------------------------------------

    def target(self, learner: TD3Learner, batch: Batch, key: Key) -> Array:
        """r + gamma min Q'(s', pi'(s') + noise), (B,) (eq. 10 and 15)."""
        config = self.config
        inputs, critic_inputs = self.inputs(learner.normaliser, batch.next_obs)
        action = smoothed_action(
            learner.target_actor, inputs, key, config.policy_noise, config.noise_clip
        )
        next_value = critics(learner.target_critic, critic_inputs, action).min(0)
        return config.reward_scale * batch.reward + batch.discount * next_value

    def actor_loss(
        self, actor: Weights, inputs: Array, critic_inputs: Array, first_critic: Weights
    ) -> tuple[Array, Metrics]:
        """-Q(s, pi(s)), of the first critic: the deterministic policy gradient (eq. 1)."""
        loss = -critic(first_critic, critic_inputs, deterministic(actor, inputs)).mean()
        return loss, {"actor_loss": loss}

    def update(self, learner: TD3Learner, batch: Batch, key: Key) -> tuple[TD3Learner, Metrics]:
        """One step of the critics and, once in `policy_delay` updates, of the actor."""
        config, target = self.config, self.target(learner, batch, key)
        inputs, critic_inputs = self.inputs(learner.normaliser, batch.obs)
        critic, metrics = gradient_step(
            learner.critic, config.critic_rate, critic_loss, critic_inputs, batch.action, target
        )
        learner = learner.replace(critic=critic, updates=learner.updates + 1)

        def actor_step(learner: TD3Learner) -> TD3Learner:
            first_critic = member(critic.params, 0)
            return delayed_step(
                learner, config, self.actor_loss, inputs, critic_inputs, first_critic
            )

        due = learner.updates % config.policy_delay == 0
        learner = jax.lax.cond(due, actor_step, lambda learner: learner, learner)
        return learner, metrics | learner.actor_metrics


ABOUT = ("td3", "twin delayed deterministic policy gradients", "off_policy", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, TD3Config, TD3.make)
