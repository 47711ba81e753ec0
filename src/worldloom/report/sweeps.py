"""The page of a sweep: how every point scored, which settings matter, and how it got there."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.importance import Importance, by_optuna, importances
from worldloom.report.page import Part
from worldloom.report.parallel import parallel_chart
from worldloom.report.plots import Bars, bar_chart, line_chart, with_error
from worldloom.report.run_page import origin, thin
from worldloom.report.runs import RANDOM_PLAY, column, is_number

_LINES = 7  # more learning curves than this are no longer told apart
_BARS = 30
_RANDOM = 7  # the colour that no curve has


def write_sweep(result: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page of a sweep.json, as `training.sweeps.sweep` writes it; returns its path."""
    rows: list[dict[str, Any]] = list(result.get("results") or [])
    env = str(result.get("config", {}).get("env", ""))
    tags = [f"{len(rows)} points", f"{result.get('seeds')} seeds each"]
    warnings = [] if result.get("complete") else ["The sweep was stopped before its end."]
    warnings += [
        f"{_label(row)}: {row['diverged']} runs diverged" for row in rows if row.get("diverged")
    ]
    warnings += [f"{_label(row)}: not trained: {row['error']}" for row in rows if row.get("error")]
    rows = [row for row in rows if not row.get("error")]
    body = [
        page.header(f"Sweep of {env}", tags),
        page.note("Before you read on", warnings),
        _scores(rows),
        _coordinates(rows),
        _importance(rows),
        _curves(rows),
        page.section("Every point", _table(rows)),
        origin(result, "How it was made"),
    ]
    return page.write(path, page.page(f"Sweep of {env}", body))


def _label(row: Mapping[str, Any]) -> str:
    return str(row.get("settings") or "defaults")


def rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    """By which the best row is the largest: one that was not stopped, and did best."""
    score = value(row)
    return "stopped_at" not in row, score if is_number(score) else -math.inf


def value(row: Mapping[str, Any]) -> Any:
    """What points are compared by; a mean in files that are older."""
    return row.get("iqm", row.get("mean"))


def _scores(rows: Sequence[Mapping[str, Any]]) -> Part:
    if not rows:
        return None
    few = len(rows) <= _BARS
    shown = rows if few else sorted(rows, key=rank, reverse=True)[:_BARS]
    if all("iqm" in row for row in shown):
        spans = [(row.get("iqm_low"), row.get("iqm_high")) for row in shown]
        name = "interquartile mean of the seeds, 95 % interval"
        groups = [Bars(name, column(shown, "iqm"), "ink", spans=spans)]
    else:
        errors = column(shown, "stderr")
        groups = [Bars("mean of the seeds ± s.e.", column(shown, "mean"), "ink", errors)]
    groups.append(Bars("worst seed", column(shown, "worst"), "soft"))
    beside = [reference(row) for row in shown]
    means, lines = column(beside, "mean"), []
    if len({*means}) == 1 and is_number(means[0]):
        lines = [(RANDOM_PLAY, means[0])]
    elif any(map(is_number, means)):  # a world for each point
        groups.append(Bars(f"{RANDOM_PLAY} ± s.e.", means, _RANDOM, column(beside, "stderr")))
    look: dict[str, Any] = {"title": "Score of each point", "axis_label": "evaluation score"}
    draw = partial(bar_chart, list(map(_label, shown)), groups, references=lines, **look)
    caption = "" if few else f"The {_BARS} best of {len(rows)} points."
    return page.section("Scores", page.figure(draw, caption))


def _coordinates(rows: Sequence[Mapping[str, Any]]) -> Part:
    """A line for each point, through its settings to its score."""
    points = [row.get("values") or {} for row in rows]
    if len(rows) < 3 or not any(points):
        return None
    scores, stopped = list(map(value, rows)), ["stopped_at" in row for row in rows]
    draw = partial(parallel_chart, points, scores, stopped, title="Settings and scores")
    caption = "Better points are darker"
    caption += ", those that were stopped early dashed." if any(stopped) else "."
    return page.section("Where the good ones lie", page.figure(draw, caption))


def _importance(rows: Sequence[Mapping[str, Any]]) -> Part:
    done = [row for row in rows if "stopped_at" not in row and is_number(value(row))]
    points, scores = [row.get("values") or {} for row in done], list(map(value, done))
    found = importances(points, scores)
    if not found:
        return None
    groups = [Bars("share of the variance, alone", [100 * each.share for each in found], 0)]
    second = by_optuna(points, scores)
    if second:
        values = [100 * second.get(each.name, math.nan) for each in found]
        groups.append(Bars("Optuna's PED-ANOVA, near the best", values, "soft"))
    labels = [each.name + _direction(each) for each in found]
    look: dict[str, Any] = {"title": "Importance of settings", "axis_label": "per cent"}
    draw = partial(bar_chart, labels, groups, share=True, **look)
    caption = (
        f"How much of the variance of {len(done)} points' scores a setting explains by itself, "
        "corrected for chance (epsilon squared); what settings do only together is in no share. "
        "↑ more is better, ↓ less is better (Spearman's rank correlation beyond ±0.3). A ? stands "
        "where shuffled scores explain as much in one case of 20. Points that were stopped early "
        "do not count; where few points vary many settings, these share what one of them does."
    )
    return page.section("What matters", page.figure(draw, caption))


def _direction(each: Importance) -> str:
    if each.share <= each.chance:
        return " ?"
    return " ↑" if each.direction > 0.3 else " ↓" if each.direction < -0.3 else ""


def reference(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Mean and standard error of random play at a point; empty where it was not played."""
    known = row.get("references")
    beside = known.get(RANDOM_PLAY) if isinstance(known, Mapping) else None
    return beside if isinstance(beside, Mapping) else {}


def _curves(rows: Sequence[Mapping[str, Any]]) -> Part:
    drawn = [row for row in rows if row.get("curve")]
    lines = []
    for row in sorted(drawn, key=rank, reverse=True)[:_LINES]:
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
    head = ["settings", "IQM", "95 % interval", "mean", "s.e.", "worst seed", "scores of the seeds"]
    head += [RANDOM_PLAY, "stopped at", "seconds", "program"]
    columns = ("iqm", "span", "mean", "stderr", "worst", "scores", "random", "stopped_at")
    columns += ("seconds", "program")
    shown = [
        {
            **row,
            "span": _span(row),
            "scores": ", ".join(number(score, 4) for score in row.get("scores") or ()),
            "random": reference(row).get("mean"),
        }
        for row in rows
    ]
    return page.measured_table(head, [[_label(row), *map(row.get, columns)] for row in shown])


def _span(row: Mapping[str, Any]) -> str | None:
    low, high = row.get("iqm_low"), row.get("iqm_high")
    return f"{number(low, 4)} to {number(high, 4)}" if is_number(low) and is_number(high) else None
