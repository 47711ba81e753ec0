"""Glide: on ice, a step does not end before something is in the way. Stop on the goal."""

from functools import partial

import jax.numpy as jnp
from flax import struct

from worldloom.core.types import Array
from worldloom.suites.arc.games import world
from worldloom.suites.arc.games.camera import bars
from worldloom.suites.arc.games.engine import WALK, Game, Move, Outcome, holds, one_cell, paint
from worldloom.suites.arc.games.levels import Legend, LevelTable

KINDS = ("wall", "player", "goal")
FLOOR, WALL, PLAYER, GOAL = 10, 4, 9, 11


class Board(struct.PyTreeNode):
    player: Array  # int32 (2,)


def start(level: LevelTable) -> Board:
    """The board at the start of a level."""
    return Board(level.find("player"))


def slide(cell: Array, move: Move, floor: Array) -> Array:
    """Where a slide over the floor (H, W) from a cell ends.

    The nearest cell ahead that is not floor is found at once, without walking there.
    """
    rows, columns = (jnp.arange(n) for n in floor.shape)
    ahead_by_row = (rows - cell[0]) * move.step[0]
    ahead_by_column = (columns - cell[1]) * move.step[1]
    ahead = ahead_by_row[:, None] + ahead_by_column
    in_line = jnp.where(move.step[0] != 0, (columns == cell[1])[None], (rows == cell[0])[:, None])
    # Without anything in the way it ends at the edge of the canvas.
    sides = jnp.asarray(floor.shape)
    room = jnp.where(move.step > 0, sides - 1 - cell, cell)
    most = jnp.where(move.step != 0, room, 0).sum()
    blocked = jnp.where(in_line & (ahead > 0) & ~floor, ahead - 1, most)
    return cell + move.step * jnp.minimum(blocked.min(), most)


def act(board: Board, move: Move, level: LevelTable) -> Outcome:
    """A slide of the player."""
    player = slide(board.player, move, level.board & ~level["wall"])
    return Outcome(Board(player), holds(level["goal"], player) & (move.step != 0).any())


def draw(board: Board, level: LevelTable) -> Array:
    """The board's colours."""
    player = one_cell(board.player, level.shape)
    return paint(level.shape, FLOOR, (level["wall"], WALL), (level["goal"], GOAL), (player, PLAYER))


_MAP = Legend({"#": ("wall",), "-": (), "@": ("player",), "x": ("goal",)})
_LEVELS = """
30 2 ------ -@---- ------ ------ ------ x-----
30 3 ------ ------ ------ ------ --#--- x-#--@
30 5 ------ #----- x--#-@ -#---- ------ #-----
36 6 --#@-- ------ ----#- ------ #----# -x#---
48 8 --#--- ----x# ------ ---#-- ---#-# ---#@-
"""
ABOUT = ("glide", "slide over ice until something is in the way; stop on the goal")
GAME = Game(*ABOUT, KINDS, _MAP.levels(_LEVELS), WALK, start, act, draw, edges=bars)
make = partial(world.make, GAME)
