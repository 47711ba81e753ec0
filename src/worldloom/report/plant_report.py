"""One self-contained page about a run of a plant: returns, limits, estimates, and episodes."""

import json
import shlex
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.replay.dataset_files import read_npz
from worldloom.report import page, plant_charts, plant_episode, plant_judgement
from worldloom.report.axes import number
from worldloom.report.html import about_run, footer
from worldloom.report.plant_charts import Log, PlantFacts, of, percent, plant_facts, words
from worldloom.report.runs import Run, read_run
from worldloom.train.plant import CONSTRAINTS_FILE, COURSE_FILE, DATA_FILE, read_course
from worldloom.train.plant_evaluate import Course

JUDGEMENT_FILE = "judgement.json"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile)


def write_plant_report(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run of a plant and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(folder)
    facts, logged = plant_facts(run), _logged(run.path)
    courses, judgement = _courses(run.path), _judgement(run.path)
    title = str(run.settings.get("env") or run.path.resolve().name)
    tags = _tags(run)
    body = [
        page.header(title, tags),
        page.note("This run is not complete", _missing(run, logged, courses, judgement)),
        page.note("Mind this", _accidents(run, facts)),
        _hero(run, facts, logged),
        plant_charts.returns(run, logged),
        plant_charts.limits(run, facts, logged),
        plant_judgement.estimates(judgement, run),
        *_episodes(courses, facts),
        _constraints(run),
        _data(run, logged),
        plant_charts.inside(run),
        about_run(run),
        _commands(run),
        footer(run),
    ]
    return page.write(run.path / "report.html", page.page(" · ".join([title, *tags]), body))


# What is there -----------------------------------------------------------------------------------


def _logged(folder: Path) -> Log | None:
    """What data.npz says of itself; None if it is not there, or cannot be read."""
    try:
        columns = read_npz(folder / DATA_FILE).columns
        reward = np.asarray(columns["reward"], np.float64).ravel()
        over = (columns["terminated"] > 0) | (columns["truncated"] > 0)
        starts = np.flatnonzero(np.concatenate([[True], over.ravel()[:-1]]))
        returns = np.add.reduceat(reward, starts)
    except (*_UNREADABLE, IndexError):
        return None
    cost = columns.get("cost")
    return Log(returns, [] if cost is None else (cost > 0).mean(0).tolist())


def _courses(folder: Path) -> tuple[Course, Course] | None:
    """The bare and the filtered course of course.npz; None if there are none of use."""
    try:
        found = read_course(folder, "bare"), read_course(folder, "filtered")
    except _UNREADABLE:
        return None
    return found if all(course.alive.any() for course in found) else None


def _judgement(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / JUDGEMENT_FILE).read_text(encoding="utf-8"))
    except _UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}


def _tags(run: Run) -> list[str]:
    settings = run.settings
    data = Path(str(settings.get("dataset", ""))).stem
    return [
        str(settings.get("algo", "")),
        f"{data} data" if data else "",
        f"seed {settings.get('seed')}",
    ]


def _missing(run: Run, logged: Log | None, courses: Any, judgement: dict[str, Any]) -> list[str]:
    planned, played, lines = run.settings.get("epochs"), len(run.metrics), []
    if not played:
        lines.append("No epoch has been written yet (metrics.jsonl is empty or missing).")
    elif isinstance(planned, int) and played < planned:
        lines.append(f"{played} of {planned} epochs: it was stopped, or is still running.")
    if not run.evals:
        lines.append("The policy has not been tried in the plant yet (eval.jsonl): no returns.")
    files = [
        (COURSE_FILE, courses is not None, "no margins over time"),
        (CONSTRAINTS_FILE, (run.path / CONSTRAINTS_FILE).is_file(), "no constraints to show"),
        (DATA_FILE, logged is not None, "the return of the data is not shown"),
    ]
    if run.settings.get("judge_updates", 1):
        files.append((JUDGEMENT_FILE, bool(judgement), "no off-policy estimate"))
    for name, read, lost in files:
        if not read:
            what = "cannot be read" if (run.path / name).exists() else "is not there"
            lines.append(f"{name} {what}: {lost}.")
    return lines + sorted(set(run.unreadable))


def _accidents(run: Run, facts: PlantFacts) -> list[str]:
    """What somebody who ships this policy must know."""
    if not run.evals:
        return []
    shipped, lines = of(run.evals[-1], "filtered"), []
    for limit, share in zip(facts.limits, shipped.get("violated") or (), strict=False):
        if limit.get("hard") and share:
            lines.append(
                f"Behind the filter the hard limit {words(limit['name'])} was still crossed in "
                f"{percent(share)} % of the steps: the filter cannot undo what is under way, and "
                "knows its model of the plant, not what disturbs it. Leave it more room, or let it "
                "look further ahead."
            )
    emergencies = shipped.get("emergencies") or 0.0
    if emergencies > 0.05:
        lines.append(
            f"The emergency action was executed in {percent(emergencies)} % of the steps; after "
            "several in a row it stays until somebody resets it. The return behind the filter is "
            "then that of the emergency action."
        )
    return lines


# At the top --------------------------------------------------------------------------------------


