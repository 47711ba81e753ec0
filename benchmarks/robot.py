"""`worldloom bench robot`: physics, levels of training, Brax, compile time, learning, tracking,
uneven ground."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.figures import MEANING
from benchmarks.pages.results import write_bench
from benchmarks.players import take_turns
from benchmarks.processes import in_fresh_process
from benchmarks.record import Record
from benchmarks.robot_stage import Process
from worldloom.core.files import plain
from worldloom.core.names import suggest
from worldloom.suites.robot.suite import STEPS_PER_UPDATE
from worldloom.training.arguments import parse
from worldloom.training.console import table
from worldloom.training.timer import Timing, ratio

RATIOS = MEANING["robot"]
SECTIONS = ("physics", "levels", "brax", "compile", "learning", "tracking", "ground")


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and with which networks and passes."""

    batch: int = 512
    physics_steps: int = 50  # of control, of each robot, in a block: a second
    physics_repeats: int = 11
    levels: tuple[tuple[int, int, int], ...] = ((16, 30, 5), (512, 3, 5), (4096, 1, 3))
    """Worlds, updates in a block, blocks. An update is the least there is to measure."""
    brax_updates: int = 3
    brax_repeats: int = 5
    hidden: tuple[int, ...] = (128, 128)
    unroll_length: int = 24
    num_epochs: int = 4
    num_minibatches: int = 8
    compile_repeats: int = 3
    walk_minutes: float = 45.0
    amp_minutes: float = 45.0
    stand_minutes: float = 15.0
    stand_steps: int = 250 * STEPS_PER_UPDATE
    eval_every: int = 50 * STEPS_PER_UPDATE
    tiny_learning: bool = False
    tracking_minutes: float = 60.0
    tracking_seconds: float = 20.0
    tracked: Path | None = None  # a run or a bundle; else one is trained
    flat: Path | None = None  # of ground: the run that was trained on a flat floor
    ground_updates: int = 3
    ground_repeats: int = 5

    def same(self) -> dict[str, Any]:
        """What all trainers have in common."""
        names = ("hidden", "unroll_length", "num_epochs", "num_minibatches")
        return {name: getattr(self, name) for name in names}


QUICK = Sizes(
    batch=4,
    physics_steps=2,
    physics_repeats=1,
    levels=((4, 1, 1),),
    brax_updates=1,
    brax_repeats=1,
    hidden=(8,),
    unroll_length=2,
    num_epochs=1,
    num_minibatches=2,
    compile_repeats=1,
    stand_steps=32,
    eval_every=16,
    tiny_learning=True,
    tracking_seconds=2.5,
    ground_updates=1,
    ground_repeats=1,
)

# level -> (environment, trainer, what is compiled)
LEVELS = {
    "level1": ("a loop in numpy over MuJoCo", "own PPO", "forward pass, minibatch update"),
    "level2": ("MuJoCo in C, behind brax.envs.Env", "Brax PPO", "all but the physics"),
    "level3": ("MJX", "own PPO", "everything"),
    "level4": ("auto: MuJoCo in C on a CPU", "own PPO", "all but the physics, on all devices"),
}
COMPILE_BARS = {"mjx": 30.0, "c": 8.0, "mjx_cached": 5.0}  # seconds


