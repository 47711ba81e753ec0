"""Workers of a shared study, started here or through Slurm."""

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.training.arguments import read_word


def parse_launch(text: str) -> tuple[str, int]:
    """("local", N) or ("slurm", N) for local:N and slurm:N; without a number it is one."""
    where, colon, count = text.partition(":")
    number = int(count) if count.isdecimal() else 0 if colon else 1
    if where not in ("local", "slurm") or number < 1:
        raise ValueError(f"--launch {text}: write local:N or slurm:N, N workers of one or more")
    return where, number


def worker_command(argv: Sequence[str]) -> list[str]:
    """What a worker is started with, for the arguments of `worldloom sweep`."""
    return [sys.executable, "-m", "worldloom", "sweep", *argv, "--quiet"]


def run_local(command: Sequence[str], count: int, folder: Path) -> list[Path]:
    """Starts `count` processes and waits for them; the logs of those that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = [folder / f"worker-{n}.log" for n in range(count)]
    processes: list[subprocess.Popen] = []
    try:
        for log in logs:
            with log.open("ab") as file:
                processes.append(subprocess.Popen(command, stdout=file, stderr=file))
        codes = [process.wait() for process in processes]
    finally:  # Ctrl-C: what they have is saved, and they are asked to end
        for process in processes:
            if process.poll() is None:
                process.terminate()
    return [log for log, code in zip(logs, codes, strict=True) if code]


def import_submitit() -> Any:
    """The package; a ValueError that says how to install it where it is missing."""
    try:
        return importlib.import_module("submitit")
    except ImportError:
        raise ValueError("--launch slurm needs submitit: install worldloom[sweep]") from None


def submit(
    command: Sequence[str],
    count: int,
    folder: Path,
    options: Mapping[str, Any],
    cluster: str = "slurm",
) -> list[Any]:
    """Hands `count` jobs to Slurm through submitit, which writes its files into `folder`.

    options: those of submitit's `update_parameters`, such as timeout_min or slurm_partition.
    """
    submitit = import_submitit()
    try:
        executor = submitit.AutoExecutor(folder=folder / "%j", cluster=cluster)
        executor.update_parameters(**({"name": "worldloom-sweep"} | dict(options)))
    except (RuntimeError, NameError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"--launch slurm: submitit cannot do that ({reason})") from None
    # A job starts where it was submitted from, and imports what this process would. Of the
    # environment no more than that: jobs are written to a folder that others may read.
    imports = ["env", f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"]
    work = submitit.helpers.CommandFunction([*imports, *command], verbose=False, cwd=Path.cwd())
    with executor.batch():
        jobs = [executor.submit(work) for _ in range(count)]
    return jobs


def slurm_options(pairs: Sequence[str]) -> dict[str, Any]:
    """name=value pairs of `--slurm`."""
    options = {}
    for pair in pairs:
        name, equals, word = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--slurm {pair}: write name=value, such as timeout_min=60")
        options[name] = read_word(f"--slurm {pair}", word)
    return options
