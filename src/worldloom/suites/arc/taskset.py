"""A named collection of tasks on the host: choosing among them, counting them, packing them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from worldloom.core.names import suggest
from worldloom.suites.arc.tasks import Pair, Task, pack_tasks, read_task
from worldloom.suites.arc.types import TaskBuffer

NUM_COLOURS = 10


@dataclass(frozen=True)
class Statistics:
    """What the tasks of a set are like. Means over nothing are None."""

    tasks: int
    demonstrations: int
    tests: int
    largest: tuple[int, int]  # height and width, each the most of any grid
    mean_cells: float  # of a grid, inputs and outputs alike
    same_size: float  # share of pairs whose output has the size of the input
    growing: float  # share of pairs whose output is higher or wider than the input
    changed_cells: float | None  # mean over the pairs that keep the size
    changed_share: float | None  # of the grid, mean over the same pairs
    colours: tuple[float, ...]  # the share of each colour among all cells
    colours_per_task: float  # mean number of colours that occur in a task


@dataclass(frozen=True, eq=False, repr=False)
class TaskSet:
    """Tasks in a fixed order under unique ids. Made by `load`, or from any tasks.

    `groups` are named subsets: the ids of each.
    """

    tasks: tuple[Task, ...]
    name: str = "tasks"
    split: str = "all"
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if len(self._place) < len(self.tasks):
            twice = next(t.name for i, t in enumerate(self.tasks) if self._place[t.name] != i)
            raise ValueError(f"{self.name}: task {twice!r} is there twice; ids must be unique")

    @cached_property
    def _place(self) -> dict[str, int]:
        return {task.name: i for i, task in enumerate(self.tasks)}

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(task.name for task in self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __contains__(self, task: object) -> bool:
        """Whether there is a task of this id, or this very task."""
        return task in self._place or any(task is own for own in self.tasks)

    def __repr__(self) -> str:
        return f"TaskSet({self.name!r}, split={self.split!r}, {len(self)} tasks)"

    @overload
    def __getitem__(self, which: str | int) -> Task: ...
    @overload
    def __getitem__(self, which: slice) -> "TaskSet": ...
    def __getitem__(self, which: str | int | slice) -> "Task | TaskSet":
        """A task by its id or its place; a slice is a smaller set: `tasks[:20]`."""
        if isinstance(which, slice):
            return self._with(self.tasks[which])
        if isinstance(which, str):
            return self.tasks[self.index(which)]
        return self.tasks[which]

    def index(self, task_id: str) -> int:
        """The place of a task in the set, which is its row in the buffer's `demos_start`."""
        if task_id not in self._place:
            hint = nearest(task_id, self.ids)
            raise ValueError(f"{self.name}: there is no task {task_id!r}; {hint}")
        return self._place[task_id]

    def subset(self, which: "str | Iterable[str] | Callable[[Task], bool]") -> "TaskSet":
        """The tasks of a named subset, of these ids (in their order), or for which `which` is true.

        Names are the set's `groups`, "same-size" (every pair keeps the grid's size) and
        "same-size-N-edits" for any N (see `mean_edits`).
        """
        if isinstance(which, str):
            which = self._named(which)
        if callable(which):
            return self._with(task for task in self.tasks if which(task))
        return self._with(self[task_id] for task_id in which)

    def within(self, height: int, width: int) -> "TaskSet":
        """The tasks of which every grid, input or output, fits in height x width."""
        return self.subset(
            lambda task: all(
                h <= height and w <= width
                for pair in task.pairs
                for h, w in (pair.input.shape, pair.output.shape)
            )
        )

    def buffer(self, grid_shape: tuple[int, int] | None = None) -> TaskBuffer:
        """The tasks, in this order, packed for the device (see `tasks.pack_tasks`)."""
        return pack_tasks(self.tasks, grid_shape)

    def to_json(self) -> str:
        """The text that `read_tasks` reads: ids, and under each the task in ARC's structure."""
        content = {task.name: task.to_json() for task in self.tasks}
        return json.dumps({"name": self.name, "split": self.split, "tasks": content})

    def statistics(self) -> Statistics:
        """Counts, sizes, colours and changes of the whole set."""
        if not self.tasks:
            raise ValueError(f"{self.name}: there is no task to count")
        pairs = [pair for task in self.tasks for pair in task.pairs]
        shapes = np.array([(pair.input.shape, pair.output.shape) for pair in pairs])  # (P, 2, 2)
        same = (shapes[:, 0] == shapes[:, 1]).all(-1)
        cells = shapes.prod(-1)
        changed = np.array([edits(pair) for pair in pairs])[same]
        histogram = np.array([_colours(task) for task in self.tasks])  # (T, 10)
        return Statistics(
            tasks=len(self.tasks),
            demonstrations=sum(len(task.demos) for task in self.tasks),
            tests=sum(len(task.tests) for task in self.tasks),
            largest=tuple(shapes.max((0, 1)).tolist()),
            mean_cells=float(cells.mean()),
            same_size=float(same.mean()),
            growing=float((shapes[:, 1] > shapes[:, 0]).any(-1).mean()),
            changed_cells=float(changed.mean()) if same.any() else None,
            changed_share=float((changed / cells[same, 0]).mean()) if same.any() else None,
            colours=tuple((histogram.sum(0) / histogram.sum()).tolist()),
            colours_per_task=float((histogram > 0).sum(-1).mean()),
        )

    def _with(self, tasks: Iterable[Task]) -> "TaskSet":
        return TaskSet(tuple(tasks), self.name, self.split, self.groups)

    def _named(self, name: str) -> Iterable[str] | Callable[[Task], bool]:
        if name in self.groups:
            return [task_id for task_id in self.groups[name] if task_id in self._place]
        if name == "same-size":
            return lambda task: mean_edits(task) < np.inf
        match = re.fullmatch(r"same-size-(\d+)-edits", name)
        if match:
            most = int(match[1])
            return lambda task: mean_edits(task) <= most
        known = [*self.groups, "same-size", "same-size-5-edits"]
        raise ValueError(f"{self.name}: there is no subset {name!r}; {nearest(name, known)}")


def read_tasks(path: Path) -> TaskSet:
    """The tasks of a file that holds the text of `TaskSet.to_json`."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        tasks = [read_task(name, task, str(path)) for name, task in kept["tasks"].items()]
        return TaskSet(tuple(tasks), kept["name"], kept["split"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not hold the tasks of a run ({type(error).__name__}); "
            "name another folder, or train again"
        ) from error


def edits(pair: Pair) -> float:
    """How many cells differ between input and output; infinity if their sizes differ."""
    if pair.input.shape != pair.output.shape:
        return np.inf
    return float(np.count_nonzero(pair.input != pair.output))


def mean_edits(task: Task) -> float:
    """The cells that a pair of the task changes, on average; infinity if any pair changes the size.

    The mean is over all pairs of the task, demonstrations and test pairs alike, each counted
    once. The subset "same-size-5-edits" is the tasks where it is at most 5.
    """
    return float(np.mean([edits(pair) for pair in task.pairs]))


def _colours(task: Task) -> np.ndarray:
    """How often each colour occurs in the task, int (10,)."""
    grids = [grid.ravel() for pair in task.pairs for grid in (pair.input, pair.output)]
    return np.bincount(np.concatenate(grids), minlength=NUM_COLOURS)


def nearest(name: str, known: Iterable[str]) -> str:
    """`suggest`, with no more than a few of the names when none is near."""
    known = list(known)
    hint = suggest(name, known)
    if hint.startswith("known: ") and len(known) > 20:
        return f"{suggest(name, known[:3])}, ... ({len(known)} in all)"
    return hint
