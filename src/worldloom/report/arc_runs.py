"""Runs on ARC for people: recorded episodes, the page, and what `worldloom train arc` says."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from worldloom.envs.arc.submission import write_submission
from worldloom.envs.arc.taskset import TaskSet
from worldloom.report.arc_report import EPISODES_FILE, write_arc_report
from worldloom.report.arc_shots import Shot, shots_of
from worldloom.track.sinks import plain, write_text
from worldloom.train import arc
from worldloom.train.arc_config import ArcRules, ArcTrainConfig
from worldloom.train.arc_evaluate import ArcEvaluation, Film
from worldloom.train.driver import Hook
from worldloom.train.progress import ArcProgress
from worldloom.train.tracking import tracking_hooks

FILM_KEY = 2_000_003
_EPISODES = 8


# Pictures ----------------------------------------------------------------------------------------


class ArcPictures(Hook):
    """episodes.json with a few greedy episodes of the trained agent, and report.html."""

    def on_end(self, run: arc.ArcRun) -> None:
        # Who pressed Ctrl-C wants to leave: a recording would first have to be compiled.
        if run.evaluation is not None and not run.interrupted:
            key = jax.random.fold_in(jax.random.key(FILM_KEY + run.config.seed), run.epoch)
            pairs = telling_pairs(run.evaluation)
            film = run.evaluator.film(run.trainer.agents(), pairs, key)
            nowhere = arc.NOWHERE[run.config.world.rules]
            episodes = recorded(film, run.evaluator.tasks, run.evaluation.task, nowhere)
            write_text(run.folder / EPISODES_FILE, json.dumps(plain(episodes)))
        write_arc_report(run.folder)


def telling_pairs(evaluation: ArcEvaluation, count: int = _EPISODES) -> np.ndarray:
    """Up to `count` pairs to show: solved and not, demonstrations and tests, of many tasks."""
    kinds = [
        np.flatnonzero((evaluation.tests == tests) & (evaluation.solved == solved)).tolist()
        for solved in (True, False)
        for tests in (False, True)
    ]
    chosen: list[int] = []
    while len(chosen) < count and any(kinds):
        for pairs in filter(None, kinds):
            # One of a task that is not shown yet, if there is one.
            shown = evaluation.task[chosen]
            new = [pair for pair in pairs if evaluation.task[pair] not in shown]
            chosen.append((new or pairs)[0])
            pairs.remove(chosen[-1])
    return np.array(chosen[:count], int)


def recorded(
    film: Film, tasks: TaskSet, task: np.ndarray, nowhere: Sequence[int]
) -> list[dict[str, Any]]:
    """Episodes as plain types; `task` (P,) is that of each pair, `nowhere` points at no cell."""
    first_pair = np.searchsorted(task, np.arange(len(tasks)))
    episodes = []
    for n, pair in enumerate(film.pairs):
        owner = tasks[int(task[pair])]
        number = int(pair - first_pair[task[pair]])
        test = number >= len(owner.demos)
        shown = owner.pairs[number]
        shots = shots_of(film.first, film.steps, n)
        episodes.append(
            {
                "task": owner.name,
                "pair": f"test {number - len(owner.demos) + 1}"
                if test
                else f"demonstration {number + 1}",
                "solved": bool(film.solved[n]),
                "input": shown.input,
                "target": shown.output,
                "shots": [_as_plain(shot, nowhere) for shot in shots],
            }
        )
    return episodes


def _as_plain(shot: Shot, nowhere: Sequence[int]) -> dict[str, Any]:
    selected = None if shot.operation in nowhere else shot.selected
    return {
        "grid": shot.grid,
        "operation": shot.operation,
        "cells": None if selected is None else np.argwhere(selected),
        "valid": shot.valid,
    }


# From Python -------------------------------------------------------------------------------------


def train_arc(
    settings: Mapping[str, Any], out: str | Path | None = None, report: bool = True
) -> arc.ArcRun:
    """Trains with the settings of an `ArcTrainConfig`, of which `world` may be a dict."""
    settings = dict(settings)
    if isinstance(settings.get("world"), Mapping):
        settings["world"] = ArcRules(**settings["world"])
    config = ArcTrainConfig(**settings)
    folder = Path(out) if out else arc.new_folder(Path("runs"), config)
    return arc.run(config, folder, hooks=[ArcPictures()] if report else [])


# Commands ----------------------------------------------------------------------------------------


def train_command(argv: list[str]) -> int:
    """`worldloom train arc ...`: trains, and says how it went."""
    import tyro

    from worldloom.track.arguments import parse

    @dataclass(frozen=True)
    class Train:
        env: Annotated[str, tyro.conf.Positional] = "arc"
        """The world: arc."""
        out: Path = Path("runs")
        """Folder in which the run gets a folder of its own."""
        resume: Path | None = None
        """Go on with this run folder from its newest checkpoint, to --updates."""
        track: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
        """Also show the run in mlflow or tensorboard."""
        report: bool = True
        """Record episodes and write report.html."""
        json: bool = False
        """Print the result as JSON."""
        settings: Annotated[ArcTrainConfig, tyro.conf.arg(name="")] = field(
            default_factory=lambda: _starting_point(argv)
        )

    args = parse(Train, argv, "worldloom train arc", "train an agent on ARC tasks")
    config = args.settings
    folder = args.resume or arc.new_folder(args.out, config)
    again = shlex.join(["worldloom", "train", "--resume", str(folder)])
    hooks: list[Hook] = [ArcProgress(), *([ArcPictures()] if args.report else [])]
    hooks += tracking_hooks(args.track, folder)
    command = shlex.join(["worldloom", "train", *argv])
    resume = args.resume is not None
    try:
        result = arc.run(config, folder, resume=resume, hooks=hooks, command=command)
    except KeyboardInterrupt:
        if not (folder / "config.json").exists():
            raise
        print(f"stopped at once; go on from the last checkpoint: {again}", file=sys.stderr)
        return 130
    _tell(result, folder, again, args.json)
    return 130 if result.interrupted else 0


def _starting_point(argv: list[str]) -> ArcTrainConfig:
    """The settings that arguments change: a resumed run's own, or the defaults."""
    for n, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name == "--resume" and (equals or n + 1 < len(argv)):
            return arc.read_config(Path(value if equals else argv[n + 1]))
    return ArcTrainConfig()


