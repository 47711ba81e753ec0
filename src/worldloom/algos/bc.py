"""Behaviour cloning: do what the data do (Pomerleau 1989).

Of continuous actions the mean is learned; `gaussian` learns the density as well, which the
diagnostics of off-policy evaluation can ask for. Of discrete ones the probabilities are learned:
`num_actions` says how many there are, and a row's action is the number of the one taken.
"""

import math
from dataclasses import dataclass, field

import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.actor_critic import (
    Metrics,
    TrainState,
    apply_gradients,
    compute_gradients,
    init_train_state,
)
from worldloom.algos.algorithm import Algorithm
from worldloom.algos.offline import OfflineAgent, OfflineConfig, as_arrays
from worldloom.core.checks import check_fields
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Discrete
from worldloom.core.types import Array, Key
from worldloom.nn.networks import Networks
from worldloom.nn.offline import Weights, deterministic, gaussian, make_mlp, mlp, squashed_mode
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class BCHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program."""

    learning_rate: float = 3e-4
    tau: float = 0.002  # by which the policy that is executed follows the one that is learned


@dataclass(frozen=True)
class BCConfig(OfflineConfig):
    """gaussian: a normal density around the action, of a deviation that depends on what is seen."""

    gaussian: bool = False
    hyper: BCHyper = field(default_factory=BCHyper)

    def __post_init__(self):
        super().__post_init__()
        check_fields("bc", self.hyper, positive=("learning_rate",), fractions=("tau",))


class BCLearner(struct.PyTreeNode):
    """All that is learned."""

    actor: TrainState
    average: Weights  # of the actor's on its way: one rare action in a batch does not move it far
    hyper: BCHyper
    step: Array


@dataclass(frozen=True)
class BC(OfflineAgent):
    """The algorithm, as pure functions; num_actions: of a discrete choice, None for vectors."""

    config: BCConfig = field(default_factory=BCConfig)
    num_actions: int | None = None

    def init(
        self, key: Key, obs_size: int, action_size: int, hyper: BCHyper | None = None
    ) -> BCLearner:
        """A fresh learner for obs (B, obs_size) and actions (B, action_size)."""
        outputs = self.num_actions or action_size * (2 if self.config.gaussian else 1)
        actor = make_mlp(key, (obs_size, *self.config.hidden, outputs))
        hyper = as_arrays(hyper or self.config.hyper)
        return BCLearner(init_train_state(actor), actor, hyper, jnp.int32(0))

    def log_density(self, weights: Weights, obs: Array, action: Array) -> Array:
        """Of actions (B, m) under a Gaussian cloner, (B,); obs (B, n) normalised."""
        mean, log_std = gaussian(weights, obs)
        z = (action - jnp.tanh(mean)) * jnp.exp(-log_std)
        return -(0.5 * z * z + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def loss(self, weights: Weights, rows: Rows) -> tuple[Array, Metrics]:
        """The mean squared error, the negative log-density, or the cross-entropy of a choice."""
        if self.num_actions is not None:
            return self.cross_entropy(weights, rows)
        if self.config.gaussian:
            loss = -self.log_density(weights, rows.obs, rows.action).mean()
        else:
            loss = jnp.square(deterministic(weights, rows.obs) - rows.action).mean()
        return loss, {"actor_loss": loss}

    def cross_entropy(self, weights: Weights, rows: Rows) -> tuple[Array, Metrics]:
        """-log pi(a | s) of discrete actions (B,) or (B, 1), and how often a is the likeliest."""
        logits = mlp(weights, rows.obs)
        action = rows.action.reshape(-1).astype(jnp.int32)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, action).mean()
        return loss, {"actor_loss": loss, "accuracy": (logits.argmax(-1) == action).mean()}

    def update(
        self, learner: BCLearner, rows: Rows, key: Key, turn: int | None = None
    ) -> tuple[BCLearner, Metrics]:
        """One gradient step on rows (B, ...); nothing is drawn."""
        grads, metrics = compute_gradients(self.loss, learner.actor.params, rows)
        hyper, step = learner.hyper, learner.step + 1
        actor = apply_gradients(learner.actor, grads, hyper.learning_rate)
        # In the beginning over the newest half of the way: the first weights are nobody's.
        share = jnp.maximum(hyper.tau, 2.0 / (step + 1))
        average = optax.incremental_update(actor.params, learner.average, share)
        return learner.replace(actor=actor, average=average, step=step), metrics

    def policy(self, learner: BCLearner, dataset: Dataset) -> PolicyState:
        """Deterministic policy: the mean action, or the likeliest."""
        scales = (dataset.mean, dataset.std)
        if self.num_actions is not None:
            return PolicyState(learner.average, *scales, mlp, discrete=True)
        apply = squashed_mode if self.config.gaussian else deterministic
        return PolicyState(learner.average, *scales, apply)


def make(config: BCConfig, spec: EnvSpec | None = None, networks: Networks | None = None) -> BC:
    """The cloner for a world of `spec`; without one, of continuous actions."""
    if spec is None or not isinstance(spec.action, Discrete):
        return BC(config)
    return BC(config, num_actions=spec.action.n)


ALGORITHM = Algorithm(
    name="bc",
    description="behaviour cloning: does what the data do",
    loop="offline",
    actions=frozenset({"discrete", "continuous"}),
    config=BCConfig,
    make=make,
)
