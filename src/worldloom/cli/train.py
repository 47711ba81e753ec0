"""`worldloom train WORLD`: one command for every world and algorithm."""

import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worldloom import algos, suites
from worldloom.cli.settings import (
    Schema,
    asked_devices,
    flag_help,
    long_help,
    read_request,
    short_help,
    split_flags,
)
from worldloom.training import console
from worldloom.training.config import TrainConfig
from worldloom.training.suite import Suite


@dataclass(frozen=True)
class Flags:
    """What the command takes beside the settings of a run."""

    out: str = "runs"  # folder in which the run gets a folder of its own
    resume: str = ""  # go on with this run folder from its newest checkpoint, to --steps
    config: str = ""  # a YAML file of settings; flags go before it
    preset: str = ""  # where settings start from, such as `original` in treasure hunt
    track: tuple[str, ...] = ()  # also show the run in mlflow, tensorboard or wandb
    report: bool = True  # make pictures and report.html
    json: bool = False  # print the result as JSON
    profile: bool = False  # write a jax.profiler trace of the first two chunks into the run folder
    processes: int = 1  # start so many on this machine, which share the worlds or the batches
    coordinator: str = ""  # host:port of the first of several processes
    num_processes: int = 0  # how many there are; a scheduler tells this by itself
    process_id: int = 0  # which of them this is, from 0


USAGE = "usage: worldloom train WORLD [--algo NAME] [options]    (--help-all: everything)"


def command(argv: list[str]) -> int:
    """Trains, and says how it went."""
    if not argv or (argv[0] in ("-h", "--help") and len(argv) == 1):
        print(_usage())
        return 0
    wants_help = next((a for a in argv if a in ("-h", "--help", "--help-all")), None)
    argv = [arg for arg in argv if arg != wants_help]
    named, flags, settings = split_flags(argv, Flags)
    if flags.resume and (flags.preset or flags.config):
        raise ValueError("--preset and --config start a new run; leave them out with --resume")
    with _several_processes(replace(flags, processes=1) if wants_help else flags, argv) as flags:
        return _train_asked(named, flags, settings, argv, wants_help)


def _train_asked(
    named: str | None, flags: Flags, settings: list[str], argv: list[str], wants_help: str | None
) -> int:
    # Before JAX starts: importing a world of others may start it.
    joined = not wants_help and _use_devices(flags, settings)
    asked = read_request(
        named, settings, resume=flags.resume, config=flags.config, preset=flags.preset
    )
    if wants_help:
        _print_help(asked.schema, everything=wants_help == "--help-all")
        return 0
    config = asked.config
    if joined:
        import jax

        config = replace(config, devices=jax.device_count())
    return _train(asked.schema.suite, config, flags, shlex.join(["worldloom", "train", *argv]))


def _use_devices(flags: Flags, settings: list[str]) -> bool:
    """Splits the processor, or joins other processes; whether there are any."""
    from worldloom.core import mesh

    devices = asked_devices(settings, resume=flags.resume, config=flags.config)
    if devices > 1:
        mesh.split_processor(devices)
    processes = (flags.coordinator or None, flags.num_processes or None)
    return mesh.join(*processes, flags.process_id if any(processes) else None)


