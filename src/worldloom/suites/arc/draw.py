"""Pictures of ARC: tasks and whole episodes, as SVG, PNG and GIF, and tasks in a terminal.

Grids are numpy arrays (h, w) of colours 0 to 9. An episode is a list of `Shot`s, the working
grid before each operation and, last, the answer; `shots_of` makes it from a recorded trajectory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

import jax
import numpy as np

from worldloom.core.types import Array
from worldloom.report import page
from worldloom.suites.arc import planes
from worldloom.suites.arc.actions import decode
from worldloom.suites.arc.environment import NAMES, NOWHERE
from worldloom.suites.arc.episodes import Trajectory
from worldloom.suites.arc.operations import RESIZE, UP
from worldloom.suites.arc.sheet import (
    LINES,
    Picture,
    Png,
    Svg,
    Tone,
    arrow,
    below,
    beside,
    cells,
    flow,
    framed,
    words,
)
from worldloom.suites.arc.tasks import Task
from worldloom.suites.arc.types import COLOR_NAMES, PALETTE, Action, Observation, Rules

if TYPE_CHECKING:
    from rich.text import Text

_LARGEST = 26  # pixels a cell takes at most
_TITLE = 17
_ARROW = "  ->  "


def cell_size(grids: Sequence[np.ndarray], width: int, across: int) -> int:
    """Pixels for a cell, one size for all: so that `across` grids fit side by side."""
    side = max(max(np.shape(grid)) for grid in grids)
    most = (width - 60 * (across - 1)) // (across * side)
    return max(2, min(_LARGEST, most, 14 * _LARGEST // side))


def task_picture(task: Task, *, answers: bool = True, width: int = page.WIDE) -> Picture:
    """All pairs of a task; without `answers` the outputs of the test pairs are left open."""
    cell = cell_size(task.grids, width, across=4)  # two pairs side by side
    pairs = []
    for name, pair in zip(task.pair_names, task.pairs, strict=True):
        sizes = ["x".join(map(str, grid.shape)) for grid in (pair.input, pair.output)]
        output = cells(pair.output, cell)
        if not answers and name.startswith("test"):
            sizes, output = sizes[:1], _unknown(cell)
        caption = beside([words(name), words(" to ".join(dict.fromkeys(sizes)), tone="soft")], 14)
        grids = beside([cells(pair.input, cell), arrow(), output], 12, middle=True)
        pairs.append(below([caption, grids], 8))
    return below([words(task.name, _TITLE), flow(pairs, width, 36, 24)], 20)


def _unknown(cell: int) -> Picture:
    """A dashed square of four cells a side: an answer that is left open."""
    side = 4 * cell

    def draw(surface: Svg | Png, x: float, y: float) -> None:
        surface.frame(x, y, side, side, None)
        surface.text(x + side / 2 - 5, y + side / 2 + 6, "?", _TITLE, "soft")

    return Picture(side, side, draw)


# Episodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shot:
    """A moment of an episode: the grid (h, w), and what is about to be done to it.

    `operation` is its number, None for the answer; `cells` (n, 2) are those that it is done to,
    None if there are none: the selection is invalid, or does not matter.
    """

    grid: np.ndarray
    operation: int | None = None
    cells: np.ndarray | None = None
    valid: bool = True

    def caption(self, rules: Rules) -> str:
        """What is done, in words; nothing for the answer."""
        if self.operation is None:
            return ""
        return operation_name(self.operation, rules) + ("" if self.valid else " (invalid)")

    def picture(self, cell: int) -> Picture:
        """The grid with the cells outlined."""
        grid = np.asarray(self.grid)
        points = np.zeros((0, 2), int) if self.cells is None else np.reshape(self.cells, (-1, 2))
        if self.operation != RESIZE:  # elsewhere what lies outside does not count
            points = points[(points < grid.shape).all(axis=1)]
        selected = np.zeros(np.maximum(grid.shape, points.max(axis=0, initial=0) + 1), bool)
        selected[tuple(points.T)] = True
        return cells(grid, cell, selected)


def operation_name(operation: int, rules: Rules = "edit") -> str:
    """An operation in words, with its colour's name: 'fill green', 'rotate clockwise'."""
    names = NAMES[rules]
    if not 0 <= operation < len(names):
        return f"operation {operation}"
    if operation < UP:
        verb, _, colour = names[operation].rpartition(" ")
        return f"{verb} {COLOR_NAMES[int(colour)]}"
    return names[operation]


