"""Running sums."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Bool, Int32, Num

from worldloom.core.types import Array

BLOCK = 32  # axes longer than twice this are summed in blocks


def running_count(flags: Bool[Array, " n *rest"]) -> Int32[Array, " n *rest"]:
    """How many of `flags` hold up to and including each place.

    Products with a triangle of ones. JAX's cumsum is a dozen small kernels on a CPU, which
    take longer to compile and, for the axes of a few hundred that memories have, to run.
    """
    return running_sum(flags.astype(jnp.float32)).astype(jnp.int32)


def running_sum(values: Num[Array, " n *rest"]) -> Num[Array, " n *rest"]:
    """Sums of `values` up to and including each place; exact for counts below 2**24."""
    count = values.shape[0]
    if count <= 2 * BLOCK:
        return jnp.tensordot(_triangle(count, values.dtype), values, axes=1)
    pad = [(0, -count % BLOCK)] + [(0, 0)] * (values.ndim - 1)
    blocks = jnp.pad(values, pad).reshape(-1, BLOCK, *values.shape[1:])
    within = jnp.moveaxis(jnp.tensordot(blocks, _triangle(BLOCK, values.dtype).T, (1, 0)), -1, 1)
    total = within[:, -1]
    before = running_sum(total) - total
    return (within + before[:, None]).reshape(-1, *values.shape[1:])[:count]


def _triangle(count: int, dtype: Any) -> Array:
    # Not in numpy: what a custom_vmap holds as a constant cannot be mapped inside of a cond.
    return jnp.tri(count, dtype=dtype)
