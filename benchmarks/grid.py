"""`worldloom bench grid`: gridworlds against what others would train them with.

Treasure hunt against the original's loop and arithmetic in PyTorch, independent PPO against
JaxMARL's loop, what 1 to 128 agents cost, and what selfish and shared rewards come to.
"""

import importlib.util
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import cleanup, grid_agents, hunt, ippo
from benchmarks.cleanup import CleanupSizes
from benchmarks.figures import MEANING
from benchmarks.grid_agents import AgentSizes
from benchmarks.hunt import HuntSizes
from benchmarks.ippo import IppoSizes
from benchmarks.matmul import ShareSizes, train_step_share
from benchmarks.modes_timing import quick as quick_sizes
from benchmarks.modes_work import changed
from benchmarks.pages.results import write_bench
from benchmarks.processes import in_fresh_process, own_cache, peak_memory_mb
from benchmarks.record import Record
from benchmarks.score import (
    Criterion,
    GreedyScore,
    Reached,
    median_seconds,
    time_to_score,
)
from benchmarks.throughput import (
    EpochSizes,
    WorldSizes,
    epochs_per_second,
    same_arithmetic,
    world_steps,
)
from worldloom.core.files import plain
from worldloom.core.names import suggest
from worldloom.suites.grid.problem import make_env
from worldloom.suites.grid.suite import SUITE, original
from worldloom.training.arguments import parse
from worldloom.training.config import TrainConfig, make_config
from worldloom.training.console import table
from worldloom.training.timer import ratio

RATIOS = MEANING["grid"]
TIMES = "time_to_500"  # the section that gives all three times to a score
SECTIONS = (
    "world_steps_per_second",
    "epochs_per_second_same_arithmetic",
    "train_step_matmul_share",
    TIMES,
    "agents",
    "ippo",
    "hunt",
    "cleanup",
)
KINDS = ("ours", "cold", "torch", "tuned")


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    worlds: WorldSizes
    epochs: EpochSizes
    share: ShareSizes
    ours: TrainConfig
    original: TrainConfig
    our_criterion: Criterion
    original_criterion: Criterion
    seeds: Mapping[str, int]  # of each kind
    agents: AgentSizes = field(default_factory=AgentSizes)
    ippo: IppoSizes = field(default_factory=IppoSizes)
    hunt: HuntSizes = field(default_factory=HuntSizes)
    cleanup: CleanupSizes = field(default_factory=CleanupSizes)


def full() -> Sizes:
    """The benchmark."""
    return Sizes(
        worlds=WorldSizes(),
        epochs=EpochSizes(),
        share=ShareSizes(),
        ours=_ours(chunk=2),
        original=make_config(SUITE, original(mode="torch_sequential")),
        our_criterion=Criterion(every=2, max_epochs=400),
        original_criterion=Criterion(every=20, max_epochs=1500),
        seeds={"ours": 5, "cold": 3, "torch": 3, "tuned": 3},
    )


def quick() -> Sizes:
    """Everything in seconds, to see that it works; any score is good enough for it."""
    any_score = Criterion(threshold=-1e9, every=1, episodes=2, max_epochs=4)
    ours = _ours(chunk=1, num_worlds=2, iqn={"gradient_steps": 1})
    return Sizes(
        worlds=WorldSizes(worlds=4, object_episodes=1, repeats=2),
        epochs=EpochSizes(agents=2, epochs=1, repeats=2, memory=False),
        share=ShareSizes(updates=2, repeats=2),
        ours=quick_sizes(ours),
        original=quick_sizes(make_config(SUITE, original(mode="torch_sequential"))),
        our_criterion=any_score,
        original_criterion=any_score,
        seeds=dict.fromkeys(KINDS, 1),
        agents=grid_agents.QUICK,
        ippo=ippo.QUICK,
        hunt=hunt.QUICK,
        cleanup=cleanup.QUICK,
    )


def _ours(**changes: Any) -> TrainConfig:
    """The defaults of treasure hunt, but for changes."""
    return make_config(SUITE, {"env": "treasurehunt", "algo": "iqn"} | changes)


