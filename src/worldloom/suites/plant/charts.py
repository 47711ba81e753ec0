"""The charts of a run of a plant: returns, and limits that were crossed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldloom.report import page, svg
from worldloom.report.axes import NONE, number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart, with_error
from worldloom.report.run_page import thin
from worldloom.report.runs import Run, column, is_number

FILTERED, BARE, LOGGED, ACTS, EMERGENCY = 0, 1, 7, 4, 3  # colours, the same in every chart
_KINDS = {"at_most": "at most", "at_least": "at least", "rate": "changes in a step by at most"}


# What a run says of its plant --------------------------------------------------------------------


@dataclass(frozen=True)
class PlantFacts:
    """Signals, actuators and limits as config.json has them; empty where it has none."""

    observation: Sequence[Mapping[str, Any]]
    action: Sequence[Mapping[str, Any]]
    limits: Sequence[Mapping[str, Any]]
    step_seconds: float

    def signal(self, name: str) -> Mapping[str, Any]:
        """The signal or actuator of that name."""
        every = (*self.observation, *self.action)
        return next((signal for signal in every if signal.get("name") == name), {})

    def unit(self, limit: Mapping[str, Any]) -> str:
        """The unit in which a limit and its margins are."""
        return unit_of(self.signal(str(limit.get("signal"))))


@dataclass(frozen=True)
class Log:
    """What a run learned from, in numbers."""

    returns: np.ndarray  # (E,)
    crossed: Sequence[float]  # of every limit, the share of rows; empty without logged costs

    @property
    def mean(self) -> float:
        return float(self.returns.mean())


def plant_facts(run: Run) -> PlantFacts:
    """What config.json tells of the plant."""
    known = part(run.about, "plant")
    lists = [
        [entry for entry in known.get(name) or () if isinstance(entry, dict)]
        for name in ("observation", "action", "limits")
    ]
    seconds: Any = known.get("step_seconds")
    positive = isinstance(seconds, int | float) and seconds > 0
    return PlantFacts(*lists, step_seconds=float(seconds) if positive else 1.0)


def unit_of(signal: Mapping[str, Any]) -> str:
    """A signal's unit; nothing for a pure number."""
    unit = str(signal.get("unit") or "")
    return "" if unit == "1" else unit


def words(name: Any) -> str:
    """A name for people."""
    return str(name).replace("_", " ")


def percent(share: Any) -> str:
    """A share in per cent, for people; a dash for none."""
    return number(100.0 * share) if isinstance(share, int | float) else NONE


def part(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A nested part of a row of eval.jsonl or config.json; empty if it is not there."""
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def unit_of_steps(run: Run) -> str:
    """What a run's steps are: updates, where it learned from data."""
    return "updates" if "data" in run.about else "steps"


def _percents(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    values = (row.get(name) for row in rows)
    return [100.0 * v if is_number(v) else None for v in values]


# Learning ----------------------------------------------------------------------------------------


def returns(run: Run, logged: Log | None) -> str:
    """Returns in the plant during training, bare and filtered, and what the filter had to do."""
    evals = [row for row in run.evals if part(row, "bare") or part(row, "filtered")]
    if not evals:
        return ""
    unit, x = unit_of_steps(run), column(evals, "steps")
    bare, filtered = ([dict(part(row, way)) for row in evals] for way in ("bare", "filtered"))
    pairs = (("behind the filter", filtered, FILTERED), ("bare policy", bare, BARE))
    lines = [
        with_error(
            f"{name} ± s.e.",
            x,
            column(rows, "return"),
            column(rows, "return_stderr"),
            color=svg.color(ink),
            dots=True,
        )
        for name, rows, ink in pairs
    ]
    trained = run.column("return")
    if any(map(is_number, trained)):
        faint = thin(run.column("steps"), trained)
        lines.insert(0, Series("training, with exploration", *faint, faint=True))
    references = [] if logged is None else [("logged data", logged.mean)]

    def draw(width: int) -> str:
        return line_chart(
            lines,
            title="Return in the plant",
            x_label=unit,
            y_label="return of an episode",
            references=references,
            width=width,
            height=340 if width > page.HALF else 300,
        )

    def half(label: str, lines: list[Series]) -> str:
        return line_chart(
            lines,
            title=label,
            x_label=unit,
            y_label=label,
            include_zero=True,
            width=page.HALF,
            height=240,
        )

    def crossed(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
        shares = [[v for v in row.get("violated") or () if v is not None] for row in rows]
        return [100.0 * max(share) if share else None for share in shares]

    acts = [
        Series(label, x, _percents(filtered, name), color=svg.color(ink), dots=True)
        for label, name, ink in (
            ("acts", "interventions", ACTS),
            ("emergency action", "emergencies", EMERGENCY),
        )
    ]
    beyond = [Series(n, x, crossed(rows), color=svg.color(i), dots=True) for n, rows, i in pairs]
    small = [half("% of steps in which the filter", acts)]
    if any(row.get("violated") for row in bare):
        small.append(half("% of steps beyond the limit crossed most", beyond))
    # A single evaluation is in the headline already.
    below = page.pairs(small) if len(evals) > 1 else ""
    count = run.settings.get("eval_episodes")
    caption = f"{count} whole episodes at each point, both ways from the same starts."
    if "data" in run.about:
        caption += " No learner sees them: it learns from the log alone."
    return page.section("Return in the plant", page.figure(draw, caption), below)


# Limits ------------------------------------------------------------------------------------------


def limits(run: Run, facts: PlantFacts, logged: Log | None) -> str:
    """Every limit: how often it was crossed, and the smallest margin to it."""
    if not facts.limits or not run.evals:
        return ""
    last, count = run.evals[-1], len(facts.limits)
    ways = {"bare": part(last, "bare"), "filtered": part(last, "filtered")}

    def of_limits(values: Any, factor: float = 1.0) -> list[float | None]:
        known = [None if v is None else factor * v for v in values or ()]
        return (known + [None] * count)[:count]

    shares = {"logged data": of_limits(logged.crossed if logged else (), 100.0)}
    shares |= {way: of_limits(row.get("violated"), 100.0) for way, row in ways.items()}
    worst = {way: of_limits(row.get("worst_margin")) for way, row in ways.items()}
    inks = {"logged data": LOGGED, "bare": BARE, "filtered": FILTERED}

    def draw(width: int) -> str:
        groups = [
            Bars(name, values, svg.color(inks[name]))
            for name, values in shares.items()
            if any(v is not None for v in values)
        ]
        return bar_chart(
            [words(limit["name"]) for limit in facts.limits],
            groups,
            title="Limits crossed",
            axis_label="% of steps in which the limit is crossed",
            width=width,
            show=lambda value: f"{number(value)} %",
        )

    rows = []
    for i, limit in enumerate(facts.limits):
        unit = facts.unit(limit)
        kind = _KINDS.get(str(limit.get("kind")), str(limit.get("kind")))
        rule = f"{words(limit.get('signal'))} {kind} {number(limit.get('bound'), 4)} {unit}".strip()
        margins = [f"{number(worst[way][i])} {unit}".strip() for way in ways]
        rows.append([words(limit["name"]), rule, "hard" if limit.get("hard") else "soft", *margins])
    head = ["limit", "rule", "", "smallest margin, bare", "smallest margin, filtered"]
    text = (
        "A margin is the distance to a limit, in the unit of its signal; below zero the limit is "
        "crossed. Hard limits must not be, soft ones are worth avoiding."
    )
    return page.section("Limits", page.figure(draw), page.table(head, rows), text=text)
