"""The two frames that offline actor-critic algorithms are set in: TD3's and soft actor-critic's.

An algorithm's own file says what is particular to it: targets and losses.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    adapt_temperature,
    apply_gradients,
    compute_gradients,
    init_train_state,
    soft_actor_loss,
)
from worldloom.algos.offline import LinkedRows, OfflineAgent, as_arrays
from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.offline import Weights, make_critics, make_mlp, squashed_mode
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows

# TD3 (Fujimoto et al. 2018) --------------------------------------------------------------------


class DelayedLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: TrainState
    critic: TrainState
    target_actor: Weights
    target_critic: Weights
    hyper: Any
    step: Array
    actor_metrics: Metrics  # of the newest step of the actor


class DelayedActorCritic(OfflineAgent):
    """TD3 on logged rows: the actor and all targets move once in `policy_delay` updates."""

    critic_norm = False  # whether critics have layer norms

    @property
    def period(self) -> int:
        return self.config.policy_delay

    def init(self, key: Key, obs_size: int, action_size: int, hyper: Any = None) -> DelayedLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        actor_key, critic_key = draws.split(key)
        hidden = self.config.hidden
        actor = make_mlp(actor_key, (obs_size, *hidden, action_size))
        critic = make_critics(critic_key, 2, obs_size, action_size, hidden, norm=self.critic_norm)
        return DelayedLearner(
            actor=init_train_state(actor),
            critic=init_train_state(critic),
            target_actor=actor,
            target_critic=critic,
            hyper=as_arrays(hyper or self.config.hyper),
            step=jnp.int32(0),
            actor_metrics={"actor_loss": jnp.float32(0.0), "clone_error": jnp.float32(0.0)},
        )

    def target(self, learner: DelayedLearner, rows: LinkedRows, key: Key) -> Array:
        """What the critics shall say of rows, (B,)."""
        raise NotImplementedError

    def critic_loss(self, weights: Weights, rows: Rows, target: Array) -> tuple[Array, Metrics]:
        """The loss of both critics, and metrics."""
        raise NotImplementedError

    def actor_loss(self, weights: Weights, rows: Rows, *inputs: PyTree) -> tuple[Array, Metrics]:
        """The loss of the actor, and `actor_loss` and `clone_error`; inputs: `actor_inputs`."""
        raise NotImplementedError

    def actor_inputs(self, learner: DelayedLearner, metrics: Metrics) -> tuple[PyTree, ...]:
        """What the actor's loss takes beside weights and rows; metrics: of the critics' step."""
        raise NotImplementedError

    def update(
        self, learner: DelayedLearner, rows: LinkedRows, key: Key, turn: int | None = None
    ) -> tuple[DelayedLearner, Metrics]:
        """One step of the critics on rows (B, ...), and in its turn one of the actor."""
        target = self.target(learner, rows, key)
        grads, metrics = compute_gradients(self.critic_loss, learner.critic.params, rows, target)
        critic = apply_gradients(learner.critic, grads, learner.hyper.critic_rate)
        learner = learner.replace(critic=critic, step=learner.step + 1)
        inputs = self.actor_inputs(learner, metrics)
        if turn is None:
            due = learner.step % self.period == 0
            learner = jax.lax.cond(
                due, self.delayed_update, lambda learner, *_: learner, learner, rows, inputs
            )
        elif turn == self.period - 1:
            learner = self.delayed_update(learner, rows, inputs)
        return learner, metrics | learner.actor_metrics

    def delayed_update(
        self, learner: DelayedLearner, rows: Rows, inputs: tuple[PyTree, ...]
    ) -> DelayedLearner:
        """One step of the actor; then all targets follow."""
        hyper, critic = learner.hyper, learner.critic.params
        grads, metrics = compute_gradients(self.actor_loss, learner.actor.params, rows, *inputs)
        actor = apply_gradients(learner.actor, grads, hyper.actor_rate)
        return learner.replace(
            actor=actor,
            target_actor=optax.incremental_update(actor.params, learner.target_actor, hyper.tau),
            target_critic=optax.incremental_update(critic, learner.target_critic, hyper.tau),
            actor_metrics=metrics,
        )


# Soft actor-critic (Haarnoja et al. 2018b) -----------------------------------------------------


class SoftLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: TrainState
    critic: TrainState
    log_temperature: TrainState
    target_critic: Weights
    hyper: Any
    step: Array

    @property
    def temperature(self) -> Array:
        return jnp.exp(self.log_temperature.params)


class SoftActorCritic(OfflineAgent):
    """Soft actor-critic on logged rows, with an adapted temperature."""

    @property
    def num_critics(self) -> int:
        return 2

    def init(self, key: Key, obs_size: int, action_size: int, hyper: Any = None) -> SoftLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        actor_key, critic_key = draws.split(key)
        hidden = self.config.hidden
        actor = make_mlp(actor_key, (obs_size, *hidden, 2 * action_size))
        critic = make_critics(critic_key, self.num_critics, obs_size, action_size, hidden)
        return SoftLearner(
            actor=init_train_state(actor),
            critic=init_train_state(critic),
            log_temperature=init_train_state(jnp.float32(0.0)),
            target_critic=critic,
            hyper=as_arrays(hyper or self.config.hyper),
            step=jnp.int32(0),
        )

    def finish_update(
        self,
        learner: SoftLearner,
        rows: Rows,
        noise: Array,
        critic_grads: PyTree,
        metrics: Metrics,
    ) -> tuple[SoftLearner, Metrics]:
        """One step of critics, actor and temperature; noise (B, m) draws the actor's actions."""
        hyper, temperature = learner.hyper, learner.temperature
        actor_grads, actor_metrics = compute_gradients(
            soft_actor_loss,
            learner.actor.params,
            rows.obs,
            noise,
            learner.critic.params,
            rows.obs,
            temperature,
        )
        target_entropy = hyper.entropy * rows.action.shape[-1]
        critic = apply_gradients(learner.critic, critic_grads, hyper.critic_rate)
        learner = learner.replace(
            actor=apply_gradients(learner.actor, actor_grads, hyper.actor_rate),
            critic=critic,
            log_temperature=adapt_temperature(
                learner.log_temperature,
                actor_metrics["entropy"],
                target_entropy,
                hyper.temperature_rate,
            ),
            target_critic=optax.incremental_update(critic.params, learner.target_critic, hyper.tau),
            step=learner.step + 1,
        )
        return learner, metrics | actor_metrics | {"temperature": temperature}

    def policy(self, learner: SoftLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the squashed mean."""
        return PolicyState(learner.actor.params, dataset.mean, dataset.std, squashed_mode)
