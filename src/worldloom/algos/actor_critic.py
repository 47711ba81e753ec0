"""What learners with an actor and critics share, online and offline: one gradient step, fresh
networks, the losses of soft actor-critic, TD3's smoothed actions and delayed step.

Weights are those of `worldloom.nn.offline`. A loss returns a pair: the loss () and metrics.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.offline import (
    Weights,
    critics,
    deterministic,
    gaussian,
    make_critics,
    make_mlp,
    squash,
)

Metrics = dict[str, Array]

# One step of Adam ------------------------------------------------------------------------------

# The learning rate is applied afterwards: it may differ between learners of one program.
ADAM = optax.scale_by_adam()


class TrainState(struct.PyTreeNode):
    """Parameters and the state of their optimiser, Adam."""

    params: PyTree
    opt_state: PyTree


def init_train_state(params: PyTree) -> TrainState:
    """Parameters before their first step."""
    return TrainState(params, ADAM.init(params))


def apply_gradients(state: TrainState, grads: PyTree, rate: Array | float) -> TrainState:
    """One step of Adam at a learning rate."""
    steps, opt_state = ADAM.update(grads, state.opt_state)
    params = jax.tree.map(lambda p, step: p - rate * step, state.params, steps)
    return TrainState(params, opt_state)


def gradient_step(
    state: TrainState,
    rate: Array | float,
    loss: Callable[..., tuple[Array, Metrics]],
    *args: Any,
) -> tuple[TrainState, Metrics]:
    """One step of Adam on `loss(params, *args)`, and its metrics."""
    grads, metrics = jax.grad(loss, has_aux=True)(state.params, *args)
    return apply_gradients(state, grads, rate), metrics


# Actor and critics -----------------------------------------------------------------------------


def init_actor_critic(
    key: Key, sizes: tuple[int, int, int], outputs: int, hidden: tuple[int, ...], **critic: Any
) -> dict[str, Any]:
    """Fresh fields of a learner: `actor`, `critic` and `target_critic`.

    sizes: of what the actor sees, of what critics see, of an action. outputs: of the actor.
    critic: what else `make_critics` takes.
    """
    actor_key, critic_key = draws.split(key)
    actor = make_mlp(actor_key, (sizes[0], *hidden, outputs))
    both = make_critics(critic_key, *sizes[1:], hidden, **critic)
    return {
        "actor": init_train_state(actor),
        "critic": init_train_state(both),
        "target_critic": own_buffers(both),
    }


def own_buffers(tree: PyTree) -> PyTree:
    """A copy, for target networks: so that both they and the networks can be donated."""
    return jax.tree.map(jnp.copy, tree)


def critic_loss(
    weights: Weights, obs: Array, action: Array, target: Array
) -> tuple[Array, Metrics]:
    """Squared errors, summed over an ensemble, to targets (B,) or (N, B)."""
    q = critics(weights, obs, action)
    loss = jnp.square(q - target).mean(-1).sum()
    return loss, {"critic_loss": loss, "q": q.mean()}


# Soft actor-critic (Haarnoja et al. 2018b) -----------------------------------------------------


class SoftLearner(struct.PyTreeNode):
    """What soft actor-critic learns."""

    actor: TrainState
    critic: TrainState
    log_temperature: TrainState
    target_critic: Weights

    @property
    def temperature(self) -> Array:
        return jnp.exp(self.log_temperature.params)


Soft = TypeVar("Soft", bound=SoftLearner)


def soft_value(
    actor: Weights,
    critic: Weights,
    temperature: Array,
    obs: Array,
    critic_obs: Array,
    noise: Array,
) -> tuple[Array, Array]:
    """V(s) = min Q(s, a) - temperature log pi(a | s), a drawn by the policy (eq. 3), and log pi.

    (B,) each, for noise (B, m).
    """
    action, log_prob = squash(*gaussian(actor, obs), noise)
    return critics(critic, critic_obs, action).min(0) - temperature * log_prob, log_prob


def soft_actor_loss(actor: Weights, *args: Any) -> tuple[Array, Metrics]:
    """temperature log pi(a | s) - min Q(s, a) (eq. 9); args: those of `soft_value`."""
    value, log_prob = soft_value(actor, *args)
    loss = -value.mean()
    return loss, {"actor_loss": loss, "entropy": -log_prob.mean()}


def soft_step(
    learner: Soft,
    critic: TrainState,
    numbers: Any,
    target_entropy: Array | float,
    obs: Array,
    critic_obs: Array,
    noise: Array,
) -> tuple[Soft, Metrics]:
    """One step of the actor (eq. 9) and the temperature (eq. 18) beside one of the critics.

    critic: after its step; the actor learns from those before. numbers: learning rates and tau.
    The temperature rises while the entropy is below its target.
    """
    temperature = learner.temperature
    actor, metrics = gradient_step(
        learner.actor,
        numbers.actor_rate,
        soft_actor_loss,
        learner.critic.params,
        temperature,
        obs,
        critic_obs,
        noise,
    )
    learner = learner.replace(
        actor=actor,
        critic=critic,
        log_temperature=apply_gradients(
            learner.log_temperature, metrics["entropy"] - target_entropy, numbers.temperature_rate
        ),
        target_critic=optax.incremental_update(critic.params, learner.target_critic, numbers.tau),
    )
    return learner, metrics | {"temperature": temperature}


# TD3 (Fujimoto et al. 2018) --------------------------------------------------------------------


class DelayedLearner(struct.PyTreeNode):
    """What TD3 learns."""

    actor: TrainState
    critic: TrainState
    target_actor: Weights
    target_critic: Weights
    actor_metrics: Metrics  # of the newest step of the actor


Delayed = TypeVar("Delayed", bound=DelayedLearner)


def smoothed_action(
    actor: Weights, obs: Array, key: Key, deviation: Array | float, limit: Array | float
) -> Array:
    """The action of a deterministic policy with clipped noise added, (B, m) in [-1, 1] (eq. 15)."""
    action = deterministic(actor, obs)
    noise = jnp.clip(deviation * draws.normal(key, action.shape), -limit, limit)
    return jnp.clip(action + noise, -1.0, 1.0)


def delayed_step(
    learner: Delayed, numbers: Any, loss: Callable[..., tuple[Array, Metrics]], *args: Any
) -> Delayed:
    """One step of the actor on `loss(actor, *args)`; then all targets follow."""
    actor, metrics = gradient_step(learner.actor, numbers.actor_rate, loss, *args)
    networks = (actor.params, learner.critic.params)
    targets: Any = (learner.target_actor, learner.target_critic)
    targets = optax.incremental_update(networks, targets, numbers.tau)
    return learner.replace(
        actor=actor, target_actor=targets[0], target_critic=targets[1], actor_metrics=metrics
    )
