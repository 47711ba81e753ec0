"""Observations centred and scaled by what has been seen so far."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Float

from worldloom.core.types import Array, PyTree

EPSILON = 1e-6  # added to variances
LIMIT = 10.0  # normalised observations are clipped to this many standard deviations


class Normaliser(struct.PyTreeNode):
    """Mean and variance of all that was seen, in the structure of one observation.

    Leaves that are not floating point (masks, colours, counts) are left as they are.
    """

    count: Array
    mean: PyTree
    var: PyTree


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def make_normaliser(obs: PyTree) -> Normaliser:
    """One that has seen nothing, for observations like obs (B, ...)."""

    def filled(value: float) -> PyTree:
        return jax.tree.map(
            lambda x: jnp.full(x.shape[1:] if _is_float(x) else (), value, jnp.float32), obs
        )

    return Normaliser(jnp.float32(0.0), filled(0.0), filled(1.0))


def normalise(normaliser: Normaliser | None, obs: PyTree) -> PyTree:
    """obs (..., *shape) with its floating leaves centred, scaled and clipped."""
    if normaliser is None:
        return obs

    def one(x, mean, var):
        if not _is_float(x):
            return x
        return clip((x - mean) * jax.lax.rsqrt(var + EPSILON))

    return jax.tree.map(one, obs, normaliser.mean, normaliser.var)


def clip(scaled: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Centred and scaled observations within `LIMIT` standard deviations."""
    return jnp.clip(scaled, -LIMIT, LIMIT)


def scales(normaliser: Normaliser | None, size: int) -> tuple[PyTree, PyTree]:
    """What `normalise` subtracts and divides by; without a normaliser 0 and 1, (size,)."""
    if normaliser is None:
        return jnp.zeros(size), jnp.ones(size)
    return normaliser.mean, jax.tree.map(lambda var: jnp.sqrt(var + EPSILON), normaliser.var)


def observe(
    normaliser: Normaliser | None, obs: PyTree, axis_name: str | None = None
) -> Normaliser | None:
    """The normaliser after seeing obs (T, B, *shape); what is not finite teaches it nothing.

    `axis_name` is that of devices, inside of `shard_map`, that each saw as many.
    """
    if normaliser is None:
        return None
    steps, worlds = jax.tree.leaves(obs)[0].shape[:2]
    devices = 1 if axis_name is None else jax.lax.axis_size(axis_name)
    new = jnp.float32(steps * worlds * devices)

    def over_all(x: Array) -> Array:
        mean = x.mean((0, 1))
        return mean if axis_name is None else jax.lax.pmean(mean, axis_name)

    total = normaliser.count + new
    share = new / total

    def merged(x, mean, var):  # the parallel form of Welford's sums (Chan et al. 1979)
        if not _is_float(x):
            return mean, var
        centre = over_all(x)
        gap = centre - mean
        new_mean = mean + share * gap
        spread = over_all(jnp.square(x - centre))
        new_var = (1.0 - share) * var + share * (spread + (1.0 - share) * gap * gap)
        good = jnp.isfinite(new_mean) & jnp.isfinite(new_var)
        return jnp.where(good, new_mean, mean), jnp.where(good, new_var, var)

    both = jax.tree.map(merged, obs, normaliser.mean, normaliser.var)
    mean, var = jax.tree.transpose(jax.tree.structure(obs), None, both)
    return Normaliser(total, mean, var)
