"""JSON-lines files that grow while somebody looks: each look reads on from where the last ended."""

import json
import math
import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.report.page import flat
from worldloom.report.runs import Row, is_number


class Tail:
    """Rows of iterations that are added to a file. A line counts once its end is written.

    newest: the last of them. damaged: whether a line could not be read. torn: whether the last one
    has no end, yet or for ever. restarted: whether the last look began at the top again, because
    the file was written anew: a run that goes on drops the rows that will come again.
    """

    def __init__(self, path: Path):
        self._path, self._offset, self._file = path, 0, None
        self.damaged = self.torn = self.restarted = False
        self.newest: Row = {}

    def rows(self) -> list[Row]:
        """What is new since the last look."""
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                self.restarted = self._file != about.st_ino or about.st_size < self._offset
                if self.restarted:
                    self._offset, self.damaged, self.newest = 0, False, {}
                self._file = about.st_ino
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset, self.torn = self._offset + len(whole), len(whole) < len(text)
        rows = []
        for line in filter(bytes.strip, whole.splitlines()):
            row = None
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
            if not isinstance(row, dict):
                self.damaged = True
            elif is_number(row.get("iteration")):
                rows.append(row)
                if row["iteration"] >= self.newest.get("iteration", -math.inf):
                    self.newest = row
        return rows


class Columns:
    """The numbers of a growing file, by column."""

    def __init__(self, path: Path):
        self._tail = Tail(path)
        self._columns: dict[str, array[float]] = {}  # NaN where a row has none
        self._iterations: list[float] = []

    def thinned(self, points: int) -> dict[str, list[Any]]:
        """Each column as at most about `points` means of equal stretches; None where all miss."""
        rows = self._tail.rows()
        if self._tail.restarted:
            self._columns, self._iterations = {}, []
        for row in rows:
            self._add(row)
        every = max(1, math.ceil(len(self._iterations) / points))
        return {name: _means(values, every) for name, values in self._columns.items()}

    def _add(self, row: Row) -> None:
        while self._iterations and self._iterations[-1] >= row["iteration"]:  # it comes again
            self._iterations.pop()
            for values in self._columns.values():
                values.pop()
        for name, value in flat(row).items():
            if is_number(value) and name not in self._columns:
                self._columns[name] = array("d", [math.nan]) * len(self._iterations)
        self._iterations.append(row["iteration"])
        numbers = flat(row)
        for name, values in self._columns.items():
            value = numbers.get(name)
            values.append(value if is_number(value) else math.nan)


def _means(values: "array[float]", every: int) -> list[float | None]:
    """Means of stretches of `every` values, of those that are there."""
    missing = np.full(-len(values) % every, math.nan)
    rows = np.concatenate([np.asarray(values), missing]).reshape(-1, every)
    there = np.isfinite(rows)
    counts = there.sum(axis=1)
    sums = np.where(there, rows, 0.0).sum(axis=1)
    return [s / n if n else None for s, n in zip(sums.tolist(), counts.tolist(), strict=True)]
