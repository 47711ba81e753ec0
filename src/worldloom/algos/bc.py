"""Behaviour cloning: do what the data do (Pomerleau 1989).

`gaussian` learns how sure one can be of it as well: the density of the data's actions, which the
diagnostics of off-policy evaluation can ask for.
"""

import math
from dataclasses import dataclass, field

import jax.numpy as jnp
from flax import struct

from worldloom.algos.offline import (
    Metrics,
    Trained,
    as_arrays,
    averaged,
    check_numbers,
    check_sizes,
    compute_gradients,
    descend,
    trained,
)
from worldloom.core.types import Array, Key
from worldloom.nn.offline import Weights, deterministic, gaussian, make_mlp, squashed_mode
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class BCHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program."""

    learning_rate: float = 3e-4
    tau: float = 0.002  # by which the policy that is executed follows the one that is learned


@dataclass(frozen=True)
class BCConfig:
    """gaussian: a normal density around the action, of a deviation that depends on what is seen."""

    hidden: tuple[int, ...] = (256, 256)
    gaussian: bool = False
    hyper: BCHyper = field(default_factory=BCHyper)

    def __post_init__(self):
        check_sizes("bc", self)
        check_numbers("bc", self.hyper, positive=("learning_rate",), shares=("tau",))


class BCLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: Trained
    average: Weights  # of the actor's on its way: one rare action in a batch does not move it far
    hyper: BCHyper
    step: Array


@dataclass(frozen=True)
class BC:
    """The algorithm, as pure functions."""

    config: BCConfig = field(default_factory=BCConfig)
    period = 1

    def init(
        self, key: Key, obs_size: int, action_size: int, hyper: BCHyper | None = None
    ) -> BCLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        outputs = action_size * (2 if self.config.gaussian else 1)
        actor = make_mlp(key, (obs_size, *self.config.hidden, outputs))
        hyper = as_arrays(hyper or self.config.hyper)
        return BCLearner(trained(actor), actor, hyper, jnp.int32(0))

    def log_density(self, weights: Weights, obs: Array, action: Array) -> Array:
        """Of actions (B, m) under a Gaussian cloner, (B,); obs (B, n) normalised."""
        mean, log_std = gaussian(weights, obs)
        z = (action - jnp.tanh(mean)) * jnp.exp(-log_std)
        return -(0.5 * z * z + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def loss(self, weights: Weights, rows: Rows) -> tuple[Array, Metrics]:
        """The mean squared error, or the negative log-density."""
        if self.config.gaussian:
            loss = -self.log_density(weights, rows.obs, rows.action).mean()
        else:
            loss = jnp.square(deterministic(weights, rows.obs) - rows.action).mean()
        return loss, {"actor_loss": loss}

    def update(
        self, learner: BCLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[BCLearner, Metrics]:
        """One gradient step on rows (B, ...); nothing is drawn."""
        grads, metrics = compute_gradients(self.loss, learner.actor.params, rows)
        hyper, step = learner.hyper, learner.step + 1
        actor = descend(learner.actor, grads, hyper.learning_rate)
        # In the beginning over the newest half of the way: the first weights are nobody's.
        share = jnp.maximum(hyper.tau, 2.0 / (step + 1))
        average = averaged(learner.average, actor.params, share)
        return learner.replace(actor=actor, average=average, step=step), metrics

    def policy(self, learner: BCLearner, dataset: Dataset) -> PolicyState:
        """What can be executed."""
        apply = squashed_mode if self.config.gaussian else deterministic
        return PolicyState(learner.average, dataset.mean, dataset.std, apply)
