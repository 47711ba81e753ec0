"""Sinks of metrics: JSON lines and CSV tables, written on the host between compiled chunks.

Rows of iterations that will come again are dropped when a sink is opened. Whatever else cannot be
kept is damaged: the file as it was is set aside then.
"""

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.core.files import damaged_name, plain, sync, write_bytes


class JsonLines:
    """One JSON object a line. Rows of iterations after `done` are dropped: they will come again."""

    def __init__(self, path: Path, done: float = 0):
        self.path = Path(path)
        kept = _kept_lines(self.path, lambda line: _parse(line).get("iteration") or 0, done)
        write_bytes(self.path, b"".join(line.rstrip(b"\n") + b"\n" for line in kept))
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
        header = ",".join(self.columns).encode() + b"\n"

        def iteration(line: bytes) -> int:
            if line.count(b",") != header.count(b",") or not line.endswith(b"\n"):
                raise ValueError("a part of a line, or two of them")
            return 0 if line == header else int(line.split(b",", 1)[0])

        kept = [line for line in _kept_lines(self.path, iteration, done) if line != header]
        write_bytes(self.path, b"".join([header, *kept]))
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
    """The rows of a JSON-lines file that can be read; a crash may tear the last."""
    rows = []
    for line in _lines(Path(path)):
        try:
            rows.append(_parse(line))
        except ValueError:
            continue
    return rows


def _lines(path: Path) -> list[bytes]:
    """Lines with their ends, of which a crash may have torn the last; no empty ones."""
    if not path.exists():
        return []
    return re.findall(rb"[^\n]+\n?", path.read_bytes())


def _parse(line: bytes) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or not isinstance(row.get("iteration") or 0, int | float):
        raise ValueError("not a row")
    return row


def _kept_lines(path: Path, iteration: Callable[[bytes], float], done: float) -> list[bytes]:
    """Lines of iterations up to `done`; the file is set aside if more than its end is dropped."""
    kept: list[bytes] = []
    lost = later = 0  # later: dropped, and will come again unless something follows that does not
    for line in (lines := _lines(path)):
        try:
            number = iteration(line)
        except ValueError:
            lost += line is not lines[-1] or line.endswith(b"\n")  # else a crash tore it
            continue
        if number > done:
            later += 1
        else:
            kept.append(line)
            lost, later = lost + later, 0
    if lost:
        aside = damaged_name(path)
        shutil.copyfile(path, aside)
        sync(aside)
        print(
            f"{path}: {lost} of {len(lines)} lines are damaged and were left out; the file as it "
            f"was is kept as {aside.name}",
            file=sys.stderr,
        )
    return kept
