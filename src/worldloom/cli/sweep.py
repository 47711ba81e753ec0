"""`worldloom sweep WORLD`: settings and seeds, trained together."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldloom import algos
from worldloom.cli.settings import (
    Request,
    Schema,
    flag_help,
    flags_of,
    read_request,
    split_flags,
)
from worldloom.cli.sweep_space import parse_space, split_varied
from worldloom.training import console


@dataclass(frozen=True)
class Flags:
    """What the command takes beside the settings of a run."""

    grid: tuple[str, ...] = ()  # what to vary, as name=value,value,... such as ppo.gamma=0.9,0.99
    search: str = ""  # grid, random, tpe, cmaes, gp or qmc; without it grid, or tpe of ranges
    points: int = 20  # how many to try, unless it is a grid
    batch: int = 4  # points that a sampler chooses at a time
    halving: int = 0  # of n: at 1/n, 1/n^2, ... of the steps only the best 1/n go on
    seeds: int = 5  # seeds of every point, run together
    config: str = ""  # a YAML file of settings; flags go before it
    preset: str = ""  # where settings start from, such as `original` in treasure hunt
    out: str = "runs"  # folder in which the sweep gets a folder of its own
    population: int = 0  # train so many members whose numbers change as they go, ranges given
    exploit_every: int = 0  # steps of a member between generations; 0: a twentieth of all
    resume: str = ""  # go on with the folder of a population
    study: str = ""  # a folder or database (sqlite:///FILE) in which workers share the points
    launch: str = ""  # start workers on it: local:N processes, or slurm:N jobs
    slurm: tuple[str, ...] = ()  # options of jobs, such as timeout_min=60 slurm_partition=gpu
    lease: float = 60.0  # seconds without a sign of life after which a worker's points are others'
    json: bool = False  # print the result as JSON


USAGE = """usage: worldloom sweep WORLD --NAME VALUE,VALUE --NAME LOW..HIGH [settings]

Trains points of any settings, each with every seed, in a world of any suite,
and says which did best. Names are those of `worldloom train WORLD --help`:
  --algo iqn,dqn --iqn.learning-rate 1e-3,2e-3            every combination
  --ppo.learning-rate 1e-4..1e-2:log --points 30          by Optuna's TPE
  --ppo.learning-rate 1e-4..1e-2:log:5                    five of a range
