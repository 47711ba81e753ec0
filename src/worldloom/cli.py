"""The `worldloom` command. Each subcommand imports what it needs when it is called."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from worldloom import __version__

if TYPE_CHECKING:
    from worldloom.train.config import TrainConfig

COMMANDS = {
    "envs": "list the worlds",
    "train": "train agents in a world and write a run folder",
    "sweep": "train over a grid of settings or seeds",
    "eval": "score a trained run, film it, or play a world yourself",
    "compare": "run execution modes on equal work and time them",
    "bench": "measure a suite against its peers and write JSON",
    "report": "write the page of a run, comparison or benchmark",
    "data": "make, check and describe logged data of a plant",
    "export": "write a trained policy as a bundle: a robot's, or a plant's with its safety filter",
    "serve": "answer requests with an exported policy behind its safety filter",
    "audit": "verify and replay what a server wrote down",
    "arc": "list, draw and play the tasks of the ARC suite",
    "doctor": "show versions, devices and caches, and check that they work",
}
# Those that are modules of their own, each with `command(argv)`; the others are below.
MODULES = {
    "arc": "worldloom.report.arc_command",
    "audit": "worldloom.deploy.audit_command",
    "bench": "worldloom.bench.suites",
    "compare": "worldloom.bench.compare",
    "data": "worldloom.report.data_command",
    "serve": "worldloom.deploy.serve_command",
    "sweep": "worldloom.report.sweep_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; 0 is success, 2 is bad input, 130 a run ended by Ctrl-C."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"worldloom {__version__}")
        return 0
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        from worldloom.core.names import suggest

        print(f"worldloom: no command {name!r}; {suggest(name, list(COMMANDS))}", file=sys.stderr)
        return 2
    try:
        command: Callable[[list[str]], int] = (
            import_module(MODULES[name]).command if name in MODULES else globals()[f"_{name}"]
        )
        return command(rest)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, ImportError) as error:  # the last: an extra that is missing
        print(f"worldloom {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"worldloom {name}: stopped at once", file=sys.stderr)
        return 130


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: worldloom COMMAND [options]      (worldloom COMMAND --help for its options)",
            "",
            "Whole reinforcement-learning experiments compiled into one XLA program.",
            "",
            *lines,
            "",
            "First steps:",
            "  worldloom train treasurehunt          train, and write runs/.../report.html",
            "  worldloom compare treasurehunt        see the execution modes side by side",
            "  worldloom train arc                   learn to solve grid puzzles",
            "  worldloom train biped                 teach a small robot to walk",
            "  worldloom train reactor               learn to control a plant from logged data",
        ]
    )


def _parse(kind: Any, argv: list[str], command: str) -> Any:
    from worldloom.track.arguments import parse

    return parse(kind, argv, f"worldloom {command}", COMMANDS[command])


def _print_json(value: Any) -> None:
    from worldloom.track.sinks import plain

    print(json.dumps(plain(value), indent=2))


def _world_options(pairs: Sequence[str]) -> dict[str, Any]:
    from worldloom.track.arguments import name_values

    return name_values(pairs)


# envs ------------------------------------------------------------------------------------------


def _envs(argv: list[str]) -> int:
    @dataclass
    class Envs:
        json: bool = False
        """Print JSON instead of a table."""

    args = _parse(Envs, argv, "envs")
    from worldloom.envs import registry
    from worldloom.envs.grid.world import GridWorld, describe

    rows = []
    for name, text in registry.names().items():
        try:
            env = registry.make(name)
        except (ImportError, ValueError) as error:  # an extra that is missing
            rows.append({"name": name, "description": text, "missing": str(error)})
            continue
        facts = describe(env.base) if isinstance(env.base, GridWorld) else env.base.describe()
        rows.append(facts | {"horizon": env.spec.horizon, "description": text})
    if args.json:
        _print_json(rows)
        return 0
    from worldloom.track.console import table

    table(
        "worlds",
        ["world", "size", "agents", "turns", "actions", "what it is"],
        [_world_row(row) for row in rows],
    )
    return 0


def _world_row(row: dict[str, Any]) -> list[Any]:
    if "missing" in row:
        return [row["name"], "", "", "", "", row["missing"]]
    facts = [row[name] for name in ("name", "size", "agents", "horizon")]
    return [*facts, len(row["actions"]), row["description"]]


# train -----------------------------------------------------------------------------------------


def _train(argv: list[str]) -> int:
    import tyro

    suite = _suite_of(argv, _value_of("--resume", argv))
    if suite is not None:
        return _runs_of(suite).train_command(argv)
    from worldloom.track.machine import use_compilation_cache
    from worldloom.train.config import Settings, TrainConfig

    base = _starting_point(argv)
    names = Settings.__dataclass_fields__
    defaults = Settings(**{name: getattr(base, name) for name in names})

    @dataclass
    class Train:
        env: Annotated[str, tyro.conf.Positional] = base.env
        """A world's name (see `worldloom envs`) or a YAML file."""
        world: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
        """Options of the world, such as num_agents=3 turn_order=simultaneous."""
        preset: Literal["default", "original"] = "default"
        """Where settings start from: ours, or those of the original treasure hunt."""
        out: Path = Path("runs")
        """Folder in which the run gets a folder of its own."""
        resume: Path | None = None
        """Go on with this run folder from its newest checkpoint, to --epochs."""
        track: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
        """Also show the run in mlflow or tensorboard."""
        report: bool = True
        """Write GIFs and report.html."""
        json: bool = False
        """Print the result as JSON."""
        settings: Annotated[Settings, tyro.conf.arg(name="")] = field(
            default_factory=lambda: defaults
        )

    args = _parse(Train, argv, "train")
    use_compilation_cache()
    chosen = {name: getattr(args.settings, name) for name in names}
    config = TrainConfig(
        env=args.env, world=dict(base.world) | _world_options(args.world), **chosen
    )
    if args.resume is None:
        from worldloom.train.runner import new_folder

        folder = new_folder(args.out, config)
    else:
        folder = args.resume
    command = shlex.join(["worldloom", "train", *argv])
    return _run(config, folder, args, command)


