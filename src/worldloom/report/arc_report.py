"""One self-contained page about a run on ARC: curves, every task, and episodes."""

import csv
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.envs.arc.tasks import Task
from worldloom.envs.arc.types import Rules
from worldloom.report import page
from worldloom.report.arc import Shot, episode_svg
from worldloom.report.arc_sheet import arrow, beside, cells
from worldloom.report.axes import number
from worldloom.report.colors import series_color
from worldloom.report.html import about_run, footer, thin
from worldloom.report.plots import Series, line_chart
from worldloom.report.runs import Run, read_run
from worldloom.report.svg import chart
from worldloom.train.arc_config import read_tasks

EPISODES_FILE = "episodes.json"
_CELLS = 60_000  # drawn in the table of tasks at most: about a megabyte
_SIDE = 60  # pixels of a grid in that table

_RATES = {  # of an evaluation, as columns for people
    "demo_pairs": "demo pairs",
    "demo_tasks": "demo tasks",
    "demo_pass_at_1": "demo pass@1",
    "demo_pass_at_k": "demo pass@k",
    "test_pairs": "test pairs",
    "test_tasks": "test tasks",
    "test_pass_at_1": "test pass@1",
    "test_pass_at_k": "test pass@k",
}


def write_arc_report(run_dir: str | Path) -> Path:
    """Writes `report.html` into the folder of a run on ARC and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(run_dir)
    settings = run.settings
    missing: list[str] = _missing(run)
    try:
        found = read_tasks(run.path)
        tasks, named = {task.name: task for task in found}, f"{len(found)} tasks of {found.name}"
    except ValueError as error:
        tasks, named, missing = {}, str(settings.get("tasks")), [*missing, str(error)]
    tags = [named, str(settings.get("algo")), f"seed {settings.get('seed')}"]
    rows = _task_rows(run.path)
    body = [
        page.header("arc", tags),
        page.note("This run is not complete", missing),
        _hero(run, rows),
        _learning(run),
        _scores(run),
        _tasks(rows, tasks, run),
        _episodes(run),
        _inside(run),
        about_run(run),
        _commands(run),
        footer(run),
    ]
    return page.write(run.path / "report.html", page.page(" · ".join(["arc", *tags]), body))


# What is there -----------------------------------------------------------------------------------


def _learns(run: Run) -> bool:
    return run.settings.get("algo") == "ppo"


def _planned(run: Run) -> int:
    """The updates that the run is to make."""
    updates, steps = run.settings.get("updates"), run.settings.get("steps")
    if isinstance(steps, int):
        return math.ceil(steps / _steps_of(run, 1))
    return updates if isinstance(updates, int) and _learns(run) else 0


def _missing(run: Run) -> list[str]:
    planned, played, lines = _planned(run), len(run.metrics), []
    if _learns(run) and not played:
        lines.append("No update has been written yet (metrics.jsonl is empty or missing).")
    elif played < planned:
        lines.append(f"{played} of {planned} updates: it was stopped, or is still running.")
    if not run.evals:
        lines.append("The agent has not been evaluated yet (eval.jsonl): no solve rate.")
    if not (run.path / EPISODES_FILE).is_file():
        lines.append(f"There are no recorded episodes ({EPISODES_FILE}).")
    return lines + sorted(set(run.unreadable))


def _task_rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "tasks.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return list(csv.DictReader(file))


def _percent(value: Any) -> float | None:
    finite = isinstance(value, int | float) and math.isfinite(value)
    return 100.0 * value if finite else None


def _hero(run: Run, rows: Sequence[Mapping[str, str]]) -> str:
    items = []
    if run.evals:
        last = run.evals[-1]
        whole = sum(row.get("solved") == "True" for row in rows)
        for name, group in (("demonstrations solved", "demo"), ("test pairs solved", "test")):
            told = f"{whole} of {len(rows)} tasks with all of them" if group == "demo" else ""
            if last.get("k"):
                told += "; " if told else ""
                told += f"pass@{last['k']} {number(_percent(last.get(f'{group}_pass_at_k')))} %"
            value = _percent(last.get(f"{group}_pairs"))
            items.append((name, "none" if value is None else number(value), "%", told))
    timing = run.timing
    if timing.get("train_seconds"):
        steps = f"{page.shown(timing.get('steps'))} steps"
        items.append(("training time", number(timing["train_seconds"]), "s", steps))
        speed = number(timing.get("steps_per_second"))
        items.append(("speed", speed, "steps/s", "playing and learning"))
        compiled = number(timing.get("compile_seconds"))
        items.append(("compilation", compiled, "s", "not part of the training time"))
    content = page.facts(items)
    return f'<div class="hero">{content}</div>' if content else ""


# Charts ------------------------------------------------------------------------------------------


def _references(run: Run) -> list[tuple[str, float]]:
    given = run.about.get("references")
    named = given.items() if isinstance(given, dict) else ()
    rates = [(name, _percent(rates.get("demo_pairs"))) for name, rates in named]
    return [(f"{name}, demonstrations", rate) for name, rate in rates if rate is not None]


def _steps_of(run: Run, update: int) -> float:
    ppo = run.settings.get("ppo") or {}
    return update * ppo.get("num_worlds", 1) * ppo.get("unroll_length", 1)


def _learning(run: Run) -> str:
    if not _learns(run) or not (run.metrics or run.evals):
        return ""
    steps = [_steps_of(run, row["update"]) for row in run.evals]
    seconds = [row.get("seconds") for row in run.evals]
    demos = [_percent(row.get("demo_pairs")) for row in run.evals]
    tests = [_percent(row.get("test_pairs")) for row in run.evals]
    played = [row.get("steps", 0) for row in run.metrics]
    solved = thin(played, [_percent(row.get("solved")) for row in run.metrics])
    paid = thin(played, [row.get("return") for row in run.metrics])
    ink = [f"var(--wl-{i + 1},{series_color(i)})" for i in range(3)]

    def draw(width: int) -> str:
        lines = [
            Series("demonstrations, greedy", steps, demos, color=ink[0], dots=True),
            Series("test pairs, greedy", steps, tests, color=ink[1], dots=True),
            Series("training episodes", *solved, color=ink[2], faint=True),
        ]
        return line_chart(
            lines, title="Learning curve", x_label="steps", y_label="% solved",
            references=_references(run), include_zero=True, width=width,
            height=340 if width > page.HALF else 300,
        )  # fmt: skip

    by_time = line_chart(
        [
            Series("demonstrations", seconds, demos, color=ink[0], dots=True),
            Series("test pairs", seconds, tests, color=ink[1], dots=True),
        ],
        title="Solved by seconds of training", x_label="seconds of training",
        y_label="% solved", include_zero=True, width=page.HALF, height=260,
    )  # fmt: skip
    returns = line_chart(
        [Series("return", *paid, color=ink[2])], title="Return", x_label="steps",
        y_label="return of training episodes", width=page.HALF, height=260,
    )  # fmt: skip
    caption = (
        "Every pair is played once with the likeliest actions; an episode is solved by a correct "
        "submission. Test pairs are never trained on. Training episodes explore."
    )
    return page.section("Learning", page.figure(draw, caption), page.pairs([by_time, returns]))


def _inside(run: Run) -> str:
    charts = []
    wanted = {
        "entropy": "entropy of the policy",
        "explained_variance": "returns explained by the values",
        "kl": "how far an update moves the policy (KL)",
        "length": "steps in a training episode",
    }
    for i, (name, label) in enumerate(wanted.items()):
        values = [row.get(name) for row in run.metrics]
        if not any(v is not None and math.isfinite(v) for v in values):
            continue
        x, y = thin([row.get("steps", 0) for row in run.metrics], values)
        color = f"var(--wl-{i + 1},{series_color(i)})"
        charts.append(
            line_chart(
                [Series(name, x, y, color=color)], title=label, x_label="steps", y_label=label,
                include_zero=name == "entropy", width=page.HALF, height=230,
            )
        )  # fmt: skip
    return page.section("Inside the learner", page.pairs(charts))


# Tables ------------------------------------------------------------------------------------------


def _scores(run: Run) -> str:
    """Every rate of the last evaluation, beside those of agents that learn nothing."""
    given = run.about.get("references")
    agents = dict(given) if isinstance(given, dict) else {}
    if run.evals:
        algo = str(run.settings.get("algo"))
        own = {"random": "random play", "greedy": "greedy editor"}.get(algo, algo)
        agents = {own: run.evals[-1]} | {n: rates for n, rates in agents.items() if n != own}
    if not agents:
        return ""
    names = [name for name in _RATES if any(name in rates for rates in agents.values())]
    k = run.evals[-1].get("k") if run.evals else None
    head = ["% solved", *(_RATES[name].replace("@k", f"@{k}") for name in names)]
    rows = [[agent, *(_percent(rates.get(n)) for n in names)] for agent, rates in agents.items()]
    text = (
        "Pairs: the share that is solved. Tasks: the share of tasks all of whose pairs are. "
        "pass@k: solved in at least one of k sampled episodes."
    )
    if "greedy editor" in agents:
        text += (
            " The greedy editor knows the answer: what it leaves unsolved, the rules do not allow "
            "in the time."
        )
    return page.section("Scores", page.table(head, rows), text=text)


def _tasks(rows: Sequence[Mapping[str, str]], tasks: Mapping[str, Task], run: Run) -> str:
    """A line for each task: its first demonstration, and how many of its pairs are solved."""
    if not rows:
        return ""
    k = run.evals[-1].get("k") if run.evals else 0
    head = ["task", "first demonstration", "demonstrations", "test pairs", "steps"]
    lines, drawn = [], 0
    for row in rows:
        task, picture = tasks.get(row.get("task", "")), ""
        if task is not None and drawn < _CELLS:
            pair = task.demos[0]
            drawn += pair.input.size + pair.output.size
            picture = _small(pair.input, pair.output, task.name)
        name = escape(row.get("task", ""))
        mark = " ✓" if row.get("solved") == "True" else ""
        counts = []
        for group in ("demos", "tests"):
            told = f"{row.get(f'{group}_solved')} of {row.get(group)}"
            if k and row.get(f"{group}_solved_in_k"):
                told += f'<br><span class="soft">{row[f"{group}_solved_in_k"]} in {k} tries</span>'
            counts.append(told)
        steps = row.get("steps") or ""
        values = [f"{name}<strong>{mark}</strong>", picture, *counts, steps[:4]]
        # Names break anywhere, and so leave the room that counts need to stay in one piece.
        wraps = ["overflow-wrap:anywhere;min-width:7rem", *["white-space:nowrap"] * 4]
        columns = zip(wraps, values, strict=True)
        shown = "".join(f'<td style="{wrap}">{value}</td>' for wrap, value in columns)
        lines.append(f"<tr>{shown}</tr>")
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    table = (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}'
        "</tbody></table></div>"
    )
    text = (
        "Solved pairs of each task, greedily and in any of the sampled episodes. A check marks "
        "tasks all of whose demonstrations are solved. Steps: of a greedy episode, on average."
    )
    return page.section("Task by task", table, text=text)


def _small(before: np.ndarray, after: np.ndarray, name: str) -> str:
    cell = max(1, min(12, _SIDE // max(*before.shape, *after.shape)))
    block = beside([cells(before, cell), arrow(16), cells(after, cell)], 8, "middle")
    marks = [mark.svg() for mark in block.moved(1, 1)]
    return chart(marks, block.width + 2, block.height + 2, f"first demonstration of {name}")


# Episodes ----------------------------------------------------------------------------------------


def _episodes(run: Run) -> str:
    """Recorded episodes, drawn from input to answer."""
    path = run.path / EPISODES_FILE
    if not path.is_file():
        return ""
    try:
        rules = (run.settings.get("world") or {}).get("rules", "edit")
        episodes = json.loads(path.read_text(encoding="utf-8"))
        drawn = [_episode(episode, rules) for episode in episodes]
    except (ValueError, KeyError, TypeError) as error:
        return page.note("Before you read on", [f"{EPISODES_FILE} cannot be read ({error})"])
    text = "What the agent does by itself, without exploring: each operation, and where."
    return page.section("Episodes", *drawn, text=text)


def _episode(episode: Mapping[str, Any], rules: Rules) -> str:
    shots = [_shot(shot, rules) for shot in episode["shots"]]
    title = f"{episode['task']}, {episode['pair']}"

    def draw(width: int) -> str:
        return episode_svg(
            shots, input=np.array(episode["input"]), target=np.array(episode["target"]),
            solved=bool(episode["solved"]), title=title, width=width, limit=16,
        )  # fmt: skip

    return page.figure(draw)


def _shot(plain: Mapping[str, Any], rules: Rules) -> Shot:
    grid, selected = np.array(plain["grid"], int), None
    if plain["cells"] is not None:
        points = np.array(plain["cells"], int).reshape(-1, 2)
        selected = np.zeros(np.maximum(grid.shape, points.max(axis=0, initial=0) + 1), bool)
        selected[points[:, 0], points[:, 1]] = True
    return Shot(grid, plain["operation"], selected, plain["valid"], rules)


def _commands(run: Run) -> str:
    command = run.about.get("command")
    parts = ["<h3>The same run again</h3>" + page.command(str(command))] if command else []
    if _learns(run) and run.has_checkpoint:
        resume = ["worldloom", "train", "--resume", str(run.path)]
        if len(run.metrics) >= _planned(run):  # it is done: going on means going further
            given = "steps" if run.settings.get("steps") else "updates"
            resume += [f"--{given}", str(2 * run.settings[given])]
        parts.append("<h3>Go on from its last checkpoint</h3>")
        parts.append(page.command(shlex.join(resume)))
    parts.append("<h3>Score it again</h3>")
    parts.append(page.command(shlex.join(["worldloom", "eval", str(run.path), "--tasks"])))
    return page.section("Do it again", *parts)
