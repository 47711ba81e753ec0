"""The page of population-based training: what members came to, and how their numbers changed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Part
from worldloom.report.parallel import is_logarithmic
from worldloom.report.plots import Series, line_chart
from worldloom.report.run_page import origin
from worldloom.report.runs import is_number

_MEMBERS = 40  # more pale lines than this are a cloud


def write_population(result: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page of a population's sweep.json; returns its path."""
    rows: list[Mapping[str, Any]] = list(result.get("results") or [])
    env = str(result.get("config", {}).get("env", ""))
    tags = [f"{result.get('members')} members", f"{len(rows)} of {result.get('seeds')} seeds"]
    if is_number(result.get("iqm")):
        tags.append(f"best members: IQM {number(result['iqm'], 4)}")
    warnings = (
        [] if result.get("complete") else ["It was stopped before its end; --resume goes on."]
    )
    each = int(result.get("steps_per_generation") or 1)
    names = list(rows[0].get("schedule") or {}) if rows else []
    body = [
        page.header(f"Population in {env}", tags),
        page.note("Before you read on", warnings),
        _learning(rows, each),
        *(_numbers(rows, name, each) for name in names),
        page.section("Best members", _table(rows, names)) if rows else None,
        origin(result, "How it was made"),
    ]
    return page.write(path, page.page(f"Population in {env}", body))


def _steps(count: int, each: int) -> list[float]:
    return [float(each * n) for n in range(1, count + 1)]


def _learning(rows: Sequence[Mapping[str, Any]], each: int) -> Part:
    """The middle of every population with its best and its worst member as a band."""
    lines = []
    for row in rows:
        scores = np.array(row.get("scores") or [], float)  # (generations, members)
        if scores.size:
            scores = np.where(np.isfinite(scores), scores, np.nan)
            bounds = [np.nanmin(scores, 1).tolist(), np.nanmax(scores, 1).tolist()]
            middle = np.nanmedian(scores, 1).tolist()
            lines.append(
                Series(f"seed {row.get('seed')}", _steps(len(scores), each), middle, *bounds)
            )
    if not lines:
        return None
    chart = line_chart(lines, "steps of a member", "return in training", height=360)
    caption = "Median of the members of a generation; the band is from the worst to the best."
    return page.section("On the way there", page.figure(chart, caption))


def _numbers(rows: Sequence[Mapping[str, Any]], name: str, each: int) -> Part:
    """How a number changed: of all members of the first population, and on every best line."""
    members = np.array((rows[0].get("members") or {}).get(name) or [], float)
    lines = [
        Series(f"member {n}", _steps(len(members), each), members[:, n].tolist(), faint=True)
        for n in range(min(members.shape[1] if members.ndim == 2 else 0, _MEMBERS))
    ]
    for n, row in enumerate(rows):
        line = (row.get("schedule") or {}).get(name) or []
        lines.append(Series(f"seed {row.get('seed')}", _steps(len(line), each), line, color=n))
    values = [v for line in lines for v in line.y if v is not None]
    log = is_logarithmic(values)
    chart = line_chart(lines, "steps of a member", name, log_y=log, height=320)
    caption = (
        "The numbers that the run of the best member learned with, for every seed; pale, those of "
        "all members of the first."
    )
    return page.section(name, page.figure(chart, caption))


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Part:
    head = ["seed", "score", *names]
    lines = [
        [str(row.get("seed")), row.get("score"), *(row.get("numbers", {}).get(n) for n in names)]
        for row in rows
    ]
    return page.measured_table(head, lines)
