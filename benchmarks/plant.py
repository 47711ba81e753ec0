"""`worldloom bench plant`: updates against d3rlpy, plant steps, scores, safety, and serving."""

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import plant_arithmetic, plant_speed
from benchmarks.figures import MEANING
from benchmarks.pages.results import write_bench
from benchmarks.players import Player
from benchmarks.record import Record
from worldloom.core.files import plain
from worldloom.core.names import suggest
from worldloom.training.arguments import parse
from worldloom.training.console import table
from worldloom.training.timer import ratio

RATIOS = MEANING["plant"]
SECTIONS = ("speed", "steps", "safety", "serving", "ope", "select", "oracle", "plants", "scores")
PLANTS = (
    "reactor",
    "powergrid",
    "hvac",
    "water",
    "pipeline",
    "industrial-benchmark",
    "dmsd",
    "simglucose",
)


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and how long it is learned."""

    # Updates per second
    batch: int = 256
    hidden: tuple[int, ...] = (256, 256)
    rows: int = 100_000
    samples: int = 10  # actions that CQL draws from each of three sets
    repeats: int = 7
    our_updates: Mapping[str, int] = field(
        default_factory=lambda: {"td3bc": 400, "iql": 400, "cql": 30}
    )
    their_updates: Mapping[str, int] = field(
        default_factory=lambda: {"td3bc": 160, "iql": 120, "cql": 30}
    )
    seeds: int = 4  # learners in one program
    # Steps per second
    worlds: int = 4096
    our_steps: int = 500  # of each plant, in a block
    loop_steps: int = 10_000
    step_repeats: int = 11
    # Scores
    score_updates: Mapping[str, int] = field(
        default_factory=lambda: {
            # Of those that learn a critic the quickest: CQL and EDAC, at some 15 updates a second,
            # would take hours.
            "bc": 4_000,
            "mbpo": 2_000,
            "mbpo-linear": 1_600,
            "iql": 2_000,
        }
    )
    score_seeds: tuple[int, ...] = (0, 1, 2)
    score_episodes: int = 1000  # of DMSD and Pipeline; of Simglucose all 360 starts
    cheetahs: int = 10  # episodes of the half cheetah, one by one in MuJoCo
    looks: int = 4  # evaluations on the way; the last part is learned slowly
    score_held_out_updates: int = 600
    # Our plants
    plants: tuple[str, ...] = PLANTS
    qualities: tuple[Any, ...] = ("expert", "medium", "mixed", "random")
    plant_updates: Mapping[str, int] = field(default_factory=lambda: {"bc": 1_000, "iql": 2_000})
    plant_rows: int = 20_000
    plant_episodes: int = 32
    # Off-policy evaluation
    ope_plants: tuple[str, ...] = ("reactor", "water", "hvac", "powergrid")
    ope_updates: int = 2_500
    ope_rows: int = 20_000
    ope_episodes: int = 512  # of the truth
    # Choosing among policies, with the sizes and estimates of off-policy evaluation
    select_plants: tuple[str, ...] = ("reactor", "water", "hvac", "powergrid")
    select_simulations: int = 400
    # How well plants can be controlled
    oracle_plants: tuple[str, ...] = PLANTS
    oracle_references: int = 512  # episodes of random actions and of loops
    oracle_episodes: int = 16
    oracle_change: Mapping[str, Any] = field(default_factory=dict)  # of `plant_mpc.Shooting`
    # Safety
    cases: int = 1_000_000
    filter_batch: int = 1024
    filter_repeats: int = 1000
    # A linear barrier, an integrated model, and all that a reactor's bundle holds: at states of
    # all kinds, at moments of controlled episodes, and at their starts
    filtered: tuple[str, ...] = ("linear", "reactor", "shipped", "closed_loop", "accepted")
    # Serving
    served_updates: int = 2_000
    load_seconds: float = 10.0
    rounds: int = 5  # of each server, ours and others'
    round_seconds: float = 5.0
    connections: int = 32
    kills: int = 20


QUICK = Sizes(
    batch=8,
    hidden=(8,),
    rows=200,
    samples=2,
    repeats=1,
    our_updates={"td3bc": 2, "iql": 2, "cql": 2},
    their_updates={"td3bc": 2, "iql": 2, "cql": 2},
    seeds=2,
    worlds=8,
    our_steps=4,
    loop_steps=20,
    step_repeats=1,
    score_updates={"bc": 4, "mbpo": 4},
    score_seeds=(0,),
    score_episodes=2,
    cheetahs=2,
    score_held_out_updates=2,
    looks=2,
    plants=("water",),
    qualities=("medium",),
    plant_updates={"bc": 4},
    plant_rows=200,
    plant_episodes=2,
    ope_plants=("water",),
    ope_updates=2,
    ope_rows=600,
    ope_episodes=4,
    select_plants=("water",),
    select_simulations=2,
    oracle_plants=("dmsd",),
    oracle_references=4,
    oracle_episodes=2,
    oracle_change={"horizon": 2, "samples": 4, "rounds": 1, "gradients": 1, "refined": 1},
    cases=64,
    filter_batch=8,
    filter_repeats=2,
    filtered=("linear",),
    served_updates=2,
    load_seconds=0.5,
    rounds=1,
    round_seconds=0.5,
    connections=2,
    kills=1,
)


@dataclass
class BenchPlant:
    """The arguments of `worldloom bench plant`."""

    out: Path | None = None
    """Where to write; benchmarks/results/plant.json, or plant-partial / plant-quick beside it."""
    only: tuple[str, ...] = ()
    """Sections (speed, steps, safety, serving, ope, select, oracle, plants, scores); or all."""
    json: bool = False
    """Print the result as JSON."""
    quick: bool = False
    """Tiny sizes, to see that it works; its figures mean nothing."""


def command(argv: Sequence[str]) -> int:
    """The command line of `worldloom bench plant`; 0, or 1 if a section failed."""
    about = "Measure offline learning, the plants, the safety filter and serving; two hours."
    args = parse(BenchPlant, argv, "worldloom bench plant", about)
    for name in args.only:
        if name not in SECTIONS:
            raise ValueError(f"there is no section {name!r}; {suggest(name, SECTIONS)}")
    variant = "-quick" if args.quick else "-partial" if args.only else ""
    out = args.out or Path("benchmarks/results") / f"plant{variant}.json"
    line = shlex.join(["worldloom", "bench", "plant", *argv])
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
    table("plant: all measured in this run", ["figure", "measured", "what it is"], rows)
    print_scores(record.result["raw"].get("scores") or [])
    for section, reason in record.result["skipped"].items():
        print(f"- {section} is left out: {reason}")
    for section, error in record.result["errors"].items():
        print(f"- {section} failed: {error}")
    print(f"written to {out} and {page}")
    return code


def print_scores(rows: Sequence[Mapping[str, Any]]) -> None:
    """Normalised scores beside published ones."""
    if not rows:
        return

    def shown(mean: float | None, std: float | None) -> str:
        return "-" if mean is None else f"{mean:.1f} ± {std:.1f}"

    cells = [
        [
            row["dataset"] if row.get("released", True) else f"{row['dataset']} (not the release)",
            row["algo"],
            shown(row["mean"], row.get("std", 0.0)),
            f"{row['last_mean']:.1f}" if "last_mean" in row else "-",
            shown(row.get("published"), row.get("published_std")),
            f"{row.get('updates', 0):,}",
            row["how"],
        ]
        for row in rows
    ]
    head = ["data", "algorithm", "score", "last", "published", "updates", "chosen how"]
    table("normalised scores, as NeoRL-2 has them", head, cells)


def run(sizes: Sizes, sections: Sequence[str], out: Path, line: str, quick: bool) -> Record:
    """Measures `sections` and writes `out` after each; one that fails does not stop the others."""
    record = Record(
        out,
        kind="bench",
        suite="plant",
        command=line,
        quick=quick,
        sections=list(sections),
        ratios=dict.fromkeys(RATIOS),
        raw={},
        skipped={},
    )
    measures: dict[str, Callable[[Sizes, Record], None]] = {
        "speed": speed,
        "steps": steps,
        "safety": safety,
        "serving": serving,
        "ope": off_policy_evaluation,
        "select": selection,
        "oracle": oracle,
        "plants": plants,
        "scores": scores,
    }
    for name in sections:
        record.section(name, partial(measures[name], sizes, record))
    record.finish()
    return record


# Speed -------------------------------------------------------------------------------------------


def speed(sizes: Sizes, record: Record) -> None:
    """Updates per second from the same made-up data: ours, four seeds of ours at once, d3rlpy."""
    raw: dict[str, Any] = {
        "unit": "updates per second of one learner, drawing its rows included",
        "batch": sizes.batch,
        "hidden": list(sizes.hidden),
        "rows": sizes.rows,
        "obs_size": plant_speed.OBS_SIZE,
        "action_size": plant_speed.ACTION_SIZE,
        "cql_samples": 3 * sizes.samples,
        "seeds": sizes.seeds,
        "updates_per_second": {},
        "seconds_per_update": {},
        "flops_per_update": {},
        "matmul_gflops_per_second": {},
        "facts": {},
    }
    record.result["raw"]["speed"] = raw
    shared = {
        "batch": sizes.batch,
        "hidden": sizes.hidden,
        "rows": sizes.rows,
        "samples": sizes.samples,
        "obs_size": plant_speed.OBS_SIZE,
        "action_size": plant_speed.ACTION_SIZE,
    }
    for algo in plant_speed.ALGORITHMS:
        record.note(f"  {algo}")
        ours = shared | {"algo": algo, "updates": sizes.our_updates[algo]}
        theirs = shared | {"algo": algo, "updates": sizes.their_updates[algo]}
        makers: dict[str, Callable[[], Player]] = {
            "ours": partial(plant_speed.ours, "learn", **ours, seeds=1),
            "seeds": partial(plant_speed.ours, "learn", **ours, seeds=sizes.seeds),
            "matmul": partial(plant_speed.ours, "multiply", **ours, seeds=1),
        }
        for threads in sorted({1, os.cpu_count() or 1}):
            makers[f"d3rlpy_{threads}"] = partial(plant_speed.d3rlpy, **theirs, threads=threads)
        timed, facts = plant_speed.timed(makers, sizes.repeats, record.note)
        each = {name: timing.median for name, timing in timed.items()}
        peer = min((name for name in each if name.startswith("d3rlpy")), key=lambda n: each[n])
        rates = {name: 1.0 / seconds for name, seconds in each.items()}
        # All seeds together, and d3rlpy at its best.
        raw["updates_per_second"][algo] = {
            "ours": rates["ours"],
            "seeds": rates["seeds"],
            "d3rlpy": rates[peer],
        }
        raw["seconds_per_update"][algo] = {n: timing.to_dict() for n, timing in timed.items()}
        raw["facts"][algo] = facts
        work, plain = plant_arithmetic.update_flops(ours), facts["matmul"]["flops"]
        raw["flops_per_update"][algo] = work
        raw["matmul_gflops_per_second"][algo] = plain * rates["matmul"] / 1e9
        record.result["ratios"][f"{algo}_vs_d3rlpy"] = ratio(each[peer], each["ours"])
        record.result["ratios"][f"{algo}_matmul_share"] = ratio(
            work * rates["ours"], plain * rates["matmul"]
        )
        record.save()


def steps(sizes: Sizes, record: Record) -> None:
    """Steps of the masses on springs, under the same actions: compiled, and a loop in numpy."""
    cores = os.cpu_count() or 1
    many = {"batch": sizes.worlds, "steps_each": sizes.our_steps}
    makers: dict[str, Callable[[], Player]] = {
        "ours": partial(plant_speed.ours, "steps", **many, devices=cores if cores > 1 else None),
        "ours_on_one_device": partial(plant_speed.ours, "steps", **many),
        "loop": partial(plant_speed.ours, "loop", batch=1, steps_each=sizes.loop_steps),
    }
    timed, facts = plant_speed.timed(makers, sizes.step_repeats, record.note)
    each = {name: timing.median for name, timing in timed.items()}
    record.result["raw"]["steps"] = {
        "unit": "plant steps per second: actions given, reward, margins, automatic reset, "
        "observations summed",
        "plant": "dmsd",
        "batch": sizes.worlds,
        "steps_per_second": {name: 1.0 / seconds for name, seconds in each.items()},
        "seconds_per_step": {name: timing.to_dict() for name, timing in timed.items()},
        "facts": facts,
    }
    record.result["ratios"]["dmsd_steps_vs_loop"] = ratio(each["loop"], each["ours"])


# Safety and serving ------------------------------------------------------------------------------


def safety(sizes: Sizes, record: Record) -> None:
    """What the filter costs beside a policy, and what adversaries get past it."""
    from benchmarks import plant_safety

    raw = record.result["raw"]["safety"] = {"cost": {}, "attacks": {}}
    for name in sizes.filtered:
        cost = plant_safety.filter_cost(name, sizes.filter_batch, sizes.filter_repeats)
        raw["cost"][name] = cost
        record.note(f"  {name}: the filter adds {cost['overhead']:.1%} to the policy's time")
        record.save()
    for name in [name for name in raw["cost"] if name != "reactor"]:
        figure = "filter_time_share" if name == "linear" else f"{name}_filter_time_share"
        record.result["ratios"][figure] = raw["cost"][name]["overhead"]
    for name in [name for name in sizes.filtered if name not in ("accepted", "closed_loop")]:
        raw["attacks"][name] = attacks = plant_safety.attacks(name, sizes.cases)
        violations = sum(row["violations"] for row in attacks.values())
        record.note(f"  {name}: {violations} violations in {sizes.cases:,} cases of each adversary")
        record.save()


def serving(sizes: Sizes, record: Record) -> None:
    """A trained policy behind HTTP: beside others' servers, its capacity, its log after kills."""
    from benchmarks import plant_serving, plant_serving_compared

    with tempfile.TemporaryDirectory(prefix="worldloom-plant-") as temporary:
        bundle, model = served_bundle(Path(temporary), sizes), Path(temporary) / "policy.onnx"
        record.note("  the bundle is written")
        compared = plant_serving_compared.compared(
            bundle,
            model,
            plant_serving_compared.bare_policy(Path(temporary) / "run", model, sizes.connections),
            seconds=sizes.round_seconds,
            rounds=sizes.rounds,
            note=record.note,
        )
        record.result["ratios"] |= plant_serving_compared.figures(compared)
        capacity = plant_serving.capacity(
            bundle, connections=sizes.connections, seconds=sizes.load_seconds
        )
        raw = record.result["raw"]["serving"] = capacity | {"compared": compared}
        raw["errors"] = sum(capacity["errors"].values())
        record.note(
            f"  {capacity['requests_per_second']:,.0f} requests/s, half within "
            f"{capacity['p50_ms']:.1f} ms, 99 % within {capacity['p99_ms']:.1f} ms"
        )
        record.save()
        deaths = plant_serving.killed(bundle, times=sizes.kills)
    raw |= {"kills": deaths["kills"], "lost_records": deaths["lost"], "after_kills": deaths}
    record.note(f"  killed {deaths['kills']} times: {deaths['lost']} acknowledged records lost")


