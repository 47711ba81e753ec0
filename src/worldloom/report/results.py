"""Pages about measured speed: modes compared, and benchmarks."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from worldloom.report import arc_bench, page, plant_bench, robot_bench
from worldloom.report.axes import number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart

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


def times(value: float) -> str:
    """A ratio for people, with a multiplication sign."""
    return f"{number(value)}\u00d7"


def write_comparison(result: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page of `worldloom compare`: {"task": {...}, "rows": [one for each mode]}.

    Optional: "command", "machine", "versions", "notes" (a list), "skipped" and "errors" (reasons
    by name), "parts" (what each timed part is).
    """
    rows = [dict(row) for row in result.get("rows", ())]
    task = dict(result.get("task") or {})
    title = f"{_task_name(task) or 'Modes'}: execution modes compared"
    if _are_runs(rows):
        title = "Recorded runs compared"
    count = len({_label(row) for row in rows})
    body = [
        page.header(title, [f"{count} {'runs' if _are_runs(rows) else 'modes'}, the same work"]),
        _warnings(result, "rows"),
        _comparison_facts(rows),
        _speed(rows),
        _by_agents(rows),
        _pieces(rows, result.get("parts") or {}),
        page.section("All figures", _comparison_table(rows)),
        _origin(result),
        page.section("The task", page.settings(task)) if task else "",
    ]
    return page.write(path, page.page(title, body))


