"""Twin delayed deep deterministic policy gradients, TD3 (Fujimoto et al. 2018).

Three answers to values that are too high: the lesser of two critics is what targets are made of,
the actor moves less often than the critics, and targets are smoothed over similar actions.
Equation numbers are those of arXiv:1802.09477.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    apply_gradients,
    compute_gradients,
    critic_loss,
    init_train_state,
    smoothed_action,
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
from worldloom.nn.offline import (
    Weights,
    critic,
    critics,
    deterministic,
    make_critics,
    make_mlp,
    member,
)


@dataclass(frozen=True)
class TD3Config(ContinuousConfig):
    """Options of the algorithm; the paper's, with a smaller memory.

    The actor and all targets move once in `policy_delay` updates. exploration_noise: deviation of
    what is added to actions that are played. policy_noise: of what is added to the target's
    actions, clipped to `noise_clip`.
    """

    policy_delay: int = 2
    exploration_noise: float = 0.1
    policy_noise: float = 0.2
    noise_clip: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        noises = ("exploration_noise", "policy_noise", "noise_clip")
        check_fields("td3", self, at_least={"policy_delay": 1} | dict.fromkeys(noises, 0))


class TD3Learner(struct.PyTreeNode):
    """All that is learned."""

    actor: TrainState
    critic: TrainState
    target_actor: Weights
    target_critic: Weights
    normaliser: Normaliser | None
    updates: Array
    actor_metrics: Metrics  # of the newest step of the actor

    @property
    def params(self) -> ActorParams:
        return ActorParams(self.actor.params, self.normaliser)


@dataclass(frozen=True)
class TD3(ContinuousAgent):
    """The algorithm as pure functions."""

    config: TD3Config

    def init(self, key: Key, obs: PyTree) -> TD3Learner:
        """A fresh learner for observations like obs (B, ...)."""
        actor_key, critic_key = draws.split(key)
        hidden, size = self.config.hidden, self.action_size
        inputs, critic_inputs = self.inputs(None, obs)
        actor = make_mlp(actor_key, (inputs.shape[-1], *hidden, size))
        critic = make_critics(critic_key, 2, critic_inputs.shape[-1], size, hidden)
        return TD3Learner(
            actor=init_train_state(actor),
            critic=init_train_state(critic),
            target_actor=own_buffers(actor),
            target_critic=own_buffers(critic),
            normaliser=self.make_normaliser(obs),
            updates=jnp.int32(0),
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

    def mean_action(self, actor: Weights, inputs: Array) -> Array:
        """The actor's action (B, m) for its inputs (B, n)."""
        return deterministic(actor, inputs)

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
        target = self.target(learner, batch, key)
        inputs, critic_inputs = self.inputs(learner.normaliser, batch.obs)
        grads, metrics = compute_gradients(
            critic_loss, learner.critic.params, critic_inputs, batch.action, target
        )
        critic = apply_gradients(learner.critic, grads, self.config.critic_rate)
        learner = learner.replace(critic=critic, updates=learner.updates + 1)
        learner = jax.lax.cond(
            learner.updates % self.config.policy_delay == 0,
            self.delayed_update,
            lambda learner, *_: learner,
            learner,
            inputs,
            critic_inputs,
        )
        return learner, metrics | learner.actor_metrics

    def delayed_update(
        self, learner: TD3Learner, inputs: Array, critic_inputs: Array
    ) -> TD3Learner:
        """One step of the actor; then all targets follow."""
        tau, critic = self.config.tau, learner.critic.params
        grads, metrics = compute_gradients(
            self.actor_loss, learner.actor.params, inputs, critic_inputs, member(critic, 0)
        )
        actor = apply_gradients(learner.actor, grads, self.config.actor_rate)
        return learner.replace(
            actor=actor,
            target_actor=optax.incremental_update(actor.params, learner.target_actor, tau),
            target_critic=optax.incremental_update(critic, learner.target_critic, tau),
            actor_metrics=metrics,
        )


def make(config: TD3Config, spec: EnvSpec, networks: Networks) -> TD3:
    """The agent for a world of `spec`."""
    return TD3(config, action_size("td3", spec), networks)


ALGORITHM = Algorithm(
    name="td3",
    description="twin delayed deterministic policy gradients, from replay",
    loop="off_policy",
    actions=frozenset({"continuous"}),
    config=TD3Config,
    make=make,
)
