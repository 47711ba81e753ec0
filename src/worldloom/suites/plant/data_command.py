"""`worldloom data make | check | describe | convert`: offline datasets from the command line."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from worldloom import suites
from worldloom.core.names import suggest
from worldloom.suites.plant.suite import DataQuality
from worldloom.training import console
from worldloom.training.arguments import name_values, run_group

if TYPE_CHECKING:
    from worldloom.replay.dataset_files import Logged
    from worldloom.suites.plant.plant import PlantWorld


@dataclass
class Make:
    """log a dataset from a plant under a scripted controller"""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLANT")]
    """The plant, such as reactor."""
    quality: DataQuality = "medium"
    """How good the controller is; mixed data have episodes of all three others."""
    steps: int = 100_000
    """Rows; the episode that holds the last one is logged to its end."""
    seed: int = 0
    """The same seed gives the same data."""
    out: Path | None = None
    """Where to write; data/PLANT-QUALITY-STEPS-seedSEED.npz by default."""
    world: tuple[str, ...] = ()
    """Options of the plant as name=value, such as drift=1."""
    force: bool = False
    """Replace a file that is there."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass
class Source:
    """Where logged data are."""

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """An npz file, a CSV or Parquet file (with --mapping), a Minari dataset's folder or id."""
    mapping: Path | None = None
    """What the columns of a table mean: a YAML file."""
    json: bool = False
    """Print JSON instead of a table."""


@dataclass
class Check(Source):
    """list every defect of a dataset with its row"""

    env: str | None = None
    """Check against the signals of this plant, by name or by its description in YAML."""
    show: int = 3
    """Print so many defects of each kind and column; -1 prints all."""


@dataclass
class Describe(Source):
    """write a page about a dataset, or propose a plant's description"""

    plant: Path | None = None
    """Propose the description of a plant of your own from the file's columns, and write it here."""
    actuators: tuple[str, ...] = ()
    """With --plant: the columns of what is moved; guessed where none are named."""
    env: str | None = None
    """The plant that gives names, units and limits; by default the one that was logged."""
    out: Path | None = None
    """Where to write the page; beside the file, with .html, by default."""


@dataclass
class Convert(Source):
    """write a CSV export or a Minari dataset as npz, or npz as Minari"""

    out: Path | None = None
    """The npz file to write."""
    minari: str | None = None
    """Or the id of the Minari dataset to write, such as reactor/expert-v0."""
    resample: float | None = None
    """Seconds from one row to the next, of a table whose samples are not evenly spaced."""
    method: Literal["linear", "hold"] | None = None
    """Between two samples: a straight line, or what was measured last."""
    force: bool = False
    """Replace what is there."""


def command(argv: Sequence[str]) -> int:
    """Hands the rest of the line to the command that it names; returns its exit code."""
    commands = {Make: _make, Check: _check, Describe: _describe, Convert: _convert}
    return run_group("worldloom data", commands, argv)


def _read(args: Source, world: "PlantWorld | None" = None, **options: Any) -> "Logged":
    """What was logged, by its mapping or as the description of its plant says."""
    from worldloom.suites.plant.description import LoggedPlant
    from worldloom.suites.plant.logs import log_rows, read

    if world is not None and isinstance(world.plant, LoggedPlant) and args.mapping is None:
        return log_rows(args.file, world)
    return read(args.file, args.mapping, **options)


def _plant(name: str | None, **options: Any) -> "PlantWorld | None":
    """The plant that somebody named; None if nobody did."""
    from worldloom.suites.plant.plant import plant_of

    known = suites.names("plant")
    if name is None:
        return None
    if name not in known and not {".", ":"} & set(name):  # neither a file nor a function of theirs
        raise ValueError(f"there is no plant {name!r}; {suggest(name, known)}")
    return plant_of(suites.make(name, **options), name)


def _make(args: Make) -> int:
    from worldloom.replay.dataset_files import refuse_to_overwrite, save
    from worldloom.suites.plant.data_figures import contents, figures
    from worldloom.suites.plant.datasets import make_data
    from worldloom.training.machine import use_compilation_cache

    name = f"{args.env}-{args.quality}-{args.steps}-seed{args.seed}.npz"
    out = args.out or Path("data") / name
    if out.suffix != ".npz":
        raise ValueError(f"--out {out}: the name must end in .npz")
    refuse_to_overwrite(out, args.force)  # before the work, not after it
    use_compilation_cache()
    options = name_values(args.world)
    plant = _plant(args.env, **options)
    console.phase("logging", note=f"{args.steps:,} rows")
    data = make_data(args.env, args.quality, args.steps, args.seed, **options)
    save(data, out, force=args.force)
    stats = figures(contents(data, plant))
    if args.json:
        return _print_json({"file": str(out), **stats})
    _show(f"{args.env}, {args.quality}", stats, {"data": out})
    world = [w for n, v in options.items() for w in (f"--world.{n.replace('_', '-')}", v)]
    learn = ["train", args.env, *world, "--dataset", out]
    console.next_steps(["data", "describe", out], learn)
    return 0


