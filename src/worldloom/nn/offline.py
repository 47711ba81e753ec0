"""Networks of actor-critic methods: an actor, and critics as an ensemble on a leading axis.

Weights are tuples of dicts of arrays, one dict a layer, so that they can be stacked, saved and
exported as they are. Linear layers are drawn as PyTorch draws them.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import jax
import jax.numpy as jnp

from worldloom.core import draws, stack
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.layers import symmetric_uniform

Weights = tuple[dict[str, Array], ...]

LOG_STD_RANGE = (-5.0, 2.0)
NORM_EPSILON = 1e-6
WRITTEN_OUT = 2  # critics; larger ensembles are a loop


# Multi-layer perceptrons -----------------------------------------------------------------------


def make_mlp(key: Key, sizes: tuple[int, ...]) -> Weights:
    """Layers from sizes[0] inputs to sizes[-1] outputs; kernel (in, out), bias (out,)."""
    return tuple(_layers(key, (), sizes))


def _layers(key: Key, lead: tuple[int, ...], sizes: tuple[int, ...]) -> list[dict[str, Array]]:
    """Layers of an ensemble of shape `lead`."""
    layers, keys = [], draws.split(key, len(sizes) - 1)
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        kernel_key, bias_key = draws.split(keys[i])
        bound = symmetric_uniform(1.0 / math.sqrt(inputs))
        kernel = bound(kernel_key, (*lead, inputs, outputs))
        layers.append({"kernel": kernel, "bias": bound(bias_key, (*lead, outputs))})
    return layers


def mlp(weights: Weights, x: Array, activation: Callable[[Array], Array] = jax.nn.relu) -> Array:
    """Outputs (B, out) for inputs (B, in), with ReLU between the layers."""
    for layer in weights[:-1]:
        x = activation(x @ layer["kernel"] + layer["bias"])
    return x @ weights[-1]["kernel"] + weights[-1]["bias"]


# Actors ----------------------------------------------------------------------------------------


def deterministic(weights: Weights, obs: Array) -> Array:
    """Deterministic actions (B, m) in (-1, 1) of an `mlp` with m outputs, for obs (B, n)."""
    return jnp.tanh(mlp(weights, obs))


def gaussian(weights: Weights, obs: Array) -> tuple[Array, Array]:
    """Mean and log standard deviation, (B, m) each, of an `mlp` with 2 m outputs."""
    mean, log_std = jnp.split(mlp(weights, obs), 2, axis=-1)
    return mean, jnp.clip(log_std, *LOG_STD_RANGE)


def squashed_mode(weights: Weights, obs: Array) -> Array:
    """Mean action (B, m) of a squashed Gaussian policy, for obs (B, n)."""
    return jnp.tanh(gaussian(weights, obs)[0])


def squash(mean: Array, log_std: Array, noise: Array) -> tuple[Array, Array]:
    """Actions tanh(u), u = mean + std * noise, (..., m), and their log-densities (...).

    The density is that of the action: log N(u) - sum log(1 - tanh(u)^2), the latter in a form
    that stays exact where tanh is 1 in float32.
    """
    u = mean + jnp.exp(log_std) * noise
    normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2.0 * math.pi)
    slope = 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))
    return jnp.tanh(u), (normal - slope).sum(-1)


# Critics ---------------------------------------------------------------------------------------


def make_critics(
    key: Key,
    obs_size: int,
    action_size: int,
    hidden: tuple[int, ...],
    *,
    count: int = 2,
    norm: bool = False,
) -> Weights:
    """`count` critics with every leaf (count, ...); `norm` puts a layer norm after each ReLU.

    The first layer keeps apart what it does to observations and to actions: see `critics`.
    """
    layers = _layers(key, (count,), (obs_size + action_size, *hidden, 1))
    kernel = layers[0].pop("kernel")
    layers[0] |= {"obs": kernel[:, :obs_size], "action": kernel[:, obs_size:]}
    if norm:
        for layer, width in zip(layers, hidden, strict=False):
            layer |= {"scale": jnp.ones((count, width)), "shift": jnp.zeros((count, width))}
    layers[-1] = {name: leaf[..., 0] for name, leaf in layers[-1].items()}
    return tuple(layers)


def critics(weights: Weights, obs: Array, action: Array) -> Array:
    """Values (N, B) for obs (B, n) and action (B, m); (N, B, S) for S actions a row (B, S, m).

    Several actions of one row share what the first layer makes of its observation.
    """
    return for_each(lambda one: critic(one, obs, action), weights)


def for_each(function: Callable[[Weights], PyTree], weights: Weights) -> PyTree:
    """What `function` makes of every member of an ensemble, stacked.

    Two are written out, so that a CPU's cores share them; more are a loop, which compiles in the
    time of one. As products with a batch axis both are slower there, up to four times.
    """
    count = weights[-1]["bias"].shape[0]
    if count > WRITTEN_OUT:
        return jax.lax.map(function, weights)
    return stack.stack([function(member(weights, i)) for i in range(count)])


def member(weights: Weights, i: int) -> Weights:
    """Number `i` of an ensemble."""
    return jax.tree.map(lambda leaf: leaf[i], weights)


def critic(weights: Weights, obs: Array, action: Array) -> Array:
    """Values (B,) of one critic, or (B, S) for actions (B, S, m)."""
    shape = action.shape[:-1]
    first = weights[0]
    of_obs, of_action = obs @ first["obs"] + first["bias"], action @ first["action"]
    x = of_obs + of_action if len(shape) == 1 else of_obs[:, None] + of_action
    x = x.reshape(-1, x.shape[-1])
    x = _activate(first, x)
    for layer in weights[1:-1]:
        x = _activate(layer, x @ layer["kernel"] + layer["bias"])
    return (x @ weights[-1]["kernel"] + weights[-1]["bias"]).reshape(shape)


def _activate(layer: dict[str, Array], x: Array) -> Array:
    x = jax.nn.relu(x)
    if "scale" not in layer:
        return x
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + NORM_EPSILON)
    return x * layer["scale"] + layer["shift"]
