"""Sinks of metrics: JSON lines and CSV tables, written on the host between compiled chunks."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.core.files import plain, write_text


class JsonLines:
    """One JSON object a line. Rows of iterations after `done` are dropped: they will come again."""

    def __init__(self, path: Path, done: float = 0):
        self.path = Path(path)
        kept = [row for row in read_json_lines(self.path) if (row.get("iteration") or 0) <= done]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self.path.open("a")

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(plain(row)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class CsvTable:
    """A CSV file with fixed columns, the first the iteration; rows after `done` are dropped."""

    def __init__(self, path: Path, columns: Sequence[str], done: int = 0):
        self.path, self.columns = Path(path), list(columns)
        kept: list[str] = []
        if self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)[1:]
            whole = [line for line in lines if line.endswith("\n")]  # a crash may tear the last
            kept = [line for line in whole if int(line.split(",", 1)[0]) <= done]
        write_text(self.path, "".join([",".join(self.columns) + "\n", *kept]))
        self._file = self.path.open("a", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def write(self, row: Mapping[str, Any]) -> None:
        values = (plain(row[name]) for name in self.columns)
        self._writer.writerow(["" if v is None else v for v in values])

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a JSON-lines file; a last line torn by a crash is left out."""
    if not Path(path).exists():
        return []
    rows = []
    for line in Path(path).read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
