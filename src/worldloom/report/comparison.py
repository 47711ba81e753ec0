"""Runs in the same world side by side: scores, learning curves, and what was set differently."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, bar_chart, line_chart, with_error
from worldloom.report.runs import RANDOM_PLAY, Run, column, error_name, is_number, read_run

COLUMNS = ["run", "score", "s.e.", "steps", "seconds", "algorithm", "set differently"]
# Settings that say how long and how often, not what was learned from.
_CADENCE = ("steps", "eval_every", "eval_episodes", "checkpoint_every", "record_every", "chunk")


@dataclass(frozen=True)
class Row:
    """A run in a comparison. differs: its settings that others set to something else."""

    run: Run
    differs: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        last = self.run.evals[-1] if self.run.evals else {}
        return {
            "run": str(self.run.path),
            "algo": self.run.settings.get("algo"),
            "mean": last.get(self.run.score_name),
            "stderr": last.get(error_name(self.run.score_name)),
            "steps": self.run.steps,
            "train_seconds": self.run.timing.get("train_seconds"),
            "differs": self.differs,
        }

    @property
    def score(self) -> float:
        """The mean of the last evaluation; minus infinity if there was none."""
        mean = self.to_dict()["mean"]
        return mean if is_number(mean) else -math.inf

    def cells(self) -> list[str]:
        """What stands in its row of the table."""
        values = self.to_dict()
        differs = ", ".join(f"{name}={page.shown(value)}" for name, value in self.differs.items())
        numbers = (values[name] for name in ("mean", "stderr", "steps", "train_seconds"))
        shown = [number(value, 4) if is_number(value) else "-" for value in numbers]
        return [self.run.path.name, *shown, str(values["algo"]), differs]


def compare(
    folders: Sequence[str | Path], task_of: Callable[[Run], Mapping[str, Any]]
) -> list[Row]:
    """The runs of these folders, best first; a ValueError if they did not learn the same task.

    task_of(run): the settings that decide what a score means, such as the world with its options,
    the order of turns among them: scores of different tasks say nothing about each other.
    """
    if len(folders) < 2:
        raise ValueError("compare needs two run folders or more, as in: runs/A runs/B")
    runs = [read_run(folder) for folder in folders]
    first = page.flat(task_of(runs[0]))
    for run in runs[1:]:
        task = page.flat(task_of(run))
        other = sorted(n for n in first.keys() | task.keys() if first.get(n) != task.get(n))
        if other:
            raise ValueError(
                f"{run.path} and {runs[0].path} learned different tasks ({', '.join(other)}): "
                "their scores cannot be compared; compare runs in one world with the same options"
            )
    settings = [_choices(run) for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    # Options of an algorithm are compared among the runs that learned with it.
    varied = [n for n in names if len({str(each[n]) for each in settings if n in each}) > 1]
    rows = [
        Row(run, {n: each[n] for n in varied if n in each})
        for run, each in zip(runs, settings, strict=True)
    ]
    return sorted(rows, key=lambda row: -row.score)


def _choices(run: Run) -> dict[str, Any]:
    """All other settings, but those that only say how often something is written."""
    task = (*_CADENCE, "env", "world", "algo")
    return page.flat({n: v for n, v in run.settings.items() if n not in task})


def references_of(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Scores of agents that learned nothing in the same world, by name."""
    if any(row.run.score_name != "mean" for row in rows):
        return {RANDOM_PLAY: {"mean": 0.0}}
    known = [pair for row in rows for pair in row.run.references().items()]
    return {name: row for name, row in known[::-1] if is_number(row.get("mean"))}


def reference_cells(rows: Sequence[Row]) -> list[list[str]]:
    """Rows of the table for those."""
    return [
        [name, *(number(row[n], 4) if is_number(row.get(n)) else "-" for n in ("mean", "stderr"))]
        + ["-"] * (len(COLUMNS) - 3)
        for name, row in references_of(rows).items()
    ]


def write_comparison(rows: Sequence[Row], path: str | Path) -> Path:
    """Writes the page of compared runs; returns its path."""
    title = f"Runs in {rows[0].run.settings.get('env')}"
    scored = [row for row in rows if row.run.evals]
    last = [row.to_dict() for row in scored]
    references = {name: row["mean"] for name, row in references_of(scored).items()}
    bars = partial(
        bar_chart,
        [row.run.path.name for row in scored],
        [Bars("", column(last, "mean"), range(len(scored)), column(last, "stderr"))],
        title="Scores",
        axis_label=f"{_figure(scored)}, last evaluation ± s.e.",
        references=list(references.items()),
    )
    body = [
        page.header(title, [f"{len(rows)} runs", "best first"]),
        page.section("Scores", page.figure(bars)) if scored else None,
        _curves(scored, references, "steps", "environment steps, or updates"),
        _curves(scored, references, "seconds", "seconds of training"),
        page.section(
            "Every run",
            page.table(COLUMNS, [row.cells() for row in rows] + reference_cells(rows)),
        ),
    ]
    return page.write(path, page.page(title, body))


def _figure(rows: Sequence[Row]) -> str:
    """What a score is: of worlds where one wins what another loses, not the sum."""
    rivals = any(row.run.score_name != "mean" for row in rows)
    return "return ahead of random agents" if rivals else "evaluation score"


def _curves(
    rows: Sequence[Row], references: Mapping[str, float], over: str, label: str
) -> page.Part:
    """Scores on the way, over steps or over seconds; a colour for each run, as of its bar."""
    if not any(len(row.run.evals) > 1 for row in rows):
        return None
    lines = [
        with_error(row.run.path.name, *(row.run.scores(n) for n in (over, "score", "stderr")))
        for row in rows
    ]
    look: dict[str, Any] = {"references": list(references.items()), "height": 380}
    chart = line_chart(lines, label, f"{_figure(rows)} ± s.e.", **look)
    return page.section(f"Score over {over}", page.figure(chart))
