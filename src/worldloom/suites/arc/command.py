"""`worldloom arc ...`: tasks in lists, pictures and a page to play on; scores and submissions."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from worldloom.core.names import shown, suggest
from worldloom.training import console
from worldloom.training.arguments import run_group

if TYPE_CHECKING:
    from worldloom.suites.arc.tasks import Task

DEFAULT_SET = "arc-agi-1"
TASK_COLUMNS = ("task", "demos", "tests", "inputs", "outputs", "changed", "colours")


@dataclass(kw_only=True)
class Output:
    """How to answer."""

    json: bool = False
    """Print JSON, for other programs."""


@dataclass(kw_only=True)
class Tasks(Output):
    """list the tasks of a set, with statistics"""

    set: str = "examples"
    """examples, arc-agi-1, arc-agi-2, mini-arc, concept-arc, or a folder of task files."""
    split: str | None = None
    """training, evaluation or all."""
    subset: str | None = None
    """A named subset, such as same-size-5-edits."""
    max_size: int | None = None
    """Leave out tasks with a grid that is higher or wider."""
    limit: int | None = None
    """List no more tasks than this; the statistics are of all."""


@dataclass(kw_only=True)
class OneTask(Output):
    """Which task."""

    task: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """A task's id, SET/ID such as examples/fall, or a JSON file."""
    set: str | None = None
    """Where to look; by default among the examples and in arc-agi-1."""
    split: str | None = None
    """training, evaluation or all (the default)."""


@dataclass(kw_only=True)
class Show(OneTask):
    """draw a task in the terminal, or write it as SVG or PNG"""

    out: Path | None = None
    """Write the picture here instead: a file that ends in .svg or .png."""
    answers: bool = True
    """Leave open what the test pairs' outputs are."""


@dataclass(kw_only=True)
class Play(OneTask):
    """solve a task by hand, on a page of this machine"""

    out: Path = Path("plays")
    """Folder for the episodes that are saved as training data."""
    port: int = 0
    """Port of the page on this machine; 0 takes one that is free."""
    trials: int = 3
    """Submissions allowed; -1 for any number."""
    max_steps: int = 1000
    """Steps allowed."""
    extended: bool = True
    """Leave out the six extended operations."""
    open: bool = True
    """Open no browser; from a terminal one is opened otherwise."""


@dataclass(kw_only=True)
class OneRun(Output):
    """Which run."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run on arc."""
    seed: int = 0
    """Of the episodes that are played."""


@dataclass(kw_only=True)
class Scores(OneRun):
    """score a run again, task by task"""

    attempts: int | None = None
    """Sampled attempts at every pair, for pass@k; by default as many as in training."""
    beam: int | None = None
    """Programs that grow side by side in the search before a test pair is played, 0 for no search;
    by default as in training. For policies that cloned solutions of generated tasks."""


@dataclass(kw_only=True)
class Submit(OneRun):
    """write a run's answers to the test inputs, as competitions take them"""

    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.json")]
    """The file to write; one that exists stays."""


def command(argv: Sequence[str]) -> int:
    """Hands the rest of the line to the command that it names; returns its exit code."""
    return run_group("worldloom arc", COMMANDS, argv)


def find_task(name: str, task_set: str | None = None, split: str | None = None) -> "Task":
    """A task by its id, by SET/ID, or by its file; the beginning of one id is enough.

    Without a set it is looked for among the examples, then in ARC-AGI-1.
    """
    from worldloom.suites.arc.sources import TASK_SETS, canonical_name, load

    prefix, slash, rest = name.partition("/")
    if task_set is None and slash and canonical_name(prefix) in TASK_SETS:
        task_set, name = prefix, rest
    if task_set is None:
        if name.endswith(".json"):
            return load(Path(name)).tasks[0]
        if name in load("examples").ids:
            task_set = "examples"
    given, task_set = task_set, task_set or DEFAULT_SET
    try:
        return load(task_set, split=split, tasks=[name]).tasks[0]
    except ValueError:
        everything = load(task_set, split=split or "all")
        begin = [task_id for task_id in everything.ids if name and task_id.startswith(name)]
        if len(begin) == 1:
            return everything[begin[0]]
        known = [*([] if given else load("examples").ids), *everything.ids]
        raise ValueError(f"there is no task {shown(name)}; {suggest(name, known)}") from None


def describe(task: "Task") -> dict[str, Any]:
    """What a task is like, in numbers; cells are counted where the size is kept."""
    import numpy as np

    from worldloom.suites.arc.tasks import mean_edits

    changed = mean_edits(task)
    return {
        "task": task.name,
        "demonstrations": len(task.demos),
        "tests": len(task.tests),
        "largest_input": np.max([pair.input.shape for pair in task.pairs], axis=0).tolist(),
        "largest_output": np.max([pair.output.shape for pair in task.pairs], axis=0).tolist(),
        "changed_cells": None if np.isinf(changed) else changed,
        "colors": len(np.unique(np.concatenate([grid.ravel() for grid in task.grids]))),
    }