@dataclass
class BenchRobot:
    """The arguments of `worldloom bench robot`."""

    out: Path | None = None
    """Where to write; benchmarks/results/robot.json, or robot-partial / robot-quick beside it."""
    only: tuple[str, ...] = ()
    """Sections: physics, levels, brax, compile, learning, tracking, ground; by default all."""
    run: Path | None = None
    """Of tracking: the run or the bundle of a joystick policy; else one is trained. Of ground: the
    run of a walk that was trained on it."""
    flat: Path | None = None
    """Of ground: the run of a walk that was trained on a flat floor; else one is trained."""
    minutes: float = 60.0
    """Of tracking and ground: how long each such training may take."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """Tiny sizes, to see that it works; its figures mean nothing."""


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench robot`; 0, or 1 if a section failed."""
    about = "Measure the robot's engines, levels of training and learning; about five hours."
    args = parse(BenchRobot, argv, "worldloom bench robot", about)
    for name in args.only:
        if name not in SECTIONS:
            raise ValueError(f"there is no section {name!r}; {suggest(name, SECTIONS)}")
    if not 0.0 < args.minutes <= 1440.0:
        raise ValueError(f"minutes={args.minutes}; it must be above 0, and a day at most")
    for given in filter(None, (args.run, args.flat)):
        if not given.is_dir():
            raise ValueError(f"there is no run or bundle {given}")
    if args.run is not None and {"tracking", "ground"} <= {*(args.only or SECTIONS)}:
        raise ValueError("run= is of tracking or of ground; name one of them (--only)")
    variant = "-quick" if args.quick else "-partial" if args.only else ""
    out = args.out or Path("benchmarks/results") / f"robot{variant}.json"
    line = shlex.join(["worldloom", "bench", "robot", *argv])
    sizes = replace(
        QUICK if args.quick else Sizes(), tracking_minutes=args.minutes, tracked=args.run
    )
    sizes = replace(sizes, flat=args.flat)
    record = run(sizes, args.only or SECTIONS, out, line, args.quick)
    page = write_bench(plain(record.result), out.with_suffix(".html"))
    code = 0 if record.result["complete"] else 1
    if args.json:
        print(json.dumps(plain(record.result), indent=2))
        return code
    rows = [
        [name, "-" if value is None else f"{value:,.3g}", RATIOS[name]]
        for name, value in record.result["ratios"].items()
    ]
    table("robot: all measured in this run", ["figure", "measured", "what it is"], rows)
    print_levels(record.result["raw"].get("levels") or {})
    for section, error in record.result["errors"].items():
        print(f"- {section} failed: {error}")
    print(f"written to {out} and {page}")
    return code


def print_levels(raw: Mapping[str, Any]) -> None:
    """The level table, slower levels too."""
    rows = raw.get("table") or []
    if not rows:
        return
    worlds = list(rows[0]["steps_per_second"])
    cells = [
        [
            str(row["level"]),
            row["environment"],
            row["trainer"],
            *(_shown(row["steps_per_second"].get(count), ",.0f") for count in worlds),
            row["compiled"],
            _shown(row["device_use"], ".2f"),
        ]
        for row in rows
    ]
    head = [
        "level",
        "environment",
        "trainer",
        *(f"{int(count):,} worlds" for count in worlds),
        "compiled",
        "CPU / wall time",
    ]
    table("environment steps per second, learning included", head, cells)


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def run(sizes: Sizes, sections: Sequence[str], out: Path, line: str, quick: bool) -> Record:
    """Measures `sections` and writes `out` after each; one that fails does not stop the others."""
    record = Record(
        out,
        kind="bench",
        suite="robot",
        command=line,
        quick=quick,
        sections=list(sections),
        ratios=dict.fromkeys(RATIOS),
        raw={},
    )
    record.result["versions"] |= {
        name: metadata.version(name) for name in ("mujoco", "mujoco-mjx", "brax")
    }
    measures: dict[str, Callable[[Sizes, Record, dict[str, Any]], None]] = {
        "physics": physics,
        "levels": levels,
        "brax": brax,
        "compile": compile_,
        "learning": learning,
        "tracking": tracking,
        "ground": ground,
    }
    for name in sections:
        raw = record.result["raw"].setdefault(name, {})
        record.section(name, partial(measures[name], sizes, record, raw))
    record.finish()
    return record


# Speed -------------------------------------------------------------------------------------------


def measured(
    setups: Mapping[str, dict[str, Any]], repeats: int, record: Record
) -> tuple[dict[str, float], dict[str, Any]]:
    """Steps per second of every player, their blocks taken in turn, and what else there is."""
    with ExitStack() as stack:
        ready: dict[str, Process] = {}
        for name, setup in setups.items():
            player = Process(**setup)
            stack.enter_context(player)
            ready[name] = player
            record.note(f"  {name}: ready")
        timed: dict[str, Timing] = take_turns(ready, repeats)
    rates = {name: 1.0 / timing.median for name, timing in timed.items()}
    for name, rate in rates.items():
        record.note(f"  {name}: {rate:,.0f} steps/s")
    return rates, {
        "steps_per_second": rates,
        "seconds_per_step": {name: timing.to_dict() for name, timing in timed.items()},
        "device_use": {name: player.device_use for name, player in ready.items()},
        "facts": {name: player.facts for name, player in ready.items()},
    }


