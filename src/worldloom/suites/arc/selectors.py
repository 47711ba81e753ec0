"""Selections by what is in a grid: colours, connected components, boxes and bands around them.

A selector is a number. The first `NAMED` are read off the grid: all of it; the cells of a colour,
the box around them, the rows and the columns they are in; what is enclosed; each of the largest
components and the box around it. After these come the cells of the canvas, row by row. An object
action is `operation * S + selector`, for S selectors, so that an episode is a few decisions.

Components are cells of one colour other than 0, connected by sides, the largest first.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array
from worldloom.suites.arc import operations as op
from worldloom.suites.arc import planes
from worldloom.suites.arc.types import ArcState, MaskAction, ObjectAction, int32

COLOURS = 10
COMPONENTS = 8  # of a grid that can be selected
KINDS = {
    "whole": 1,
    "colour": COLOURS,
    "box of colour": COLOURS,
    "rows of colour": COLOURS,
    "columns of colour": COLOURS,
    "enclosed": 1,
    "component": COMPONENTS,
    "box of component": COMPONENTS,
}
NAMED = sum(KINDS.values())
FIRST = dict(zip(KINDS, np.cumsum([0, *KINDS.values()]).tolist(), strict=False))

# Where operations are offered: a move of one cell is a fill of two, and a flood or a resize
# asks for one cell.
_AT_POINTS = (*range(op.UP), op.PASTE, op.PASTE_NONZERO, op.RESIZE)
_NOT_NAMED = (*range(op.FLOOD, op.UP), op.RESIZE, op.CLEAR, *op.NOWHERE)


class Selectable(NamedTuple):
    """What can be selected in B grids."""

    cells: Array  # bool (B, NAMED, H, W): those of each named selector
    usable: Array  # bool (B, NAMED): there is such a thing, and no earlier selector is the same


def count_selectors(grid_shape: tuple[int, int]) -> int:
    """S, for a canvas of this shape."""
    return NAMED + grid_shape[0] * grid_shape[1]


def selector_names(grid_shape: tuple[int, int]) -> list[str]:
    """The selectors in words."""
    named = [
        f"{kind} {n}" if many > 1 else kind for kind, many in KINDS.items() for n in range(many)
    ]
    height, width = grid_shape
    return named + [f"cell {r}, {c}" for r in range(height) for c in range(width)]


def _neighbours(values: Array, fill: int) -> list[Array]:
    """Those above, below, left and right of each cell of (B, H, W)."""
    padded = jnp.pad(values, ((0, 0), (1, 1), (1, 1)), constant_values=fill)
    return [padded[:, :-2, 1:-1], padded[:, 2:, 1:-1], padded[:, 1:-1, :-2], padded[:, 1:-1, 2:]]


def components(grid: Array) -> tuple[Array, Array]:
    """The largest components of grids (B, H, W): cells bool (B, COMPONENTS, H, W), sizes (B, ...).

    Equal sizes in the order of their first cells. A size is 0 where there are fewer.
    """
    batch, height, width = grid.shape
    total = height * width
    number = jnp.arange(total, dtype=jnp.int32).reshape(height, width)
    same = [(grid == other) & (grid > 0) for other in _neighbours(grid, -1)]

    def unfinished(carry):
        return carry[1]

    def grow(carry):
        labels, _ = carry
        new = labels
        for equal, other in zip(same, _neighbours(labels, total), strict=True):
            new = jnp.where(equal, jnp.minimum(new, other), new)
        # To the label of the cell that the label names: ways are halved, not walked.
        jumped = jnp.take_along_axis(new.reshape(batch, -1), new.reshape(batch, -1), axis=1)
        return jumped.reshape(new.shape), jnp.any(new != labels)

    start = jnp.broadcast_to(number, grid.shape)
    labels, _ = jax.lax.while_loop(unfinished, grow, (start, jnp.asarray(True)))
    coloured = (grid > 0).reshape(batch, total)
    owner = jnp.where(coloured, labels.reshape(batch, total), total)
    sizes = (owner[:, None, :] == jnp.arange(total)[:, None]).sum(-1)  # (B, total): by first cell
    order = sizes * total + (total - 1 - jnp.arange(total))
    order = jnp.pad(order, ((0, 0), (0, max(0, COMPONENTS - total))))  # canvases of few cells
    best, first = jax.lax.top_k(order, COMPONENTS)
    sizes = best // total
    cells = (owner[:, None, :] == first[:, :, None]) & (sizes > 0)[:, :, None]
    return cells.reshape(batch, COMPONENTS, height, width), sizes


def enclosed(grid: Array, size: Array) -> Array:
    """Cells of colour 0 from which no way over others of colour 0 leads out of the grid."""
    shape = (grid.shape[1], grid.shape[2])
    words = planes.words_for(shape)
    inside = planes.area(size[:, 0], size[:, 1], words)
    inner = planes.shift_columns(planes.area(size[:, 0] - 1, size[:, 1] - 2, words), int32(1))
    inner = inner.at[:, 0].set(0)
    empty = planes.pack_plane(grid == 0, words) & inside
    outside = planes.flood(empty & ~inner, empty)
    return planes.unpack_plane(empty & ~outside, shape)


def _band(cells: Array, axis: int) -> Array:
    """Rows (axis -2) or columns (-1) from the first to the last that cells (B, n, H, W) are in."""
    used = cells.any(-1 if axis == -2 else -2)
    later = jnp.cumsum(used, -1) > 0
    between = later & (jnp.cumsum(used[..., ::-1], -1) > 0)[..., ::-1]
    return between[..., None] if axis == -2 else between[..., None, :]


def selectable(grid: Array, size: Array) -> Selectable:
    """What is in grids of integers (B, H, W), whose sizes are (B, 2)."""
    shape = (grid.shape[1], grid.shape[2])
    inside = planes.unpack_plane(
        planes.area(size[:, 0], size[:, 1], planes.words_for(shape)), shape
    )[:, None]
    colours = (grid[:, None] == jnp.arange(COLOURS)[:, None, None]) & inside
    rows, columns = _band(colours, -2), _band(colours, -1)
    parts, _ = components(grid)
    parts_box = _band(parts, -2) & _band(parts, -1)
    cells = jnp.concatenate(
        [
            inside,
            colours,
            rows & columns & inside,
            rows & inside,
            columns & inside,
            enclosed(grid, size)[:, None],
            parts,
            parts_box,
        ],
        axis=1,
    )
    # Equal sets of cells are found by a sum of random numbers, one for each cell.
    weight = np.random.default_rng(0).integers(0, 2**32, shape, np.uint32) | np.uint32(1)
    digest = jnp.where(cells, weight, jnp.uint32(0)).sum((-1, -2), dtype=jnp.uint32)
    earlier = np.tri(NAMED, k=-1, dtype=bool)
    known = ((digest[:, :, None] == digest[:, None, :]) & earlier).any(-1)
    return Selectable(cells, cells.any((-1, -2)) & ~known)


def object_action_mask(
    operation_mask: Array, usable: Array, size: Array, grid_shape: tuple[int, int]
) -> Array:
    """Which object actions make sense, (B, N * S), from masks (B, N), usable (B, NAMED), (B, 2)."""
    batch, total = operation_mask.shape
    numbers = np.arange(total)
    words = planes.words_for(grid_shape)
    inside = planes.area(size[:, 0], size[:, 1], words)
    points = planes.unpack_plane(inside, grid_shape).reshape(batch, 1, -1)
    points = points | (numbers == op.RESIZE)[:, None]
    points = points & np.isin(numbers, _AT_POINTS)[:, None]
    whole = np.arange(NAMED) == FIRST["whole"]
    named = np.where(
        np.isin(numbers, op.NOWHERE)[:, None], whole, ~np.isin(numbers, _NOT_NAMED)[:, None]
    )
    named = named & ~((numbers == op.CROP)[:, None] & whole)
    both = jnp.concatenate([usable[:, None, :] & named, points], axis=-1)
    return (both & operation_mask[:, :, None]).reshape(batch, -1)


def cells_of(selector: Array, found: Selectable) -> Array:
    """The cells bool (B, H, W) of selectors (B,); none where there is no such selector."""
    height, width = found.cells.shape[-2:]
    named = jnp.clip(selector, 0, NAMED - 1)[:, None, None, None]
    chosen = jnp.take_along_axis(found.cells, named, axis=1)[:, 0]
    number = jnp.arange(height * width).reshape(height, width)
    point = number == (selector - NAMED)[:, None, None]
    return jnp.where((selector < NAMED)[:, None, None], chosen, point)


def selector_of(operation: Array, cells: Array, found: Selectable) -> Array:
    """The first selector (B,) of exactly these cells (B, H, W) for operations (B,); -1 if none is.

    An operation that looks at no cells goes with the whole grid.
    """
    batch = cells.shape[0]
    named = (found.cells == cells[:, None]).all((-1, -2)) & found.usable
    named = named & ~jnp.isin(operation, np.array(_NOT_NAMED))[:, None]
    nowhere = jnp.isin(operation, np.array(op.NOWHERE))[:, None]
    named = jnp.where(nowhere, np.arange(NAMED) == FIRST["whole"], named)
    flat = cells.reshape(batch, -1)
    point = jnp.where(flat.sum(-1) == 1, NAMED + flat.argmax(-1), -1)
    return jnp.where(named.any(-1), named.argmax(-1), point).astype(jnp.int32)


def resolve(action: ObjectAction, state: ArcState, grid_shape: tuple[int, int]) -> MaskAction:
    """Object actions (B,) as the cells that they select in B worlds.

    One that selects nothing has the operation -1, which is invalid.
    """
    index, total = int32(action.index), count_selectors(grid_shape)
    found = selectable(planes.unpack(state.grid, grid_shape).astype(jnp.int32), state.size)
    cells = cells_of(index % total, found)
    there = cells.any((-1, -2)) & (index >= 0)
    return MaskAction(jnp.where(there, index // total, -1), cells)
