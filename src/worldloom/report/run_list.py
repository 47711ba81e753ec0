"""All runs and sweeps of a folder: a row for each, their curves, and what a training adds."""

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from worldloom.core.names import one_line
from worldloom.report.page import flat, shown
from worldloom.report.runs import (
    RANDOM_PLAY,
    RIVALS,
    Row,
    Run,
    error_name,
    is_number,
    left_out,
    read_run,
)
from worldloom.report.tail import Columns, Tail
from worldloom.training.folders import is_locked

USUAL = Path("runs")  # where they are written unless one says otherwise
MARKS = ("config.json", "metrics.jsonl", "checkpoints", "sweep.json")  # each is enough for a row
DATED = ("config.json", "metrics.jsonl", "eval.jsonl", "timing.json", "sweep.json")
DEPTH = 3  # folders within folders
POINTS = 400  # of a curve
CURVES = 32  # runs whose curves are kept at hand: more than one would lay over each other
_SERVED = re.compile(r"[\w+-][\w.+-]*\.(html|gif|png|svg|mp4)")


class RunList:
    """The runs and sweeps below a folder, by their path in it."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        if not self.folder.is_dir() and self.folder != USUAL:  # which the first run makes
            raise ValueError(f"{folder} is not a folder; name one that holds runs")
        self._rows: dict[Path, tuple[Any, Row]] = {}
        self._tails: dict[Path, Tail] = {}
        self._curves: OrderedDict[Path, dict[str, Columns]] = OrderedDict()
        self._lock = threading.Lock()  # a server asks from several threads

    def paths(self) -> dict[str, Path]:
        """Every run folder, damaged ones too."""
        folders = _run_folders(self.folder, DEPTH) if self.folder.is_dir() else ()
        return {path.relative_to(self.folder).as_posix(): path for path in folders}

    def path(self, name: str) -> Path:
        """The folder of a run; a ValueError where there is none of that name."""
        path = self.paths().get(name)
        if path is None:
            raise ValueError(f"there is no run {name[:100]!r} in {self.folder}")
        return path

    def rows(self) -> list[Row]:
        """A row for each run, the newest first; a run that cannot be read says why."""
        rows = [self._row(name, path) for name, path in self.paths().items()]
        return sorted(rows, key=lambda row: -row["when"])

    def _row(self, name: str, path: Path) -> Row:
        # Whatever a row is made of has one of these names, and a new size or time when it changes.
        stamp = [(f.name, *_changed(f)) for f in _files(path)]
        with self._lock:
            known = self._rows.get(path)
            if known is None or known[0] != stamp:
                known = self._rows[path] = stamp, _row(path, self._newest)
        status = {"status": "running"} if is_locked(path) else {}
        return known[1] | {"run": name, "name": path.resolve().name} | status

    def _newest(self, path: Path, unreadable: list[str]) -> list[Row]:
        """The newest row of a file alone, for which no more than what is new of it is read."""
        tail = self._tails.setdefault(path, Tail(path))
        tail.rows()
        if tail.damaged or (tail.torn and not is_locked(path.parent)):  # or it is being written
            unreadable.append(left_out(path))
        return [tail.newest] if tail.newest else []

    def curves(self, name: str) -> dict[str, dict[str, Any]]:
        """Columns of numbers of a run, while it trained and of its evaluations.

        Beside them `references`: by name of the figure that is the run's score what agents that
        learned nothing come to.
        """
        path = self.path(name)
        run = read_run(path, lambda *_: [])  # says what is wrong with it
        with self._lock:
            files = self._curves.pop(path, None) or {
                "training": Columns(path / "metrics.jsonl"),
                "evaluation": Columns(path / "eval.jsonl"),
            }
            self._curves[path] = files
            while len(self._curves) > CURVES:
                self._curves.popitem(last=False)
            columns = {kind: columns.thinned(POINTS) for kind, columns in files.items()}
        if any(map(is_number, columns["evaluation"].get(RIVALS, ()))):
            return columns | {"references": {RIVALS: {RANDOM_PLAY: 0.0}}}
        return columns | {"references": {"mean": dict(run.reference_scores())}}

    def file(self, name: str, file: str) -> Path:
        """A page or film in a run's own folder; a ValueError for anything else."""
        path = self.path(name) / file
        if not _SERVED.fullmatch(file) or not path.is_file() or path.is_symlink():
            raise ValueError(f"{name} has no page or film {file[:100]!r}")
        return path

    def follow(self, name: str, metrics: int, evals: int) -> "Follower":
        """What a run writes from here on; metrics and evals: the last iterations that are known."""
        return Follower(self, name, metrics, evals)


