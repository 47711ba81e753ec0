"""The operations of `rules="o2arc"`: ARCLE's O2ARC set, with its numbers and its objects.

What is moved, turned or flipped is an **object** that a world remembers: the selected cells, cut
out of a background. As long as only such operations (and submissions) follow, an empty selection
goes on with the same object, so that a chain of moves leaves no hole behind, and what was pushed
over the edge can be brought back. Every other operation lets go of it.

All operations are one formulation:

    patch = the contents of a box of some source, turned, at the origin
    grid  = (base & ~covered) | ((one colour, or the patch put somewhere) & covered)

so that a batch in which every world does something else costs one pass. Here a selection is
looked at on the whole canvas, also where it lies outside of the active area.
"""

import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import stack
from worldloom.core.sparse import update_chosen
from worldloom.core.types import Array
from worldloom.suites.arc import planes
from worldloom.suites.arc.actions import Selection
from worldloom.suites.arc.operations import (
    FLOOD,
    FLOOD_CHUNK,
    SOURCE_CHUNK,
    SUBMIT,
    Canvas,
    Traits,
    flooded,
    traits_of,
)
from worldloom.suites.arc.planes import PLANES, WORD, Box
from worldloom.suites.arc.types import TaskBuffer

NAMES = (
    *(f"colour {c}" for c in range(10)),
    *(f"flood fill {c}" for c in range(10)),
    "move up",
    "move down",
    "move right",
    "move left",
    "rotate counter-clockwise",
    "rotate clockwise",
    "flip columns",
    "flip rows",
    "copy from input",
    "copy from grid",
    "paste",
    "copy input",
    "reset grid",
    "resize",
    "submit",
)

UP, DOWN, RIGHT, LEFT, COUNTER_CLOCKWISE, CLOCKWISE, FLIP_COLUMNS, FLIP_ROWS = range(20, 28)
COPY_FROM_INPUT, COPY_FROM_GRID, PASTE, COPY_INPUT, RESET, RESIZE = range(28, SUBMIT)
NOWHERE = (COPY_INPUT, RESET, SUBMIT)  # operations that do not look at the selection

_TRAITS: Traits = {
    "paints": [*range(10), RESET, RESIZE],  # one colour; 0 for reset and resize
    "object": range(UP, COPY_FROM_INPUT),
    "turns": [COUNTER_CLOCKWISE, CLOCKWISE],
    "flips_rows": [COUNTER_CLOCKWISE, FLIP_ROWS],
    "flips_columns": [CLOCKWISE, FLIP_COLUMNS],
    "copies": [COPY_FROM_INPUT, COPY_FROM_GRID],
    "reads_input": [COPY_FROM_INPUT, COPY_INPUT],
}
_STEP = np.zeros((len(NAMES), 2), np.int32)
_STEP[[UP, DOWN, RIGHT, LEFT]] = [(-1, 0), (1, 0), (0, 1), (0, -1)]


class ObjectState(struct.PyTreeNode):
    """The object of one world, or of a batch on a leading axis. The names are ARCLE's.

    Where `active` is False the other fields are what the last object has left: they have no
    effect.
    """

    active: Array  # bool (): an empty selection goes on with this object
    object: Array  # uint32 (4, S): its grid, at the origin
    object_sel: Array  # uint32 (S,): which of its cells were selected
    object_dim: Array  # int32 (2,): height and width
    object_pos: Array  # int32 (2,) in -128 .. 127: where its top left corner is on the canvas
    background: Array  # uint32 (4, S): the grid without it
    rotation_parity: Array  # int32 (): 1 after an odd number of turns about no cell's centre


def no_objects(batch_shape: tuple[int, ...], words: int) -> ObjectState:
    """What worlds of `batch_shape` remember at their reset: nothing."""
    grid = jnp.zeros((*batch_shape, PLANES, words), jnp.uint32)
    pair = jnp.zeros((*batch_shape, 2), jnp.int32)
    return ObjectState(
        active=jnp.zeros(batch_shape, bool),
        object=grid,
        object_sel=jnp.zeros((*batch_shape, words), jnp.uint32),
        object_dim=pair,
        object_pos=pair,
        background=grid,
        rotation_parity=jnp.zeros(batch_shape, jnp.int32),
    )


