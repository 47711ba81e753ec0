"""Reading a run folder of any suite as it is, also one that was cut short."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

# `training.config.FORMAT` and `training.evaluate.RANDOM_PLAY`, which to import would import jax.
FORMAT = 2
RANDOM_PLAY = "random play"
RIVALS = "against_random"
_TAIL_BYTES = 1_000_000  # of a CSV file: plenty for the last iterations, quick for any run

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a run folder holds; whatever is not there is empty."""

    path: Path
    about: Row  # config.json
    metrics: list[Row]  # by iteration
    evals: list[Row]  # by iteration
    timing: Row
    has_checkpoint: bool
    unreadable: list[str] = field(default_factory=list)  # sentences about what was left out

    def part(self, name: str) -> Row:
        """A part of config.json; empty if it is not there."""
        value = self.about.get(name)
        return value if isinstance(value, dict) else {}

    @property
    def settings(self) -> Row:
        return self.part("config")

    @property
    def steps(self) -> int:
        """Environment steps so far; updates of an offline algorithm."""
        return int(self.metrics[-1].get("steps") or 0) if self.metrics else 0

    @property
    def planned(self) -> int | None:
        """Steps that the run is to take: a whole number of iterations; None if it is not known."""
        steps, each = self.settings.get("steps"), self.about.get("steps_per_iteration")
        if not is_number(steps):
            return None
        return int(math.ceil(steps / each) * each if is_number(each) and each >= 1 else steps)

    def column(self, name: str) -> list[Any]:
        """A metric in every iteration; None where it was not written."""
        return column(self.metrics, name)

    @property
    def score_name(self) -> str:
        """The figure of an evaluation that tells better runs from worse ones.

        The mean; where one agent wins what another loses, which makes that a constant, how far
        agents are ahead of random ones.
        """
        last = self.evals[-1] if self.evals else {}
        return RIVALS if is_number(last.get(RIVALS)) else "mean"

    def scores(self, name: str) -> list[Any]:
        """ "score", "stderr", or another figure of every evaluation."""
        own = {"score": self.score_name, "stderr": error_name(self.score_name)}
        return column(self.evals, own.get(name, name))

    def references(self) -> dict[str, Row]:
        """What agents that learned nothing came to, such as random play: rows of an evaluation."""
        rows = self.part("references").items()
        return {name: row for name, row in rows if isinstance(row, dict)}

    def reference_scores(self, name: str = "mean") -> list[tuple[str, float]]:
        """One figure of those, to draw as a line."""
        rows = self.references().items()
        return [(who, float(row[name])) for who, row in rows if is_number(row.get(name))]


def error_name(name: str) -> str:
    """The figure that is the standard error of another one."""
    return "stderr" if name == "mean" else f"{name}_stderr"


def column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """One value of each row; None where it was not written."""
    return [row.get(name) for row in rows]


def read_run(
    folder: str | Path, read_lines: Callable[[Path, list[str]], list[Row]] | None = None
) -> Run:
    """Reads a run folder; a ValueError in one line if it is not one.

    read_lines(path, unreadable): another way to read its JSON lines, such as the last alone.
    """
    read_lines = read_lines or _json_lines
    folder = Path(folder)
    expected = "expected a folder written by `worldloom train`, with config.json and metrics.jsonl"
    path = folder / "config.json"
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; {expected}")
    if not path.is_file():
        raise ValueError(f"{folder} is not a run: it has no config.json; {expected}")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {expected}") from error
    if not isinstance(about, dict):
        raise ValueError(f"{path} is not a JSON object; {expected}")
    if about.get("format") != FORMAT:
        raise ValueError(
            f"{path} is of format {about.get('format', 1)!r}, and this version reads "
            f"format {FORMAT}; train again, or use the version that wrote it"
        )
    unreadable: list[str] = []
    return Run(
        path=folder,
        about=about,
        metrics=_by_iteration(read_lines(folder / "metrics.jsonl", unreadable)),
        evals=_by_iteration(read_lines(folder / "eval.jsonl", unreadable)),
        timing=json_object(folder / "timing.json", unreadable),
        has_checkpoint=any((folder / "checkpoints").glob("*")),
        unreadable=unreadable,
    )


def read_csv_tail(path: Path, unreadable: list[str]) -> list[Row]:
    """The last rows of a CSV file of numbers; what is not a number is None.

    A sentence on what could not be read is added to `unreadable`.
    """
    if not path.is_file():
        return []
    with path.open("rb") as file:
        names = file.readline().decode("utf-8", "replace").strip().split(",")
        start = file.tell()
        end = file.seek(0, io.SEEK_END)
        file.seek(max(start, end - _TAIL_BYTES))
        if file.tell() > start:
            file.readline()  # most likely a part of a line
        text = file.read().decode("utf-8", "replace")
    rows = []
    for values in csv.reader(text.splitlines()):
        if len(values) == len(names):
            rows.append({n: _number(v) for n, v in zip(names, values, strict=True)})
        elif values:
            unreadable.append(left_out(path))
    return rows


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _json_lines(path: Path, unreadable: list[str]) -> list[Row]:
    """Rows of a JSON-lines file; the last line of a killed run may be half written."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            row = "half a line"
        if isinstance(row, dict):
            rows.append(row)
        elif row is not None:
            unreadable.append(left_out(path))
    return rows


def left_out(path: Path) -> str:
    """What is said where a line of a file cannot be read."""
    return f"A line of {path.name} could not be read and is left out."


def _by_iteration(rows: list[Row]) -> list[Row]:
    """Rows in order; of an iteration that a resumed run played again, the later row."""
    latest = {row["iteration"]: row for row in rows if is_number(row.get("iteration"))}
    return [latest[iteration] for iteration in sorted(latest)]


def json_object(path: Path, unreadable: list[str]) -> Row:
    """What a JSON file holds, {} without one; `unreadable` says what could not be read."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        unreadable.append(f"The file {path.name} could not be read and is left out.")
        return {}
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
