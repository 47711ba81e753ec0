"""What a policy says: a distribution over actions, with every leading axis a batch axis."""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float, Int, Int32

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.values import take_action

# Stands for the logarithm of zero: exp of it is exactly 0, and 0 times it is 0 and not NaN, so
# that neither values nor gradients are spoilt by what cannot happen.
IMPOSSIBLE = -1e30


class Categorical(struct.PyTreeNode):
    """One of n actions; `mask` (..., n), True where allowed, gives the others probability 0.

    A row in which nothing is allowed counts as one without a mask: something must be chosen.
    """

    logits: Array  # (..., n)
    mask: Array | None = None

    @property
    def log_probs(self) -> Float[Array, "*rows n"]:
        """Log-probabilities; those of masked actions are about -1e30."""
        logits = self.logits
        if self.mask is not None:
            allowed = self.mask | ~self.mask.any(axis=-1, keepdims=True)
            logits = jnp.where(allowed, logits, IMPOSSIBLE)
        return jax.nn.log_softmax(logits)

    @property
    def probs(self) -> Float[Array, "*rows n"]:
        """Probabilities; those of masked actions are exactly 0."""
        return jnp.exp(self.log_probs)

    def sample(self, key: Key, first: Array | int = 0) -> Int32[Array, "*rows"]:
        """One action for each row, of which `first` more come before these on other devices."""
        # A race of exponential clocks, of which number i comes first with probability p_i. One
        # that cannot happen never rings: its time is infinite, and no other's is.
        uniform = jnp.maximum(draws.uniform(key, self.logits.shape, first), 2.0**-25)
        clocks = -jnp.log(uniform)
        return (clocks / self.probs).argmin(axis=-1).astype(jnp.int32)

    def mode(self) -> Int32[Array, "*rows"]:
        """The likeliest action of each row."""
        return self.log_probs.argmax(axis=-1).astype(jnp.int32)

    def log_prob(self, action: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
        """Log-probability of an action in each row."""
        rows = self.log_probs.reshape(-1, self.logits.shape[-1])
        return take_action(rows, action.reshape(-1)).reshape(action.shape)

    def entropy(self) -> Float[Array, "*rows"]:
        """In nats."""
        log_probs = self.log_probs
        return -(jnp.exp(log_probs) * log_probs).sum(axis=-1)


class DiagonalGaussian(struct.PyTreeNode):
    """Independent normal components: mean (..., d) and log_std (..., d) or (d,).

    Nothing bounds what is drawn: a world with bounded actions clips them itself.
    """

    mean: Array
    log_std: Array

    def sample(self, key: Key, first: Array | int = 0) -> Float[Array, "*rows d"]:
        """One action for each row, of which `first` more come before these on other devices."""
        return self.mean + jnp.exp(self.log_std) * draws.normal(key, self.mean.shape, first)

    def mode(self) -> Float[Array, "*rows d"]:
        """The mean."""
        return self.mean

    def log_prob(self, action: Float[Array, "*rows d"]) -> Float[Array, "*rows"]:
        """Log-density of an action in each row."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return -(0.5 * z * z + self.log_std + 0.5 * math.log(2.0 * math.pi)).sum(axis=-1)

    def entropy(self) -> Float[Array, "*rows"]:
        """In nats; negative where the distribution is narrow."""
        each = self.log_std + 0.5 * math.log(2.0 * math.pi * math.e)
        return jnp.broadcast_to(each, self.mean.shape).sum(axis=-1)


Distribution = Categorical | DiagonalGaussian
