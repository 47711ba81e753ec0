"""One self-contained page about a run on ARC: curves, every task, and episodes."""

import csv
import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from worldloom.report import page, run_page
from worldloom.report.axes import number
from worldloom.report.plots import Series, line_chart
from worldloom.report.run_page import thin
from worldloom.report.runs import Run, column, is_number, read_run
from worldloom.report.svg import color
from worldloom.suites.arc.draw import Shot, episode_picture
from worldloom.suites.arc.sheet import arrow, beside, cells
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
            _learning(run),
            _scores(run),
            _tasks(rows, tasks, run),
            _episodes(run),
            run_page.inside(run),
        ],
        tags=[name],
        missing=missing,
    )


def _percent(value: Any) -> float | None:
    return 100.0 * value if is_number(value) else None


def _references(run: Run) -> dict[str, Any]:
    """The rates of agents that learn nothing, by name."""
    given = run.about.get("references")
    return given if isinstance(given, dict) else {}


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
    times = [fact for fact in run_page.facts(run) if fact[0] != "greedy score"]
    return run_page.hero([*items, *times])


def _learning(run: Run) -> str:
    if not (run.metrics or run.evals):
        return ""

    def greedy(x: str, extra: str = "") -> list[Series]:
        columns = {"demonstrations": "demo_pairs", "test pairs": "test_pairs"}
        return [
            Series(
                name + extra,
                column(run.evals, x),
                [_percent(value) for value in column(run.evals, rate)],
                color=color(i),
                dots=True,
            )
            for i, (name, rate) in enumerate(columns.items())
        ]

    solved = thin(run.column("steps"), [_percent(x) for x in run.column("solved")])
    lines = [*greedy("steps", ", greedy")]
    lines.append(Series("training episodes", *solved, color=color(2), faint=True))
    rates = {name: _percent(rate.get("demo_pairs")) for name, rate in _references(run).items()}

    def draw(width: int) -> str:
        return line_chart(
            lines,
            title="Learning curve",
            x_label="steps",
            y_label="% solved",
            references=[(f"{n}, demonstrations", r) for n, r in rates.items() if r is not None],
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
    returns = thin(run.column("steps"), run.column("return"))
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


def _scores(run: Run) -> str:
    """Every rate of the last evaluation, beside those of agents that learn nothing."""
    agents = _references(run)
    if run.evals:
        agents = {str(run.settings.get("algo")): run.evals[-1]} | agents
    if not agents:
        return ""
    names = [name for name in _RATES if any(name in rates for rates in agents.values())]
    k = run.evals[-1].get("k") if run.evals else None
    head = ["agent", *(_RATES[name].replace("@k", f"@{k}") for name in names)]
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
    lines, drawn = [], 0
    for row in rows:
        task, picture = tasks.get(row.get("task", "")), ""
        if task is not None and drawn < _CELLS:
            grids = task.grids[:2]
            drawn += sum(grid.size for grid in grids)
            cell = max(1, min(12, _SIDE // max(max(grid.shape) for grid in grids)))
            before, after = (cells(grid, cell) for grid in grids)
            demonstration = beside([before, arrow(16), after], 8, middle=True)
            picture = demonstration.svg(f"first demonstration of {task.name}", margin=1)
        mark = " ✓" if row.get("solved") == "True" else ""
        values = [picture]
        for group in ("demos", "tests"):
            text = f"{row.get(f'{group}_solved')} of {row.get(group)}"
            if k and row.get(f"{group}_solved_in_k"):
                text += f'<br><span class="soft">{row[f"{group}_solved_in_k"]} in {k} tries</span>'
            values.append(text)
        values.append((row.get("steps") or "")[:4])
        # Names break anywhere, and so leave the room that counts need to stay in one piece.
        name = f"{escape(row.get('task', ''))}<strong>{mark}</strong>"
        first = f'<td style="overflow-wrap:anywhere;min-width:7rem">{name}</td>'
        others = (f'<td style="white-space:nowrap">{value}</td>' for value in values)
        lines.append(f"<tr>{first}{''.join(others)}</tr>")
    head = ("task", "first demonstration", "demonstrations", "test pairs", "steps")
    top = "".join(f"<th>{name}</th>" for name in head)
    table = (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}'
        "</tbody></table></div>"
    )
    text = (
        "Solved pairs of each task, greedily and in any of the sampled episodes. A check marks "
        "tasks all of whose demonstrations are solved. Steps: of a greedy episode, on average."
    )
    return page.section("Task by task", table, text=text)


def _episodes(run: Run) -> str:
    """Recorded episodes, drawn from input to answer."""
    path = run.path / EPISODES_FILE
    if not path.is_file():
        return ""
    rules = (run.settings.get("world") or {}).get("rules", "edit")
    try:
        episodes = json.loads(path.read_text(encoding="utf-8"))
        drawn = [_episode(episode, rules) for episode in episodes]
    except (ValueError, KeyError, TypeError) as error:
        return page.note("Before you read on", [f"{EPISODES_FILE} cannot be read ({error})"])
    text = "What the agent does by itself, without exploring: each operation, and where."
    return page.section("Episodes", *drawn, text=text)


def _episode(episode: Mapping[str, Any], rules: Rules) -> str:
    options = {name: episode[name] for name in ("input", "target", "solved")}
    shots = [Shot(**shot) for shot in episode["shots"]]
    title = f"{episode['task']}, {episode['pair']}"

    def draw(width: int) -> str:
        picture = episode_picture(shots, **options, title=title, rules=rules, width=width, limit=16)
        return picture.svg(title)

    return page.figure(draw)
