"""Tasks and sets of them on the host: reading, choosing, counting, and packing for the device."""

import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard, overload

import jax
import numpy as np

from worldloom.core.files import read_json
from worldloom.core.names import one_line, shown, suggest
from worldloom.suites.arc import planes
from worldloom.suites.arc.types import TaskBuffer

Grid = np.ndarray  # int8 (h, w), colours 0 .. 9
MAX_SIDE = 30


@dataclass(frozen=True)
class Pair:
    """One input and its answer."""

    input: Grid
    output: Grid


@dataclass(frozen=True)
class Task:
    """Demonstration pairs and test pairs under a name."""

    name: str
    demos: tuple[Pair, ...]
    tests: tuple[Pair, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.demos + self.tests

    @property
    def grids(self) -> list[Grid]:
        """Input and output of every pair."""
        return [grid for pair in self.pairs for grid in (pair.input, pair.output)]

    @property
    def pair_names(self) -> list[str]:
        """ "demonstration 1", ..., "test 1", ...: the pairs in words."""
        groups = (("demonstration", self.demos), ("test", self.tests))
        return [f"{kind} {i + 1}" for kind, pairs in groups for i in range(len(pairs))]

    def to_json(self, answers: bool = True) -> dict[str, list[dict[str, Any]]]:
        """ARC's own structure, which `read_task` reads; `answers`: of the test pairs, too."""

        def plain(pair: Pair, whole: bool) -> dict[str, Any]:
            given = {"input": pair.input.tolist()}
            return given | {"output": pair.output.tolist()} if whole else given

        return {
            "train": [plain(pair, True) for pair in self.demos],
            "test": [plain(pair, answers) for pair in self.tests],
        }


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence other than text."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def read_grid(rows: Any, where: str) -> Grid:
    """A grid from nested lists or an array; strings of digits are read, null is 0.

    `where` names the file, task and pair for the error, which adds the cell.
    """
    if hasattr(rows, "tolist"):
        rows = rows.tolist()
    grid = _read_plain(rows)
    if grid is None:
        if not is_list(rows) or len(rows) == 0:
            raise ValueError(f"{where}: a grid must be a list of rows, not {str(rows)[:40]!r}")
        grid = np.array([_read_row(rows, r, where) for r in range(len(rows))], np.int8)
    if max(grid.shape) > MAX_SIDE:
        height, width = grid.shape
        raise ValueError(f"{where}: the grid is {height}x{width}; a side is at most {MAX_SIDE}")
    return grid


def _read_plain(rows: Any) -> Grid | None:
    """The grid if it is lists of colours and nothing else, as in most files: ten times as fast."""
    if type(rows) is not list or set(map(type, rows)) != {list} or len(set(map(len, rows))) != 1:
        return None
    cells = list(chain.from_iterable(rows))
    if set(map(type, cells)) != {int} or min(cells) < 0 or max(cells) > 9:
        return None
    return np.array(cells, np.int8).reshape(len(rows), -1)


def _read_row(rows: Sequence[Any], r: int, where: str) -> list[int]:
    row = rows[r]
    if not is_list(row) or len(row) == 0:
        what = f"a row must be a list of colours, not {str(row)[:40]!r}"
        raise ValueError(f"{where}, row {r}: {what}")
    if len(row) != len(rows[0]):
        what = f"{len(row)} cells, where the rows above have {len(rows[0])}"
        raise ValueError(f"{where}, row {r}: {what}")
    return [_read_cell(cell, f"{where}, cell ({r}, {c})") for c, cell in enumerate(row)]


def _read_cell(cell: Any, where: str) -> int:
    if cell is None:
        return 0
    try:
        colour = int(cell)
        exact = isinstance(cell, str) or colour == cell
    except (TypeError, ValueError, OverflowError):
        exact, colour = False, -1
    if not exact or isinstance(cell, bool) or not 0 <= colour <= 9:
        raise ValueError(f"{where}: {shown(cell)} is no colour; colours are 0 to 9")
    return colour


def read_task(name: str, content: Mapping[str, Any], where: str) -> Task:
    """A task from the JSON structure that ARC uses; a test pair without answer is left out."""
    groups: dict[str, list[Pair]] = {"train": [], "test": []}
    title = one_line(name, 60)
    for group, read in groups.items():
        pairs = content.get(group) if isinstance(content, Mapping) else None
        if not is_list(pairs):
            raise ValueError(f"{where}: task {title} has no list {group!r} of pairs")
        for i, pair in enumerate(pairs):
            place = f"{where}: task {title}, {group} pair {i}"
            if not isinstance(pair, Mapping) or "input" not in pair:
                raise ValueError(f"{place}: a pair must have 'input' and 'output'")
            if pair.get("output") is not None:
                sides = (read_grid(pair[side], f"{place}, {side}") for side in ("input", "output"))
                read.append(Pair(*sides))
            elif group == "train":
                raise ValueError(f"{place}: the output is missing")
    if not groups["train"]:
        raise ValueError(f"{where}: task {title} has no demonstration pair")
    return Task(name, tuple(groups["train"]), tuple(groups["test"]))


def longest_side(tasks: Iterable[Task]) -> int:
    """The largest height or width of any grid."""
    return max(max(grid.shape) for task in tasks for grid in task.grids)


def pack_tasks(tasks: Sequence[Task], grid_shape: tuple[int, int] | None = None) -> TaskBuffer:
    """The buffer of these tasks on a canvas of `grid_shape`.

    By default 30x30, or the longest side of smaller sets such as Mini-ARC.
    """
    if not tasks:
        raise ValueError("pack_tasks: there is no task; give at least one")
    if grid_shape is None:
        side = longest_side(tasks)
        grid_shape = (side, side) if side <= 8 else (MAX_SIDE, MAX_SIDE)
    height, width = grid_shape
    words = planes.words_for(grid_shape)
    demos = np.array([len(task.demos) for task in tasks], np.int32)
    tests = np.array([len(task.tests) for task in tasks], np.int32)
    cells = np.zeros((2 * (demos + tests).sum(), height, width), np.int8)
    sizes = np.zeros((len(cells), 2), np.int32)
    named = ((task.name, grid) for task in tasks for grid in task.grids)
    for i, (name, grid) in enumerate(named):
        h, w = sizes[i] = grid.shape
        if h > height or w > width:
            raise ValueError(
                f"pack_tasks: a {h}x{w} grid of task {name} does not fit the canvas of "
                f"{height}x{width}; give a larger grid_shape, or leave it out"
            )
        cells[i, :h, :w] = grid
    sizes = sizes.reshape(-1, 2, 2)  # inputs and outputs
    grids = planes.pack_numpy(cells, words).reshape(-1, 2, planes.PLANES, words)
    start = (np.cumsum(demos + tests) - demos - tests).astype(np.int32)
    identity = zlib.crc32(grids.tobytes(), height * planes.WORD + width)
    for other in (sizes, demos, tests):
        identity = zlib.crc32(other.tobytes(), identity)
    arrays = {
        "grids": grids,
        "sizes": sizes,
        "task": np.repeat(np.arange(len(tasks), dtype=np.int32), demos + tests),
        "demos_start": start,
        "demos_count": demos,
        "tests_start": start + demos,
        "tests_count": tests,
        "identity": np.uint32(identity),
    }
    return TaskBuffer(**jax.device_put(arrays), grid_shape=(height, width))


# Sets of tasks ---------------------------------------------------------------------------------


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

    def __contains__(self, task_id: object) -> bool:
        """Whether there is a task of this id."""
        return task_id in self._place

    def __repr__(self) -> str:
        return f"TaskSet({self.name!r}, split={self.split!r}, {len(self)} tasks)"

    @overload
    def __getitem__(self, which: str | int) -> Task: ...
    @overload
    def __getitem__(self, which: slice) -> "TaskSet": ...
    def __getitem__(self, which: str | int | slice) -> "Task | TaskSet":
        """A task by its id or its place; a slice is a smaller set: `tasks[:20]`."""
        if isinstance(which, slice):
            return replace(self, tasks=self.tasks[which])
        if isinstance(which, str):
            return self.tasks[self.index(which)]
        return self.tasks[which]

    def index(self, task_id: str) -> int:
        """The place of a task in the set, which is its row in the buffer's `demos_start`."""
        if task_id not in self._place:
            hint = suggest(task_id, self.ids)
            raise ValueError(f"{self.name}: there is no task {task_id!r}; {hint}")
        return self._place[task_id]

    def subset(self, which: "str | Iterable[str] | Callable[[Task], bool]") -> "TaskSet":
        """The tasks of a named subset, of these ids (in their order), or for which `which` is true.

        Names are the set's `groups`, "same-size" (every pair keeps the grid's size) and
        "same-size-N-edits" for any N (see `mean_edits`).
        """
        if isinstance(which, str):
            which = self._named(which)
        chosen = filter(which, self.tasks) if callable(which) else (self[name] for name in which)
        return replace(self, tasks=tuple(chosen))

    def within(self, height: int, width: int) -> "TaskSet":
        """The tasks of which every grid, input or output, fits in height x width."""
        return self.subset(
            lambda task: all(h <= height and w <= width for h, w in (g.shape for g in task.grids))
        )

    def buffer(self, grid_shape: tuple[int, int] | None = None) -> TaskBuffer:
        """The tasks, in this order, packed for the device (see `pack_tasks`)."""
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
        everything = [np.concatenate([g.ravel() for g in task.grids]) for task in self.tasks]
        histogram = np.array([np.bincount(cells, minlength=10) for cells in everything])  # (T, 10)
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
        raise ValueError(f"{self.name}: there is no subset {name!r}; {suggest(name, known)}")


def read_tasks(path: Path) -> TaskSet:
    """The tasks of a file that holds the text of `TaskSet.to_json`."""
    kept = read_json(path) if path.is_file() else None
    kinds = {"tasks": dict, "name": str, "split": str}
    if not isinstance(kept, dict) or not all(isinstance(kept.get(n), k) for n, k in kinds.items()):
        raise ValueError(
            f"{path} does not hold the tasks of a run; name another folder, or train again"
        )
    tasks = [read_task(name, task, str(path)) for name, task in kept["tasks"].items()]
    return TaskSet(tuple(tasks), kept["name"], kept["split"])


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
