"""The page of a run in a game: a film, curves, and every level beside what others took for it."""

from pathlib import Path
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Fact, Part
from worldloom.report.plots import line_chart, with_error
from worldloom.report.run_page import (
    GREEDY,
    OVER,
    TRAINING,
    beside,
    facts,
    hero,
    inside,
    percent,
    spread,
    training_line,
    write_page,
)
from worldloom.report.runs import Run, column, read_run

FILM = "eval.gif"
SOLVED = "levels solved"


def write_report(folder: str | Path) -> Path:
    """Writes `report.html` into a run folder and returns its path."""
    run = read_run(folder)
    film, missing, picture = run.path / FILM, [], None
    if film.is_file():
        picture = page.film(film, "The trained agent, playing greedily.")
    else:
        missing.append(f"There is no film of the trained agent ({FILM}).")
    return write_page(
        run,
        hero=hero(_facts(run), picture),
        sections=[_learning(run), _scores(run), inside(run)],
        missing=missing,
    )


def _facts(run: Run) -> list[Fact]:
    """Headline numbers; of levels in per cent."""
    last = run.evals[-1] if run.evals else {}
    share, error = percent([last.get("mean"), last.get("stderr")])
    solved = (SOLVED, number(share), f"% {spread(error)}".strip(), beside(run, factor=100.0))
    return [solved if item[0] == SOLVED else item for item in facts(run, score=SOLVED)]


def _learning(run: Run) -> Part:
    """Levels solved, over steps and over seconds, and the return of training, which is no share."""
    known = [(name, 100.0 * share) for name, share in run.reference_scores()]
    charts = []
    for over, unit in OVER.items():
        lines = []
        for name, kind, color in (
            ("greedy", "", GREEDY),
            ("with exploration", "sampled_", TRAINING),
        ):
            shares, errors = (percent(column(run.evals, kind + x)) for x in ("mean", "stderr"))
            if any(share is not None for share in shares):
                steps = column(run.evals, over)
                lines.append(
                    with_error(f"{name} ± s.e.", steps, shares, errors, dots=True, color=color)
                )
        if lines:
            look: dict[str, Any] = {"references": known, "share": True}
            title = f"{SOLVED} over {unit or 'steps'}"
            charts.append(
                line_chart(lines, unit or "steps", "% of levels solved", title=title, **look)
            )
    if returns := training_line(run):
        charts.append(line_chart(returns, "steps", "return of an episode", title="Training"))
    return page.section("Learning", page.pairs(charts))


def _scores(run: Run) -> Part:
    """Levels and actions of the last evaluation, beside agents that learn nothing."""
    agents: dict[str, Any] = run.references()
    if run.evals:
        agents = {f"{run.settings.get('algo')}, greedy": run.evals[-1]} | agents
    if not agents:
        return None
    count = max(len(row.get("level_actions") or ()) for row in agents.values())
    head = ["agent", "levels solved", "efficiency", "actions"]
    head += [f"level {n + 1}" for n in range(count)]
    rows = []
    for name, row in agents.items():
        levels = row.get("levels") or 1
        error = row.get("stderr")
        solved = f"{number(row.get('levels_solved'))} of {levels}"
        if isinstance(error, int | float):
            solved += f" {spread(levels * error)}"
        each = [number(x) if x is not None else "-" for x in row.get("level_actions") or ()]
        cells = [name, solved, number(row.get("efficiency")), number(row.get("actions"))]
        rows.append([*cells, *each])
    text = (
        "An episode begins at the first level and ends with the last life or with the time. "
        "Efficiency: a solved level counts the square of baseline by actions, one at most, level n "
        "weighs n. For each level: mean actions of the episodes that solved it. Graph exploration "
        "learns nothing: it tries what it has not tried yet."
    )
    return page.section("Scores", page.table(head, rows), text=text)
