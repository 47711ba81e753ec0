"""`worldloom bench modes`: execution modes on equal work, or recorded runs of equal work."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from benchmarks.modes_memory import MEANING
from benchmarks.modes_parts import PARTS
from benchmarks.modes_runs import compare_runs
from benchmarks.modes_timing import (
    EXPLORATION,
    Plan,
    compare_modes,
    equal_work,
    possible_modes,
    quick,
)
from benchmarks.pages.modes import write_comparison
from benchmarks.processes import own_cache
from benchmarks.record import Record
from worldloom.core.files import plain
from worldloom.suites.grid.problem import make_env
from worldloom.suites.grid.suite import SUITE, Mode, original
from worldloom.training.arguments import name_values, parse
from worldloom.training.config import TrainConfig, make_config
from worldloom.training.console import table
from worldloom.training.folders import new_folder


@dataclass
class Compare:
    """The arguments of `worldloom bench modes`."""

    target: Annotated[tuple[str, ...], tyro.conf.Positional] = ("treasurehunt",)
    """A world's name, or two or more run folders."""
    modes: tuple[Mode, ...] = ()
    """Which modes; all that can do the work if not given."""
    agents: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Numbers of agents."""
    epochs: int = 4
    """Epochs in one timed block."""
    repeats: int = 5
    """Timed blocks of each mode, taken in turn; figures are their medians."""
    turn_order: Literal["interleaved", "simultaneous"] | None = None
    """Order of turns: part of the task, so one for all modes."""
    world: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Options of the world."""
    preset: Literal["original", "default"] = "original"
    """Sizes of the work: the original's, which every mode can do, or our defaults."""
    acting: Literal["midpoints", "original"] = "midpoints"
    """How JAX modes act: with stratified levels as many as they learn with, or as the original."""
    memory: bool = True
    """Also measure memory, in a fresh process for each mode and number of agents."""
    out: Path | None = None
    """Folder for compare.json and compare.html (runs/compare-<time> if not given), or FILE.json."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """Tiny sizes, to see in seconds that it works; its figures mean nothing."""


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench modes`; returns its exit code."""
    about = "Run execution modes on equal work and time them, or compare recorded runs."
    args = parse(Compare, argv, "worldloom bench modes", about)
    line = shlex.join(["worldloom", "bench", "modes", *argv])
    out = args.out or new_folder(Path("runs"), "compare")
    path = out if out.suffix == ".json" else out / "compare.json"
    if path.exists():
        raise ValueError(f"{out} already holds a comparison; choose another --out")
    if len(args.target) != 1 or (Path(*args.target) / "config.json").exists():
        return _recorded(args, line, path)
    return _measured(args, line, path)


# Modes, measured now -----------------------------------------------------------------------------


def base_config(args: Compare) -> TrainConfig:
    """The work that all modes shall do, before the number of agents is set."""
    env = args.target[0]
    settings: dict[str, Any] = original() if args.preset == "original" else {"algo": "iqn"}
    world = dict(settings.pop("world", {})) if env == "treasurehunt" else {}
    world |= name_values(args.world)
    if "num_agents" in world:
        raise ValueError("--world num_agents=...: numbers of agents are given with --agents")
    if args.turn_order is not None:
        if world.get("turn_order", args.turn_order) != args.turn_order:
            raise ValueError("--world turn_order and --turn-order differ; give one")
        world["turn_order"] = args.turn_order
    config = make_config(SUITE, settings | {"env": env, "world": world})
    return quick(config) if args.quick else config


