"""A live progress bar and a result table for people."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


class ProgressBar:
    """Epochs done, current score and speed; silent where standard error is no terminal."""

    def __init__(self, total: int, done: int = 0, note: str = "compiling", unit: str = "epoch"):
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f} " + f"{unit}s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("training", total=total, completed=done, note=note)
        self._progress.start()

    def update(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note)

    def close(self) -> None:
        self._progress.stop()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table; the first column is text, numbers are aligned right."""
    out = Table(title=title, title_justify="left", header_style="bold")
    for n, column in enumerate(columns):
        out.add_column(column, justify="left" if n == 0 else "right")
    for row in rows:
        out.add_row(*[escape(str(cell)) for cell in row])
    Console().print(out)


def facts(title: str, values: Mapping[str, Any]) -> None:
    """Prints names and values side by side, each in one line: paths stay whole."""
    console = Console()
    console.print(f"[italic]{escape(title)}", soft_wrap=True)
    width = max(map(len, values), default=0)
    for name, value in values.items():
        console.print(f"  [dim]{name:<{width}}[/]  {escape(str(value))}", soft_wrap=True)
