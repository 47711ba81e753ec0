"""Programs: short sequences of edits whose arguments are roles, so that any pair can be edited.

A token is an operation and a selector. Beside the operations and the named selectors of object
actions there are roles that are read off each grid: fills with its most frequent colour, slides as
far as there is room, outlines, halves, points that depend on the size. A token is looked up in
each world, where it becomes an operation of the environment on a set of cells.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array
from worldloom.suites.arc import operations as op
from worldloom.suites.arc import planes, selectors
from worldloom.suites.arc.actions import Selection
from worldloom.suites.arc.operations import Canvas
from worldloom.suites.arc.selectors import COLOURS, COMPONENTS, FIRST, NAMED
from worldloom.suites.arc.types import TaskBuffer, int32

# Operations ---------------------------------------------------------------------------------------

COLOUR_ROLES = (
    "the most frequent colour",
    "the least frequent colour",
    "the largest component's colour",
    "the smallest component's colour",
)
_MOVES = (op.UP, op.DOWN, op.LEFT, op.RIGHT)
_TURNS = (
    op.CLOCKWISE,
    op.COUNTER_CLOCKWISE,
    op.FLIP_COLUMNS,
    op.FLIP_ROWS,
    op.ROTATE_180,
    op.TRANSPOSE,
    op.ANTI_TRANSPOSE,
)
_FILLS = (*range(10), *[op.SUBMIT] * len(COLOUR_ROLES))  # which colour a role is, each grid says
_OTHERS = (op.COPY, op.CUT, op.CROP, op.PASTE, op.PASTE_NONZERO, op.RESIZE)
# The environment's operation of each of ours; the last four move until something is in the way.
OPERATIONS = np.array([*_FILLS, *_MOVES, *_TURNS, *_OTHERS, *_MOVES])
_SLIDES = len(OPERATIONS) - len(_MOVES)
OPERATION_NAMES = (
    *op.NAMES[:10],
    *(f"fill {role}" for role in COLOUR_ROLES),
    *(op.NAMES[n] for n in OPERATIONS[len(_FILLS) : _SLIDES]),
    *(op.NAMES[n].replace("move", "slide") for n in _MOVES),
)

# Selectors ----------------------------------------------------------------------------------------

AREAS = (
    *(name for name in selectors.selector_names((1, 1))[:NAMED]),
    *(f"gaps in box of colour {n}" for n in range(1, COLOURS)),
    "coloured",
    "box of coloured",
    "gaps in box of coloured",
    "smallest component",
    "box of smallest component",
    "all but the largest component",
    "most frequent colour",
    "box of most frequent colour",
    "least frequent colour",
    "box of least frequent colour",
    "single cells",
    "all but single cells",
    "components at the edge",
    "components off the edge",
    "outline by sides",
    "outline by sides and corners",
    "edge",
    "interior",
    "top half",
    "bottom half",
    "left half",
    "right half",
    "top left quarter",
    "first row",
    "last row",
    "first column",
    "last column",
    "diagonal",
    "anti-diagonal",
    "even cells",
    "odd cells",
)
# Corners of what is pasted, in heights and widths of the input; those of new sizes; and sizes that
# are read off the grid or the demonstrations.
PASTES = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
SIZES = ((1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (3, 3), (0.5, 1), (1, 0.5), (0.5, 0.5))
COUNTS = ("1 x the coloured cells", "the coloured cells x 1", "the size of all answers")
SELECTORS = (
    *AREAS,
    *(f"the cell at {h} heights, {w} widths" for h, w in PASTES),
    *(f"{h} heights x {w} widths" for h, w in SIZES),
    *COUNTS,
)


# What can slide: the other selectors are places rather than things.
_THINGS = np.array(
    [
        n
        for n, name in enumerate(AREAS)
        if name.startswith(("colour ", "component "))
        or name
        in (
            "coloured",
            "smallest component",
            "all but the largest component",
            "most frequent colour",
            "least frequent colour",
            "single cells",
            "all but single cells",
        )
    ]
)


def _tokens() -> np.ndarray:
    """The pairs (T, 2) of an operation and a selector that make sense."""
    pasted = range(len(AREAS), len(AREAS) + len(PASTES))
    sized = range(pasted.stop, len(SELECTORS))
    chosen = []
    for n, operation in enumerate(OPERATIONS):
        which = [*range(len(AREAS))]
        if operation in (op.PASTE, op.PASTE_NONZERO):
            which += pasted
        elif operation == op.RESIZE:
            which = [*sized]
        elif operation == op.CROP:
            which = which[1:]  # not to all of it
        elif n >= _SLIDES:
            which = [*_THINGS]
        chosen += [(n, selector) for selector in which]
    return np.array(chosen, np.int32)


TOKENS = _tokens()


def describe(program: np.ndarray) -> str:
    """Numbers of tokens in words; -1 is none."""
    named = [TOKENS[token] for token in program if token >= 0]
    return "; ".join(f"{OPERATION_NAMES[n]}: {SELECTORS[s]}" for n, s in named)


# What tokens mean in a grid -----------------------------------------------------------------------


class Meaning(NamedTuple):
    """What operations and selectors stand for in B worlds."""

    operation: Array  # int32 (B, O): -1 where there is no such thing
    plane: Array  # uint32 (B, P, S): the cells of each selector
    room: Array  # int32 (B, P, 4): how far things can slide: up, down, left, right; others 0
    selector: Array  # int32 (B, P): the object action's selector of the same cells, or -1


def _digest(cells: Array) -> Array:
    """A number of each set of cells (..., H, W), uint32 (...)."""
    weight = np.random.default_rng(1).integers(0, 2**32, cells.shape[-2:], np.uint32)
    return jnp.where(cells, weight | np.uint32(1), jnp.uint32(0)).sum((-1, -2), dtype=jnp.uint32)


def _box(cells: Array) -> Array:
    """The boxes around cells (B, n, H, W)."""
    rows = cells.any(-1, keepdims=True)
    columns = cells.any(-2, keepdims=True)

    def between(used: Array, axis: int) -> Array:
        ways = [jnp.cumsum(used, axis), jnp.flip(jnp.cumsum(jnp.flip(used, axis), axis), axis)]
        return (ways[0] > 0) & (ways[1] > 0)

    return between(rows, -2) & between(columns, -1)


def _shifted(cells: Array, down: int, right: int) -> Array:
    """Cells (..., H, W) moved; what comes in is none."""
    height, width = cells.shape[-2:]
    pad = [(0, 0)] * (cells.ndim - 2) + [(1, 1), (1, 1)]
    return jnp.pad(cells, pad)[..., 1 - down : 1 - down + height, 1 - right : 1 - right + width]


def _room(plane: Array, grid: Array, inside: Array, most: int) -> Array:
    """How far selected cells (B, n, S) that are not 0 can move, int32 (B, n, 4)."""
    coloured = planes.nonzero(grid)[:, None]
    lifted = plane & coloured
    free = inside[:, None] & ~(coloured & ~lifted)
    one = jnp.ones_like(lifted[..., 0], jnp.int32)
    rows = jnp.zeros_like(lifted[..., :1])
    far = []
    for way in ("up", "down", "left", "right"):
        moved, going = lifted, lifted.any(-1)
        steps = jnp.zeros_like(one)
        for _ in range(most):
            if way == "up":
                lost = moved[..., 0] != 0
                moved = jnp.concatenate([moved[..., 1:], rows], -1)
            elif way == "down":
                lost = moved[..., -1] != 0
                moved = jnp.concatenate([rows, moved[..., :-1]], -1)
            elif way == "left":
                lost = (moved & 1).any(-1)
                moved = moved >> 1
            else:
                lost = (moved >> 31).any(-1)
                moved = moved << 1
            going = going & ~lost & ~(moved & ~free).any(-1)
            steps = steps + going
        far.append(steps)
    return jnp.stack(far, -1)


def mean(canvas: Canvas, input_size: Array, answer_size: Array, shape: tuple[int, int]) -> Meaning:
    """What tokens mean in B canvases.

    answer_size (B, 2): of all the demonstrations' answers; 0 where they differ.
    """
    grid = planes.unpack(canvas.grid, shape).astype(jnp.int32)
    size, words = canvas.size, canvas.grid.shape[-1]
    batch, (height, width) = grid.shape[0], shape
    found = selectors.selectable(grid, size)
    inside = found.cells[:, 0]
    coloured, empty = (grid > 0) & inside, (grid == 0) & inside
    parts = found.cells[:, FIRST["component"] : FIRST["component"] + COMPONENTS]
    boxes = found.cells[:, FIRST["box of component"] :][:, :COMPONENTS]
    there = parts.any((-1, -2))
    last = jnp.maximum(there.sum(-1) - 1, 0)

    def at(cells: Array, index: Array) -> Array:
        return jnp.take_along_axis(cells, index[:, None, None, None], axis=1)[:, 0]

    colours = found.cells[:, FIRST["colour"] :][:, :COLOURS]
    colour_boxes = found.cells[:, FIRST["box of colour"] :][:, :COLOURS]
    count = colours.sum((-1, -2)).at[:, 0].set(0)
    most = count.argmax(-1)
    least = jnp.where(count > 0, count, 10**6).argmin(-1)
    smallest = at(parts, last)
    sides = ((-1, 0), (1, 0), (0, -1), (0, 1))
    corners = ((-1, -1), (-1, 1), (1, -1), (1, 1))
    alike = jnp.zeros_like(coloured)
    for way in sides:
        alike = alike | (_shifted(grid, *way) == grid) & coloured
    beside = jnp.stack([_shifted(coloured, *way) for way in sides]).any(0)
    around = beside | jnp.stack([_shifted(coloured, *way) for way in corners]).any(0)
    row, column = jnp.arange(height)[:, None], jnp.arange(width)
    high, wide = size[:, 0, None, None], size[:, 1, None, None]
    edge = (row == 0) | (column == 0) | (row == high - 1) | (column == wide - 1)
    at_edge = (parts & edge[:, None]).any((-1, -2))[..., None, None]
    coloured_box = _box(coloured[:, None])[:, 0]
    more = [
        coloured,
        coloured_box,
        coloured_box & empty,
        smallest,
        at(boxes, last),
        coloured & ~parts[:, 0],
        at(colours, most) & (count.max(-1) > 0)[:, None, None],
        at(colour_boxes, most) & (count.max(-1) > 0)[:, None, None],
        at(colours, least) & (count.max(-1) > 0)[:, None, None],
        at(colour_boxes, least) & (count.max(-1) > 0)[:, None, None],
        coloured & ~alike,
        alike,
        (parts & at_edge).any(1),
        (parts & ~at_edge).any(1),
        beside & ~coloured,
        around & ~coloured,
        edge,
        ~edge,
        row < high // 2,
        row >= (high + 1) // 2,
        column < wide // 2,
        column >= (wide + 1) // 2,
        (row < high // 2) & (column < wide // 2),
        (row == 0) & (column >= 0),
        (row == high - 1) & (column >= 0),
        (column == 0) & (row >= 0),
        (column == wide - 1) & (row >= 0),
        row == column,
        row + column == wide - 1,
        (row + column) % 2 == 0,
        (row + column) % 2 == 1,
    ]
    more = [jnp.broadcast_to(cells, grid.shape) for cells in more]
    gaps = colour_boxes[:, 1:] & empty[:, None]
    areas = jnp.concatenate([found.cells, gaps, jnp.stack(more, 1)], axis=1) & inside[:, None]

    # Points: where they lie, (B, n, 2), and those on the canvas as cells.
    cells_in, one = coloured.sum((-1, -2)), jnp.ones(batch, jnp.int32)
    counted = [jnp.stack(pair, -1) for pair in ((one, cells_in), (cells_in, one))]
    scaled = jnp.floor(input_size[:, None] * np.array(SIZES)).astype(jnp.int32)
    sized = jnp.concatenate([scaled, *(x[:, None] for x in (*counted, answer_size))], 1)
    place = jnp.concatenate([input_size[:, None] * np.array(PASTES), sized - 1], 1)
    on = (place >= 0).all(-1) & (place < np.array(shape)).all(-1)
    points = (row == place[..., 0, None, None]) & (column == place[..., 1, None, None])
    cells = jnp.concatenate([areas, points & on[..., None, None]], axis=1)

    digest, named = _digest(cells), _digest(found.cells)
    same = (digest[:, :, None] == named[:, None, :]) & found.usable[:, None, :]
    number = NAMED + place[..., 0] * width + place[..., 1]
    selector = jnp.where(same.any(-1), same.argmax(-1), -1)
    selector = selector.at[:, len(AREAS) :].set(jnp.where(on, number, -1))
    plane = planes.pack_plane(cells, words)

    def colour_in(cells: Array) -> Array:
        return jnp.where(cells, grid, 0).max((-1, -2))

    named_colours = jnp.stack([most, least, colour_in(parts[:, 0]), colour_in(smallest)], -1)
    named_colours = jnp.where(coloured.any((-1, -2))[:, None], named_colours, -1)
    operation = jnp.broadcast_to(OPERATIONS, (batch, len(OPERATIONS)))
    operation = operation.at[:, 10 : len(_FILLS)].set(named_colours)
    inner = planes.area(size[:, 0], size[:, 1], words)
    room = jnp.zeros((*plane.shape[:2], 4), jnp.int32)
    room = room.at[:, _THINGS].set(_room(plane[:, _THINGS], canvas.grid, inner, max(shape) - 1))
    return Meaning(int32(operation), plane, room, int32(selector))


def execute(
    canvas: Canvas, meaning: Meaning, token: Array, pair: Array, tasks: TaskBuffer
) -> Canvas:
    """One token (B, n) in each of B worlds n times, from the same canvas: leaves (B * n, ...).

    One that selects nothing, or that is -1, does nothing.
    """
    batch, many = token.shape
    chosen = jnp.asarray(TOKENS)[jnp.maximum(token, 0)]
    n, s = chosen[..., 0], chosen[..., 1]
    rows = jnp.arange(batch)[:, None]
    operation, plane = meaning.operation[rows, n], meaning.plane[rows, s]
    room = meaning.room[rows, s, jnp.maximum(n - _SLIDES, 0)]
    far = jnp.where(n >= _SLIDES, room, 1).reshape(-1)
    operation = jnp.where((token >= 0) & plane.any(-1) & (operation >= 0), operation, op.SUBMIT)
    plane = plane.reshape(batch * many, -1)
    wide = Canvas(*(jnp.repeat(x, many, 0) for x in canvas))
    selection = Selection(
        plane, planes.bounding_box(plane), jnp.ones(batch * many, bool), rectangle=False
    )
    doing = jnp.where((n >= _SLIDES).reshape(-1) & (far == 0), op.SUBMIT, operation.reshape(-1))
    return op.edit(wide, doing, selection, jnp.repeat(pair, many), tasks, far)
