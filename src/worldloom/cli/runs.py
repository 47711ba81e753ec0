"""`worldloom runs [FOLDER]`: the runs in a folder, newest first, and how to go on with each."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from worldloom import suites
from worldloom.report.axes import number
from worldloom.report.run_list import USUAL, RunList
from worldloom.training import console
from worldloom.training.arguments import parse

COLUMNS = ["world", "algorithm", "steps", "score", "when", "go on"]


@dataclass
class Runs:
    """list the runs in a folder, and how to go on with each"""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = USUAL
    """Where `train` and `sweep` wrote them."""
    json: bool = False
    """Print JSON instead of a table."""


def command(argv: list[str]) -> int:
    """Lists runs and sweeps; what cannot be read is listed with the reason."""
    args = parse(Runs, argv)
    rows = [describe(args.folder, row) for row in RunList(args.folder).rows()]
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


def describe(root: Path, row: dict[str, Any]) -> dict[str, Any]:
    """What is known of a run or sweep; `problem` says why nothing is, `next` is a command."""
    folder = root / row["run"]
    about = {"run": str(folder), "when": row["when"], "next": None}
    if row["status"] == "damaged":
        return about | {"problem": row["problem"]}
    going, following = _go_on(folder, row)
    return about | {
        "world": row["env"] or "?",
        "algorithm": row["algo"] or "?",
        "steps": row["steps"],
        "planned": row["planned"],
        "score": row["score"],
        "go_on": going,
        "next": following,
    }


def _go_on(folder: Path, row: dict[str, Any]) -> tuple[str, list[str] | None]:
    if row["status"] == "sweep":
        words = f"sweep of {row['points']}{', cut short' if row['problem'] else ''}"
        return words, ["report", str(folder / "sweep.json")]
    if row["status"] == "running":
        return "training now", None
    if not row["trained"]:
        return "no checkpoint: train anew", None
    done = row["status"] == "complete"
    known = row["suite"] in suites.SUITES  # it may be a later version's
    if done or (known and suites.suite(row["suite"]).no_resume(row["settings"])):
        return f"{'done' if done else 'stopped for good'}: eval", ["eval", str(folder)]
    return "stopped: train --resume", ["train", "--resume", str(folder)]


def _cells(row: dict[str, Any]) -> tuple[str, list[list[str]]]:
    when = time.strftime("%m-%d %H:%M", time.localtime(row["when"]))
    if "problem" in row:
        return row["run"], [["cannot be read", "", "", "", when, row["problem"]]]
    steps = f"{row['steps']:,}" if row["steps"] is not None else "-"
    score = number(row["score"], 4) if row["score"] is not None else "-"
    return row["run"], [[row["world"], row["algorithm"], steps, score, when, row["go_on"]]]