@partial(jax.jit, static_argnums=1)
def _decoded(action: Action, grid_shape: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Operations (...), masks (..., H, W) and whether these are valid (...)."""
    operation, selection = decode(action, grid_shape, planes.words_for(grid_shape))
    return operation, planes.unpack_plane(selection.plane, grid_shape), selection.valid


def shots_of(
    first: Observation, steps: Trajectory, world: int = 0, rules: Rules = "edit"
) -> list[Shot]:
    """The episode of one world of a trajectory (T, B); `first` (B, ...) is what reset showed."""
    start, played = jax.tree.map(np.asarray, (first, steps))
    actions = _decoded(steps.action, start.grid.shape[-2:])
    operation, selected, selectable = (np.asarray(x)[:, world] for x in actions)
    shots, grid, size = [], start.grid[world], start.size[world]
    for t in range(int(played.active[:, world].sum())):
        points = selectable[t] and operation[t] not in NOWHERE[rules]
        shots.append(
            Shot(
                grid[: size[0], : size[1]],
                int(operation[t]),
                np.argwhere(selected[t]) if points else None,
                bool(played.info.operation_type[t, world] >= 0),
            )
        )
        grid, size = played.observation.grid[t, world], played.observation.size[t, world]
    return [*shots, Shot(grid[: size[0], : size[1]])]


def _verdict(solved: bool | None) -> tuple[str, Tone]:
    if solved is None:
        return "", "soft"
    return ("solved", "good") if solved else ("not solved", "bad")


def episode_picture(
    shots: Sequence[Shot],
    *,
    input: np.ndarray | None = None,
    target: np.ndarray | None = None,
    solved: bool | None = None,
    title: str = "",
    rules: Rules = "edit",
    width: int = page.WIDE,
    limit: int = 24,
) -> Picture:
    """An episode from its start to the answer: every operation by name, its cells outlined.

    Of more than `limit` operations, those in the middle are left out and counted.
    """
    if not shots:
        raise ValueError("episode picture: there is no shot; give at least the answer")
    ends = [grid for grid in (input, target) if grid is not None]
    cell = min(16, cell_size([shot.grid for shot in shots] + ends, width, 4))

    def panel(caption: str, body: Picture, beneath: str = "", tone: Tone = "ink") -> Picture:
        parts = [words(caption, tone="soft"), body, words(beneath, tone=tone)]
        return below(parts if beneath else parts[:2], 6)

    *steps, last = shots
    panels = []
    starts_at_input = input is not None and np.array_equal(input, shots[0].grid)
    if input is not None and not starts_at_input:
        panels.append(panel("input", cells(input, cell)))
    first_out, last_out = limit // 2, len(steps) - (limit - limit // 2)
    for number, shot in enumerate(steps):
        if len(steps) > limit and first_out <= number < last_out:
            if number == first_out:
                panels.append(words(f"… {last_out - first_out} more …", tone="soft"))
            continue
        caption = "input" if number == 0 and starts_at_input else f"step {number + 1}"
        body = beside([shot.picture(cell), arrow()], 12, middle=True)
        panels.append(panel(caption, body, shot.caption(rules)))
    verdict, tone = _verdict(solved)
    outcome: list[tuple[str, np.ndarray, str, Tone]] = [("answer", last.grid, verdict, tone)]
    if target is not None:
        outcome.append(("target", target, "", "soft"))
    drawn = [
        panel(name, cells(grid, cell) if solved is None else framed(cells(grid, cell), t), text, t)
        for name, grid, text, t in outcome
    ]
    body = flow([*panels, beside(drawn, 14)], width, 14, 20)
    return below([words(title, _TITLE), body], 16) if title else body


# The terminal ------------------------------------------------------------------------------------


def task_text(task: Task, *, color: bool = True, width: int = 80, answers: bool = True) -> "Text":
    """All pairs of a task, input beside output; small if they would not fit the width."""
    from rich.text import Text

    widest = max(pair.input.shape[1] + pair.output.shape[1] for pair in task.pairs)
    compact = color and 2 * widest + len(_ARROW) > width
    lines = [Text(task.name, style="bold italic")]
    for name, pair in zip(task.pair_names, task.pairs, strict=True):
        left, right = grid_lines(pair.input, color, compact), [Text("?")]
        if answers or not name.startswith("test"):
            right = grid_lines(pair.output, color, compact)
        height, room = max(len(left), len(right)), left[0].cell_len
        # The lower of the two stands in the middle of the other.
        left, right = ([Text("")] * ((height - len(side)) // 2) + side for side in (left, right))
        lines += [Text(""), Text(name, style="bold")]
        for number, (one, other) in enumerate(zip_longest(left, right, fillvalue=Text(""))):
            arrow = _ARROW if number == (height - 1) // 2 else " " * len(_ARROW)
            lines.append(Text.assemble(one, " " * (room - one.cell_len), arrow, other))
    return Text("\n").join(lines)


def grid_lines(grid: np.ndarray, color: bool = True, compact: bool = False) -> list["Text"]:
    """A grid (h, w) as lines of two characters for each cell.

    With `compact` a character is two cells, one above the other: a quarter of the space, and
    only with colour.
    """
    from rich.text import Text

    if not color:
        return [Text(" ".join(map(str, row))) for row in grid.tolist()]
    if not compact:
        # Black cells carry a dot: on a black terminal one could not count them otherwise.
        return [
            Text.assemble(*(("  " if c else "· ", f"{LINES} on {PALETTE[c]}") for c in row))
            for row in grid.tolist()
        ]
    lines = []
    for row in range(0, len(grid), 2):
        columns = grid[row : row + 2].T.tolist()
        styles = [" on ".join(PALETTE[cell] for cell in column) for column in columns]
        lines.append(Text.assemble(*(("▀", style) for style in styles)))
    return lines