def _hero(run: Run, facts: PlantFacts, logged: Log | None) -> str:
    items = _scores(run, facts) if run.evals else []
    if logged is not None:
        best = f"of {len(logged.returns):,} episodes; the best {number(logged.returns.max())}"
        items.insert(2 if run.evals else 0, ("return, logged data", number(logged.mean), "", best))
    timing = run.timing
    if timing.get("train_seconds"):
        told = f"{page.shown(timing.get('updates'))} updates"
        if timing.get("updates_per_second"):
            told += f", {number(timing['updates_per_second'])} a second"
        items.append(("training time", number(timing["train_seconds"]), "s", told))
    content = page.facts(items)
    return f'<div class="hero">{content}</div>' if content else ""


def _scores(run: Run, facts: PlantFacts) -> list[tuple[str, str, str, str]]:
    last = run.evals[-1]
    filtered, bare = of(last, "filtered"), of(last, "bare")
    count = run.settings.get("eval_episodes")
    items = []
    for name, row, told in (
        ("return, behind the filter", filtered, f"as it is shipped; mean of {count} episodes"),
        ("return, bare policy", bare, "from the same starts, nothing in between"),
    ):
        error = row.get("return_stderr")
        unit = "" if error is None else f"± {number(error, 2)}"
        items.append((name, number(row.get("return")), unit, told))
    if last.get("score") is not None:
        told = "of the bare policy; 0 and 100 as NeoRL-2 has them"
        items.append(("normalised score", number(last["score"]), "", told))
    items.append((
        "filter acts in", percent(filtered.get("interventions")), "% of steps",
        f"in {percent(filtered.get('emergencies'))} % by the emergency action",
    ))  # fmt: skip
    hard = [i for i, limit in enumerate(facts.limits) if limit.get("hard")]
    with_filter, without = (_most(row.get("violated"), hard) for row in (filtered, bare))
    if with_filter is not None:
        told = f"the one crossed most, behind the filter; {percent(without)} % without it"
        items.append(("hard limit crossed", percent(with_filter), "% of steps", told))
    return items


def _most(shares: Any, chosen: Sequence[int]) -> float | None:
    """The largest of the chosen shares; None if there is none."""
    known = [shares[i] for i in chosen if i < len(shares or ()) and shares[i] is not None]
    return max(known, default=None)


# Episodes ----------------------------------------------------------------------------------------


def _episodes(courses: tuple[Course, Course] | None, facts: PlantFacts) -> list[str]:
    """Margins over time, then signals and actuators, of the episode that tells most."""
    if courses is None:
        return []
    bare, filtered = courses
    episode, why = plant_episode.busiest_episode(filtered), "the filter has most to do"
    if episode is None:
        episode = plant_episode.closest_episode(bare, facts)
        why = "the bare policy comes closest to a hard limit; the filter never acts"
    margins = (
        f"Lines: the episode in which {why}. Bands: all {bare.alive.shape[1]} episodes that were "
        "kept. Below the dashed line the limit is crossed. Shades: steps in which the filter "
        "changed what the policy wanted, or executed the emergency action. A line ends where the "
        "plant was lost."
    )
    signals = "The same episode: what was measured and what was done, bare and behind the filter."
    parts = (
        ("Margins over time", plant_episode.margins, margins),
        ("Signals and actuators", plant_episode.signals, signals),
    )
    return [
        page.section(title, draw(bare, filtered, facts, episode), text=text)
        for title, draw, text in parts
    ]


# What it was held to, and what it learned from ---------------------------------------------------


def _constraints(run: Run) -> str:
    path = run.path / CONSTRAINTS_FILE
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    given = run.about.get("rows")
    count = len(given) if isinstance(given, list) else 0
    said = f"What the filter holds every action to, in physical units ({CONSTRAINTS_FILE})"
    said += f": {count} rows in all, those of the actuators' ranges among them." if count else "."
    return page.section("Constraints in force", page.command(text.strip()), text=said)


def _data(run: Run, logged: Log | None) -> str:
    told = run.about.get("data")
    told = dict(told) if isinstance(told, dict) else {}
    provenance = told.pop("provenance", None)
    values = told | (provenance if isinstance(provenance, dict) else {})
    if not values and logged is None:
        return ""
    if logged is not None:
        returns = logged.returns
        values["return of an episode"] = (
            f"{number(logged.mean, 4)} ± {number(returns.std(), 2)}, from "
            f"{number(returns.min(), 4)} to {number(returns.max(), 4)}"
        )
    parts = [f'<div class="columns"><div>{page.settings(values)}</div></div>']
    if (run.path / DATA_FILE).is_file():
        describe = ["worldloom", "data", "describe", str(run.path / DATA_FILE)]
        parts += ["<h3>Look into it</h3>", page.command(shlex.join(describe))]
    return page.section("What it learned from", *parts)


def _commands(run: Run) -> str:
    command, folder = run.about.get("command"), str(run.path)
    parts = ["<h3>The same run again</h3>" + page.command(str(command))] if command else []
    if run.has_checkpoint:
        planned = run.settings.get("epochs")
        resume = ["worldloom", "train", "--resume", folder]
        if isinstance(planned, int) and len(run.metrics) >= planned:
            resume += ["--epochs", str(2 * planned)]  # it is done: going on means going further
        several: Sequence[tuple[str, list[str]]] = (
            ("Go on from its last checkpoint", resume),
            ("Try it in the plant again", ["worldloom", "eval", folder]),
            ("Ship it with its filter", ["worldloom", "export", folder]),
        )
        parts += [f"<h3>{name}</h3>{page.command(shlex.join(line))}" for name, line in several]
    return page.section("Do it again", *parts)