def _check(args: Check) -> int:
    if args.show < -1:
        raise ValueError(f"--show {args.show}: it must be -1 or more")
    console.phase("reading")
    world = _plant(args.env)
    logged = _read(args, world)
    report = logged.check(world.plant.observation, world.plant.action) if world else logged.check()
    if report.fatal() is None:
        logged.dataset()  # raises if the content is not what it was written with
    shown = list(report.defects()) if args.show == -1 else report.first(args.show)
    if args.json:
        known = {"file": args.file, "rows": report.rows, "sound": report.sound}
        defects = [asdict(defect) for defect in shown]
        _print_json(known | {"counts": report.counts, "defects": defects})
    elif report.sound:
        console.say(f"{args.file}: {report.rows:,} rows, no defects")
    else:
        from worldloom.replay.dataset_checks import KINDS

        console.table(
            f"{args.file}: {report.total:,} defects in {report.rows:,} rows",
            ["kind", "defects", "what is wrong"],
            [[kind, f"{count:,}", KINDS[kind]] for kind, count in report.counts.items()],
        )
        for defect in shown:
            console.say(f"  {defect.kind}: {defect.message}")
        if len(shown) < report.total:
            console.say(f"  and {report.total - len(shown):,} more; --show -1 prints all")
    if not args.json and world is None and not logged.observation:
        console.say("ranges were not checked: the file names none; name its plant by --env")
    if not args.json and report.sound:
        env = ["--env", args.env] if args.env else []
        console.next_steps(["data", "describe", *_named(args), *env], *_conversion(args))
    return 0 if report.sound else 1


def _describe(args: Describe) -> int:
    if args.plant is not None:
        return _propose(args, args.plant)
    if args.actuators:
        raise ValueError("describe: --actuators is for --plant FILE.yaml, which it describes")
    from worldloom.suites.plant.data_figures import contents, figures, plant_logged
    from worldloom.suites.plant.data_page import write_page

    console.phase("reading")
    world = _plant(args.env)
    logged = _read(args, world)
    dataset = logged.dataset()
    world = world or plant_logged(dataset)
    console.phase("writing the page")
    described = contents(dataset, world, logged.observation, logged.action)
    out = args.out or Path(args.file).with_suffix(".html")
    page = write_page(out, described, logged.check(), args.file)
    stats = figures(described)
    if args.json:
        return _print_json({"file": args.file, "page": str(page), **stats})
    _show(args.file, stats, {"page": page})
    logged_of = dict(dataset.provenance) if world else {}
    plant = args.env or logged_of.get("env")
    whole = args.file.endswith(".npz") or "plant" in logged_of  # a described plant's may be tables
    if plant and whole and logged_of.get("options", "{}") == "{}":
        console.next_steps(["train", plant, "--dataset", args.file])
    else:
        console.next_steps(*_conversion(args))
    return 0


def _propose(args: Describe, out: Path) -> int:
    from worldloom.core.files import write_text
    from worldloom.suites.plant.proposal import propose

    if out.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"--plant {out}: the name must end in .yaml")
    if out.exists():
        raise FileExistsError(f"{out} is there already, and is never replaced; name another file")
    if args.mapping is not None or args.env is not None or args.out is not None:
        raise ValueError("describe: --plant proposes from the columns alone; leave the others out")
    console.phase("reading")
    text, guesses = propose(Path(args.file), args.actuators, out.stem)
    write_text(out, text)
    if args.json:
        return _print_json({"file": args.file, "plant": str(out), "guesses": guesses})
    console.facts(args.file, {"description": out, "guesses": f"{guesses}, each marked # guess"})
    console.say("say what is worth having (reward) and what must hold (limits) before you train")
    console.next_steps(["train", out, "--dataset", args.file])
    return 0


def _named(args: Source) -> list[Any]:
    """The file as a command names it, with what its columns mean."""
    return [args.file, *(["--mapping", args.mapping] if args.mapping else [])]


def _conversion(args: Source) -> list[list[Any]]:
    """What makes an npz file of a CSV file, where there is none."""
    out = Path(args.file).with_suffix(".npz")
    unneeded = args.mapping is None or out.exists()
    return [] if unneeded else [["data", "convert", *_named(args), "--out", out]]


def _convert(args: Convert) -> int:
    from worldloom.adapters import minari
    from worldloom.replay import dataset_files

    if (args.out is None) == (args.minari is None):
        raise ValueError("convert: say where to, by --out FILE.npz or by --minari ID")
    if args.method is not None and args.resample is None:
        raise ValueError("convert: --method is for --resample SECONDS")
    resampling: dict[str, Any] = {"seconds": args.resample, "method": args.method or "linear"}
    console.phase("reading")
    dataset = _read(args, **resampling).dataset()
    console.phase("writing")
    if args.minari is None:
        written = dataset_files.save(dataset, str(args.out), force=args.force)
    else:
        written = minari.save(dataset, args.minari, force=args.force)
    if args.json:
        return _print_json({"file": str(written), "rows": dataset.size, "digest": dataset.digest})
    console.say(f"{dataset.size:,} rows written to {written}")
    console.next_steps(["data", "check", written])
    return 0


def _show(title: str, stats: dict[str, Any], more: dict[str, Any]) -> None:
    from worldloom.report.axes import number

    steps, returns = stats["steps"], stats["return"]
    ends = f"{stats['terminated']:,} ended, {stats['truncated']:,} ran out of time"
    lengths = f"{number(steps['min'])} to {number(steps['max'])} steps"
    mean, least, most = (number(returns[name], 4) for name in ("mean", "min", "max"))
    known = {
        "rows": f"{stats['rows']:,}",
        "episodes": f"{stats['episodes']:,} of {lengths}; {ends}",
        "mean return": f"{mean} ± {number(returns['std'])}, from {least} to {most}",
        "SHA-256": stats["digest"][:16],
    }
    console.facts(title, known)
    if stats["limits"]:
        rows = []
        for limit in stats["limits"]:
            crossed = [f"{limit['rows']:,}", f"{limit['share']:.2%}", limit["episodes"]]
            rows.append([limit["limit"], *crossed, number(limit["worst"])])
        console.table("limits", ["limit", "rows", "share", "episodes", "by at most"], rows)
    console.facts("written", more)


def _print_json(value: Any) -> int:
    console.print_json(value)
    return 0
