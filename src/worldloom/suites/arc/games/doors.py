"""Doors: plates, all pressed, open the doors to the exit. Cracked floor holds once."""

from functools import partial

import jax.numpy as jnp
from flax import struct

from worldloom.core.types import Array
from worldloom.suites.arc.games import world
from worldloom.suites.arc.games.camera import bars
from worldloom.suites.arc.games.engine import (
    UNDO,
    WALK,
    Game,
    Move,
    Outcome,
    holds,
    one_cell,
    paint,
)
from worldloom.suites.arc.games.levels import Legend, LevelTable

KINDS = ("wall", "player", "plate", "door", "exit", "crack")
FLOOR, WALL, PLAYER, PLATE, PRESSED, DOOR, EXIT, CRACK, HOLE = 5, 3, 9, 11, 10, 8, 14, 2, 4


class Board(struct.PyTreeNode):
    player: Array  # int32 (2,)
    pressed: Array  # bool (H, W): plates
    holes: Array  # bool (H, W): where cracked floor was


def start(level: LevelTable) -> Board:
    """The board at the start of a level."""
    none = jnp.zeros(level.shape, bool)
    return Board(level.find("player"), none, none)


def is_open(board: Board, level: LevelTable) -> Array:
    """Whether every plate is pressed, bool ()."""
    return ~(level["plate"] & ~board.pressed).any()


def act(board: Board, move: Move, level: LevelTable) -> Outcome:
    """A step of the player."""
    to = board.player + move.step
    floor = level.board & ~level["wall"] & ~board.holes
    floor = floor & (is_open(board, level) | ~level["door"])
    steps = holds(floor, to) & (move.step != 0).any()
    player = jnp.where(steps, to, board.player)
    left = one_cell(board.player, level.shape) & level["crack"] & steps
    pressed = board.pressed | (one_cell(player, level.shape) & level["plate"])
    board = Board(player, pressed, board.holes | left)
    return Outcome(board, holds(level["exit"], player) & is_open(board, level))


def draw(board: Board, level: LevelTable) -> Array:
    """The board's colours."""
    return paint(
        level.shape,
        FLOOR,
        (level["wall"], WALL),
        (level["crack"], CRACK),
        (board.holes, HOLE),
        (level["plate"], PLATE),
        (board.pressed, PRESSED),
        (level["door"] & ~is_open(board, level), DOOR),
        (level["exit"], EXIT),
        (one_cell(board.player, level.shape), PLAYER),
    )


_MAP = Legend(
    {
        "#": ("wall",), "-": (), "@": ("player",), "p": ("plate",), "d": ("door",), "x": ("exit",),
        "c": ("crack",),
    }
)  # fmt: skip
_LEVELS = """
84 14 @----p ------ ##d### ------ ----x- ------
78 13 @-#--x --#--- --d--- --#--- p-#--- --#---
102 17 p----p ------ --@--- ------ ##d### --x---
102 17 @c--p- #c#-#- p-c--- -##c## ----dx ------
120 20 @c-cp- c##c#c --p--- c##c#d p-c--d -##--x
"""
ABOUT = ("doors", "step on every plate to open the doors; floor that is cracked holds once")
GAME = Game(
    *ABOUT, KINDS, _MAP.levels(_LEVELS), (*WALK, UNDO), start, act, draw, undo=8, edges=bars
)
make = partial(world.make, GAME)
