"""What learners with an actor and critics share, online and offline: one gradient step, targets,
the losses of soft actor-critic, TD3's smoothed actions.

Weights are those of `worldloom.nn.offline`. A loss returns a pair: the loss () and metrics.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.offline import Weights, critics, deterministic, gaussian, squash

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


def compute_gradients(
    loss: Callable[..., tuple[Array, Metrics]], params: PyTree, *args: Any
) -> tuple[PyTree, Metrics]:
    """The gradients of `loss(params, *args)`, and its metrics."""
    grads, metrics = jax.grad(loss, has_aux=True)(params, *args)
    return grads, metrics


# Critics ---------------------------------------------------------------------------------------


def critic_loss(
    weights: Weights, obs: Array, action: Array, target: Array
) -> tuple[Array, Metrics]:
    """Squared errors, summed over an ensemble, to targets (B,) or (N, B)."""
    q = critics(weights, obs, action)
    loss = jnp.square(q - target).mean(-1).sum()
    return loss, {"critic_loss": loss, "q": q.mean()}


# Soft actor-critic (Haarnoja et al. 2018b) -----------------------------------------------------


def soft_value(
    actor: Weights,
    obs: Array,
    noise: Array,
    critic: Weights,
    critic_obs: Array,
    temperature: Array,
) -> Array:
    """V(s) = min Q(s, a) - temperature log pi(a | s), (B,), a drawn by the policy (eq. 3)."""
    action, log_prob = squash(*gaussian(actor, obs), noise)
    return critics(critic, critic_obs, action).min(0) - temperature * log_prob


def soft_actor_loss(
    actor: Weights,
    obs: Array,
    noise: Array,
    critic: Weights,
    critic_obs: Array,
    temperature: Array,
) -> tuple[Array, Metrics]:
    """temperature log pi(a | s) - min Q(s, a), a drawn by the policy (eq. 9)."""
    action, log_prob = squash(*gaussian(actor, obs), noise)
    q = critics(critic, critic_obs, action).min(0)
    loss = (temperature * log_prob - q).mean()
    return loss, {"actor_loss": loss, "entropy": -log_prob.mean()}


def adapt_temperature(
    log_temperature: TrainState, entropy: Array, target: Array | float, rate: Array | float
) -> TrainState:
    """A step on log temperature * (entropy - target) (eq. 18): up while the policy is too sure."""
    return apply_gradients(log_temperature, entropy - target, rate)


# TD3 (Fujimoto et al. 2018) --------------------------------------------------------------------


def smoothed_action(
    actor: Weights, obs: Array, key: Key, deviation: Array | float, limit: Array | float
) -> Array:
    """The action of a deterministic policy with clipped noise added, (B, m) in [-1, 1] (eq. 15)."""
    action = deterministic(actor, obs)
    noise = jnp.clip(deviation * draws.normal(key, action.shape), -limit, limit)
    return jnp.clip(action + noise, -1.0, 1.0)
