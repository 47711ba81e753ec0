"""The report of a run of the robot: film, learning curves, reward by term, and pushes."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.report import page, run_page
from worldloom.report.axes import number
from worldloom.report.page import Fact, Part
from worldloom.report.plots import Bars, Series, bar_chart, line_chart, with_error
from worldloom.report.run_page import GREEDY, TRAINING, percent, share_error, spread
from worldloom.report.runs import Run, column, is_number, read_run
from worldloom.suites.robot.evaluate import LOOSE, TOLERANCE
from worldloom.suites.robot.gait_page import (
    gait,
    ground,
    read_ground,
    read_robustness,
    robustness,
)
from worldloom.suites.robot.robustness import Rung

FILM, REPLAY, LADDER = "robot.gif", "replay.html", "ladder.json"
_ENGINES = {"CEngine": "C engine", "MjxEngine": "MJX", "LoopEngine": "MuJoCo in a loop"}
_STEPS = "steps of all worlds"
# Metrics of the learner that are shown: of PPO, then of SAC and TD3.
_INSIDE = ("kl", "clip_fraction", "entropy", "explained_variance")
_INSIDE_OFF_POLICY = ("critic_loss", "actor_loss", "q", "temperature")
# Colours, the same in every chart: falls of this robot, its speed, one that holds its pose, the
# gait, and both sides of the discriminator.
_UP, _FAST, _HELD, _GAIT, _REFERENCE, _POLICY = 0, 1, 7, 4, 6, 2


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run of the robot and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(folder)
    rungs, broken = _ladder(run.path)
    disturbed, torn = read_robustness(run.path)
    traversed, spoilt = read_ground(run.path)
    return run_page.write_page(
        _without_idle_settings(run),
        hero=run_page.hero([*_scores(run), *_push_score(rungs), *run_page.facts(run)], _film(run)),
        sections=[
            page.note("Mind this", _accidents(run)),
            run_page.learning(run, unit=_STEPS),
            _progress(run),
            gait(run),
            ground(traversed, run),
            robustness(disturbed),
            _terms(run),
            _pushes(rungs, run),
            run_page.inside(run, _INSIDE + _INSIDE_OFF_POLICY, _STEPS),
            _prior(run),
            _again(run),
        ],
        tags=_tags(run),
        missing=[*_missing(run), *broken, *torn, *spoilt],
    )


def _walks(run: Run) -> bool:
    """Whether its task has a command of speed."""
    return run.about.get("task") in ("walk", "joystick")


def _recovers(run: Run) -> bool:
    """Whether its task begins on the ground."""
    return run.about.get("task") == "recover"


def _tracking_names(run: Run) -> tuple[str, str, str, float]:
    """What a walk is scored by: words, the share and the error, and the tolerance.

    Runs of earlier versions have only the loose score, of the mean speed wherever it leads to.
    """
    if any("tracked" in row for row in run.evals):
        return "goes where asked", "tracked", "speed_error", TOLERANCE
    return "as fast as asked", "good", "error", LOOSE


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
        names = {field.name for field in fields(Rung)}
        values: Any = [{name: float(row[name]) for name in names & row.keys()} for row in rows]
        return [Rung(**some) for some in values], []
    except (ValueError, AttributeError, TypeError) as error:
        return [], [f"{LADDER} cannot be read ({type(error).__name__}: {error})."]


def _missing(run: Run) -> list[str]:
    lines = []
    if not (run.path / FILM).is_file():
        remedy = f"; {_film_command(run)} makes one" if run.has_checkpoint else ""
        lines.append(f"There is no film of the robot ({FILM}){remedy}.")
    if not (_walks(run) or _recovers(run) or (run.path / LADDER).is_file()):
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


def _film(run: Run) -> Part:
    links = [
        page.link(file, words)
        for file, words in ((REPLAY, "Interactive replay in 3D"), ("robot.mp4", "The film as MP4"))
        if (run.path / file).is_file()
    ]
    path, film = run.path / FILM, None
    if path.is_file():
        film = page.film(path, "The trained robot, without exploring.")
    return page.group("", film, page.group("links", *links))


def _scores(run: Run) -> list[Fact]:
    if not run.evals:
        return []
    last = run.evals[-1]
    count = last.get("episodes")
    if _recovers(run):
        after = number(last.get("seconds_to_stand"), 2)
        below = f"of {count} episodes from lying, and stands at the end"
        below += f", after {after} s on average" if last.get("recovered") else ""
        return [_share(run, "gets up", "recovered", below)]
    items = [_share(run, "stays up", "survived", f"of {count} episodes to the end")]
    if not _walks(run):
        return items
    words, name, off_name, tolerance = _tracking_names(run)
    below = f"of {count} episodes: no fall, within {tolerance:g} m/s of the command"
    error, stderr = number(last.get(off_name), 2), f"{off_name}_stderr"
    unit = f"m/s {spread(last.get(stderr))}".strip()
    beside = run_page.beside(run, off_name, stderr)
    off = "; ".join(filter(None, ("mean of all episodes, after two seconds", beside)))
    return [
        _share(run, words, name, below),
        *items,
        ("off the command", error, unit, off),
    ]


def _share(run: Run, title: str, name: str, below: str) -> Fact:
    """A share of the last evaluation's episodes with its error, and that of random play."""
    rows = {"": run.evals[-1]} | run.references()
    errors = {
        who: spread(percent([share_error(row.get(name), int(row.get("episodes") or 0))])[0])
        for who, row in rows.items()
    }
    said = [
        f"{who}: {_percent(row.get(name))} {errors[who]} %"
        for who, row in rows.items()
        if who and is_number(row.get(name))
    ]
    unit = f"% {errors['']}".strip()
    return (title, _percent(rows[""].get(name)), unit, "; ".join([below, *said]))


