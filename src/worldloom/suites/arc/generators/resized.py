"""Families whose answer has another size than the input: crops, halves, repetition, counting."""

import jax
import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc import operations as op
from worldloom.suites.arc.generators.grids import (
    Example,
    Family,
    Level,
    Rule,
    area,
    around,
    between,
    corner,
    draw_size,
    edit,
    extent,
    mirror,
    patterns,
    point,
    rectangles,
    scattered,
    shift,
    solved_by,
    speckle,
)

# Crops -------------------------------------------------------------------------------------------


def _cropped(grid: Array, size: Array, cells: Array, flipped: Array | bool = False) -> Example:
    """The box around cells is what is left, and perhaps mirrored."""
    new_size = extent(cells)
    top, left = corner(cells)
    output = shift(jnp.where(around(cells), grid, 0), -top, -left)
    output = mirror(output, new_size, columns=flipped)
    inside = area(grid.shape[0], new_size)
    edits = [(op.CROP, cells), edit(op.FLIP_COLUMNS, inside, flipped)]
    return solved_by(grid, size, output, edits, new_size)


def cropped_to_colour(rule: Rule, key: Key, level: Level, flipped: Array) -> Example:
    """To a pattern of the rule's first colour, among rectangles of others."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, 8, level.side)
    cells, top, left = patterns(cell_key, level.side, size)
    grid = jnp.where(cells, rule.colours[0], 0)
    for n in range(1, level.objects):
        other = point(level.side, top[n], left[n]) | point(level.side, top[n] + 1, left[n])
        grid = jnp.where(other, rule.colours[n], grid)
    return _cropped(grid, size, cells, flipped)


def cropped_to_rank(rule: Rule, key: Key, level: Level, rank: Array) -> Example:
    """To the largest or the smallest of rectangles, whose colours change from pair to pair."""
    size_key, cell_key, colour_key = draws.split(key, 3)
    size = draw_size(size_key, 8, level.side)
    cells = rectangles(cell_key, level.side, size)[: level.objects]
    order = scattered(colour_key, jnp.ones((1, level.objects), bool))[0]
    grid = jnp.zeros((level.side,) * 2, jnp.int32)
    for n in range(level.objects):
        grid = jnp.where(cells[n], rule.colours[order[n]], grid)
    return _cropped(grid, size, cells[rank % level.objects])


def halved(rule: Rule, key: Key, level: Level, axis: Array) -> Example:
    """The first half of the rows or of the columns."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, 2, level.side)
    size = size.at[axis].set(2 * (size[axis] // 2))
    grid = speckle(cell_key, level.side, size, rule.colours[:3])
    new_size = size.at[axis].set(size[axis] // 2)
    output = jnp.where(area(level.side, new_size), grid, 0)
    edits = [(op.RESIZE, point(level.side, *(new_size - 1)))]
    return solved_by(grid, size, output, edits, new_size)


# Repetition --------------------------------------------------------------------------------------


def repeated(
    rule: Rule, key: Key, level: Level, axis: Array, flip: Array, mirrored: Array
) -> Example:
    """The grid, and beside or below it the grid again, perhaps as in a mirror."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, 2, level.side)
    half = draw_size(size_key, 2, level.side // 2)[axis]
    size = size.at[axis].set(half)
    grid = speckle(cell_key, level.side, size, rule.colours[:3])
    again = mirror(grid, size, mirrored & (axis == 0), mirrored & (axis == 1))
    way = size * (jnp.arange(2) == axis)
    new_size = size + way
    inside = area(level.side, size)
    flipped, copied = (flip, inside), (op.COPY, inside)
    resized = (op.RESIZE, point(level.side, *(new_size - 1)))
    pasted = (op.PASTE, point(level.side, *way))
    told = solved_by(grid, size, grid + shift(again, *way), [copied, resized, pasted], new_size)
    twice = [flipped, copied, flipped, resized, pasted]
    seen = solved_by(grid, size, told.output, twice, new_size)
    return jax.tree.map(lambda a, b: jnp.where(mirrored, a, b), seen, told)


def _repeated(axis: int, mirrored: bool) -> Family:
    flip = (op.FLIP_ROWS, op.FLIP_COLUMNS)[axis]
    return Family(repeated, {"axis": axis, "flip": flip, "mirrored": mirrored})


def counted(rule: Rule, key: Key, level: Level, axis: Array) -> Example:
    """As many cells in a row or a column as the input has of its colour."""
    size_key, cell_key, count_key = draws.split(key, 3)
    size = draw_size(size_key, 3, level.side)
    count = between(draws.uniform(count_key), 1, 5)
    order = scattered(cell_key, area(level.side, size))
    grid = jnp.where(order < count, rule.colours[0], 0)
    new_size = jnp.ones(2, jnp.int32).at[axis].set(count)
    line = area(level.side, new_size)
    edits = [(op.RESIZE, point(level.side, *(new_size - 1))), (rule.colours[0], line)]
    return solved_by(grid, size, jnp.where(line, rule.colours[0], 0), edits, new_size)


FAMILIES = {
    "crop to a colour": Family(cropped_to_colour, {"flipped": False}),
    "crop and flip": Family(cropped_to_colour, {"flipped": True}),
    "crop to largest": Family(cropped_to_rank, {"rank": 0}),
    "crop to smallest": Family(cropped_to_rank, {"rank": -1}),
    "top half": Family(halved, {"axis": 0}),
    "left half": Family(halved, {"axis": 1}),
    "repeat below": _repeated(0, mirrored=False),
    "repeat beside": _repeated(1, mirrored=False),
    "mirror below": _repeated(0, mirrored=True),
    "mirror beside": _repeated(1, mirrored=True),
    "count in a row": Family(counted, {"axis": 1}),
    "count in a column": Family(counted, {"axis": 0}),
}
