"""One self-contained page about a run of the robot: film, curves, reward by term, and pushes."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worldloom.report import page, robot_charts
from worldloom.report.axes import number
from worldloom.report.html import about_run, film_figure, footer
from worldloom.report.robot_charts import Rung, milliseconds, steps_of, walks
from worldloom.report.runs import Run, read_run
from worldloom.train.robot_evaluate import COMMANDS, TOLERANCE

FILM, REPLAY, LADDER = "robot.gif", "replay.html", "ladder.json"
_ENGINES = {"CEngine": "C engine", "MjxEngine": "MJX", "LoopEngine": "MuJoCo in a loop"}


def write_robot_report(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run of the robot and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(folder)
    rungs, broken = _ladder(run.path)
    name, tags = _name(run), _tags(run)
    body = [
        page.header(name, tags),
        page.note("This run is not complete", [*_missing(run), *broken]),
        page.note("Mind this", _accidents(run)),
        _hero(run, rungs),
        robot_charts.learning(run),
        robot_charts.terms(run),
        robot_charts.pushes(rungs),
        robot_charts.inside(run),
        robot_charts.prior(run),
        about_run(_without_idle_settings(run)),
        _commands(run),
        footer(run),
    ]
    return page.write(run.path / "report.html", page.page(" · ".join([name, *tags]), body))


# What is there -----------------------------------------------------------------------------------


def _name(run: Run) -> str:
    robot = run.settings.get("robot")
    return Path(robot).stem if isinstance(robot, str) else "biped"


def _tags(run: Run) -> list[str]:
    settings, engine = run.settings, str(run.about.get("engine", ""))
    if settings.get("level") == 1:
        engine = "LoopEngine"  # what is kept is the engine of evaluations, its equal
    return [
        str(settings.get("task", "")),
        f"level {settings.get('level')}",
        _ENGINES.get(engine, engine),
        f"seed {settings.get('seed')}",
    ]


def _planned(run: Run) -> int:
    """The updates that the run is to make."""
    updates, steps = run.settings.get("updates"), run.settings.get("steps")
    if isinstance(steps, int):
        return math.ceil(steps / steps_of(run, 1))
    return updates if isinstance(updates, int) else 0


def _ladder(folder: Path) -> tuple[list[Rung], list[str]]:
    """The rungs of ladder.json, and what is wrong with it in words."""
    path = folder / LADDER
    if not path.is_file():
        return [], []
    try:
        rungs: list[Rung] = [
            {name: float(rung[name]) for name in ("newtons", "steps", "survived", "held")}
            for rung in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (ValueError, KeyError, TypeError) as error:
        return [], [f"{LADDER} cannot be read ({type(error).__name__}: {error})."]
    return rungs, []


def _missing(run: Run) -> list[str]:
    planned, played, lines = _planned(run), len(run.metrics), []
    if not played:
        lines.append("No update has been written yet (metrics.jsonl is empty or missing).")
    elif played < planned:
        lines.append(f"{played} of {planned} updates: it was stopped, or is still running.")
    if not run.evals:
        lines.append("The policy has not been evaluated yet (eval.jsonl): no greedy episodes.")
    if not (run.path / FILM).is_file():
        again = shlex.join(["worldloom", "eval", str(run.path), "--video"])
        remedy = f"; {again} makes one" if run.has_checkpoint else ""
        lines.append(f"There is no film of the robot ({FILM}){remedy}.")
    if not walks(run) and not (run.path / LADDER).is_file():
        lines.append(f"The ladder of pushes has not been climbed ({LADDER}).")
    return lines + sorted(set(run.unreadable))


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


def _hero(run: Run, rungs: Sequence[Rung]) -> str:
    """The film of the robot beside the headline numbers."""
    items = [*_scores(run), *_push_score(rungs)]
    timing = run.timing
    if timing.get("train_seconds"):
        minutes = timing["train_seconds"] / 60.0
        steps = f"{page.shown(timing.get('steps'))} steps of control"
        items.append(("training time", number(minutes), "min", steps))
        speed = number(timing.get("steps_per_second"))
        items.append(("speed", speed, "steps/s", "playing and learning"))
    if timing.get("compile_seconds") is not None:
        compiled = number(timing["compile_seconds"])
        items.append(("compilation", compiled, "s", "not part of the training time"))
    content = _film(run) + page.facts(items)
    return f'<div class="hero">{content}</div>' if content else ""


def _film(run: Run) -> str:
    links = [
        f'<a href="{file}" style="color:var(--accent)">{words}</a>'
        for file, words in ((REPLAY, "Interactive replay in 3D"), ("robot.mp4", "the film as MP4"))
        if (run.path / file).is_file()
    ]
    below = f'<p class="soft">{", ".join(links)}</p>' if links else ""
    path = run.path / FILM
    if not path.is_file():
        return f"<div>{below}</div>" if below else ""
    return f"<div>{film_figure(path, 'The trained robot, without exploring.')}{below}</div>"


def _scores(run: Run) -> list[tuple[str, str, str, str]]:
    if not run.evals:
        return []
    last, count = run.evals[-1], run.settings.get("eval_episodes")
    items = []
    if walks(run):
        low, high = COMMANDS
        told = f"of {count} episodes at {low:g} to {high:g} m/s: no fall, within {TOLERANCE:g} m/s"
        items.append(("as fast as asked", _percent(last.get("good")), "%", told))
    told = f"of {count} episodes to the end, without exploring"
    items.append(("stays up", _percent(last.get("survived")), "%", told))
    if walks(run):
        told = "mean of all episodes, after two seconds"
        items.append(("off the command", number(last.get("error"), 2), "m/s", told))
    return items


def _push_score(rungs: Sequence[Rung]) -> list[tuple[str, str, str, str]]:
    taken = [rung for rung in rungs if rung["survived"] >= 0.9]
    if not taken:
        return []
    best = max(taken, key=lambda rung: rung["newtons"] * rung["steps"])
    told = f"for {milliseconds(best)} ms, again and again; {_percent(best['held'])} % stay up "
    told += "if it only holds its pose"
    return [("takes pushes of", number(best["newtons"]), "N", told)]


def _percent(share: Any) -> str:
    return number(None if share is None else 100.0 * share)


# At the bottom -----------------------------------------------------------------------------------


def _commands(run: Run) -> str:
    command, folder = run.about.get("command"), str(run.path)
    parts = ["<h3>The same run again</h3>" + page.command(str(command))] if command else []
    if run.has_checkpoint:
        resume = ["worldloom", "train", "--resume", folder]
        if len(run.metrics) >= _planned(run):  # it is done: going on means going further
            given = "steps" if run.settings.get("steps") else "updates"
            resume += [f"--{given}", str(2 * run.settings[given])]
        parts.append("<h3>Go on from its last checkpoint</h3>")
        parts.append(page.command(shlex.join(resume)))
        parts.append("<h3>Push it, and film it again</h3>")
        score = ["worldloom", "eval", folder, "--pushes", "--video"]
        parts.append(page.command(shlex.join(score)))
    return page.section("Do it again", *parts)
