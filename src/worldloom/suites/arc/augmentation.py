"""More tasks out of those there are: whole tasks turned, mirrored and recoloured, inside jit.

A symmetry and a permutation of the colours change every grid of a task in the same way, so that
what leads from inputs to outputs stays one rule.
"""

import zlib
from functools import partial

import jax
import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc import planes
from worldloom.suites.arc.types import TaskBuffer

NUM_COLOURS = 10
SYMMETRIES = (
    "identity",
    "flip columns",
    "flip rows",
    "rotate 180",
    "transpose",
    "rotate clockwise",
    "rotate counter-clockwise",
    "anti-transpose",
)
"""The symmetries of the square by number: 4 transposes, and after that 2 flips the rows and 1 the
columns. The first four keep height and width."""


def symmetry(grid: Array, size: Array, which: Array) -> tuple[Array, Array]:
    """The grid (..., 4, S) of size (..., 2) under the symmetry `which` (...), and its new size.

    The grid stays at the top left. See `SYMMETRIES`.
    """
    turned = (which & 4) > 0
    grid = jnp.where(turned[..., None, None], planes.transpose(grid), grid)
    size = jnp.where(turned[..., None], size[..., ::-1], size)
    zero = jnp.zeros_like(size[..., 0])
    whole = planes.Box(zero, zero, size[..., 0] - 1, size[..., 1] - 1)
    return planes.place(grid, whole, zero, zero, (which & 2) > 0, (which & 1) > 0), size


def permute_colours(grid: Array, size: Array, permutation: Array) -> Array:
    """The grid (..., 4, S) of size (..., 2) with colour c replaced by `permutation[..., c]`.

    `permutation` is int32 (..., 10).
    """
    area = planes.area(size[..., 0], size[..., 1], grid.shape[-1])
    recoloured = jnp.zeros_like(grid)
    for colour in range(NUM_COLOURS):
        cells = area & planes.same_cells(grid, planes.paint(jnp.int32(colour)))
        recoloured |= cells[..., None, :] & planes.paint(permutation[..., colour])
    return recoloured


def augment(
    key: Key,
    tasks: TaskBuffer,
    copies: int = 1,
    symmetries: bool = True,
    colours: bool = True,
    background: bool = False,
) -> TaskBuffer:
    """`copies` changed copies of every task; the originals are not among them.

    Each copy of each task is drawn a symmetry, if `symmetries`, and a permutation of the colours
    1 to 9, if `colours` (with `background`: of 0 to 9), for all of its pairs, inputs and outputs.
    Task t of copy i is task `i * num_tasks + t` of the result. On a canvas that is not square,
    where grids may have no room to be turned, the symmetries are the four that keep their size.

    Pure and fit for jit with everything but `key` and `tasks` static. The result has an identity
    of its own that depends on the key: worlds that were reset with other tasks must be reset.
    """
    if copies < 1:
        raise ValueError(f"augment: copies={copies}; there must be at least 1")
    which_key, colour_key = draws.split(key)
    shape = (copies, tasks.num_tasks)
    grids = jnp.broadcast_to(tasks.grids, (copies, *tasks.grids.shape))
    sizes = jnp.broadcast_to(tasks.sizes, (copies, *tasks.sizes.shape))
    if symmetries:
        height, width = tasks.grid_shape
        which = draws.integers(which_key, shape, 8 if height == width else 4)
        which = jnp.broadcast_to(which[:, tasks.task, None], sizes.shape[:-1])
        grids, sizes = symmetry(grids, sizes, which)
    if colours:  # after the symmetries, whose steps would each be fused with it and repeat it
        permutation = _permutations(colour_key, shape, fixed=0 if background else 1)
        grids = permute_colours(grids, sizes, permutation[:, tasks.task, None])

    def repeat(rows: Array, stride: int) -> Array:
        """Rows (N,) of every copy, `stride` further on from copy to copy."""
        return (rows + stride * jnp.arange(copies, dtype=rows.dtype)[:, None]).reshape(-1)

    # The same key with other options makes other tasks.
    options = zlib.crc32(repr((copies, symmetries, colours, background)).encode())
    return tasks.replace(
        grids=grids.reshape(-1, *grids.shape[2:]),
        sizes=sizes.reshape(-1, *sizes.shape[2:]),
        task=repeat(tasks.task, tasks.num_tasks),
        demos_start=repeat(tasks.demos_start, tasks.num_pairs),
        demos_count=repeat(tasks.demos_count, 0),
        tests_start=repeat(tasks.tests_start, tasks.num_pairs),
        tests_count=repeat(tasks.tests_count, 0),
        identity=(tasks.identity ^ draws.bits(key)) + jnp.uint32(options),
    )


def _permutations(key: Key, shape: tuple[int, ...], fixed: int) -> Array:
    """Random permutations int32 (*shape, 10) that leave the colours below `fixed` alone."""
    order = jnp.argsort(draws.uniform(key, (*shape, NUM_COLOURS - fixed)), axis=-1)
    kept = jnp.broadcast_to(jnp.arange(fixed), (*shape, fixed))
    return jnp.concatenate([kept, order + fixed], axis=-1).astype(jnp.int32)


@partial(jax.jit, static_argnames="copies")
def with_copies(tasks: TaskBuffer, copies: int, key: Key) -> TaskBuffer:
    """The tasks, followed by `copies` turned and recoloured copies of each (see `augment`)."""
    more = augment(key, tasks, copies)
    shifts = {
        "task": tasks.num_tasks,
        "demos_start": tasks.num_pairs,
        "tests_start": tasks.num_pairs,
    }
    arrays = ("grids", "sizes", "demos_count", "tests_count", *shifts)
    joined = {
        name: jnp.concatenate([one, other + jnp.asarray(shifts.get(name, 0), other.dtype)])
        for name, one, other in ((n, getattr(tasks, n), getattr(more, n)) for n in arrays)
    }
    return tasks.replace(**joined, identity=tasks.identity ^ more.identity)
