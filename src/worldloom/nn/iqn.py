"""The implicit quantile network: a dueling head over a cosine embedding of quantile levels."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.nn.layers import LayerNoise, Linear, NoisyLinear, layer_noise

Noise = dict[str, LayerNoise]
# Levels that the whole batch shares, or levels of its own for every row.
Taus = Float[Array, " N"] | Float[Array, "B N"]


class IQNJAX(nn.Module):
    """Quantiles of the return of each action (Dabney et al. 2018), with noisy, dueling heads.

    Levels `taus` that the batch shares let their embedding be computed once for all of it.
    """

    num_actions: int
    hidden: int = 250
    num_cosines: int = 64
    noisy: bool = True

    def setup(self):
        self.head1 = Linear(self.hidden)
        self.cos_embedding = Linear(self.hidden)
        sigma = 0.017 if self.noisy else None
        self.ff_1 = NoisyLinear(self.hidden, sigma)
        self.advantage = NoisyLinear(self.num_actions, sigma)
        self.value = NoisyLinear(1, sigma)

    def calc_cos(self, taus: Float[Array, "*rows N"]) -> Float[Array, "*rows N cosines"]:
        """cos(pi i tau) for i = 1 .. num_cosines."""
        i = jnp.arange(1, self.num_cosines + 1, dtype=jnp.float32)
        return jnp.cos(jnp.pi * i * taus[..., None])

    def __call__(
        self, x: Float[Array, "B features"], taus: Taus, noise: Noise | None = None
    ) -> Float[Array, "B N actions"]:
        """Quantiles of the returns."""
        return self._dueling(self._features(x, taus, noise), noise)

    def get_qvalues(
        self, x: Float[Array, "B features"], taus: Taus, noise: Noise | None = None
    ) -> Float[Array, "B actions"]:
        """Expected returns: the mean over the levels.

        The heads are linear, so the mean is taken before them: one row instead of N.
        """
        return self._dueling(self._features(x, taus, noise).mean(axis=-2), noise)

    def _features(self, x: Array, taus: Array, noise: Noise | None) -> Array:
        state = nn.relu(self.head1(x))  # (B, hidden)
        # Matrices instead of stacks of rows: XLA's CPU kernels are a tenth faster on them.
        embedded = nn.relu(self.cos_embedding(self.calc_cos(taus.reshape(-1))))
        levels = embedded.reshape(*taus.shape, self.hidden)  # (N, hidden) or (B, N, hidden)
        mixed = state[:, None, :] * levels  # (B, N, hidden)
        rows = mixed.reshape(-1, self.hidden)
        h = nn.relu(self.ff_1(rows, noise["ff_1"] if noise else None)).reshape(mixed.shape)
        # Fused with what follows, the product runs in a slower kernel: a tenth of an epoch.
        return jax.lax.optimization_barrier(h)

    def _dueling(self, h: Array, noise: Noise | None) -> Array:
        """V + A - mean A; both are linear in h, so their weights are combined before the pass."""
        advantage, advantage_bias = self.advantage.weights(
            self.hidden, noise["advantage"] if noise else None
        )
        value, value_bias = self.value.weights(self.hidden, noise["value"] if noise else None)
        kernel = value + advantage - advantage.mean(axis=-1, keepdims=True)
        return h @ kernel + (value_bias + advantage_bias - advantage_bias.mean())

    def sample_noise(self, key: Key) -> Noise:
        """One draw of every noisy layer's perturbation."""
        keys = draws.split(key, 3)
        return {
            "ff_1": layer_noise(keys[0], self.hidden, self.hidden),
            "advantage": layer_noise(keys[1], self.hidden, self.num_actions),
            "value": layer_noise(keys[2], self.hidden, 1),
        }
