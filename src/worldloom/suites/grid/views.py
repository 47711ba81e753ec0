"""What agents and people see of a gridworld: windows, whole maps, colours, text."""

from functools import reduce
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array

if TYPE_CHECKING:
    from worldloom.suites.grid.world import GridState, GridWorld


def frame(world: "GridWorld", state: "GridState", i: Array | int) -> Array:
    """One agent's view, (C, h, w): a window around it, or the whole map and where it is."""
    if world.radius is None:
        layers = state.layers
    else:
        layers = window(world, state, state.position[i], world.radius)
    picture = one_hot(world, layers) if world.view == "onehot" else rgb(world, layers)
    if world.radius is not None:
        return picture
    row, column = state.position[i]
    rows, columns = jnp.arange(world.shape[0]), jnp.arange(world.shape[1])
    self_channel = (rows[:, None] == row) & (columns[None, :] == column)
    return jnp.concatenate([picture, self_channel[None].astype(picture.dtype)])


def window(world: "GridWorld", state: "GridState", center: Array, radius: int) -> Array:
    """(L, 2r+1, 2r+1) kinds around a cell; off the map stands `outside` on the top layer."""
    side, top = 2 * radius + 1, len(world.maps) - 1
    layers = []
    for number, layer in enumerate(state.layers):
        beyond = world.index[world.outside] if number == top else 0
        padded = jnp.pad(layer, radius, constant_values=beyond)
        layers.append(jax.lax.dynamic_slice(padded, (center[0], center[1]), (side, side)))
    # Without the barrier XLA slices anew for every channel of the view: twice the time.
    return jax.lax.optimization_barrier(jnp.stack(layers))


def one_hot(world: "GridWorld", layers: Array) -> Array:
    """(C, h, w) uint8: how many layers show each channel's kind in each cell."""
    kinds = jnp.asarray(world.channel_kinds)[:, None, None]
    # A sum in Python over the few layers keeps everything in one fused elementwise loop.
    shown = [(layer[None] == kinds).astype(jnp.uint8) for layer in layers]
    return reduce(jnp.add, shown)


def rgb(world: "GridWorld", layers: Array) -> Array:
    """(3, h, w) float32 in [0, 1]: colours of the layers added up and cut at white."""
    colors = np.array([kind.color for kind in world.kinds], np.float32)
    colors[[world.index[name] for name in world.unseen]] = 0.0
    total = jnp.asarray(colors)[layers.astype(jnp.int32)].sum(axis=0)
    return jnp.moveaxis(jnp.minimum(total, 255.0) / 255.0, -1, 0)


def cells(world: "GridWorld", state: "GridState") -> list[list[tuple[str, tuple[int, int, int]]]]:
    """Character and colour of the topmost thing in each cell, for people.

    Agents keep the colour of their kind and are numbered: 0 to 9, then letters.
    """
    layers = np.asarray(state.layers)
    top = layers[0]
    for layer in layers[1:]:
        top = np.where(layer == 0, top, layer)
    rows = [[(world.kinds[kind].glyph, world.kinds[kind].color) for kind in row] for row in top]
    names = "0123456789abcdefghijklmnopqrstuvwxyz"
    for number, (row, column) in enumerate(np.asarray(state.position)):
        rows[row][column] = (names[number % len(names)], rows[row][column][1])
    return rows


def ascii_map(world: "GridWorld", state: "GridState") -> str:
    """The map as text: one character for each cell, one line for each row."""
    return "\n".join("".join(glyph for glyph, _ in row) for row in cells(world, state))
