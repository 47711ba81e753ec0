"""Pages about measured speed: benchmarks against peers."""

import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, bar_chart
from worldloom.report.run_page import origin

# Suites whose module of this package has `sections(raw)` of its own.
_SUITES = ("arc", "robot", "plant")


def write_bench(result: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page of a benchmark: {"command", "versions", "machine", "ratios", "raw"}.

    Optional: "title" or "suite", "notes" (a list), "skipped" and "errors" (reasons by name).
    """
    title = str(result.get("title") or f"Benchmark {result.get('suite', '')}".strip())
    body = [
        page.header(title, ["ratios measured in one run"]),
        warnings(result, "ratios"),
        _ratios(dict(result.get("ratios") or {})),
        *_of_suite(str(result.get("suite")), result.get("raw") or {}),
        origin(result),
        _measured(result.get("measured")),
        page.section("Raw figures", _raw(result.get("raw"))),
    ]
    return page.write(path, page.page(title, body))


def _measured(sections: Any) -> page.Part:
    """From which commit, when and for how long each section was measured."""
    if not isinstance(sections, Mapping) or not sections:
        return ""
    names = ("commit", "date", "seconds")
    rows = [[name, *(_plain(part.get(n)) for n in names)] for name, part in sections.items()]
    return page.section("Sections", page.table(["section", *names], rows))


def _of_suite(suite: str, raw: Mapping[str, Any]) -> list[page.Part]:
    """What a suite shows of its own."""
    if suite not in _SUITES:
        return []
    return importlib.import_module(f"benchmarks.pages.{suite}").sections(raw)


def _ratios(ratios: Mapping[str, Any]) -> page.Part:
    """Speed-ups as bars; shares, and one of our speeds over another, in a table beside them."""
    beside = {n: v for n, v in ratios.items() if n.endswith(("_share", "_mix"))}
    shown = {n.replace("_", " "): _scalar(v) for n, v in ratios.items() if n not in beside}
    draw = partial(
        bar_chart,
        list(shown),
        [Bars("", list(shown.values()))],
        title="Ratios",
        axis_label="times as fast (log)",
        log=True,
        baseline=1.0,
        show=times,
    )

    rows = [[name.replace("_", " "), _scalar(value)] for name, value in beside.items()]
    return page.section("Ratios", page.figure(draw) if shown else "", page.table((), rows))


def _scalar(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _raw(value: Any, depth: int = 3) -> page.Part:
    """Any JSON as tables: a list of objects is a table, an object of objects a title for each."""
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        names = list(dict.fromkeys(name for row in value for name in row))
        return page.table(names, [[_plain(row.get(name)) for name in names] for row in value])
    if not isinstance(value, Mapping):
        return "" if value in (None, [], {}) else page.table((), [[_plain(value)]])
    simple = {name: v for name, v in value.items() if not is_nested(v)}
    parts = [page.table((), [[name, _plain(v)] for name, v in simple.items()])]
    for name, inner in value.items():
        if is_nested(inner):
            level = min(depth, 6)
            parts += [page.heading(str(name).replace("_", " "), level), _raw(inner, depth + 1)]
    return parts


def _plain(value: Any) -> Any:
    """A cell of a table: numbers as they are, everything else as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {page.shown(v)}" for name, v in value.items())
    return value if isinstance(value, int | float) or value is None else page.shown(value)


def times(value: float) -> str:
    """A ratio for people, with a multiplication sign."""
    return f"{number(value)}\u00d7"


def warnings(result: Mapping[str, Any], content: str) -> page.Part:
    """What to know before reading: nothing measured, a quick run, parts left out or failed."""
    lines = [] if result.get(content) else [f"The result has no {content}."]
    if result.get("quick"):
        lines.append("A quick run, to see that it works: its figures mean nothing.")
    for name, reason in dict(result.get("skipped") or {}).items():
        lines.append(f"{name} is left out: {reason}")
    for name, reason in dict(result.get("errors") or {}).items():
        lines.append(f"{name} failed: {reason}")
    return page.note("Before you read on", lines)


def is_nested(value: Any) -> bool:
    """Whether a value is an object, or a list of objects: a table of its own."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(row, Mapping) for row in value)
    return isinstance(value, Mapping) and bool(value)
