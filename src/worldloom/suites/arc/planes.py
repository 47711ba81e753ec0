"""Grids as bit-planes: the representation that every part of the suite works on.

A **plane** is a set of cells, uint32 (..., S): bit c of word r says whether cell (r, c) is in it.
A **grid** is four planes, uint32 (..., 4, S): bit c of word r in plane p is bit p of the colour
of cell (r, c). S, the number of words, is the canvas's longer side rounded up to a power of two,
at least 8 and at most 32, so that planes can be transposed in place. Cells outside of the active
area are 0, always.

Any number of leading axes is allowed everywhere: nothing here needs `vmap`. A position or size
is int32 of the leading shape; a **box** is the tuple of such arrays (top, left, bottom, right),
corners inclusive.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array

PLANES = 4
WORD = 32


class Box(NamedTuple):
    """Rows top .. bottom and columns left .. right, corners inclusive; int32 (...)."""

    top: Array
    left: Array
    bottom: Array
    right: Array

    @property
    def height(self) -> Array:
        return self.bottom - self.top + 1

    @property
    def width(self) -> Array:
        return self.right - self.left + 1


def words_for(grid_shape: tuple[int, int]) -> int:
    """S, the number of words of a plane that holds a canvas of `grid_shape`."""
    height, width = grid_shape
    if not (1 <= height <= WORD and 1 <= width <= WORD):
        raise ValueError(f"arc: grid_shape={grid_shape}; each side must be between 1 and {WORD}")
    return max(8, 1 << (max(height, width) - 1).bit_length())


# Packing ---------------------------------------------------------------------------------------


def pack_numpy(cells: np.ndarray, words: int) -> np.ndarray:
    """Grids of uint32 (..., 4, words) from colours (..., H, W), on the host."""
    cells = np.asarray(cells).astype(np.uint8)
    *lead, height, width = cells.shape
    bits = np.zeros((*lead, PLANES, words, WORD), np.uint8)
    bit = np.arange(PLANES, dtype=np.uint8)[:, None, None]
    bits[..., :height, :width] = (cells[..., None, :, :] >> bit) & 1
    packed = np.packbits(bits, axis=-1, bitorder="little").view("<u4")[..., 0]
    return packed.astype(np.uint32, copy=False)


def pack_plane(cells: Array, words: int) -> Array:
    """A plane (..., words) from a bool mask (..., H, W)."""
    height, width = cells.shape[-2:]
    weight = jnp.left_shift(jnp.uint32(1), jnp.arange(width, dtype=jnp.uint32))
    value = jnp.where(cells, weight, jnp.uint32(0)).sum(-1, dtype=jnp.uint32)
    pad = [(0, 0)] * (cells.ndim - 2) + [(0, words - height)]
    return jnp.pad(value, pad)


def unpack_plane(plane: Array, grid_shape: tuple[int, int]) -> Array:
    """A bool mask (..., H, W) from a plane (..., S)."""
    height, width = grid_shape
    columns = jnp.arange(width, dtype=jnp.uint32)
    return ((plane[..., :height, None] >> columns) & 1).astype(bool)


def unpack(grid: Array, grid_shape: tuple[int, int]) -> Array:
    """Colours int8 (..., H, W) from a grid (..., 4, S)."""
    height, width = grid_shape
    columns = jnp.arange(width, dtype=jnp.uint32)
    colour = jnp.uint32(0)
    for p in range(PLANES):
        bit = (grid[..., p, :height, None] >> columns) & 1
        colour = colour | (bit << p)
    return colour.astype(jnp.int8)


def paint(colour: Array) -> Array:
    """The four words (..., 4, 1) that set every cell to `colour` (...)."""
    bit = (colour[..., None] >> jnp.arange(PLANES)) & 1
    return jnp.where(bit == 1, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))[..., None]


# Sets of cells ---------------------------------------------------------------------------------


def _first_columns(count: Array) -> Array:
    """A word with bits 0 .. count-1 set; count is at most 32."""
    narrow = (jnp.uint32(1) << jnp.clip(count, 0, WORD - 1).astype(jnp.uint32)) - 1
    return jnp.where(count >= WORD, jnp.uint32(0xFFFFFFFF), narrow)


def area(height: Array, width: Array, words: int) -> Array:
    """The plane of rows 0 .. height-1 and columns 0 .. width-1."""
    rows = jnp.arange(words)
    return jnp.where(rows < height[..., None], _first_columns(width)[..., None], jnp.uint32(0))


def box_plane(box: Box, words: int) -> Array:
    """The plane of a box; empty if its corners are out of order."""
    rows = jnp.arange(words)
    inside = (rows >= box.top[..., None]) & (rows <= box.bottom[..., None])
    columns = _first_columns(box.right + 1) & ~_first_columns(box.left)
    return jnp.where(inside, columns[..., None], jnp.uint32(0))


def count(plane: Array) -> Array:
    """How many cells are in the plane, int32 (...)."""
    return jax.lax.population_count(plane).astype(jnp.int32).sum(-1)


def bounding_box(plane: Array) -> Box:
    """The smallest box around the plane; top > bottom if it is empty."""
    words = plane.shape[-1]
    rows = jnp.arange(words)
    used = plane != 0
    top = jnp.where(used, rows, words).min(-1)
    bottom = jnp.where(used, rows, -1).max(-1)
    columns = jnp.bitwise_or.reduce(plane, axis=-1)
    lowest = columns & (~columns + 1)
    left = jax.lax.population_count(lowest - 1).astype(jnp.int32)
    right = WORD - 1 - jax.lax.clz(columns).astype(jnp.int32)
    return Box(top, left, bottom, right)


def nonzero(grid: Array) -> Array:
    """The plane (..., S) of cells whose colour is not 0."""
    return jnp.bitwise_or.reduce(grid, axis=-2)


def same_cells(a: Array, b: Array) -> Array:
    """The plane (..., S) of cells that have the same colour in both grids."""
    other = a ^ b
    return ~(other[..., 0, :] | other[..., 1, :] | other[..., 2, :] | other[..., 3, :])


# Moving cells ----------------------------------------------------------------------------------


def transpose(plane: Array) -> Array:
    """Rows become columns, for planes and for grids: swaps of ever smaller blocks of cells."""
    words = plane.shape[-1]
    # Rows on the leading axis: a swap of rows then works on long vectors.
    rows = plane.reshape(-1, words).T
    half = words // 2
    while half:
        # The low `half` bits of every group of 2 * half bits.
        low = np.uint32(sum(1 << c for c in range(WORD) if (c // half) % 2 == 0))
        pairs = rows.reshape(words // (2 * half), 2, half, -1)
        upper, lower = pairs[:, 0], pairs[:, 1]
        swap = ((upper >> half) ^ lower) & low
        pairs = jnp.stack([upper ^ (swap << half), lower ^ swap], axis=1)
        rows = pairs.reshape(words, -1)
        half //= 2
    return rows.T.reshape(plane.shape)


def reverse_columns(plane: Array) -> Array:
    """Column c becomes column 31 - c."""
    for half, low in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        mask = jnp.uint32(low)
        plane = ((plane >> half) & mask) | ((plane & mask) << half)
    return (plane >> 16) | (plane << 16)


def shift_columns(plane: Array, by: Array) -> Array:
    """Column c becomes column c + by, for -31 <= by <= 31; `by` broadcasts against the words."""
    left = plane << jnp.maximum(by, 0).astype(jnp.uint32)
    return left >> jnp.maximum(-by, 0).astype(jnp.uint32)


def take_rows(grid: Array, row: Array) -> Array:
    """Row r of the result is row `row[..., r]` of a grid (..., 4, S), or empty if there is none."""
    words = grid.shape[-1]
    inside = (row >= 0) & (row < words)
    safe = jnp.clip(row, 0, words - 1)[..., None, :]
    taken = jnp.take_along_axis(grid, safe, axis=-1, mode="promise_in_bounds")
    return jnp.where(inside[..., None, :], taken, jnp.uint32(0))


def place(
    grid: Array, source: Box, top: Array, left: Array, flip_rows: Array, flip_columns: Array
) -> Array:
    """The contents of `source`, perhaps mirrored, with their top-left corner at (top, left).

    Cells outside of `source` must be empty. What leaves the words on any side is lost.
    """
    rows = jnp.arange(grid.shape[-1])
    start = jnp.where(flip_rows, source.bottom + top, source.top - top)
    row = jnp.where(flip_rows[..., None], start[..., None] - rows, start[..., None] + rows)
    taken = take_rows(grid, row)
    flip = flip_columns[..., None, None]
    taken = jnp.where(flip, reverse_columns(taken), taken)
    by = jnp.where(flip_columns, left + source.right - (WORD - 1), left - source.left)
    return shift_columns(taken, jnp.clip(by, -(WORD - 1), WORD - 1)[..., None, None])


# Flood fill ------------------------------------------------------------------------------------


def _spread(reached: Array, open_cells: Array) -> Array:
    """One row up and down, then along rows as far as it goes; words (S, n), rows leading.

    Towards higher columns the carry of an addition runs through all open cells at once, towards
    lower ones strides are doubled.
    """
    none = jnp.zeros_like(reached[:1])
    above, below = jnp.concatenate([none, reached[:-1]]), jnp.concatenate([reached[1:], none])
    reached = reached | ((above | below) & open_cells)
    reached = reached | (open_cells & ~(open_cells + reached))
    free, step = open_cells, 1
    while step < WORD:
        reached = reached | (free & (reached >> step))
        free = free & (free >> step)
        step *= 2
    return reached


def flood(seeds: Array, open_cells: Array) -> Array:
    """All of `open_cells` (n, S) that is connected, by sides, to `seeds` (n, S) within it."""
    # Rows on the leading axis: a shift of rows then moves whole vectors of worlds.
    seeds, open_cells = seeds.T & open_cells.T, open_cells.T

    def unfinished(carry):
        # Rows first: one reduction of all bits would be unrolled into a thousand instructions.
        reached, before = carry
        return jnp.any(jnp.bitwise_or.reduce(reached ^ before, axis=0) != 0)

    def grow(carry):
        reached, _ = carry
        return _spread(reached, open_cells), reached

    # The complement differs everywhere: the first look always finds more to do.
    return jax.lax.while_loop(unfinished, grow, (seeds, ~seeds))[0].T
