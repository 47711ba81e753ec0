"""The chunk driver: what every training run does between compiled chunks, whatever it learns.

A run advances by epochs, the unit of its loop (an on-policy loop calls them updates). Between
chunks of them the host writes metrics, evaluates, saves checkpoints and listens for Ctrl-C. The
loops themselves, and what they write, are elsewhere: `runner` for turns, `arc` for unrolls.
"""

import hashlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import jax

from worldloom.core.mesh import agreed, leads
from worldloom.core.types import PyTree
from worldloom.track.checkpoint import Checkpoints
from worldloom.track.machine import machine, versions
from worldloom.track.sinks import JsonLines, read_json_lines, write_json, write_text

# Evaluation draws from keys of its own: training is the same with it and without it.
EVALUATION_KEY = 1_000_003


@dataclass(frozen=True)
class Plan:
    """How far a run goes, and how often the host has something to do on the way."""

    total: int  # epochs; 0: nothing is learned, and what there is is evaluated
    chunk: int  # the most that are played between two looks
    eval_every: int  # 0: only at the end
    checkpoint_every: int
    record_period: int = 0  # 0: never
    unit: str = "epoch"  # what the run's files call it

    def next_stop(self, epoch: int) -> int:
        """The next epoch at which the host has something to do."""
        periods = (self.chunk, self.eval_every, self.checkpoint_every, self.record_period)
        return min([self.total, *((epoch // p + 1) * p for p in periods if p)])


class Config(Protocol):
    """What the driver asks of settings."""

    @property
    def seed(self) -> int: ...
    @property
    def plan(self) -> Plan: ...
    def to_dict(self) -> dict[str, Any]: ...
    def fingerprint(self) -> str: ...


class Trainer(Protocol):
    """A run in progress."""

    @property
    def epoch(self) -> int: ...
    @property
    def compile_seconds(self) -> float: ...
    def advance(self, epochs: int) -> Any:
        """Plays and learns; metrics (epochs, ...) on the host, of which `finite` (epochs,)."""
        ...

    def agents(self) -> PyTree:
        """What is evaluated."""
        ...

    def state(self) -> PyTree:
        """What a checkpoint holds."""
        ...

    def load(self, state: PyTree) -> None: ...


class Tables(Protocol):
    """The files that a kind of run keeps about its epochs."""

    def write(self, metrics: Any, first: int, start: float, end: float) -> list[dict[str, Any]]:
        """Writes a chunk from epoch `first` on, trained between two seconds; its main rows."""
        ...

    def close(self) -> None: ...


class Hook:
    """What may happen between chunks; override what you need."""

    def on_start(self, run: Any) -> None: ...
    def on_epochs(self, run: Any, rows: Sequence[Mapping[str, Any]]) -> None: ...
    def on_evaluation(self, run: Any, evaluation: Any) -> None: ...
    def on_record(self, run: Any) -> None: ...
    def on_end(self, run: Any) -> None: ...
    def close(self) -> None:
        """Called last, also when the run failed."""


@dataclass
class Run:
    """A run while it runs, as hooks see it, and after it.

    `evaluator(agents, key)` scores what `trainer.agents()` gives: something with `seconds` and
    `to_dict()`.
    """

    config: Any
    folder: Path
    trainer: Trainer
    evaluator: Any
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    evaluation: Any = None
    interrupted: bool = False

    @property
    def epoch(self) -> int:
        return self.trainer.epoch

    def timing(self) -> dict[str, Any]:
        """What timing.json holds."""
        unit = self.config.plan.unit
        rate = self.epoch / self.train_seconds if self.train_seconds else 0.0
        return {
            "compile_seconds": round(self.trainer.compile_seconds, 3),
            "train_seconds": round(self.train_seconds, 3),
            "eval_seconds": round(self.eval_seconds, 3),
            f"{unit}s": self.epoch,
            f"{unit}s_per_second": round(rate, 3),
        }


RunKind = TypeVar("RunKind", bound=Run)


# Folders ---------------------------------------------------------------------------------------


def unused(root: Path, name: str) -> Path:
    """A folder under `root` that is not there yet, named with the time of day."""
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, n = Path(root) / name, 2
    while folder.exists():
        folder, n = Path(root) / f"{name}-{n}", n + 1
    return folder


def check_empty(folder: Path) -> None:
    """Raises ValueError if a new run must not be written there."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} already exists and is not empty; choose another, or resume it")


def read_settings(folder: Path, read: Callable[[Any, str], Any] = lambda plain, _: plain) -> Any:
    """What `read(settings, place)` makes of the settings that a run folder holds."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} is not a run folder: it has no config.json; name a folder under runs/"
        )
    try:
        return read(json.loads(path.read_text())["config"], str(path))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not hold the settings of a run ({type(error).__name__}: {error}); "
            "name another folder"
        ) from error


def env_of(folder: Path) -> str | None:
    """The name or file of the world that a run is in; a ValueError if the folder holds no run."""
    settings = read_settings(folder)
    return settings.get("env") if isinstance(settings, Mapping) else None


def check_resumable(folder: Path, kept: Config, wanted: Config, free: Sequence[str]) -> None:
    """Raises ValueError if anything but the settings in `free` differs from the run's own."""
    if wanted.fingerprint() == kept.fingerprint():
        return
    old, new = kept.to_dict(), wanted.to_dict()
    names = sorted((old.keys() | new.keys()) - set(free))
    differs = [name for name in names if old.get(name) != new.get(name)]
    raise ValueError(
        f"{folder} was trained with other settings ({', '.join(differs)}); "
        "resume it with its own, or start a new run"
    )


def fingerprint(settings: Mapping[str, Any], free: Sequence[str]) -> str:
    """A short hash of the settings that decide what is learned: all but those in `free`."""
    plain = {name: value for name, value in settings.items() if name not in free}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def open_checkpoints(folder: Path) -> Checkpoints:
    """The checkpoints of an existing run, of which there must be at least one."""
    checkpoints = None
    if (Path(folder) / "checkpoints").is_dir():
        checkpoints = Checkpoints(Path(folder) / "checkpoints")
        if checkpoints.latest is not None:
            return checkpoints
        checkpoints.close()
    raise ValueError(
        f"{folder} holds no complete checkpoint: it was stopped before its first one; "
        "train from the start"
    )


# The run ---------------------------------------------------------------------------------------


def drive(
    this: RunKind,
    open_tables: Callable[[Path, int], Tables],
    *,
    about: Callable[[], Mapping[str, Any]] = dict,
    files: Mapping[str, str] | None = None,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    command: str = "",
) -> RunKind:
    """Takes a run to the end of its plan; with `resume` on from its newest checkpoint.

    `about()` adds to config.json, `files` are the texts that a new run keeps by their names.
    Ctrl-C ends it after the current chunk with a checkpoint; `interrupted` then says so.
    """
    folder, trainer, plan = this.folder, this.trainer, this.config.plan
    if not leads():
        with _stop_on_signal():  # all processes get it: this one must wait for what the leader says
            return _follow(this, resume)
    if resume:
        checkpoints = open_checkpoints(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (files or {}).items():
            write_text(folder / name, text)
        checkpoints = Checkpoints(folder / "checkpoints")
    try:
        if resume:
            trainer.load(checkpoints.restore(trainer.state()))
            if plan.total < trainer.epoch:
                raise ValueError(
                    f"{folder} is at {plan.unit} {trainer.epoch} already; "
                    f"{plan.unit}s={plan.total} is behind it, ask for more"
                )
            _set_clock(this)
        with _stop_on_signal() as stop:
            write_json(folder / "config.json", _header(this, command, about()))
            evals = JsonLines(folder / "eval.jsonl", trainer.epoch + 1, plan.unit)
            with closing(evals), closing(open_tables(folder, trainer.epoch)) as tables:
                for hook in hooks:
                    hook.on_start(this)
                _loop(this, tables, evals, checkpoints, hooks, stop)
        this.interrupted = this.epoch < plan.total
        if this.evaluation is None and not this.interrupted:
            this.evaluation = _score(this)  # resumed after its last epoch: nothing was left to do
        for hook in hooks:
            hook.on_end(this)
    finally:
        for hook in hooks:
            hook.close()
        checkpoints.close()
    return this


def _set_clock(this: Run) -> None:
    """Seconds spent up to the checkpoint that was loaded, as the run's own files tell."""
    unit = this.config.plan.unit
    for row in read_json_lines(this.folder / "metrics.jsonl"):
        if row[unit] < this.epoch:
            this.train_seconds = row["seconds"]
    for row in read_json_lines(this.folder / "eval.jsonl"):
        if row[unit] <= this.epoch:
            this.eval_seconds += row["eval_seconds"]


def _header(this: Run, command: str, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "worldloom": versions()["worldloom"],
        "command": command,
        "config": this.config.to_dict(),
        "hash": this.config.fingerprint(),
        **about,
        "versions": versions(),
        "machine": machine(),
    }


def _loop(
    this: Run,
    tables: Tables,
    evals: JsonLines,
    checkpoints: Checkpoints,
    hooks: Sequence[Hook],
    stop: threading.Event,
) -> None:
    plan, trainer = this.config.plan, this.trainer

    def stopped() -> bool:
        return agreed(stop.is_set())  # asked once a chunk, by all processes

    if plan.total == 0:
        _evaluate(this, evals, hooks)
        write_json(this.folder / "timing.json", this.timing())
        return
    while trainer.epoch < plan.total and not stopped():
        first = trainer.epoch
        compiled, start = trainer.compile_seconds, time.perf_counter()
        metrics = trainer.advance(plan.next_stop(first) - first)
        compiled = trainer.compile_seconds - compiled
        before = this.train_seconds
        this.train_seconds += time.perf_counter() - start - compiled
        rows = tables.write(metrics, first, before, this.train_seconds)
        for hook in hooks:
            hook.on_epochs(this, rows)
        bad = [row[plan.unit] for row, ok in zip(rows, metrics.finite, strict=True) if not ok]
        if bad:
            raise ValueError(
                f"{plan.unit} {bad[0]}: rewards or losses are no longer finite; lower the learning "
                f"rate or mend the world's values ({this.folder} keeps its last good checkpoint)"
            )
        epoch = trainer.epoch
        last = epoch >= plan.total
        # Before the checkpoint: a run killed here evaluates again when it is resumed.
        if last or (plan.eval_every and epoch % plan.eval_every == 0):
            _evaluate(this, evals, hooks)
        write_json(this.folder / "timing.json", this.timing())
        if last or epoch % plan.checkpoint_every == 0:
            checkpoints.save(epoch, trainer.state())
        if plan.record_period and epoch % plan.record_period == 0:
            for hook in hooks:
                hook.on_record(this)
    if trainer.epoch < plan.total:  # stopped
        write_json(this.folder / "timing.json", this.timing())
        checkpoints.save(trainer.epoch, trainer.state())


def _follow(this: RunKind, resume: bool) -> RunKind:
    """The same run in a process that does not lead: it computes its part and writes nothing."""
    plan, trainer = this.config.plan, this.trainer
    if resume:
        with closing(open_checkpoints(this.folder)) as checkpoints:
            trainer.load(checkpoints.restore(trainer.state()))
    while trainer.epoch < plan.total and not agreed(False):
        first = trainer.epoch
        metrics = trainer.advance(plan.next_stop(first) - first)
        if not metrics.finite.all():
            raise ValueError("rewards or losses are no longer finite, as the leader says")
        epoch = trainer.epoch
        if epoch >= plan.total or epoch % plan.checkpoint_every == 0:
            trainer.state()  # of which the leader saves what this process holds
    if trainer.epoch < plan.total:
        this.interrupted = True
        trainer.state()
    return this


def _score(this: Run) -> Any:
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + this.config.seed), this.epoch)
    return this.evaluator(this.trainer.agents(), key)


def _evaluate(this: Run, evals: JsonLines, hooks: Sequence[Hook]) -> None:
    this.evaluation = _score(this)
    this.eval_seconds += this.evaluation.seconds
    row = {
        this.config.plan.unit: this.epoch,
        "seconds": round(this.train_seconds, 4),
        "eval_seconds": round(this.evaluation.seconds, 4),
    }
    evals.write(row | this.evaluation.to_dict())
    for hook in hooks:
        hook.on_evaluation(this, this.evaluation)


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """The first Ctrl-C asks for a clean end; a second one is the usual KeyboardInterrupt."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(signum, frame):
        stop.set()
        signal.signal(signal.SIGINT, previous)
        with suppress(RuntimeError):  # the signal came in the middle of another print
            if leads():
                print("\nstopping after this chunk; Ctrl-C again to stop at once", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
