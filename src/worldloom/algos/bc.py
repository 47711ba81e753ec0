"""Behaviour cloning: do what the data do (Pomerleau 1989).

Of continuous actions the mean is learned; `gaussian` learns the density as well, which the
diagnostics of off-policy evaluation can ask for. Of discrete ones the probabilities are learned:
`num_actions` says how many there are, and a row's action is the number of the one taken.
"""

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.actor_critic import Metrics, TrainState, gradient_step, init_train_state
from worldloom.algos.algorithm import ANY, Algorithm
from worldloom.algos.config import fraction, positive
from worldloom.algos.offline import OfflineAgent, OfflineConfig, OfflineLearner
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Discrete
from worldloom.core.types import Array, Key
from worldloom.nn.distributions import DiagonalGaussian
from worldloom.nn.offline import Weights, deterministic, gaussian, make_mlp, mlp, squashed_mode
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import Dataset, Rows


class BCHyper(struct.PyTreeNode):
    """Numbers that may differ between learners of one program."""

    learning_rate: float = positive(3e-4)
    tau: float = fraction(0.002)  # by which the executed policy follows the one that is learned


@dataclass(frozen=True)
class BCConfig(OfflineConfig):
    """gaussian: a normal density around the action, of a deviation that depends on what is seen."""

    gaussian: bool = False
    hyper: BCHyper = field(default_factory=BCHyper)


class BCLearner(OfflineLearner):
    """All that is learned."""

    actor: TrainState
    average: Weights  # of the actor's on its way: one rare action in a batch does not move it far


@dataclass(frozen=True)
class BC(OfflineAgent):
    """The algorithm, as pure functions; num_actions: of a discrete choice, None for vectors."""

    config: BCConfig = field(default_factory=BCConfig)
    num_actions: int | None = None
    learner = BCLearner

    @classmethod
    def from_spec(cls, spec: EnvSpec) -> dict[str, Any]:
        return {"num_actions": spec.action.n if isinstance(spec.action, Discrete) else None}

    def networks(self, key: Key, obs_size: int, action_size: int) -> dict[str, Any]:
        outputs = self.num_actions or action_size * (2 if self.config.gaussian else 1)
        actor = make_mlp(key, (obs_size, *self.config.hidden, outputs))
        return {"actor": init_train_state(actor), "average": actor}

    def log_density(self, weights: Weights, obs: Array, action: Array) -> Array:
        """Of actions (B, m) under a Gaussian cloner, (B,); obs (B, n) normalised."""
        mean, log_std = gaussian(weights, obs)
        return DiagonalGaussian(jnp.tanh(mean), log_std).log_prob(action)

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
        hyper, step = learner.hyper, learner.step + 1
        actor, metrics = gradient_step(learner.actor, hyper.learning_rate, self.loss, rows)
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


ABOUT = ("bc", "behaviour cloning: does what the data do", "offline", ANY)
ALGORITHM = Algorithm(*ABOUT, BCConfig, BC.make)