@dataclass
class BenchGrid:
    """The arguments of `worldloom bench grid`."""

    out: Path | None = None
    """Where to write; benchmarks/results/grid.json, or grid-partial / grid-quick beside it."""
    only: tuple[str, ...] = ()
    """Sections to run; all if none is named."""
    seeds: int | None = None
    """Seeds of our training (5)."""
    cold_seeds: int | None = None
    """Seeds of our training from a cold start (3)."""
    torch_seeds: int | None = None
    """Seeds of the original's training (3)."""
    tuned_seeds: int | None = None
    """Seeds of the original without its useless work (3); it learns the same, only faster."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """Tiny sizes, to see in seconds that it works; its figures mean nothing."""


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench grid`; 0, or 1 if a section failed."""
    about = "Measure gridworlds against what others have and write JSON; an hour or more."
    args = parse(BenchGrid, argv, "worldloom bench grid", about)
    for name in args.only:
        if name not in SECTIONS:
            raise ValueError(f"there is no section {name!r}; {suggest(name, SECTIONS)}")
    sizes = quick() if args.quick else full()
    asked = {
        "ours": args.seeds,
        "cold": args.cold_seeds,
        "torch": args.torch_seeds,
        "tuned": args.tuned_seeds,
    }
    counts = dict(sizes.seeds) | {kind: n for kind, n in asked.items() if n is not None}
    if min(counts.values()) < 0 or not counts["ours"]:
        raise ValueError(f"seeds {counts}: numbers from 0 on, and at least one seed of ours")
    variant = "-quick" if args.quick else "-partial" if args.only else ""
    out = args.out or Path("benchmarks/results") / f"grid{variant}.json"
    line = shlex.join(["worldloom", "bench", "grid", *argv])
    record = run(replace(sizes, seeds=counts), args.only or SECTIONS, out, line, args.quick)
    page = write_bench(plain(record.result), out.with_suffix(".html"))
    code = 0 if record.result["complete"] else 1
    if args.json:
        print(json.dumps(plain(record.result), indent=2))
        return code
    table(
        "grid: ratios, all measured in this run",
        ["ratio", "times", "of what"],
        [[name, _times(value), RATIOS[name]] for name, value in record.result["ratios"].items()],
    )
    for section, error in record.result["errors"].items():
        print(f"- {section} failed: {error}")
    print(f"written to {out} and {page}")
    return code


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}"


def run(sizes: Sizes, sections: Sequence[str], out: Path, line: str, quick: bool) -> Record:
    """Measures `sections` and writes `out` after each; one that fails does not stop the others."""
    record = Record(
        out,
        kind="bench",
        suite="grid",
        command=line,
        quick=quick,
        sections=list(sections),
        ratios=dict.fromkeys(RATIOS),
        raw={},
    )
    raw = record.result["raw"]
    base = changed(sizes.original, mode="jax_fused")
    equal = same_arithmetic(base, sizes.epochs.agents)

    def one_ratio(name: str, measure: Callable[[dict[str, Any]], float | None]) -> None:
        value = record.result["ratios"][name] = measure(raw.setdefault(name, {}))
        record.note(f"  {name}: {_times(value)}")

    def ratios_of(
        name: str, measure: Callable[[dict[str, Any]], Mapping[str, float | None]]
    ) -> None:
        for ratio_name, value in measure(raw.setdefault(name, {})).items():
            record.result["ratios"][ratio_name] = value
            record.note(f"  {ratio_name}: {_times(value)}")

    with own_cache() as cache:
        measures: dict[str, Callable[[dict[str, Any]], float | None]] = {
            "world_steps_per_second": lambda raw: world_steps(sizes.worlds, cache, raw),
            "epochs_per_second_same_arithmetic": lambda raw: epochs_per_second(
                base, sizes.epochs, cache, raw, record.note
            ),
            "train_step_matmul_share": lambda raw: train_step_share(equal, sizes.share, raw),
        }
        for name, measure in measures.items():
            if name in sections:
                record.section(name, partial(one_ratio, name, measure))
        several: dict[str, Callable[[dict[str, Any]], Mapping[str, float | None]]] = {
            "agents": lambda raw: grid_agents.measure(sizes.agents, cache, raw, record.note),
            "ippo": lambda raw: ippo.measure(sizes.ippo, raw, record.note),
            "hunt": lambda raw: hunt.measure(sizes.hunt, raw, record.note),
            "cleanup": lambda raw: cleanup.measure(sizes.cleanup, raw, record.note),
        }
        for name, measure_all in several.items():
            if name in sections:
                record.section(name, partial(ratios_of, name, measure_all))
        if TIMES in sections:
            record.section(TIMES, lambda: times_to_score(sizes, record, raw.setdefault(TIMES, {})))
    raw["peak_memory_mb"] = peak_memory_mb()
    record.finish()
    return record