def _put(patch: Array, corner: Array) -> Array:
    """The planes (B, P, S) moved from the origin to `corner` (B, 2); nothing if that is too far."""
    zero = jnp.zeros_like(corner[:, 0])
    origin = Box(zero, zero, zero, zero)
    mirrored = jnp.zeros_like(zero, bool)
    put = planes.place(patch, origin, corner[:, 0], corner[:, 1], mirrored, mirrored)
    near = jnp.abs(corner[:, 1]) < WORD  # further than this words cannot be shifted
    return jnp.where(near[:, None, None], put, jnp.uint32(0))


def selected_cells(objects: ObjectState, size: Array) -> Array:
    """The plane (B, S) of the object's cells within the area of `size` (B, 2); ARCLE: `selected`.

    Empty where no object is active.
    """
    inside = planes.area(size[:, 0], size[:, 1], objects.object_sel.shape[-1])
    put = _put(objects.object_sel[:, None, :], objects.object_pos)[:, 0]
    return jnp.where(objects.active[:, None], put & inside, jnp.uint32(0))


def _int8(x: Array) -> Array:
    """What is left of x in eight bits: ARCLE's positions are int8 and wrap around."""
    return ((x + 128) & 255) - 128


def _turned_corner(
    corner: Array, dim: Array, parity: Array, counter_clockwise: Array
) -> tuple[Array, Array]:
    """Where a box (B, 2), (B, 2) has its corner after a quarter turn about its centre; parity.

    If one side is odd and the other even, the centre is at half a cell, and the corner is rounded
    down or up in turns: two turns bring it back.
    """
    end = _int8(corner + dim - 1)
    centre = _int8(corner + end)  # twice as much, to stay with integers
    even = (dim[:, 0] + dim[:, 1]) % 2 == 0
    exact = (centre - centre[:, ::-1]) // 2 + corner[:, ::-1]
    sign = jnp.where(counter_clockwise, 1, -1)
    sign = jnp.stack([sign, -sign], -1)
    reach = jnp.minimum(sign * (centre - 2 * corner)[:, ::-1], sign * (centre - 2 * end)[:, ::-1])
    rounded = (centre + reach) // 2 + parity[:, None]
    return _int8(jnp.where(even[:, None], exact, rounded)), jnp.where(even, parity, 1 - parity)


