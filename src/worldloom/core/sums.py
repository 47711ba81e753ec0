"""Running sums."""

import jax.numpy as jnp

from worldloom.core.types import Array

BLOCK = 32  # axes longer than twice this are summed in blocks


def running_count(flags: Array) -> Array:
    """How many of `flags` (n, ...) hold up to and including each place, int32 of their shape.

    Products with a triangle of ones. JAX's cumsum is a dozen small kernels on a CPU, which
    take longer to compile and, for the axes of a few hundred that memories have, to run.
    """
    return running_sum(flags.astype(jnp.float32)).astype(jnp.int32)


def running_sum(values: Array) -> Array:
    """Sums of `values` (n, ...) up to and including each place; exact for counts below 2**24."""
    count = values.shape[0]
    if count <= 2 * BLOCK:
        places = jnp.arange(count)
        triangle = (places[:, None] >= places).astype(values.dtype)
        return jnp.tensordot(triangle, values, axes=1)
    pad = [(0, -count % BLOCK)] + [(0, 0)] * (values.ndim - 1)
    blocks = jnp.pad(values, pad).reshape(-1, BLOCK, *values.shape[1:])
    within = jnp.swapaxes(running_sum(jnp.swapaxes(blocks, 0, 1)), 0, 1)
    total = within[:, -1]
    before = running_sum(total) - total
    return (within + before[:, None]).reshape(-1, *values.shape[1:])[:count]
