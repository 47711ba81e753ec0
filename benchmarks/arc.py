"""`worldloom bench arc`: speed against JaxARC, ARCLE and arcengine, its cost, and learning."""

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import players
from benchmarks.arc_games import games
from benchmarks.arc_parts import ablation, compile_seconds, recompilations
from benchmarks.figures import MEANING
from benchmarks.pages.results import write_bench
from benchmarks.record import Record
from worldloom.core.files import plain, write_text
from worldloom.core.names import suggest
from worldloom.training.arguments import parse
from worldloom.training.console import table
from worldloom.training.timer import ratio

RATIOS = MEANING["arc"]
SECTIONS = ("speed", "curve", "parts", "games", "learning", "generalisation")


@dataclass(frozen=True)
class Sizes:
    """How much is measured. Steps are those of a block."""

    batch: int = 1024
    our_steps: int = 400
    single_steps: int = 10_000
    jaxarc_steps: int = 100
    arcle_steps: int = 8_000
    arcle_vector: int = 16
    repeats: int = 7
    curve: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096, 16_384)
    curve_steps: int = 200_000  # of all worlds together, in a block
    parts_batch: int = 256
    game_steps: int = 200  # of each game
    arcengine_steps: int = 4096  # of all games together


QUICK = Sizes(
    batch=8,
    our_steps=4,
    single_steps=10,
    jaxarc_steps=2,
    arcle_steps=32,
    arcle_vector=4,
    repeats=2,
    curve=(1, 8),
    curve_steps=16,
    parts_batch=4,
    game_steps=4,
    arcengine_steps=16,
)

# name -> (task set, side of the canvas): 5x5, what fits 10x10, and everything
CURVE_SETS = {
    "mini-arc 5x5": ("mini-arc", 5),
    "arc-agi-1 10x10": ("arc-agi-1", 10),
    "arc-agi-1 30x30": ("arc-agi-1", 30),
}


@dataclass
class BenchArc:
    """The arguments of `worldloom bench arc`."""

    out: Path | None = None
    """Where to write; benchmarks/results/arc.json, or arc-partial / arc-quick beside it."""
    only: tuple[str, ...] = ()
    """Sections: speed, curve, parts, games, learning, generalisation; all if none is named."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """Tiny sizes, to see that it works; its figures mean nothing."""


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench arc`; 0, or 1 if a section failed."""
    about = "Measure the arc worlds against JaxARC and ARCLE and write JSON; half an hour."
    args = parse(BenchArc, argv, "worldloom bench arc", about)
    for name in args.only:
        if name not in SECTIONS:
            raise ValueError(f"there is no section {name!r}; {suggest(name, SECTIONS)}")
    variant = "-quick" if args.quick else "-partial" if args.only else ""
    out = args.out or Path("benchmarks/results") / f"arc{variant}.json"
    line = shlex.join(["worldloom", "bench", "arc", *argv])
    record = run(QUICK if args.quick else Sizes(), args.only or SECTIONS, out, line, args.quick)
    page = write_bench(plain(record.result), out.with_suffix(".html"))
    code = 0 if record.result["complete"] else 1
    if args.json:
        print(json.dumps(plain(record.result), indent=2))
        return code
    rows = [
        [name, "-" if value is None else f"{value:,.3g}", RATIOS[name]]
        for name, value in record.result["ratios"].items()
    ]
    table("arc: all measured in this run", ["figure", "measured", "what it is"], rows)
    for section, error in record.result["errors"].items():
        print(f"- {section} failed: {error}")
    print(f"written to {out} and {page}")
    return code


def run(sizes: Sizes, sections: Sequence[str], out: Path, line: str, quick: bool) -> Record:
    """Measures `sections` and writes `out` after each; one that fails does not stop the others."""
    record = Record(
        out,
        kind="bench",
        suite="arc",
        command=line,
        quick=quick,
        sections=list(sections),
        ratios=dict.fromkeys(RATIOS),
        raw={},
    )
    measures: dict[str, Callable[[Sizes, Record, dict[str, Any]], None]] = {
        "speed": speed,
        "curve": curve,
        "parts": parts,
        "games": games,
        "learning": learning,
        "generalisation": generalisation,
    }
    for name in sections:
        raw = record.result["raw"].setdefault(name, {})
        record.section(name, partial(measures[name], sizes, record, raw))
    record.finish()
    return record


def write_tasks(path: Path) -> None:
    """The 400 training tasks of ARC-AGI-1 as JSON, so that all sides play the same."""
    from worldloom.suites.arc.sources import load

    tasks = load("arc-agi-1", split="training")
    write_text(path, json.dumps([task.to_json() for task in tasks]))


