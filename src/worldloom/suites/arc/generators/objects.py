"""Families about objects: the largest, what is enclosed, lines, falling, copies at a marker."""

from collections.abc import Callable

import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc import operations as op
from worldloom.suites.arc.generators.grids import (
    OBJECT_SIDE,
    Example,
    Level,
    Rule,
    area,
    around,
    between,
    box,
    draw_size,
    mirror,
    moved_by,
    pattern,
    patterns,
    point,
    rectangles,
    scattered,
    shift,
    solved_by,
)

SMALLEST = 8  # side of a grid with a place for four objects


def _rectangles(key: Key, level: Level) -> tuple[Array, Array]:
    """As many rectangles as the level says, the largest first, (n, N, N), and the grid's size."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, SMALLEST, level.side)
    return rectangles(cell_key, level.side, size)[: level.objects], size


# By size -----------------------------------------------------------------------------------------


def _painted(*which: tuple[int, int]):
    """Objects of one colour, of which some, by their rank in size, become another; -1 is none."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        cells, size = _rectangles(key, level)
        grid = output = jnp.where(cells.any(0), rule.colours[0], 0)
        edits = []
        for rank, new in which:
            colour = 0 if new < 0 else rule.colours[new]
            rank = rank % level.objects
            output = jnp.where(cells[rank], colour, output)
            edits.append((colour, cells[rank]))
        return solved_by(grid, size, output, edits)

    return family


def keep_largest(rule: Rule, key: Key, level: Level) -> Example:
    """The largest object alone stays."""
    cells, size = _rectangles(key, level)
    grid = jnp.where(cells.any(0), rule.colours[0], 0)
    edits = [(0, cells[n]) for n in range(1, level.objects)]
    return solved_by(grid, size, jnp.where(cells[0], grid, 0), edits)


# What is enclosed or between ---------------------------------------------------------------------


def _hollow(key: Key, level: Level) -> tuple[Array, Array, Array]:
    """A frame somewhere, what it encloses, and the size of the grid."""
    size_key, place_key = draws.split(key)
    size = draw_size(size_key, 5, level.side)
    uniform = draws.uniform(place_key, (4,))
    high = between(uniform[:2], 3, jnp.minimum(size, 6))
    top, left = between(uniform[2:], 0, size - high)
    outer = box(level.side, top, left, high[0], high[1])
    inner = box(level.side, top + 1, left + 1, high[0] - 2, high[1] - 2)
    return outer & ~inner, inner, size


def _enclosed(colour: int):
    def family(rule: Rule, key: Key, level: Level) -> Example:
        frame, inner, size = _hollow(key, level)
        grid = jnp.where(frame, rule.colours[0], 0)
        output = jnp.where(inner, rule.colours[colour], grid)
        return solved_by(grid, size, output, [(rule.colours[colour], inner)])

    return family


def _ends(key: Key, level: Level, line: bool) -> tuple[Array, Array]:
    """Two cells, on a line or not, and the size of the grid."""
    size_key, place_key = draws.split(key)
    size = draw_size(size_key, 5, level.side)
    uniform = draws.uniform(place_key, (5,))
    start = between(uniform[:2], 0, size - 3)
    end = between(uniform[2:4], start + 2, size - 1)
    if line:
        along = jnp.stack([uniform[4] < 0.5, uniform[4] >= 0.5])
        end = jnp.where(along, end, start)
    return point(level.side, *start) | point(level.side, *end), size


def _boxed(line: bool, colour: int):
    """What lies between two cells of a colour, along a line or in the box around them."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        ends, size = _ends(key, level, line)
        grid = jnp.where(ends, rule.colours[0], 0)
        output = jnp.where(around(ends), rule.colours[colour], 0)
        return solved_by(grid, size, output, [(rule.colours[colour], around(ends))])

    return family


def connect_two(rule: Rule, key: Key, level: Level) -> Example:
    """Two rows with two cells each: a line between those of a colour."""
    size_key, row_key, column_key = draws.split(key, 3)
    size = draw_size(size_key, 5, level.side)
    rows = jnp.arange(level.side)[:, None]
    order = scattered(row_key, (rows < size[0]) & (jnp.arange(level.side) == 0))[:, :1]
    uniform = draws.uniform(column_key, (2, 2))
    left = between(uniform[0], 0, size[1] - 3)
    right = between(uniform[1], left + 2, size[1] - 1)
    columns = jnp.arange(level.side)
    grid = output = jnp.zeros((level.side, level.side), jnp.int32)
    edits = []
    for n in range(2):
        line = (order == n) & (columns >= left[n]) & (columns <= right[n])
        ends = line & ((columns == left[n]) | (columns == right[n]))
        grid = jnp.where(ends, rule.colours[n], grid)
        output = jnp.where(line, rule.colours[n], output)
        edits.append((rule.colours[n], line))
    return solved_by(grid, size, output, edits)


def fill_gaps(rule: Rule, key: Key, level: Level) -> Example:
    """The gaps in the box of a pattern are painted."""
    grid, size, cells = _one_pattern(rule, key, level)
    frame, paint = around(cells), rule.colours[4]
    output = jnp.where(frame & ~cells, paint, grid)
    edits = [(op.COPY, cells), (paint, frame), (op.PASTE_NONZERO, frame)]
    return solved_by(grid, size, output, edits)


# Lines -------------------------------------------------------------------------------------------


def _lines(*ways: str):
    """A cell of each colour becomes a line through the grid, later ones over earlier ones."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, place_key = draws.split(key)
        size = draw_size(size_key, 4, level.side)
        inside, grid, edits = area(level.side, size), jnp.zeros((level.side,) * 2, jnp.int32), []
        # Of two cells, neither in the row or column of the other, so that no line hides one.
        first = between(draws.uniform(place_key, (2,)), 0, size - 1)
        apart = between(draws.uniform(size_key, (4,))[2:], 1, size - 1)
        cells = [point(level.side, *first), point(level.side, *((first + apart) % size))]
        for n, _ in enumerate(ways):
            grid = jnp.where(cells[n], rule.colours[n], grid)
        output = grid
        for n, way in enumerate(ways):
            line = cells[n].any(1, keepdims=True) if way == "row" else cells[n].any(0)
            output = jnp.where(inside & line, rule.colours[n], output)
            edits.append((rule.colours[n], inside & line))
        return solved_by(grid, size, output, edits)

    return family


