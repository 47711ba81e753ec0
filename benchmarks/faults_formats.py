"""Spoiled files and options, by the hundred thousand: each must be accepted or refused in one line.

    python -m benchmarks.faults_formats 20000                 # calls of every format
    python -m benchmarks.faults_formats 5000 mjcf npz --seed 7
    python -m benchmarks.faults_formats --seconds 100         # of every format: a million in all

Readers run in a process of their own, with a limit on its memory and on the time of a call. A call
is drawn from (format, seed, number) alone, so that any of them can be made again by itself:

    python -m benchmarks.faults_formats 1 mjcf --seed 7 --first 1234 --raise
"""

import argparse
import atexit
import contextlib
import json
import math
import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random
from typing import Any

# What `worldloom.cli.main` answers with one line and exit code 2.
ANSWERS = (ValueError, OSError, ImportError)
MOST_MEMORY = 2 << 30  # bytes beyond what the reader's process has when it is ready
MOST_SECONDS = 5.0  # of the processor, in one call
PATIENCE = 120.0  # seconds of the clock, after which a call that does not even listen has hung
SLICE = 500  # calls between two reports of the reader's process


class Hang(BaseException):
    """A call took too long: no `except Exception` may swallow it."""


def fuzz(
    name: str, calls: int, seed: int = 0, first: int = 0, seconds: float = math.inf
) -> dict[str, Any]:
    """Makes `calls` calls of a format's reader, for so many seconds at most; how they ended.

    longest_message: of a refusal, in characters. several_lines: refusals of more than one.
    examples: what was no answer, or too long for one: kind -> [how often, the first such call].
    """
    total: dict[str, Any] = {
        "calls": 0, "accepted": 0, "refused": 0, "tracebacks": 0, "hangs": 0,
        "longest_message": 0, "several_lines": 0, "examples": {},
    }  # fmt: skip
    skip: list[int] = []
    at, end = first, time.monotonic() + seconds
    while at < first + calls and time.monotonic() < end:
        stop = min(at + SLICE, first + calls)
        worker = _worker()
        part = worker.ask({"format": name, "seed": seed, "first": at, "stop": stop, "skip": skip})
        if part is None:  # it died, or had to be ended, in one call: that one is left out from now
            number, how = worker.where, "hangs" if worker.hung else "tracebacks"
            if number in skip or not at <= number < stop:
                raise RuntimeError(f"{name}: the reader's process ends before its first call")
            skip.append(number)
            total["calls"] += 1
            total[how] += 1
            _note(total, "the process hung" if worker.hung else "the process died", number)
            continue
        for words, (count, number) in part.pop("examples").items():
            _note(total, words, number, count)
        for key, value in part.items():
            if key == "longest_message":
                total[key] = max(total[key], value)
            else:
                total[key] += value
        at = stop
    return total


def _note(counts: dict[str, Any], words: str, number: int, count: int = 1) -> None:
    before, first = counts["examples"].get(words, (0, number))
    counts["examples"][words] = [before + count, first]


# The reader's process ----------------------------------------------------------------------------


