"""The page of `worldloom bench modes`: execution modes, or recorded runs, on equal work."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pages.results import is_nested, times, warnings
from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart
from worldloom.report.run_page import origin

_COLUMNS = {
    "run": "run",
    "mode": "mode",
    "num_agents": "agents",
    "epochs_per_second": "epochs/s",
    "speedup": "speed-up",
    "epoch_ms": "epoch, ms",
    "act_ms": "act, ms",
    "observe_ms": "observe, ms",
    "train_ms": "train, ms",
    "sample_ms": "sample, ms",
    "loss_ms": "loss, ms",
    "compile_seconds": "compile, s",
    "memory_mb": "memory, MB",
}
_PIECES = ("act_ms", "observe_ms", "train_ms", "sample_ms", "loss_ms")


def write_comparison(result: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page of `worldloom bench modes`: {"task": {...}, "rows": [one for each mode]}.

    Optional: "command", "machine", "versions", "notes" (a list), "skipped" and "errors" (reasons
    by name), "parts" (what each timed part is).
    """
    rows = [dict(row) for row in result.get("rows", ())]
    task = dict(result.get("task") or {})
    title = f"{task.get('env') or 'Modes'}: execution modes compared"
    if _are_runs(rows):
        title = "Recorded runs compared"
    count = len({_label(row) for row in rows})
    body = [
        page.header(title, [f"{count} {'runs' if _are_runs(rows) else 'modes'}, the same work"]),
        warnings(result, "rows"),
        _comparison_facts(rows),
        _speed(rows),
        _by_agents(rows),
        _pieces(rows, result.get("parts") or {}),
        page.section("All figures", _comparison_table(rows)),
        origin(result),
        page.section("The task", page.settings(task)) if task else "",
    ]
    return page.write(path, page.page(title, body))


def _are_runs(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row.get("run") for row in rows)


def _label(row: Mapping[str, Any]) -> str:
    """What a row is about: a recorded run, or a mode."""
    return Path(str(row["run"])).name if row.get("run") else str(row.get("mode"))


def _agent_counts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return sorted({row["num_agents"] for row in rows if row.get("num_agents") is not None})


def _typical(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    """The rows of the number of agents that most modes ran, the largest of several; its name."""
    counts = _agent_counts(rows)
    if not counts:
        return list(rows), ""
    ran = {n: sum(row.get("num_agents") == n for row in rows) for n in counts}
    agents = max(counts, key=lambda n: (ran[n], n))
    return [
        row for row in rows if row.get("num_agents") == agents
    ], f" with {agents} agent{'s' * (agents > 1)}"


def _baseline(rows: Sequence[Mapping[str, Any]]) -> str:
    """What speed-ups are measured against: the only row whose own is 1."""
    ones = [_label(row) for row in rows if _close_to_one(row.get("speedup"))]
    return ones[0] if len(ones) == 1 else ""


def _close_to_one(value: Any) -> bool:
    return isinstance(value, int | float) and math.isclose(value, 1.0, rel_tol=1e-9)


def _comparison_facts(rows: Sequence[Mapping[str, Any]]) -> page.Part:
    chosen, agents = _typical(rows)
    measured = [row for row in chosen if row.get("speedup") is not None]
    if not measured:
        return ""
    best = max(measured, key=lambda row: row["speedup"])
    against = _baseline(chosen)
    compared = f"the speed of {against}" if against else "speed-up"
    items = [(f"{_label(best)}{agents}", times(best["speedup"]), "", compared)]
    if best.get("epochs_per_second") is not None:
        items.append(("its speed", number(best["epochs_per_second"]), "epochs/s", ""))
    if best.get("compile_seconds") is not None:
        items.append(("its compilation", number(best["compile_seconds"]), "s", "timed apart"))
    return page.group("hero", page.facts(items))


def _speed(rows: Sequence[Mapping[str, Any]]) -> page.Part:
    chosen, agents = _typical(rows)
    speeds = [row.get("epochs_per_second") for row in chosen]
    if not any(speeds):
        return ""
    labels = [_label(row) for row in chosen]

    bars = [Bars("", speeds)]
    label = "epochs per second (log)"
    draw = partial(bar_chart, labels, bars, title="Speed", axis_label=label, log=True)

    return page.section(f"Speed{agents}", page.figure(draw))


def _by_agents(rows: Sequence[Mapping[str, Any]]) -> page.Part:
    if len(_agent_counts(rows)) < 2 or _are_runs(rows):
        return ""
    lines = []
    for label in dict.fromkeys(map(_label, rows)):
        own = [row for row in rows if _label(row) == label and row.get("num_agents")]
        own.sort(key=lambda row: row["num_agents"])
        x = [row["num_agents"] for row in own]
        lines.append(Series(label, x, [row.get("epochs_per_second") for row in own], dots=True))
    draw = line_chart(
        lines,
        title="Speed by number of agents",
        x_label="agents",
        y_label="epochs per second (log)",
        log_x=True,
        log_y=True,
        height=380,
    )

    return page.section("More agents", page.figure(draw))


def _pieces(rows: Sequence[Mapping[str, Any]], parts: Mapping[str, str]) -> page.Part:
    chosen, agents = _typical(rows)
    names = [n for n in _PIECES if any(row.get(n) is not None for row in chosen)]
    if not names:
        return ""
    labels = [_label(row) for row in chosen]
    groups = [Bars(n.removesuffix("_ms"), [row.get(n) for row in chosen]) for n in names]

    label = "milliseconds per epoch (log)"
    draw = partial(bar_chart, labels, groups, title="Pieces", axis_label=label, log=True)

    explained = [n.removesuffix("_ms") for n in names if n.removesuffix("_ms") in parts]
    caption = " ".join(f"{name[0].upper() + name[1:]}: {parts[name]}." for name in explained)
    return page.section(f"Where the time goes{agents}", page.figure(draw, caption))


def _comparison_table(rows: Sequence[Mapping[str, Any]]) -> page.Part:
    extra = [n for row in rows for n, v in row.items() if n not in _COLUMNS and not is_nested(v)]
    known = [name for name in _COLUMNS if any(row.get(name) is not None for row in rows)]
    names = known + list(dict.fromkeys(extra))
    return page.table(
        [_COLUMNS.get(n, n) for n in names], [[r.get(n) for n in names] for r in rows]
    )
