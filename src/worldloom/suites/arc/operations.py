"""The operations of `rules="edit"`, all in one formulation.

Every operation is one instance of

    drawn = (one colour, or the contents of a box of some source, turned and moved) & where
    grid  = (grid & ~lifted & ~covered) | drawn

and what differs is data: a row of a table and a few numbers for each world. So a batch in which
every world does something else costs one pass, not one pass for each operation. What is costly and
seldom (transposing, fetching the input, flood fill) is done for the worlds that ask for it only.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from worldloom.core.sparse import update_chosen
from worldloom.core.types import Array
from worldloom.suites.arc import planes
from worldloom.suites.arc.actions import Selection
from worldloom.suites.arc.planes import Box
from worldloom.suites.arc.types import NUM_EXTENDED_OPERATIONS, TaskBuffer

NAMES = (
    *(f"fill {c}" for c in range(10)),
    *(f"flood fill {c}" for c in range(10)),
    "move up",
    "move down",
    "move left",
    "move right",
    "rotate clockwise",
    "rotate counter-clockwise",
    "flip columns",
    "flip rows",
    "copy",
    "paste",
    "cut",
    "clear",
    "copy input",
    "resize",
    "submit",
    "rotate 180",
    "transpose",
    "anti-transpose",
    "crop",
    "undo",
    "paste without 0",
)

Traits = Mapping[str, Sequence[int]]  # what operations do: which of them do it

FLOOD = 10  # the first of ten, after ten fills
UP, DOWN, LEFT, RIGHT, CLOCKWISE, COUNTER_CLOCKWISE, FLIP_COLUMNS, FLIP_ROWS = range(20, 28)
COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE, SUBMIT = range(28, 35)
ROTATE_180, TRANSPOSE, ANTI_TRANSPOSE, CROP, UNDO, PASTE_NONZERO = range(35, 41)
NOWHERE = (COPY_INPUT, SUBMIT, UNDO)  # operations that do not look at the selection

_TRAITS: Traits = {
    "paints": [*range(10), CUT, CLEAR],  # one colour, 0 for cut and clear, over the selection
    "object": [*range(UP, COPY), ROTATE_180, TRANSPOSE, ANTI_TRANSPOSE],  # lifts, then draws
    "transposed": [CLOCKWISE, COUNTER_CLOCKWISE, TRANSPOSE, ANTI_TRANSPOSE],
    "flips_rows": [COUNTER_CLOCKWISE, FLIP_ROWS, ROTATE_180, ANTI_TRANSPOSE],
    "flips_columns": [CLOCKWISE, FLIP_COLUMNS, ROTATE_180, ANTI_TRANSPOSE],
    "copies": [COPY, CUT],
    "pastes": [PASTE, PASTE_NONZERO],
    "to_origin": [COPY, CUT, CROP],
    "replaces": [COPY_INPUT, CROP],  # the whole grid
}

# The same as words of all bits or none, for what is chosen cell by cell. A choice by a flag that is
# the same for all words of a plane makes LLVM write the loop once for each combination of flags.
_MASKED = {
    "paints": _TRAITS["paints"],
    "object": _TRAITS["object"],
    "pastes": _TRAITS["pastes"],
    "crops": [CROP],
    "skips_zero": [PASTE_NONZERO],
}
_MASKS = np.stack(
    [np.isin(np.arange(NUM_EXTENDED_OPERATIONS), operations) for operations in _MASKED.values()], -1
) * np.uint32(0xFFFFFFFF)
_NONE_OR_ALL = np.array([0, 0xFFFFFFFF], np.uint32)

# How many worlds are worked on at a time by what few worlds ask for.
SOURCE_CHUNK = 96
FLOOD_CHUNK = 32


class Canvas(NamedTuple):
    """What operations change, of B worlds."""

    grid: Array  # (B, 4, S)
    size: Array  # (B, 2)
    clipboard: Array  # (B, 4, S)
    clipboard_size: Array  # (B, 2)


def traits_of(operation: Array, traits: Traits) -> dict[str, Array]:
    """Whether each operation (B,) does it, by trait: bits of one table, looked up once."""
    numbers = np.arange(NUM_EXTENDED_OPERATIONS)
    rows = [np.isin(numbers, chosen).astype(np.int32) for chosen in traits.values()]
    table = sum(row << bit for bit, row in enumerate(rows))
    bits = jnp.asarray(table)[operation]
    return {name: ((bits >> bit) & 1).astype(bool) for bit, name in enumerate(traits)}


def flooded(grid: Array, seed: Array, within: Array, colour: Array) -> Array:
    """The grids (n, 4, S) with the region of the one cell in the plane `seed` (n, S) filled.

    The region: cells of equal colour, connected by sides, in the plane `within`.
    """
    under = (grid & seed[:, None, :]).any(-1, keepdims=True)  # bits of the seed's colour
    other = planes.nonzero(grid ^ jnp.where(under, jnp.uint32(0xFFFFFFFF), jnp.uint32(0)))
    region = planes.flood(seed, within & ~other)[:, None, :]
    return (grid & ~region) | (planes.paint(colour) & region)


def _either(mask: Array, a: Array, b: Array) -> Array:
    """The bits of `a` where the mask has them, those of `b` elsewhere."""
    return b ^ ((a ^ b) & mask)


def edit(
    canvas: Canvas,
    operation: Array,
    selection: Selection,
    pair: Array,
    tasks: TaskBuffer,
    far: Array | int = 1,
) -> Canvas:
    """One operation (B,) on each of B worlds; `submit` and `undo` change nothing here.

    The operations and selections must be valid; `pair` (B,) tells where the input is, `far` how
    many cells a move moves.
    """
    grid, clipboard = canvas.grid, canvas.clipboard
    words = grid.shape[-1]
    height, width = canvas.size[:, 0], canvas.size[:, 1]
    has = traits_of(operation, _TRAITS)
    masks = jnp.asarray(_MASKS)[operation]
    on = {name: masks[:, i, None] for i, name in enumerate(_MASKED)}  # (B, 1), for planes

    def wide(flags: Array) -> Array:
        return flags[:, None, None]

    # The selection within the area, its box, and the object in it.
    inside = planes.area(height, width, words)
    selected = selection.plane & inside
    box = selection.box_within(selected, height, width)
    some = (box.top <= box.bottom) & (box.left <= box.right)
    lifted = selected & planes.nonzero(grid)

    # What is drawn, and where it lies in its source.
    # Cropping keeps all of the box, whatever is selected in it; `within` cuts off the rest.
    kept = _either(on["object"], lifted, selected) | on["crops"]
    source = _either(on["pastes"][:, None], clipboard, grid & kept[:, None, :])
    clip_height, clip_width = canvas.clipboard_size[:, 0], canvas.clipboard_size[:, 1]
    zero = jnp.zeros_like(box.top)
    clip = Box(zero, zero, clip_height - 1, clip_width - 1)
    origin = Box(*(jnp.where(has["pastes"], c, b) for c, b in zip(clip, box, strict=True)))

    # Where its top-left corner goes.
    down = (operation == DOWN).astype(jnp.int32) - (operation == UP)
    right = (operation == RIGHT).astype(jnp.int32) - (operation == LEFT)
    top = jnp.where(has["to_origin"], 0, box.top + far * down)
    left = jnp.where(has["to_origin"], 0, box.left + far * right)
    target = (top, left, has["flips_rows"], has["flips_columns"])
    moved = planes.place(source, origin, *target)

    def transposed_or_input(args):
        """The same, turned over the diagonal, or the whole input."""
        source, origin, target, pair, from_input = args
        turned = Box(origin.left, origin.top, origin.right, origin.bottom)
        turned = planes.place(planes.transpose(source), turned, *target)
        return jnp.where(wide(from_input), tasks.grids[pair, 0], turned)

    from_input = operation == COPY_INPUT
    moved = update_chosen(
        has["transposed"] | from_input,
        transposed_or_input,
        moved,
        (source, origin, target, pair, from_input),
        SOURCE_CHUNK,
    )

    # Which cells are drawn on. (What paints alone is clear, cut and fill.)
    pasted = Box(top, left, top + clip_height - 1, left + clip_width - 1)
    pasted = planes.box_plane(pasted, words) & inside
    clears_all = (operation == CLEAR) & selection.empty
    replaces = has["replaces"] & (from_input | some)
    flags = jnp.stack([some, clears_all, replaces], -1).astype(jnp.int32)
    somewhere, everything, anew = jnp.split(jnp.asarray(_NONE_OR_ALL)[flags], 3, -1)
    where = _either(on["paints"], selected, on["object"] & inside)
    where = _either(everything, inside, where)
    where = _either(on["pastes"], pasted & somewhere, where) | anew

    # Draw; of what is lifted or pasted without 0, only cells that are not 0.
    colour = operation % 10
    painted = planes.paint(jnp.where(operation < FLOOD, colour, 0))
    drawn = _either(on["paints"][:, None], painted, moved) & where[:, None, :]
    shown = planes.nonzero(drawn)
    covered = _either(on["object"], lifted | shown, where)
    covered = _either(on["skips_zero"], shown, covered)

    # Sizes; cells that fall outside of the area are cleared.
    crops = (operation == CROP) & some
    resizes = (operation == RESIZE) & ~selection.empty
    input_size = tasks.sizes[pair, 0]
    resized = jnp.stack([selection.box.bottom + 1, selection.box.right + 1], -1)
    cropped = jnp.stack([box.height, box.width], -1)
    size = jnp.where(resizes[:, None], resized, canvas.size)
    size = jnp.where(crops[:, None], cropped, size)
    size = jnp.where(from_input[:, None], input_size, size)
    within = planes.area(size[:, 0], size[:, 1], words)
    new = ((grid & ~covered[:, None, :]) | drawn) & within[:, None, :]
    floods = (operation >= FLOOD) & (operation < UP) & selection.one_cell(selected, box)
    new = update_chosen(
        floods, lambda args: flooded(*args), new, (grid, selected, inside, colour), FLOOD_CHUNK
    )

    copies = has["copies"] & some
    return Canvas(
        new,
        size,
        jnp.where(wide(copies), moved, clipboard),
        jnp.where(copies[:, None], cropped, canvas.clipboard_size),
    )
