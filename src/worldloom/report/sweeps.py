"""The page of a sweep: how every point of the grid scored, and how it got there."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Part
from worldloom.report.plots import Bars, bar_chart, line_chart, with_error
from worldloom.report.run_page import origin, thin
from worldloom.report.runs import RANDOM_PLAY, column, is_number

_LINES = 7  # more learning curves than this are no longer told apart
_RANDOM = 7  # the colour that no curve has


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
    beside = [reference(row) for row in rows]
    means, lines = column(beside, "mean"), []
    if len({*means}) == 1 and is_number(means[0]):
        lines = [(RANDOM_PLAY, means[0])]
    elif any(map(is_number, means)):  # a world for each point
        groups.append(Bars(f"{RANDOM_PLAY} ± s.e.", means, _RANDOM, column(beside, "stderr")))
    look: dict[str, Any] = {"title": "Score of each point", "axis_label": "evaluation score"}
    draw = partial(bar_chart, list(map(_label, rows)), groups, references=lines, **look)
    return page.section("Scores", page.figure(draw))


def reference(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Mean and standard error of random play at a point; empty where it was not played."""
    known = row.get("references")
    beside = known.get(RANDOM_PLAY) if isinstance(known, Mapping) else None
    return beside if isinstance(beside, Mapping) else {}


def _curves(rows: Sequence[Mapping[str, Any]]) -> Part:
    drawn = [row for row in rows if row.get("curve")]
    best = sorted(drawn, key=lambda row: -math.inf if row["mean"] is None else row["mean"])
    lines = []
    for row in best[::-1][:_LINES]:
        each = row.get("steps_per_iteration", 1)
        steps = [each * n for n in range(1, len(row["curve"]) + 1)]  # at the end of each iteration
        errors = row.get("curve_stderr") or [None] * len(steps)
        lines.append(with_error(_label(row), *thin(steps, row["curve"]), thin(steps, errors)[1]))
    if not lines:
        return None
    chart = line_chart(lines, "steps", "return in training, or loss", height=380)
    shown = f"The {len(lines)} best points." if len(rows) > len(lines) else ""
    caption = f"Means over seeds ± s.e. {shown}".strip()
    return page.section("On the way there", page.figure(chart, caption))


def _table(rows: Sequence[Mapping[str, Any]]) -> Part:
    head = ["settings", "mean", "s.e.", "worst seed", "scores of the seeds"]
    head += [RANDOM_PLAY, "seconds", "program"]
    columns = ("mean", "stderr", "worst", "scores", "random", "seconds", "program")
    shown = [
        {
            **row,
            "scores": ", ".join(number(score, 4) for score in row.get("scores") or ()),
            "random": reference(row).get("mean"),
        }
        for row in rows
    ]
    return page.measured_table(head, [[_label(row), *map(row.get, columns)] for row in shown])
