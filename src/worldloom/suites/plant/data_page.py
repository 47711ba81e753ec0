"""The page of an offline dataset: what was logged, how good it was, where limits were crossed."""

import shlex
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.replay.dataset_checks import KINDS, Report
from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Part
from worldloom.report.plots import Bars, Series, bar_chart, density, histogram, line_chart
from worldloom.report.run_page import thin
from worldloom.suites.plant.data_figures import Contents, Quantity, figures

SHOWN = 12  # charts of signals, beyond which a page is no longer read
STEPS = 400  # points of an episode's line
MOMENTS = ("mean", "std", "min", "max")
SIGNAL, CROSSED, ACTION = 0, 1, 2  # colours, the same in every chart


def write_page(
    path: str | Path, data: Contents, report: Report | None = None, source: str = ""
) -> Path:
    """Writes the page of a dataset and returns its path; `source` is the file it was read from."""
    return page.write(path, data_page(data, report, source))


def data_page(data: Contents, report: Report | None = None, source: str = "") -> str:
    """The page of a dataset as an HTML document. `report` is what a check of it found."""
    stats = figures(data)
    provenance = stats["provenance"]
    title = stats["name"] or source or "dataset"
    tags = [provenance.get("env", ""), provenance.get("quality", "")]
    tags.append(f"seed {provenance['seed']}" if "seed" in provenance else "")
    body = [
        page.header(title, [tag for tag in tags if tag]),
        page.note("This dataset has defects", _defects(report)),
        page.group("hero", _headline(stats)),
        _returns(data),
        _limits(data, stats),
        _actions(data, stats),
        _signals(data, stats),
        _together(data),
        _episode(data),
        _about(stats, source),
        page.footer(["worldloom data", f"SHA-256 {stats['digest']}"]),
    ]
    return page.page(f"{title} · dataset", body)


def _defects(report: Report | None) -> list[str]:
    if report is None or report.sound:
        return []
    lines = [f"{KINDS[kind]}: {count:,} times" for kind, count in report.counts.items()]
    first = report.first(1)[0]
    return [*lines, f"The first: {first.message}."]


def _headline(stats: dict[str, Any]) -> Part:
    steps, returns = stats["steps"], stats["return"]
    least, most = number(returns["min"], 4), number(returns["max"], 4)
    parts = f"{len(stats['signals'])} signals, {len(stats['actions'])} actions"
    ends = f"{stats['terminated']:,} ended, {stats['truncated']:,} ran out of time"
    lengths = f"from {number(steps['min'])} to {number(steps['max'])}"
    spread = f"± {number(returns['std'], 3)}"
    items = [
        ("rows", f"{stats['rows']:,}", "", parts),
        ("episodes", f"{stats['episodes']:,}", "", ends),
        ("mean return", number(returns["mean"], 4), spread, f"from {least} to {most}"),
        ("steps in an episode", number(steps["mean"], 4), "", lengths),
    ]
    if stats["limits"]:
        worst = max(stats["limits"], key=lambda limit: limit["share"])
        more = "no limit was ever crossed"
        if worst["rows"]:
            more = f"{worst['limit']}, in {worst['episodes']:,} of {stats['episodes']:,} episodes"
        items.append(("limit crossed most", f"{worst['share']:.2%}", "of rows", more))
    return page.facts(items)


def _returns(data: Contents) -> Part:
    returns = data.returns
    if len(returns) < 2:
        return None
    spread = histogram(
        returns,
        title="episodes by return",
        marks=[("mean", float(returns.mean()))],
        what="episodes",
        color="soft",
        height=260,
    )
    points = thin(list(range(1, len(returns) + 1)), returns.tolist())
    label = "episode, in the order of logging"
    over_time = line_chart([Series("return", *points, color="soft")], label, "return")
    trend = "A trend means that the plant, or whoever ran it, changed meanwhile."
    return page.section(
        "Returns",
        page.figure(spread),
        page.figure(over_time, trend),
        text="What episodes were worth: a learner sees little of what lies above the best of them.",
    )


def _limits(data: Contents, stats: dict[str, Any]) -> Part:
    limits = stats["limits"]
    if not limits:
        return None
    names = [limit["limit"] for limit in limits]
    draw = partial(
        bar_chart,
        names,
        [Bars("", [100.0 * limit["share"] for limit in limits], CROSSED)],
        axis_label="% of rows in which the limit is crossed",
        share=True,
        show=lambda value: f"{number(value)} %",
    )
    units = {}
    if data.world is not None:
        plant = data.world.plant
        of_signal = {signal.name: signal.unit for signal in (*plant.observation, *plant.action)}
        units = {limit.name: of_signal[limit.signal] for limit in plant.limits}
    rows = [
        [
            name,
            limit["rows"],
            limit["episodes"],
            f"{number(limit['worst'])} {units.get(name, '')}".strip(),
        ]
        for name, limit in zip(names, limits, strict=True)
    ]
    return page.section(
        "Limits",
        page.figure(draw),
        page.table(("limit", "rows", "episodes", "crossed by at most"), rows),
        text="Where the logged plant left its limits. A learner cannot know what happens beyond a "
        "limit that the data never come near.",
    )


