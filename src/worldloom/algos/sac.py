"""Soft actor-critic with an adapted temperature (Haarnoja et al. 2018b).

The policy maximises reward and its own entropy; the temperature that weighs the two is moved so
that the entropy stays at a target. Equation numbers are those of arXiv:1812.05905.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from worldloom.algos.actor_critic import (
    Metrics,
    SoftLearner,
    critic_loss,
    gradient_step,
    init_train_state,
    soft_step,
    soft_value,
)
from worldloom.algos.algorithm import CONTINUOUS, Algorithm
from worldloom.algos.config import at_least, positive
from worldloom.algos.continuous import (
    ActorParams,
    ContinuousAgent,
    ContinuousConfig,
    ContinuousLearner,
)
from worldloom.core import draws
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.offline import gaussian, squash, squashed_mode


@dataclass(frozen=True)
class SACConfig(ContinuousConfig):
    """target_entropy: in nats, for each dimension of the action."""

    temperature_rate: float = positive(3e-4)
    initial_temperature: float = positive(1.0)
    target_entropy: float = at_least(-math.inf, -1.0)


class SACLearner(ContinuousLearner, SoftLearner):
    """All that is learned."""


@dataclass(frozen=True)
class SAC(ContinuousAgent):
    """The algorithm as pure functions."""

    config: SACConfig
    mean_action = staticmethod(squashed_mode)

    def init(self, key: Key, obs: PyTree) -> SACLearner:
        """A fresh learner for observations like obs (B, ...)."""
        log_temperature = jnp.log(jnp.float32(self.config.initial_temperature))
        return SACLearner(
            **self.init_fields(key, obs, 2 * self.action_size),
            log_temperature=init_train_state(log_temperature),
        )

    # Acting ------------------------------------------------------------------------------------

    def act(
        self, params: ActorParams, obs: PyTree, key: Key, *, explore: Array | float = 0.0
    ) -> tuple[Array, Array]:
        """Actions (B, m) for obs (B, ...), and their log-densities (B,).

        explore: what the noise of the policy is multiplied by; 0 is the mean action.
        """
        mean, log_std = gaussian(params.actor, self.inputs(params.normaliser, obs)[0])
        return squash(mean, log_std, explore * draws.normal(key, mean.shape))

    # Learning ----------------------------------------------------------------------------------

    def target(self, learner: SACLearner, batch: Batch, noise: Array) -> Array:
        """r + gamma V(s'), (B,), V of the target critics (eq. 2 and 3)."""
        inputs = self.inputs(learner.normaliser, batch.next_obs)
        next_value, _ = soft_value(
            learner.actor.params, learner.target_critic, learner.temperature, *inputs, noise
        )
        return self.config.reward_scale * batch.reward + batch.discount * next_value

    def update(self, learner: SACLearner, batch: Batch, key: Key) -> tuple[SACLearner, Metrics]:
        """One step of critics (eq. 5), actor (eq. 9) and temperature (eq. 18)."""
        config = self.config
        next_noise, noise = draws.normal(key, (2, *batch.action.shape))
        target = self.target(learner, batch, next_noise)
        inputs, critic_inputs = self.inputs(learner.normaliser, batch.obs)
        critic, metrics = gradient_step(
            learner.critic, config.critic_rate, critic_loss, critic_inputs, batch.action, target
        )
        target_entropy = config.target_entropy * self.action_size
        learner, actor_metrics = soft_step(
            learner, critic, config, target_entropy, inputs, critic_inputs, noise
        )
        return learner.replace(updates=learner.updates + 1), metrics | actor_metrics


ABOUT = ("sac", "soft actor-critic: rewards and entropy, from replay", "off_policy", CONTINUOUS)
ALGORITHM = Algorithm(*ABOUT, SACConfig, SAC.make)
