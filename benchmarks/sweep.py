"""`worldloom bench sweep`: runs side by side, workers that die, and populations.

Speed is measured as training of the same runs in one program and one after the other, compile time
apart. A population and a random search begin with the same members and take the same steps.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.record import Section, run_sections
from worldloom import suites
from worldloom.training import timer
from worldloom.training.arguments import parse
from worldloom.training.config import make_config, merge, read_header
from worldloom.training.evaluate import RANDOM_PLAY
from worldloom.training.loops import make_trainer
from worldloom.training.sweeps.intervals import interquartile_mean, stratified_bootstrap
from worldloom.training.sweeps.population_run import Breeding, PopulationRun
from worldloom.training.sweeps.search import Range
from worldloom.training.sweeps.together import Together

RATIOS = {
    "sweep_vmapped_vs_sequential": "steps/s of 8 seeds of CartPole in one program / in turn",
    "sweep_points_lost": "points of a shared study that a killed worker lost",
    "pbt_vs_random": "what a population gains over random play / what a random search does",
}
# 8 seeds of each are trained by PPO. The ratio is that of the first; what the others gain stands
# beside it. One program saves what a run spends on starting operations, and none of its arithmetic,
# which goes up with the number of runs: in treasure hunt most of the time is that.
SMALL = {
    "gymnax:CartPole-v1": {"ppo": {"unroll_length": 32}},
    "gymnax:Pendulum-v1": {"ppo": {"unroll_length": 32}},
    "treasurehunt": {"world": {"num_agents": 2, "height": 8, "width": 8, "horizon": 50}},
}
LEARNING = {
    "algo": "ppo",
    "num_worlds": 4,
    "ppo": {"hidden": (32,), "num_minibatches": 2, "num_epochs": 2},
}
SEEDS = 8
RATES = ("learning_rate", Range(1e-5, 1e-1, log=True))
ENTROPY = ("entropy_cost", Range(1e-4, 1e-1, log=True))


@dataclass(frozen=True)
class Sizes:
    """How much is done of each."""

    iterations: int = 200  # in each timed call
    repeats: int = 5
    small_worlds: int = len(SMALL)  # how many of them
    points: int = 8
    workers: int = 4
    # Budgets at which eight random members do not all come to the best there is. Not Pendulum: two
    # of five populations ended at -1,076 and -1,177 after 100,000 steps, and why is not known.
    members: int = 8
    generations: int = 10
    seeds: int = 5
    worlds: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {
            "treasurehunt": {
                "algo": "ppo",
                "steps": 20_000,
                "num_worlds": 8,
                "ppo": {"hidden": (32,), "num_minibatches": 4, "num_epochs": 2},
            },
            "gymnax:Acrobot-v1": {"algo": "ppo", "steps": 40_000, "num_worlds": 8},
        }
    )


QUICK = Sizes(
    iterations=2,
    repeats=1,
    small_worlds=1,
    points=4,
    workers=2,
    members=2,
    seeds=1,
    worlds={
        "tag": {
            "algo": "ppo",
            "steps": 240,
            "num_worlds": 4,
            "eval_episodes": 2,
            "world": {"horizon": 6, "num_agents": 2},
            "ppo": {"hidden": (8,), "num_minibatches": 2, "num_epochs": 1},
        }
    },
)


@dataclass
class BenchSweep:
    """The arguments of `worldloom bench sweep`."""

    out: Path | None = None
    """Where to write; benchmarks/results/sweep.json, or sweep-partial / sweep-quick beside."""
    only: tuple[str, ...] = ()
    """Sections to run (vmapped, workers, population); all if none is named."""
    seed: int = 0
    """Decides which worker is killed, and when."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """A little of each, to see that it works."""


def vmapped(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """The same runs in one program and one after the other, in turns."""
    found = result["raw"]["vmapped"] = {}
    for env in list(SMALL)[: sizes.small_worlds]:
        found[env] = side_by_side(merge(LEARNING, SMALL[env] | {"env": env}), sizes)
    result["ratios"]["sweep_vmapped_vs_sequential"] = next(iter(found.values()))["ratio"]


def side_by_side(given: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Seconds of `SEEDS` runs both ways, and their ratio."""
    suite = suites.suite_of(given["env"])
    config = make_config(suite, given)
    problem = suite.problem(config, None)
    together = Together([config] * SEEDS, [problem] * SEEDS, list(range(SEEDS)))
    trainer, states = make_trainer(config, problem), together.states()

    def in_turn() -> None:  # by one program as well, which is compiled once
        for n in range(SEEDS):
            trainer.load(states[n])
            trainer.advance(sizes.iterations)
            states[n] = trainer.run

    calls = {"together": lambda: together.advance(sizes.iterations), "in turn": in_turn}
    taken = timer.interleave(calls, sizes.repeats)
    return {
        "config": config.to_dict(),
        "seeds": SEEDS,
        "iterations": sizes.iterations,
        "compile_seconds": {
            "together": together.compile_seconds,
            "in turn": trainer.compile_seconds,
        },
        "seconds": {name: timing.to_dict() for name, timing in taken.items()},
        "ratio": timer.ratio(taken["in turn"].median, taken["together"].median),
    }


