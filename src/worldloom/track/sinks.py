"""Where metrics go: JSON lines and CSV tables. Written between compiled chunks, on the host."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Numbers, lists and text that JSON knows; what is not finite becomes null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class JsonLines:
    """One JSON object a line. Rows from `resume_at` on are dropped first: they will come again.

    A row without the column counts as one of the first.
    """

    def __init__(self, path: Path, resume_at: int = 0, column: str = "epoch"):
        self.path = Path(path)
        kept = [row for row in read_json_lines(self.path) if row.get(column, 0) < resume_at]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self.path.open("a")

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(plain(row)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class CsvTable:
    """A CSV file with fixed columns, the first of which is the epoch, from `resume_at` on anew."""

    def __init__(self, path: Path, columns: Sequence[str], resume_at: int = 0):
        self.path, self.columns = Path(path), list(columns)
        kept: list[str] = []
        if self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)[1:]
            whole = [line for line in lines if line.endswith("\n")]  # a crash may tear the last
            kept = [line for line in whole if int(line.split(",", 1)[0]) < resume_at]
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


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text)
    beside.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(plain(value), indent=2) + "\n")
