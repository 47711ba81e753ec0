"""The page of a run in a gridworld: curves, every agent, every turn, and films."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.heatmap import heatmap
from worldloom.report.page import Fact, Part
from worldloom.report.plots import Series, line_chart, with_error
from worldloom.report.run_page import GREEDY, facts, hero, inside, learning, thin, write_page
from worldloom.report.runs import (
    Row,
    Run,
    column,
    is_number,
    json_object,
    read_csv_tail,
    read_run,
)
from worldloom.suites.grid.suite import no_resume

FILM, TRAINING_FILM = "eval.gif", "training-*.gif"
# Films of the training, beside the one of the trained agents, and the bytes that all may have.
_FILMS, _FILM_BYTES = 3, 1_300_000
_SCHELLING = 4  # diagrams at most
_TURN_ITERATIONS = 20  # that the chart of turns averages over


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into a run folder and returns its path.

    A run that is incomplete gives a page that says what is missing; a folder that is not a run
    is a ValueError.
    """
    run = read_run(folder)
    film, films = run.path / FILM, training_films(run.path)
    turns = read_csv_tail(run.path / "turns.csv", run.unreadable)
    missing, picture = [], None
    if film.is_file():
        picture = page.film(film, "The trained agents, playing greedily.")
    else:
        missing.append(f"There is no film of the trained agents ({FILM}).")
        if films:
            steps, path = films.pop()
            picture = page.film(path, f"Training, step {steps:,}.")
    rivals = is_constant_sum(run)
    mode = str(run.settings.get("mode") or "")
    return write_page(
        run,
        hero=hero(_rival_facts(run) if rivals else facts(run), picture),
        sections=[
            _rivals(run) if rivals else learning(run, "return of all agents together"),
            inside(run),
            _agents(run),
            None if rivals else _society(run),
            _partners(run),
            None if rivals else _turns(turns),
            _films(films, film.stat().st_size if film.is_file() else 0),
        ],
        tags=[mode],
        missing=missing,
        no_resume=no_resume(run.settings),
    )


def is_constant_sum(run: Run) -> bool:
    """Whether agents win what others lose: their sum is the same however they play."""
    each = [value for row in run.metrics for value in row.get("agent_returns") or ()]
    totals = run.column("return") + column(run.evals, "mean")
    totals = [value for value in totals if is_number(value)]
    size = max((abs(value) for value in each if is_number(value)), default=0.0)
    return len(totals) > 1 and size > 0.0 and max(totals) - min(totals) <= 1e-3 * size


def _rival_facts(run: Run) -> list[Fact]:
    last = run.evals[-1] if run.evals else {}
    items: list[Fact] = []
    for name, title, below in (
        ("against_random", "ahead of random", "return of an agent, half of them playing at random"),
        ("paid", "payments", "in a greedy episode, such as tags"),
    ):
        if is_number(last.get(name)):
            error = f"± {number(last.get(f'{name}_stderr'), 2)}"
            items.append((title, number(last[name]), error, below))
    return items + [
        fact for fact in facts(run) if fact[0] not in ("greedy score", "training return")
    ]


def _rivals(run: Run) -> Part:
    """Learning where the sum says nothing: against random agents, agent by agent, and payments."""
    steps, evals = column(run.evals, "steps"), run.evals

    def chart(name: str, title: str, references: Sequence[tuple[str, float]]) -> Part:
        if not any(map(is_number, column(evals, name))):
            return None
        points = column(evals, name), column(evals, f"{name}_stderr")
        line = with_error("greedy ± s.e.", steps, *points, dots=True, color=GREEDY)
        return line_chart([line], "steps", title, references=references, include_zero=True)

    means, errors = column(evals, "agents"), column(evals, "agents_stderr")
    agents = [
        with_error(f"agent {i}", steps, _of(i, means), _of(i, errors), dots=True)
        for i in range(max((len(row or ()) for row in means), default=0))
    ]
    each = "return of each agent, greedy ± s.e."
    total = number(next(v for v in run.column("return") + column(evals, "mean") if is_number(v)))
    return page.section(
        "Learning",
        page.figure(
            chart("against_random", "return of an agent ahead of random ones", [("random play", 0)])
        ),
        page.pairs([
            line_chart(agents, "steps", each) if agents else None,
            chart("paid", "payments in an episode, such as tags", []),
        ]),
        text=f"What one agent wins another loses: together they get {total} however they play, "
        "so that their sum is not drawn. Half of the agents play against others that act at "
        "random; all of them against each other.",
    )  # fmt: skip


