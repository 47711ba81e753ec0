"""`worldloom compare RUN RUN ...`: runs in the same world side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from worldloom import suites
from worldloom.training import console
from worldloom.training.arguments import parse


@dataclass
class Compare:
    """compare runs in one world, of any suite: scores, curves, what was set"""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Two run folders or more, of any algorithms."""
    out: Path = Path("comparison.html")
    """The page to write."""
    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Writes the page, and prints the table of it."""
    args = parse(Compare, argv)
    console.phase("reading the runs")
    from worldloom.report import comparison

    if args.out.suffix != ".html":
        raise ValueError(f"--out {args.out}: the page is an .html file")
    for run in args.runs:
        if not run.is_dir() and str(run) in suites.names():
            raise ValueError(
                f"{run} is a world, and runs are compared; `worldloom bench modes {run}` times the "
                "execution modes"
            )
    rows = comparison.compare(args.runs, task_of)
    console.phase("writing the page")
    page = comparison.write_comparison(rows, args.out)
    if args.json:
        beside = comparison.references_of(rows)
        found = {"runs": [row.to_dict() for row in rows], "references": beside, "report": page}
        console.print_json(found)
        return 0
    cells = [row.cells() for row in rows]
    title = f"{rows[0].run.settings['env']}, best first"
    lines = [values[:-2] for values in cells + comparison.reference_cells(rows)]
    console.table(title, comparison.COLUMNS[:-2], lines)
    paths = [str(row.run.path) for row in rows]  # of which names may be alike
    chosen = [", ".join(filter(None, cell[-2:])) for cell in cells]
    console.facts("set differently", dict(zip(paths, chosen, strict=True)))
    console.say(f"written to {page}")
    if rows[0].run.has_checkpoint:
        console.next_steps(["eval", rows[0].run.path])
    return 0


def task_of(run: Any) -> dict[str, Any]:
    """The settings of a run that decide what its scores mean: the world, and the suite's task."""
    env, suite = run.settings["env"], suites.suite(run.about["suite"])
    shaping = suites.shaping_parameters(suite.name)  # which scores do not see
    world = {n: v for n, v in (run.settings.get("world") or {}).items() if n not in shaping}
    if suite.rules_of(env) is None:  # only options that were given are kept
        known = suites.world_parameters(env) or {}
        world = {name: option.default for name, option in known.items()} | world
    chosen = getattr(suite.settings, "TASK", ())
    return {"env": env, "world": world} | {name: run.settings.get(name) for name in chosen}
