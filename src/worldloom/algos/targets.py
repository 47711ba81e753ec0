"""Gradient learners whose target network follows the online one: their state and one step."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.metrics import LearnMetrics
from worldloom.core.types import Array, PyTree


class TargetLearner(struct.PyTreeNode):
    """Online and target parameters, the optimiser's state and the number of updates ()."""

    params: PyTree
    target: PyTree
    opt_state: PyTree
    updates: Array


def clipped_adam(learning_rate: float, max_grad_norm: float) -> optax.GradientTransformation:
    """Adam on gradients of at most `max_grad_norm`."""
    # One flat vector instead of a dozen small arrays: a quarter of the kernels to compile.
    return optax.flatten(
        optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.adam(learning_rate))
    )


def start(params: PyTree, optimiser: optax.GradientTransformation) -> TargetLearner:
    """A learner before its first update, with a target equal to `params`."""
    # In buffers of its own, so that both can be donated.
    target = jax.tree.map(jnp.copy, params)
    return TargetLearner(params, target, optimiser.init(params), jnp.int32(0))


def gradient_step(
    learner: TargetLearner,
    loss: Callable[[PyTree], tuple[Array, Array]],
    optimiser: optax.GradientTransformation,
    target_rate: float,
) -> tuple[TargetLearner, LearnMetrics]:
    """One gradient step on `loss`, then the target follows by the share `target_rate`.

    `loss(params)` returns the loss and the mean value of the actions in the batch.
    """
    (value, q_mean), grads = jax.value_and_grad(loss, has_aux=True)(learner.params)
    steps, opt_state = optimiser.update(grads, learner.opt_state, learner.params)
    params = optax.apply_updates(learner.params, steps)
    target = optax.incremental_update(params, learner.target, target_rate)
    metrics = LearnMetrics(value, optax.tree.norm(grads), q_mean)
    return TargetLearner(params, target, opt_state, learner.updates + 1), metrics
