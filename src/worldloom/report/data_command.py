"""`worldloom data make | check | describe | convert`: offline datasets from the command line."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from worldloom.core.names import suggest

if TYPE_CHECKING:
    from worldloom.replay.dataset_checks import Report
    from worldloom.replay.dataset_files import Logged

COMMANDS = {
    "make": "log a dataset from a plant under a scripted controller",
    "check": "list every defect of a dataset with its row",
    "describe": "write a page about a dataset: returns, limits, coverage",
    "convert": "write a CSV export or a Minari dataset as npz, or the reverse of the latter",
}
TABLES = (".csv", ".tsv", ".txt")


def command(argv: Sequence[str]) -> int:
    """Hands the rest of the line to the command that it names; returns its exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: worldloom data COMMAND [options]      (worldloom data COMMAND --help)\n")
        print("\n".join(f"  {name:<10}{text}" for name, text in COMMANDS.items()))
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        raise ValueError(f"there is no command {name!r}; {suggest(name, list(COMMANDS))}")
    run: Callable[[list[str]], int] = globals()[f"_{name}"]
    return run(rest)


def _parse(kind: Any, argv: Sequence[str], name: str) -> Any:
    from worldloom.track.arguments import parse

    return parse(kind, argv, f"worldloom data {name}", COMMANDS[name])


def read(source: str | Path, mapping: Path | None = None) -> "Logged":
    """What was logged in an npz file, a CSV file with its mapping, or a Minari dataset."""
    from worldloom.replay.dataset_files import read_npz

    path = Path(source)
    if path.suffix.lower() in TABLES:
        from worldloom.replay.dataset_csv import read_csv
        from worldloom.replay.dataset_mapping import read_mapping

        if mapping is None:
            raise ValueError(
                f"{path}: what its columns mean is not known; name a YAML file by --mapping"
            )
        return read_csv(path, read_mapping(mapping))
    if mapping is not None:
        raise ValueError(f"{path}: --mapping is for CSV files, whose names end in .csv")
    if path.is_file() or path.suffix.lower() == ".npz":
        return read_npz(path)
    from worldloom.adapters import minari

    if minari.find(source) is None:
        raise FileNotFoundError(f"{source}: there is no such file, nor a Minari dataset of that id")
    try:
        return minari.read_minari(source)
    except ImportError as error:
        raise ValueError(str(error)) from None


# make ------------------------------------------------------------------------------------------