--grid NAME=VALUE,VALUE means the same. Runs that differ in numbers alone are
one program."""


def command(argv: list[str]) -> int:
    """Trains over the settings, and says which did best."""
    if not argv or "--help" in argv or "-h" in argv:
        print(f"{USAGE}\n\n{flag_help(Flags)}")
        return 0
    named, flags, settings = split_flags(argv, Flags)
    folder = flags.resume
    if folder:
        argv = kept_arguments(named, folder, argv)
        named, flags, settings = split_flags(argv, Flags)
    console.phase("preparing")
    from worldloom.cli.report import write_page
    from worldloom.report.sweeps import rank
    from worldloom.training.sweeps.shared_study import without_password
    from worldloom.training.sweeps.source import Search
    from worldloom.training.sweeps.sweep import Place, default_study, make_source, sweep

    fixed, varied = split_varied(settings)
    asked = read_request(named, fixed, config=flags.config, preset=flags.preset)
    space = parse_space(asked.schema, [*flags.grid, *varied])
    check_flags(flags)
    if flags.population:
        return breed(asked, space, flags, argv, folder)
    search = Search(flags.search, flags.points, flags.batch, flags.halving, flags.seeds)
    line = shlex.join(["worldloom", "sweep", *map(without_password, argv)])
    place = Place(Path(flags.out), flags.study, flags.lease)
    if flags.launch:
        place = replace(place, study=flags.study or default_study(place.out, asked.given["env"]))
        launched = read_launch(flags)
        # Here, and not by the first workers: of a new database one at a time can make the tables.
        make_source(asked.schema.suite, asked.given, space, search, place)
        if not launch(argv, *launched, place):
            return 0
    rows, path = sweep(asked.schema.suite, asked.given, space, search, place, line)
    console.phase("writing the page")
    page = write_page(path)
    if flags.json:
        console.print_json({"results": rows, "file": str(path), "report": str(page)})
        return 0
    print_rows(f"sweep of {asked.given['env']}: score over {flags.seeds} seeds", rows)
    console.say(f"written to {path} and {page}")
    start = [named] if named else []
    start += [w for n in ("config", "preset") if (v := getattr(flags, n)) for w in (f"--{n}", v)]
    best = max(rows, key=rank)
    console.next_steps(["train", *start, *chosen_flags(asked.schema, fixed, best["values"])])
    return 0


def kept_arguments(named: str | None, folder: str, argv: Sequence[str]) -> list[str]:
    """What a population was started with; of the flags only --json may be another."""
    from worldloom.core.files import read_json

    path = Path(folder) / "sweep.json"
    kept = read_json(path) if path.is_file() else None
    words = kept.get("argv") if isinstance(kept, dict) else None
    if not words or not isinstance(words, list):
        raise ValueError(f"--resume {folder}: it holds no population; `train --resume` is for runs")
    others = [flag for flag, _ in flags_of(argv[named is not None :])]
    if named or {*others} - {"--resume", "--json", "--quiet"}:
        raise ValueError(f"--resume {folder}: it goes on with its own settings; give none")
    return [*map(str, words), *(["--json"] if "--json" in others and "--json" not in words else [])]


def breed(asked: Request, space: Any, flags: Flags, argv: Sequence[str], folder: str) -> int:
    """Trains populations, and says what their best members came to."""
    from worldloom.cli.report import write_page
    from worldloom.training.folders import new_folder, world_label
    from worldloom.training.sweeps.population_run import Breeding, PopulationRun, train_populations

    breeding = Breeding(flags.population, flags.exploit_every, flags.seeds)
    run = PopulationRun(asked.schema.suite, asked.given, space, breeding)
    place = Path(folder or new_folder(Path(flags.out), f"population-{world_label(run.config.env)}"))
    line = shlex.join(["worldloom", "sweep", *argv])
    try:
        result, path = train_populations(run, place, line, tuple(argv))
    except KeyboardInterrupt:
        console.next_steps(["sweep", "--resume", place])
        return 130
    console.phase("writing the page")
    page = write_page(path)
    if flags.json:
        console.print_json(result | {"file": str(path), "report": str(page)})
        return 0
    names = list(run.ranges)
    lines = [
        [str(row["seed"]), f"{row['score']:.4g}", *(f"{row['numbers'][n]:.4g}" for n in names)]
        for row in result["results"]
    ]
    title = f"{run.config.env}, best of {run.program.size} members: IQM {result['iqm']:.4g}"
    console.table(title, ["seed", "score", *names], lines)
    console.say(f"written to {path} and {page}")
    console.next_steps(["eval", place / f"best-s{run.config.seed}"])
    return 0


def check_flags(flags: Flags) -> None:
    """Raises ValueError for flags that would do nothing: those of a search, or of a population."""
    searching = ("search", "points", "batch", "halving", "study", "launch", "lease", "slurm")
    others = searching if flags.population else ("exploit_every",)
    given = [n for n in others if getattr(flags, n) != getattr(Flags(), n)]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        remedy = "leave it out" if flags.population else "add --population MEMBERS"
        kind = "a search" if flags.population else "a population"
        raise ValueError(f"{names}: that is for {kind}; {remedy}")


def read_launch(flags: Flags) -> tuple[str, int, dict[str, Any]]:
    """Where workers start, how many, and options of jobs; whatever is wrong with them is said."""
    from worldloom.training.sweeps.launch import import_submitit, parse_launch, slurm_options

    where, count = parse_launch(flags.launch)
    if where == "slurm":
        import_submitit()
    return where, count, slurm_options(flags.slurm)


def launch(
    argv: Sequence[str], where: str, count: int, options: Mapping[str, Any], place: Any
) -> bool:
    """Starts workers; whether they have come to their end, after which results can be shown."""
    from worldloom.training.sweeps.launch import run_local, submit, worker_command
    from worldloom.training.sweeps.shared_study import without_password

    own = ("--launch", "--slurm", "--study", "--json", "--quiet")
    start = [] if argv[0].startswith("-") else [argv[0]]
    kept = [[f, *words] for f, words in flags_of(argv[len(start) :]) if f not in own]
    words = [*start, *(word for flag in kept for word in flag), "--study", place.study]
    folder = Path(place.study) if "://" not in place.study else place.out
    if where == "local":
        console.phase("training", note=f"{count} workers")
        for log in run_local(worker_command(words), count, folder / "workers"):
            console.say(f"a worker ended early, see {log}; what is left of its points is done here")
        return True
    jobs = submit(worker_command(words), count, folder / "slurm", options)
    console.say(f"submitted {', '.join(job.job_id for job in jobs)}; their files: {folder}/slurm")
    console.next_steps(["sweep", *map(without_password, words)])
    return False


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def print_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of results, one line a point."""
    from worldloom.report.runs import is_number
    from worldloom.report.sweeps import reference

    head = ["settings", "IQM", "95 % interval", "mean", "worst seed", "random play", "seconds"]
    lines = []
    for row in rows:
        if "error" in row:
            console.say(f"{row['settings'] or 'defaults'}: not trained: {row['error']}")
            continue
        random, stopped = reference(row), row.get("stopped_at")
        span = [row.get(name) for name in ("iqm_low", "iqm_high")]
        interval = " to ".join(map(_shown, span)) if all(map(is_number, span)) else "-"
        lines.append(
            [
                (row["settings"] or "defaults") + (f" (stopped at {stopped:,})" if stopped else ""),
                _shown(row["iqm"]),
                interval,
                _shown(row["mean"]),
                _shown(row["worst"]),
                _shown(random.get("mean")),
                f"{row['seconds']:.1f}",
            ]
        )
    console.table(title, head, lines)


def chosen_flags(
    schema: Schema, settings: Sequence[str], values: Mapping[str, Any]
) -> Iterator[str]:
    """The flags of `train` for one point of a grid; options of other algorithms are left out."""
    others = {*algos.names()} - {algos.get(values.get("algo", schema.algo)).name}
    for flag, words in flags_of(settings):
        if flag.removeprefix("--").partition(".")[0] not in others:
            yield from (flag, *words)
    for name, value in values.items():
        yield f"--{name.replace('_', '-')}"
        for word in value if isinstance(value, list | tuple) else [value]:
            yield str(word).lower() if isinstance(word, bool) else str(word)