def speed(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """Random boxes over 35 operations at 30x30: ours, JaxARC and ARCLE, blocks taken in turn."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="worldloom-arc-") as folder:
        tasks = Path(folder) / "tasks.json"
        write_tasks(tasks)
        box: dict[str, Any] = {"tasks": str(tasks), "side": 30, "action": "box"}
        point = box | {"action": "point"}
        many = {"batch": sizes.batch, "steps": sizes.our_steps}
        theirs = {"batch": sizes.batch, "steps": sizes.jaxarc_steps}
        alone = {"batch": 1, "devices": None}
        makers: dict[str, Callable[[], players.Player]] = {
            "ours": lambda: players.ours(**box, **many, devices=cores),
            "ours_on_one_device": lambda: players.ours(**box, **many, devices=None),
            "ours_points": lambda: players.ours(**point, **many, devices=cores),
            "ours_single": lambda: players.ours(**box, **alone, steps=sizes.single_steps),
            "jaxarc": lambda: players.peer("jaxarc", **box, **theirs, devices=None),
            "jaxarc_on_all_cores": lambda: players.peer("jaxarc", **box, **theirs, devices=cores),
            "arcle_single": lambda: players.peer("arcle", **box, **alone, steps=sizes.arcle_steps),
            "arcle_vector": lambda: players.peer(
                "arcle", **box, batch=sizes.arcle_vector, steps=sizes.arcle_steps, devices=None
            ),
            "arcle_processes": lambda: players.peer(
                "arcle", **box, batch=cores, steps=sizes.arcle_steps, devices=None, processes=True
            ),
        }
        with ExitStack() as stack:
            ready: dict[str, players.Player] = {}
            for name, make in makers.items():
                ready[name] = stack.enter_context(make())
                record.note(f"  {name}: ready")
            timed = players.take_turns(ready, sizes.repeats)
    each = {name: timing.median for name, timing in timed.items()}
    raw |= {
        "unit": "environment steps per second: sampling, step, reward, int8 working grid consumed, "
        "automatic reset",
        "batch": sizes.batch,
        "steps_per_second": {name: 1.0 / seconds for name, seconds in each.items()},
        "seconds_per_step": {name: timing.to_dict() for name, timing in timed.items()},
        "facts": {name: player.facts for name, player in ready.items()},
    }
    ratios = record.result["ratios"]
    best_jaxarc = min(each["jaxarc"], each["jaxarc_on_all_cores"])
    best_arcle = min(each["arcle_single"], each["arcle_vector"], each["arcle_processes"])
    ratios["steps_vs_jaxarc_30x30_1024"] = ratio(best_jaxarc, each["ours"])
    ratios["steps_vs_arcle_batched"] = ratio(best_arcle, each["ours"])
    ratios["steps_vs_arcle_single"] = ratio(each["arcle_single"], each["ours_single"])
    ratios["point_mix_vs_box_mix"] = ratio(each["ours"], each["ours_points"])
    for name, seconds in each.items():
        record.note(f"  {name}: {1.0 / seconds:,.0f} steps/s")


def curve(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """Steps per second over batch sizes and task sets; compile time and memory beside them."""
    cores = os.cpu_count() or 1
    for name, (tasks, side) in CURVE_SETS.items():
        rows = raw.setdefault(name, [])
        for batch in sizes.curve:
            steps = max(sizes.curve_steps // batch, 1)
            with players.ours(
                tasks=tasks, side=side, action="box", batch=batch, steps=steps, devices=cores
            ) as player:
                timing = players.take_turns({name: player}, sizes.repeats)[name]
            rows.append({"batch": batch, "steps_per_second": 1.0 / timing.median} | player.facts)
            record.save()
        best = max(rows, key=lambda row: row["steps_per_second"])
        record.note(f"  {name}: {best['steps_per_second']:,.0f} steps/s at {best['batch']} worlds")


def parts(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """What each design choice is worth, and that nothing is compiled twice."""
    raw["compile_seconds"] = compile_seconds(sizes.parts_batch)
    raw["recompilations_in_steady_state"] = recompilations(sizes.parts_batch)
    raw["ablation"] = ablation(sizes.parts_batch, sizes.repeats, record.note)


def learning(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """PPO on the first 20 small Mini-ARC tasks, with its curve."""
    from benchmarks.arc_learning import learn

    raw |= learn(record.note, quick=sizes == QUICK)
    record.result["ratios"]["demo_tasks_solved_share"] = raw["demo_tasks_solved"] / raw["tasks"]


def generalisation(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """A policy told by demonstrations on new tasks, held-out families, Mini-ARC and ARC-AGI-1."""
    from benchmarks import arc_generalisation as table

    effort = table.QUICK if sizes == QUICK else table.Effort()

    def note(text: str) -> None:
        record.note(text)
        record.save()

    table.generalisation(effort, note, raw)
    record.result["ratios"] |= table.ratios(raw)


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