def _make(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Make:
        env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLANT")]
        """The plant, such as reactor."""
        quality: Literal["expert", "medium", "mixed", "random"] = "medium"
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

    args = _parse(Make, argv, "make")
    from worldloom.replay.dataset_files import refuse_to_overwrite, save
    from worldloom.track.arguments import name_values
    from worldloom.track.machine import use_compilation_cache

    usual = Path("data") / f"{args.env}-{args.quality}-{args.steps}-seed{args.seed}.npz"
    out = args.out or usual
    if out.suffix != ".npz":
        raise ValueError(f"--out {out}: the name must end in .npz")
    refuse_to_overwrite(out, args.force)  # before the work, not after it
    use_compilation_cache()
    from worldloom.report.data_figures import contents, figures, plant_named
    from worldloom.train.plant_data import make_data

    options = name_values(args.world)
    made = make_data(args.env, args.quality, args.steps, args.seed, **options)
    save(made, out, force=args.force)
    told = figures(contents(made, plant_named(args.env, options)))
    if args.json:
        _print_json({"file": str(out), **told})
        return 0
    _show(
        f"{args.env}, {args.quality}",
        told,
        {"written to": out, "look at it": _line("describe", out)},
    )
    return 0


# check -----------------------------------------------------------------------------------------


def _check(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Check:
        file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
        """An npz file, a CSV file (with --mapping), a Minari dataset's folder or id."""
        mapping: Path | None = None
        """What the columns of a CSV file mean: a YAML file."""
        env: str | None = None
        """Check against the signals of this plant: their number, and the range of each."""
        show: int = 3
        """Print so many defects of each kind and column; -1 prints all."""
        json: bool = False
        """Print JSON instead of a table."""

    args = _parse(Check, argv, "check")
    if args.show < -1:
        raise ValueError(f"--show {args.show}: it must be -1 or more")
    from worldloom.report.data_figures import plant_named

    logged = read(args.file, args.mapping)
    world = None
    if args.env is not None:
        world = plant_named(args.env)
        if world is None:
            from worldloom.envs import registry

            known = registry.names("plant")
            raise ValueError(f"there is no plant {args.env!r}; {suggest(args.env, known)}")
    report = logged.check(world.plant.observation, world.plant.action) if world else logged.check()
    if report.fatal() is None:
        logged.dataset()  # raises if the content is not what it was written with
    shown = list(report.defects()) if args.show == -1 else report.first(args.show)
    if args.json:
        _print_json(
            {"file": args.file, "rows": report.rows, "sound": report.sound,
             "counts": report.counts, "defects": [asdict(defect) for defect in shown]}
        )  # fmt: skip
    else:
        _show_report(args.file, report, shown)
        if world is None and not logged.observation:
            print("ranges were not checked: the file names none; name its plant by --env")
    return 0 if report.sound else 1


def _show_report(source: str, report: "Report", shown: list[Any]) -> None:
    if report.sound:
        print(f"{source}: {report.rows:,} rows, no defects")
        return
    from worldloom.replay.dataset_checks import KINDS
    from worldloom.track.console import table

    table(
        f"{source}: {report.total:,} defects in {report.rows:,} rows",
        ["kind", "defects", "what is wrong"],
        [[kind, f"{count:,}", KINDS[kind]] for kind, count in report.counts.items()],
    )
    for defect in shown:
        print(f"  {defect.kind}: {defect.message}")
    if len(shown) < report.total:
        print(f"  and {report.total - len(shown):,} more; --show -1 prints all")


# describe --------------------------------------------------------------------------------------


def _describe(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Describe:
        file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
        """An npz file, a CSV file (with --mapping), a Minari dataset's folder or id."""
        mapping: Path | None = None
        """What the columns of a CSV file mean: a YAML file."""
        env: str | None = None
        """The plant that gives names, units and limits; by default the one that was logged."""
        out: Path | None = None
        """Where to write the page; beside the file, with .html, by default."""
        json: bool = False
        """Print the figures as JSON."""

    args = _parse(Describe, argv, "describe")
    from worldloom.report.data_figures import contents, figures, plant_named
    from worldloom.report.data_page import write_page

    logged = read(args.file, args.mapping)
    dataset = logged.dataset()
    logged_from = dict(dataset.provenance)
    options = _options(logged_from.get("options", ""))
    world = plant_named(args.env or logged_from.get("env", ""), {} if args.env else options)
    if args.env is not None and world is None:
        from worldloom.envs import registry

        known = registry.names("plant")
        raise ValueError(f"there is no plant {args.env!r}; {suggest(args.env, known)}")
    found = contents(dataset, world, logged.observation, logged.action)
    told = figures(found)
    out = args.out or Path(args.file).with_suffix(".html")
    page = write_page(out, found, logged.check(), args.file)
    if args.json:
        _print_json({"file": args.file, "page": str(page), **told})
        return 0
    _show(args.file, told, {"page": page})
    return 0


# convert ---------------------------------------------------------------------------------------


def _convert(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Convert:
        file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
        """An npz file, a CSV file (with --mapping), a Minari dataset's folder or id."""
        mapping: Path | None = None
        """What the columns of a CSV file mean: a YAML file."""
        out: Path | None = None
        """The npz file to write."""
        minari: str | None = None
        """Or the id of the Minari dataset to write, such as reactor/expert-v0."""
        force: bool = False
        """Replace what is there."""
        json: bool = False
        """Print JSON."""

    args = _parse(Convert, argv, "convert")
    if (args.out is None) == (args.minari is None):
        raise ValueError("convert: say where to, by --out FILE.npz or by --minari ID")
    dataset = read(args.file, args.mapping).dataset()
    if args.out is not None:
        from worldloom.replay.dataset_files import save

        written = save(dataset, args.out, force=args.force)
    else:
        from worldloom.adapters import minari

        try:
            written = minari.save(dataset, args.minari, force=args.force)
        except ImportError as error:
            raise ValueError(str(error)) from None
    if args.json:
        _print_json({"file": str(written), "rows": dataset.size, "digest": dataset.digest})
    else:
        print(f"{dataset.size:,} rows written to {written}")
    return 0


# Output ----------------------------------------------------------------------------------------


def _show(title: str, told: dict[str, Any], more: dict[str, Any]) -> None:
    from worldloom.report.axes import number
    from worldloom.track.console import facts, table

    steps, returns = told["steps"], told["return"]
    facts(
        title,
        {
            "rows": f"{told['rows']:,}",
            "episodes": f"{told['episodes']:,} of {number(steps['min'])} to "
            f"{number(steps['max'])} steps; {told['terminated']:,} ended, "
            f"{told['truncated']:,} ran out of time",
            "mean return": f"{number(returns['mean'], 4)} ± {number(returns['std'])}, from "
            f"{number(returns['min'], 4)} to {number(returns['max'], 4)}",
            "SHA-256": told["digest"][:16],
        },
    )
    if told["limits"]:
        table(
            "limits",
            ["limit", "rows", "share", "episodes", "by at most"],
            [
                [limit["limit"], f"{limit['rows']:,}", f"{limit['share']:.2%}",
                 f"{limit['episodes']:,}", number(limit["worst"])]
                for limit in told["limits"]
            ],
        )  # fmt: skip
    facts("", more)


def _options(text: str) -> dict[str, Any]:
    """The plant's options as the provenance has them; none where it has none."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _line(name: str, path: Path) -> str:
    return shlex.join(["worldloom", "data", name, str(path)])


def _print_json(value: Any) -> None:
    from worldloom.track.sinks import plain

    print(json.dumps(plain(value), indent=2), flush=True)
