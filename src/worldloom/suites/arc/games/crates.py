"""Crates: push every crate onto a pad. A crate is pushed, never pulled, and never two at once."""

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

KINDS = ("wall", "player", "crate", "pad")
FLOOR, WALL, PLAYER, CRATE, PAD, PLACED = 5, 3, 9, 12, 11, 14


class Board(struct.PyTreeNode):
    player: Array  # int32 (2,)
    crates: Array  # bool (H, W)


def start(level: LevelTable) -> Board:
    """The board at the start of a level."""
    return Board(level.find("player"), level["crate"])


def push(board: Board, move: Move, level: LevelTable) -> tuple[Board, Array, Array]:
    """The board after a step; whether the player stepped, and whether that pushed a crate."""
    to, beyond = board.player + move.step, board.player + 2 * move.step
    floor = level.board & ~level["wall"]
    meets = holds(board.crates, to)
    steps = holds(floor, to) & (~meets | holds(floor & ~board.crates, beyond))
    steps = steps & (move.step != 0).any()
    pushes = steps & meets
    leaves, enters = one_cell(to, level.shape), one_cell(beyond, level.shape)
    crates = jnp.where(pushes, (board.crates & ~leaves) | enters, board.crates)
    return Board(jnp.where(steps, to, board.player), crates), steps, pushes


def act(board: Board, move: Move, level: LevelTable) -> Outcome:
    """A step of the player."""
    board, _, _ = push(board, move, level)
    return Outcome(board, ~(board.crates & ~level["pad"]).any())


def draw(board: Board, level: LevelTable) -> Array:
    """The board's colours."""
    pads = level["pad"]
    return paint(
        level.shape,
        FLOOR,
        (level["wall"], WALL),
        (pads, PAD),
        (board.crates, CRATE),
        (board.crates & pads, PLACED),
        (one_cell(board.player, level.shape), PLAYER),
    )


_MAP = Legend(
    {
        "#": ("wall",),
        "-": (),
        "@": ("player",),
        "o": ("crate",),
        "x": ("pad",),
        "%": ("crate", "pad"),
    }
)
_LEVELS = """
30 3 ------ ------ -@-o-x ------ ------ ------
30 3 --x--- ------ --o--- ---@-- ------ ------
36 6 ----x- -##--- -@o--- -##--- ------ ------
84 14 x----x ------ --oo-- --@--- ------ ------
90 15 ------ -x-o-- --##-- -o--x- ---@-- ------
"""
ABOUT = ("crates", "push every crate onto a pad")
GAME = Game(
    *ABOUT, KINDS, _MAP.levels(_LEVELS), (*WALK, UNDO), start, act, draw, undo=8, edges=bars
)
make = partial(world.make, GAME)
