"""Reading a run folder as it is, also one that was cut short."""

import csv
import io
import json
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

_TAIL_BYTES = 1_000_000  # of a CSV file: plenty for the last epochs, quick for any length of run

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a run folder holds; whatever is not there is empty."""

    path: Path
    about: Row  # config.json
    metrics: list[Row]
    evals: list[Row]
    timing: Row
    turns: list[Row]  # the last rows of turns.csv
    agents: list[Row]  # the last rows of agents.csv
    film: Path | None  # eval.gif
    training_films: list[tuple[int, Path]]  # by epoch
    has_checkpoint: bool
    unreadable: list[str] = field(default_factory=list)  # sentences about what was left out

    @property
    def settings(self) -> Row:
        settings = self.about.get("config")
        return settings if isinstance(settings, dict) else {}

    def reference_scores(self) -> list[tuple[str, float]]:
        """Named scores to compare with, such as random play."""
        scores = self.settings.get("reference_scores") or self.about.get("reference_scores")
        if _finite(scores):
            scores = {"random": scores}
        if not isinstance(scores, dict):
            return []
        named = ((str(name), score) for name, score in scores.items() if _finite(score))
        return [("random play" if name == "random" else name, float(s)) for name, s in named]


def read_run(folder: str | Path) -> Run:
    """Reads a run folder; a ValueError in one line if it is not one."""
    folder = Path(folder)
    expected = "expected a folder written by `worldloom train`, with config.json and metrics.jsonl"
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; {expected}")
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a run: it has no config.json; {expected}")
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{folder}/config.json cannot be read ({error}); {expected}") from error
    if not isinstance(about, dict):
        raise ValueError(f"{folder}/config.json is not a JSON object; {expected}")
    unreadable: list[str] = []
    film = folder / "eval.gif"
    return Run(
        path=folder,
        about=about,
        metrics=_by_epoch(_json_lines(folder / "metrics.jsonl", unreadable)),
        evals=_by_epoch(_json_lines(folder / "eval.jsonl", unreadable)),
        timing=_json_object(folder / "timing.json", unreadable),
        turns=_csv_tail(folder / "turns.csv", unreadable),
        agents=_csv_tail(folder / "agents.csv", unreadable),
        film=film if film.is_file() else None,
        training_films=_training_films(folder),
        has_checkpoint=any((folder / "checkpoints").glob("*")),
        unreadable=unreadable,
    )


def turn_profile(rows: list[Row], epochs: int = 20) -> dict[str, Any] | None:
    """Reward of all agents in each turn, averaged over the last whole epochs.

    Returns `turn`, `mean` and `stderr` (T,) and the `epochs` used (first, last); None without
    whole epochs.
    """
    # Of an epoch that a resumed run played again, the later rows count.
    paid: dict[tuple[int, int, int], float] = {}
    for row in rows:
        if all(_finite(row.get(name)) for name in ("epoch", "turn", "agent", "reward")):
            paid[int(row["epoch"]), int(row["turn"]), int(row["agent"])] = row["reward"]
    if not paid:
        return None
    table: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (epoch, turn, _), reward in paid.items():
        table[epoch][turn] += reward
    # The first epoch of a tail and the last of a killed run may be cut.
    sizes = Counter(epoch for epoch, _, _ in paid)
    whole = [epoch for epoch in sorted(table) if sizes[epoch] == max(sizes.values())][-epochs:]
    turns = sorted(set().union(*(table[epoch] for epoch in whole)))
    reward = np.array([[table[epoch][turn] for turn in turns] for epoch in whole])
    stderr = reward.std(axis=0, ddof=1) / math.sqrt(len(whole)) if len(whole) > 1 else None
    return {
        "turn": turns,
        "mean": reward.mean(axis=0).tolist(),
        "stderr": [None] * len(turns) if stderr is None else stderr.tolist(),
        "epochs": (whole[0], whole[-1]),
    }


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
            unreadable.append(f"A line of {path.name} could not be read and is left out.")
    return rows


def _by_epoch(rows: list[Row]) -> list[Row]:
    """Rows in the order of epochs; of one that a resumed run played again, the later row.

    On-policy runs count updates instead.
    """
    counted = [(row.get("epoch", row.get("update")), row) for row in rows]
    latest = {count: row for count, row in counted if _finite(count)}
    return [latest[epoch] for epoch in sorted(latest)]


def _json_object(path: Path, unreadable: list[str]) -> Row:
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


def _csv_tail(path: Path, unreadable: list[str]) -> list[Row]:
    """The last rows of a CSV file of numbers; what is not a number is None."""
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
            unreadable.append(f"A line of {path.name} could not be read and is left out.")
    return rows


def _training_films(folder: Path) -> list[tuple[int, Path]]:
    films = []
    for path in folder.glob("training-epoch-*.gif"):
        epoch = re.fullmatch(r"training-epoch-(\d+)\.gif", path.name)
        if epoch:
            films.append((int(epoch[1]), path))
    return sorted(films)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