def _starting_point(argv: list[str]) -> "TrainConfig":
    """The settings that arguments change: a resumed run's own, a preset's, or the defaults.

    They are the defaults that the help shows, so they are found before the rest is parsed.
    """
    from worldloom.train.config import TrainConfig

    resume, preset = _value_of("--resume", argv), _value_of("--preset", argv)
    if resume is not None:
        from worldloom.train.runner import read_config

        if preset is not None:
            raise ValueError("--preset starts a new run; leave it out to go on with --resume")
        return read_config(Path(resume))
    return TrainConfig.original() if preset == "original" else TrainConfig()


# Suite -> the module whose commands train and score it; grids are at home here.
_RUNS = {"arc": "worldloom.report.arc_runs", "robot": "worldloom.report.robot_runs",
         "plant": "worldloom.report.plant_runs"}  # fmt: skip


def _suite_of(argv: list[str], run: str | None) -> str | None:
    """The suite of a run folder, if it is one, or else of a world that is named; None for grids."""
    from worldloom.envs.registry import suite_of

    if run is not None and (Path(run) / "config.json").is_file():
        from worldloom.train.driver import env_of

        found = suite_of(env_of(Path(run)) or "")
        return found if found in _RUNS else None
    out = _value_of("--out", argv)
    named = (suite_of(arg) for arg in argv if arg != out)
    return next((suite for suite in named if suite in _RUNS), None)


def _runs_of(suite: str) -> Any:
    return import_module(_RUNS[suite])


def _value_of(flag: str, argv: list[str]) -> str | None:
    """The value given to a flag, last one first; None if it is not there."""
    found = None
    for arg, following in zip_longest(argv, argv[1:]):
        name, equals, value = arg.partition("=")
        if name == flag:
            found = value if equals else following
    return found


