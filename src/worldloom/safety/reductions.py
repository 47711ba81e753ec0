"""Sums and the like over short axes.

A batch of small problems is many rows of a few numbers. XLA reduces such rows in a kernel of its
own and does nothing else there; written out term by term, the same sum becomes part of the
arithmetic around it. The order of the terms is fixed as well, in a batch of any size. And it is
right: jaxlib 0.10.2 on CPUs gets vmapped sums over short axes wrong, silently, in the later rows of
batches of some thousands (jax issue 39103), which a safety layer must not depend on.
"""

import functools
import operator
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int32

from worldloom.core.types import Array

SHORT = 64  # numbers that are written out


def sum_last(values: Float[Array, "*rows k"]) -> Float[Array, "*rows"]:
    """The sum over the last axis."""
    return _reduce(operator.add, jnp.sum, values)


def max_last(values: Float[Array, "*rows k"]) -> Float[Array, "*rows"]:
    """The largest of the last axis."""
    return _reduce(jnp.maximum, jnp.max, values)


def min_last(values: Float[Array, "*rows k"]) -> Float[Array, "*rows"]:
    """The smallest of the last axis."""
    return _reduce(jnp.minimum, jnp.min, values)


def argmin_last(values: Float[Array, "*rows k"]) -> Int32[Array, "*rows"]:
    """Which of the last axis is the smallest; of equals the first."""
    if values.shape[-1] > SHORT:
        return jnp.argmin(values, axis=-1).astype(jnp.int32)
    least, place = values[..., 0], jnp.zeros(values.shape[:-1], jnp.int32)
    for i in range(1, values.shape[-1]):
        less = values[..., i] < least
        least, place = jnp.where(less, values[..., i], least), jnp.where(less, i, place)
    return place


def all_last(values: Bool[Array, "*rows k"]) -> Bool[Array, "*rows"]:
    """Whether all of the last axis hold; yes, where there are none."""
    return _reduce(operator.and_, jnp.all, values)


def _reduce(
    combine: Callable[[Array, Array], Array], whole: Callable[..., Array], values: Array
) -> Array:
    size = values.shape[-1]
    if not 1 <= size <= SHORT:
        return whole(values, axis=-1)
    return functools.reduce(combine, [values[..., i] for i in range(size)])
