"""ARC tasks in a terminal: coloured blocks, or plain digits where there is no colour."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from worldloom.suites.arc.sheet import LINES, PALETTE

if TYPE_CHECKING:
    from rich.text import Text

    from worldloom.suites.arc.tasks import Task

_ARROW = "  ->  "
_ARROW_WIDTH = len(_ARROW)


def grid_text(grid: np.ndarray, *, color: bool = True, compact: bool = False) -> "Text":
    """A grid (h, w) as lines of two characters for each cell.

    With `compact` a character is two cells, one above the other: a quarter of the space, and
    only with colour.
    """
    from rich.text import Text

    return Text("\n").join(_lines(np.asarray(grid), color, compact))


def task_text(task: "Task", *, color: bool = True, width: int = 80, answers: bool = True) -> "Text":
    """All pairs of a task, input beside output; small if they would not fit the width."""
    from rich.text import Text

    widest = max(pair.input.shape[1] + pair.output.shape[1] for pair in task.pairs)
    compact = color and 2 * widest + _ARROW_WIDTH > width
    lines = []
    for name, group in (("demonstration", task.demos), ("test", task.tests)):
        for number, pair in enumerate(group, start=1):
            lines += [Text(""), Text(f"{name} {number}", style="bold")]
            left = _lines(pair.input, color, compact)
            right = [Text("?")]
            if answers or name != "test":
                right = _lines(pair.output, color, compact)
            lines += _beside(left, right)
    return Text("\n").join([Text(task.name, style="bold italic"), *lines])


def _lines(grid: np.ndarray, color: bool, compact: bool) -> list["Text"]:
    from rich.text import Text

    if not color:
        return [Text(" ".join(map(str, row))) for row in grid.tolist()]
    lines = []
    if compact:
        below = [*grid[1::2].tolist(), *([[None] * grid.shape[1]] * (grid.shape[0] % 2))]
        for upper, lower in zip(grid[::2].tolist(), below, strict=True):
            line = Text()
            for top, bottom in zip(upper, lower, strict=True):
                under = "" if bottom is None else f" on {PALETTE[bottom]}"
                line.append("▀", f"{PALETTE[top]}{under}")
            lines.append(line)
        return lines
    for row in grid.tolist():
        line = Text()
        for cell in row:
            # Black cells carry a dot: on a black terminal one could not count them otherwise.
            line.append("· " if cell == 0 else "  ", f"{LINES} on {PALETTE[cell]}")
        lines.append(line)
    return lines


def _beside(left: Sequence["Text"], right: Sequence["Text"]) -> list["Text"]:
    """Two pictures with an arrow between them, the lower one in the middle of the other."""
    from rich.text import Text

    height = max(len(left), len(right))
    room = max(line.cell_len for line in left)
    rows = []
    for number in range(height):
        row = Text()
        for side, picture in enumerate((left, right)):
            at = number - (height - len(picture)) // 2
            if side:
                row.append(_ARROW if number == (height - 1) // 2 else " " * _ARROW_WIDTH)
            line = picture[at] if 0 <= at < len(picture) else Text("")
            row.append_text(line)
            if not side:
                row.append(" " * (room - line.cell_len))
        rows.append(row)
    return rows
