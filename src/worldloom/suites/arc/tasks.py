"""Tasks as nested lists, packed into one buffer on the device."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import jax
import numpy as np

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


def read_grid(rows: Any, where: str) -> Grid:
    """A grid from nested lists or an array; strings of digits are read, null is 0.

    `where` names the file, task and pair for the error, which adds the cell.
    """
    if hasattr(rows, "tolist"):
        rows = rows.tolist()
    grid = _read_plain(rows)
    if grid is None:
        grid = np.array(_read_rows(rows, where), np.int8)
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


def _read_rows(rows: Any, where: str) -> list[list[int]]:
    if not isinstance(rows, Sequence) or isinstance(rows, str) or len(rows) == 0:
        raise ValueError(f"{where}: a grid must be a list of rows, not {str(rows)[:40]!r}")
    cells: list[list[int]] = []
    for r, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) == 0:
            raise ValueError(
                f"{where}, row {r}: a row must be a list of colours, not {str(row)[:40]!r}"
            )
        if cells and len(row) != len(cells[0]):
            raise ValueError(
                f"{where}, row {r}: {len(row)} cells, where the rows above have {len(cells[0])}"
            )
        cells.append([_read_cell(cell, f"{where}, cell ({r}, {c})") for c, cell in enumerate(row)])
    return cells


def _read_cell(cell: Any, where: str) -> int:
    if cell is None:
        return 0
    try:
        colour = int(cell)
        exact = isinstance(cell, str) or colour == cell
    except (TypeError, ValueError, OverflowError):
        exact, colour = False, -1
    if not exact or isinstance(cell, bool) or not 0 <= colour <= 9:
        raise ValueError(f"{where}: {cell!r} is no colour; colours are 0 to 9")
    return colour


def read_task(name: str, content: Mapping[str, Any], where: str) -> Task:
    """A task from the JSON structure that ARC uses; a test pair without answer is left out."""
    groups = {}
    for group in ("train", "test"):
        pairs = content.get(group) if isinstance(content, Mapping) else None
        if not isinstance(pairs, Sequence) or isinstance(pairs, str):
            raise ValueError(f"{where}: task {name} has no list {group!r} of pairs")
        read = []
        for i, pair in enumerate(pairs):
            place = f"{where}: task {name}, {group} pair {i}"
            if not isinstance(pair, Mapping) or "input" not in pair:
                raise ValueError(f"{place}: a pair must have 'input' and 'output'")
            if pair.get("output") is None:
                if group == "test":
                    continue
                raise ValueError(f"{place}: the output is missing")
            read.append(
                Pair(
                    read_grid(pair["input"], f"{place}, input"),
                    read_grid(pair["output"], f"{place}, output"),
                )
            )
        groups[group] = tuple(read)
    if not groups["train"]:
        raise ValueError(f"{where}: task {name} has no demonstration pair")
    return Task(name, groups["train"], groups["test"])


def canvas_of(tasks: Sequence[Task]) -> tuple[int, int]:
    """The canvas for these tasks: 30x30, or the largest side of smaller sets such as Mini-ARC."""
    side = max(max(*p.input.shape, *p.output.shape) for task in tasks for p in task.pairs)
    return (side, side) if side <= 8 else (30, 30)


def pack_tasks(tasks: Sequence[Task], grid_shape: tuple[int, int] | None = None) -> TaskBuffer:
    """The buffer of these tasks on a canvas of `grid_shape` (see `canvas_of`)."""
    if not tasks:
        raise ValueError("pack_tasks: there is no task; give at least one")
    height, width = grid_shape or canvas_of(tasks)
    words = planes.words_for((height, width))
    pairs = [(task.name, pair) for task in tasks for pair in task.pairs]
    cells = np.zeros((len(pairs), 2, height, width), np.int8)
    sizes = np.zeros((len(pairs), 2, 2), np.int32)
    for i, (name, pair) in enumerate(pairs):
        for side, grid in enumerate((pair.input, pair.output)):
            h, w = grid.shape
            if h > height or w > width:
                raise ValueError(
                    f"pack_tasks: a {h}x{w} grid of task {name} does not fit the canvas of "
                    f"{height}x{width}; give a larger grid_shape, or leave it out"
                )
            cells[i, side, :h, :w] = grid
            sizes[i, side] = h, w
    demos = np.array([len(task.demos) for task in tasks], np.int32)
    tests = np.array([len(task.tests) for task in tasks], np.int32)
    start = np.concatenate([[0], np.cumsum(demos + tests)[:-1]]).astype(np.int32)
    grids = planes.pack_numpy(cells, words)
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
