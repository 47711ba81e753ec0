"""The charts of a run of a plant: returns, and limits that were crossed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from worldloom.report import page
from worldloom.report.axes import NONE, number
from worldloom.report.page import Part
from worldloom.report.plots import Bars, Series, bar_chart, line_chart, with_error
from worldloom.report.run_page import percent as in_percent
from worldloom.report.run_page import training_line
from worldloom.report.runs import Run, column, is_number
from worldloom.suites.plant.types import Limit, Signal

FILTERED, BARE, LOGGED, ACTS, EMERGENCY = 0, 1, 7, 4, 3  # colours, the same in every chart
_RULES = {"at_most": "at most", "at_least": "at least", "rate": "changes in a step by at most"}


@dataclass(frozen=True)
class PlantFacts:
    """Signals, actuators and limits as config.json has them; empty where it has none."""

    observation: Sequence[Signal] = ()
    action: Sequence[Signal] = ()
    limits: Sequence[Limit] = ()
    step_seconds: float = 1.0

    def bounded(self, limit: Limit) -> Signal:
        """The signal or actuator that a limit is of."""
        every = (*self.observation, *self.action)
        unknown = Signal(limit.signal, "", 0.0, 1.0)
        return next((signal for signal in every if signal.name == limit.signal), unknown)


class Log(NamedTuple):
    """What a run learned from, in numbers."""

    returns: np.ndarray  # (E,)
    crossed: Sequence[float]  # of every limit, the share of rows; empty without logged costs


def plant_facts(run: Run) -> PlantFacts:
    """What config.json tells of the plant."""
    known = run.part("plant")
    try:
        return PlantFacts(
            [_signal(entry) for entry in known["observation"]],
            [_signal(entry) for entry in known["action"]],
            [Limit(**entry) for entry in known["limits"]],
            float(known["step_seconds"]),
        )
    except (KeyError, TypeError, ValueError):
        return PlantFacts()


def _signal(entry: Mapping[str, Any]) -> Signal:
    """JSON has no infinity: an end of the range that is not there is null."""
    given = {name: value for name, value in entry.items() if value is not None}
    return Signal(**{"low": -math.inf, "high": math.inf, **given})


def unit_of(signal: Signal) -> str:
    """A signal's unit; nothing for a pure number."""
    return "" if signal.unit == "1" else signal.unit


def words(name: Any) -> str:
    """A name for people."""
    return str(name).replace("_", " ")


def percent(share: Any) -> str:
    """A share in per cent, for people; a dash for none."""
    return number(100.0 * share) if isinstance(share, int | float) else NONE


def part(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A nested part of a row of eval.jsonl; empty if it is not there."""
    value = row.get(name)
    return value if isinstance(value, dict) else {}


def unit_of_steps(run: Run) -> str:
    """What a run's steps are: updates, where it learned from data."""
    return "updates" if "data" in run.about else "steps"


def returns(run: Run, logged: Log | None) -> Part:
    """Returns in the plant during training, bare and filtered, and what the filter had to do."""
    evals = [row for row in run.evals if part(row, "bare") or part(row, "filtered")]
    if not evals:
        return None
    unit = unit_of_steps(run)
    bare, filtered = ([part(row, way) for row in evals] for way in ("bare", "filtered"))
    ways = (("behind the filter", filtered, FILTERED), ("bare policy", bare, BARE))
    beside = [] if logged is None else [("logged data", float(logged.returns.mean()))]
    beside += [
        (f"{who}, {name}", part(row, way)["return"])
        for who, row in run.references().items()
        for way, name in (("filtered", "behind the filter"), ("bare", "bare"))
        if is_number(part(row, way).get("return"))
    ]

    def curve(over: str, label: str, title: str, height: int) -> Part:
        lines = training_line(run, over)
        for name, rows, ink in ways:
            points = (column(evals, over), column(rows, "return"), column(rows, "return_stderr"))
            lines.append(with_error(f"{name} ± s.e.", *points, color=ink, dots=True))
        look: dict[str, Any] = {"references": beside, "height": height}
        return line_chart(lines, label, "return of an episode", title=title, **look)

    def small(label: str, *lines: tuple[str, Sequence[Any], int]) -> Part:
        x = column(evals, "steps")
        drawn = [Series(n, x, in_percent(v), color=ink, dots=True) for n, v, ink in lines]
        return line_chart(drawn, unit, label, share=True, height=270)

    def crossed(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
        shares = [[v for v in row.get("violated") or () if v is not None] for row in rows]
        return [max(share, default=None) for share in shares]

    charts = [
        curve("seconds", "seconds of training", "Return in the plant over time", 270),
        small(
            "% of steps in which the filter",
            ("acts", column(filtered, "interventions"), ACTS),
            ("emergency action", column(filtered, "emergencies"), EMERGENCY),
        ),
    ]
    if any(row.get("violated") for row in bare):
        beyond = [(name, crossed(rows), ink) for name, rows, ink in ways]
        charts.append(small("% of steps beyond the limit crossed most", *beyond))
    count = run.settings.get("eval_episodes")
    caption = f"{count} whole episodes at each point, both ways from the same starts."
    if "data" in run.about:
        caption += " No learner sees them: it learns from the log alone."
    return page.section(
        "Return in the plant",
        page.figure(curve("steps", unit, "Return in the plant", 380), caption),
        # A single evaluation is in the headline already.
        page.pairs(charts) if len(evals) > 1 else None,
    )


def limits(run: Run, facts: PlantFacts, logged: Log | None) -> Part:
    """Every limit: how often it was crossed, and the smallest margin to it."""
    if not facts.limits or not run.evals:
        return None
    ways = {way: part(run.evals[-1], way) for way in ("bare", "filtered")}

    def of_limits(values: Any, factor: float = 1.0) -> list[float | None]:
        known = [None if v is None else factor * v for v in values or ()]
        return (known + [None] * len(facts.limits))[: len(facts.limits)]

    shares = {"logged data": logged.crossed if logged else ()}
    shares |= {way: row.get("violated") for way, row in ways.items()}
    errors = {way: row.get("violated_stderr") for way, row in ways.items()}
    inks = {"logged data": LOGGED, "bare": BARE, "filtered": FILTERED}
    groups = [
        Bars(name, of_limits(values, 100.0), inks[name], of_limits(errors.get(name), 100.0))
        for name, values in shares.items()
        if any(v is not None for v in of_limits(values))
    ]
    draw = partial(
        bar_chart,
        [words(limit.name) for limit in facts.limits],
        groups,
        title="Limits crossed",
        axis_label="% of steps in which the limit is crossed ± s.e.",
        share=True,
        show=lambda value: f"{number(value)} %",
    )
    worst = [of_limits(row.get("worst_margin")) for row in ways.values()]
    rows = []
    for limit, *margins in zip(facts.limits, *worst, strict=True):
        unit, kind = unit_of(facts.bounded(limit)), _RULES.get(limit.kind, limit.kind)
        rule = f"{words(limit.signal)} {kind} {number(limit.bound, 4)} {unit}".strip()
        shown = [f"{number(margin)} {unit}".strip() for margin in margins]
        rows.append([words(limit.name), rule, "hard" if limit.hard else "soft", *shown])
    head = ["limit", "rule", "", "smallest margin, bare", "smallest margin, filtered"]
    text = (
        "A margin is the distance to a limit, in the unit of its signal; below zero the limit is "
        "crossed. Hard limits must not be, soft ones are worth avoiding."
    )
    return page.section("Limits", page.figure(draw), page.table(head, rows), text=text)
