"""The engine of turn-based grid games: what a game is, and what an action does to it.

Functions are for one game and are vmapped. A state is small, a board of positions and masks; what
a player sees is drawn from it where somebody looks (`camera`). An action is taken in two parts,
after each of which there is a frame to see: `act` plays it on the board, `advance` goes on to the
next level, or back to the start of this one if it was lost and there is a life left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import stack
from worldloom.core.types import Array, PyTree
from worldloom.suites.arc.games.levels import Level, LevelTable

RESET, UP, DOWN, LEFT, RIGHT, SELECT, CLICK, UNDO = range(8)
WALK = (UP, DOWN, LEFT, RIGHT)
ACTION_NAMES = ("reset", "up", "down", "left", "right", "select", "click", "undo")
PLAYING, WON, LOST = range(3)
_STEPS = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1], [0, 0], [0, 0], [0, 0]], np.int32)


class Move(NamedTuple):
    """What a player does: one of the actions and, for a click, where."""

    id: Array  # int32 ()
    cell: Array  # int32 (2,): row and column of the board; -1 beside it
    pixel: Array  # int32 (2,): row and column of the frame

    @property
    def step(self) -> Array:
        """Rows and columns to go, int32 (2,); none for what is not a direction."""
        return jnp.asarray(_STEPS)[self.id]


class Outcome(NamedTuple):
    """What a move made of a board; `counts`: against the level's limit of actions."""

    board: PyTree
    solved: Array
    failed: Array | bool = False
    counts: Array | bool = True


@dataclass(frozen=True)
class Game:
    """A game as pure functions.

    kinds: what a level places in cells. actions: those that it has, of 1 .. 7. start(level): the
    first board. act(board, move, level): an `Outcome`; `UNDO` is the engine's own. draw(board,
    level): the colour of every cell, int8 (H, W). lives: how often a level may be lost, less one.
    undo: how many actions can be taken back. edges(state, level): the first and the last row of
    the frame, if they are not the board's. display(pixels, state, level): the frame with whatever
    is drawn over it; show_start() and show(shown, move, clicked): what the display remembers.
    """

    name: str
    about: str
    kinds: tuple[str, ...]
    levels: Sequence[Level]
    actions: tuple[int, ...]
    start: Callable[[LevelTable], PyTree]
    act: Callable[[Any, Move, LevelTable], Outcome]
    draw: Callable[[Any, LevelTable], Array]
    lives: int = 3
    undo: int = 0
    background: int = 5
    letterbox: int = 4
    edges: "Callable[[GameState, LevelTable], tuple[Array, Array]] | None" = None
    display: "Callable[[Array, GameState, LevelTable], Array] | None" = None
    show_start: Callable[[], PyTree] = lambda: ()
    show: Callable[[PyTree, Move, Array], PyTree] = lambda shown, move, clicked: ()


class GameState(struct.PyTreeNode):
    """A game in play."""

    board: PyTree
    past: PyTree  # (undo, ...): boards that can be returned to, the newest first
    undos: Array  # int32 (): how many of them there are
    level: Array  # int32 ()
    lives: Array  # int32 ()
    status: Array  # int32 (): PLAYING, WON or LOST
    actions: Array  # int32 (): on this level since it began
    charged: Array  # int32 (): those that count against its limit
    spent: Array  # int32 (L,): on each level, in all its attempts
    shown: PyTree  # what the display remembers

    @property
    def solved(self) -> Array:
        """How many levels are solved, int32 ()."""
        return self.level + (self.status == WON)


def begin(game: Game, levels: LevelTable, level: Array | int = 0) -> GameState:
    """A game at the start of a level."""
    board = game.start(levels.at(level))
    none = jnp.int32(0)
    return GameState(
        board=board,
        past=jax.tree.map(lambda x: jnp.zeros((game.undo, *x.shape), x.dtype), board),
        undos=none,
        level=jnp.asarray(level, jnp.int32),
        lives=jnp.int32(game.lives),
        status=jnp.int32(PLAYING),
        actions=none,
        charged=none,
        spent=jnp.zeros(levels.cells.shape[0], jnp.int32),
        shown=game.show_start(),
    )


