"""What rule families are made of: random grids, shapes and places, and edits that solve a pair.

A grid is int32 (N, N) on a square canvas of N cells a side, 0 outside of its size int32 (2,). A
selection is bool (N, N). All is written for one pair and mapped over many; shapes are static.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.suites.arc.operations import SUBMIT

MOST_EDITS = 12  # of a solution, the submission among them
OBJECT_SIDE = 3  # of the largest object, and of a pattern
NONE = -1  # among numbers of a family: no colour, no edit, no line
BACKGROUND = 9  # among numbers of colours: none of the rule's nine


@dataclass(frozen=True)
class Level:
    """How large and how crowded pairs are.

    side: of the canvas, and of the largest grid; objects: how many there are where several are.
    """

    side: int = 10
    objects: int = 3

    def __post_init__(self):
        most = MOST_EDITS - 1 + OBJECT_SIDE  # as far as a solution can move an object
        if not 8 <= self.side <= most or not 2 <= self.objects <= 4:
            raise ValueError(
                f"arc: generated tasks of side={self.side} with objects={self.objects}; sides are "
                f"8 to {most}, objects 2 to 4"
            )


class Rule(NamedTuple):
    """What all pairs of a task share."""

    colours: Array  # int32 (9,): 1 .. 9 in the task's own order
    number: Array  # float32 (): in [0, 1)


class Example(NamedTuple):
    """A pair, and the edits that lead from its input to its output."""

    input: Array  # int32 (N, N)
    input_size: Array  # int32 (2,)
    output: Array
    output_size: Array
    operations: Array  # int32 (MOST_EDITS,): the last one, and those after it, submit
    selections: Array  # bool (MOST_EDITS, N, N)


class Family(NamedTuple):
    """A rule family: a program that draws a pair, and the numbers that tell it from its relatives.

    Families of one program are compiled once: `draw_examples` maps the program over their numbers,
    so a number may be traced and must have the same shape in all of them.
    """

    draw: Callable[..., Example]  # draw(rule, key, level, **numbers), for one pair
    numbers: Mapping[str, Any] = {}


def draw_rule(key: Key) -> Rule:
    """A rule's numbers."""
    uniform = draws.uniform(key, (10,))
    return Rule(ranks(uniform[:9]) + 1, uniform[9])


def colour_of(rule: Rule, number: Array | int) -> Array:
    """The rule's colour of a number 0 .. 8; 0 of `BACKGROUND`."""
    return jnp.append(rule.colours, 0)[number]


def ranks(values: Array) -> Array:
    """The place of each value (n,) in the order of all, int32: fewer operations than a sort."""
    number = jnp.arange(values.shape[0])
    before = (values < values[:, None]) | ((values == values[:, None]) & (number < number[:, None]))
    return before.sum(-1).astype(jnp.int32)


def between(uniform: Array, low: Array | int, high: Array | int) -> Array:
    """A whole number from low to high, both possible, from one in [0, 1)."""
    return (low + jnp.floor(uniform * (high - low + 1))).astype(jnp.int32)


def draw_size(key: Key, low: Array | int, high: int) -> Array:
    """Height and width, each from low to high."""
    return between(draws.uniform(key, (2,)), low, high)


# Cells -------------------------------------------------------------------------------------------


def box(side: int, top: Array | int, left: Array | int, height: Array, width: Array) -> Array:
    """The cells of a box."""
    rows, columns = jnp.arange(side)[:, None], jnp.arange(side)
    high = (rows >= top) & (rows < top + height)
    return high & (columns >= left) & (columns < left + width)


def area(side: int, size: Array) -> Array:
    """The cells of a grid of this size."""
    return box(side, 0, 0, size[0], size[1])


def point(side: int, row: Array | int, column: Array | int) -> Array:
    """One cell."""
    return box(side, row, column, jnp.int32(1), jnp.int32(1))


def take(cells: Array, rows: Array, columns: Array) -> Array:
    """The cells at these places, which broadcast to (N, N); 0 where they are off the canvas."""
    side = cells.shape[0]
    there = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    taken = cells[jnp.clip(rows, 0, side - 1), jnp.clip(columns, 0, side - 1)]
    return jnp.where(there, taken, jnp.zeros_like(taken))


def shift(cells: Array, down: Array | int, right: Array | int) -> Array:
    """Moved; what leaves the canvas is lost."""
    side = cells.shape[0]
    return take(cells, jnp.arange(side)[:, None] - down, jnp.arange(side) - right)


def mirror(
    cells: Array, size: Array, rows: Array | bool = False, columns: Array | bool = False
) -> Array:
    """The grid of this size with its rows, its columns or both in reverse."""
    row, column = jnp.arange(cells.shape[0])[:, None], jnp.arange(cells.shape[0])
    row = jnp.where(rows, size[0] - 1 - row, row)
    return take(cells, row, jnp.where(columns, size[1] - 1 - column, column))


def corner(cells: Array) -> Array:
    """The top and left (2,) of the box around cells."""
    return jnp.stack([jnp.argmax(cells.any(1)), jnp.argmax(cells.any(0))]).astype(jnp.int32)


