"""Soft actor-critic with an adapted temperature (Haarnoja et al. 2018b).

The policy maximises reward and its own entropy; the temperature that weighs the two is moved so
that the entropy stays at a target. Equation numbers are those of arXiv:1812.05905.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    adapt_temperature,
    apply_gradients,
    compute_gradients,
    critic_loss,
    init_train_state,
    soft_actor_loss,
    soft_value,
)
from worldloom.algos.algorithm import Algorithm
from worldloom.algos.continuous import (
    ActorParams,
    ContinuousAgent,
    ContinuousConfig,
    action_size,
    own_buffers,
)
from worldloom.core import draws
from worldloom.core.checks import check_fields
from worldloom.core.protocols import EnvSpec
from worldloom.core.types import Array, Batch, Key, PyTree
from worldloom.nn.networks import Networks
from worldloom.nn.normaliser import Normaliser
from worldloom.nn.offline import Weights, gaussian, make_critics, make_mlp, squash, squashed_mode


@dataclass(frozen=True)
class SACConfig(ContinuousConfig):
    """Options of the algorithm; the paper's, with a smaller memory.

    target_entropy: in nats, for each dimension of the action.
    """

    temperature_rate: float = 3e-4
    initial_temperature: float = 1.0
    target_entropy: float = -1.0

    def __post_init__(self):
        super().__post_init__()
        check_fields(
            "sac",
            self,
            at_least={"target_entropy": -math.inf},
            positive=("temperature_rate", "initial_temperature"),
        )


class SACLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: TrainState
    critic: TrainState
    log_temperature: TrainState
    target_critic: Weights
    normaliser: Normaliser | None
    updates: Array

    @property
    def params(self) -> ActorParams:
        return ActorParams(self.actor.params, self.normaliser)


@dataclass(frozen=True)
class SAC(ContinuousAgent):
    """The algorithm as pure functions."""

    config: SACConfig

    def init(self, key: Key, obs: PyTree) -> SACLearner:
        """A fresh learner for observations like obs (B, ...)."""
        actor_key, critic_key = draws.split(key)
        hidden, size = self.config.hidden, self.action_size
        inputs, critic_inputs = self.inputs(None, obs)
        actor = make_mlp(actor_key, (inputs.shape[-1], *hidden, 2 * size))
        critic = make_critics(critic_key, 2, critic_inputs.shape[-1], size, hidden)
        log_temperature = jnp.log(jnp.float32(self.config.initial_temperature))
        return SACLearner(
            actor=init_train_state(actor),
            critic=init_train_state(critic),
            log_temperature=init_train_state(log_temperature),
            target_critic=own_buffers(critic),
            normaliser=self.make_normaliser(obs),
            updates=jnp.int32(0),
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

    def mean_action(self, actor: Weights, inputs: Array) -> Array:
        """The squashed mean (B, m) for the actor's inputs (B, n)."""
        return squashed_mode(actor, inputs)

    # Learning ----------------------------------------------------------------------------------

    def target(self, learner: SACLearner, batch: Batch, noise: Array, temperature: Array) -> Array:
        """r + gamma V(s'), (B,), V of the target critics (eq. 2 and 3)."""
        inputs, critic_inputs = self.inputs(learner.normaliser, batch.next_obs)
        actor, critic = learner.actor.params, learner.target_critic
        next_value = soft_value(actor, inputs, noise, critic, critic_inputs, temperature)
        return self.config.reward_scale * batch.reward + batch.discount * next_value

    def update(self, learner: SACLearner, batch: Batch, key: Key) -> tuple[SACLearner, Metrics]:
        """One step of critics (eq. 5), actor (eq. 9) and temperature (eq. 18)."""
        config, critic = self.config, learner.critic.params
        temperature = jnp.exp(learner.log_temperature.params)
        next_noise, noise = draws.normal(key, (2, *batch.action.shape))
        target = self.target(learner, batch, next_noise, temperature)
        inputs, critic_inputs = self.inputs(learner.normaliser, batch.obs)
        critic_grads, metrics = compute_gradients(
            critic_loss, critic, critic_inputs, batch.action, target
        )
        actor_grads, actor_metrics = compute_gradients(
            soft_actor_loss,
            learner.actor.params,
            inputs,
            noise,
            critic,
            critic_inputs,
            temperature,
        )
        new_critic = apply_gradients(learner.critic, critic_grads, config.critic_rate)
        learner = learner.replace(
            actor=apply_gradients(learner.actor, actor_grads, config.actor_rate),
            critic=new_critic,
            log_temperature=adapt_temperature(
                learner.log_temperature,
                actor_metrics["entropy"],
                config.target_entropy * self.action_size,
                config.temperature_rate,
            ),
            target_critic=optax.incremental_update(
                new_critic.params, learner.target_critic, config.tau
            ),
            updates=learner.updates + 1,
        )
        return learner, metrics | actor_metrics | {"temperature": temperature}


def make(config: SACConfig, spec: EnvSpec, networks: Networks) -> SAC:
    """The agent for a world of `spec`."""
    return SAC(config, action_size("sac", spec), networks)


ALGORITHM = Algorithm(
    name="sac",
    description="soft actor-critic: rewards and entropy, from replay",
    loop="off_policy",
    actions=frozenset({"continuous"}),
    config=SACConfig,
    make=make,
)