_MEASURES = {
    "gini": "Gini coefficient of the agents' returns: 0 is all alike",
    "sustainability": "mean turn in which agents are paid",
    "peace": "% of agents that nobody harmed in a turn",
}


def _society(run: Run) -> Part:
    """How evaluated agents share, how long what pays lasts, how peaceful they are."""
    steps, charts = column(run.evals, "steps"), []
    for name, title in _MEASURES.items():
        means, errors = column(run.evals, name), column(run.evals, f"{name}_stderr")
        share = name == "peace"
        if share:
            means, errors = ([v and 100.0 * v for v in each] for each in (means, errors))
        if any(map(is_number, means)):
            line = with_error("greedy ± s.e.", steps, means, errors, dots=True, color=GREEDY)
            chart = line_chart(
                [line], "steps", title, title=name.capitalize(), share=share, include_zero=True
            )
            charts.append(chart)
    if not charts:
        return None
    return page.section(
        "Together",
        page.pairs(charts),
        text="Of the world's own rewards, whatever the agents learned from. Equality is 1 less "
        "the Gini coefficient; it has no value where somebody lost more than it won.",
    )


def _partners(run: Run) -> Part:
    """The cross-play matrix, if `worldloom eval RUN --partners` has been asked for it."""
    played = json_object(run.path / "crossplay.json", run.unreadable)
    if not {"runs", "partners", "mean", "episodes"} <= played.keys():
        return None
    names, partners = played["runs"], played["partners"]
    columns, title = [f"with {name}" for name in partners], "return of an agent, by partners"
    matrix = partial(heatmap, names, columns, played["mean"], title=title)
    return page.section(
        "Beside others",
        page.figure(
            matrix,
            "Mean return of an agent of the run in a row, half of the agents being of the run in "
            f"a column, in {played['episodes']} greedy episodes.",
        ),
        *_schelling(names[0], played.get("mixed") or {}),
    )


def _schelling(name: str, mixed: Mapping[str, Mapping[str, list[float]]]) -> list[Part]:
    """Schelling diagrams: what either kind of agent gets, by how many others are of the run."""
    charts = []
    for partner, returns in list(mixed.items())[:_SCHELLING]:
        others = list(range(len(returns["own"])))
        who = {"own": f"an agent of {name}", "theirs": f"an agent of {partner}"}
        lines = [
            Series(label, others, returns[kind], dots=True, color=n)
            for n, (kind, label) in enumerate(who.items())
        ]
        look: dict[str, Any] = {"title": f"Beside {partner}", "include_zero": True}
        charts.append(line_chart(lines, f"others that are of {name}", "return", **look))
    if not charts:
        return []
    caption = (
        "Where the first line is above, it pays to be as the run's agents are; where both rise, "
        "everybody is better off the more of them there are."
    )
    return [page.heading("Schelling diagrams"), page.pairs(charts), page.soft(caption)]


