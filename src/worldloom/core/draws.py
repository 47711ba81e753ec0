"""Cheap random numbers inside compiled loops.

JAX's threefry spends about a hundred integer operations on each number, and as many lines of
generated code on each call: in a batch of small worlds that is most of the step and most of the
compile time. Here a typed key seeds a counter-based hash instead (two rounds of a 32-bit
avalanche mixer with multipliers from C. Wellons' "hash prospector" search). Each call hashes the
counters 0 .. n-1 under the key's two words, so the same key gives the same numbers, and
different keys, made by `split` here or by `jax.random.split`, give unrelated streams.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float32, Int32, UInt32

from worldloom.core.types import Array, Key


def _mix(x: Array) -> Array:
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0x735A2D97)
    return x ^ (x >> 15)


def is_key(leaf: Any) -> bool:
    """Whether an array, or its shape and type, is one of typed keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def as_key(key: Array) -> Key:
    """A typed key, from one of either kind: `jax.random.key`, or the bare words of `PRNGKey`."""
    return key if is_key(key) else jax.random.wrap_key_data(jnp.asarray(key))


def bits(key: Key, shape: tuple[int, ...] = (), first: Array | int = 0) -> UInt32[Array, "*shape"]:
    """Uniform numbers of 32 bits.

    first: how many rows of a larger draw with this key come before these.
    """
    key = as_key(key)
    if key.shape:
        raise ValueError(f"draws: one key is needed, got keys of shape {key.shape}; use jax.vmap")
    words = jax.random.key_data(key)
    counter = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    if not isinstance(first, int) or first:
        counter = counter + jnp.uint32(first) * jnp.uint32(math.prod(shape[1:]))
    # Counted from 1: the mixer maps 0 to 0, and the words of `key(0)` are zeros.
    return _mix(_mix((counter + 1) * jnp.uint32(0x9E3779B9) + words[0]) ^ words[-1])


def first_row(count: int, axis_name: str | None) -> Array | int:
    """Where the rows of a device begin among those of all, each of which has `count`.

    `axis_name` is that of the devices, inside of `shard_map`; None: there is but one.
    """
    return 0 if axis_name is None else jax.lax.axis_index(axis_name) * count


def split(key: Key, count: int = 2, first: Array | int = 0) -> Key:
    """`count` new keys (count,), as `jax.random.split` makes them but by the hash.

    For loops over worlds: threefry would cost more there than what the keys are used for.
    """
    key = as_key(key)
    width = jax.random.key_data(key).shape[-1]
    return jax.random.wrap_key_data(bits(key, (count, width), first), impl=jax.random.key_impl(key))


def uniform(
    key: Key, shape: tuple[int, ...] = (), first: Array | int = 0
) -> Float32[Array, "*shape"]:
    """Uniform in [0, 1): multiples of 2**-24, each as likely."""
    return (bits(key, shape, first) >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def integers(key: Key, shape: tuple[int, ...], n: int) -> Int32[Array, "*shape"]:
    """Uniform in 0 .. n-1, for n small beside 2**24."""
    if not 1 <= n <= 2**24:
        raise ValueError(f"draws.integers: n={n}; it must be between 1 and 2**24")
    return jnp.minimum((uniform(key, shape) * n).astype(jnp.int32), n - 1)


def normal(
    key: Key, shape: tuple[int, ...] = (), first: Array | int = 0
) -> Float32[Array, "*shape"]:
    """Standard normal by the inverse of its distribution function."""
    # The middles of 2**24 equal parts of (-1, 1) are odd multiples of 2**-24: float32 holds each
    # exactly, so that none is rounded to 1, whose inverse is infinite.
    odd = 2 * (bits(key, shape, first) >> 8).astype(jnp.int32) + (1 - 2**24)
    middles = odd.astype(jnp.float32) * jnp.float32(2.0**-24)
    return jnp.float32(math.sqrt(2.0)) * jax.scipy.special.erfinv(middles)