def _measured(args: Compare, line: str, path: Path) -> int:
    base = base_config(args)
    if not args.agents or min(args.agents) < 1:
        raise ValueError(f"--agents {args.agents}: give numbers of at least 1")
    counts = args.agents
    if args.quick:
        counts = tuple(n for n in counts if n <= 2) or counts[:1]
    plan = Plan(args.epochs, args.repeats, memory=args.memory)
    if args.quick:
        plan = replace(plan, epochs=min(args.epochs, 2), repeats=min(args.repeats, 2))
    modes, skipped = possible_modes(base, args.modes or None)
    if not modes:
        raise ValueError(f"no mode is left to run: {skipped['torch_sequential']}")
    midpoints = args.acting == "midpoints"
    work = {n: equal_work(base, modes, n, midpoints=midpoints) for n in counts}
    # Every world is made once before anything is measured: bad options end the command here.
    order = {n: make_env(next(iter(c.values()))).spec.turn_order for n, c in work.items()}
    record = Record(
        path,
        kind="compare",
        command=line,
        quick=args.quick,
        task={
            "env": base.env,
            "turn_order": order[counts[0]],
            "world": dict(base.world),
            "preset": args.preset,
            "epsilon": EXPLORATION,
            "num_worlds": base.num_worlds,
            "iqn": asdict(base.hyper),
        },
        notes=_notes(base, modes, midpoints, args.memory)
        + [f"{mode} is left out: {reason}." for mode, reason in skipped.items()],
        skipped=skipped,
        plan=asdict(plan),
        parts=PARTS,
        rows=[],
        samples={},
    )
    for mode, reason in skipped.items():
        record.note(f"{mode} is left out: {reason}")
    with own_cache() as cache:
        for count, configs in work.items():

            def measure(count=count, configs=configs):
                rows, samples = compare_modes(configs, plan, cache, record.note)
                record.result["rows"] += rows
                record.result["samples"][str(count)] = samples

            record.section(f"{count} agent{'s' * (count > 1)}", measure)
    code = record.finish()
    return _show(record, args, code)


def _notes(base: TrainConfig, modes: list[Mode], midpoints: bool, memory: bool) -> list[str]:
    notes = [
        f"Every mode plays the same task with a fixed exploration of {EXPLORATION} and memories "
        "that are filled first, so that every timed epoch trains every agent.",
        "Blocks of epochs of all modes are taken in turn; figures are medians. Compiling is timed "
        "apart, from an empty compilation cache.",
    ]
    if midpoints and base.hyper.act_levels == "random":
        baseline = "torch_sequential acts" if "torch_sequential" in modes else "the original acts"
        notes.append(
            f"JAX modes act with {base.hyper.num_quantiles} stratified levels; {baseline} with "
            f"{base.hyper.act_quantiles} random ones (--acting original: all do). Learning is the "
            "same arithmetic in all modes."
        )
    if memory:
        notes.append(f"Memory is the {MEANING}.")
    return notes


# Runs, as they were recorded ---------------------------------------------------------------------


def _recorded(args: Compare, line: str, path: Path) -> int:
    folders = [Path(name) for name in args.target]
    rows = compare_runs(folders)
    record = Record(
        path,
        kind="compare-runs",
        command=line,
        task={"env": "recorded runs", "runs": len(rows), "steps": rows[0]["steps"]},
        notes=["Figures are those that the runs recorded, on the machines they ran on."],
        rows=rows,
    )
    return _show(record, args, record.finish())


# What the tables show, and how it is headed; two of them, each narrow enough for a terminal.
TABLES = {
    "the same work": {
        "run": "run",
        "mode": "mode",
        "num_agents": "agents",
        "seed": "seed",
        "score": "score",
        "train_seconds": "train, s",
        "epochs_per_second": "epochs/s",
        "speedup": "speed-up",
        "compile_seconds": "compile, s",
        "memory_mb": "MB",
    },
    "milliseconds of an epoch (sample and loss are within train)": {
        "mode": "mode",
        "num_agents": "agents",
        **{f"{part}_ms": part for part in PARTS},
    },
}


def _show(record: Record, args: Compare, code: int) -> int:
    written = [record.path]
    if record.path != args.out:  # a folder was asked for, or nothing
        page = record.path.with_suffix(".html")
        written.append(write_comparison(plain(record.result), page))
    if args.json:
        print(json.dumps(plain(record.result), indent=2))
        return code
    rows = record.result["rows"]
    for title, heads in TABLES.items():
        columns = [name for name in heads if any(row.get(name) is not None for row in rows)]
        if len(columns) > 2:
            table(
                f"{record.result['task']['env']}: {title}",
                [heads[name] for name in columns],
                [[_cell(row.get(name)) for name in columns] for row in rows],
            )
    for text in record.result["notes"]:
        print(f"- {text}")
    for section, error in record.result["errors"].items():
        print(f"- {section} failed: {error}")
    print(f"written to {' and '.join(map(str, written))}")
    return code


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
