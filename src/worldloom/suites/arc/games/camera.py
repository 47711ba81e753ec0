"""What a player sees: 64 x 64 pixels of 16 colours, drawn from a board where somebody looks."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Int8, Int32

from worldloom.core.types import Array
from worldloom.suites.arc.games.engine import Game, GameState, Move
from worldloom.suites.arc.games.levels import LevelTable

SIDE = 64  # pixels of a frame
COLOURS = 16
# What the colours of ARC-AGI-3 look like.
PALETTE = (
    "#ffffff", "#cccccc", "#999999", "#666666", "#333333", "#000000", "#e53aa3", "#ff7bcc",
    "#f93c31", "#1e93ff", "#88d8f1", "#ffdc00", "#ff851b", "#921231", "#4fcc30", "#a356d6",
)  # fmt: skip
_FULL, _LIFE, _EMPTY = 14, 8, 3


def cells(game: Game, levels: LevelTable, state: GameState) -> Int8[Array, "H W"]:
    """The board's colours; what lies beyond a smaller board has that of the letterbox."""
    level = levels.at(state.level)
    return jnp.where(level.board, game.draw(state.board, level), jnp.int8(game.letterbox))


def frame(game: Game, levels: LevelTable, state: GameState) -> Int8[Array, "64 64"]:
    """The board in the middle, each cell a square as large as fits, and the display over it."""
    level = levels.at(state.level)
    view = cells(game, levels, state)
    edges = (None, None) if game.edges is None else game.edges(state, level)
    if levels.fills:
        pixels = _enlarged(view, game.letterbox, *edges)
    else:
        # A row and a column of letterbox, to which pixels beside the board point. Columns first:
        # few cells are then looked up one by one, and whole rows after that.
        view = jnp.pad(view, ((0, 1), (0, 1)), constant_values=game.letterbox)
        rows, columns = (_cell_of_pixel(level, axis) for axis in (0, 1))
        pixels = view[:, columns][rows]
        for place, edge in zip((0, -1), edges, strict=True):
            pixels = pixels if edge is None else pixels.at[place].set(edge)
    return pixels if game.display is None else game.display(pixels, state, level)


def _enlarged(view: Array, letterbox: int, first: Array | None, last: Array | None) -> Array:
    """A board that fills the canvas: every cell repeated as often as fits.

    first, last (64,): rows in the place of the first and the last one.

    Columns by one choice for each of the board's, rows by putting slices together, which XLA
    copies whole: on a CPU more than ten times as fast as `repeat`, which computes a place for every
    pixel. The barrier keeps XLA from doing so here.
    """
    height, width = view.shape
    scale = SIDE // max(height, width)
    of_row, of_column = ((np.arange(SIDE) - (SIDE - n * scale) // 2) // scale for n in view.shape)
    padded = jnp.pad(view, ((0, 1), (0, 0)), constant_values=letterbox)
    rows = jnp.full((height + 1, SIDE), letterbox, jnp.int8)
    for column in range(width):
        rows = jnp.where(of_column == column, padded[:, column : column + 1], rows)
    rows = jax.lax.optimization_barrier(rows)
    place = np.where((of_row < 0) | (of_row >= height), height, of_row)
    slices = [rows[row : row + 1] for row in place.tolist()]
    slices[0] = slices[0] if first is None else first[None]
    slices[-1] = slices[-1] if last is None else last[None]
    return jnp.concatenate(slices)


def scale_and_offset(level: LevelTable) -> tuple[Int32[Array, ""], Int32[Array, "2"]]:
    """Pixels on a cell's side, and where the board begins in the frame."""
    scale = SIDE // level.size.max(axis=-1)
    return scale, (SIDE - level.size * scale[..., None]) // 2


def _cell_of_pixel(level: LevelTable, axis: int) -> Int32[Array, "64"]:
    """The board's row (or column) of each row of pixels; beside it, the padded canvas's last."""
    scale, offset = scale_and_offset(level)
    place = (jnp.arange(SIDE) - offset[axis]) // scale
    beside = (place < 0) | (place >= level.size[axis])
    return jnp.where(beside, level.shape[axis], place)


def pixel_to_cell(level: LevelTable, pixel: Int[Array, "2"]) -> Int32[Array, "2"]:
    """Row and column of the cell under a pixel; -1 beside the board."""
    scale, offset = scale_and_offset(level)
    place = (pixel - offset) // scale
    on = ((place >= 0) & (place < level.size)).all()
    return jnp.where(on, place, -1).astype(jnp.int32)


def cell_to_pixel(level: LevelTable, cell: Int[Array, "2"]) -> Int32[Array, "2"]:
    """The pixel in the middle of a cell."""
    scale, offset = scale_and_offset(level)
    return (cell * scale + scale // 2 + offset).astype(jnp.int32)


def move_at(level: LevelTable, action: Int[Array, ""], pixel: Int[Array, "2"]) -> Move:
    """An action with the pixel that it points at, which is a click's alone."""
    cell = pixel_to_cell(level, pixel)
    middle = jnp.where((cell >= 0).all(), cell_to_pixel(level, cell), pixel)
    return Move(jnp.asarray(action, jnp.int32), cell, middle.astype(jnp.int32))


def bars(state: GameState, level: LevelTable) -> tuple[Int8[Array, "64"], Int8[Array, "64"]]:
    """The edges of our own games: lives in the first row, what is left of the limit in the last.

    A life is three pixels wide with a gap after it; the bar shrinks by whole pixels.
    """
    places = jnp.arange(SIDE)
    life = (places // 4 < state.lives) & (places % 4 < 3)
    left = jnp.maximum(level.limit - state.charged, 0)
    full = places * jnp.maximum(level.limit, 1) < SIDE * left
    rows = jnp.where(life, _LIFE, _EMPTY), jnp.where(full, _FULL, _EMPTY)
    return rows[0].astype(jnp.int8), rows[1].astype(jnp.int8)