def act(game: Game, levels: LevelTable, state: GameState, move: Move) -> tuple[GameState, Outcome]:
    """Plays a move on the board, and says what came of it; nothing in a game that is over.

    The state is that of the first frame: of a level that is solved as it looks solved.
    """
    level = levels.at(state.level)
    playing = state.status == PLAYING
    outcome = game.act(state.board, move, level)
    board, past, undos = outcome.board, state.past, state.undos
    if game.undo:
        undoing = move.id == UNDO
        possible = undoing & (undos > 0)
        before = stack.where(possible, stack.index(past, 0), state.board)
        board = stack.where(undoing, before, board)
        older = jax.tree.map(lambda x: jnp.roll(x, -1, axis=0), past)
        newer = jax.tree.map(lambda now, x: jnp.concatenate([now[None], x[:-1]]), state.board, past)
        past = stack.where(possible, older, stack.where(undoing, past, newer))
        change = jnp.where(possible, -1, jnp.where(undoing, 0, 1))
        undos = jnp.minimum(undos + change, game.undo)
        outcome = outcome._replace(
            solved=outcome.solved & ~undoing, failed=outcome.failed & ~undoing
        )
    charged = state.charged + outcome.counts
    solved = outcome.solved & playing
    late = (level.limit > 0) & (charged >= level.limit)
    failed = (late | outcome.failed) & ~solved & playing
    last = state.level == levels.cells.shape[0] - 1
    lives = state.lives - failed
    status = jnp.where(solved & last, WON, jnp.where(lives == 0, LOST, state.status))
    here = jnp.arange(state.spent.shape[0]) == state.level
    after = state.replace(
        board=board,
        past=past,
        undos=undos,
        lives=lives,
        status=status.astype(jnp.int32),
        actions=state.actions + 1,
        charged=charged.astype(jnp.int32),
        spent=state.spent + here,
        shown=game.show(state.shown, move, move.id == CLICK),
    )
    return stack.where(playing, after, state), Outcome(after.board, solved, failed)


def advance(
    game: Game, levels: LevelTable, state: GameState, outcome: Outcome
) -> tuple[GameState, Array]:
    """On to the next level, or back to the start of this one; and whether there was a change."""
    over = state.status != PLAYING
    moves_on = (outcome.solved | outcome.failed) & ~over
    level = state.level + (outcome.solved & moves_on)
    return stack.where(moves_on, _at_level(game, levels, state, level), state), moves_on


def play(game: Game, levels: LevelTable, state: GameState, move: Move) -> GameState:
    """`act` and `advance`."""
    return advance(game, levels, *act(game, levels, state, move))[0]


def reset(game: Game, levels: LevelTable, state: GameState) -> GameState:
    """Back to the start of the level; to that of the game where nothing was done, or it was won."""
    whole = (state.actions == 0) | (state.status == WON)
    level = jnp.where(whole, 0, state.level)
    again = _at_level(game, levels, state, level)
    return again.replace(lives=jnp.int32(game.lives), status=jnp.int32(PLAYING))


def _at_level(game: Game, levels: LevelTable, state: GameState, level: Array) -> GameState:
    """The state at the start of a level. The display has shown one more frame by then."""
    none = jnp.zeros_like(state.actions)
    nothing = Move(none, jnp.full(2, -1, jnp.int32), jnp.full(2, -1, jnp.int32))
    return state.replace(
        board=game.start(levels.at(level)),
        undos=none,
        level=level,
        actions=none,
        charged=none,
        shown=game.show(state.shown, nothing, jnp.asarray(False)),
    )


# What rules are written with ---------------------------------------------------------------------


def one_cell(cell: Array, shape: tuple[int, int]) -> Array:
    """True at a cell (2,), bool (H, W); nowhere if that is not on the canvas."""
    rows, columns = jnp.arange(shape[0]), jnp.arange(shape[1])
    return (rows == cell[0])[:, None] & (columns == cell[1])


def holds(mask: Array, cell: Array) -> Array:
    """Whether a mask (H, W) is true at a cell; false beyond the canvas."""
    height, width = mask.shape
    return (mask & one_cell(cell, (height, width))).any()


def paint(shape: tuple[int, int], background: int, *layers: tuple[Array, int]) -> Array:
    """Colours int8 (H, W): each layer, a mask and its colour, over those before it."""
    cells = jnp.full(shape, background, jnp.int8)
    for mask, colour in layers:
        cells = jnp.where(mask, jnp.int8(colour), cells)
    return cells