def apply(
    canvas: Canvas,
    objects: ObjectState,
    operation: Array,
    selection: Selection,
    pair: Array,
    tasks: TaskBuffer,
) -> tuple[Canvas, ObjectState]:
    """One operation (B,) on each of B worlds; `submit` does nothing.

    The operations and selections must be valid; `pair` (B,) tells where the input is.
    """
    grid, clipboard = canvas.grid, canvas.clipboard
    words = grid.shape[-1]
    has = traits_of(operation, _TRAITS)
    pastes, whole = operation == PASTE, operation == COPY_INPUT

    def wide(flags: Array) -> Array:
        return flags[:, None, None]

    selected, box, some = selection.plane, selection.box, ~selection.empty
    box_corner = jnp.stack([box.top, box.left], -1)
    box_dim = jnp.stack([box.height, box.width], -1)
    inside = planes.area(canvas.size[:, 0], canvas.size[:, 1], words)
    acts = has["object"] & (some | objects.active)
    goes_on = acts & ~some

    # The source: four planes of colours, and one of the cells that were selected.
    cut_out = jnp.concatenate([grid & selected[:, None], selected[:, None]], 1)
    remembered = jnp.where(wide(pastes), clipboard, objects.object)
    remembered = jnp.concatenate([remembered, objects.object_sel[:, None]], 1)
    source = jnp.where(wide(goes_on | pastes), remembered, cut_out)

    # The patch: from its box in the source to the origin.
    dim = jnp.where(goes_on[:, None], objects.object_dim, box_dim)
    corner = jnp.where((goes_on | pastes | whole)[:, None], 0, box_corner)
    last = corner + dim - 1
    origin = Box(corner[:, 0], corner[:, 1], last[:, 0], last[:, 1])
    zero = jnp.zeros_like(operation)
    target = (zero, zero, has["flips_rows"], has["flips_columns"])
    patch = planes.place(source, origin, *target)

    def transposed_or_input(args):
        """The same, turned over the diagonal, or out of the input."""
        source, kept, origin, target, pair, reads_input = args
        read = jnp.concatenate([tasks.grids[pair, 0] & kept[:, None], kept[:, None]], 1)
        source = jnp.where(wide(reads_input), read, planes.transpose(source))
        turned = Box(origin.left, origin.top, origin.right, origin.bottom)
        origin = Box(*(jnp.where(reads_input, o, t) for o, t in zip(origin, turned, strict=True)))
        return planes.place(source, origin, *target)

    everything = jnp.uint32(0xFFFFFFFF)
    kept = jnp.where(whole[:, None], everything, selected)
    patch = update_chosen(
        has["turns"] | has["reads_input"],
        transposed_or_input,
        patch,
        (source, kept, origin, target, pair, has["reads_input"]),
        SOURCE_CHUNK,
    )
    turns = has["turns"][:, None]
    new_dim = jnp.where(turns, dim[:, ::-1], dim)

    # Where it goes.
    pos = jnp.where(goes_on[:, None], objects.object_pos, box_corner)
    parity = jnp.where(goes_on, objects.rotation_parity, 0)
    turned_pos, turned_parity = _turned_corner(pos, dim, parity, operation == COUNTER_CLOCKWISE)
    new_pos = jnp.where(turns, turned_pos, _int8(pos + jnp.asarray(_STEP)[operation]))
    new_parity = jnp.where(has["turns"], turned_parity, parity)
    to = jnp.where(has["object"][:, None], new_pos, jnp.where(whole[:, None], 0, box_corner))
    put = _put(patch[:, :PLANES], to)

    # Which cells it covers there, or which are painted.
    resizes = (operation == RESIZE) & some
    wipes = (operation == RESET) | resizes
    painted = jnp.where(wipes[:, None], inside, selected & inside)
    clip_last = box_corner + canvas.clipboard_size - 1
    pasted = planes.box_plane(Box(box.top, box.left, clip_last[:, 0], clip_last[:, 1]), words)
    covered = jnp.where(has["paints"][:, None], painted, jnp.uint32(0))
    covered = jnp.where((pastes & some)[:, None], pasted & inside, covered)
    covered = jnp.where(acts[:, None], planes.nonzero(put) & inside, covered)
    covered = jnp.where(whole[:, None], everything, covered)

    # Draw.
    background = jnp.where(wide(goes_on), objects.background, grid & ~selected[:, None])
    base = jnp.where(wide(acts), background, grid)
    colour = operation % 10
    paint = planes.paint(jnp.where(operation < FLOOD, colour, 0))
    drawn = jnp.where(wide(has["paints"]), paint, put) & covered[:, None]
    new_grid = (base & ~covered[:, None]) | drawn
    floods = (operation >= FLOOD) & (operation < UP) & selection.one_cell(selected, box)
    new_grid = update_chosen(
        floods,
        lambda args: flooded(*args),
        new_grid,
        (grid, selected, inside, colour),
        FLOOD_CHUNK,
    )

    input_size = tasks.sizes[pair, 0]
    size = jnp.where(resizes[:, None], box_dim, canvas.size)
    size = jnp.where(whole[:, None], input_size, size)

    # A selection that reaches beyond what it copies from copies nothing.
    copied_size = jnp.where(has["reads_input"][:, None], input_size, canvas.size)
    copies = has["copies"] & some & (box_corner + box_dim <= copied_size).all(-1)
    canvas = Canvas(
        new_grid,
        size,
        jnp.where(wide(copies), patch[:, :PLANES], clipboard),
        jnp.where(copies[:, None], box_dim, canvas.clipboard_size),
    )
    moved = ObjectState(
        active=acts,
        object=patch[:, :PLANES],
        object_sel=patch[:, PLANES],
        object_dim=new_dim,
        object_pos=new_pos,
        background=background,
        rotation_parity=new_parity,
    )
    objects = stack.where(acts, moved, objects)
    # Submitting is the one operation besides those on objects that does not let go.
    return canvas, objects.replace(active=objects.active & (has["object"] | (operation == SUBMIT)))