def workers(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """Workers on one study, one of them killed."""
    from benchmarks.sweep_workers import killed_worker

    found = killed_worker(folder, sizes.points, sizes.workers, seed)
    result["raw"]["workers"] = found
    result["ratios"]["sweep_points_lost"] = found["lost"]


def population(sizes: Sizes, seed: int, result: dict[str, Any], folder: Path) -> None:
    """A population beside a random search of as many members, of the same seeds and numbers."""
    found = result["raw"]["population"] = {}
    for env, given in sizes.worlds.items():
        suite = suites.suite_of(env)
        given = merge(given, {"env": env, "seed": 0})
        scores, place = {}, folder
        for name, replaced in (("population", 0.25), ("random search", 0.0)):
            place = folder / f"{env} {name}"
            scores[name] = _best_scores(suite, given, sizes, replaced, place)
        by_chance = read_header(place / "best-s0")["references"][RANDOM_PLAY]["mean"]
        found[env] = compared(scores, by_chance)
    ratios = [each["ratio"] for each in found.values() if each["ratio"] is not None]
    result["ratios"]["pbt_vs_random"] = min(ratios, default=None)


def _best_scores(
    suite: Any, given: Mapping[str, Any], sizes: Sizes, replaced: float, folder: Path
) -> list[float]:
    every = given["steps"] // sizes.generations
    breeding = Breeding(sizes.members, every, sizes.seeds, replaced)
    space = [(f"{given['algo']}.{name}", values) for name, values in (RATES, ENTROPY)]
    run = PopulationRun(suite, given, space, breeding)
    stop = threading.Event()
    return [run.train(seed, folder, stop)["score"] for seed in range(sizes.seeds)]


def compared(scores: Mapping[str, Sequence[float]], by_chance: float) -> dict[str, Any]:
    """Interquartile means over seeds, and the ratio of what each gains over random play."""
    means = {name: float(interquartile_mean(each)) for name, each in scores.items()}
    gains = {name: mean - by_chance for name, mean in means.items()}
    searched = gains["random search"]
    return {
        "scores": {name: list(each) for name, each in scores.items()},
        "iqm": means,
        "interval": {name: stratified_bootstrap([each]) for name, each in scores.items()},
        "random play": by_chance,
        "ratio": gains["population"] / searched if searched > 0 else None,
    }


SECTIONS: dict[str, Section] = {
    "vmapped": vmapped,
    "workers": workers,
    "population": population,
}


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench sweep`; 0, or 1 if a section failed."""
    about = "Runs side by side, a killed worker, and populations beside random search."
    args = parse(BenchSweep, argv, "worldloom bench sweep", about)
    sizes = QUICK if args.quick else Sizes()
    return run_sections("sweep", args, argv, SECTIONS, RATIOS, sizes, "sweeps")
