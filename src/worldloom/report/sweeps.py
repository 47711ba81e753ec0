"""The page of a sweep: how every point of the grid scored, and how it got there."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart

_BARS = {"mean of the seeds": "mean", "worst seed": "worst"}
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
        _origin(result),
    ]
    return page.write(path, page.page(f"Sweep of {env}", body))


def _label(row: Mapping[str, Any]) -> str:
    return str(row.get("settings") or "defaults")


def _scores(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    labels = [_label(row) for row in rows]
    groups = [Bars(name, [row[key] for row in rows]) for name, key in _BARS.items()]

    def draw(width: int) -> str:
        title = "Score of each point"
        return bar_chart(labels, groups, title=title, axis_label="evaluation score", width=width)

    caption = "Mean over seeds, and the seed that scored worst; standard errors are in the table."
    return page.section("Scores", page.figure(draw, caption))


def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
    drawn = [row for row in rows if row.get("curve")]
    best = sorted(drawn, key=lambda row: -math.inf if row["mean"] is None else row["mean"])
    lines = [Series(_label(row), _steps(row), row["curve"]) for row in best[::-1][:_LINES]]
    if not lines:
        return ""

    def draw(width: int) -> str:
        label = "return in training, or loss"
        return line_chart(lines, x_label="steps", y_label=label, width=width, height=340)

    shown = f"The {len(lines)} best points." if len(rows) > len(lines) else ""
    return page.section("On the way there", page.figure(draw, f"Means over seeds. {shown}".strip()))


def _steps(row: Mapping[str, Any]) -> list[int]:
    """The step at the end of each iteration of a curve."""
    each = row.get("steps_per_iteration", 1)
    return [each * n for n in range(1, len(row["curve"]) + 1)]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["settings", "mean", "s.e.", "worst seed", "scores of the seeds", "seconds", "program"]
    return page.table(
        head,
        [
            [
                _label(row),
                row.get("mean"),
                row.get("stderr"),
                row.get("worst"),
                ", ".join(number(score, 4) for score in row.get("scores") or ()),
                row.get("seconds"),
                row.get("program"),
            ]
            for row in rows
        ],
    )


def _origin(result: Mapping[str, Any]) -> str:
    parts = [page.command(str(result["command"]))] if result.get("command") else []
    tables = [
        f"<div><h3>{title}</h3>{page.settings(result[name])}</div>"
        for title, name in (("Machine", "machine"), ("Versions", "versions"))
        if isinstance(result.get(name), Mapping)
    ]
    columns = f'<div class="columns">{"".join(tables)}</div>' if tables else ""
    return page.section("How it was made", *parts, columns)
