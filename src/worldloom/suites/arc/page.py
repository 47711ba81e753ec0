"""One self-contained page about a run on ARC: curves, every task, and episodes."""

import csv
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.report import page, run_page
from worldloom.report.axes import number
from worldloom.report.page import Fact, Part
from worldloom.report.plots import Series, line_chart, with_error
from worldloom.report.run_page import TRAINING, percent, share_error, spread, thin
from worldloom.report.runs import Run, column, read_run
from worldloom.suites.arc.draw import Shot, episode_picture
from worldloom.suites.arc.games.page import write_report as write_game_report
from worldloom.suites.arc.sheet import arrow, beside, cells
from worldloom.suites.arc.suite import TASKS
from worldloom.suites.arc.tasks import Task, read_tasks
from worldloom.suites.arc.types import Rules

EPISODES_FILE = "episodes.json"
TASKS_FILE = "tasks.json"  # a run's own copy of its tasks
_CELLS = 60_000  # drawn in the table of tasks at most: about a megabyte
_SIDE = 60  # pixels of a grid in that table

_KINDS = {"pairs": "pairs", "tasks": "tasks", "pass_at_1": "pass@1", "pass_at_k": "pass@k"}
_RATES = {  # of an evaluation, as columns for people
    f"{group}_{kind}": f"{group} {name}"
    for group in ("demo", "test")
    for kind, name in _KINDS.items()
}


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into the folder of a run on ARC and returns its path.

    A run that is incomplete gives a page that says what is missing.
    """
    run = read_run(folder)
    if run.settings.get("env") not in (None, TASKS):
        return write_game_report(folder)
    missing: list[str] = []
    try:
        kept = read_tasks(run.path / TASKS_FILE)
        tasks, name = {task.name: task for task in kept}, f"{len(kept)} tasks of {kept.name}"
    except ValueError as error:
        tasks, name, missing = {}, str(run.settings.get("tasks")), [str(error)]
    if not (run.path / EPISODES_FILE).is_file():
        missing.append(f"There are no recorded episodes ({EPISODES_FILE}).")
    rows: list[dict[str, str]] = []
    if (run.path / "tasks.csv").is_file():
        text = (run.path / "tasks.csv").read_text(encoding="utf-8", errors="replace")
        rows = list(csv.DictReader(text.splitlines()))
    return run_page.write_page(
        run,
        hero=_hero(run, rows),
        sections=[
            _learning(run, rows),
            _scores(run, rows),
            _tasks(rows, tasks, run),
            _episodes(run),
            run_page.inside(run),
        ],
        tags=[name],
        missing=missing,
    )


def _percent(value: Any) -> float | None:
    return percent([value])[0]


def _count(rows: Sequence[Mapping[str, str]], rate: str) -> int:
    """How many pairs, or tasks, a rate such as demo_pairs is a share of."""
    group, _, kind = rate.partition("_")
    of_group = [int(row.get(f"{group}s") or 0) for row in rows]
    return sum(map(bool, of_group)) if kind == "tasks" else sum(of_group)


def _error(rates: Mapping[str, Any], name: str, rows: Sequence[Mapping[str, str]]) -> str:
    """The standard error of a rate in per cent, as words."""
    return spread(_percent(share_error(rates.get(name), _count(rows, name))))


def _hero(run: Run, rows: Sequence[Mapping[str, str]]) -> Part:
    items: list[Fact] = []
    if run.evals:
        last = run.evals[-1]
        whole = sum(row.get("solved") == "True" for row in rows)
        for name, group in (("demonstrations solved", "demo"), ("test pairs solved", "test")):
            below = [f"{whole} of {len(rows)} tasks with all of them"] if group == "demo" else []
            if last.get("k"):
                rate = number(_percent(last.get(f"{group}_pass_at_k")))
                below.append(f"pass@{last['k']} {rate} %")
            rate = f"{group}_pairs"
            below += [
                f"{who} {number(_percent(row.get(rate)))} {_error(row, rate, rows)} %"
                for who, row in run.references().items()
            ]
            value = _percent(last.get(rate))
            shown = "none" if value is None else number(value)
            items.append((name, shown, f"% {_error(last, rate, rows)}".strip(), "; ".join(below)))
    times = [fact for fact in run_page.facts(run) if fact[0] != "greedy score"]
    return run_page.hero([*items, *times])


def _learning(run: Run, rows: Sequence[Mapping[str, str]]) -> Part:
    if not (run.metrics or run.evals):
        return None
    groups = (("demonstrations", "demo_pairs"), ("test pairs", "test_pairs"))

    def greedy(x: str) -> list[Series]:
        lines = []
        for i, (name, rate) in enumerate(groups):
            rates, pairs = column(run.evals, rate), _count(rows, rate)
            style = {"color": i, "dots": True}
            errors = percent(share_error(rate, pairs) for rate in rates)
            points = column(run.evals, x), percent(rates), errors
            lines.append(with_error(f"{name}, greedy ± s.e.", *points, **style))
        return lines

    solved = thin(run.column("steps"), percent(run.column("solved")))
    training = Series("training episodes", *solved, color=TRAINING, faint=True)
    known = run.reference_scores("demo_pairs")
    shares: dict[str, Any] = {
        "y_label": "% solved",
        "references": [(f"{name}, demonstrations", 100.0 * rate) for name, rate in known],
        "share": True,
    }
    lines = [*greedy("steps"), training]
    curve = line_chart(lines, "steps", title="Learning curve", **shares, height=380)
    time = "seconds of training"
    by_time = line_chart(greedy("seconds"), time, title=f"Solved by {time}", **shares)
    returned = Series("return", *thin(run.column("steps"), run.column("return")), color=TRAINING)
    by_step = line_chart([returned], "steps", "return of training episodes", title="Return")
    caption = (
        "Every pair is played once with the likeliest actions; an episode is solved by a correct "
        "submission. Test pairs are never trained on. Training episodes explore."
    )
    return page.section("Learning", page.figure(curve, caption), page.pairs([by_time, by_step]))


def _scores(run: Run, tasks: Sequence[Mapping[str, str]]) -> Part:
    """Every rate of the last evaluation, beside those of agents that learn nothing."""
    agents = run.references()
    if run.evals:
        agents = {str(run.settings.get("algo")): run.evals[-1]} | agents
    if not agents:
        return None
    names = [name for name in _RATES if any(name in rates for rates in agents.values())]
    k = run.evals[-1].get("k") if run.evals else None
    head = ["agent", *(_RATES[name].replace("@k", f"@{k}") for name in names)]
    rows = [
        [agent]
        + [f"{number(_percent(rates.get(n)))} {_error(rates, n, tasks)}".strip() for n in names]
        for agent, rates in agents.items()
    ]
    text = (
        "In per cent, ± s.e. Pairs: the share that is solved. Tasks: the share of tasks all of "
        "whose pairs are. pass@k: solved in at least one of k sampled episodes."
    )
    if "greedy editor" in agents:
        text += (
            " The greedy editor knows the answer: what it leaves unsolved, the rules do not allow "
            "in the time."
        )
    again = page.command(shlex.join(["worldloom", "arc", "scores", str(run.path)]))
    return page.section("Scores", page.table(head, rows), again, text=text)


def _tasks(rows: Sequence[Mapping[str, str]], tasks: Mapping[str, Task], run: Run) -> Part:
    """A line for each task: its first demonstration, and how many of its pairs are solved."""
    k = run.evals[-1].get("k") if run.evals else 0
    lines, drawn = [], 0
    for row in rows:
        name, picture = row.get("task", ""), ""
        if name in tasks and drawn < _CELLS:
            grids = tasks[name].grids[:2]
            drawn += sum(grid.size for grid in grids)
            cell = max(1, min(12, _SIDE // max(max(grid.shape) for grid in grids)))
            before, after = (cells(grid, cell) for grid in grids)
            demonstration = beside([before, arrow(16), after], 8, middle=True)
            picture = page.raw(demonstration.svg(f"first demonstration of {name}", margin=1))
        counts = []
        for group in ("demos", "tests"):
            text = f"{row.get(f'{group}_solved')} of {row.get(group)}"
            if k and row.get(f"{group}_solved_in_k"):
                text += f"; {row[f'{group}_solved_in_k']} in {k} tries"
            counts.append(text)
        mark = " ✓" if row.get("solved") == "True" else ""
        lines.append([name + mark, picture, *counts, (row.get("steps") or "")[:4]])
    text = (
        "Solved pairs of each task, greedily and in any of the sampled episodes. A check marks "
        "tasks all of whose demonstrations are solved. Steps: of a greedy episode, on average."
    )
    head = ("task", "first demonstration", "demonstrations", "test pairs", "steps")
    return page.section("Task by task", page.group("tasks", page.table(head, lines)), text=text)


def _episodes(run: Run) -> Part:
    """Recorded episodes, drawn from input to answer."""
    path = run.path / EPISODES_FILE
    if not path.is_file():
        return None
    rules = (run.settings.get("world") or {}).get("rules", "edit")
    try:
        episodes = json.loads(path.read_text(encoding="utf-8"))
        drawn = [_episode(episode, rules) for episode in episodes]
    except (ValueError, KeyError, TypeError) as error:
        return page.note("Before you read on", [f"{EPISODES_FILE} cannot be read ({error})"])
    text = "What the agent does by itself, without exploring: each operation, and where."
    return page.section("Episodes", *drawn, text=text)


def _episode(episode: Mapping[str, Any], rules: Rules) -> Part:
    options = {name: episode[name] for name in ("input", "target", "solved")}
    shots = [Shot(**shot) for shot in episode["shots"]]
    title = f"{episode['task']}, {episode['pair']}"

    def draw(width: int) -> str:
        picture = episode_picture(shots, **options, title=title, rules=rules, width=width, limit=16)
        return picture.svg(title)

    return page.figure(draw)