def served_bundle(folder: Path, sizes: Sizes) -> Path:
    """The bundle of a short run on the reactor, trained here and exported in another process."""
    import worldloom
    from benchmarks.processes import in_fresh_process

    worldloom.train(
        "reactor",
        algo="bc",
        steps=sizes.served_updates,
        data_steps=sizes.plant_rows,
        eval_every=0,
        eval_episodes=2,
        ope_updates=0,
        bc={
            "updates_per_iteration": sizes.served_updates,
            "batch_size": sizes.batch,
            "hidden": sizes.hidden,
        },
        out=folder / "run",
        report=False,
    )
    argv: Any = [str(folder / "run"), "--out", str(folder / "bundle"), "--no-onnx", "--json"]
    code = in_fresh_process("worldloom.cli.export:command", argv, folder / "cache")
    if code:
        raise RuntimeError(f"the export of {folder / 'run'} ended with {code}")
    return folder / "bundle"


# Learning ----------------------------------------------------------------------------------------


def off_policy_evaluation(sizes: Sizes, record: Record) -> None:
    """Estimates from logs alone beside true returns: how often intervals hold, and ranks agree."""
    from benchmarks import plant_ope

    raw: dict[str, Any] = {"rows": [], "development": plant_ope.DEVELOPMENT, "seed": plant_ope.SEED}
    record.result["raw"]["ope"] = raw
    plant_ope.coverage(
        sizes.ope_plants,
        updates=sizes.ope_updates,
        data_steps=sizes.ope_rows,
        episodes=sizes.ope_episodes,
        note=record.note,
        save=record.save,
        rows=raw["rows"],
    )
    raw |= plant_ope.figures(raw["rows"])
    for name in ("coverage_95", "relative_width", "rank_correlation"):
        record.result["ratios"][f"ope_{name}"] = raw[name]


