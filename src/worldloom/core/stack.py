"""Per-agent pytrees on one leading axis: stacked once, at the start, and kept so for life."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from worldloom.core.types import Array, PyTree


def stack(trees: Sequence[PyTree]) -> PyTree:
    """One pytree with leaves (A, ...) from A pytrees of one structure."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree: PyTree) -> list[PyTree]:
    """The inverse of `stack`."""
    return [index(tree, i) for i in range(size(tree))]


def index(tree: PyTree, i: int | Array) -> PyTree:
    """Agent `i` of a stacked pytree; `i` may be traced."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def put(tree: PyTree, i: int | Array, value: PyTree) -> PyTree:
    """The stacked pytree with agent `i` replaced."""
    return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), tree, value)


def size(tree: PyTree) -> int:
    """How many agents are stacked."""
    return jax.tree.leaves(tree)[0].shape[0]


def where(mask: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` for the agents (or worlds) in `mask` (A,), `old` for the rest."""

    def choose(a, b):
        m = mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim))
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            data = jnp.where(m[..., None], jax.random.key_data(a), jax.random.key_data(b))
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(a))
        return jnp.where(m, a, b)

    return jax.tree.map(choose, new, old)
