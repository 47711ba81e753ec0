"""Worlds drawn as text: states from pictures, pictures from states."""

import jax.numpy as jnp
import numpy as np

from worldloom.suites.grid.world import GridState, GridWorld

UP, DOWN, LEFT, RIGHT = range(4)


def scene(world: GridWorld, picture: str, extra=()) -> GridState:
    """A state whose top layer is drawn row by row, agents as digits; lower layers are the map's."""
    rows = picture.split()
    assert (len(rows), len(rows[0])) == world.shape, "the picture has another size than the world"
    numbers = {kind.glyph: number for number, kind in enumerate(world.kinds)}
    layers = world.start_layers.copy()
    position = np.zeros((world.num_agents, 2), np.int32)
    for y, row in enumerate(rows):
        for x, glyph in enumerate(row):
            layers[-1, y, x] = numbers.get(glyph, world.index[world.agent])
            if glyph.isdigit():
                position[int(glyph)] = y, x
    return GridState(jnp.asarray(layers), jnp.asarray(position), extra)


def picture(world: GridWorld, state: GridState, layer: int = -1) -> str:
    """One layer as rows of glyphs; agents are digits on the top one."""
    rows = [[world.kinds[kind].glyph for kind in row] for row in np.asarray(state.layers[layer])]
    if layer == -1:
        for number, (y, x) in enumerate(np.asarray(state.position)):
            assert not world.passable[state.layers[-1, y, x]], f"agent {number} is not on the map"
            rows[y][x] = str(number)
    return " ".join("".join(row) for row in rows)