def extent(cells: Array) -> Array:
    """The height and width (2,) of the box around cells."""
    side = cells.shape[0]
    last = [side - jnp.argmax(cells.any(axis)[::-1]) for axis in (1, 0)]
    return jnp.stack(last).astype(jnp.int32) - corner(cells)


def around(cells: Array) -> Array:
    """The box around cells, as cells."""
    return box(cells.shape[0], *corner(cells), *extent(cells))


# Random contents ---------------------------------------------------------------------------------


def scattered(key: Key, cells: Array) -> Array:
    """A random order of chosen cells, int32 (N, N): 0, 1, ...; the others come after them."""
    values = jnp.where(cells, draws.uniform(key, cells.shape), 2.0)
    return ranks(values.reshape(-1)).reshape(cells.shape)


def speckle(key: Key, side: int, size: Array, colours: Array, share: float = 0.45) -> Array:
    """A grid of which `share` is coloured: as many cells of each of the colours (k,)."""
    order = scattered(key, area(side, size))
    count = jnp.maximum(jnp.floor(share * size.prod()), colours.shape[0])
    return jnp.where(order < count, colours[order % colours.shape[0]], 0)


def places(key: Key, size: Array, heights: Array, widths: Array) -> tuple[Array, Array]:
    """Tops and lefts (4,) of four boxes that do not touch, one in each quarter of the grid.

    Which box is in which quarter is drawn. Sides of the grid must be 8 or more, those of boxes
    at most `OBJECT_SIDE`.
    """
    quarter_key, place_key = draws.split(key)
    quarter = ranks(draws.uniform(quarter_key, (4,)))
    uniform = draws.uniform(place_key, (2, 4))
    half = size // 2
    top = (quarter // 2) * half[0] + between(uniform[0], 0, half[0] - 1 - heights)
    left = (quarter % 2) * half[1] + between(uniform[1], 0, half[1] - 1 - widths)
    return top, left


def rectangles(key: Key, side: int, size: Array) -> Array:
    """Four rectangles apart from each other, the largest first: bool (4, N, N)."""
    turn_key, place_key = draws.split(key)
    turned = draws.uniform(turn_key, (4,)) < 0.5
    long, short = jnp.array([3, 3, 2, 2]), jnp.array([3, 2, 2, 1])
    heights, widths = jnp.where(turned, long, short), jnp.where(turned, short, long)
    top, left = places(place_key, size, heights, widths)
    return jnp.stack([box(side, top[n], left[n], heights[n], widths[n]) for n in range(4)])


def pattern(key: Key, side: int) -> Array:
    """A random 3 x 3 pattern at the top left, bool (N, N), that is like none of its mirrorings."""
    cells = draws.uniform(key, (OBJECT_SIDE, OBJECT_SIDE)) < 0.5
    cells = cells.at[0, 0].set(True).at[2, 2].set(True).at[0, 2].set(False)
    cells = cells.at[0, 1].set(True).at[2, 1].set(False)
    return jnp.zeros((side, side), bool).at[:OBJECT_SIDE, :OBJECT_SIDE].set(cells)


def patterns(key: Key, side: int, size: Array) -> tuple[Array, Array, Array]:
    """A pattern and three places for more, apart from each other.

    The pattern's cells in its own place (N, N), and tops and lefts (4,), of which the first are
    the pattern's.
    """
    shape_key, place_key = draws.split(key)
    sides = jnp.full(4, OBJECT_SIDE)
    top, left = places(place_key, size, sides, sides)
    return shift(pattern(shape_key, side), top[0], left[0]), top, left


# Solutions ---------------------------------------------------------------------------------------


def edit(operation: Array | int, cells: Array, done: Array | bool = True) -> tuple[Array, Array]:
    """An operation on cells; if it is not done, a submission, after which nothing counts."""
    return jnp.where(done, operation, SUBMIT).astype(jnp.int32), cells & done


def solved_by(
    grid: Array,
    size: Array,
    output: Array,
    edits: Sequence[tuple[Array | int, Array]],
    output_size: Array | None = None,
) -> Example:
    """The example whose output these edits (operation, selection) make of its input."""
    if len(edits) >= MOST_EDITS:
        raise ValueError(f"arc: {len(edits)} edits; a solution has at most {MOST_EDITS - 1}")
    operations, selections = zip(*edits, strict=True)
    rest = MOST_EDITS - len(edits)
    return Example(
        grid,
        size,
        output,
        size if output_size is None else output_size,
        jnp.array([*operations, *[SUBMIT] * rest], jnp.int32),
        jnp.pad(jnp.stack(selections), ((0, rest), (0, 0), (0, 0))),
    )


def moved_by(
    grid: Array, size: Array, cells: Array, operation: Array, way: Array, count: Array
) -> Example:
    """The example in which `cells` move `count` times by `way` (2,), over nothing else."""
    turn = jnp.arange(MOST_EDITS)
    where = jax.vmap(lambda n: shift(cells, n * way[0], n * way[1]))(turn)
    operations, selections = jax.vmap(edit, (None, 0, 0))(operation, where, turn < count)
    there = shift(jnp.where(cells, grid, 0), count * way[0], count * way[1])
    output = jnp.where(there > 0, there, jnp.where(cells, 0, grid))
    output = jnp.where(area(grid.shape[0], size), output, 0)
    return Example(grid, size, output, size, operations, selections)
