"""The report of a run of the robot: film, learning curves, reward by term, and pushes."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from worldloom.report import page, run_page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, Series, bar_chart, line_chart
from worldloom.report.runs import Run, is_number, read_run
from worldloom.report.svg import color
from worldloom.suites.robot.evaluate import COMMANDS, TOLERANCE, Rung

FILM, REPLAY, LADDER = "robot.gif", "replay.html", "ladder.json"
_ENGINES = {"CEngine": "C engine", "MjxEngine": "MJX", "LoopEngine": "MuJoCo in a loop"}
_STEPS = "steps of all worlds"
# Metrics of the learner that are shown: of PPO, then of SAC and TD3.
_INSIDE = ("kl", "clip_fraction", "entropy", "explained_variance")
_INSIDE_OFF_POLICY = ("critic_loss", "actor_loss", "q", "temperature")


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run of the robot and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(folder)
    rungs, broken = _ladder(run.path)
    return run_page.write_page(
        _without_idle_settings(run),
        hero=run_page.hero([*_scores(run), *_push_score(rungs), *run_page.facts(run)], _film(run)),
        sections=[
            page.note("Mind this", _accidents(run)),
            run_page.learning(run, unit=_STEPS),
            _progress(run),
            _terms(run),
            _pushes(rungs),
            run_page.inside(run, _INSIDE + _INSIDE_OFF_POLICY, _STEPS),
            _prior(run),
            _again(run),
        ],
        tags=_tags(run),
        missing=[*_missing(run), *broken],
    )


def _walks(run: Run) -> bool:
    """Whether its task has a command of speed."""
    return run.about.get("task") == "walk"


# What is there -----------------------------------------------------------------------------------


def _tags(run: Run) -> list[str]:
    settings, about = run.settings, run.about
    engine = str(about.get("engine", ""))
    if settings.get("level") == 1:
        engine = "LoopEngine"  # what is kept is the engine of evaluations, its equal
    robot = str(about.get("robot", ""))
    return [
        robot if robot != settings.get("env") else "",
        str(about.get("task", "")),
        f"level {settings.get('level')}",
        _ENGINES.get(engine, engine),
    ]


def _ladder(folder: Path) -> tuple[list[Rung], list[str]]:
    """The rungs of ladder.json, and what is wrong with it in words."""
    path = folder / LADDER
    if not path.is_file():
        return [], []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        names = [field.name for field in fields(Rung)]
        columns: Any = [[float(row[name]) for name in names] for row in rows]
        return [Rung(*column) for column in columns], []
    except (ValueError, KeyError, TypeError) as error:
        return [], [f"{LADDER} cannot be read ({type(error).__name__}: {error})."]


def _missing(run: Run) -> list[str]:
    lines = []
    if not (run.path / FILM).is_file():
        remedy = f"; {_film_command(run)} makes one" if run.has_checkpoint else ""
        lines.append(f"There is no film of the robot ({FILM}){remedy}.")
    if not _walks(run) and not (run.path / LADDER).is_file():
        lines.append(f"The ladder of pushes has not been climbed ({LADDER}).")
    return lines


def _film_command(run: Run) -> str:
    return shlex.join(["worldloom", "eval", str(run.path), "--gif", str(run.path / FILM)])


def _accidents(run: Run) -> list[str]:
    """What went wrong and did not end the training."""
    lines = []
    parts = [(row.get("diverged") or 0.0) * (row.get("episodes") or 0) for row in run.metrics]
    if diverged := round(sum(parts)):
        lines.append(
            f"{diverged:,} training episodes ended because the simulation had diverged; "
            "their worlds started anew."
        )
    if skipped := round(sum(row.get("skipped") or 0.0 for row in run.metrics)):
        lines.append(f"{skipped:,} minibatches were skipped: their gradients were not finite.")
    return lines


def _without_idle_settings(run: Run) -> Run:
    """Without the settings of a motion prior, where there is none."""
    settings = run.settings
    if (settings.get("amp") or {}).get("weight"):
        return run
    kept = {name: value for name, value in settings.items() if name != "amp"}
    return replace(run, about=run.about | {"config": kept})


# At the top --------------------------------------------------------------------------------------


def _film(run: Run) -> str:
    links = [
        f'<a href="{file}" style="color:var(--accent)">{words}</a>'
        for file, words in ((REPLAY, "Interactive replay in 3D"), ("robot.mp4", "the film as MP4"))
        if (run.path / file).is_file()
    ]
    below = f'<p class="soft">{", ".join(links)}</p>' if links else ""
    path, film = run.path / FILM, ""
    if path.is_file():
        film = run_page.film_figure(path, "The trained robot, without exploring.")
    return f"<div>{film}{below}</div>" if film or below else ""


def _scores(run: Run) -> list[run_page.Fact]:
    if not run.evals:
        return []
    last = run.evals[-1]
    count = last.get("episodes")
    below = f"of {count} episodes to the end, without exploring"
    items = [("stays up", _percent(last.get("survived")), "%", below)]
    if not _walks(run):
        return items
    low, high = COMMANDS
    below = f"of {count} episodes at {low:g} to {high:g} m/s: no fall, within {TOLERANCE:g} m/s"
    error = number(last.get("error"), 2)
    return [
        ("as fast as asked", _percent(last.get("good")), "%", below),
        *items,
        ("off the command", error, "m/s", "mean of all episodes, after two seconds"),
    ]


def _push_score(rungs: Sequence[Rung]) -> list[run_page.Fact]:
    taken = [rung for rung in rungs if rung.survived >= 0.9]
    if not taken:
        return []
    best = max(taken, key=lambda rung: rung.newtons * rung.steps)
    below = f"for {best.milliseconds} ms, again and again; {_percent(best.held)} % stay up "
    below += "if it only holds its pose"
    return [("takes pushes of", number(best.newtons), "N", below)]


def _percent(share: Any) -> str:
    return number(None if share is None else 100.0 * share)


# Charts ------------------------------------------------------------------------------------------


def _column(rows: Sequence[Any], name: str, factor: float = 1.0) -> list[Any]:
    values = (row.get(name) for row in rows)
    return [None if value is None else factor * value for value in values]


def _line(
    rows: Sequence[Any],
    label: str,
    name: str,
    ink: int,
    factor: float = 1.0,
    x: Sequence[Any] | None = None,
    **style: Any,
) -> list[Series]:
    """A line of rows of training or evaluation, as a list: empty if none has such a column."""
    values = _column(rows, name, factor)
    if not any(map(is_number, values)):
        return []
    points = run_page.thin(_column(rows, "steps") if x is None else x, values)
    return [Series(label, *points, color=color(ink), **style)]


def _chart(lines: Sequence[Series], label: str, **options: Any) -> str:
    """A chart of half a column; nothing if it would have no line."""
    if not lines:
        return ""
    settings = {"x_label": _STEPS, "width": page.HALF, "height": 240} | options
    return line_chart(lines, title=label, y_label=label, **settings)


def _progress(run: Run) -> str:
    """Falls and tracking, in training and in greedy episodes."""
    trained, evals = run.metrics, run.evals

    def shares(x: Sequence[Any]) -> list[Series]:
        good = _line(evals, "as fast as asked", "good", 1, 100.0, x, dots=True)
        return _line(evals, "stays up", "survived", 0, 100.0, x, dots=True) + good * _walks(run)

    length = _line(trained, "training", "length", 2, faint=True)
    length += _line(evals, "greedy", "length", 0, dots=True)
    share, zero = "% of greedy episodes", {"include_zero": True}
    charts = [
        _chart(shares(_column(evals, "steps")), share, **zero),
        _chart(
            shares(_column(evals, "seconds", 1.0 / 60.0)),
            share,
            **zero,
            x_label="minutes of training",
        ),
        _tracking(run) if _walks(run) else "",
        _chart(length, "steps in an episode", **zero),
        _chart(
            _line(trained, "falls", "fell", 3, 100.0),
            "% of training episodes that end in a fall",
            **zero,
        ),
        _chart(
            _line(evals, "distance", "gait_distance", 4, dots=True),
            "rad from the reference gait",
            **zero,
        ),
    ]
    text = "Greedy episodes do without exploration; training episodes explore."
    return page.section("Falls and speed", page.pairs(charts), text=text)


def _tracking(run: Run) -> str:
    """How far the robot is off the speed that was asked for."""
    label = "m/s off the command"
    greedy = _line(run.evals, "mean speed of greedy episodes", "error", 1, dots=True)
    if greedy:
        return _chart(greedy, label, include_zero=True, references=[("wanted", TOLERANCE)])
    momentary = _line(run.metrics, "training", "error", 1)
    return _chart(momentary, f"{label} when a training episode ends", include_zero=True)


def _terms(run: Run) -> str:
    """The reward, term by term: what each came to at last, and on the way there."""
    weights = run.about.get("terms")
    if not isinstance(weights, dict):
        return ""
    steps, written = _column(run.evals, "steps"), [row.get("terms") for row in run.evals]
    rows = [terms if isinstance(terms, dict) else {} for terms in written]
    earned = {name: _column(rows, name, weight) for name, weight in weights.items()}
    earned = {name: values for name, values in earned.items() if any(map(is_number, values))}
    if not earned:
        return ""

    def draw(width: int) -> str:
        last = Bars("", [values[-1] for values in earned.values()], color(0))
        label = "reward a second, in the last evaluation"
        return bar_chart(
            list(earned), [last], title="Reward by term", width=width, axis_label=label
        )

    courses = [
        _chart(
            [Series(name, steps, values, color=color(0), dots=True)],
            f"{name}, weight {number(weights[name])}",
            include_zero=True,
            height=165,
        )
        for name, values in earned.items()
        if len(steps) > 1
    ]
    text = (
        "What each term of the reward paid in a second of a greedy episode, weight included. Terms "
        "that reward pay at most their weight; terms that punish pay 0 at best."
    )
    parts = page.figure(draw), page.pairs(courses)
    return page.section("Reward, term by term", *parts, text=text)


def _pushes(rungs: Sequence[Rung]) -> str:
    """The ladder of pushes: the robot beside one that only holds its home pose."""
    if not rungs:
        return ""
    rows = [
        [rung.newtons, rung.milliseconds, 100.0 * rung.survived, 100.0 * rung.held]
        for rung in rungs
    ]
    labels = [f"{number(newtons)} N, {time} ms" for newtons, time, *_ in rows]
    groups = [
        Bars(name, [row[2 + i] for row in rows], color(i))
        for i, name in enumerate(("this robot", "holds its home pose"))
    ]

    def draw(width: int) -> str:
        label = "% of episodes without a fall"
        return bar_chart(labels, groups, title="Pushes", axis_label=label, width=width)

    head = ["newtons", "milliseconds", "this robot, %", "holds its home pose, %"]
    text = (
        "Pushes of fixed size from random directions, every two to three seconds of an episode. "
        "Beside the robot stands one whose servos only hold the home pose."
    )
    return page.section("Pushes", page.figure(draw), page.table(head, rows), text=text)


def _prior(run: Run) -> str:
    """The motion prior: what style earns, and whether the judge can still tell."""
    rows = run.metrics

    def both(name: str, factor: float = 1.0) -> list[Series]:
        real = _line(rows, "the reference", f"prior_real_{name}", 0, factor)
        return real + _line(rows, "the policy", f"prior_fake_{name}", 1, factor)

    charts = [
        _chart(_line(rows, "style", "prior_style", 2), "style of a step, before its weight"),
        _chart(both("score"), "score by the discriminator"),
        _chart(both("accuracy", 100.0), "% judged rightly", include_zero=True),
        _chart(_line(rows, "penalty", "prior_penalty", 3), "gradient penalty"),
    ]
    text = (
        "A discriminator learns to tell the reference gait (1) from the policy's (0); what it "
        "takes for the reference earns a style reward. One that judges everything rightly gives "
        "the policy nothing to climb."
    )
    return page.section("Motion prior", page.pairs(charts), text=text)


# At the bottom -----------------------------------------------------------------------------------


def _again(run: Run) -> str:
    if not run.has_checkpoint:
        return ""
    push = shlex.join(["worldloom", "pushes", str(run.path)])
    commands = page.command(f"{push}\n{_film_command(run)}")
    return page.section("Push it, and film it again", commands)
