"""The charts of a run of a plant: returns, limits that were crossed, and what is inside."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldloom.report import page, svg
from worldloom.report.axes import NONE, number
from worldloom.report.html import thin
from worldloom.report.plots import Bars, Series, bar_chart, line_chart, with_error
from worldloom.report.runs import Run

FILTERED, BARE, LOGGED, ACTS, EMERGENCY = 0, 1, 7, 4, 3  # colours, the same in every chart
_KINDS = {"at_most": "at most", "at_least": "at least", "rate": "changes in a step by at most"}
_UPDATES = "updates"
_COUNTED = ("epoch", "updates", "seconds")
_LEARNED = {
    "actor_loss": "loss of the actor",
    "critic_loss": "loss of the critics",
    "value_loss": "loss of the values",
    "q": "mean value of the logged actions",
    "value": "mean value of the logged states",
    "clone_error": "squared distance to the logged actions",
    "weight": "mean weight of the logged actions",
    "gap": "value of other actions above the logged ones",
    "entropy": "entropy of the policy",
    "temperature": "temperature",
    "alignment": "how alike the critics' gradients are",
    "spread": "spread of the critics",
}


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
    told = run.about.get("plant")
    told = told if isinstance(told, dict) else {}
    lists = [
        [entry for entry in told.get(name) or () if isinstance(entry, dict)]
        for name in ("observation", "action", "limits")
    ]
    seconds: Any = told.get("step_seconds")
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


def of(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a row of eval.jsonl; empty if it is not there."""
    part = row.get(name)
    return part if isinstance(part, dict) else {}


def column(rows: Sequence[Mapping[str, Any]], name: str, factor: float = 1.0) -> list[Any]:
    """A column as numbers, None where a row has none."""
    values = (row.get(name) for row in rows)
    return [factor * v if isinstance(v, int | float) else None for v in values]


# Learning ----------------------------------------------------------------------------------------


def returns(run: Run, logged: Log | None) -> str:
    """Returns in the plant during training, bare and filtered, and what the filter had to do."""
    evals = [row for row in run.evals if of(row, "bare") or of(row, "filtered")]
    if not evals:
        return ""
    per_epoch = run.settings.get("updates_per_epoch") or 1
    x = [per_epoch * row["epoch"] for row in evals]
    bare, filtered = ([of(row, way) for row in evals] for way in ("bare", "filtered"))
    pairs = (("behind the filter", filtered, FILTERED), ("bare policy", bare, BARE))
    lines = [
        with_error(
            f"{name} ± s.e.", x, column(rows, "return"), column(rows, "return_stderr"),
            color=svg.color(ink), dots=True,
        )
        for name, rows, ink in pairs
    ]  # fmt: skip
    references = [] if logged is None else [("logged data", logged.mean)]

    def draw(width: int) -> str:
        return line_chart(
            lines, title="Return in the plant", x_label=_UPDATES, y_label="return of an episode",
            references=references, width=width, height=340 if width > page.HALF else 300,
        )  # fmt: skip

    def half(label: str, lines: list[Series]) -> str:
        return line_chart(
            lines, title=label, x_label=_UPDATES, y_label=label, include_zero=True,
            width=page.HALF, height=240,
        )  # fmt: skip

    def crossed(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
        shares = [[v for v in row.get("violated") or () if v is not None] for row in rows]
        return [100.0 * max(share) if share else None for share in shares]

    acts = [
        Series(n, x, column(filtered, name, 100.0), color=svg.color(ink), dots=True)
        for n, name, ink in (
            ("acts", "interventions", ACTS), ("emergency action", "emergencies", EMERGENCY),
        )
    ]  # fmt: skip
    beyond = [Series(n, x, crossed(rows), color=svg.color(i), dots=True) for n, rows, i in pairs]
    small = [half("% of steps in which the filter", acts)]
    if any(row.get("violated") for row in bare):
        small.append(half("% of steps beyond the limit crossed most", beyond))
    # A single evaluation is in the headline already.
    below = page.pairs(small) if len(evals) > 1 else ""
    count = run.settings.get("eval_episodes")
    caption = f"{count} whole episodes at each point, both ways from the same starts. "
    caption += "No learner sees them: it learns from the log alone."
    return page.section("Return in the plant", page.figure(draw, caption), below)


def inside(run: Run) -> str:
    """What the learner tells of its updates."""
    names = dict.fromkeys(name for row in run.metrics for name in row if name not in _COUNTED)
    x = column(run.metrics, "updates")
    charts = []
    for i, name in enumerate(names):
        values = column(run.metrics, name)
        present = [v for v in values if v is not None and math.isfinite(v)]
        if not present:
            continue
        label = _LEARNED.get(name, words(name))
        log = "loss" in name and min(present) > 0 and max(present) > 20 * min(present)
        charts.append(
            line_chart(
                [Series(name, *thin(x, values), color=svg.color(i))], title=label, log_y=log,
                x_label=_UPDATES, y_label=label + " (log)" * log, width=page.HALF, height=230,
            )
        )  # fmt: skip
    text = "Means over the updates of an epoch, from logged data alone."
    return page.section("Inside the learner", page.pairs(charts), text=text)


# Limits ------------------------------------------------------------------------------------------


def limits(run: Run, facts: PlantFacts, logged: Log | None) -> str:
    """Every limit: how often it was crossed, and the smallest margin to it."""
    if not facts.limits or not run.evals:
        return ""
    last, count = run.evals[-1], len(facts.limits)
    ways = {"bare": of(last, "bare"), "filtered": of(last, "filtered")}

    def of_limits(values: Any, factor: float = 1.0) -> list[float | None]:
        told = [None if v is None else factor * v for v in values or ()]
        return (told + [None] * count)[:count]

    shares = {"logged data": of_limits(logged.crossed if logged else (), 100.0)}
    shares |= {way: of_limits(row.get("violated"), 100.0) for way, row in ways.items()}
    worst = {way: of_limits(row.get("worst_margin")) for way, row in ways.items()}
    inks = {"logged data": LOGGED, "bare": BARE, "filtered": FILTERED}

    def draw(width: int) -> str:
        groups = [
            Bars(name, values, svg.color(inks[name]))
            for name, values in shares.items() if any(v is not None for v in values)
        ]  # fmt: skip
        return bar_chart(
            [words(limit["name"]) for limit in facts.limits], groups, title="Limits crossed",
            axis_label="% of steps in which the limit is crossed", width=width,
            show=lambda value: f"{number(value)} %",
        )  # fmt: skip

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