def _bounds(data: Contents, signal: str) -> list[tuple[str, float]]:
    """Limits of a signal, as marks on its charts."""
    if data.world is None:
        return []
    return [
        (limit.name, float(bound))
        for limit, bound in zip(data.world.plant.limits, data.world.params.bounds, strict=True)
        if limit.signal == signal and limit.kind != "rate"
    ]


def _actions(data: Contents, stats: dict[str, Any]) -> Part:
    charts = [
        histogram(data.columns["action"][:, i], title=q.name, span=(-1.0, 1.0), color=ACTION)
        for i, q in enumerate(data.action[:SHOWN])
    ]
    rows = [
        [a["name"], *map(a.get, MOMENTS), f"{a['at_end']:.1%}", f"{a['coverage']:.0%}"]
        for a in stats["actions"]
    ]
    head = ("action", *MOMENTS, "at an end", "covered")
    return page.section(
        "Actions",
        page.pairs(charts),
        page.table(head, rows),
        text="What was done, as a share of each actuator's range, -1 to 1. Covered is the part "
        "of that range with at least a thousandth of the rows in each twentieth of it.",
    )


def _signals(data: Contents, stats: dict[str, Any]) -> Part:
    charts = [
        histogram(
            data.columns["obs"][:, i],
            title=q.label,
            marks=_bounds(data, q.name),
            color=SIGNAL,
            span=(q.low, q.high) if q.declared else None,
        )
        for i, q in enumerate(data.observation[:SHOWN])
    ]
    left_out = len(data.observation) - SHOWN
    more = page.soft(f"{left_out} more signals are in the table." if left_out > 0 else "")
    rows = []
    for s in stats["signals"]:
        outside = None if s["outside"] is None else f"{s['outside']:.1%}"
        covered = f"{s['coverage']:.0%}"
        rows.append([s["name"], s["unit"] or None, *map(s.get, MOMENTS), outside, covered])
    head = ("signal", "unit", *MOMENTS, "outside", "covered")
    return page.section(
        "Signals",
        page.pairs(charts),
        more,
        page.table(head, rows),
        text="What was measured. Outside is the share of rows beyond the signal's usual range, "
        "covered the part of it that was seen; without a declared range it is that of the data.",
    )


def _together(data: Contents) -> Part:
    """The first two actions against the signals that move most, seen from their ranges."""
    obs, act = data.columns["obs"], data.columns["action"]
    span = np.asarray([max(q.high - q.low, 1e-9) for q in data.observation])
    lively = np.argsort(-obs.std(0) / span, kind="stable")[:2]
    charts = []
    for j, i in product(range(min(2, act.shape[1])), lively):
        if obs[:, i].std() > 0:
            signal, actuator = data.observation[i].label, data.action[j].name
            labels: dict[str, Any] = {"x_label": signal, "y_label": actuator}
            charts.append(density(obs[:, i], act[:, j], **labels, color=ACTION))
    return page.section(
        "What was done when",
        page.pairs(charts),
        text="Actions against the liveliest signals; darker is more often. Where it is empty, the "
        "data say nothing about that action in that state.",
    )


def _episode(data: Contents) -> Part:
    """The episode of median return, signal by signal."""
    returns, starts = data.returns, data.starts
    middle = int(np.argsort(returns, kind="stable")[len(returns) // 2])
    rows = slice(int(starts[middle]), int(starts[middle + 1]))

    def chart(quantity: Quantity, values: np.ndarray, color: int, bounds: list) -> Part:
        x, y = thin(list(range(len(values))), values.tolist(), STEPS)
        low, high = float(values.min()), float(values.max())
        room = 2 * (high - low)  # a limit farther away is not worth its room on the axis
        near = [(name, at) for name, at in bounds if low - room <= at <= high + room]
        line = Series(quantity.name, x, y, color=color)
        return line_chart([line], "step", quantity.label, references=near, height=220)

    charts = [
        chart(q, data.columns["action"][rows, i], ACTION, []) for i, q in enumerate(data.action[:4])
    ]
    charts += [
        chart(q, data.columns["obs"][rows, i], SIGNAL, _bounds(data, q.name))
        for i, q in enumerate(data.observation[:SHOWN])
    ]
    stats = f"Episode {middle + 1}, whose return of {number(returns[middle], 4)} is the median."
    return page.section("An episode", page.pairs(charts), text=stats)


def _about(stats: dict[str, Any], source: str) -> Part:
    facts = {
        "file": source or None,
        "SHA-256 of the content": stats["digest"],
        "log-probabilities of actions": stats["log_prob"],
        **stats["provenance"],
    }
    parts = [page.settings(facts)]
    if source:
        check = shlex.join(["worldloom", "data", "check", source])
        parts += [page.heading("Check it"), page.command(check)]
    return page.section("Where it comes from", *parts)