def selection(sizes: Sizes, record: Record) -> None:
    """Which of several policies is chosen: by estimates, and with a budget of trials."""
    from benchmarks import plant_select

    plant_select.section(sizes, record)


def oracle(sizes: Sizes, record: Record) -> None:
    """Returns of random actions, the plants' loops and planning with the true plant."""
    from benchmarks import plant_oracle

    plant_oracle.section(sizes, record)


def plants(sizes: Sizes, record: Record) -> None:
    """Our plants, qualities of data and algorithms: short trainings, returns with and without
    the filter."""
    from benchmarks.plant_table import plant_table

    rows = record.result["raw"]["plants"] = []
    plant_table(
        sizes.plants,
        sizes.qualities,
        sizes.plant_updates,
        data_steps=sizes.plant_rows,
        episodes=sizes.plant_episodes,
        hidden=sizes.hidden,
        batch_size=sizes.batch,
        note=record.note,
        save=record.save,
        rows=rows,
    )


def scores(sizes: Sizes, record: Record) -> None:
    """Normalised scores on NeoRL-2's data, where they are there."""
    from benchmarks import plant_scores

    folder = plant_scores.released_folder()
    if folder is None:
        reason = f"NeoRL-2's data are not here; name their folder in {plant_scores.FOLDER}"
        record.result["skipped"]["scores"] = reason
        record.note(f"  {reason}")
        return
    record.note(f"  {len(plant_scores.TASKS)} tasks: {plant_scores.ESTIMATE}")
    rows = record.result["raw"]["scores"] = []
    record.result["raw"]["published_scores"] = plant_scores.PUBLISHED
    plant_scores.scores(
        folder,
        sizes.score_updates,
        sizes.score_seeds,
        episodes=sizes.score_episodes,
        cheetahs=sizes.cheetahs,
        looks=sizes.looks,
        held_out_updates=sizes.score_held_out_updates,
        hidden=sizes.hidden,
        batch_size=sizes.batch,
        note=record.note,
        save=record.save,
        rows=rows,
    )
    for name, published in plant_scores.PUBLISHED.items():
        chosen = plant_scores.chosen(rows, name)
        top = max(mean for mean, _ in published.values())
        if chosen is not None:
            record.result["ratios"][f"{name}_best_score_share"] = chosen["mean"] / top
