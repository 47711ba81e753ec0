"""Running sums of short axes."""

import jax.numpy as jnp

from worldloom.core.types import Array

SHORT = 1024  # axes up to this length are summed by a triangle of ones


def running_count(flags: Array) -> Array:
    """How many of `flags` (n, ...) hold up to and including each place, int32 of their shape.

    One product with a triangle of ones. JAX's cumsum is a dozen small kernels on a CPU, which
    take longer to compile and, for the axes of a few hundred that memories have, to run.
    """
    return running_sum(flags.astype(jnp.float32)).astype(jnp.int32)


def running_sum(values: Array) -> Array:
    """Sums of `values` (n, ...) up to and including each place; exact for counts below 2**24."""
    if values.shape[0] > SHORT:
        return jnp.cumsum(values, axis=0)
    places = jnp.arange(values.shape[0])
    triangle = (places[:, None] >= places).astype(values.dtype)
    return jnp.tensordot(triangle, values, axes=1)
