"""What commands print: tables, facts and next steps for people, JSON for programs; progress."""

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from worldloom.core.files import plain

# The terminal is one: quiet, by --quiet; watched, while progress is to be shown; its progress bar.
_terminal = SimpleNamespace(quiet=False, watched=False, bar=None, state={})


def begin(*, quiet: bool = False) -> None:
    """From here on `phase` shows progress; `quiet`: nothing is shown but what --json asks for."""
    _terminal.quiet, _terminal.watched = quiet, not quiet


def is_quiet() -> bool:
    return _terminal.quiet


def end() -> None:
    """Takes the progress bar away, and shows no more of it."""
    _clear()
    _terminal.watched = False


def _clear() -> None:
    if _terminal.bar is not None:
        _terminal.bar.stop()
        _terminal.bar = None


# Results ---------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    _clear()
    print(json.dumps(plain(value), indent=2), flush=True)


def say(text: str) -> None:
    """Prints a line for people."""
    _clear()
    if not _terminal.quiet:
        print(text, flush=True)


def next_steps(*commands: Sequence[Any]) -> None:
    """Prints the commands that may come next, each as it can be typed: ("eval", folder)."""
    # Where it is not on the path, as after `make demo`, the command is named as it was called.
    called = Path(sys.argv[0])
    unknown = [called] if called.name == "worldloom" else [sys.executable, "-m", "worldloom"]
    program = ["worldloom"] if shutil.which("worldloom") else unknown
    listed("next:", [[*program, *command] for command in commands])


def listed(label: str, commands: Sequence[Sequence[Any]]) -> None:
    """Prints commands, word by word, one below the other behind a label."""
    for n, command in enumerate(commands):
        say(f"{' ' * len(label) if n else label} {shlex.join(map(str, command))}")


def facts(title: str, values: Mapping[str, Any]) -> None:
    """Prints names and values side by side; long texts are wrapped, paths stay whole."""
    say(title)
    width = max(map(len, values), default=0)
    for name, value in values.items():
        lines = [str(value)] if isinstance(value, Path) else _wrap(str(value), _room() - width - 4)
        say("\n".join(f"  {label:<{width}}  {line}" for label, line in _beside(name, lines)))


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]] | Mapping[str, Sequence[Sequence[Any]]],
) -> None:
    """Prints a table, or one group of rows after the other; no word is broken.

    Long texts go on in the next line of their column. What is too wide all the same is printed
    row by row, each cell in a line.
    """
    groups = rows if isinstance(rows, Mapping) else {"": rows}
    texts = {name: [[*map(str, row)] for row in group] for name, group in groups.items()}
    widths = _fit([columns, *(row for group in texts.values() for row in group)], _room())
    say(title)
    if widths is not None:
        _line(columns, widths)
    for name, group in texts.items():
        if name:
            say(name)
        for row in group:
            if widths is not None:
                _line(row, widths)
            else:
                facts(row[0], dict(zip(columns[1:], row[1:], strict=True)))


def _line(cells: Sequence[str], widths: Sequence[int]) -> None:
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for n in range(max(map(len, wrapped), default=0)):
        parts = [lines[n] if n < len(lines) else "" for lines in wrapped]
        padded = [f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)]
        say(f"  {'  '.join(padded)}".rstrip())


def _fit(rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of columns, of which those with the most to wrap give way; None if none fit."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = [
        max(len(word) for cell in column for word in cell.split() or [""])
        for column in zip(*rows, strict=True)
    ]
    while (excess := sum(widths) + 2 * len(widths) - room) > 0:
        slack = [width - word for width, word in zip(widths, words, strict=True)]
        most = max(slack, default=0)
        if most <= 0:
            return None
        widths[slack.index(most)] -= min(excess, most)
    return widths


def _wrap(text: str, width: int) -> list[str]:
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, max(width, 1), **options) or [""]


def _beside(name: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [("" if n else name, line) for n, line in enumerate(lines)]


def _room() -> int:
    return shutil.get_terminal_size().columns


# Progress --------------------------------------------------------------------------------------


def phase(name: str, **state: Any) -> None:
    """Says what is being done now, in a bar on standard error where that is a terminal.

    state: `done` of `total`, their `unit`, and a `note`; what is not given stays as it was.
    """
    if not _terminal.watched or not sys.stderr.isatty():
        return
    if _terminal.bar is None:
        _terminal.bar, _terminal.state = _new_bar(), {"done": 0, "total": None, "note": ""}
    now = _terminal.state = _terminal.state | state
    total, done = now["total"], now["done"]
    count = f"{done:,.0f}/{total:,.0f} {now['unit']}" if total else ""
    _terminal.bar.update(
        0, description=name, total=total, completed=done, count=count, note=now["note"]
    )


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(compact=True),
        TextColumn(
            "{task.fields[note]}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        ),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=None, count="", note="")
    bar.start()
    return bar
