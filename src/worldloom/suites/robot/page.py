"""The report of a run of the robot: film, learning curves, reward by term, and pushes."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worldloom.report import page, run_page
from worldloom.report.axes import number
from worldloom.report.runs import Run, read_run
from worldloom.suites.robot import charts
from worldloom.suites.robot.charts import Rung, milliseconds, walks
from worldloom.suites.robot.evaluate import COMMANDS, TOLERANCE

FILM, REPLAY, LADDER = "robot.gif", "replay.html", "ladder.json"
_ENGINES = {"CEngine": "C engine", "MjxEngine": "MJX", "LoopEngine": "MuJoCo in a loop"}


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
            charts.learning(run),
            charts.terms(run),
            charts.pushes(rungs),
            charts.inside(run),
            charts.prior(run),
            _again(run),
        ],
        tags=_tags(run),
        missing=[*_missing(run), *broken],
    )


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
        rungs: list[Rung] = [
            {name: float(rung[name]) for name in ("newtons", "steps", "survived", "held")}
            for rung in json.loads(path.read_text(encoding="utf-8"))
        ]
    except (ValueError, KeyError, TypeError) as error:
        return [], [f"{LADDER} cannot be read ({type(error).__name__}: {error})."]
    return rungs, []


def _missing(run: Run) -> list[str]:
    lines = []
    if not (run.path / FILM).is_file():
        again = shlex.join(["worldloom", "eval", str(run.path), "--gif", str(run.path / FILM)])
        remedy = f"; {again} makes one" if run.has_checkpoint else ""
        lines.append(f"There is no film of the robot ({FILM}){remedy}.")
    if not walks(run) and not (run.path / LADDER).is_file():
        lines.append(f"The ladder of pushes has not been climbed ({LADDER}).")
    return lines


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
    path = run.path / FILM
    if not path.is_file():
        return f"<div>{below}</div>" if below else ""
    film = run_page.film_figure(path, "The trained robot, without exploring.")
    return f"<div>{film}{below}</div>"


def _scores(run: Run) -> list[run_page.Fact]:
    if not run.evals:
        return []
    last = run.evals[-1]
    count = last.get("episodes")
    below = f"of {count} episodes to the end, without exploring"
    items = [("stays up", _percent(last.get("survived")), "%", below)]
    if not walks(run):
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
    taken = [rung for rung in rungs if rung["survived"] >= 0.9]
    if not taken:
        return []
    best = max(taken, key=lambda rung: rung["newtons"] * rung["steps"])
    below = f"for {milliseconds(best)} ms, again and again; {_percent(best['held'])} % stay up "
    below += "if it only holds its pose"
    return [("takes pushes of", number(best["newtons"]), "N", below)]


def _percent(share: Any) -> str:
    return number(None if share is None else 100.0 * share)


# At the bottom -----------------------------------------------------------------------------------


def _again(run: Run) -> str:
    if not run.has_checkpoint:
        return ""
    film = ["worldloom", "eval", str(run.path), "--gif", str(run.path / FILM)]
    push = ["worldloom", "pushes", str(run.path)]
    commands = "\n".join(shlex.join(words) for words in (push, film))
    return page.section("Push it, and film it again", page.command(commands))
