"""The charts of a run of the robot: learning, reward by term, pushes, and what is inside."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart
from worldloom.report.run_page import LABELS, thin
from worldloom.report.runs import Run
from worldloom.report.svg import color
from worldloom.suites.robot.evaluate import TOLERANCE
from worldloom.suites.robot.model import CONTROL_SECONDS

Rung = Mapping[str, float]  # a row of ladder.json

_SMALL = 270  # pixels of a chart among many
_STEPS = "steps of all worlds"
# Metrics of the learner that are shown: of PPO, then of SAC and TD3.
_INSIDE = (
    "kl",
    "clip_fraction",
    "entropy",
    "explained_variance",
    "critic_loss",
    "actor_loss",
    "q",
    "temperature",
)


# What a run says of itself ----------------------------------------------------------------------


def walks(run: Run) -> bool:
    """Whether its task has a command of speed."""
    return run.about.get("task") == "walk"


def milliseconds(rung: Rung) -> int:
    """How long a push lasts."""
    return round(1000.0 * CONTROL_SECONDS * rung["steps"])


# Lines ------------------------------------------------------------------------------------------


def _column(rows: Sequence[Mapping[str, Any]], name: str, factor: float = 1.0) -> list[Any]:
    values = (row.get(name) for row in rows)
    return [None if value is None else factor * value for value in values]


def _known(values: Sequence[Any]) -> bool:
    return any(value is not None and math.isfinite(value) for value in values)


def _trained(
    run: Run, label: str, name: str, ink: int, factor: float = 1.0, faint: bool = False
) -> list[Series]:
    """A line of the training, as a list: empty if the run has no such column."""
    values = _column(run.metrics, name, factor)
    if not _known(values):
        return []
    return [Series(label, *thin(run.column("steps"), values), color=color(ink), faint=faint)]


def _greedy(
    run: Run, label: str, name: str, ink: int, factor: float = 1.0, by_minutes: bool = False
) -> list[Series]:
    """A line of the evaluations, as a list: empty if the run has no such column."""
    values = _column(run.evals, name, factor)
    if not _known(values):
        return []
    x = _column(run.evals, "seconds", 1.0 / 60.0) if by_minutes else _column(run.evals, "steps")
    return [Series(label, x, values, color=color(ink), dots=True)]


def _half(lines: Sequence[Series], label: str, **options: Any) -> str:
    """A chart of half a column; nothing if it would have no line."""
    if not lines:
        return ""
    settings = {"x_label": _STEPS, "width": page.HALF, "height": 240} | options
    return line_chart(lines, title=label, y_label=label, **settings)


# Sections ---------------------------------------------------------------------------------------


def learning(run: Run) -> str:
    """Returns, falls and tracking, in training and in greedy episodes."""
    returns = _trained(run, "training episodes", "return", 2, faint=True)
    returns += _greedy(run, "greedy episodes", "mean", 0)

    def draw(width: int) -> str:
        return line_chart(
            returns,
            title="Learning curve",
            x_label=_STEPS,
            y_label="return of an episode",
            width=width,
            height=340 if width > page.HALF else 300,
        )

    def shares(by_minutes: bool) -> list[Series]:
        good = _greedy(run, "as fast as asked", "good", 1, 100.0, by_minutes)
        return _greedy(run, "stays up", "survived", 0, 100.0, by_minutes) + good * walks(run)

    charts = [
        _half(shares(False), "% of greedy episodes", include_zero=True),
        _half(
            shares(True),
            "% of greedy episodes",
            include_zero=True,
            x_label="minutes of training",
        ),
        *_tracking(run),
        _half(
            _trained(run, "training", "length", 2, faint=True)
            + _greedy(run, "greedy", "length", 0),
            "steps in an episode",
            include_zero=True,
        ),
        _half(
            _trained(run, "falls", "fell", 3, 100.0),
            "% of training episodes that end in a fall",
            include_zero=True,
        ),
        _half(
            _greedy(run, "distance", "gait_distance", 4),
            "rad from the reference gait",
            include_zero=True,
        ),
    ]
    caption = "Greedy episodes do without exploration; training episodes explore."
    main = page.figure(draw, caption) if returns else ""
    return page.section("Learning", main, page.pairs(charts))


def _tracking(run: Run) -> list[str]:
    """How far the robot is off the speed that was asked for."""
    if not walks(run):
        return []
    label = "m/s off the command"
    greedy = _greedy(run, "mean speed of greedy episodes", "error", 1)
    if greedy:
        return [_half(greedy, label, include_zero=True, references=[("wanted", TOLERANCE)])]
    momentary = _trained(run, "training", "error", 1)
    return [_half(momentary, f"{label} when a training episode ends", include_zero=True)]


def _weighted(run: Run) -> dict[str, list[float | None]]:
    """Reward that each term earned in a second, at every evaluation."""
    weights = run.about.get("terms")
    written = [row.get("terms") for row in run.evals]
    rows = [terms if isinstance(terms, dict) else {} for terms in written]
    if not isinstance(weights, dict):
        return {}
    earned = {name: _column(rows, name, weight) for name, weight in weights.items()}
    return {name: values for name, values in earned.items() if _known(values)}


def terms(run: Run) -> str:
    """The reward, term by term: what each came to at last, and on the way there."""
    earned = _weighted(run)
    if not earned:
        return ""
    weights, steps = run.about["terms"], _column(run.evals, "steps")

    def draw(width: int) -> str:
        last = Bars("", [values[-1] for values in earned.values()], color(0))
        return bar_chart(
            list(earned),
            [last],
            title="Reward by term",
            width=width,
            axis_label="reward a second, in the last evaluation",
        )

    small = (
        [
            line_chart(
                [Series(name, steps, values, color=color(0), dots=True)],
                title=name,
                y_label=f"{name}, weight {number(weights[name])}",
                include_zero=True,
                width=_SMALL,
                height=165,
            )
            for name, values in earned.items()
        ]
        if len(steps) > 1
        else []
    )
    figures = "".join(f'<figure style="margin:.5rem 0">{chart}</figure>' for chart in small)
    columns = f"grid-template-columns:repeat(auto-fit,minmax(min(100%,{_SMALL}px),1fr))"
    many = f'<div style="display:grid;{columns};gap:0 1.5rem">{figures}</div>' if small else ""
    text = (
        "What each term of the reward paid in a second of a greedy episode, weight included. Terms "
        "that reward pay at most their weight; terms that punish pay 0 at best."
    )
    said = f'<p class="soft">At every evaluation, by {_STEPS}:</p>' if small else ""
    return page.section("Reward, term by term", page.figure(draw), said, many, text=text)


def pushes(rungs: Sequence[Rung]) -> str:
    """The ladder of pushes: the robot beside one that only holds its home pose."""
    if not rungs:
        return ""
    rows = [
        [rung["newtons"], milliseconds(rung), 100.0 * rung["survived"], 100.0 * rung["held"]]
        for rung in rungs
    ]

    def draw(width: int) -> str:
        names = ("this robot", "holds its home pose")
        groups = [
            Bars(name, [row[2 + i] for row in rows], color(i)) for i, name in enumerate(names)
        ]
        return bar_chart(
            [f"{number(newtons)} N, {time} ms" for newtons, time, *_ in rows],
            groups,
            title="Pushes",
            axis_label="% of episodes without a fall",
            width=width,
        )

    head = ["newtons", "milliseconds", "this robot, %", "holds its home pose, %"]
    text = (
        "Pushes of fixed size from random directions, every two to three seconds of an episode. "
        "Beside the robot stands one whose servos only hold the home pose."
    )
    return page.section("Pushes", page.figure(draw), page.table(head, rows), text=text)


def inside(run: Run) -> str:
    """Metrics of the learner's updates."""
    charts = [
        _half(_trained(run, name, name, i), LABELS.get(name, name.replace("_", " ")), height=230)
        for i, name in enumerate(_INSIDE)
    ]
    return page.section("Inside the learner", page.pairs(charts))


def prior(run: Run) -> str:
    """The motion prior: what style earns, and whether the judge can still tell."""

    def both(name: str, factor: float = 1.0) -> list[Series]:
        real = _trained(run, "the reference", f"prior_real_{name}", 0, factor)
        return real + _trained(run, "the policy", f"prior_fake_{name}", 1, factor)

    charts = [
        _half(_trained(run, "style", "prior_style", 2), "style of a step, before its weight"),
        _half(both("score"), "score by the discriminator"),
        _half(both("accuracy", 100.0), "% judged rightly", include_zero=True),
        _half(_trained(run, "penalty", "prior_penalty", 3), "gradient penalty"),
    ]
    text = (
        "A discriminator learns to tell the reference gait (1) from the policy's (0); what it "
        "takes for the reference earns a style reward. One that judges everything rightly gives "
        "the policy nothing to climb."
    )
    return page.section("Motion prior", page.pairs(charts), text=text)
