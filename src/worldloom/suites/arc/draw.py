"""Pictures of ARC: tasks, states and whole episodes, as SVG, PNG and GIF.

Grids are numpy arrays (h, w) of colours 0 to 9. An episode is a list of `Shot`s, the working
grid before each operation and, last, the answer; `shots_of` makes it from a recorded trajectory.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from worldloom.report import page
from worldloom.report.gif import save_gif
from worldloom.suites.arc.operations import RESIZE
from worldloom.suites.arc.sheet import (
    COLOR_NAMES,
    PALETTE,
    Block,
    Frame,
    Tone,
    arrow,
    below,
    beside,
    cells,
    flow,
    framed,
    padded,
    to_png,
    to_svg,
    words,
)
from worldloom.suites.arc.shots import Shot, done, operation_name, selected_cells, shots_of
from worldloom.suites.arc.tasks import Task

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "COLOR_NAMES",
    "PALETTE",
    "Shot",
    "episode_gif",
    "episode_png",
    "episode_svg",
    "grid_png",
    "grid_svg",
    "operation_name",
    "selected_cells",
    "shots_of",
    "state_png",
    "state_svg",
    "task_png",
    "task_svg",
]

_LARGEST = 26  # pixels a cell takes at most
_TITLE = 17


# Tasks -------------------------------------------------------------------------------------------


def task_svg(task: Task, *, answers: bool = True, width: int = page.WIDE) -> str:
    """All pairs of a task; without `answers` the outputs of the test pairs are left open."""
    return to_svg(_task(task, answers, width), f"ARC task {task.name}")


def task_png(
    task: Task, *, answers: bool = True, width: int = page.WIDE, scale: int = 2
) -> "Image":
    """`task_svg` as a picture."""
    return to_png(_task(task, answers, width), scale)


def _task(task: Task, answers: bool, width: int) -> Block:
    grids = [grid for pair in task.pairs for grid in (pair.input, pair.output)]
    cell = cell_size(grids, width, across=4)  # two pairs side by side
    pairs = [
        _pair(f"{name} {number}", pair.input, pair.output, cell, answers or name != "test")
        for name, group in (("demonstration", task.demos), ("test", task.tests))
        for number, pair in enumerate(group, start=1)
    ]
    return below([words(task.name, _TITLE), flow(pairs, width, 36, 24)], 20)


def _pair(name: str, before: np.ndarray, after: np.ndarray, cell: int, answer: bool) -> Block:
    if answer:
        sizes = dict.fromkeys([_size(before), _size(after)])
        output, size = cells(after, cell), " to ".join(sizes)
    else:
        side = 4 * cell
        mark = words("?", _TITLE, "soft").moved(side / 2 - 5, side / 2 - 11)
        output = Block(side, side, (Frame(0, 0, side, side, dashed=True), *mark))
        size = _size(before)
    caption = beside([words(name), words(size, tone="soft")], 14)
    return below([caption, beside([cells(before, cell), arrow(), output], 12, "middle")], 8)


def cell_size(grids: Sequence[np.ndarray], width: int, across: int) -> int:
    """Pixels for a cell, one size for all: so that `across` grids fit side by side."""
    side = max(max(grid.shape) for grid in grids)
    most = (width - 60 * (across - 1)) // (across * side)
    return max(2, min(_LARGEST, most, 14 * _LARGEST // side))


def _size(grid: np.ndarray) -> str:
    return f"{grid.shape[0]}x{grid.shape[1]}"


# Grids and states --------------------------------------------------------------------------------


def grid_svg(grid: np.ndarray, selected: np.ndarray | None = None, cell: int | None = None) -> str:
    """One grid (h, w), and the selection (H, W) outlined."""
    return to_svg(cells(grid, cell or cell_size([grid], page.HALF, 1), selected), "ARC grid")


def grid_png(
    grid: np.ndarray,
    selected: np.ndarray | None = None,
    cell: int | None = None,
    scale: int = 2,
) -> "Image":
    """`grid_svg` as a picture."""
    return to_png(cells(grid, cell or cell_size([grid], page.HALF, 1), selected), scale)


def state_svg(
    grid: np.ndarray, clipboard: np.ndarray | None = None, selected: np.ndarray | None = None
) -> str:
    """A working grid (h, w) beside its clipboard, which may be empty."""
    return to_svg(_state(grid, clipboard, selected), "ARC state")


def state_png(
    grid: np.ndarray,
    clipboard: np.ndarray | None = None,
    selected: np.ndarray | None = None,
    scale: int = 2,
) -> "Image":
    """`state_svg` as a picture."""
    return to_png(_state(grid, clipboard, selected), scale)


def _state(grid: np.ndarray, clipboard: np.ndarray | None, selected: np.ndarray | None) -> Block:
    cell = cell_size([grid], page.HALF, 1)
    held, size = words("empty", tone="soft"), ""
    if clipboard is not None and np.size(clipboard) > 0:
        held, size = cells(clipboard, cell), f" {_size(clipboard)}"
    return beside(
        [
            below(
                [words(f"working grid {_size(np.asarray(grid))}"), cells(grid, cell, selected)], 8
            ),
            below([words(f"clipboard{size}"), held], 8),
        ],
        36,
    )


# Episodes ----------------------------------------------------------------------------------------


def episode_svg(
    shots: Sequence[Shot],
    *,
    input: np.ndarray | None = None,
    target: np.ndarray | None = None,
    solved: bool | None = None,
    title: str = "",
    width: int = page.WIDE,
    limit: int = 24,
) -> str:
    """An episode from its start to the answer: every operation by name, its cells outlined.

    Of more than `limit` operations, those in the middle are left out and counted.
    """
    return to_svg(_episode(shots, input, target, solved, title, width, limit), title or "episode")


def episode_png(
    shots: Sequence[Shot],
    *,
    input: np.ndarray | None = None,
    target: np.ndarray | None = None,
    solved: bool | None = None,
    title: str = "",
    width: int = page.WIDE,
    limit: int = 24,
    scale: int = 2,
) -> "Image":
    """`episode_svg` as a picture."""
    return to_png(_episode(shots, input, target, solved, title, width, limit), scale)


def _episode(
    shots: Sequence[Shot],
    input: np.ndarray | None,
    target: np.ndarray | None,
    solved: bool | None,
    title: str,
    width: int,
    limit: int,
) -> Block:
    if not shots:
        raise ValueError("episode picture: there is no shot; give at least the answer")
    ends = [grid for grid in (input, target) if grid is not None]
    cell = min(16, cell_size([shot.grid for shot in shots] + ends, width, 4))
    *steps, last = shots
    panels = []
    if input is not None and not np.array_equal(input, shots[0].grid):
        panels.append(_panel("input", cells(input, cell), "", leads=False))
    for number, shot in enumerate(steps, start=1):
        if len(steps) > limit and limit // 2 < number <= len(steps) - (limit - limit // 2):
            if number == limit // 2 + 1:
                panels.append(words(f"… {len(steps) - 2 * (limit // 2)} more …", tone="soft"))
            continue
        caption = "input" if number == 1 and _is(input, shot.grid) else f"step {number}"
        panels.append(_panel(caption, _shot(shot, cell), done(shot), leads=True))
    tone: Tone = "soft" if solved is None else ("good" if solved else "bad")
    verdict = "" if solved is None else ("solved" if solved else "not solved")
    end = cells(last.grid, cell)
    outcome = [_panel("answer", end if solved is None else framed(end, tone), verdict, False, tone)]
    if target is not None:
        aim = cells(target, cell)
        outcome.append(
            _panel("target", aim if solved is None else framed(aim, "soft"), "", leads=False)
        )
    panels.append(beside(outcome, 14))
    body = flow(panels, width, 14, 20)
    return below([words(title, _TITLE), body], 16) if title else body


def _is(grid: np.ndarray | None, other: np.ndarray) -> bool:
    return grid is not None and np.array_equal(grid, other)


def _shot(shot: Shot, cell: int) -> Block:
    grid, selected = np.asarray(shot.grid), shot.selected
    if selected is not None and shot.operation != RESIZE:
        selected = selected[: grid.shape[0], : grid.shape[1]]  # what lies outside does not count
    return cells(grid, cell, selected if selected is not None and selected.any() else None)


def _panel(caption: str, body: Block, beneath: str, leads: bool, tone: Tone = "ink") -> Block:
    if leads:
        body = beside([body, arrow()], 12, "middle")
    parts = [words(caption, tone="soft"), body, words(beneath, tone=tone)]
    return below(parts if beneath else parts[:2], 6)


def episode_gif(
    shots: Sequence[Shot],
    path: str | Path,
    *,
    target: np.ndarray | None = None,
    solved: bool | None = None,
    ms: int = 500,
) -> Path:
    """Writes an episode as a film, one frame for each shot, with the target beside it."""
    if not shots:
        raise ValueError("episode film: there is no shot; give at least the answer")
    ends = [] if target is None else [target]
    cell = cell_size([shot.grid for shot in shots] + ends, 2 * page.HALF, 2)
    verdict = "" if solved is None else ("solved" if solved else "not solved")
    tone: Tone = "soft" if solved is None else ("good" if solved else "bad")
    frames = []
    for number, shot in enumerate(shots, start=1):
        if shot.operation is None:
            caption = words(verdict or "answer", tone=tone)
        else:
            caption = words(f"{number}  {done(shot)}")
        frames.append(below([_shot(shot, cell), caption], 8))
    width, height = max(f.width for f in frames), max(f.height for f in frames)
    frames = [padded(frame, width, height) for frame in frames]
    if target is not None:
        aim = below([cells(target, cell), words("target", tone="soft")], 8)
        frames = [beside([frame, aim], 32) for frame in frames]
        height = max(frame.height for frame in frames)
        frames = [padded(frame, frame.width, height) for frame in frames]
    return save_gif([to_png(frame) for frame in frames], path, ms)
