"""The page of a selection: every candidate's interval beside what was logged, and what to do."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.algos.policy_selection import Candidate, Selection
from worldloom.report import page
from worldloom.report.axes import number
from worldloom.suites.plant.charts import LOGGED, percent
from worldloom.suites.plant.ope_page import Interval, interval_chart

_TEXT = (
    "What each policy would earn in an episode, by itself, rewards discounted by {gamma} a step: "
    "learned from the log alone, with intervals of nominally 95 %. A policy is recommended if its "
    "whole interval lies above the log's, and if the data support it: it stays where somebody has "
    "been, and most of what it wants in logged states was tried there. Of several, the one with "
    "the highest lower end."
)


def write_selection(selection: Selection, path: str | Path) -> Path:
    """Writes the page and returns its path."""
    chosen, reason = selection.decision
    every = [selection.logged, *selection.candidates]
    rows = [Interval(c.name, c.value, c.low, c.high) for c in every]
    marks = [("logged data", selection.logged.value, LOGGED)]
    title, label = "Estimates and intervals", "discounted return of an episode"
    draw = partial(interval_chart, rows, marks, title=title, axis_label=label)
    answer = f"Ship {chosen}" if chosen else "Keep what you have"
    about = selection.about
    text = _TEXT.format(gamma=number(about["gamma"]))
    if about["episodes"]:
        text += " Where a policy was tried in the plant, its interval knows of that."
    tags = [f"{about['data']['rows']:,} rows of {about['data']['name']}", f"{len(every)} ways"]
    head = ["", "estimate", "from", "to", "supported", "outside", "strange", "trials"]
    body = [
        page.header(f"Which policy for {selection.env}?", tags),
        page.note(answer, [f"{reason[:1].upper()}{reason[1:]}.", *selection.notes]),
        page.section(title, page.figure(draw), text=text),
        page.section(
            "Every candidate",
            page.table(head, [_row(c) for c in every]),
            page.soft(
                "Outside: of what the policy wants in logged states, the share that is further "
                "from all that was logged there than usual (the log itself: 5 %). Strange: of its "
                "steps in learned plants, the share that leads to where nobody has been."
            ),
        ),
        page.section("Doubts", *(_doubts(c) for c in selection.candidates)),
        _commands(selection),
    ]
    return page.write(path, page.page(f"Which policy for {selection.env}?", body))


def _row(candidate: Candidate) -> list[Any]:
    support = candidate.details.get("support")
    shares = [f"{percent(support[n])} %" if support else "" for n in ("outside", "strange")]
    said = ("yes" if candidate.supported else "no") if support else ""
    trials = len(candidate.trials) if support else None
    return [candidate.name, candidate.value, candidate.low, candidate.high, said, *shares, trials]


def _doubts(candidate: Candidate) -> page.Part:
    if not candidate.doubts:
        return None
    return [page.heading(candidate.name), "; ".join(candidate.doubts)]


def _commands(selection: Selection) -> page.Part:
    chosen = [c for c in selection.candidates if c.name == selection.decision.choice]
    if not chosen:
        return None
    line = ["worldloom", "export", chosen[0].details["run"]]
    return page.section("Ship it with its filter", page.command(shlex.join(line)))