# One that moves or turns -------------------------------------------------------------------------


def _one_pattern(rule: Rule, key: Key, level: Level) -> tuple[Array, Array, Array]:
    """A grid with one pattern in the first colour, its size, and the pattern's cells."""
    size_key, shape_key, place_key = draws.split(key, 3)
    size = draw_size(size_key, 5, level.side)
    place = between(draws.uniform(place_key, (2,)), 0, size - OBJECT_SIDE)
    cells = shift(pattern(shape_key, level.side), *place)
    return jnp.where(cells, rule.colours[0], 0), size, cells


def _travels(operation: int, way: tuple[int, int]):
    """A pattern moves until the edge of the grid stops it."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        grid, size, cells = _one_pattern(rule, key, level)
        top, left = jnp.argmax(cells.any(1)), jnp.argmax(cells.any(0))
        free = {
            (1, 0): size[0] - OBJECT_SIDE - top,
            (-1, 0): top,
            (0, 1): size[1] - OBJECT_SIDE - left,
            (0, -1): left,
        }[way]
        return moved_by(grid, size, cells, operation, way, free)

    return family


def move_up(rule: Rule, key: Key, level: Level) -> Example:
    """A pattern moves up by one to three rows, as the rule says."""
    size_key, shape_key, place_key = draws.split(key, 3)
    size = draw_size(size_key, 6, level.side)
    place = between(draws.uniform(place_key, (2,)), jnp.array([3, 0]), size - OBJECT_SIDE)
    cells = shift(pattern(shape_key, level.side), *place)
    grid = jnp.where(cells, rule.colours[0], 0)
    return moved_by(grid, size, cells, op.UP, (-1, 0), between(rule.number, 1, 3))


def _in_place(operation: int, turned: Callable[[Array], Array]):
    """A pattern changes in its place, beside a rectangle that stays."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, cell_key = draws.split(key)
        size = draw_size(size_key, SMALLEST, level.side)
        cells, top, left = patterns(cell_key, level.side, size)
        other = box(level.side, top[1], left[1], jnp.int32(2), jnp.int32(3))
        rest = jnp.where(other, rule.colours[1], 0)
        new = shift(turned(shift(cells, -top[0], -left[0])), top[0], left[0])
        grid = jnp.where(cells, rule.colours[0], rest)
        output = jnp.where(new, rule.colours[0], rest)
        return solved_by(grid, size, output, [(operation, cells)])

    return family


def _clockwise(cells: Array) -> Array:
    return mirror(cells.T, jnp.array([OBJECT_SIDE, OBJECT_SIDE]), columns=True)


def _flipped(cells: Array) -> Array:
    return mirror(cells, jnp.array([OBJECT_SIDE, OBJECT_SIDE]), columns=True)


# Copies at markers -------------------------------------------------------------------------------


def _at_markers(markers: int, take: int):
    """A pattern appears at each marker, which is where its top left corner goes."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        size_key, cell_key = draws.split(key)
        size = draw_size(size_key, SMALLEST, level.side)
        cells, top, left = patterns(cell_key, level.side, size)
        grid = jnp.where(cells, rule.colours[0], 0)
        output = grid if take == op.COPY else jnp.zeros_like(grid)
        edits = [(take, cells)]
        for n in range(1, markers + 1):
            marker = point(level.side, top[n], left[n])
            grid = jnp.where(marker, rule.colours[1], grid)
            copied = shift(cells, top[n] - top[0], left[n] - left[0])
            output = jnp.where(copied, rule.colours[0], output)
            edits.append((op.PASTE, marker))
        return solved_by(grid, size, output, edits)

    return family


FAMILIES = {
    "paint largest": _painted((0, 4)),
    "paint smallest": _painted((-1, 4)),
    "erase smallest": _painted((-1, -1)),
    "colour by size": _painted((0, 4), (1, 5), (-1, 6)),
    "keep largest": keep_largest,
    "fill enclosed": _enclosed(4),
    "make solid": _enclosed(0),
    "fill box": _boxed(line=False, colour=0),
    "box in another colour": _boxed(line=False, colour=4),
    "connect": _boxed(line=True, colour=0),
    "connect two": connect_two,
    "fill gaps": fill_gaps,
    "row line": _lines("row"),
    "column line": _lines("column"),
    "row and column": _lines("row", "column"),
    "fall": _travels(op.DOWN, (1, 0)),
    "rise": _travels(op.UP, (-1, 0)),
    "slide left": _travels(op.LEFT, (0, -1)),
    "slide right": _travels(op.RIGHT, (0, 1)),
    "move up": move_up,
    "turn object": _in_place(op.CLOCKWISE, _clockwise),
    "flip object": _in_place(op.FLIP_COLUMNS, _flipped),
    "copy to marker": _at_markers(1, op.COPY),
    "copy to two markers": _at_markers(2, op.COPY),
    "move to marker": _at_markers(1, op.CUT),
}