def _tell(result: arc.ArcRun, folder: Path, again: str, as_json: bool) -> None:
    timing = result.timing()
    summary: dict[str, Any] = {"run": str(folder), "update": result.epoch} | timing
    if result.evaluation is not None:
        summary |= result.evaluation.to_dict()
    if as_json:
        summary |= {"interrupted": result.interrupted, "resume": again}
        print(json.dumps(plain(summary), indent=2))
        return
    from worldloom.track.console import facts

    config = result.config
    shown = {"scores": "not evaluated yet"}
    if result.evaluation is not None:
        shown = scores_of(result.evaluation)
    if result.epoch:
        shown["training"] = (
            f"{timing['train_seconds']:.1f} s for {result.steps:,} steps in {result.epoch} updates "
            f"({timing['steps_per_second']:,.0f} steps/s)"
        )
        shown["compiling"] = f"{timing['compile_seconds']:.1f} s"
    shown["run folder"] = str(folder)
    if (folder / "report.html").exists():
        shown["report"] = str(folder / "report.html")
    if result.interrupted:
        shown["go on with"] = again
    tasks = f"{len(result.evaluator.tasks)} tasks of {result.evaluator.tasks.name}"
    facts(f"arc, {tasks}, {config.algo}, seed {config.seed}", shown)


def scores_of(evaluation: ArcEvaluation) -> dict[str, str]:
    """What was solved, in lines for people."""
    lines = {}
    for group, name in (("demo", "demonstrations"), ("test", "test pairs")):
        rates = evaluation.rates(group)
        said = f"{rates['pairs']:.0%} of pairs, {rates['tasks']:.0%} of tasks (greedy)"
        if evaluation.k:
            said += f"; pass@1 {rates['pass_at_1']:.0%}, pass@{evaluation.k} "
            said += f"{rates['pass_at_k']:.0%} of pairs, {rates['tasks_pass_at_k']:.0%} of tasks"
        lines[name] = said
    return lines


def eval_command(argv: list[str]) -> int:
    """`worldloom eval RUN` for a run on ARC: plays every pair again, and says what was solved."""
    import tyro

    from worldloom.track.arguments import parse

    @dataclass
    class Eval:
        target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """The folder of a run on arc."""
        attempts: int | None = None
        """Sampled attempts at every pair, for pass@k; by default as many as in training."""
        seed: int = 0
        tasks: bool = False
        """Also list every task."""
        submission: Path | None = None
        """Also write what it answers to the test inputs here, as ARC's competitions take it."""
        json: bool = False

    args = parse(Eval, argv, "worldloom eval", "score a run on arc")
    if args.submission is not None:
        _check_submission(args.submission, arc.read_config(args.target))
    loaded = arc.load_run(args.target)
    result = loaded.evaluate(args.attempts, args.seed)
    summary = {"run": str(args.target), "update": loaded.update} | result.to_dict()
    if args.submission is not None:
        answers = loaded.evaluator.predictions(loaded.agents, jax.random.key(args.seed))
        write_submission(args.submission, answers)
        summary["submission"] = str(args.submission)
    if args.json:
        print(json.dumps(plain(summary | {"tasks": result.table()}), indent=2))
        return 0
    from worldloom.track.console import facts, table

    if args.tasks:
        rows = result.table()
        shown = [["" if v is None else v for v in row.values()] for row in rows]
        table("tasks", list(rows[0]), shown)
    shown = scores_of(result)
    if args.submission is not None:
        shown["submission"] = str(args.submission)
    facts(f"{args.target}, update {loaded.update}", shown)
    return 0


def _check_submission(path: Path, config: ArcTrainConfig) -> None:
    """Refuses what could not be written or would mean nothing, before anything is played."""
    if path.exists():
        raise ValueError(f"--submission {path}: it exists, and is not replaced; name another file")
    if config.algo == "greedy":
        raise ValueError("--submission: greedy reads the answers; give the run of another agent")