def _push_score(rungs: Sequence[Rung]) -> list[Fact]:
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


def _line(rows: Sequence[Any], label: str, name: str, color: Any, **style: Any) -> list[Series]:
    """A line of rows of training or evaluation, as a list: empty if none has such a column."""
    values = column(rows, name)
    if not any(map(is_number, values)):
        return []
    points = run_page.thin(column(rows, "steps"), values)
    return [Series(label, *points, color=color, **style)]


def _shares(
    rows: Sequence[Any], label: str, name: str, color: Any, over: str = "steps"
) -> list[Series]:
    """A share of greedy episodes in per cent with its standard error, as a list."""
    shares = column(rows, name)
    if not any(map(is_number, shares)):
        return []
    errors = (share_error(row.get(name), int(row.get("episodes") or 0)) for row in rows)
    points = column(rows, over), percent(shares), percent(errors)
    return [with_error(f"{label} ± s.e.", *points, color=color, dots=True)]


def _chart(lines: Sequence[Series], label: str, **options: Any) -> Part:
    """A small chart; nothing if it would have no line."""
    if not lines:
        return None
    return line_chart(lines, **({"x_label": _STEPS, "y_label": label, "height": 260} | options))


def _progress(run: Run) -> Part:
    """Falls and tracking, in training and in greedy episodes."""
    trained, evals = run.metrics, run.evals
    share, zero = "% of greedy episodes", {"include_zero": True}
    words, name, *_ = _tracking_names(run)
    shares = {"gets up": "recovered"} if _recovers(run) else {"stays up": "survived"}
    shares |= {words: name} if _walks(run) else {}
    random = [
        (f"{who}, {label}", 100.0 * value)
        for label, name in shares.items()
        for who, value in run.reference_scores(name)
    ]
    by_step, by_second = (
        [
            line
            for (label, name), ink in zip(shares.items(), (_UP, _FAST), strict=False)
            for line in _shares(evals, label, name, ink, over)
        ]
        for over in ("steps", "seconds")
    )
    length = _line(trained, "training", "length", TRAINING, faint=True)
    length += _line(evals, "greedy", "length", GREEDY, dots=True)
    falls = [row | {"fell": percent([row.get("fell")])[0]} for row in trained]
    ends = "% of training episodes that end in a fall"
    apart = _line(evals, "distance", "gait_distance", _GAIT, dots=True)
    seconds = {"x_label": "seconds of training", "title": f"{share} by seconds"}
    charts = [
        _chart(by_step, share, share=True, references=random),
        _chart(by_second, share, share=True, references=random, **seconds),
        _tracking(run) if _walks(run) else None,
        _chart(length, "steps in an episode", **zero),
        None
        if _recovers(run)
        else _chart(_line(falls, "falls", "fell", TRAINING), ends, share=True),
        _chart(apart, "rad from the reference gait", **zero),
    ]
    text = "Greedy episodes do without exploration; training episodes explore."
    return page.section("Falls and speed", page.pairs(charts), text=text)


def _tracking(run: Run) -> Part:
    """How far the robot is off the speed that was asked for."""
    label = "m/s off the command"
    _, _, error, tolerance = _tracking_names(run)
    points = (column(run.evals, name) for name in ("steps", error, f"{error}_stderr"))
    greedy = with_error("mean speed of greedy episodes ± s.e.", *points, color=_FAST, dots=True)
    if any(map(is_number, greedy.y)):
        beside = [("tolerance", tolerance), *run.reference_scores(error)]
        return _chart([greedy], label, include_zero=True, references=beside)
    momentary = _line(run.metrics, "training", "error", TRAINING)
    return _chart(momentary, f"{label} when a training episode ends", include_zero=True)