def _run(config: "TrainConfig", folder: Path, args: Any, command: str) -> int:
    from worldloom.report.hooks import Pictures
    from worldloom.track.console import facts
    from worldloom.train.progress import Progress
    from worldloom.train.runner import run
    from worldloom.train.tracking import tracking_hooks

    hooks = [Progress(), *([Pictures()] if args.report else [])]
    hooks += tracking_hooks(args.track, folder)
    resume = args.resume is not None
    again = shlex.join(["worldloom", "train", "--resume", str(folder)])
    try:
        result = run(config, folder, resume=resume, hooks=hooks, command=command)
    except KeyboardInterrupt:
        if not (folder / "config.json").exists():
            raise
        print(f"stopped at once; go on from the last checkpoint: {again}", file=sys.stderr)
        return 130
    summary = {"run": str(folder), "epoch": result.epoch} | result.timing()
    if result.evaluation is not None:
        summary["score"] = result.evaluation.mean
        summary["score_stderr"] = result.evaluation.stderr
    if args.json:
        _print_json(summary | {"interrupted": result.interrupted, "resume": again})
        return 130 if result.interrupted else 0
    low_level = result.timing()
    shown = {
        "greedy score": "not evaluated yet"
        if result.evaluation is None
        else f"{result.evaluation.mean:.1f} +- {result.evaluation.stderr:.1f} "
        f"({len(result.evaluation.scores)} episodes)",
        "training": f"{low_level['train_seconds']:.1f} s for {result.epoch} epochs "
        f"({low_level['epochs_per_second']:.1f} epochs/s, "
        f"{low_level['agent_steps_per_second']:,.0f} agent steps/s)",
        "compiling": f"{low_level['compile_seconds']:.1f} s",
        "run folder": folder,
    }
    if (folder / "report.html").exists():
        shown["report"] = folder / "report.html"
    if result.interrupted:
        shown["go on with"] = again
    facts(f"{config.env}, {config.algo}, {config.mode}, seed {config.seed}", shown)
    return 130 if result.interrupted else 0


# eval ------------------------------------------------------------------------------------------


def _eval(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Eval:
        target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """A run folder, or with --human also a world's name."""
        episodes: int = 200
        seed: int = 0
        gif: Path | None = None
        """Also write a GIF of one episode here."""
        human: bool = False
        """Play agent 0 yourself in the terminal; a run's agents play the others."""
        world: tuple[str, ...] = ()
        """Options of the world, as name=value (with --human)."""
        json: bool = False

    folder = next((arg for arg in argv if (Path(arg) / "config.json").is_file()), None)
    suite = _suite_of([], folder)
    if suite is not None:
        return _runs_of(suite).eval_command(argv)
    args = _parse(Eval, argv, "eval")
    from worldloom.track.machine import use_compilation_cache

    use_compilation_cache()
    if args.human:
        return _play(args)
    from worldloom.train.load import load_run

    loaded = load_run(Path(args.target))
    result = loaded.evaluate(args.episodes, args.seed)
    if args.gif is not None:
        from worldloom.report.hooks import film

        film(loaded, args.gif, args.seed)
    summary = {"run": args.target, "epoch": loaded.epoch} | result.to_dict()
    if args.json:
        _print_json(summary | {"gif": args.gif and str(args.gif)})
        return 0
    from worldloom.track.console import facts

    low, high = result.interval
    shown = {
        "greedy score": f"{result.mean:.1f} +- {result.stderr:.1f} (s.e.)",
        "95 % interval": f"{low:.1f} to {high:.1f}",
        "episodes": len(result.scores),
        "each agent": ", ".join(f"{x:.1f}" for x in result.agent_scores.mean(axis=0)),
    }
    if args.gif is not None:
        shown["film"] = args.gif
    facts(f"{args.target}, epoch {loaded.epoch}", shown)
    return 0


def _play(args: Any) -> int:
    import jax

    from worldloom.envs import registry
    from worldloom.train import human
    from worldloom.train.load import load_run

    others = None
    if (Path(args.target) / "config.json").exists():
        loaded = load_run(Path(args.target))
        env, others = loaded.env, loaded.policy()
    else:
        env = registry.make(args.target, **_world_options(args.world))
    human.play_in_terminal(env, 0, jax.random.key(args.seed), others)
    return 0


# export, report --------------------------------------------------------------------------------


def _export(argv: list[str]) -> int:
    folder = next((arg for arg in argv if (Path(arg) / "config.json").is_file()), None)
    if folder is not None and _suite_of([], folder) == "plant":
        from worldloom.deploy.plant_command import command
    else:
        from worldloom.deploy.robot_command import command
    return command(argv)


def _report(argv: list[str]) -> int:
    import tyro

    @dataclass
    class Report:
        target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|JSON")]
        """A run folder, or a JSON file of `compare`, `bench` or `sweep`."""
        json: bool = False

    args = _parse(Report, argv, "report")
    from worldloom.report.pages import write_page

    page = write_page(args.target)
    if args.json:
        _print_json({"report": str(page)})
    else:
        print(f"written to {page}")
    return 0


# doctor ----------------------------------------------------------------------------------------


def _doctor(argv: list[str]) -> int:
    @dataclass
    class Doctor:
        json: bool = False

    args = _parse(Doctor, argv, "doctor")
    from worldloom.track import doctor

    found = doctor.examine()
    if args.json:
        _print_json(found)
    else:
        doctor.show(found)
    return 0 if found["healthy"] else 1
