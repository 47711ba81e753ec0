"""Flood: the field in the corner takes the colour that is clicked. Make the board one colour."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from worldloom.core.types import Array
from worldloom.suites.arc.games import world
from worldloom.suites.arc.games.camera import bars
from worldloom.suites.arc.games.engine import CLICK, Game, Move, Outcome, holds, one_cell
from worldloom.suites.arc.games.levels import Legend, LevelTable

KINDS = ("red", "blue", "yellow", "green")
COLOURS = (8, 9, 11, 14)


class Board(struct.PyTreeNode):
    colours: Array  # int8 (H, W)


def start(level: LevelTable) -> Board:
    """The board at the start of a level."""
    named = (jnp.int8(c) * level[kind] for kind, c in zip(KINDS, COLOURS, strict=True))
    return Board(sum(named, jnp.zeros(level.shape, jnp.int8)))


def field(colours: Array) -> Array:
    """Cells of one colour that are connected with the first cell, bool (H, W)."""
    same = colours == colours[0, 0]

    def spread(grown: tuple[Array, Array]) -> tuple[Array, Array]:
        now, _ = grown
        wide = jnp.pad(now, 1)
        beside = wide[2:, 1:-1] | wide[:-2, 1:-1] | wide[1:-1, 2:] | wide[1:-1, :-2]
        after = (now | beside) & same
        return after, (after != now).any()

    height, width = colours.shape
    corner = one_cell(jnp.zeros(2, jnp.int32), (height, width))
    return jax.lax.while_loop(lambda grown: grown[1], spread, (corner, jnp.asarray(True)))[0]


def act(board: Board, move: Move, level: LevelTable) -> Outcome:
    """A click on a colour."""
    clicks = (move.id == CLICK) & holds(level.board, move.cell)
    chosen = jnp.where(one_cell(move.cell, level.shape), board.colours, 0).max()
    colours = jnp.where(field(board.colours) & clicks, chosen, board.colours)
    one = ((colours == colours[0, 0]) | ~level.board).all()
    return Outcome(Board(colours), clicks & one)


def draw(board: Board, level: LevelTable) -> Array:
    """The board's colours."""
    return board.colours


_MAP = Legend({"r": ("red",), "b": ("blue",), "y": ("yellow",), "g": ("green",)})
_LEVELS = """
30 2 rrrbbb rrrbbb rrrbbb yyybbb yyyyyy yyyyyy
30 3 rrbbbb rrbggb rrbggb bbbggb byyyyb bbbbbb
30 4 bbbrry rbryrb yyrbrb yrryrb brrbbb yrbyry
36 6 rbryyr yrybbr byrbrb rrbbyb brryyy rrrrrb
48 8 gyrbgb ybyyrb brybbg ggryyg bggbgr bggrrb
"""
ABOUT = ("flood", "the field in the corner takes the colour that is clicked; make it all one")
GAME = Game(*ABOUT, KINDS, _MAP.levels(_LEVELS), (CLICK,), start, act, draw, edges=bars)
make = partial(world.make, GAME)
