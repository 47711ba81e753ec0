"""Lights: a click switches a lamp and its four neighbours. Put them all out."""

from functools import partial

import jax.numpy as jnp
from flax import struct

from worldloom.core.types import Array
from worldloom.suites.arc.games import world
from worldloom.suites.arc.games.camera import bars
from worldloom.suites.arc.games.engine import CLICK, Game, Move, Outcome, holds, paint
from worldloom.suites.arc.games.levels import Legend, LevelTable

KINDS = ("wall", "lamp")
DARK, WALL, LIT = 5, 3, 11


class Board(struct.PyTreeNode):
    lit: Array  # bool (H, W)


def start(level: LevelTable) -> Board:
    """The board at the start of a level."""
    return Board(level["lamp"])


def cross(cell: Array, level: LevelTable, wraps: bool = False) -> Array:
    """A cell and its four neighbours, bool (H, W); over the edges of the board where it wraps."""
    rows, columns = (jnp.arange(n) for n in level.shape)
    up, along = rows - cell[0], columns - cell[1]
    if wraps:
        up, along = (
            jnp.minimum(away % size, -away % size)
            for away, size in zip((up, along), level.size, strict=True)
        )
    return jnp.abs(up)[:, None] + jnp.abs(along) <= 1


def act(board: Board, move: Move, level: LevelTable, wraps: bool = False) -> Outcome:
    """A click on a lamp."""
    lamps = level.board & ~level["wall"]
    clicks = (move.id == CLICK) & holds(lamps, move.cell)
    lit = board.lit ^ (cross(move.cell, level, wraps) & lamps & clicks)
    return Outcome(Board(lit), clicks & ~lit.any())


def draw(board: Board, level: LevelTable) -> Array:
    """The board's colours."""
    return paint(level.shape, DARK, (level["wall"], WALL), (board.lit, LIT))


_MAP = Legend({"#": ("wall",), "-": (), "o": ("lamp",)})
_LEVELS = """
30 1 ----- --o-- -ooo- --o-- -----
30 2 oo--- o---- ----- ----o ---oo
30 2 -o#-- ooo-- -#--- --o#- -ooo-
30 3 --o-- ---oo --o-- -ooo- --o--
30 4 -oooo --ooo o---o oo--o o--oo
"""
ABOUT = ("lights", "a click switches a lamp and its neighbours; put them all out")
GAME = Game(*ABOUT, KINDS, _MAP.levels(_LEVELS), (CLICK,), start, act, draw, edges=bars)
make = partial(world.make, GAME)