def _terms(run: Run) -> Part:
    """The reward, term by term: what each came to at last, and on the way there."""
    weights = run.about.get("terms")
    if not isinstance(weights, dict):
        return None
    steps = column(run.evals, "steps")

    def weighted(part: str, name: str) -> list[float | None]:
        rows = [terms if isinstance(terms, dict) else {} for terms in column(run.evals, part)]
        weight = abs(weights[name]) if part == "terms_stderr" else weights[name]
        return [weight * v if is_number(v) else None for v in column(rows, name)]

    earned = {name: weighted("terms", name) for name in weights}
    earned = {name: values for name, values in earned.items() if any(map(is_number, values))}
    if not earned:
        return None
    errors = {name: weighted("terms_stderr", name) for name in earned}
    draw = partial(
        bar_chart,
        list(earned),
        [Bars("", _last(earned), GREEDY, _last(errors))],
        title="Reward by term",
        axis_label="reward a second, in the last evaluation ± s.e.",
    )
    courses = [
        _chart(
            [with_error(name, steps, values, errors[name], color=GREEDY, dots=True)],
            f"{name}, weight {number(weights[name])}",
            include_zero=True,
            height=200,
        )
        for name, values in earned.items()
        if len(steps) > 1
    ]
    text = (
        "What each term of the reward paid in a second of a greedy episode, weight included. Terms "
        "that reward pay at most their weight; terms that punish pay 0 at best."
    )
    return page.section("Reward, term by term", page.figure(draw), page.pairs(courses), text=text)


def _last(columns: Mapping[str, Sequence[float | None]]) -> list[float | None]:
    return [values[-1] for values in columns.values()]


def _pushes(rungs: Sequence[Rung], run: Run) -> Part:
    """The ladder of pushes: the robot beside one that only holds its home pose."""
    if not rungs:
        return None
    rows = [
        [rung.newtons, rung.milliseconds, 100.0 * rung.survived, 100.0 * rung.held]
        for rung in rungs
    ]
    labels = [f"{number(newtons)} N, {time} ms" for newtons, time, *_ in rows]
    count = int((run.evals[-1] if run.evals else {}).get("episodes") or 0)

    def bars(name: str, place: int, ink: int) -> Bars:
        shares = [row[place] for row in rows]
        errors = percent(share_error(share / 100.0, count) for share in shares)
        return Bars(name, shares, ink, errors)

    groups = [bars("this robot", 2, _UP), bars("holds its home pose", 3, _HELD)]
    label = "% of episodes without a fall ± s.e."
    draw = partial(bar_chart, labels, groups, title="Pushes", axis_label=label, share=True)
    head = ["newtons", "milliseconds", "this robot, %", "holds its home pose, %"]
    text = (
        "Pushes of fixed size from random directions, every two to three seconds of an episode. "
        "Beside the robot stands one whose servos only hold the home pose."
    )
    return page.section("Pushes", page.figure(draw), page.table(head, rows), text=text)


def _prior(run: Run) -> Part:
    """The motion prior: what style earns, and whether the judge can still tell."""
    judged = [f"prior_{side}_accuracy" for side in ("real", "fake")]
    rows = [row | {n: percent([row.get(n)])[0] for n in judged} for row in run.metrics]

    def both(name: str) -> list[Series]:
        real = _line(rows, "the reference", f"prior_real_{name}", _REFERENCE)
        return real + _line(rows, "the policy", f"prior_fake_{name}", _POLICY)

    charts = [
        _chart(_line(rows, "style", "prior_style", TRAINING), "style of a step, before its weight"),
        _chart(both("score"), "score by the discriminator"),
        _chart(both("accuracy"), "% judged rightly", share=True),
        _chart(_line(rows, "penalty", "prior_penalty", TRAINING), "gradient penalty"),
    ]
    text = (
        "A discriminator learns to tell the reference gait (1) from the policy's (0); what it "
        "takes for the reference earns a style reward. One that judges everything rightly gives "
        "the policy nothing to climb."
    )
    return page.section("Motion prior", page.pairs(charts), text=text)


# At the bottom -----------------------------------------------------------------------------------


def _again(run: Run) -> Part:
    if not run.has_checkpoint:
        return None
    film = _film_command(run)
    if _recovers(run):
        return page.section("Film it again", page.command(film))
    push = shlex.join(["worldloom", "pushes", str(run.path)])
    return page.section("Push it, and film it again", page.command(f"{push}\n{film}"))
