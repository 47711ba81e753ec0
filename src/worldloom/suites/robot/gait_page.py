"""Sections of a robot's report: its gait in numbers, and how it walks in worlds that differ."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.page import Part
from worldloom.report.plots import Series, line_chart
from worldloom.report.runs import Run, is_number
from worldloom.suites.robot.gait_numbers import NUMBERS
from worldloom.suites.robot.ground import DOWN, UP
from worldloom.suites.robot.robustness import WAY

ROBUSTNESS, GROUND = "robustness.json", "ground.json"
_WIDTH = "times the range of training with randomise 1"
# What is disturbed, in words, and what its strength counts.
WORDS = {
    "latency": ("Latency", "steps of control from a reading to the servos"),
    "friction": ("Friction", _WIDTH),
    "mass": ("Masses", _WIDTH),
    "com": ("Centre of mass of the trunk", _WIDTH),
    "strength": ("Stiffness of the servos", _WIDTH),
    "damping": ("Damping", _WIDTH),
    "offset": ("Offsets of joint encoders", _WIDTH),
    "noise": ("Noise and bias of sensors", "times what noise 1 adds"),
    "push": ("Pushes", "N, for a robot of the biped's weight"),
}


def gait(run: Run) -> Part:
    """The gait of the last evaluation."""
    last = run.evals[-1] if run.evals else {}
    numbers = last.get("gait")
    if not isinstance(numbers, Mapping) or not numbers:
        return None
    rows = [
        [name.replace("_", " "), numbers[name], unit, words]
        for name, (unit, words) in NUMBERS.items()
        if is_number(numbers.get(name))
    ]
    if is_number(last.get("yaw")) and last.get("tracked") is not None:
        rows.append(["yaw", math.degrees(last["yaw"]), "°", "by how much an episode turns"])
        rows.append(["drift", last.get("drift"), "m", "how far it comes to the side"])
    text = "Of greedy episodes in the last evaluation, after two seconds."
    head = ["number", "value", "unit", "what it is"]
    return page.section("The gait in numbers", page.table(head, rows), text=text)


def read_robustness(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of robustness.json, and what is wrong with it in words."""
    return _read(folder / ROBUSTNESS, ("strength", "survived"))


def read_ground(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of ground.json, and what is wrong with it in words."""
    return _read(folder / GROUND, ("level", "episodes", "traversed", "fell", "way"))


def _read(path: Path, numbers: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows that have a kind and these numbers."""
    if not path.is_file():
        return [], []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        for row in rows:
            _ = [float(row[name]) for name in numbers], str(row["kind"])
        return rows, []
    except (ValueError, KeyError, TypeError) as error:
        return [], [f"{path.name} cannot be read ({type(error).__name__}: {error})."]


def ground(rows: list[dict[str, Any]], run: Run) -> Part:
    """Who gets over which level of uneven ground, and the levels that training was on."""
    if not rows:
        return None
    kinds = dict.fromkeys(row["kind"] for row in rows)
    lines = []
    for ink, kind in enumerate(kinds):
        some = [row for row in rows if row["kind"] == kind]
        shares = [100.0 * row["traversed"] / max(row["episodes"], 1) for row in some]
        levels = [row["level"] for row in some]
        lines.append(Series(kind, levels, shares, color=ink, dots=True))
    label = "% of episodes that get over the ground"
    charts = [line_chart(lines, x_label="level", y_label=label, share=True, height=260)]
    climbed = [(row.get("steps"), row.get("level")) for row in run.metrics]
    climbed = [(x, y) for x, y in climbed if is_number(x) and is_number(y)]
    if climbed:
        line = Series("level", *map(list, zip(*climbed, strict=True)), color=4)
        options: Any = {"x_label": "steps of all worlds", "include_zero": True, "height": 260}
        title = "mean level of training episodes that end"
        charts.append(line_chart([line], y_label=title, **options))
    head = ["level", "kind", "episodes", "got over", "fell before", "m ahead, on average"]
    names = ("level", "kind", "episodes", "traversed", "fell", "way")
    table = [[row[name] for name in names] for row in rows]
    text = (
        f"Greedy episodes that are asked to go straight on at the highest speed; {WAY:g} m ahead "
        "of where they began, for a robot of the biped's size, is over. Level 0 is flat. In "
        f"training a robot that makes {UP:.0%} of the way that it is asked for goes up a level, "
        f"and one that makes less than {DOWN:.0%} comes down."
    )
    return page.section("Uneven ground", page.pairs(charts), page.table(head, table), text=text)


def robustness(rows: list[dict[str, Any]]) -> Part:
    """A curve for each kind of disturbance: who stays up, against its strength."""
    usual = next((row for row in rows if row["kind"] == "none"), None)
    if usual is None:
        return None
    charts, table = [], []
    for kind, (title, unit) in WORDS.items():
        some = [usual, *(row for row in rows if row["kind"] == kind)]
        if len(some) < 2:
            continue
        strengths = [row["strength"] for row in some]
        shares = [100.0 * row["survived"] for row in some]
        line = Series("stays up", strengths, shares, color=0, dots=True)
        label = f"{title}: % of episodes without a fall"
        options: Any = {"x_label": unit, "y_label": label, "height": 200}
        charts.append(line_chart([line], title=title, share=True, **options))
        table += [
            [title, row["strength"], 100.0 * row["survived"], row.get("error"), row.get("yaw")]
            for row in some[1:]
        ]
    head = [
        "what differs",
        "strength",
        "stays up, %",
        "off the command, m/s",
        "off the yaw rate, rad/s",
    ]
    text = (
        "Greedy episodes of ten seconds in worlds that differ from the model in one way, and in "
        f"nothing else; undisturbed, {100.0 * usual['survived']:.0f} % stay up."
    )
    return page.section("Robustness", page.pairs(charts), page.table(head, table), text=text)
