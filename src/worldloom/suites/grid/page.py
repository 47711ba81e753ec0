"""The page of a run in a gridworld: curves, every agent, every turn, and films."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.report import page
from worldloom.report.page import Part
from worldloom.report.plots import Series, line_chart, with_error
from worldloom.report.run_page import facts, hero, inside, learning, thin, write_page
from worldloom.report.runs import Row, Run, is_number, read_csv_tail, read_run

FILM, TRAINING_FILM = "eval.gif", "training-*.gif"
_FILMS = 3  # of the training, beside the one of the trained agents
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
    mode = str(run.settings.get("mode") or "")
    is_torch = mode == "torch_sequential"
    return write_page(
        run,
        hero=hero(facts(run), picture),
        sections=[
            learning(run, "return of all agents together"),
            inside(run),
            _agents(run),
            _turns(turns),
            _films(films),
        ],
        tags=[mode],
        missing=missing,
        no_resume="Runs of torch_sequential cannot be resumed." if is_torch else "",
    )


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
    chart = line_chart(
        lines, title="Return of each agent", x_label="steps", y_label="return of an episode"
    )
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
    chart = line_chart(
        [with_error("reward of all agents ± s.e.", *columns, color="soft")],
        title="Reward in each turn",
        x_label="turn",
        y_label="reward of all agents, ± s.e.",
        include_zero=True,
    )
    first, last = profile["iterations"]
    caption = f"Training iterations {first} to {last}." if first < last else f"Iteration {last}."
    return page.section("Turn by turn", page.figure(chart, caption))


def turn_profile(rows: list[Row], iterations: int = _TURN_ITERATIONS) -> dict[str, Any] | None:
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
    whole = [n for n in sorted(sizes) if sizes[n] == max(sizes.values())][-iterations:]
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


def _films(films: list[tuple[int, Path]]) -> Part:
    """A few films of the training, first to last."""
    if len(films) > _FILMS:
        chosen = [round(i * (len(films) - 1) / (_FILMS - 1)) for i in range(_FILMS)]
        films = [films[i] for i in chosen]
    shown = (page.film(path, f"Step {steps:,}") for steps, path in films)
    return page.section("On the way there", page.group("strip", *shown))
