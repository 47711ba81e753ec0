"""Families about objects: the largest, what is enclosed, lines, falling, copies at a marker."""

import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc import operations as op
from worldloom.suites.arc.generators.grids import (
    BACKGROUND,
    NONE,
    OBJECT_SIDE,
    Example,
    Family,
    Level,
    Rule,
    area,
    around,
    between,
    box,
    colour_of,
    corner,
    draw_size,
    edit,
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
MANY = 4  # more than the last rank of an object
ROW, COLUMN = 0, 1


def _rectangles(key: Key, level: Level) -> tuple[Array, Array]:
    """As many rectangles as the level says, the largest first, (n, N, N), and the grid's size."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, SMALLEST, level.side)
    return rectangles(cell_key, level.side, size)[: level.objects], size


# By size -----------------------------------------------------------------------------------------


def painted(rule: Rule, key: Key, level: Level, ranks: Array, colours: Array) -> Example:
    """Objects of one colour, of which some, by their rank in size, become another, or go.

    A negative rank counts from the smallest; no object has a rank of their number or more.
    """
    cells, size = _rectangles(key, level)
    grid = output = jnp.where(cells.any(0), rule.colours[0], 0)
    edits = []
    for rank, number in zip(ranks, colours, strict=True):
        there = rank < level.objects
        chosen = cells[rank % level.objects] & there
        colour = colour_of(rule, number)
        output = jnp.where(chosen, colour, output)
        edits.append(edit(colour, chosen, there))
    return solved_by(grid, size, output, edits)


def _painted(*which: tuple[int, int]) -> Family:
    ranks, colours = zip(*(*which, (MANY, 0), (MANY, 0))[:3], strict=True)
    return Family(painted, {"ranks": ranks, "colours": colours})


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


def enclosed(rule: Rule, key: Key, level: Level, colour: Array) -> Example:
    """What a frame encloses is painted."""
    frame, inner, size = _hollow(key, level)
    grid = jnp.where(frame, rule.colours[0], 0)
    output = jnp.where(inner, rule.colours[colour], grid)
    return solved_by(grid, size, output, [(rule.colours[colour], inner)])


def boxed(rule: Rule, key: Key, level: Level, line: Array, colour: Array) -> Example:
    """What lies between two cells of a colour, along a line or in the box around them."""
    size_key, place_key = draws.split(key)
    size = draw_size(size_key, 5, level.side)
    uniform = draws.uniform(place_key, (5,))
    start = between(uniform[:2], 0, size - 3)
    end = between(uniform[2:4], start + 2, size - 1)
    along = jnp.stack([uniform[4] < 0.5, uniform[4] >= 0.5])
    end = jnp.where(along | ~line, end, start)
    ends = point(level.side, *start) | point(level.side, *end)
    grid = jnp.where(ends, rule.colours[0], 0)
    output = jnp.where(around(ends), rule.colours[colour], 0)
    return solved_by(grid, size, output, [(rule.colours[colour], around(ends))])


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


def lines(rule: Rule, key: Key, level: Level, axes: Array) -> Example:
    """A cell of each colour becomes a line through the grid, later ones over earlier ones."""
    size_key, place_key = draws.split(key)
    size = draw_size(size_key, 4, level.side)
    inside, grid = area(level.side, size), jnp.zeros((level.side,) * 2, jnp.int32)
    # Of two cells, neither in the row or column of the other, so that no line hides one.
    first = between(draws.uniform(place_key, (2,)), 0, size - 1)
    apart = between(draws.uniform(size_key, (4,))[2:], 1, size - 1)
    places = (first, (first + apart) % size)
    cells = [
        point(level.side, *place) & (axis != NONE) for place, axis in zip(places, axes, strict=True)
    ]
    for n in range(2):
        grid = jnp.where(cells[n], rule.colours[n], grid)
    output, edits = grid, []
    for n, axis in enumerate(axes):
        line = jnp.where(axis == ROW, cells[n].any(1, keepdims=True), cells[n].any(0))
        output = jnp.where(inside & line, rule.colours[n], output)
        edits.append(edit(rule.colours[n], inside & line, axis != NONE))
    return solved_by(grid, size, output, edits)


# One that moves or turns -------------------------------------------------------------------------


def _one_pattern(
    rule: Rule, key: Key, level: Level, smallest: Array | int = 5, first_row: Array | int = 0
) -> tuple[Array, Array, Array]:
    """A grid with one pattern in the first colour, its size, and the pattern's cells."""
    size_key, shape_key, place_key = draws.split(key, 3)
    size = draw_size(size_key, smallest, level.side)
    low = jnp.stack([first_row, 0])
    place = between(draws.uniform(place_key, (2,)), low, size - OBJECT_SIDE)
    cells = shift(pattern(shape_key, level.side), *place)
    return jnp.where(cells, rule.colours[0], 0), size, cells


def moved(rule: Rule, key: Key, level: Level, operation: Array, way: Array, far: Array) -> Example:
    """A pattern moves: far, until the edge stops it, or up by one to three, as the rule says."""
    grid, size, cells = _one_pattern(
        rule, key, level, jnp.where(far, 5, 6), jnp.where(far, 0, OBJECT_SIDE)
    )
    place = corner(cells)
    free = jnp.where(way < 0, place, size - OBJECT_SIDE - place)
    to_edge = (free * abs(way)).sum()
    count = jnp.where(far, to_edge, between(rule.number, 1, 3))
    return moved_by(grid, size, cells, operation, way, count)


def _moved(operation: int, way: tuple[int, int], far: bool = True) -> Family:
    return Family(moved, {"operation": operation, "way": way, "far": far})


def in_place(rule: Rule, key: Key, level: Level, operation: Array, transposed: Array) -> Example:
    """A pattern is turned or mirrored in its place, beside a rectangle that stays."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, SMALLEST, level.side)
    cells, top, left = patterns(cell_key, level.side, size)
    other = box(level.side, top[1], left[1], jnp.int32(2), jnp.int32(3))
    rest = jnp.where(other, rule.colours[1], 0)
    lifted = shift(cells, -top[0], -left[0])
    lifted = jnp.where(transposed, lifted.T, lifted)
    turned = mirror(lifted, jnp.array([OBJECT_SIDE, OBJECT_SIDE]), columns=True)
    grid = jnp.where(cells, rule.colours[0], rest)
    output = jnp.where(shift(turned, top[0], left[0]), rule.colours[0], rest)
    return solved_by(grid, size, output, [(operation, cells)])


# Copies at markers -------------------------------------------------------------------------------


def at_markers(rule: Rule, key: Key, level: Level, markers: Array, take: Array) -> Example:
    """A pattern appears at each marker, which is where its top left corner goes."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, SMALLEST, level.side)
    cells, top, left = patterns(cell_key, level.side, size)
    grid = jnp.where(cells, rule.colours[0], 0)
    output = jnp.where(take == op.COPY, grid, 0)
    edits = [(take, cells)]
    for n in (1, 2):
        there = n <= markers
        marker = point(level.side, top[n], left[n]) & there
        grid = jnp.where(marker, rule.colours[1], grid)
        copied = shift(cells, top[n] - top[0], left[n] - left[0]) & there
        output = jnp.where(copied, rule.colours[0], output)
        edits.append(edit(op.PASTE, marker, there))
    return solved_by(grid, size, output, edits)


def _at_markers(markers: int, take: int) -> Family:
    return Family(at_markers, {"markers": markers, "take": take})


FAMILIES = {
    "paint largest": _painted((0, 4)),
    "paint smallest": _painted((-1, 4)),
    "erase smallest": _painted((-1, BACKGROUND)),
    "colour by size": _painted((0, 4), (1, 5), (-1, 6)),
    "keep largest": _painted((1, BACKGROUND), (2, BACKGROUND), (3, BACKGROUND)),
    "fill enclosed": Family(enclosed, {"colour": 4}),
    "make solid": Family(enclosed, {"colour": 0}),
    "fill box": Family(boxed, {"line": False, "colour": 0}),
    "box in another colour": Family(boxed, {"line": False, "colour": 4}),
    "connect": Family(boxed, {"line": True, "colour": 0}),
    "connect two": Family(connect_two),
    "fill gaps": Family(fill_gaps),
    "row line": Family(lines, {"axes": (ROW, NONE)}),
    "column line": Family(lines, {"axes": (COLUMN, NONE)}),
    "row and column": Family(lines, {"axes": (ROW, COLUMN)}),
    "fall": _moved(op.DOWN, (1, 0)),
    "rise": _moved(op.UP, (-1, 0)),
    "slide left": _moved(op.LEFT, (0, -1)),
    "slide right": _moved(op.RIGHT, (0, 1)),
    "move up": _moved(op.UP, (-1, 0), far=False),
    "turn object": Family(in_place, {"operation": op.CLOCKWISE, "transposed": True}),
    "flip object": Family(in_place, {"operation": op.FLIP_COLUMNS, "transposed": False}),
    "copy to marker": _at_markers(1, op.COPY),
    "copy to two markers": _at_markers(2, op.COPY),
    "move to marker": _at_markers(1, op.CUT),
}
