"""From any form of action to an operation, a set of cells, and whether the action is valid."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from worldloom.core.types import Array
from worldloom.suites.arc import planes
from worldloom.suites.arc.planes import Box
from worldloom.suites.arc.types import (
    NUM_EXTENDED_OPERATIONS,
    Action,
    ArcConfig,
    ArcState,
    BoxAction,
    FlatAction,
    MaskAction,
    ObjectAction,
    PointAction,
    int32,
)


class Selection(NamedTuple):
    """A set of canvas cells, of B worlds. Of a rectangle more is known without looking."""

    plane: Array  # (B, S)
    box: Box  # around it, (B,) each; top > bottom if it is empty
    valid: Array  # (B,)
    rectangle: bool  # static: the plane is its box

    @property
    def empty(self) -> Array:
        return self.box.top > self.box.bottom

    def box_within(self, selected: Array, height: Array, width: Array) -> Box:
        """The box around `selected`, the part of the plane within an area of height x width."""
        if not self.rectangle:
            return planes.bounding_box(selected)
        top, left, bottom, right = self.box
        return Box(top, left, jnp.minimum(bottom, height - 1), jnp.minimum(right, width - 1))

    def one_cell(self, selected: Array, box: Box) -> Array:
        """Whether `selected`, with `box` around it, is exactly one cell."""
        if not self.rectangle:
            return planes.count(selected) == 1
        return (box.top == box.bottom) & (box.left == box.right)


Form = MaskAction | BoxAction | PointAction | FlatAction | ObjectAction


def as_action(action: Action) -> Form:
    """A bare integer array is a flat action."""
    if isinstance(action, Form):
        return action
    return FlatAction(jnp.asarray(action))


def check_bounds_jax(action: Action, grid_shape: tuple[int, int]) -> Array:
    """Whether an action selects cells of a canvas of `grid_shape`, () or (B,).

    The corners of a box must be in order.
    """
    return decode(action, grid_shape, planes.words_for(grid_shape))[1].valid


def decode(action: Action, grid_shape: tuple[int, int], words: int) -> tuple[Array, Selection]:
    """The operation (...) and the selected cells of an action of any form and batch shape.

    An invalid selection comes out as a box within the canvas, so that what follows stays in
    bounds; `valid` says that it must have no effect.
    """
    height, width = grid_shape
    action = as_action(action)
    if isinstance(action, ObjectAction):
        raise ValueError("arc: what an object action selects is in the grid; see selectors.resolve")
    if isinstance(action, MaskAction):
        if action.selection.shape[-2:] != grid_shape:
            raise ValueError(
                f"arc: a selection of shape {action.selection.shape[-2:]} on a canvas of "
                f"{grid_shape}; a mask must cover the canvas"
            )
        plane = planes.pack_plane(jnp.asarray(action.selection, bool), words)
        box = planes.bounding_box(plane)
        operation = int32(action.operation)
        return operation, Selection(plane, box, jnp.ones_like(operation, bool), rectangle=False)
    if isinstance(action, FlatAction):
        index = int32(action.index)
        operation, cell = index // (height * width), index % (height * width)
        corners = (cell // width, cell % width) * 2
    elif isinstance(action, PointAction):
        operation, corners = action.operation, (action.row, action.column) * 2
    else:
        operation, corners = action.operation, (action.r1, action.c1, action.r2, action.c2)
    r1, c1, r2, c2 = corners = [int32(corner) for corner in corners]
    valid = (r1 >= 0) & (r1 <= r2) & (r2 < height) & (c1 >= 0) & (c1 <= c2) & (c2 < width)
    limits = (height - 1, width - 1) * 2
    box = Box(*(jnp.clip(x, 0, limit) for x, limit in zip(corners, limits, strict=True)))
    return int32(operation), Selection(planes.box_plane(box, words), box, valid, rectangle=True)


def allowed(operation: Array, operation_mask: Array) -> Array:
    """Whether each operation (...) exists and is allowed by its mask (..., N)."""
    total = operation_mask.shape[-1]
    known = (operation >= 0) & (operation < total)
    number = jnp.clip(operation, 0, total - 1)
    mask = jnp.take_along_axis(operation_mask, number[..., None], axis=-1, mode="promise_in_bounds")
    return known & mask[..., 0]


def validate_action_jax(action: Action, state: ArcState, config: ArcConfig) -> Array:
    """Whether `arc_step` would carry the action out, () or (B,)."""
    operation, selection = decode(action, config.grid_shape, config.tasks.words)
    known = state.tasks_id == config.tasks.identity
    return allowed(operation, state.operation_mask) & selection.valid & known


def create_bbox_action(operation: int, r1: int, c1: int, r2: int, c2: int) -> BoxAction:
    """A box action; wrong concrete values are an error here, since the step would ignore them."""
    named = {"operation": operation, "r1": r1, "c1": c1, "r2": r2, "c2": c2}
    known = {name: value for name, value in named.items() if not isinstance(value, Tracer)}
    for name, value in known.items():
        if not np.issubdtype(np.asarray(value).dtype, np.integer):
            raise ValueError(f"create_bbox_action: {name}={value!r}; it must be an integer")
        limit = NUM_EXTENDED_OPERATIONS if name == "operation" else planes.WORD
        if np.any((np.asarray(value) < 0) | (np.asarray(value) >= limit)):
            raise ValueError(f"create_bbox_action: {name}={value}; it must be in 0 .. {limit - 1}")
    for low, high in (("r1", "r2"), ("c1", "c2")):
        if {low, high} <= known.keys() and np.any(np.asarray(known[low]) > known[high]):
            raise ValueError(
                f"create_bbox_action: {low}={known[low]} lies beyond {high}={known[high]}; "
                "give the top left corner first"
            )
    return BoxAction(*(int32(value) for value in named.values()))
