"""`worldloom runs [FOLDER]`: the runs in a folder, newest first, and how to go on with each."""

import json
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from worldloom.report.axes import number
from worldloom.report.runs import is_number, read_run
from worldloom.training import console
from worldloom.training.arguments import parse
from worldloom.training.folders import is_locked

RESULTS = ("config.json", "metrics.jsonl", "eval.jsonl", "timing.json", "sweep.json")
COLUMNS = ["world", "algorithm", "steps", "score", "when", "go on"]


@dataclass
class Runs:
    """list the runs in a folder, and how to go on with each"""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Where `train` and `sweep` wrote them."""
    json: bool = False
    """Print JSON instead of a table."""


def command(argv: list[str]) -> int:
    """Lists runs and sweeps; what cannot be read is listed with the reason."""
    args = parse(Runs, argv)
    if not args.folder.is_dir() and args.folder != Runs.folder:
        raise ValueError(f"{args.folder} is not a folder; name the one that `train --out` wrote to")
    folders = [path for path in args.folder.glob("*") if path.is_dir()]
    rows = sorted(map(describe, folders), key=lambda row: row["when"], reverse=True)
    if args.json:
        for row in rows:
            row["next"] = row["next"] and shlex.join(["worldloom", *row["next"]])
        console.print_json(rows)
        return 0
    if not rows:
        console.say(f"there are no runs in {args.folder}")
        console.next_steps(["train", "treasurehunt"])
        return 0
    console.table(f"{len(rows)} in {args.folder}, newest first", COLUMNS, dict(map(_cells, rows)))
    usable = [row["next"] for row in rows if row["next"]]
    console.next_steps(*usable[:1])
    return 0


def describe(folder: Path) -> dict[str, Any]:
    """What is known of a run or sweep; `problem` says why nothing is, `next` is a command."""
    about: dict[str, Any] = {"run": str(folder), "when": _when(folder), "next": None}
    try:
        sweep = folder / "sweep.json"
        return about | (_sweep(sweep) if sweep.is_file() else _run(folder))
    except (TypeError, AttributeError):
        return about | {"problem": "its JSON holds something else"}
    except (ValueError, OSError) as error:
        problem = str(error).partition("; ")[0]
        return about | {"problem": problem.replace(f"{folder}/", "").removeprefix(f"{folder} ")}


def _run(folder: Path) -> dict[str, Any]:
    run = read_run(folder)
    done, planned = run.steps, run.planned
    score = run.evals[-1].get("mean") if run.evals else None
    following = None
    if is_locked(folder):
        going = "training now"
    elif not run.has_checkpoint:
        going = "no checkpoint: train anew"
    elif planned is not None and done >= planned:
        going, following = "done: eval", ["eval", str(folder)]
    else:
        going, following = "stopped: train --resume", ["train", "--resume", str(folder)]
    return {
        "world": str(run.settings.get("env", "?")),
        "algorithm": str(run.settings.get("algo", "?")),
        "steps": done,
        "planned": planned,
        "score": score if is_number(score) else None,
        "go_on": going,
        "next": following,
    }


def _sweep(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text(encoding="utf-8"))
    config, points = result.get("config", {}), result.get("results", [])
    means = [row["mean"] for row in points if is_number(row.get("mean"))]
    return {
        "world": str(config.get("env", "?")),
        "algorithm": str(config.get("algo", "?")),
        "steps": config.get("steps"),
        "score": max(means, default=None),
        "go_on": f"sweep of {len(points)}" + ("" if result.get("complete") else ", cut short"),
        "next": ["report", str(path)],
    }


def _cells(row: dict[str, Any]) -> tuple[str, list[list[str]]]:
    when = time.strftime("%m-%d %H:%M", time.localtime(row["when"]))
    if "problem" in row:
        return row["run"], [["cannot be read", "", "", "", when, row["problem"]]]
    steps = f"{row['steps']:,}" if is_number(row["steps"]) else "-"
    score = number(row["score"], 4) if row["score"] is not None else "-"
    return row["run"], [[row["world"], row["algorithm"], steps, score, when, row["go_on"]]]


def _when(folder: Path) -> float:
    """When something was last written."""
    paths = [folder, *(folder / name for name in RESULTS)]
    return max(path.stat().st_mtime for path in paths if path.exists())