def _cores() -> int | None:
    """As many devices as there are cores, where there are several."""
    cores = os.cpu_count() or 1
    return cores if cores > 1 else None


def _best(rates: Mapping[str, float], *names: str) -> str:
    return max((name for name in names if name in rates), key=lambda name: rates[name])


def physics(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """The same robots, targets and number of steps in every engine; no learning, no task."""
    block = {"batch": sizes.batch, "steps_in_block": sizes.physics_steps}
    alone = {
        name: {"player": name, **block, "devices": None}
        for name in ("rollout", "batch", "numpy", "c_in_jit", "mjx_in_jit")
    }
    spread = {"player": "mjx_in_jit", **block, "devices": _cores()}
    setups = alone | ({"mjx_in_jit_on_all_cores": spread} if _cores() else {})
    rates, rest = measured(setups, sizes.physics_repeats, record)
    mjx = _best(rates, "mjx_in_jit", "mjx_in_jit_on_all_cores")
    raw |= {
        "unit": f"steps of control per second, each {_substeps()} of the engine, open loop",
        "batch": sizes.batch,
        "best_mjx": mjx,
        **rest,
    }
    ratios = record.result["ratios"]
    ratios["c_in_jit_vs_rollout"] = ratio(1.0 / rates["rollout"], 1.0 / rates["c_in_jit"])
    ratios["c_in_jit_vs_mjx_512"] = ratio(1.0 / rates[mjx], 1.0 / rates["c_in_jit"])


def _substeps() -> int:
    from worldloom.suites.robot.model import biped

    return biped().substeps


def levels(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """Steps per second of training, learning included, at every level and number of worlds."""
    raw |= {
        "unit": "environment steps per second of training, rollout and learning",
        "same": sizes.same(),
        "sizes": {},
    }
    for worlds, updates, repeats in sizes.levels:
        setup = {"batch": worlds, "updates": updates, "devices": None, **sizes.same()}
        setups = {name: {"player": name, **setup} for name in LEVELS}
        if _cores():
            setups["level4_on_all_cores"] = {
                "player": "level4",
                **setup,
                "devices": _cores(),
            }
        record.note(f"  {worlds:,} worlds")
        _, rest = measured(setups, repeats, record)
        raw["sizes"][str(worlds)] = {"updates_in_block": updates, **rest}
        raw["table"] = level_table(raw["sizes"], str(sizes.batch))
        record.save()
    rates = raw["sizes"].get(str(sizes.batch), {}).get("steps_per_second")
    if rates:
        best = rates[_best(rates, "level4", "level4_on_all_cores")]
        record.result["ratios"]["ppo_level4_vs_level1"] = ratio(1.0 / rates["level1"], 1.0 / best)


def level_table(measured_: Mapping[str, Any], batch: str) -> list[dict[str, Any]]:
    """A row for each level: what it is, its steps per second by worlds, and its device use.

    Level 4 is on one device or on all, whichever is faster; device use is that at `batch` worlds.
    """
    rows = []
    for level, (environment, trainer, what) in LEVELS.items():
        names = (level, f"{level}_on_all_cores")
        best = {n: _best(one["steps_per_second"], *names) for n, one in measured_.items()}
        shown = batch if batch in measured_ else next(iter(measured_))
        rows.append(
            {
                "level": int(level[-1]),
                "environment": environment,
                "trainer": trainer,
                "compiled": what,
                "steps_per_second": {
                    n: one["steps_per_second"][best[n]] for n, one in measured_.items()
                },
                "devices": {
                    n: one["facts"][best[n]].get("devices") for n, one in measured_.items()
                },
                "device_use": measured_[shown]["device_use"][best[shown]],
            }
        )
    return rows


def brax(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """Our level 4 against Brax's PPO over MJX: one device each, all devices each, best to best."""
    setup = {"batch": sizes.batch, "updates": sizes.brax_updates, **sizes.same()}
    setups = {}
    for name in ("level4", "brax_mjx"):
        setups[name] = {"player": name, **setup, "devices": None}
        if _cores():
            setups[f"{name}_on_all_cores"] = {"player": name, **setup, "devices": _cores()}
    rates, rest = measured(setups, sizes.brax_repeats, record)
    ours = rates[_best(rates, "level4", "level4_on_all_cores")]
    theirs = rates[_best(rates, "brax_mjx", "brax_mjx_on_all_cores")]
    raw |= {
        "unit": "environment steps per second of training; Brax's by its own clock, which counts "
        "its epochs from the third on and nothing between them",
        "batch": sizes.batch,
        "same": sizes.same(),
        **rest,
    }
    record.result["ratios"]["ppo_vs_brax_mjx"] = ratio(1.0 / theirs, 1.0 / ours)


# Compile time and learning -----------------------------------------------------------------------


def compile_(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """Seconds to the first step of control in fresh processes; MJX also with a warm cache."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in COMPILE_BARS}
    for _ in range(sizes.compile_repeats):
        with tempfile.TemporaryDirectory(prefix="worldloom-cache-") as folder:
            for name in taken:
                setup = {"physics": name.removesuffix("_cached"), "batch": sizes.batch}
                first = "benchmarks.robot_levels:first_step"
                taken[name].append(in_fresh_process(first, setup, Path(folder)))
                record.note(f"  {name}: {taken[name][-1]['seconds']:.1f} s")
    raw |= {
        "unit": "seconds to the first step of control, imports of JAX apart",
        "batch": sizes.batch,
        "seconds": {
            name: Timing(tuple(row["seconds"] for row in rows)).to_dict()
            for name, rows in taken.items()
        },
        "bars": COMPILE_BARS,
        "parts": {name: rows[0] for name, rows in taken.items()},
    }


def learning(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """The robot learns to walk and to stand, and to walk with a motion prior."""
    from benchmarks.robot_learning import learn, taken_share

    ratios = record.result["ratios"]
    for name, minutes, changes in (
        ("walk", sizes.walk_minutes, {}),
        ("walk_amp", sizes.amp_minutes, {}),
        ("stand", sizes.stand_minutes, {"steps": sizes.stand_steps}),
    ):
        record.note(f"  {name}")
        changes = {"eval_every": sizes.eval_every} | changes
        raw[name] = learn(name, minutes, record.note, sizes.tiny_learning, **changes)
        record.save()
    walk, amp = raw["walk"]["final"], raw["walk_amp"]["final"]
    ratios["walk_good_share"] = walk["good"]
    ratios["amp_gait_distance_share"] = ratio(amp["gait_distance"], walk["gait_distance"])
    ratios["stand_push_share"] = taken_share(raw["stand"]["ladder"])


def tracking(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """A steered robot follows commands to the ends of its range, on C MuJoCo."""
    from benchmarks import robot_tracking

    given, minutes, seconds = sizes.tracked, sizes.tracking_minutes, sizes.tracking_seconds
    robot_tracking.tracking(given, minutes, raw, record.note, seconds, sizes.tiny_learning)
    ratios, apollo = record.result["ratios"], robot_tracking.PEERS["Apollo"]
    ratios["joystick_error_share"] = ratio(raw["error_share"], apollo)
    ratios["joystick_falls"] = raw["falls"]


def ground(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """Walks over uneven ground, trained on it and not, and what it costs."""
    from benchmarks import robot_ground

    ratios, kind = record.result["ratios"], robot_ground.KIND
    setup = {"batch": sizes.batch, "updates": sizes.ground_updates, **sizes.same()}
    setups = {
        name: {"player": "level4", **setup, "devices": None, "ground": where}
        for name, where in (("level4", "none"), ("level4_on_ground", kind))
    }
    rates, rest = measured(setups, sizes.ground_repeats, record)
    raw["speed"] = {"batch": sizes.batch, "same": sizes.same(), **rest}
    ratios["ground_speed_share"] = ratio(1.0 / rates["level4"], 1.0 / rates["level4_on_ground"])
    record.save()
    given, minutes = (sizes.tracked, sizes.flat), sizes.tracking_minutes
    robot_ground.ground(given, minutes, raw, record.note, sizes.tiny_learning)
    ratios["ground_traversed_share"] = robot_ground.share(raw["uneven"])
    ratios["ground_flat_traversed_share"] = robot_ground.share(raw["flat"])