@contextmanager
def _several_processes(flags: Flags, argv: list[str]) -> Iterator[Flags]:
    """Starts the processes of `--processes` that follow this one; flags with which it leads."""
    count = flags.processes
    if count < 1:
        raise ValueError(f"--processes {count}: it must be at least 1")
    if count == 1:
        yield flags
        return
    if flags.coordinator or flags.num_processes or flags.process_id:
        raise ValueError(
            "--processes starts all of them on this machine; leave it out where --coordinator, "
            "--num-processes and --process-id join those that are started by others"
        )
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    joining = ["--processes", "1", "--coordinator", coordinator, "--num-processes", str(count)]
    command = [sys.executable, "-m", "worldloom", "train", *argv, *joining, "--process-id"]
    with ExitStack() as ends:
        log = ends.enter_context(tempfile.TemporaryFile("w+"))
        others = [
            subprocess.Popen([*command, str(place)], stdout=log, stderr=log)
            for place in range(1, count)
        ]
        ends.callback(_end, others)
        yield replace(flags, coordinator=coordinator, num_processes=count)
        _end(others)
        if any(process.returncode not in (0, 130) for process in others):
            log.seek(0)
            raise RuntimeError(f"another process failed: {log.read()[-2000:]}")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Leaves the processes that trained together with this one; ends those that stay behind."""
    import jax

    if jax.distributed.is_initialized():
        jax.distributed.shutdown()  # waits for the others
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# Training --------------------------------------------------------------------------------------


def _train(suite: Suite, config: TrainConfig, flags: Flags, command: str) -> int:
    from worldloom.core import mesh
    from worldloom.training.driver import Hook
    from worldloom.training.progress import ProfileTrace, ShowProgress
    from worldloom.training.run import run_folder, train
    from worldloom.training.tracking import Tracking, tracking_hooks

    folder = Path(flags.resume) if flags.resume else run_folder(Path(flags.out), config)
    tracking = tracking_hooks(flags.track, folder)
    hooks: list[Hook] = [*([] if console.is_quiet() else [ShowProgress()]), *tracking]
    hooks += [ProfileTrace()] if flags.profile else []
    again = None
    if not suite.no_resume(config.to_dict()):
        again = shlex.join(["worldloom", "train", "--resume", str(folder)])
    try:
        run = train(
            suite,
            config,
            folder,
            resume=bool(flags.resume),
            report=flags.report,
            hooks=hooks,
            command=command,
        )
    except KeyboardInterrupt:
        if not (folder / "config.json").exists():
            raise
        going_on = f"; go on from the last checkpoint: {again}" if again else ""
        print(f"stopped at once{going_on}", file=sys.stderr)
        return 130
    if mesh.leads():
        _print_result(run, again, flags.json, list(filter(None, map(Tracking.look, tracking))))
    return 130 if run.interrupted else 0


def _print_result(
    run: Any, again: str | None, as_json: bool, look: Sequence[Sequence[str]] = ()
) -> None:
    """look: commands that show the run in the trackers, word by word."""
    from worldloom.training.evaluate import reference_lines, score_of

    timing, config, scores = run.timing(), run.config, run.evaluation
    if as_json:
        summary = {"run": str(run.folder)} | timing
        if scores is not None:
            summary |= scores.to_dict() | {
                "score": score_of(scores),
                "references": run.references(),
            }
        shown = {"look": [shlex.join(words) for words in look]} if look else {}
        console.print_json(summary | {"interrupted": run.interrupted, "resume": again} | shown)
        return
    unit = "updates" if config.algorithm.loop == "offline" else "steps"
    shown = {"scores": "not evaluated yet"}
    if scores is not None:
        shown = scores.lines() | reference_lines(run.references(), scores)
    rate = f"{timing['steps_per_second']:,.0f} {unit}/s"
    shown["training"] = f"{timing['train_seconds']:.1f} s for {run.steps:,} {unit} ({rate})"
    shown["compiling"] = f"{timing['compile_seconds']:.1f} s"
    shown["run folder"] = run.folder
    for name in ("report", "replay"):
        if (run.folder / f"{name}.html").exists():
            shown[name] = run.folder / f"{name}.html"
    console.facts(f"{config.env}, {config.algo}, seed {config.seed}", shown)
    console.listed("look:", look)
    if run.interrupted and again:
        console.next_steps(["train", "--resume", run.folder])
        return
    page = [] if "report" in shown else [["report", run.folder]]
    more = [["train", "--resume", run.folder, "--steps", 2 * run.steps]] if again else []
    console.next_steps(["eval", run.folder], *page, *more)


# Help ------------------------------------------------------------------------------------------


def _usage() -> str:
    known = {name: ", ".join(suites.names(name)) for name in suites.SUITES}
    known["others"] = "gymnax:NAME, brax:NAME, FILE.yaml, PATH.py:FUNCTION"
    lines = [
        textwrap.fill(names, 80, initial_indent=f"  {name:<7}", subsequent_indent=" " * 9)
        for name, names in known.items()
        if names
    ]
    worlds = "\n".join(lines)
    return f"""{USAGE}

Worlds:
{worlds}

worldloom train WORLD --help shows what a world and its algorithm take."""


def _print_help(schema: Schema, everything: bool) -> None:
    print(f"usage: worldloom train {schema.env} [--algo {schema.algo}] [options]")
    env = suites.make(schema.env)
    fitting = [a for a in map(algos.get, algos.names()) if a.why_not(env.spec) is None]
    online = [a.name for a in fitting if a.loop != "offline"]
    offline = [a.name for a in fitting if a.loop == "offline"]
    simulated = getattr(env.base, "simulated", True)
    print(f"algorithms that fit: {', '.join(online) if simulated else 'those of logged data'}")
    if offline and "dataset" in schema.options:
        print(f"from logged data, --dataset: {', '.join(offline)}")
    print()
    if everything:
        print(long_help(schema))
        print(f"the command\n{flag_help(Flags)}")
        return
    print(short_help(schema, shutil.get_terminal_size().columns))
    print(
        "the command\n  --out --resume --config --preset --track --no-report --json "
        "--quiet --profile\n\n--help-all lists every option in a line of its own"
    )
