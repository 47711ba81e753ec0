"""Eight games of the community collection ARC-Interactive by our rules, pixel by pixel.

They play as theirs do under `arcengine`, displays included, so that ours can be held against it.
Levels are not part of this: `tests/parity/record_arc_interactive.py` writes those of a checkout as
JSON files, and ``make(GAMES["ic01"], levels="ic01.json")`` plays them.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core.types import Array
from worldloom.suites.arc.games import crates, doors, glide, lights
from worldloom.suites.arc.games.camera import SIDE
from worldloom.suites.arc.games.engine import (
    CLICK,
    WALK,
    Game,
    GameState,
    Move,
    Outcome,
    holds,
    one_cell,
    paint,
)
from worldloom.suites.arc.games.levels import LevelTable

FLOOR, WALL, PLAYER, GOAL, DONE, CRATE, HAZARD, TRAIL, HINT = 5, 3, 9, 11, 14, 15, 8, 12, 2
CLICKS = (*WALK, CLICK)
_ROWS, _COLUMNS = np.arange(SIDE)[:, None], np.arange(SIDE)[None]


# Displays ----------------------------------------------------------------------------------------


def corner(colour: Callable[[Any, LevelTable], Array]) -> Any:
    """A square of 4 x 4 pixels at the bottom right, of the colour that a board has."""

    def display(pixels: Array, state: GameState, level: LevelTable) -> Array:
        square = (_ROWS >= SIDE - 4) & (_COLUMNS >= SIDE - 4)
        return jnp.where(square, colour(state.board, level), pixels).astype(jnp.int8)

    return display


class Mark(struct.PyTreeNode):
    """Where the last click was, and for how many frames it will be seen."""

    pixel: Array  # int32 (2,)
    left: Array  # int32 ()


MARKED = 16  # frames


def no_mark() -> Mark:
    return Mark(jnp.zeros(2, jnp.int32), jnp.int32(0))


def mark(shown: Mark, move: Move, clicked: Array) -> Mark:
    """One frame later, or a new click."""
    left = jnp.where(clicked, MARKED, jnp.maximum(shown.left - 1, 0))
    return Mark(jnp.where(clicked, move.pixel, shown.pixel), left.astype(jnp.int32))


def ripple(pixels: Array, shown: Mark) -> Array:
    """A plus where the last click was, and for six frames a ring that grows and shrinks."""
    down, along = jnp.abs(_ROWS - shown.pixel[0]), jnp.abs(_COLUMNS - shown.pixel[1])
    phase = MARKED - shown.left
    radius = jnp.where(phase < 3, phase + 1, 6 - phase)
    ring = (jnp.maximum(down, along) == radius) & (phase < 6)
    pixels = jnp.where(ring & (shown.left > 0), jnp.where(radius >= 2, GOAL, 10), pixels)
    plus = (jnp.minimum(down, along) == 0) & (down + along <= 2) & (shown.left > 0)
    return jnp.where(plus, 12, pixels).astype(jnp.int8)


def dots(pixels: Array, count: Array, most: int, colour: Array | int) -> Array:
    """`count` dots in the second row, at most so many, with gaps; colour () or of pixels (64,)."""
    number = (_COLUMNS - 1) // 2
    there = (_ROWS == 1) & (_COLUMNS % 2 == 1) & (number < jnp.minimum(count, most))
    return jnp.where(there, colour, pixels)


# Walking -----------------------------------------------------------------------------------------


def slide_act(board: glide.Board, move: Move, level: LevelTable) -> Outcome:
    floor = level.board & ~level["wall"] & ~level["hazard"]
    player = glide.slide(board.player, move, floor)
    return Outcome(glide.Board(player), holds(level["goal"], player) & (move.step != 0).any())


def slide_draw(board: glide.Board, level: LevelTable) -> Array:
    player = (one_cell(board.player, level.shape), PLAYER)
    goal, hazard = (level["goal"], GOAL), (level["hazard"], HAZARD)
    return paint(level.shape, FLOOR, player, goal, (level["wall"], WALL), hazard)


def push_act(board: crates.Board, move: Move, level: LevelTable) -> Outcome:
    board, steps, _ = crates.push(board, move, level)
    return Outcome(board, (board.crates & level["pad"]).any(), counts=steps)


def push_draw(board: crates.Board, level: LevelTable, done: Array | None = None) -> Array:
    """Pads lie over what stands on them."""
    done = jnp.zeros(level.shape, bool) if done is None else done
    player = (one_cell(board.player, level.shape), PLAYER)
    blocks = ((board.crates, CRATE), (done, DONE))
    return paint(level.shape, FLOOR, player, *blocks, (level["pad"], GOAL), (level["wall"], WALL))


class Marked(struct.PyTreeNode):
    """Crates of which each is done once it has been on a pad, wherever it goes after that."""

    pushed: crates.Board
    done: Array  # bool (H, W)


def marked_act(board: Marked, move: Move, level: LevelTable) -> Outcome:
    pushed, steps, pushes = crates.push(board.pushed, move, level)
    # The player stands where the crate was, and the crate one step ahead.
    left = one_cell(pushed.player, level.shape)
    ahead = one_cell(pushed.player + move.step, level.shape)
    is_done = (left & board.done).any() | (ahead & level["pad"]).any()
    done = jnp.where(pushes, (board.done & ~left) | (ahead & is_done), board.done)
    solved = ~(pushed.crates & ~done).any() & steps
    return Outcome(Marked(pushed, done), solved, counts=steps)


def doors_draw(board: doors.Board, level: LevelTable) -> Array:
    shut = level["door"] & ~doors.is_open(board, level)
    player = (one_cell(board.player, level.shape), PLAYER)
    plates = ((level["plate"], GOAL), (board.pressed, 10))
    fixed = ((shut, WALL), (level["exit"], DONE), (level["wall"], WALL))
    return paint(level.shape, FLOOR, player, *plates, *fixed)


def doors_display(pixels: Array, state: GameState, level: LevelTable) -> Array:
    """Four squares of 2 x 2 pixels, one for each plate that is pressed."""
    pressed = state.board.pressed.sum()
    number = (_COLUMNS - (SIDE - 8)) // 2
    colour = jnp.where(doors.is_open(state.board, level), DONE, GOAL)
    squares = (_ROWS >= SIDE - 4) & (_ROWS < SIDE - 2) & (number >= 0)
    shown = jnp.where(number < jnp.minimum(pressed, 4), colour, FLOOR)
    return jnp.where(squares, shown, pixels).astype(jnp.int8)


class Trail(struct.PyTreeNode):
    player: Array  # int32 (2,)
    visited: Array  # bool (H, W)


def trail_start(level: LevelTable) -> Trail:
    player = level.find("player")
    return Trail(player, one_cell(player, level.shape))


def trail_left(board: Trail, level: LevelTable) -> Array:
    """Whether a cell is left to visit, bool ()."""
    return (level.board & ~level["wall"] & ~board.visited).any()


def trail_act(board: Trail, move: Move, level: LevelTable) -> Outcome:
    to = board.player + move.step
    steps = holds(level.board & ~level["wall"], to) & (move.step != 0).any()
    player = jnp.where(steps, to, board.player)
    board = Trail(player, board.visited | one_cell(player, level.shape))
    return Outcome(board, steps & ~trail_left(board, level))


def trail_draw(board: Trail, level: LevelTable) -> Array:
    player = (one_cell(board.player, level.shape), PLAYER)
    return paint(level.shape, FLOOR, (board.visited, TRAIL), (level["wall"], WALL), player)


# Clicking ----------------------------------------------------------------------------------------


def lights_display(
    pixels: Array, state: GameState, level: LevelTable, wraps: bool = False
) -> Array:
    pixels = dots(pixels, state.board.lit.sum(), 15, HAZARD)
    if wraps:  # a dot in the middle of each side
        edge_row = ((_ROWS == 0) | (_ROWS == SIDE - 1)) & (_COLUMNS == SIDE // 2)
        edge_column = ((_COLUMNS == 0) | (_COLUMNS == SIDE - 1)) & (_ROWS == SIDE // 2)
        pixels = jnp.where(edge_row | edge_column, GOAL, pixels)
    return ripple(pixels, state.shown)


class Canvas(struct.PyTreeNode):
    painted: Array  # bool (H, W)


def paint_act(board: Canvas, move: Move, level: LevelTable) -> Outcome:
    free = level.board & ~level["wall"]
    clicks = (move.id == CLICK) & holds(free, move.cell)
    painted = board.painted ^ (one_cell(move.cell, level.shape) & clicks)
    return Outcome(Canvas(painted), clicks & ~(painted ^ level["pattern"]).any())


def paint_draw(board: Canvas, level: LevelTable) -> Array:
    hints = (level["pattern"], HINT)
    return paint(level.shape, FLOOR, (level["wall"], WALL), hints, (board.painted, GOAL))


def paint_display(pixels: Array, state: GameState, level: LevelTable) -> Array:
    """A dot for each cell of the pattern, green for those that are painted."""
    matched = (state.board.painted & level["pattern"]).sum()
    colour = jnp.where(matched > (_COLUMNS - 1) // 2, DONE, HAZARD)
    count = jnp.maximum(level["pattern"].sum(), 1)
    return ripple(dots(pixels, count, 12, colour), state.shown)


# The games ---------------------------------------------------------------------------------------

_CLICKED: dict[str, Any] = {"actions": CLICKS, "show_start": no_mark, "show": mark}
_LIGHTS = Game(
    name="lo01",
    about="a click switches a lamp and its neighbours; put them all out",
    kinds=lights.KINDS,
    levels=(),
    start=lights.start,
    act=lights.act,
    draw=lights.draw,
    lives=1,
    display=lights_display,
    **_CLICKED,
)
_GAMES = (
    _LIGHTS,
    replace(
        _LIGHTS,
        name="lo02",
        about="the same on a board whose edges meet",
        act=partial(lights.act, wraps=True),
        display=partial(lights_display, wraps=True),
    ),
    replace(
        _LIGHTS,
        name="gp01",
        about="paint the cells of the pattern",
        kinds=("wall", "pattern"),
        start=lambda level: Canvas(jnp.zeros(level.shape, bool)),
        act=paint_act,
        draw=paint_draw,
        display=paint_display,
    ),
    Game(
        name="ic01",
        about="slide over ice; walls and hazards stop a slide",
        kinds=(*glide.KINDS, "hazard"),
        levels=(),
        actions=WALK,
        start=glide.start,
        act=slide_act,
        draw=slide_draw,
        lives=1,
        display=corner(
            lambda board, level: jnp.where(holds(level["goal"], board.player), GOAL, 10)
        ),
    ),
    Game(
        name="pb01",
        about="push the one crate onto the pad",
        kinds=crates.KINDS,
        levels=(),
        actions=WALK,
        start=crates.start,
        act=push_act,
        draw=push_draw,
        lives=1,
        display=corner(
            lambda board, level: jnp.where((board.crates & level["pad"]).any(), DONE, CRATE)
        ),
    ),
    Game(
        name="sk01",
        about="push every crate onto a pad; one that has been there is done",
        kinds=crates.KINDS,
        levels=(),
        actions=WALK,
        start=lambda level: Marked(crates.start(level), jnp.zeros(level.shape, bool)),
        act=marked_act,
        draw=lambda board, level: push_draw(board.pushed, level, board.done),
        lives=1,
        display=corner(
            lambda board, level: jnp.where((board.pushed.crates & ~board.done).any(), DONE, GOAL)
        ),
    ),
    Game(
        name="fs01",
        about="step on every plate to open the door, then go to the exit",
        kinds=doors.KINDS,
        levels=(),
        actions=WALK,
        start=doors.start,
        act=doors.act,
        draw=doors_draw,
        lives=1,
        display=doors_display,
    ),
    Game(
        name="va01",
        about="visit every cell",
        kinds=("wall", "player"),
        levels=(),
        actions=WALK,
        start=trail_start,
        act=trail_act,
        draw=trail_draw,
        lives=1,
        display=corner(lambda board, level: jnp.where(trail_left(board, level), GOAL, DONE)),
    ),
)
GAMES = {game.name: game for game in _GAMES}