def write_bench(result: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the page of a benchmark: {"command", "versions", "machine", "ratios", "raw"}.

    Optional: "title" or "suite", "notes" (a list), "skipped" and "errors" (reasons by name).
    """
    title = str(result.get("title") or f"Benchmark {result.get('suite', '')}".strip())
    body = [
        page.header(title, ["ratios measured in one run"]),
        _warnings(result, "ratios"),
        _ratios(dict(result.get("ratios") or {})),
        *_of_suite(str(result.get("suite")), result.get("raw") or {}),
        _origin(result),
        page.section("Raw figures", _raw(result.get("raw"))),
    ]
    return page.write(path, page.page(title, body))


_SUITES = {
    "arc": arc_bench.sections,
    "robot": robot_bench.sections,
    "plant": plant_bench.sections,
}


def _of_suite(suite: str, raw: Mapping[str, Any]) -> list[str]:
    """What a suite shows of its own."""
    return _SUITES[suite](raw) if suite in _SUITES else []


def _warnings(result: Mapping[str, Any], content: str) -> str:
    lines = [] if result.get(content) else [f"The result has no {content}."]
    if result.get("quick"):
        lines.append("A quick run, to see that it works: its figures mean nothing.")
    for name, reason in dict(result.get("skipped") or {}).items():
        lines.append(f"{name} is left out: {reason}")
    for name, reason in dict(result.get("errors") or {}).items():
        lines.append(f"{name} failed: {reason}")
    return page.note("Before you read on", lines)


# Comparison --------------------------------------------------------------------------------------


def _task_name(task: Mapping[str, Any]) -> str:
    env = task.get("env") or task.get("name") or task.get("world") or ""
    return str(env.get("name", "") if isinstance(env, Mapping) else env)


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


def _comparison_facts(rows: Sequence[Mapping[str, Any]]) -> str:
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
    return f'<div class="hero">{page.facts(items)}</div>'


def _speed(rows: Sequence[Mapping[str, Any]]) -> str:
    chosen, agents = _typical(rows)
    speeds = [row.get("epochs_per_second") for row in chosen]
    if not any(speeds):
        return ""
    labels = [_label(row) for row in chosen]

    def draw(width: int) -> str:
        label = "epochs per second (log)"
        bars = [Bars("", speeds)]
        return bar_chart(labels, bars, title="Speed", axis_label=label, log=True, width=width)

    return page.section(f"Speed{agents}", page.figure(draw))


def _by_agents(rows: Sequence[Mapping[str, Any]]) -> str:
    if len(_agent_counts(rows)) < 2 or _are_runs(rows):
        return ""
    lines = []
    for label in dict.fromkeys(map(_label, rows)):
        own = [row for row in rows if _label(row) == label and row.get("num_agents")]
        own.sort(key=lambda row: row["num_agents"])
        x = [row["num_agents"] for row in own]
        lines.append(Series(label, x, [row.get("epochs_per_second") for row in own], dots=True))

    def draw(width: int) -> str:
        return line_chart(
            lines,
            title="Speed by number of agents",
            x_label="agents",
            y_label="epochs per second (log)",
            log_x=True,
            log_y=True,
            width=width,
            height=340,
        )

    return page.section("More agents", page.figure(draw))


def _pieces(rows: Sequence[Mapping[str, Any]], parts: Mapping[str, str]) -> str:
    chosen, agents = _typical(rows)
    names = [n for n in _PIECES if any(row.get(n) is not None for row in chosen)]
    if not names:
        return ""
    labels = [_label(row) for row in chosen]
    groups = [Bars(n.removesuffix("_ms"), [row.get(n) for row in chosen]) for n in names]

    def draw(width: int) -> str:
        label = "milliseconds per epoch (log)"
        return bar_chart(labels, groups, title="Pieces", axis_label=label, log=True, width=width)

    told = [n.removesuffix("_ms") for n in names if n.removesuffix("_ms") in parts]
    caption = " ".join(f"{name[0].upper() + name[1:]}: {parts[name]}." for name in told)
    return page.section(f"Where the time goes{agents}", page.figure(draw, caption))


def _comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    extra = [n for row in rows for n, v in row.items() if n not in _COLUMNS and not _is_nested(v)]
    known = [name for name in _COLUMNS if any(row.get(name) is not None for row in rows)]
    names = known + list(dict.fromkeys(extra))
    return page.table(
        [_COLUMNS.get(n, n) for n in names], [[r.get(n) for n in names] for r in rows]
    )


# Benchmarks --------------------------------------------------------------------------------------


def _ratios(ratios: Mapping[str, Any]) -> str:
    """Speed-ups as bars; shares, and one of our speeds over another, in a table beside them."""
    beside = {n: v for n, v in ratios.items() if n.endswith(("_share", "_mix"))}
    shown = {n.replace("_", " "): _scalar(v) for n, v in ratios.items() if n not in beside}

    def draw(width: int) -> str:
        return bar_chart(
            list(shown),
            [Bars("", list(shown.values()))],
            title="Ratios",
            axis_label="times as fast (log)",
            log=True,
            baseline=1.0,
            show=times,
            width=width,
        )

    rows = [[name.replace("_", " "), _scalar(value)] for name, value in beside.items()]
    return page.section("Ratios", page.figure(draw) if shown else "", page.table((), rows))


def _scalar(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _origin(result: Mapping[str, Any]) -> str:
    """How and where the figures were made."""
    parts = []
    if result.get("command"):
        parts.append(page.command(str(result["command"])))
    parts += [f"<p>{escape(str(note))}</p>" for note in result.get("notes") or ()]
    tables = []
    for title, name in (("Machine", "machine"), ("Versions", "versions")):
        given = result.get(name)
        if given:
            values = given if isinstance(given, Mapping) else {name: given}
            tables.append(f"<div><h3>{title}</h3>{page.settings(values)}</div>")
    if tables:
        parts.append(f'<div class="columns">{"".join(tables)}</div>')
    return page.section("How it was measured", *parts)


def _raw(value: Any, depth: int = 3) -> str:
    """Any JSON as tables: a list of objects is a table, an object of objects a title for each."""
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        names = list(dict.fromkeys(name for row in value for name in row))
        return page.table(names, [[_plain(row.get(name)) for name in names] for row in value])
    if not isinstance(value, Mapping):
        return "" if value in (None, [], {}) else page.table((), [[_plain(value)]])
    simple = {name: v for name, v in value.items() if not _is_nested(v)}
    parts = [page.table((), [[name, _plain(v)] for name, v in simple.items()])]
    for name, inner in value.items():
        if _is_nested(inner):
            level = min(depth, 6)
            parts.append(f"<h{level}>{escape(str(name).replace('_', ' '))}</h{level}>")
            parts.append(_raw(inner, depth + 1))
    return "".join(parts)


def _is_nested(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(row, Mapping) for row in value)
    return isinstance(value, Mapping) and bool(value)


def _plain(value: Any) -> Any:
    """A cell of a table: numbers as they are, everything else as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {page.shown(v)}" for name, v in value.items())
    return value if isinstance(value, int | float) or value is None else page.shown(value)
