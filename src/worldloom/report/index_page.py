"""index.html of a folder of runs: a row for each, its report one click away, curves by world."""

import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.page import Part
from worldloom.report.plots import line_chart, with_error
from worldloom.report.run_list import RunList
from worldloom.report.runs import Row, error_name

_LINES = 7  # more learning curves than this are no longer told apart
_HEAD = ["run", "world", "algorithm", "steps", "score", "when", "state"]


def write_index(folder: str | Path) -> Path:
    """Writes `index.html` into a folder of runs and returns its path.

    A ValueError where there is no run below the folder, and nothing is written.
    """
    runs = RunList(folder)
    rows = runs.rows()
    if not rows:
        raise ValueError(f"{folder} holds no run; name a run folder, or a folder of runs")
    worlds = dict.fromkeys(row["env"] for row in rows if row.get("env"))
    body = [
        page.header("Runs", [str(folder), f"{len(rows)} runs and sweeps", "newest first"]),
        page.section("Every run", page.table(_HEAD, map(_cells, rows))),
        page.section(
            "Evaluations on the way",
            page.pairs([_curves(runs, world, rows) for world in worlds]),
            text="Of each world the newest runs, mean ± s.e.",
        ),
        page.section("Live, and to play in", page.command(f"worldloom studio {folder}")),
    ]
    return page.write(Path(folder) / "index.html", page.page("Runs", body))


def _cells(row: Row) -> list[Part | str | int | None]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["when"]))
    shown = next((name for name in ("report.html", "sweep.html") if name in row["pages"]), None)
    name = page.link(f"{quote(row['run'])}/{shown}", row["run"]) if shown else row["run"]
    if row["status"] == "damaged":
        return [name, "", "", None, "", when, f"damaged: {row['problem']}"]
    score = "" if row["score"] is None else number(row["score"])
    if score and row.get("stderr") is not None:
        score += f" ± {number(row['stderr'], 2)}"
    return [name, row["env"], row["algo"], row["steps"], score, when, row["status"]]


def _curves(runs: RunList, world: str, rows: Sequence[Row]) -> Part:
    """The evaluations of the newest runs in a world; nothing where none has two."""
    lines, references = [], {}
    for row in rows:
        if row.get("env") != world or row["status"] in ("sweep", "damaged"):
            continue
        curves = runs.curves(row["run"])
        found, ((name, known),) = curves["evaluation"], curves["references"].items()
        if len(found.get(name, ())) > 1 and len(lines) < _LINES:
            errors = found.get(error_name(name)) or [None] * len(found[name])
            lines.append(with_error(row["name"], found["steps"], found[name], errors, dots=True))
            references |= known
    label = f"{world}: evaluation score"
    return line_chart(lines, "steps", label, references=[*references.items()]) if lines else None