class Worker:
    """The process that reads; `where` is the number of the call it is in."""

    def __init__(self) -> None:
        self._place = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._place.write(b"\0" * 8)
        self._place.flush()
        self._number = mmap.mmap(self._place.fileno(), 8)
        command = [sys.executable, "-m", "benchmarks.faults_formats", "--read", self._place.name]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
        )
        self.hung = False

    @property
    def where(self) -> int:
        return int.from_bytes(self._number[:8], "little")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The counts of a slice; None if the process did not live to tell them."""
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        last, since = self.where, time.monotonic()
        while not select.select([self._process.stdout], [], [], 0.2)[0]:
            if self.where != last:
                last, since = self.where, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                self.hung = True
                self._process.kill()
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            return None
        return json.loads(answer)

    def close(self) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError), self._process:
            pass  # its pipes are closed, and it is waited for
        self._number.close()
        self._place.close()


_WORKERS: list[Worker] = []


def _worker() -> Worker:
    """The process of all formats: to start one takes longer than a thousand calls."""
    if _WORKERS and not _WORKERS[-1].alive:
        _WORKERS.pop().close()
    if not _WORKERS:
        _WORKERS.append(Worker())
    return _WORKERS[-1]


@atexit.register
def _close_workers() -> None:
    while _WORKERS:
        _WORKERS.pop().close()


def _read(place: str) -> None:
    """Takes jobs from standard input, one a line, and answers each with its counts."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is nobody's
    signal.signal(signal.SIGPROF, hang)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with open(place, "r+b") as file, tempfile.TemporaryDirectory() as folder:
        number = mmap.mmap(file.fileno(), 8)
        os.chdir(folder)
        cases: dict[str, Any] = {}
        for line in sys.stdin:
            job = json.loads(line)
            if job["format"] not in cases:
                cases[job["format"]] = _case(job["format"], Path(folder))
            print(json.dumps(play(cases[job["format"]], job, number)), file=answers, flush=True)


def _case(name: str, folder: Path) -> Any:
    """The reader of a format, ready; then memory is limited anew."""
    from benchmarks.faults_examples import FORMATS

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    own = folder / str(len(list(folder.iterdir())))
    own.mkdir()
    case = FORMATS[name](own)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_MEMORY, hard))
    return case


def play(case: Any, job: dict[str, Any], number: Any) -> dict[str, Any]:
    """Makes the calls of a job, keeping their number (8 bytes) as it goes; how they ended."""
    part: dict[str, Any] = dict.fromkeys(
        ("calls", "accepted", "refused", "tracebacks", "hangs", "longest_message", "several_lines"),
        0,
    )
    part["examples"] = {}
    for n in range(job["first"], job["stop"]):
        if n in job["skip"]:
            continue
        number[:8] = n.to_bytes(8, "little")
        part["calls"] += 1
        try:
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
            try:
                case(Random(f"{job['format']} {job['seed']} {n}"))
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            part["accepted"] += 1
        except ANSWERS as error:
            part["refused"] += 1
            message = str(error)
            part["longest_message"] = max(part["longest_message"], len(message))
            if "\n" in message:
                part["several_lines"] += 1
            if "\n" in message or len(message) > 300:
                _note(part, f"long {type(error).__name__} | {_last_line()}", n)
        except Hang:
            part["hangs"] += 1
            _note(part, f"hang | {_last_line()}", n)
        except BaseException as error:
            part["tracebacks"] += 1
            _note(part, f"{type(error).__name__} | {_last_line()}", n)
    return part


def hang(*_: Any) -> None:
    """What the timer of a call comes to."""
    raise Hang


def _last_line() -> str:
    """The deepest place in our own code that an error came through."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    own = [frame for frame in frames if "/worldloom/" in frame.filename] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} {own[-1].line}"


# The command -------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int, nargs="?", default=10**9, help="of a format")
    parser.add_argument("formats", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of a format, at most")
    parser.add_argument("--raise", action="store_true", dest="here", help="one call, in the open")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        _read(args.read)
        return 0
    from benchmarks.faults_examples import FORMATS

    bad = 0
    for name in args.formats or FORMATS:
        if args.here:
            with tempfile.TemporaryDirectory() as folder:
                FORMATS[name](Path(folder))(Random(f"{name} {args.seed} {args.first}"))
            continue
        began = time.perf_counter()
        found = fuzz(name, args.calls, args.seed, args.first, args.seconds)
        examples = found.pop("examples")
        per_call = 1e3 * (time.perf_counter() - began) / max(found["calls"], 1)
        print(f"{name}: {json.dumps(found)} {per_call:.2f} ms a call", flush=True)
        for words, (count, number) in sorted(examples.items(), key=lambda one: -one[1][0]):
            print(f"    {count} times, first in call {number}: {words}")
        bad += found["tracebacks"] + found["hangs"] + found["several_lines"]
        bad += found["longest_message"] > 300
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
