"""Families about a grid as a whole and about all cells of a colour: turns, recolouring, repair.

A family draws one pair: family(rule, key, level) -> `Example`.
"""

import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc import operations as op
from worldloom.suites.arc.generators.grids import (
    Example,
    Level,
    Rule,
    area,
    draw_size,
    mirror,
    scattered,
    shift,
    solved_by,
    speckle,
    take,
)


def _speckled(rule: Rule, key: Key, level: Level, square: bool = False) -> tuple[Array, Array]:
    """A grid with the rule's first three colours, and its size."""
    size_key, cell_key = draws.split(key)
    size = draw_size(size_key, 3, level.side)
    size = jnp.stack([size[0], size[0]]) if square else size
    return speckle(cell_key, level.side, size, rule.colours[:3]), size


# Turned as a whole -------------------------------------------------------------------------------


def _mirrored(operation: int, **reverse: bool):
    def family(rule: Rule, key: Key, level: Level) -> Example:
        grid, size = _speckled(rule, key, level)
        output = mirror(grid, size, **reverse)
        return solved_by(grid, size, output, [(operation, area(level.side, size))])

    return family


def _turned(operation: int, rows: bool, columns: bool):
    """Of square grids: the transpose, and then perhaps mirrored."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        grid, size = _speckled(rule, key, level, square=True)
        output = mirror(grid.T, size, rows, columns)
        return solved_by(grid, size, output, [(operation, area(level.side, size))])

    return family


def _shifted(*moves: tuple[int, tuple[int, int]]):
    """Everything moves, and what leaves the grid is lost."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        grid, size = _speckled(rule, key, level)
        inside, output = area(level.side, size), grid
        for _, way in moves:
            output = jnp.where(inside, shift(output, *way), 0)
        return solved_by(grid, size, output, [(operation, inside) for operation, _ in moves])

    return family


def _repaired(operation: int, **reverse: bool):
    """A symmetric grid of which one half has lost cells."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        draw_key, lost_key = draws.split(key)
        grid, size = _speckled(rule, draw_key, level)
        place = jnp.indices(grid.shape)[0 if "rows" in reverse else 1]
        half = (size[0 if "rows" in reverse else 1] + 1) // 2
        first = jnp.where(place < half, grid, 0)
        output = jnp.where(first > 0, first, mirror(first, size, **reverse))
        lost = draws.uniform(lost_key, grid.shape) < 0.5
        given = jnp.where((place >= half) & lost, 0, output)
        inside = area(level.side, size)
        edits = [(op.COPY, inside), (operation, inside), (op.PASTE_NONZERO, inside)]
        return solved_by(given, size, output, edits)

    return family


# Recoloured --------------------------------------------------------------------------------------


def _recoloured(*pairs: tuple[int, int]):
    """All cells of a colour become another colour: numbers of the rule's colours, -1 for none."""

    def family(rule: Rule, key: Key, level: Level) -> Example:
        grid, size = _speckled(rule, key, level)
        inside, output, edits = area(level.side, size), grid, []
        for old, new in pairs:
            old_colour = 0 if old < 0 else rule.colours[old]
            new_colour = 0 if new < 0 else rule.colours[new]
            cells = inside & (output == old_colour)
            output = jnp.where(cells, new_colour, output)
            edits.append((new_colour, cells))
        return solved_by(grid, size, output, edits)

    return family


def swap(rule: Rule, key: Key, level: Level) -> Example:
    """Two colours change places, by way of a third that is not there."""
    grid, size = _speckled(rule, key, level)
    a, b, aside = rule.colours[0], rule.colours[1], rule.colours[8]
    output = jnp.where(grid == a, b, jnp.where(grid == b, a, grid))
    return solved_by(grid, size, output, [(aside, grid == a), (a, grid == b), (b, grid == a)])


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


def flip_and_recolour(rule: Rule, key: Key, level: Level) -> Example:
    """Columns in reverse, and one colour becomes another."""
    grid, size = _speckled(rule, key, level)
    old, new = rule.colours[0], rule.colours[4]
    flipped = mirror(grid, size, columns=True)
    output = jnp.where(flipped == old, new, flipped)
    return solved_by(
        grid, size, output, [(op.FLIP_COLUMNS, area(level.side, size)), (new, flipped == old)]
    )


def turn_and_erase(rule: Rule, key: Key, level: Level) -> Example:
    """Half a turn, and one colour goes."""
    grid, size = _speckled(rule, key, level)
    row, column = jnp.arange(level.side)[:, None], jnp.arange(level.side)
    turned = take(grid, size[0] - 1 - row, size[1] - 1 - column)
    gone = turned == rule.colours[1]
    edits = [(op.ROTATE_180, area(level.side, size)), (0, gone)]
    return solved_by(grid, size, jnp.where(gone, 0, turned), edits)


FAMILIES = {
    "flip columns": _mirrored(op.FLIP_COLUMNS, columns=True),
    "flip rows": _mirrored(op.FLIP_ROWS, rows=True),
    "half turn": _mirrored(op.ROTATE_180, rows=True, columns=True),
    "turn clockwise": _turned(op.CLOCKWISE, rows=False, columns=True),
    "turn counter-clockwise": _turned(op.COUNTER_CLOCKWISE, rows=True, columns=False),
    "transpose": _turned(op.TRANSPOSE, rows=False, columns=False),
    "anti-transpose": _turned(op.ANTI_TRANSPOSE, rows=True, columns=True),
    "shift down": _shifted((op.DOWN, (1, 0))),
    "shift up": _shifted((op.UP, (-1, 0))),
    "shift right twice": _shifted((op.RIGHT, (0, 1)), (op.RIGHT, (0, 1))),
    "shift aslant": _shifted((op.DOWN, (1, 0)), (op.LEFT, (0, -1))),
    "repair columns": _repaired(op.FLIP_COLUMNS, columns=True),
    "repair rows": _repaired(op.FLIP_ROWS, rows=True),
    "recolour": _recoloured((0, 4)),
    "recolour two": _recoloured((0, 4), (1, 5)),
    "merge two": _recoloured((0, 1)),
    "erase a colour": _recoloured((0, -1)),
    "keep a colour": _recoloured((0, -1), (1, -1)),
    "paint background": _recoloured((-1, 4)),
    "unify": _recoloured((0, 4), (1, 4), (2, 4)),
    "swap": swap,
    "majority": majority,
    "flip and recolour": flip_and_recolour,
    "turn and erase": turn_and_erase,
}
