"""Per-agent pytrees on one leading axis: stacked once, at the start, and kept so for life."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from worldloom.core.types import Array, PyTree


def stack(trees: Sequence[PyTree]) -> PyTree:
    """One pytree with leaves (A, ...) from A pytrees of one structure."""
    if not trees:
        raise ValueError("stack: there is nothing to stack; give at least one pytree")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree: PyTree) -> list[PyTree]:
    """The inverse of `stack`."""
    return [index(tree, i) for i in range(size(tree))]


def index(tree: PyTree, i: int | Array) -> PyTree:
    """Agent `i` of a stacked pytree; `i` may be traced."""
    return jax.tree.map(lambda leaf: leaf[i], tree)


def put(tree: PyTree, i: int | Int[Array, ""], value: PyTree) -> PyTree:
    """The stacked pytree with agent `i` replaced."""
    return jax.tree.map(lambda leaf, new: leaf.at[i].set(new), tree, value)


def size(tree: PyTree) -> int:
    """How many agents are stacked."""
    return jax.tree.leaves(tree)[0].shape[0]


def where(mask: Bool[Array, "..."], new: PyTree, old: PyTree) -> PyTree:
    """`new` for the agents (or worlds) in `mask`, `old` for the rest."""

    def choose(a, b):
        if a.shape[: mask.ndim] != mask.shape:
            raise ValueError(
                f"stack.where: a mask of shape {mask.shape} cannot choose within a leaf of shape "
                f"{a.shape}; the leaf's first axes must be those of the mask"
            )
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree.map(choose, new, old)
