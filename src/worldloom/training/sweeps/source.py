"""Where the points of a sweep come from: a list of them, here.

A source that learns from what was tried, and one that several workers share, are in
`worldloom.training.sweeps.study` and `worldloom.training.sweeps.shared_study`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from worldloom.core.types import PyTree
from worldloom.training.suite import Suite
from worldloom.training.sweeps.search import (
    Point,
    Range,
    Space,
    grid_points,
    label_of,
    random_points,
)
from worldloom.training.trainer import Metrics

EVERY_POINT = "grid"  # the method that tries all combinations of what is listed


@dataclass(frozen=True)
class Search:
    """How points are chosen, and which of them are given up early.

    method: grid, random, or one of Optuna's samplers (see `study.SAMPLERS`); by default a grid of
    what is listed, and tpe where there are ranges.
    """

    method: str = ""
    points: int = 20  # how many are tried; of a grid all are
    batch: int = 4  # points that a sampler gives at a time, or a worker takes
    halving: int = 0  # go on with the best 1/halving at total/halving, total/halving^2, ... steps
    seeds: int = 5

    def __post_init__(self):
        for name in ("seeds", "points", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"sweep: {name}={getattr(self, name)}; use at least 1")
        if self.halving < 0 or self.halving == 1:
            raise ValueError(f"sweep: halving={self.halving}; use 2 or more, or 0 for none")

    def chosen_method(self, space: Space) -> str:
        ranges = any(isinstance(values, Range) for _, values in space)
        return self.method or ("tpe" if ranges else EVERY_POINT)


# Where points come from ------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """How far somebody else came with a point: S states, and metrics (S, iterations, ...).

    seconds: that it took.
    """

    iteration: int
    states: list[PyTree]
    rows: Metrics
    seconds: float = 0.0


@dataclass(frozen=True)
class Task:
    """A point to train, by its number."""

    number: int
    point: Point


class Source(Protocol):
    """Gives points to train and takes what came of them.

    keeps: whether it wants to know how far points are, at its own `stops`. folder: where results
    go, if that is for it to say. It is entered while points are trained.
    """

    keeps: bool

    @property
    def folder(self) -> Path | None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> None: ...

    def ask(self) -> list[Task]:
        """The next points; none when all are finished."""
        ...

    def report(self, task: Task, rung: int, value: float) -> bool:
        """What a point scores at a rung, in steps; False if it is somebody else's now."""
        ...

    def values(self, rung: int) -> list[float]:
        """What all points scored there so far."""
        ...

    def load(self, task: Task, template: PyTree) -> Saved | None:
        """What was saved of a point that another had begun; template: the S states of its runs."""
        ...

    def save(self, task: Task, saved: Saved) -> bool:
        """Keeps how far a point came; False if it is somebody else's now."""
        ...

    def stops(self, total: int) -> list[int]:
        """Iterations at which `save` is wanted."""
        ...

    def tell(self, task: Task, row: dict[str, Any]) -> None: ...
    def fail(self, number: int, values: Mapping[str, Any], reason: str) -> None:
        """Finishes a point that cannot be trained, or raises where such a one ends the sweep."""
        ...

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the points that are finished, by number."""
        ...


class Listed:
    """Points that are known from the start, for one process."""

    keeps, folder = False, None

    def __enter__(self) -> "Listed":
        return self

    def __exit__(self, *error: Any) -> None:
        """Nothing is held."""

    def __init__(self, points: Sequence[Point]):
        self._tasks = [Task(n, point) for n, point in enumerate(points)]
        self._rows: dict[int, dict[str, Any]] = {}
        self._values: dict[int, list[float]] = {}

    def ask(self) -> list[Task]:
        tasks, self._tasks = self._tasks, []
        return tasks

    def report(self, task: Task, rung: int, value: float) -> bool:
        self._values.setdefault(rung, []).append(value)
        return True

    def values(self, rung: int) -> list[float]:
        return self._values[rung]

    def load(self, task: Task, template: PyTree) -> None:
        return None

    def save(self, task: Task, saved: Saved) -> bool:
        return True

    def stops(self, total: int) -> list[int]:
        return []

    def tell(self, task: Task, row: dict[str, Any]) -> None:
        self._rows[task.number] = row

    def fail(self, number: int, values: Mapping[str, Any], reason: str) -> None:
        raise ValueError(reason)  # all are looked at before the first of them runs

    def rows(self) -> list[dict[str, Any]]:
        return [self._rows[n] for n in sorted(self._rows)]


def failed_row(values: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """The row of a point that cannot be trained."""
    names = ("mean", "stderr", "iqm", "iqm_low", "iqm_high", "worst")
    about = {"settings": label_of(values), "values": dict(values), "error": reason}
    return about | {"scores": [], "seconds": 0.0} | dict.fromkeys(names)


def known_points(
    suite: Suite, given: Mapping[str, Any], space: Space, search: Search
) -> list[Point] | None:
    """The points of a grid or of a random search; None where a sampler chooses."""
    method = search.chosen_method(space)
    if method == EVERY_POINT:
        return grid_points(suite, given, space)
    if method == "random":
        return random_points(suite, given, space, search.points, int(given.get("seed", 0)))
    return None
