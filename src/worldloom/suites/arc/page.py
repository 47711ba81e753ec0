"""One self-contained page about a run on ARC: curves, every task, and episodes."""

import csv
import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.report import page, run_page
from worldloom.report.axes import number
from worldloom.report.plots import Series, line_chart
from worldloom.report.run_page import thin
from worldloom.report.runs import Run, column, is_number, read_run
from worldloom.report.svg import chart, color
from worldloom.suites.arc.draw import Shot, episode_svg
from worldloom.suites.arc.sheet import arrow, beside, cells
from worldloom.suites.arc.tasks import Task
from worldloom.suites.arc.taskset import read_tasks
from worldloom.suites.arc.types import Rules

EPISODES_FILE = "episodes.json"
TASKS_FILE = "tasks.json"  # a run's own copy of its tasks
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


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run on ARC and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(folder)
    missing: list[str] = []
    try:
        kept = read_tasks(run.path / TASKS_FILE)
        tasks, name = {task.name: task for task in kept}, f"{len(kept)} tasks of {kept.name}"
    except ValueError as error:
        tasks, name, missing = {}, str(run.settings.get("tasks")), [str(error)]
    if not (run.path / EPISODES_FILE).is_file():
        missing.append(f"There are no recorded episodes ({EPISODES_FILE}).")
    rows = _task_rows(run.path)
    return run_page.write_page(
        run,
        hero=_hero(run, rows),
        sections=[
            _learning(run),
            _scores(run),
            _tasks(rows, tasks, run),
            _episodes(run),
            run_page.inside(run),
        ],
        tags=[name],
        missing=missing,
    )


# What is there -----------------------------------------------------------------------------------


def _task_rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "tasks.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        return list(csv.DictReader(file))


def _percent(value: Any) -> float | None:
    return 100.0 * value if is_number(value) else None


def _hero(run: Run, rows: Sequence[Mapping[str, str]]) -> str:
    items: list[run_page.Fact] = []
    if run.evals:
        last = run.evals[-1]
        whole = sum(row.get("solved") == "True" for row in rows)
        for name, group in (("demonstrations solved", "demo"), ("test pairs solved", "test")):
            below = [f"{whole} of {len(rows)} tasks with all of them"] if group == "demo" else []
            if last.get("k"):
                rate = number(_percent(last.get(f"{group}_pass_at_k")))
                below.append(f"pass@{last['k']} {rate} %")
            value = _percent(last.get(f"{group}_pairs"))
            shown = "none" if value is None else number(value)
            items.append((name, shown, "%", "; ".join(below)))
    times = [fact for fact in run_page.facts(run) if fact[0] not in ("greedy score",)]
    return run_page.hero([*items, *times])


# Charts ------------------------------------------------------------------------------------------


def _references(run: Run) -> list[tuple[str, float]]:
    given = run.about.get("references")
    named = given.items() if isinstance(given, dict) else ()
    rates = [(name, _percent(rates.get("demo_pairs"))) for name, rates in named]
    return [(f"{name}, demonstrations", rate) for name, rate in rates if rate is not None]


def _learning(run: Run) -> str:
    if not (run.metrics or run.evals):
        return ""
    demos = [_percent(value) for value in column(run.evals, "demo_pairs")]
    tests = [_percent(value) for value in column(run.evals, "test_pairs")]
    solved = thin(run.column("steps"), [_percent(x) for x in run.column("solved")])
    returns = thin(run.column("steps"), run.column("return"))

    def greedy(x: str, extra: str = "") -> list[Series]:
        named = (("demonstrations", demos), ("test pairs", tests))
        return [
            Series(name + extra, column(run.evals, x), y, color=color(i), dots=True)
            for i, (name, y) in enumerate(named)
        ]

    def draw(width: int) -> str:
        return line_chart(
            [
                *greedy("steps", ", greedy"),
                Series("training episodes", *solved, color=color(2), faint=True),
            ],
            title="Learning curve",
            x_label="steps",
            y_label="% solved",
            references=_references(run),
            include_zero=True,
            width=width,
            height=340 if width > page.HALF else 300,
        )

    by_time = line_chart(
        greedy("seconds"),
        title="Solved by seconds of training",
        x_label="seconds of training",
        y_label="% solved",
        include_zero=True,
        width=page.HALF,
        height=260,
    )
    by_step = line_chart(
        [Series("return", *returns, color=color(2))],
        title="Return",
        x_label="steps",
        y_label="return of training episodes",
        width=page.HALF,
        height=260,
    )
    caption = (
        "Every pair is played once with the likeliest actions; an episode is solved by a correct "
        "submission. Test pairs are never trained on. Training episodes explore."
    )
    return page.section("Learning", page.figure(draw, caption), page.pairs([by_time, by_step]))


# Tables ------------------------------------------------------------------------------------------


def _scores(run: Run) -> str:
    """Every rate of the last evaluation, beside those of agents that learn nothing."""
    given = run.about.get("references")
    agents = dict(given) if isinstance(given, dict) else {}
    if run.evals:
        agents = {str(run.settings.get("algo")): run.evals[-1]} | agents
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
    again = page.command(shlex.join(["worldloom", "arc", "scores", str(run.path)]))
    return page.section("Scores", page.table(head, rows), again, text=text)


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
            text = f"{row.get(f'{group}_solved')} of {row.get(group)}"
            if k and row.get(f"{group}_solved_in_k"):
                text += f'<br><span class="soft">{row[f"{group}_solved_in_k"]} in {k} tries</span>'
            counts.append(text)
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
            shots,
            input=np.array(episode["input"]),
            target=np.array(episode["target"]),
            solved=bool(episode["solved"]),
            title=title,
            width=width,
            limit=16,
        )

    return page.figure(draw)


def _shot(plain: Mapping[str, Any], rules: Rules) -> Shot:
    grid, selected = np.array(plain["grid"], int), None
    if plain["cells"] is not None:
        points = np.array(plain["cells"], int).reshape(-1, 2)
        selected = np.zeros(np.maximum(grid.shape, points.max(axis=0, initial=0) + 1), bool)
        selected[points[:, 0], points[:, 1]] = True
    return Shot(grid, plain["operation"], selected, plain["valid"], rules)
