"""Runs shown in the tools of others: what all such trackers share.

A tracker is a sink whose rows are news of one run, any of
  settings, tags, step: the run begins, or goes on; what follows is of `step` and later;
  rows: metrics, each row with the step it belongs to in the column `steps`;
  status, files: it has ended, and left these.
It is written to by a thread of its own (`MinimalAsyncLogger`): a disk that is full or a server that
is away loses what was sent to it, and never the training.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from worldloom.core.files import plain
from worldloom.core.lazy import resolve
from worldloom.core.names import suggest

# module -> class
TRACKERS = {"mlflow": "Mlflow", "tensorboard": "TensorBoard", "wandb": "Wandb"}

# Values of each agent are curves of their own; those of more are left to the run's own tables.
_MOST_IN_A_LIST = 16


class Point(NamedTuple):
    """A number of a run, and when it was that."""

    name: str
    value: float
    step: int


class Tracker:
    """Takes the news of a run and never raises: `failures` counts, the first one is printed.

    What it is sent is plain: numbers, text, lists and dicts.
    """

    name = ""

    def __init__(self) -> None:
        self.failures = 0
        self._beginning: Mapping[str, Any] | None = None

    def write(self, row: Mapping[str, Any]) -> None:
        """News as the module describes them."""
        try:
            if "settings" in row:
                self._beginning = row
            if self._beginning is not None:  # again, if the store was not there the first time
                begin = self._beginning
                self.start(begin["settings"], begin["tags"], begin["step"])
                self._beginning = None
            if "rows" in row:
                self.log([p for values in row["rows"] for p in points(values, values["steps"])])
            if "status" in row:
                self.finish(row["status"], [Path(file) for file in row["files"]])
        except Exception as error:
            self._count(error)

    def start(self, settings: Mapping[str, Any], tags: Mapping[str, str], step: int) -> None:
        """The run begins with these settings, or goes on; its news are of `step` and later."""

    def log(self, points: Sequence[Point]) -> None:
        """The numbers of a chunk."""

    def finish(self, status: str, files: Sequence[Path]) -> None:
        """FINISHED, KILLED (by who trains) or FAILED."""

    def look(self) -> list[str]:
        """The command that shows the run, word by word, or its address; nothing without a run."""
        return []

    def close(self) -> None: ...

    def _count(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            message = " ".join(str(error).split())
            message = message if len(message) <= 300 else message[:300] + " ..."
            print(
                f"tracking with {self.name}: {type(error).__name__}: {message}; "
                "training goes on, and further failures are only counted",
                file=sys.stderr,
            )


def open_tracker(name: str, folder: Path) -> Tracker:
    """The tracker of that name for the run in `folder`.

    A ValueError if there is none, an ImportError with the remedy if what it needs is not installed.
    """
    if name not in TRACKERS:
        raise ValueError(f"there is no tracker {name!r}; {suggest(name, TRACKERS)}")
    return resolve(f"worldloom.training.trackers.{name}:{TRACKERS[name]}")(folder)


def program(name: str, module: str = "") -> list[str]:
    """A command of a package, also where its environment is not on the path."""
    return [name] if shutil.which(name) else [sys.executable, "-m", module or name]


def relative(path: Path) -> str:
    """A path as it can be typed here, short where it can be."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def require(tracker: str, packages: Sequence[str], extra: str = "track") -> None:
    """An ImportError with the remedy if one of the packages is not installed; imports none."""
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.origin is None:  # no origin: a folder that happens to be there
            raise ImportError(
                f"tracking with {tracker} needs {package}, which is not installed; "
                f"pip install 'worldloom[{extra}]'"
            )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with names like `iqn/hidden`; lists stay lists."""
    flattened = {}
    for name, value in plain(values).items():
        nested = isinstance(value, Mapping)
        flattened |= flat(value, f"{prefix}{name}/") if nested else {prefix + name: value}
    return flattened


def points(row: Mapping[str, Any], step: int) -> list[Point]:
    """The numbers of a row; text, gaps and long lists are left out, and the step itself."""
    values = {}
    for name, value in flat(row).items():
        if isinstance(value, list) and len(value) <= _MOST_IN_A_LIST:
            values |= {f"{name}/{n}": one for n, one in enumerate(value)}
        elif name != "steps":
            values[name] = value
    return [Point(n, float(x), step) for n, x in values.items() if isinstance(x, int | float)]