def schedule(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(kind, seed) in the order of measuring: all kinds of one seed, then those of the next."""
    for seed in range(max(counts.values())):
        yield from ((kind, seed) for kind in KINDS if seed < counts[kind])


def times_to_score(sizes: Sizes, record: Record, raw: dict[str, Any]) -> None:
    """Trains every seed of every kind until it plays well; saves after each."""
    raw |= {
        "criterion": {
            "meaning": "seconds of training at the second of two consecutive greedy evaluations at "
            "or above the threshold; evaluation is off the clock, and compiling is but for `cold`",
            "ours": asdict(sizes.our_criterion),
            "original": asdict(sizes.original_criterion),
            "never": "a seed that never gets there has seconds null and counts as endless",
        },
        "settings": {"ours": sizes.ours.to_dict(), "original": sizes.original.to_dict()},
        "torch_threads": _torch_threads(),
        "median_seconds": {},
        **{kind: [] for kind in KINDS},
    }
    configs = {
        "ours": sizes.ours,
        "cold": sizes.ours,
        "torch": sizes.original,
        "tuned": changed(sizes.original, tuned=True),
    }
    scores = {
        "ours": GreedyScore(sizes.ours, sizes.our_criterion.episodes),
        "torch": GreedyScore(sizes.original, sizes.original_criterion.episodes),
    }
    scores["tuned"] = scores["torch"]  # the same network, compiled once
    for kind, seed in schedule(sizes.seeds):
        config = replace(configs[kind], seed=seed)
        ours = kind in ("ours", "cold")
        criterion = sizes.our_criterion if ours else sizes.original_criterion
        if kind == "cold":
            row = _from_cold(config, criterion)
        else:
            row = _row(config, time_to_score(config, criterion, scores[kind]))
        raw[kind].append({"seed": seed} | row)
        _say(record, kind, seed, row)
        _put_ratios(record.result["ratios"], raw)
        record.save()


def _torch_threads() -> int:
    if importlib.util.find_spec("torch") is None:
        raise ValueError("PyTorch is not installed; pip install 'worldloom[torch]' adds it")
    import torch

    return torch.get_num_threads()


def _from_cold(config: TrainConfig, criterion: Criterion) -> dict[str, Any]:
    argument = {"config": config.to_dict(), "criterion": asdict(criterion)}
    with tempfile.TemporaryDirectory(prefix="worldloom-cold-") as empty:
        return in_fresh_process("benchmarks.score:cold", argument, Path(empty))


def _row(config: TrainConfig, reached: Reached) -> dict[str, Any]:
    spec = make_env(config).spec
    steps = spec.num_agents * (spec.horizon or 0) * config.num_worlds * reached.trained_epochs
    rate = steps / reached.trained_seconds if reached.trained_seconds else None
    return reached.to_dict() | {"agent_steps_per_second": rate}


def _say(record: Record, kind: str, seed: int, row: dict[str, Any]) -> None:
    best = max(mean for _, _, mean in row["curve"])
    if row["seconds"] is None:
        record.note(f"  {kind}, seed {seed}: never, in {row['trained_epochs']} epochs ({best:.0f})")
    else:
        record.note(f"  {kind}, seed {seed}: {row['seconds']:.2f} s, {row['epochs']} epochs")


def _put_ratios(ratios: dict[str, float | None], raw: dict[str, Any]) -> None:
    medians = raw["median_seconds"] = {kind: median_seconds(raw[kind]) for kind in KINDS}
    ratios["time_to_500"] = ratio(medians["torch"], medians["ours"])
    ratios["time_to_500_tuned"] = ratio(medians["tuned"], medians["ours"])
    ratios["time_to_500_with_compile"] = ratio(medians["torch"], medians["cold"])


if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
