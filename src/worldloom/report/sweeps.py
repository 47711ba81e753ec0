"""The page of a sweep: how every point of the grid scored, and how it got there."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Part
from worldloom.report.plots import Bars, Series, bar_chart, line_chart
from worldloom.report.run_page import origin, thin
from worldloom.report.runs import column

_LINES = 8  # more learning curves than this are no longer told apart


def write_sweep(result: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page of a sweep.json as `worldloom.training.sweep` writes it; returns its path."""
    rows: list[dict[str, Any]] = list(result.get("results") or [])
    env = str(result.get("config", {}).get("env", ""))
    tags = [f"{len(rows)} points", f"{result.get('seeds')} seeds each"]
    warnings = [] if result.get("complete") else ["The sweep was stopped before its end."]
    warnings += [
        f"{_label(row)}: {row['diverged']} runs diverged" for row in rows if row.get("diverged")
    ]
    body = [
        page.header(f"Sweep of {env}", tags),
        page.note("Before you read on", warnings),
        _scores(rows),
        _curves(rows),
        page.section("Every point", _table(rows)),
        origin(result, "How it was made"),
    ]
    return page.write(path, page.page(f"Sweep of {env}", body))


def _label(row: Mapping[str, Any]) -> str:
    return str(row.get("settings") or "defaults")


def _scores(rows: Sequence[Mapping[str, Any]]) -> Part:
    if not rows:
        return None
    groups = [
        Bars("mean of the seeds ± s.e.", column(rows, "mean"), "ink", column(rows, "stderr")),
        Bars("worst seed", column(rows, "worst"), "soft"),
    ]
    title, label = "Score of each point", "evaluation score"
    draw = partial(bar_chart, list(map(_label, rows)), groups, title=title, axis_label=label)
    return page.section("Scores", page.figure(draw))


def _curves(rows: Sequence[Mapping[str, Any]]) -> Part:
    drawn = [row for row in rows if row.get("curve")]
    best = sorted(drawn, key=lambda row: -math.inf if row["mean"] is None else row["mean"])
    lines = []
    for row in best[::-1][:_LINES]:
        each = row.get("steps_per_iteration", 1)
        steps = [each * n for n in range(1, len(row["curve"]) + 1)]  # at the end of each iteration
        lines.append(Series(_label(row), *thin(steps, row["curve"])))
    if not lines:
        return None
    chart = line_chart(lines, "steps", "return in training, or loss", height=380)
    shown = f"The {len(lines)} best points." if len(rows) > len(lines) else ""
    return page.section(
        "On the way there", page.figure(chart, f"Means over seeds. {shown}".strip())
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> Part:
    head = ["settings", "mean", "s.e.", "worst seed", "scores of the seeds", "seconds", "program"]
    columns = ("mean", "stderr", "worst", "scores", "seconds", "program")
    shown = [
        {**row, "scores": ", ".join(number(score, 4) for score in row.get("scores") or ())}
        for row in rows
    ]
    return page.table(head, [[_label(row), *map(row.get, columns)] for row in shown])
