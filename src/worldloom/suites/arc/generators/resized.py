"""Families whose answer has another size than the input: crops, halves, repetition, counting."""

import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc import operations as op
from worldloom.suites.arc.generators.grids import (
    Example,
    Level,
    Rule,
    area,
    around,
    between,
    corner,
    draw_size,
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


def _cropped(grid: Array, size: Array, cells: Array, flip: bool = False) -> Example:
    """The box around cells is what is left, and perhaps mirrored."""
    new_size = extent(cells)
    top, left = corner(cells)
    output = shift(jnp.where(around(cells), grid, 0), -top, -left)
    edits = [(op.CROP, cells)]
    if flip:
        output = mirror(output, new_size, columns=True)
        edits.append((op.FLIP_COLUMNS, area(grid.shape[0], new_size)))
    return solved_by(grid, size, output, edits, new_size)


def _crop_colour(flip: bool):
    """To a pattern of the rule's first colour, among rectangles of others."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, cell_key = draws.split(key)
        size = draw_size(size_key, 8, level.side)
        cells, top, left = patterns(cell_key, level.side, size)
        grid = jnp.where(cells, rule.colours[0], 0)
        for n in range(1, level.objects):
            other = point(level.side, top[n], left[n]) | point(level.side, top[n] + 1, left[n])
            grid = jnp.where(other, rule.colours[n], grid)
        return _cropped(grid, size, cells, flip)

    return family


def _crop_ranked(rank: int):
    """To the largest or the smallest of rectangles, whose colours change from pair to pair."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, cell_key, colour_key = draws.split(key, 3)
        size = draw_size(size_key, 8, level.side)
        cells = rectangles(cell_key, level.side, size)[: level.objects]
        order = scattered(colour_key, jnp.ones((1, level.objects), bool))[0]
        grid = jnp.zeros((level.side,) * 2, jnp.int32)
        for n in range(level.objects):
            grid = jnp.where(cells[n], rule.colours[order[n]], grid)
        return _cropped(grid, size, cells[rank % level.objects])

    return family


def _half(axis: int):
    """The first half of the rows or of the columns."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, cell_key = draws.split(key)
        size = draw_size(size_key, 2, level.side)
        size = size.at[axis].set(2 * (size[axis] // 2))
        grid = speckle(cell_key, level.side, size, rule.colours[:3])
        new_size = size.at[axis].set(size[axis] // 2)
        output = jnp.where(area(level.side, new_size), grid, 0)
        edits = [(op.RESIZE, point(level.side, *(new_size - 1)))]
        return solved_by(grid, size, output, edits, new_size)

    return family


# Repetition --------------------------------------------------------------------------------------


def _repeated(axis: int, mirrored: bool):
    """The grid, and beside or below it the grid again, perhaps as in a mirror."""
    flip = op.FLIP_ROWS if axis == 0 else op.FLIP_COLUMNS

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, cell_key = draws.split(key)
        size = draw_size(size_key, 2, level.side)
        half = draw_size(size_key, 2, level.side // 2)[axis]
        size = size.at[axis].set(half)
        grid = speckle(cell_key, level.side, size, rule.colours[:3])
        again = mirror(grid, size, axis == 0, axis == 1) if mirrored else grid
        way = (size[0], 0) if axis == 0 else (0, size[1])
        new_size = size.at[axis].multiply(2)
        inside = area(level.side, size)
        edits = [(flip, inside)] if mirrored else []
        edits += [(op.COPY, inside)]
        edits += [(flip, inside)] if mirrored else []
        edits += [(op.RESIZE, point(level.side, *(new_size - 1)))]
        edits += [(op.PASTE, point(level.side, *way))]
        return solved_by(grid, size, grid + shift(again, *way), edits, new_size)

    return family


def _counted(axis: int):
    """As many cells in a row or a column as the input has of its colour."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, cell_key, count_key = draws.split(key, 3)
        size = draw_size(size_key, 3, level.side)
        count = between(draws.uniform(count_key), 1, 5)
        order = scattered(cell_key, area(level.side, size))
        grid = jnp.where(order < count, rule.colours[0], 0)
        new_size = jnp.ones(2, jnp.int32).at[axis].set(count)
        line = area(level.side, new_size)
        edits = [(op.RESIZE, point(level.side, *(new_size - 1))), (rule.colours[0], line)]
        return solved_by(grid, size, jnp.where(line, rule.colours[0], 0), edits, new_size)

    return family


FAMILIES = {
    "crop to a colour": _crop_colour(flip=False),
    "crop and flip": _crop_colour(flip=True),
    "crop to largest": _crop_ranked(0),
    "crop to smallest": _crop_ranked(-1),
    "top half": _half(0),
    "left half": _half(1),
    "repeat below": _repeated(0, mirrored=False),
    "repeat beside": _repeated(1, mirrored=False),
    "mirror below": _repeated(0, mirrored=True),
    "mirror beside": _repeated(1, mirrored=True),
    "count in a row": _counted(1),
    "count in a column": _counted(0),
}
