"""Gated recurrent units (Cho et al. 2014), and actors and critics that remember by them.

n sequences of L steps; U units. A memory is zero before the first step of an episode.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from worldloom.core.types import Array
from worldloom.nn.actor_critic import ActorCritic, dense, orthogonal
from worldloom.nn.distributions import Distribution
from worldloom.nn.networks import concatenate


class GRU(nn.Module):
    """A layer of units that are carried from step to step; where a sequence starts anew, from 0."""

    units: int

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "n L features"],
        memory: Float[Array, "n U"],
        starts: Bool[Array, "n L"],
    ) -> tuple[Float[Array, "n L U"], Float[Array, "n U"]]:
        """What the units say in every step, and what they hold after the last."""
        # What does not hang on the step before, of all steps at once.
        inputs = dense(3 * self.units, 1.0, "inputs")(x)
        kernel = self.param("kernel", orthogonal(1.0), (self.units, 3 * self.units))
        bias = self.param("bias", nn.initializers.zeros, (self.units,))

        def one(h, step):
            given, start = step
            h = jnp.where(start[:, None], 0.0, h)
            update, reset, new = jnp.split(given, 3, axis=-1)
            held = jnp.split(h @ kernel, 3, axis=-1)
            z, r = jax.nn.sigmoid(update + held[0]), jax.nn.sigmoid(reset + held[1])
            h = z * h + (1.0 - z) * jnp.tanh(new + r * (held[2] + bias))
            return h, h

        steps = jnp.moveaxis(inputs, 1, 0), jnp.moveaxis(starts, 1, 0)
        memory, out = jax.lax.scan(one, memory, steps)
        return jnp.moveaxis(out, 0, 1), memory


class RecurrentActorCritic(ActorCritic):
    """An `ActorCritic` whose torsos end in units that remember: of the policy and of the value."""

    units: int = 64

    @nn.compact
    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        obs: Array,
        memory: Float[Array, "n 2U"],
        starts: Bool[Array, "n L"],
        critic_obs: Array | None = None,
    ) -> tuple[Distribution, Float[Array, " n*L"], Float[Array, "n 2U"]]:
        """The policy and the value of all steps, obs (n * L, ...), and the memory after them."""
        x = concatenate(obs)
        h = self._torso(x, self.hidden, "policy")
        v = self._torso(x if critic_obs is None else concatenate(critic_obs), self.hidden, "value")
        own, critics = jnp.split(memory, 2, axis=-1)
        h, own = self._remembering(h, own, starts, "policy_memory")
        v, critics = self._remembering(v, critics, starts, "value_memory")
        value = dense(1, 1.0, "value")(v)[:, 0]
        return self._distribution(h), value, jnp.concatenate([own, critics], axis=-1)

    def _remembering(
        self, x: Array, memory: Array, starts: Array, name: str
    ) -> tuple[Array, Array]:
        sequences = x.reshape(*starts.shape, -1)
        out, memory = GRU(self.units, name=name)(sequences, memory, starts)
        return out.reshape(x.shape[0], -1), memory
