"""The page of an offline dataset: what was logged, how good it was, where limits were crossed."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.replay.dataset_checks import KINDS, Report
from worldloom.report import page, svg
from worldloom.report.axes import number
from worldloom.report.data_figures import Contents, Quantity, figures
from worldloom.report.histograms import density, histogram
from worldloom.report.html import thin
from worldloom.report.plots import Bars, Series, bar_chart, line_chart

SHOWN = 12  # charts of signals, beyond which a page is no longer read
STEPS = 400  # points of an episode's line


def write_page(
    path: str | Path, found: Contents, report: Report | None = None, source: str = ""
) -> Path:
    """Writes the page of a dataset and returns its path; `source` is the file it was read from."""
    return page.write(path, data_page(found, report, source))


def data_page(found: Contents, report: Report | None = None, source: str = "") -> str:
    """The page of a dataset as an HTML document. `report` is what a check of it found."""
    told = figures(found)
    provenance = told["provenance"]
    title = told["name"] or source or "dataset"
    tags = [provenance.get("env", ""), provenance.get("quality", "")]
    tags.append(f"seed {provenance['seed']}" if "seed" in provenance else "")
    body = [
        page.header(title, [tag for tag in tags if tag]),
        page.note("This dataset has defects", _defects(report)),
        f'<div class="hero">{_headline(told)}</div>',
        _returns(found),
        _limits(found, told),
        _actions(found, told),
        _signals(found, told),
        _together(found),
        _episode(found),
        _about(told, source),
        f"<footer>worldloom data · SHA-256 {told['digest']}</footer>",
    ]
    return page.page(f"{title} · dataset", body)


def _defects(report: Report | None) -> list[str]:
    if report is None or report.sound:
        return []
    lines = [f"{KINDS[kind]}: {count:,} times" for kind, count in report.counts.items()]
    first = report.first(1)[0]
    return [*lines, f"The first: {first.message}."]


def _headline(told: dict[str, Any]) -> str:
    steps, returns = told["steps"], told["return"]
    ends = f"{told['terminated']:,} ended, {told['truncated']:,} ran out of time"
    items = [
        ("rows", f"{told['rows']:,}", "",
         f"{len(told['signals'])} signals, {len(told['actions'])} actions"),
        ("episodes", f"{told['episodes']:,}", "", ends),
        ("mean return", number(returns["mean"], 4), f"± {number(returns['std'], 3)}",
         f"from {number(returns['min'], 4)} to {number(returns['max'], 4)}"),
        ("steps in an episode", number(steps["mean"], 4), "",
         f"from {number(steps['min'])} to {number(steps['max'])}"),
    ]  # fmt: skip
    if told["limits"]:
        worst = max(told["limits"], key=lambda limit: limit["share"])
        more = "no limit was ever crossed"
        if worst["rows"]:
            more = f"{worst['limit']}, in {worst['episodes']:,} of {told['episodes']:,} episodes"
        items.append(("limit crossed most", f"{worst['share']:.2%}", "of rows", more))
    return page.facts(items)


# Returns -----------------------------------------------------------------------------------------


def _returns(found: Contents) -> str:
    returns = found.returns
    if len(returns) < 2:
        return ""
    mean = float(returns.mean())

    def spread(width: int) -> str:
        return histogram(
            returns, x_label="return of an episode", marks=[("mean", mean)], what="episodes",
            width=width, height=210,
        )  # fmt: skip

    def course(width: int) -> str:
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
        page.figure(course, "A trend means that the plant, or whoever ran it, changed meanwhile."),
        text="What episodes were worth: a learner sees little of what lies above the best of them.",
    )


# Limits ------------------------------------------------------------------------------------------


def _limits(found: Contents, told: dict[str, Any]) -> str:
    limits = told["limits"]
    if not limits:
        return ""
    names = [limit["limit"] for limit in limits]
    shares = Bars("", [100.0 * limit["share"] for limit in limits], color=svg.color(1))

    def draw(width: int) -> str:
        return bar_chart(
            names, [shares], axis_label="% of rows in which the limit is crossed",
            show=lambda value: f"{number(value)} %", width=width,
        )  # fmt: skip

    units = _limit_units(found)
    rows = [
        [limit["limit"], limit["rows"], limit["episodes"],
         f"{number(limit['worst'])} {unit}".strip()]
        for limit, unit in zip(limits, units, strict=True)
    ]  # fmt: skip
    return page.section(
        "Limits",
        page.figure(draw),
        page.table(("limit", "rows", "episodes", "crossed by at most"), rows),
        text="Where the logged plant left its limits. A learner cannot know what happens beyond a "
        "limit that the data never come near.",
    )


def _limit_units(found: Contents) -> list[str]:
    if found.world is None or len(found.world.plant.limits) != len(found.limits):
        return [""] * len(found.limits)
    plant = found.world.plant
    units = {signal.name: signal.unit for signal in (*plant.observation, *plant.action)}
    return [units.get(limit.signal, "") for limit in plant.limits]


def _bounds(found: Contents, signal: str) -> list[tuple[str, float]]:
    """Limits of a signal, as marks on its charts."""
    if found.world is None:
        return []
    return [
        (limit.name, float(bound))
        for limit, bound in zip(found.world.plant.limits, found.world.params.bounds, strict=True)
        if limit.signal == signal and limit.kind != "rate"
    ]


# Coverage ----------------------------------------------------------------------------------------


def _actions(found: Contents, told: dict[str, Any]) -> str:
    charts = [
        histogram(found.columns["action"][:, i], title=q.name, span=(-1.0, 1.0), color=2)
        for i, q in enumerate(found.action[:SHOWN])
    ]
    rows = [
        [a["name"], a["mean"], a["std"], a["min"], a["max"],
         f"{a['at_end']:.1%}", f"{a['coverage']:.0%}"]
        for a in told["actions"]
    ]  # fmt: skip
    head = ("action", "mean", "std", "min", "max", "at an end", "covered")
    return page.section(
        "Actions",
        page.pairs(charts),
        page.table(head, rows),
        text="What was done, as a share of each actuator's range, -1 to 1. Covered is the part "
        "of that range with at least a thousandth of the rows in each twentieth of it.",
    )


def _signals(found: Contents, told: dict[str, Any]) -> str:
    charts = [
        histogram(
            found.columns["obs"][:, i], title=q.label, marks=_bounds(found, q.name),
            span=(q.low, q.high) if q.declared else None, height=165,
        )
        for i, q in enumerate(found.observation[:SHOWN])
    ]  # fmt: skip
    left_out = len(found.observation) - SHOWN
    more = f'<p class="soft">{left_out} more signals are in the table.</p>' if left_out > 0 else ""
    rows = [
        [s["name"], s["unit"] or None, s["mean"], s["std"], s["min"], s["max"],
         None if s["outside"] is None else f"{s['outside']:.1%}", f"{s['coverage']:.0%}"]
        for s in told["signals"]
    ]  # fmt: skip
    head = ("signal", "unit", "mean", "std", "min", "max", "outside", "covered")
    return page.section(
        "Signals",
        page.pairs(charts),
        more,
        page.table(head, rows),
        text="What was measured. Outside is the share of rows beyond the signal's usual range, "
        "covered the part of it that was seen; without a declared range it is that of the data.",
    )


def _together(found: Contents) -> str:
    """The first two actions against the signals that move most, seen from their ranges."""
    obs, act = found.columns["obs"], found.columns["action"]
    span = np.asarray([max(q.high - q.low, 1e-9) for q in found.observation])
    lively = np.argsort(-obs.std(0) / span, kind="stable")[:2]
    charts = [
        density(obs[:, i], act[:, j], x_label=found.observation[i].label,
                y_label=found.action[j].name, color=2)
        for j in range(min(2, act.shape[1]))
        for i in lively
        if obs[:, i].std() > 0
    ]  # fmt: skip
    return page.section(
        "What was done when",
        page.pairs(charts),
        text="Actions against the liveliest signals; darker is more often. Where it is empty, the "
        "data say nothing about that action in that state.",
    )


# An episode --------------------------------------------------------------------------------------


def _episode(found: Contents) -> str:
    """The episode of median return, signal by signal."""
    returns, starts = found.returns, found.starts
    middle = int(np.argsort(returns, kind="stable")[len(returns) // 2])
    rows = slice(int(starts[middle]), int(starts[middle + 1]))

    def chart(quantity: Quantity, values: np.ndarray, color: int, bounds: list) -> str:
        x, y = thin(list(range(len(values))), values.tolist(), STEPS)
        near = [(name, at) for name, at in bounds if _near(at, values)]
        line = Series(quantity.name, x, y, color=svg.color(color))
        return line_chart(
            [line], y_label=quantity.label, x_label="step", references=near,
            width=page.HALF, height=190,
        )  # fmt: skip

    charts = [
        chart(q, found.columns["action"][rows, i], 2, []) for i, q in enumerate(found.action[:4])
    ] + [
        chart(q, found.columns["obs"][rows, i], 0, _bounds(found, q.name))
        for i, q in enumerate(found.observation[:SHOWN])
    ]
    told = f"Episode {middle + 1}, whose return of {number(returns[middle], 4)} is the median."
    return page.section("An episode", page.pairs(charts), text=told)


def _near(bound: float, values: np.ndarray) -> bool:
    """Whether a limit is close enough to be worth the room on an axis."""
    low, high = float(values.min()), float(values.max())
    return low - 2 * (high - low) <= bound <= high + 2 * (high - low)


# About -------------------------------------------------------------------------------------------


def _about(told: dict[str, Any], source: str) -> str:
    facts = {
        "file": source or None, "SHA-256 of the content": told["digest"],
        "log-probabilities of actions": told["log_prob"], **told["provenance"],
    }  # fmt: skip
    parts = [page.settings(facts)]
    if source:
        parts += [
            "<h3>Check it</h3>",
            page.command(shlex.join(["worldloom", "data", "check", source])),
        ]
    return page.section("Where it comes from", *parts)
