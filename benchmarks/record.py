"""A measurement on its way to a file: saved after every section, whatever happens to the others."""

import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.core.files import write_json
from worldloom.core.names import suggest
from worldloom.training.console import print_json, table
from worldloom.training.machine import machine, versions


class Progress:
    """Lines on standard error, each with the time since the start."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._start = clock, clock()

    @property
    def elapsed(self) -> float:
        return self._clock() - self._start

    def __call__(self, text: str) -> None:
        print(f"[{self.elapsed:7.1f} s] {text}", file=sys.stderr, flush=True)


def now() -> str:
    """The date and time here, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit that is checked out, with "+changes" if tracked files differ; None if unknown."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno", "--", ".."])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.strip() + ("+changes" if changes.strip() else "")


class Record:
    """A result that grows section by section; `complete` is false until `finish`.

    `measured` says of each section from which commit, when and for how long: a file that is put
    together from several runs still tells where every figure comes from.
    """

    def __init__(self, path: Path, **header: Any):
        self.path, self.note = Path(path), Progress()
        self.result: dict[str, Any] = {
            **header,
            "date": now(),
            "versions": versions(),
            "machine": machine(),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "complete": False,
            "measured": {},
            "errors": {},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def section(self, name: str, work: Callable[[], None]) -> None:
        """Runs `work`, which writes into `result`; an error is recorded and the rest goes on."""
        start = time.perf_counter()
        self.result["measured"][name] = measured = {"commit": commit(), "date": now()}
        self.note(f"{name}: starts")
        try:
            work()
        except KeyboardInterrupt:
            self.result["errors"][name] = "stopped by Ctrl-C"
            self.save()
            self.note(f"stopped; what was measured is in {self.path}")
            raise SystemExit(130) from None
        except Exception as error:
            self.result["errors"][name] = f"{type(error).__name__}: {error}"
            self.note(f"{name}: failed: {error}\n{traceback.format_exc()}")
        else:
            self.note(f"{name}: done in {time.perf_counter() - start:.1f} s")
        measured["seconds"] = round(time.perf_counter() - start, 1)
        if commit() != measured["commit"]:
            measured["commit"] = f"{measured['commit']}, changed on the way"
        self.save()

    def save(self) -> None:
        self.result["seconds"] = round(self.note.elapsed, 1)
        write_json(self.path, self.result)

    def finish(self) -> int:
        """Marks the result complete if nothing failed; the exit code that says so."""
        self.result["complete"] = not self.result["errors"]
        self.save()
        return 0 if self.result["complete"] else 1


# section(sizes, seed, result, folder): measures, and writes into the result.
Section = Callable[[Any, int, dict[str, Any], Path], None]


def run_sections(
    suite: str,
    args: Any,
    argv: Sequence[str],
    sections: Mapping[str, Section],
    ratios: Mapping[str, str],
    sizes: Any,
    title: str,
) -> int:
    """Runs the sections that a command line asks for, each in a folder of its own; the exit code.

    args: with out, only, seed, json and quick. ratios: what each figure is.
    """
    for name in args.only:
        if name not in sections:
            raise ValueError(f"there is no section {name!r}; {suggest(name, sections)}")
    variant = "-quick" if args.quick else "-partial" if args.only else ""
    out = args.out or Path("benchmarks/results") / f"{suite}{variant}.json"
    line = shlex.join(["worldloom", "bench", suite, *argv])
    header = {"kind": "bench", "suite": suite, "command": line, "quick": args.quick}
    record = Record(out, **header, ratios=dict.fromkeys(ratios), raw={})
    for name in args.only or sections:
        with tempfile.TemporaryDirectory(prefix=f"worldloom-{suite}-") as folder:
            work = partial(sections[name], sizes, args.seed, record.result, Path(folder))
            record.section(name, work)
    code = record.finish()
    if args.json:
        print_json(record.result)
        return code
    rows = [
        [name, "-" if value is None else f"{value:.4g}", ratios[name]]
        for name, value in record.result["ratios"].items()
    ]
    table(title, ["figure", "counted", "what it is"], rows)
    for section, error in record.result["errors"].items():
        print(f"- {section} failed: {error}")
    print(f"written to {out}")
    return code
