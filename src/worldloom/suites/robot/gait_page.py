"""Sections of a robot's report: its gait in numbers, and how it walks in worlds that differ."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.page import Part
from worldloom.report.plots import Series, line_chart
from worldloom.report.runs import Run, is_number
from worldloom.suites.robot.gait_numbers import NUMBERS

ROBUSTNESS = "robustness.json"
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
    path = folder / ROBUSTNESS
    if not path.is_file():
        return [], []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        for row in rows:
            _ = float(row["strength"]), float(row["survived"]), str(row["kind"])
        return rows, []
    except (ValueError, KeyError, TypeError) as error:
        return [], [f"{ROBUSTNESS} cannot be read ({type(error).__name__}: {error})."]


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