def _tasks(args: Tasks) -> int:
    from worldloom.suites.arc.sources import load

    if args.limit is not None and args.limit < 0:
        raise ValueError(f"--limit {args.limit}: it must be 0 or more")
    tasks = load(args.set, split=args.split, subset=args.subset, max_size=args.max_size)
    statistics = tasks.statistics()
    rows = [describe(task) for task in tasks.tasks[: args.limit]]
    if args.json:
        console.print_json(
            {"set": tasks.name, "split": tasks.split, "tasks": rows}
            | {"statistics": asdict(statistics)}
        )
        return 0
    console.table(f"{tasks.name} ({tasks.split})", TASK_COLUMNS, [_cells(row) for row in rows])
    changed = statistics.changed_cells
    console.facts(
        f"all {statistics.tasks} tasks",
        {
            "pairs": f"{statistics.demonstrations} demonstrations, {statistics.tests} tests",
            "largest grid": "x".join(map(str, statistics.largest)),
            "size kept": f"{statistics.same_size:.0%} of pairs"
            + ("" if changed is None else f", which change {changed:.1f} cells on average"),
            "size grows": f"{statistics.growing:.0%} of pairs",
        },
    )
    if rows:
        split = [] if args.split is None else ["--split", args.split]
        console.next_steps(["arc", "show", tasks.tasks[0].name, "--set", args.set, *split])
    return 0


def _cells(row: dict[str, Any]) -> list[str]:
    changed = row["changed_cells"]
    return [
        row["task"],
        str(row["demonstrations"]),
        str(row["tests"]),
        "to {}x{}".format(*row["largest_input"]),
        "to {}x{}".format(*row["largest_output"]),
        "resized" if changed is None else f"{changed:.1f}",
        str(row["colors"]),
    ]


def _show(args: Show) -> int:
    kind = "" if args.out is None else args.out.suffix.lower()
    if args.out is not None and kind not in (".svg", ".png"):
        raise ValueError(f"--out {args.out}: the name must end in .svg or .png")
    task = find_task(args.task, args.set, args.split)
    if args.out is not None:
        from worldloom.core.files import write_text
        from worldloom.suites.arc.draw import task_picture

        picture = task_picture(task, answers=args.answers)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        if kind == ".svg":
            write_text(args.out, picture.svg(f"ARC task {task.name}"))
        else:
            picture.png().save(args.out)
    if args.json:
        content = describe(task) | task.to_json(args.answers)
        console.print_json(content | {"file": args.out and str(args.out)})
    elif args.out is not None:
        console.say(f"written to {args.out}")
    else:
        from rich.console import Console

        from worldloom.suites.arc.draw import task_text

        screen = Console(quiet=console.is_quiet())
        color = screen.color_system is not None and not screen.no_color
        text = task_text(task, color=color, width=screen.width, answers=args.answers)
        screen.print(text, soft_wrap=True)
        given = {"--set": args.set, "--split": args.split}
        flags = [word for flag, value in given.items() if value for word in (flag, value)]
        console.next_steps(["arc", "play", args.task, *flags])
    return 0


def _play(args: Play) -> int:
    task = find_task(args.task, args.set, args.split)
    from worldloom.suites.arc.game import Game
    from worldloom.suites.arc.play import PlayServer
    from worldloom.training.machine import use_compilation_cache

    use_compilation_cache()
    game = Game(
        task, args.out, extended=args.extended, trials=args.trials, max_steps=args.max_steps
    )
    with PlayServer(game, args.port) as server:
        console.phase("compiling")
        game.warm_up()
        if args.json:
            console.print_json({"url": server.url, "task": task.name, "folder": str(args.out)})
        else:
            console.say(f"{task.name} is at {server.url}      (Ctrl-C ends)")
        if args.open and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            left = f"; {game.unsaved} steps were not saved" if game.unsaved else ""
            print(f"\nended{left}", file=sys.stderr)
    return 0


def _load(args: OneRun) -> tuple[Any, Any]:
    """A trained run on ARC, and the key to score it with."""
    import jax

    import worldloom
    from worldloom.core.checks import check_seed
    from worldloom.training.run import read_header

    check_seed(args.seed)
    suite = read_header(args.run)["suite"]
    if suite != "arc":
        raise ValueError(f"{args.run} is a run of the {suite} suite; name one on arc")
    console.phase("loading the run")
    return worldloom.load(args.run), jax.random.key(args.seed)


def _scores(args: Scores) -> int:
    run, key = _load(args)
    evaluator = run.evaluator
    if args.beam is not None:
        from worldloom.suites.arc.problem import with_beam

        evaluator = with_beam(run, args.beam)
    console.phase("evaluating")
    result = evaluator(run.agents, key, args.attempts)
    rows = result.table()
    if args.json:
        summary = {"run": str(args.run), "steps": run.steps} | result.to_dict()
        console.print_json(summary | {"tasks": rows})
        return 0
    cells = [["" if value is None else value for value in row.values()] for row in rows]
    console.table("tasks", list(rows[0]), cells)
    console.facts(f"{args.run}, step {run.steps:,}", result.lines())
    if not (answers := args.run / "submission.json").exists():
        console.next_steps(["arc", "submit", args.run, answers])
    return 0


def _submit(args: Submit) -> int:
    if args.out.exists():
        raise ValueError(f"{args.out} exists, and is not replaced; name another file")
    run, key = _load(args)
    from worldloom.suites.arc.submission import write_submission

    console.phase("answering")
    answers = run.evaluator.predictions(run.agents, key)
    write_submission(args.out, answers)
    if args.json:
        console.print_json(
            {"run": str(args.run), "submission": str(args.out), "tasks": len(answers)}
        )
    else:
        console.say(f"answers to {len(answers)} tasks are written to {args.out}")
    return 0


COMMANDS = {Tasks: _tasks, Show: _show, Play: _play, Scores: _scores, Submit: _submit}
