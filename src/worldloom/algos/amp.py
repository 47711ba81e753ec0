"""Adversarial motion priors (Peng et al. 2021): a reward for moving like a reference does.

A discriminator learns to tell features of the reference (1) from those of the policy (0), by least
squares (Mao et al. 2017) with a gradient penalty at real samples (Mescheder et al. 2018); what it
says of the policy is a reward beside the task's. Features are arrays, whatever they are features
of. Reads from top to bottom: configuration, state, reward, loss, update, use beside a policy. F is
the number of features, R of rows of the reference, N of steps of a rollout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from worldloom.algos.config import Config, at_least, fraction, positive
from worldloom.algos.on_policy import guarded_step, mean_of_good, shared_mean
from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.nn.actor_critic import dense


@dataclass(frozen=True)
class AMPConfig(Config):
    """Options of the prior.

    weight: what a perfect style is worth in a step, beside the task's reward of that step.
    updates: of the discriminator after each rollout, each on `batch_size` real samples and as many
    fakes, a share `replay_share` of them remembered. replay_rows: how many are remembered, of
    which `replay_adds` are replaced after each rollout. least_std: features are centred and
    scaled as the reference has them, but none is told apart more finely than this.
    """

    weight: float = at_least(0, 0.05)
    hidden: tuple[int, ...] = at_least(1, (256, 128))
    learning_rate: float = positive(1e-4)
    gradient_penalty: float = at_least(0, 5.0)
    updates: int = at_least(1, 4)
    batch_size: int = at_least(1, 512)
    replay_rows: int = at_least(1, 32_768)
    replay_adds: int = at_least(1, 2_048)
    replay_share: float = fraction(0.5)
    least_std: float = positive(0.5)
    max_grad_norm: float = positive(1.0)

    def __post_init__(self):
        super().__post_init__()
        if self.replay_rows % self.replay_adds:
            raise ValueError(
                f"amp: replay_adds={self.replay_adds} does not divide "
                f"replay_rows={self.replay_rows}"
            )


class Discriminator(nn.Module):
    """A raw score (...) for features (..., F): about 1 for real ones, 0 for fakes."""

    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        for width in self.hidden:
            x = nn.elu(dense(width)(x))  # smooth: the penalty differentiates it twice
        return dense(1, 0.1)(x)[..., 0]


# State -----------------------------------------------------------------------------------------


class Memory(struct.PyTreeNode):
    """A ring of features of earlier policies."""

    rows: Array  # (replay_rows, F)
    written: Array  # () int32, ever


class AMPState(struct.PyTreeNode):
    """All that is learned and remembered; `mean` and `std` (F,) are those of the reference."""

    params: PyTree
    opt_state: PyTree
    mean: Array
    std: Array
    memory: Memory


# The prior -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AMP:
    """The prior as pure functions; jit what is called repeatedly.

    `axis_name` is that of devices that share the worlds, inside of `shard_map`: all take the same
    steps, on the mean of their gradients, and remember the same, a part from each.
    """

    config: AMPConfig = AMPConfig()
    axis_name: str | None = None

    @cached_property
    def network(self) -> Discriminator:
        return Discriminator(self.config.hidden)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        clip = optax.clip_by_global_norm(self.config.max_grad_norm)
        return optax.flatten(optax.chain(clip, optax.scale_by_adam(b1=0.5)))

    def init(self, key: Key, reference: Array) -> AMPState:
        """A fresh state for a reference (R, F)."""
        params = self.network.init(key, reference[:1])
        size = (self.config.replay_rows, reference.shape[-1])
        return AMPState(
            params=params,
            opt_state=self.optimiser.init(params),
            mean=jnp.asarray(reference).mean(0),
            std=jnp.maximum(jnp.asarray(reference).std(0), self.config.least_std),
            memory=Memory(jnp.zeros(size, jnp.float32), jnp.int32(0)),
        )

    def score(self, state: AMPState, features: Array) -> Array:
        """What the discriminator says (...) of features (..., F)."""
        score: Any = self.network.apply(state.params, (features - state.mean) / state.std)
        return score

    def style(self, state: AMPState, features: Array) -> Array:
        """The reward (...) for features (..., F), 0 to 1: the score, clipped.

        What is called a fake, at a score of 0 or less, earns nothing. (The usual 1 - (D - 1)^2 / 4
        is made for fakes at -1, and would pay 0.75 for a score of 0.)
        """
        score = self.score(state, features)
        return jnp.where(jnp.isfinite(score), jnp.clip(score, 0.0, 1.0), 0.0)

    # Learning ----------------------------------------------------------------------------------

    def loss(
        self, params: PyTree, state: AMPState, real: Array, fake: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Loss () on real and fake features (n, F) each, and what it is made of."""
        new = state.replace(params=params)
        real_score, pull_back = jax.vjp(lambda x: self.score(new, x), real)
        fake_score = self.score(new, fake)
        # Rows are judged one by one: one gradient of the sum holds the slope at each. Times std,
        # for slopes in the units that the network sees.
        slopes = pull_back(jnp.ones_like(real_score))[0] * state.std
        penalty = jnp.square(slopes).sum(-1).mean()
        errors = jnp.square(real_score - 1.0).mean() + jnp.square(fake_score).mean()
        loss = 0.5 * errors + 0.5 * self.config.gradient_penalty * penalty
        return loss, {
            "loss": loss,
            "penalty": penalty,
            "real_score": real_score.mean(),
            "fake_score": fake_score.mean(),
            "real_accuracy": (real_score > 0.5).mean(),
            "fake_accuracy": (fake_score < 0.5).mean(),
        }

    def learn(self, state: AMPState, real: Array, fake: Array) -> tuple[AMPState, dict[str, Array]]:
        """One gradient step; what is not finite changes nothing. `good`: whether it was taken."""
        (_, parts), grads = jax.value_and_grad(self.loss, has_aux=True)(
            state.params, state, real, fake
        )
        parts, grads = shared_mean((parts, grads), self.axis_name)
        rate = self.config.learning_rate
        state, step = guarded_step(self.optimiser, state, grads, parts["loss"], rate)
        return state, parts | {"good": step["good"]}

    def fakes(self, state: AMPState, features: Array, key: Key) -> Array:
        """(batch_size, F) from features (N, F), and a share from the memory once it has any."""
        count = self.config.batch_size
        now_key, then_key, which_key = draws.split(key, 3)
        rows, written = state.memory.rows, state.memory.written
        filled = jnp.minimum(written, rows.shape[0])
        now = features[draws.integers(now_key, (count,), features.shape[0])]
        places = (draws.uniform(then_key, (count,)) * filled).astype(jnp.int32)
        then = rows[jnp.clip(places, 0, jnp.maximum(filled - 1, 0))]
        old = (draws.uniform(which_key, (count,)) < self.config.replay_share) & (filled > 0)
        return jnp.where(old[:, None], then, now)

    def remember(self, memory: Memory, features: Array, key: Key) -> Memory:
        """The memory with `replay_adds` random rows of features (N, F) over its oldest."""
        adds, axis = self.config.replay_adds, self.axis_name
        devices = 1 if axis is None else jax.lax.axis_size(axis)
        if adds % devices:
            raise ValueError(f"amp: {devices} devices cannot share replay_adds={adds} equally")
        chosen = features[draws.integers(key, (adds // devices,), features.shape[0])]
        if axis is not None:
            chosen = jax.lax.all_gather(chosen, axis, tiled=True)
        head = memory.written % memory.rows.shape[0]
        rows = jax.lax.dynamic_update_slice(memory.rows, chosen, (head, 0))
        # Counted up to two rounds and then back by one, so that it never overflows.
        written = memory.written + adds
        written = jnp.where(written < 2 * rows.shape[0], written, written - rows.shape[0])
        return Memory(rows, written)

    def update(
        self, state: AMPState, features: Array, reference: Array, key: Key
    ) -> tuple[AMPState, dict[str, Array]]:
        """Learns from a rollout's features (N, F) and a reference (R, F).

        Metrics are means over the updates. penalty: the mean squared slope of the score at real
        samples. A sample is classified correctly if its score is on its side of a half. style: of
        the rollout's steps, as it was paid. skipped: updates whose loss or gradient was not finite;
        they change nothing.
        """
        learn_key, remember_key = draws.split(key)
        reference = jnp.asarray(reference)
        style = shared_mean(self.style(state, features).mean(), self.axis_name)
        # A row that is not finite would stay in the memory for long.
        finite = jnp.isfinite(features).all(-1, keepdims=True)
        features = jnp.where(finite, features, state.mean)

        def one(state, key):
            real_key, fake_key = draws.split(key)
            rows = draws.integers(real_key, (self.config.batch_size,), reference.shape[0])
            return self.learn(state, reference[rows], self.fakes(state, features, fake_key))

        state, parts = jax.lax.scan(one, state, draws.split(learn_key, self.config.updates))
        memory = self.remember(state.memory, features, remember_key)
        return state.replace(memory=memory), mean_of_good(parts) | {"style": style}


# Beside a policy -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StylePrior:
    """The prior with its reference (R, F), as a loop that trains a policy takes it.

    `features_of` finds the features (T, B, F) in time steps (T, B, ...). They must be of what a
    step led to before any automatic reset, as `info` is.
    """

    amp: AMP
    reference: Array
    features_of: Callable[[TimeStep], Array]

    def init(self, key: Key) -> AMPState:
        return self.amp.init(key, self.reference)

    def reward(self, state: AMPState, steps: TimeStep, reward: Array) -> Array:
        """The task's reward (T, B) and the weighted style.

        Give it the state from before `update` with the same steps: a judge that has learned from
        them first has already seen what it pays for.
        """
        return reward + self.amp.config.weight * self.amp.style(state, self.features_of(steps))

    def update(
        self, state: AMPState, steps: TimeStep, key: Key
    ) -> tuple[AMPState, dict[str, Array]]:
        """The state after learning from time steps (T, B, ...), and its metrics by name."""
        features = self.features_of(steps)
        flat = features.reshape(-1, features.shape[-1])
        state, metrics = self.amp.update(state, flat, self.reference, key)
        return state, {f"prior_{name}": value for name, value in metrics.items()}