def _agents(run: Run) -> Part:
    """Each agent's return, in the colour the agent has in the pictures."""
    returns = [row.get("agent_returns") or [] for row in run.metrics]
    count = max(map(len, returns), default=0)
    if not count:
        return None
    lines = [
        Series(f"agent {agent}", *thin(run.column("steps"), _of(agent, returns), 40))
        for agent in range(count)
    ]
    last = max(1, min(50, len(returns) // 10 or len(returns)))
    names = [
        name
        for name, value in run.metrics[-1].items()
        if name.startswith("agent_") and isinstance(value, list) and len(value) == count
    ]
    rows = [
        [agent, *(_mean(_of(agent, run.column(name)[-last:])) for name in names)]
        for agent in range(count)
    ]
    chart = line_chart(lines, "steps", "return of an episode", title="Return of each agent")
    head = [name.removeprefix("agent_").replace("_", " ") for name in names]
    return page.section(
        "Agent by agent",
        page.figure(chart, "Means over stretches of training; colours as in the pictures."),
        page.heading(f"Means of the last {last} iterations" if last > 1 else "The end"),
        page.table(["agent", *head], rows),
    )


def _of(agent: int, rows: Sequence[Sequence[Any] | None]) -> list[Any]:
    """One agent's entry of each row; None where there is none."""
    return [row[agent] if row and agent < len(row) else None for row in rows]


def _mean(values: Sequence[float | None]) -> float | None:
    present = [v for v in values if is_number(v)]
    return sum(present) / len(present) if present else None


def _turns(rows: list[Row]) -> Part:
    profile = turn_profile(rows)
    if profile is None:
        return None
    columns = (profile[name] for name in ("turn", "mean", "stderr"))
    line = with_error("reward of all agents ± s.e.", *columns, color="soft")
    look: dict[str, Any] = {"title": "Reward in each turn", "include_zero": True}
    chart = line_chart([line], "turn", line.name, **look)
    first, last = profile["iterations"]
    caption = f"Training iterations {first} to {last}." if first < last else f"Iteration {last}."
    return page.section("Turn by turn", page.figure(chart, caption))


def turn_profile(rows: list[Row]) -> dict[str, Any] | None:
    """Reward of all agents in each turn, averaged over the last whole iterations of turns.csv.

    Returns `turn`, `mean` and `stderr` (T,) and the `iterations` used (first, last); None without
    whole ones.
    """
    # Of an iteration that a resumed run played again, the later rows count.
    rewards: dict[tuple[int, int, int], float] = {}
    for row in rows:
        if all(is_number(row.get(name)) for name in ("iteration", "turn", "agent", "reward")):
            rewards[int(row["iteration"]), int(row["turn"]), int(row["agent"])] = row["reward"]
    if not rewards:
        return None
    # The first iteration of a tail and the last of a killed run may be cut.
    sizes = Counter(iteration for iteration, _, _ in rewards)
    whole = [n for n in sorted(sizes) if sizes[n] == max(sizes.values())][-_TURN_ITERATIONS:]
    turns = sorted({turn for iteration, turn, _ in rewards if iteration in whole})
    reward = np.zeros((len(whole), len(turns)))
    for (iteration, turn, _), amount in rewards.items():
        if iteration in whole:
            reward[whole.index(iteration), turns.index(turn)] += amount
    stderr = reward.std(axis=0, ddof=1) / math.sqrt(len(whole)) if len(whole) > 1 else None
    return {
        "turn": turns,
        "mean": reward.mean(axis=0).tolist(),
        "stderr": [None] * len(turns) if stderr is None else stderr.tolist(),
        "iterations": (whole[0], whole[-1]),
    }


def training_films(folder: Path) -> list[tuple[int, Path]]:
    """Films of the training with the step of each, in order."""
    numbered = [(path.stem.rpartition("-")[2], path) for path in folder.glob(TRAINING_FILM)]
    return sorted((int(steps), path) for steps, path in numbered if steps.isdigit())


def _films(films: list[tuple[int, Path]], taken: int) -> Part:
    """A few films of the training, first to last, as the page has room for."""
    if len(films) > _FILMS:
        chosen = [round(i * (len(films) - 1) / (_FILMS - 1)) for i in range(_FILMS)]
        films = [films[i] for i in chosen]
    while films and taken + sum(path.stat().st_size for _, path in films) > _FILM_BYTES:
        films = films[:-1]  # the last are the most like the one of the trained agents
    shown = (page.film(path, f"Step {steps:,}") for steps, path in films)
    return page.section("On the way there", page.group("strip", *shown))
