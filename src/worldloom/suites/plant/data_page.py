"""The page of an offline dataset: what was logged, how good it was, where limits were crossed."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.replay.dataset_checks import KINDS, Report
from worldloom.report import page, svg
from worldloom.report.axes import number
from worldloom.report.histograms import density, histogram
from worldloom.report.plots import Bars, Series, bar_chart, line_chart
from worldloom.report.run_page import thin
from worldloom.suites.plant.data_figures import Contents, Quantity, figures

SHOWN = 12  # charts of signals, beyond which a page is no longer read
STEPS = 400  # points of an episode's line


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
        f'<div class="hero">{_headline(stats)}</div>',
        _returns(data),
        _limits(data, stats),
        _actions(data, stats),
        _signals(data, stats),
        _together(data),
        _episode(data),
        _about(stats, source),
        f"<footer>worldloom data · SHA-256 {stats['digest']}</footer>",
    ]
    return page.page(f"{title} · dataset", body)


def _defects(report: Report | None) -> list[str]:
    if report is None or report.sound:
        return []
    lines = [f"{KINDS[kind]}: {count:,} times" for kind, count in report.counts.items()]
    first = report.first(1)[0]
    return [*lines, f"The first: {first.message}."]


def _headline(stats: dict[str, Any]) -> str:
    steps, returns = stats["steps"], stats["return"]
    ends = f"{stats['terminated']:,} ended, {stats['truncated']:,} ran out of time"
    items = [
        (
            "rows",
            f"{stats['rows']:,}",
            "",
            f"{len(stats['signals'])} signals, {len(stats['actions'])} actions",
        ),
        ("episodes", f"{stats['episodes']:,}", "", ends),
        (
            "mean return",
            number(returns["mean"], 4),
            f"± {number(returns['std'], 3)}",
            f"from {number(returns['min'], 4)} to {number(returns['max'], 4)}",
        ),
        (
            "steps in an episode",
            number(steps["mean"], 4),
            "",
            f"from {number(steps['min'])} to {number(steps['max'])}",
        ),
    ]
    if stats["limits"]:
        worst = max(stats["limits"], key=lambda limit: limit["share"])
        more = "no limit was ever crossed"
        if worst["rows"]:
            more = f"{worst['limit']}, in {worst['episodes']:,} of {stats['episodes']:,} episodes"
        items.append(("limit crossed most", f"{worst['share']:.2%}", "of rows", more))
    return page.facts(items)


# Returns -----------------------------------------------------------------------------------------


def _returns(data: Contents) -> str:
    returns = data.returns
    if len(returns) < 2:
        return ""
    mean = float(returns.mean())

    def spread(width: int) -> str:
        return histogram(
            returns,
            x_label="return of an episode",
            marks=[("mean", mean)],
            what="episodes",
            width=width,
            height=210,
        )

    def over_time(width: int) -> str:
        x, y = thin(list(range(1, len(returns) + 1)), returns.tolist())
        line = Series("return", x, y)
        return line_chart(
            [line],
            x_label="episode, in the order of logging",
            y_label="return",
            width=width,
            height=230,
        )

    return page.section(
        "Returns",
        page.figure(spread),
        page.figure(
            over_time, "A trend means that the plant, or whoever ran it, changed meanwhile."
        ),
        text="What episodes were worth: a learner sees little of what lies above the best of them.",
    )


# Limits ------------------------------------------------------------------------------------------


def _limits(data: Contents, stats: dict[str, Any]) -> str:
    limits = stats["limits"]
    if not limits:
        return ""
    names = [limit["limit"] for limit in limits]
    shares = Bars("", [100.0 * limit["share"] for limit in limits], color=svg.color(1))

    def draw(width: int) -> str:
        return bar_chart(
            names,
            [shares],
            axis_label="% of rows in which the limit is crossed",
            show=lambda value: f"{number(value)} %",
            width=width,
        )

    units = _limit_units(data)
    rows = [
        [
            limit["limit"],
            limit["rows"],
            limit["episodes"],
            f"{number(limit['worst'])} {unit}".strip(),
        ]
        for limit, unit in zip(limits, units, strict=True)
    ]
    return page.section(
        "Limits",
        page.figure(draw),
        page.table(("limit", "rows", "episodes", "crossed by at most"), rows),
        text="Where the logged plant left its limits. A learner cannot know what happens beyond a "
        "limit that the data never come near.",
    )


def _limit_units(data: Contents) -> list[str]:
    if data.world is None or len(data.world.plant.limits) != len(data.limits):
        return [""] * len(data.limits)
    plant = data.world.plant
    units = {signal.name: signal.unit for signal in (*plant.observation, *plant.action)}
    return [units.get(limit.signal, "") for limit in plant.limits]


def _bounds(data: Contents, signal: str) -> list[tuple[str, float]]:
    """Limits of a signal, as marks on its charts."""
    if data.world is None:
        return []
    return [
        (limit.name, float(bound))
        for limit, bound in zip(data.world.plant.limits, data.world.params.bounds, strict=True)
        if limit.signal == signal and limit.kind != "rate"
    ]


# Coverage ----------------------------------------------------------------------------------------


def _actions(data: Contents, stats: dict[str, Any]) -> str:
    charts = [
        histogram(data.columns["action"][:, i], title=q.name, span=(-1.0, 1.0), color=2)
        for i, q in enumerate(data.action[:SHOWN])
    ]
    rows = [
        [
            a["name"],
            a["mean"],
            a["std"],
            a["min"],
            a["max"],
            f"{a['at_end']:.1%}",
            f"{a['coverage']:.0%}",
        ]
        for a in stats["actions"]
    ]
    head = ("action", "mean", "std", "min", "max", "at an end", "covered")
    return page.section(
        "Actions",
        page.pairs(charts),
        page.table(head, rows),
        text="What was done, as a share of each actuator's range, -1 to 1. Covered is the part "
        "of that range with at least a thousandth of the rows in each twentieth of it.",
    )


def _signals(data: Contents, stats: dict[str, Any]) -> str:
    charts = [
        histogram(
            data.columns["obs"][:, i],
            title=q.label,
            marks=_bounds(data, q.name),
            span=(q.low, q.high) if q.declared else None,
            height=165,
        )
        for i, q in enumerate(data.observation[:SHOWN])
    ]
    left_out = len(data.observation) - SHOWN
    more = f'<p class="soft">{left_out} more signals are in the table.</p>' if left_out > 0 else ""
    rows = [
        [
            s["name"],
            s["unit"] or None,
            s["mean"],
            s["std"],
            s["min"],
            s["max"],
            None if s["outside"] is None else f"{s['outside']:.1%}",
            f"{s['coverage']:.0%}",
        ]
        for s in stats["signals"]
    ]
    head = ("signal", "unit", "mean", "std", "min", "max", "outside", "covered")
    return page.section(
        "Signals",
        page.pairs(charts),
        more,
        page.table(head, rows),
        text="What was measured. Outside is the share of rows beyond the signal's usual range, "
        "covered the part of it that was seen; without a declared range it is that of the data.",
    )


def _together(data: Contents) -> str:
    """The first two actions against the signals that move most, seen from their ranges."""
    obs, act = data.columns["obs"], data.columns["action"]
    span = np.asarray([max(q.high - q.low, 1e-9) for q in data.observation])
    lively = np.argsort(-obs.std(0) / span, kind="stable")[:2]
    charts = [
        density(
            obs[:, i],
            act[:, j],
            x_label=data.observation[i].label,
            y_label=data.action[j].name,
            color=2,
        )
        for j in range(min(2, act.shape[1]))
        for i in lively
        if obs[:, i].std() > 0
    ]
    return page.section(
        "What was done when",
        page.pairs(charts),
        text="Actions against the liveliest signals; darker is more often. Where it is empty, the "
        "data say nothing about that action in that state.",
    )


# An episode --------------------------------------------------------------------------------------


def _episode(data: Contents) -> str:
    """The episode of median return, signal by signal."""
    returns, starts = data.returns, data.starts
    middle = int(np.argsort(returns, kind="stable")[len(returns) // 2])
    rows = slice(int(starts[middle]), int(starts[middle + 1]))

    def chart(quantity: Quantity, values: np.ndarray, color: int, bounds: list) -> str:
        x, y = thin(list(range(len(values))), values.tolist(), STEPS)
        near = [(name, at) for name, at in bounds if _near(at, values)]
        line = Series(quantity.name, x, y, color=svg.color(color))
        return line_chart(
            [line],
            y_label=quantity.label,
            x_label="step",
            references=near,
            width=page.HALF,
            height=190,
        )

    charts = [
        chart(q, data.columns["action"][rows, i], 2, []) for i, q in enumerate(data.action[:4])
    ] + [
        chart(q, data.columns["obs"][rows, i], 0, _bounds(data, q.name))
        for i, q in enumerate(data.observation[:SHOWN])
    ]
    stats = f"Episode {middle + 1}, whose return of {number(returns[middle], 4)} is the median."
    return page.section("An episode", page.pairs(charts), text=stats)


def _near(bound: float, values: np.ndarray) -> bool:
    """Whether a limit is close enough to be worth the room on an axis."""
    low, high = float(values.min()), float(values.max())
    return low - 2 * (high - low) <= bound <= high + 2 * (high - low)


# About -------------------------------------------------------------------------------------------


def _about(stats: dict[str, Any], source: str) -> str:
    facts = {
        "file": source or None,
        "SHA-256 of the content": stats["digest"],
        "log-probabilities of actions": stats["log_prob"],
        **stats["provenance"],
    }
    parts = [page.settings(facts)]
    if source:
        parts += [
            "<h3>Check it</h3>",
            page.command(shlex.join(["worldloom", "data", "check", source])),
        ]
    return page.section("Where it comes from", *parts)
