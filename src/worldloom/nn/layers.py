"""Layers that several networks share."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from worldloom.core import draws
from worldloom.core.types import Array, Key

# The weights and the bias of a linear layer, or what perturbs those of a noisy one.
Weights = tuple[Float[Array, "inputs outputs"], Float[Array, " outputs"]]
LayerNoise = Weights
ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu, "silu": nn.silu, "elu": nn.elu}


def symmetric_uniform(bound: float) -> nn.initializers.Initializer:
    """U(-bound, bound); flax's own `uniform(s)` is U[0, s)."""

    def init(key, shape, dtype=jnp.float32):
        return ((2.0 * draws.uniform(key, shape) - 1.0) * bound).astype(dtype)

    return init


class Linear(nn.Module):
    """x W + b with both drawn from U(-1/sqrt(in), 1/sqrt(in)), as PyTorch does."""

    features: int

    @nn.compact
    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        bound = symmetric_uniform(1.0 / math.sqrt(x.shape[-1]))
        kernel = self.param("kernel", bound, (x.shape[-1], self.features))
        bias = self.param("bias", bound, (self.features,))
        return x @ kernel + bias


class NoisyLinear(nn.Module):
    """A linear layer whose weights carry learnable independent Gaussian noise.

    Fortunato et al. 2018, eq. 9: y = x (mu_w + sigma_w * eps_w) + mu_b + sigma_b * eps_b. The
    perturbation is an argument: one draw serves a whole batch, and None means no noise.
    `sigma=None` makes a layer that can carry no noise, and has no parameters for it.
    """

    features: int
    sigma: float | None = 0.017

    def __call__(
        self, x: Float[Array, "*rows inputs"], noise: LayerNoise | None = None
    ) -> Float[Array, "*rows outputs"]:
        kernel, bias = self.weights(x.shape[-1], noise)
        return x @ kernel + bias

    @nn.compact
    def weights(self, inputs: int, noise: LayerNoise | None = None) -> Weights:
        """The kernel and the bias under a perturbation."""
        bound = symmetric_uniform(math.sqrt(3.0 / inputs))
        kernel = self.param("kernel", bound, (inputs, self.features))
        bias = self.param("bias", bound, (self.features,))
        if self.sigma is None:
            if noise is not None:
                raise ValueError(
                    "NoisyLinear: sigma=None makes a layer that carries no noise, but it was given "
                    "some; give it a sigma, or no noise"
                )
            return kernel, bias
        constant = nn.initializers.constant(self.sigma)
        sigma_kernel = self.param("sigma_kernel", constant, (inputs, self.features))
        sigma_bias = self.param("sigma_bias", constant, (self.features,))
        if noise is not None:
            kernel = kernel + sigma_kernel * noise[0]
            bias = bias + sigma_bias * noise[1]
        return kernel, bias


def layer_noise(key: Key, inputs: int, outputs: int) -> LayerNoise:
    """Independent standard normal perturbations for one `NoisyLinear`."""
    flat = draws.normal(key, ((inputs + 1) * outputs,))
    return flat[: inputs * outputs].reshape(inputs, outputs), flat[inputs * outputs :]


class MLP(nn.Module):
    """Linear layers with an activation between them."""

    features: tuple[int, ...]
    activation: str = "relu"

    @nn.compact
    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        for width in self.features[:-1]:
            x = ACTIVATIONS[self.activation](Linear(width)(x))
        return Linear(self.features[-1])(x)
