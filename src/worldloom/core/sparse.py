"""Work that few worlds of a batch need, done for those few.

`lax.cond` under `vmap` computes both branches for every world. Where an operation is dear and
seldom wanted, the choice is lifted to the batch instead: the worlds that want it are gathered,
a chunk at a time, worked on, and put back. With none, nothing is done.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from worldloom.core.cumsum import running_count
from worldloom.core.types import Array, PyTree


def update_chosen(
    chosen: Bool[Array, " B"],
    function: Callable[[PyTree], PyTree],
    out: PyTree,
    args: PyTree,
    chunk: int,
) -> PyTree:
    """`out` with the rows in `chosen` replaced by `function(args)` of those rows.

    out (B, ...), args (B, ...): pytrees of arrays. `function` maps rows (n, ...) of `args` to
    rows (n, ...) of `out`, each row by itself, for n = min(chunk, B).
    """
    size = chosen.shape[0]
    if size == 0:
        return out
    if size <= chunk:
        return _update_at_once(chosen, function, out, args)
    rows = chunk
    rank = running_count(chosen)
    total = rank[-1]
    # Chosen rows in order, then numbers past the end: reading clamps those, writing drops them.
    order = jnp.arange(size, 2 * size + rows, dtype=jnp.int32)
    place = jnp.where(chosen, rank - 1, size + rows)
    order = order.at[place].set(jnp.arange(size, dtype=jnp.int32), mode="drop")

    def unfinished(carry):
        return carry[0] < total

    def work(carry):
        start, out = carry
        which = jax.lax.dynamic_slice(order, (start,), (rows,))
        # None is negative; to allow for it would be three kernels more for each leaf.
        plain: dict[str, Any] = {"unique_indices": True, "wrap_negative_indices": False}
        new = function(jax.tree.map(lambda x: x.at[which].get(mode="clip", **plain), args))
        out = jax.tree.map(lambda x, y: x.at[which].set(y, mode="drop", **plain), out, new)
        return start + rows, out

    return jax.lax.while_loop(unfinished, work, (jnp.int32(0), out))[1]


def _update_at_once(
    chosen: Array, function: Callable[[PyTree], PyTree], out: PyTree, args: PyTree
) -> PyTree:
    """`update_chosen` in one chunk: without gathering, which takes longer than few worlds do."""

    def choose(old: Array, new: Array) -> Array:
        mask = chosen.reshape(chosen.shape + (1,) * (old.ndim - 1))
        return jnp.where(mask, new if new.dtype == old.dtype else new.astype(old.dtype), old)

    def work(carry):
        return jnp.zeros_like(carry[0]), jax.tree.map(choose, carry[1], function(args))

    # A loop of at most one round, not a `cond`: that would always do the work under `vmap`.
    return jax.lax.while_loop(lambda carry: carry[0], work, (chosen.any(), out))[1]


def lift(
    function: Callable[[PyTree, PyTree], PyTree],
) -> Callable[[PyTree, PyTree], PyTree]:
    """The face for one item of a function that is written for a batch.

    `function(items, shared)` maps items (B, ...) to results (B, ...). The result takes one item,
    and under any number of `vmap`s over the items it still runs `function` once, on all of them
    as one flat batch: so that what is lifted to the batch stays lifted. (Where `shared` differs
    from item to item, `vmap` does what it always does.)
    """

    @jax.custom_batching.custom_vmap
    def on_batch(items, shared):
        return function(items, shared)

    @on_batch.def_vmap
    def on_batches(axis_size, in_batched, items, shared):
        items_batched, shared_batched = in_batched
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        if any(jax.tree.leaves(shared_batched)):
            out = jax.vmap(function, tuple(axes))(items, shared)
            return out, jax.tree.map(lambda _: True, out)

        def flat(x, batched):
            x = x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        out = on_batch(jax.tree.map(flat, items, items_batched), shared)
        out = jax.tree.map(lambda x: x.reshape(axis_size, -1, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    def on_one(items, shared):
        out = on_batch(jax.tree.map(lambda x: jnp.asarray(x)[None], items), shared)
        return jax.tree.map(lambda x: x[0], out)

    return on_one