class Follower:
    """News of a run in training."""

    def __init__(self, runs: RunList, name: str, metrics: int, evals: int):
        path = runs.path(name)
        self._runs, self._name, self._path, self._last = runs, name, path, None
        self._files = {
            "training": Tail(path / "metrics.jsonl"),
            "evaluation": Tail(path / "eval.jsonl"),
        }
        self._known = {"training": metrics, "evaluation": evals}  # iterations

    def news(self) -> Row | None:
        """New rows of both kinds and the run's own row; None if nothing has changed."""
        if not self._path.is_dir():
            raise ValueError(f"{self._name} is not there any more")
        rows = {kind: self._new(kind) for kind in self._files}
        about = self._runs._row(self._name, self._path)
        if about == self._last and not any(rows.values()):
            return None
        self._last = about
        return rows | {"row": about}

    def _new(self, kind: str) -> list[Row]:
        known = self._known[kind]
        new = [row for row in self._files[kind].rows() if row["iteration"] > known]
        self._known[kind] = max([known, *(row["iteration"] for row in new)])
        return [{n: v for n, v in flat(row).items() if is_number(v)} for row in new]


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if any((folder / name).exists() for name in MARKS):
        yield folder
    elif depth:
        for child in sorted(folder.iterdir()):
            with suppress(OSError):  # one that may not be looked into does not hide the others
                if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                    yield from _run_folders(child, depth - 1)


def _files(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where that cannot be seen."""
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.is_file())
    return []


def _changed(path: Path) -> tuple[int, int]:
    with suppress(OSError):
        status = path.stat()
        return status.st_mtime_ns, status.st_size
    return 0, 0


def _row(path: Path, read_lines: Callable[[Path, list[str]], list[Row]]) -> Row:
    """What a table says of a run, as JSON."""
    when = max(_changed(path / name)[0] for name in DATED) / 1e9
    files = [f.name for f in _files(path) if _SERVED.fullmatch(f.name) and not f.is_symlink()]
    films = sorted((f for f in files if f.endswith(".gif")), key=lambda f: _changed(path / f))
    row = {
        "when": when or _changed(path)[0] / 1e9,
        "pages": sorted(f for f in files if f.endswith(".html")),
        "film": f"{films[-1]}?v={_changed(path / films[-1])[0]}" if films else None,
    }
    try:
        is_sweep = (path / "sweep.json").is_file()
        return row | (
            _sweep(path / "sweep.json") if is_sweep else _facts(read_run(path, read_lines))
        )
    except (TypeError, AttributeError):
        problem = "its JSON holds something else"
    except (ValueError, OverflowError, RecursionError, OSError) as error:
        problem = one_line(error).partition("; ")[0]
        problem = problem.replace(f"{path}/", "").removeprefix(f"{path} ")
    return row | {"status": "damaged", "problem": problem, "settings": {}}


def _facts(run: Run) -> Row:
    last = run.evals[-1] if run.evals else {}
    seconds = run.timing.get("train_seconds", run.metrics[-1].get("seconds") if run.metrics else 0)
    done = run.planned is not None and run.steps >= run.planned
    settings = {name: shown(value) for name, value in flat(run.settings).items()}
    return {
        "suite": str(run.about.get("suite", "")),
        "env": str(run.settings.get("env", "")),
        "algo": str(run.settings.get("algo", "")),
        "steps": run.steps,
        "planned": run.planned,
        "score": _finite(last.get(run.score_name)),
        "stderr": _finite(last.get(error_name(run.score_name))),
        "seconds": _finite(seconds),
        "status": "complete" if done else "stopped",
        "problem": " ".join(sorted(set(run.unreadable))),
        "settings": settings,
        "trained": run.has_checkpoint,
    }


def _sweep(path: Path) -> Row:
    result = json.loads(path.read_text(encoding="utf-8"))
    config, points = result.get("config", {}), result.get("results", [])
    means = [point["mean"] for point in points if is_number(point.get("mean"))]
    return {
        "env": str(config.get("env", "")),
        "algo": str(config.get("algo", "")),
        "steps": _finite(config.get("steps")),
        "planned": None,
        "score": max(means, default=None),
        "status": "sweep",
        "problem": "" if result.get("complete") else "cut short",
        "settings": {name: shown(value) for name, value in flat(config).items()},
        "points": len(points),
    }


def _finite(value: Any) -> float | None:
    return value if is_number(value) else None
