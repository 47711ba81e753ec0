"""Families about a grid as a whole and about all cells of a colour: turns, recolouring, repair."""

import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc import operations as op
from worldloom.suites.arc.generators.grids import (
    BACKGROUND,
    NONE,
    Example,
    Family,
    Level,
    Rule,
    area,
    colour_of,
    draw_size,
    edit,
    mirror,
    scattered,
    shift,
    solved_by,
    speckle,
)


def _speckled(
    rule: Rule, key: Key, level: Level, square: Array | bool = False
) -> tuple[Array, Array]:
    """A grid with the rule's first three colours, and its size."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, 3, level.side)
    size = jnp.where(square, size[0], size)
    return speckle(cell_key, level.side, size, rule.colours[:3]), size


def turned(
    rule: Rule,
    key: Key,
    level: Level,
    operation: Array,
    transposed: Array,
    rows: Array,
    columns: Array,
    old: Array,
    new: Array,
) -> Example:
    """The grid under one of its symmetries (square, if transposed), then one colour as another."""
    grid, size = _speckled(rule, key, level, square=transposed)
    output = mirror(jnp.where(transposed, grid.T, grid), size, rows, columns)
    cells = output == colour_of(rule, old)
    edits = [
        edit(operation, area(level.side, size)),
        edit(colour_of(rule, new), cells, old != NONE),
    ]
    return solved_by(
        grid, size, jnp.where(cells & (old != NONE), colour_of(rule, new), output), edits
    )


def _turned(
    operation: int,
    transposed: bool = False,
    rows: bool = False,
    columns: bool = False,
    recolour: tuple[int, int] = (NONE, NONE),
) -> Family:
    old, new = recolour
    return Family(
        turned,
        {
            "operation": operation,
            "transposed": transposed,
            "rows": rows,
            "columns": columns,
            "old": old,
            "new": new,
        },
    )


def shifted(rule: Rule, key: Key, level: Level, operations: Array, ways: Array) -> Example:
    """Everything moves once or twice, and what leaves the grid is lost."""
    grid, size = _speckled(rule, key, level)
    inside, output = area(level.side, size), grid
    for way in ways:
        output = jnp.where(inside, shift(output, *way), 0)
    return solved_by(
        grid, size, output, [edit(operation, inside, operation != NONE) for operation in operations]
    )


def _shifted(*moves: tuple[int, tuple[int, int]]) -> Family:
    operations, ways = zip(*(*moves, (NONE, (0, 0)))[:2], strict=True)
    return Family(shifted, {"operations": operations, "ways": ways})


def repaired(rule: Rule, key: Key, level: Level, operation: Array, axis: Array) -> Example:
    """A symmetric grid of which one half has lost cells."""
    draw_key, lost_key = draws.split(key)
    grid, size = _speckled(rule, draw_key, level)
    place = jnp.indices(grid.shape)[axis]
    half = (size[axis] + 1) // 2
    first = jnp.where(place < half, grid, 0)
    output = jnp.where(first > 0, first, mirror(first, size, axis == 0, axis == 1))
    lost = draws.uniform(lost_key, grid.shape) < 0.5
    given = jnp.where((place >= half) & lost, 0, output)
    inside = area(level.side, size)
    edits = [(op.COPY, inside), (operation, inside), (op.PASTE_NONZERO, inside)]
    return solved_by(given, size, output, edits)


def recoloured(rule: Rule, key: Key, level: Level, pairs: Array) -> Example:
    """All cells of a colour become another, one pair of colours after the other."""
    grid, size = _speckled(rule, key, level)
    inside, output, edits = area(level.side, size), grid, []
    for old, new in pairs:
        cells = inside & (output == colour_of(rule, old)) & (old != NONE)
        output = jnp.where(cells, colour_of(rule, new), output)
        edits.append(edit(colour_of(rule, new), cells, old != NONE))
    return solved_by(grid, size, output, edits)


def _recoloured(*pairs: tuple[int, int]) -> Family:
    return Family(recoloured, {"pairs": (*pairs, *[(NONE, NONE)] * 2)[:3]})


def majority(rule: Rule, key: Key, level: Level) -> Example:
    """Everything becomes the colour that most cells have."""
    size_key, cell_key, colour_key = draws.split(key, 3)
    size = draw_size(size_key, 3, level.side)
    inside = area(level.side, size)
    order = scattered(cell_key, inside)
    colours = rule.colours[:3][scattered(colour_key, jnp.ones((1, 3), bool))[0]]
    share = order / size.prod()
    grid = jnp.where(share < 0.5, colours[0], jnp.where(share < 0.8, colours[1], colours[2]))
    grid = jnp.where(inside, grid, 0)
    return solved_by(grid, size, jnp.where(inside, colours[0], 0), [(colours[0], inside)])


FAMILIES = {
    "flip columns": _turned(op.FLIP_COLUMNS, columns=True),
    "flip rows": _turned(op.FLIP_ROWS, rows=True),
    "half turn": _turned(op.ROTATE_180, rows=True, columns=True),
    "turn clockwise": _turned(op.CLOCKWISE, transposed=True, columns=True),
    "turn counter-clockwise": _turned(op.COUNTER_CLOCKWISE, transposed=True, rows=True),
    "transpose": _turned(op.TRANSPOSE, transposed=True),
    "anti-transpose": _turned(op.ANTI_TRANSPOSE, transposed=True, rows=True, columns=True),
    "shift down": _shifted((op.DOWN, (1, 0))),
    "shift up": _shifted((op.UP, (-1, 0))),
    "shift right twice": _shifted((op.RIGHT, (0, 1)), (op.RIGHT, (0, 1))),
    "shift aslant": _shifted((op.DOWN, (1, 0)), (op.LEFT, (0, -1))),
    "repair columns": Family(repaired, {"operation": op.FLIP_COLUMNS, "axis": 1}),
    "repair rows": Family(repaired, {"operation": op.FLIP_ROWS, "axis": 0}),
    "recolour": _recoloured((0, 4)),
    "recolour two": _recoloured((0, 4), (1, 5)),
    "merge two": _recoloured((0, 1)),
    "erase a colour": _recoloured((0, BACKGROUND)),
    "keep a colour": _recoloured((0, BACKGROUND), (1, BACKGROUND)),
    "paint background": _recoloured((BACKGROUND, 4)),
    "unify": _recoloured((0, 4), (1, 4), (2, 4)),
    # By way of a third colour, which is not there.
    "swap": _recoloured((0, 8), (1, 0), (8, 1)),
    "majority": Family(majority),
    "flip and recolour": _turned(op.FLIP_COLUMNS, columns=True, recolour=(0, 4)),
    "turn and erase": _turned(op.ROTATE_180, rows=True, columns=True, recolour=(1, BACKGROUND)),
}
