"""`worldloom bench faults`: kills, damage, fuzzing and load, and how much of it went wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import Section, run_sections
from worldloom.training.arguments import parse

RATIOS = {
    "kill_chains_exact": "killed and resumed trainings that end as undisturbed ones, to the bit",
    "silent_wrong_loads": "damaged checkpoints that were taken for sound ones",
    "tracebacks": "of fuzzed files and options, those that were not answered in a line",
    "hangs": "of them, those that did not end",
    "lost_records": "answers of killed servers that are not in their logs",
    "dead_loops": "loops of a server under too much load that ended",
    "broken_promises": "filtered actions that cross a hard row",
    "needless_emergencies": "emergency actions where a safe one exists",
}


@dataclass(frozen=True)
class Sizes:
    """How much is done of each."""

    kills: int = 25  # of a training in each suite
    flips: int = 1000
    calls: int = 10**9  # of a format, for so many seconds at most
    seconds: float = 180.0
    server_kills: int = 50
    rounds: int = 100
    cases: int = 100_000


QUICK = Sizes(kills=1, flips=4, calls=20, server_kills=1, rounds=1, cases=100)


@dataclass
class BenchFaults:
    """The arguments of `worldloom bench faults`."""

    out: Path | None = None
    """Where to write; benchmarks/results/faults.json, or faults-partial / faults-quick beside."""
    only: tuple[str, ...] = ()
    """Sections to run (runs, damage, formats, server, safety); all if none is named."""
    seed: int = 0
    """Decides where kills, damage and fuzzing strike."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """A little of each, to see that it works."""


def runs(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """Trainings of all suites, killed at random instants and resumed."""
    from benchmarks.faults_runs import TINY, kill_chains

    found = kill_chains(list(TINY), sizes.kills, np.random.default_rng(seed), folder)
    result["raw"]["runs"] = found
    result["ratios"]["kill_chains_exact"] = found["exact"] / found["chains"]


def damage(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """Bytes changed in checkpoints, which are read then."""
    import worldloom
    from benchmarks.faults_runs import damage

    run = worldloom.train(
        "tag",
        algo="ppo",
        steps=960,
        num_worlds=4,
        checkpoint_every=48,
        eval_episodes=2,
        world={"horizon": 6, "num_agents": 2},
        ppo={"hidden": (8,), "num_epochs": 1, "num_minibatches": 2},
        out=folder / "run",
        report=False,
    )
    found = damage(run.folder, sizes.flips, np.random.default_rng(seed))
    result["raw"]["damage"] = found
    result["ratios"]["silent_wrong_loads"] = found["silent_wrong"]


def formats(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """Files and options of every format, spoiled."""
    from benchmarks.faults_examples import FORMATS
    from benchmarks.faults_formats import fuzz

    found = {name: fuzz(name, sizes.calls, seed, seconds=sizes.seconds) for name in FORMATS}
    result["raw"]["formats"] = found
    for name in ("tracebacks", "hangs"):
        result["ratios"][name] = sum(counts[name] for counts in found.values())


def server(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """A server killed under load, and one with more load than it can answer in time."""
    from benchmarks import plant, plant_serving

    bundle = plant.served_bundle(folder, plant.QUICK)
    found = plant_serving.killed(bundle, times=sizes.server_kills, seed=seed)
    result["raw"]["killed"] = found
    result["ratios"]["lost_records"] = found["lost"] + len(found["unsound"])
    result["raw"]["wedged"] = found = plant_serving.wedged(bundle, rounds=sizes.rounds)
    result["ratios"]["dead_loops"] = found["dead_loops"] + found["unready"] + found["unanswered"]


def safety(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """The filter against an exact solver."""
    from oracles.safety import count_faults

    result["raw"]["safety"] = found = count_faults(sizes.cases, seed)
    for name in ("broken_promises", "needless_emergencies"):
        result["ratios"][name] = found[name]


SECTIONS: dict[str, Section] = {
    "runs": runs,
    "damage": damage,
    "formats": formats,
    "server": server,
    "safety": safety,
}


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench faults`; 0, or 1 if a section failed."""
    about = "Kill, damage, fuzz and overload, and count what goes wrong; an hour and a half."
    args = parse(BenchFaults, argv, "worldloom bench faults", about)
    sizes = QUICK if args.quick else Sizes()
    title = "faults: how many went wrong"
    return run_sections("faults", args, argv, SECTIONS, RATIOS, sizes, title)
