"""The chunk driver: what every training run does between compiled chunks, whatever it learns.

A run advances by iterations, of which each is a fixed number of steps (environment steps over all
worlds, or updates of an offline algorithm). Between chunks of them the host writes metrics,
evaluates, saves checkpoints and listens for Ctrl-C and SIGTERM.
"""

import math
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from worldloom.core.files import (
    DISK_ERRORS,
    replace_folder,
    sync,
    write_bytes,
    write_json,
    write_text,
)
from worldloom.core.interrupts import stop_when_asked
from worldloom.core.mesh import agreed, leads
from worldloom.training.checkpoint import Checkpoints
from worldloom.training.config import FORMAT, TrainConfig, header_digest, read_header
from worldloom.training.console import phase
from worldloom.training.evaluate import reference_rows
from worldloom.training.folders import locked
from worldloom.training.machine import machine, versions
from worldloom.training.sinks import JsonLines, read_json_lines

if TYPE_CHECKING:
    from worldloom.training.run import Run

# Evaluation draws from keys of its own: training is the same with it and without it.
EVALUATION_KEY = 1_000_003
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """How far a run goes, and how often the host has something to do, in iterations."""

    total: int
    chunk: int  # the most that are played between two looks
    eval_every: int  # 0: only at the end
    checkpoint_every: int  # 0: only at the end
    record_every: int = 0  # 0: never

    def next_stop(self, iteration: int) -> int:
        """The next iteration at which the host has something to do."""
        periods = (self.chunk, self.eval_every, self.checkpoint_every, self.record_every)
        return min([self.total, *((iteration // p + 1) * p for p in periods if p)])


def plan_of(config: TrainConfig, steps_per_iteration: int) -> Plan:
    """The plan of a run: periods in steps become whole numbers of iterations."""

    def every(steps: int) -> int:
        return max(1, round(steps / steps_per_iteration)) if steps else 0

    return Plan(
        total=math.ceil(config.steps / steps_per_iteration),
        chunk=config.chunk,
        eval_every=every(config.eval_every),
        checkpoint_every=every(config.checkpoint_every),
        record_every=every(config.record_every),
    )


class Hook:
    """Work on the host between chunks; override what you need.

    What a hook raises there ends the run as Ctrl-C does, with a checkpoint, and is raised then.
    `run.stop()` asks for such an end. phase: what is being done at the end of a run and when it is
    filmed, in a word or two.
    """

    phase = ""

    def on_start(self, run: "Run") -> None: ...
    def on_iterations(self, run: "Run", rows: Sequence[Row]) -> None:
        """After a chunk; `rows` hold the metrics of each of its iterations."""

    def on_evaluation(self, run: "Run", evaluation: Any) -> None: ...
    def on_record(self, run: "Run") -> None:
        """Every `record_every` steps: time for a film."""

    def on_chunk(self, run: "Run") -> None:
        """After a chunk and all that belongs to it: evaluation, checkpoint, film."""

    def on_end(self, run: "Run") -> None: ...
    def close(self) -> None:
        """Called last, also when the run failed."""


class _Hooks:
    """The hooks of a run in training. One that raises is told no more, and the run ends."""

    def __init__(self, hooks: Sequence[Hook]):
        self._listening, self.error = list(hooks), None

    def tell(self, occasion: str, run: "Run", *news: Any) -> None:
        for hook in list(self._listening):
            try:
                getattr(hook, occasion)(run, *news)
            except Exception as error:
                if getattr(error, "errno", None) in DISK_ERRORS:
                    raise  # where no checkpoint could be written either
                self._listening.remove(hook)
                self.error = self.error or error


def open_checkpoints(folder: Path) -> Checkpoints:
    """The checkpoints of an existing run, of which there must be at least one."""
    if (Path(folder) / "checkpoints").is_dir():
        checkpoints = Checkpoints(Path(folder) / "checkpoints")
        if checkpoints.latest is not None:
            return checkpoints
        checkpoints.close()
    raise ValueError(
        f"{folder} holds no complete checkpoint: it was stopped before its first one; "
        "train from the start"
    )


def drive(
    run: "Run", *, resume: bool = False, hooks: Sequence[Hook] = (), command: str = ""
) -> "Run":
    """Takes a run to the end of its plan; with `resume` on from its newest checkpoint.

    Ctrl-C and SIGTERM end it after the current chunk with a checkpoint; `run.interrupted` then says
    so. Of several processes, those that do not lead compute their part and write nothing.
    """
    folder = run.folder
    if not leads():
        return _drive(run, resume, [], command)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if not resume and (folder / "config.json").exists():
            raise ValueError(f"{folder} has just been taken by another run; name another folder")
        try:
            return _drive(run, resume, [_Rows(), *hooks], command)
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            raise OSError(error.errno, f"{error.strerror}; {_kept(run)}") from None


def _kept(run: "Run") -> str:
    """What is left of a run that could not be written on."""
    with suppress(ValueError), closing(open_checkpoints(run.folder)) as checkpoints:
        steps = (checkpoints.latest or 0) * run.trainer.steps_per_iteration
        return f"{run.folder} keeps its checkpoint of step {steps:,}: make room, and resume it"
    return f"{run.folder} holds no checkpoint yet: make room, and train from the start"


def _drive(run: "Run", resume: bool, hooks: Sequence[Hook], command: str) -> "Run":
    folder, trainer, plan = run.folder, run.trainer, run.plan
    checkpoints = open_checkpoints(folder) if resume else None
    with ExitStack() as ends:  # each of them is closed, whatever becomes of the others
        for hook in reversed(hooks):
            ends.callback(hook.close)
        if checkpoints is not None:
            ends.callback(checkpoints.close)
            trainer.load(checkpoints.restore(trainer.template()))
            if plan.total < trainer.iteration:
                raise ValueError(
                    f"{folder} is at step {run.steps:,} already; steps={run.config.steps:,} is "
                    "behind it, ask for more"
                )
            if leads():
                checkpoints.forget_after(trainer.iteration)
            set_clock(run)
        elif leads():
            _write_files(run)
            checkpoints = Checkpoints(folder / "checkpoints")
            ends.callback(checkpoints.close)
        # All processes get the signal: those that follow must wait for what the leader says.
        with stop_when_asked(_say_so) as stop:
            if leads():
                known = read_header(folder).get("references") if resume else None
                write_json(folder / "config.json", _header(run, command, known))
            for hook in hooks:
                hook.on_start(run)
            told = _Hooks(hooks)
            _loop(run, checkpoints, told, stop)
        run.interrupted = trainer.iteration < plan.total
        if told.error is not None:
            told.error.add_note(f"{folder} keeps its checkpoint of step {run.steps:,}: resume it")
            raise told.error
        if leads() and run.evaluation is None and not run.interrupted:
            run.evaluation = _score(run)  # resumed after its last step: nothing was left to do
        for hook in hooks:
            if hook.phase:
                phase(hook.phase)
            hook.on_end(run)
    return run


def _write_files(run: "Run") -> None:
    for name, content in run.problem.files.items():
        write = write_text if isinstance(content, str) else write_bytes
        write(run.folder / name, content)  # pyright: ignore[reportArgumentType]


def write_stopped(
    run: "Run", metrics: Mapping[str, Any], references: Mapping[str, Any], command: str = ""
) -> None:
    """Writes a run that was trained as one of many, as if it had been stopped where it is.

    `worldloom train --resume` goes on with it. metrics (iterations, ...): of all its iterations,
    or none.
    """
    folder = run.folder
    run.folder = folder.with_name(f".{folder.name}.part")  # a killed process leaves no half of it
    shutil.rmtree(run.folder, ignore_errors=True)
    run.folder.mkdir(parents=True)
    _write_files(run)
    write_json(run.folder / "config.json", _header(run, command, references))
    rows = _Rows()
    rows.on_start(run)
    with closing(rows):
        if metrics:
            rows.on_iterations(run, _rows_of(run, 0, metrics, 0.0))
        if run.evaluation is not None:
            rows.on_evaluation(run, run.evaluation)
    write_json(run.folder / "timing.json", run.timing())
    with closing(Checkpoints(run.folder / "checkpoints")) as checkpoints:
        checkpoints.save(run.iteration, run.trainer.state())
    run.folder = replace_folder(run.folder, folder)


def _say_so() -> None:
    with suppress(RuntimeError):  # the signal came in the middle of another print
        if leads():
            print("\nstopping after this chunk; Ctrl-C again to stop at once", file=sys.stderr)


def set_clock(run: "Run") -> None:
    """Seconds spent up to the checkpoint that was loaded, as the run's own files tell."""
    for row in read_json_lines(run.folder / "metrics.jsonl"):
        if row.get("iteration", 0) <= run.iteration:
            run.train_seconds = row.get("seconds", run.train_seconds)
    for row in read_json_lines(run.folder / "eval.jsonl"):
        if row.get("iteration", 0) <= run.iteration:
            run.eval_seconds += row.get("eval_seconds", 0.0)


def _header(run: "Run", command: str, known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What config.json holds; known: what random play scores, where it was played already."""
    if known is None:
        phase("playing at random")
        known = reference_rows(run.problem.references(run.evaluator, run.agents))
    header = {
        "format": FORMAT,
        "suite": run.suite.name,
        "command": command,
        "config": run.config.to_dict(),
        "hash": run.config.fingerprint(),
        "steps_per_iteration": run.trainer.steps_per_iteration,
        "references": known,
        **run.problem.about(run),
        "versions": versions(),
        "machine": machine(),
    }
    return header | {"sha256": header_digest(header)}


def curves(row: Row) -> Row:
    """What of a row can be drawn: numbers, and one for each agent; tables are for other hooks."""
    return {name: value for name, value in row.items() if np.ndim(value) <= 1}


class _Rows(Hook):
    """metrics.jsonl and eval.jsonl: a row for each iteration, and for each evaluation."""

    _metrics: JsonLines | None = None
    _evals: JsonLines | None = None

    def on_start(self, run: "Run") -> None:
        self._metrics = JsonLines(run.folder / "metrics.jsonl", run.iteration)
        self._evals = JsonLines(run.folder / "eval.jsonl", run.iteration)

    def on_iterations(self, run: "Run", rows: Sequence[Row]) -> None:
        assert self._metrics is not None
        for row in rows:
            self._metrics.write(curves(row))

    def on_evaluation(self, run: "Run", evaluation: Any) -> None:
        assert self._evals is not None
        row = {
            "iteration": run.iteration,
            "steps": run.steps,
            "seconds": round(run.train_seconds, 4),
            "eval_seconds": round(evaluation.seconds, 4),
        }
        self._evals.write(row | evaluation.to_dict())

    def close(self) -> None:
        for sink in (self._metrics, self._evals):
            if sink is not None:
                sink.close()


def _rows_of(run: "Run", first: int, metrics: Row, before: float) -> list[dict[str, Any]]:
    """A row for each iteration after `first`, with its share of the seconds since `before`."""
    count, each = run.iteration - first, run.trainer.steps_per_iteration
    share = (run.train_seconds - before) / max(count, 1)
    return [
        {
            "iteration": first + n,
            "steps": (first + n) * each,
            **{name: values[n - 1] for name, values in metrics.items()},
            "seconds": round(before + share * n, 4),
        }
        for n in range(1, count + 1)
    ]


def _advance(run: "Run", hooks: _Hooks) -> None:
    """One chunk, and what it came to: a row for each iteration, with its share of the seconds."""
    phase("training")
    trainer, first, before = run.trainer, run.trainer.iteration, run.train_seconds
    compiled, start = trainer.compile_seconds, time.perf_counter()
    metrics = dict(trainer.advance(run.plan.next_stop(first) - first))
    compiled = trainer.compile_seconds - compiled
    run.train_seconds += time.perf_counter() - start - compiled
    finite = metrics.pop("finite")
    rows = _rows_of(run, first, metrics, before)
    hooks.tell("on_iterations", run, rows)
    if not finite.all():
        raise ValueError(
            f"step {rows[int(np.argmin(finite))]['steps']:,}: rewards or losses are no longer "
            "finite; lower the learning rate or mend the world's values "
            f"({run.folder} keeps its last good checkpoint)"
        )


def _loop(
    run: "Run", checkpoints: Checkpoints | None, hooks: _Hooks, stop: threading.Event
) -> None:
    plan, trainer = run.plan, run.trainer

    def due(period: int) -> bool:
        return bool(period) and trainer.iteration % period == 0

    def write_timing() -> None:
        if leads():
            write_json(run.folder / "timing.json", run.timing())

    def save() -> None:
        write_timing()
        state = trainer.state()  # asked for by all processes: each may hold a part of it
        if leads() and checkpoints is not None:
            for path in filter(Path.is_file, run.folder.iterdir()):
                sync(path)  # or the tables could miss rows of what the checkpoint has behind it
            checkpoints.save(trainer.iteration, state)

    def asked_to_stop() -> bool:  # once a chunk, by all processes
        return agreed(stop.is_set() or run.asked_to_stop or hooks.error is not None)

    while trainer.iteration < plan.total and not asked_to_stop():
        _advance(run, hooks)
        last = trainer.iteration >= plan.total
        # Before the checkpoint: a run killed here evaluates again when it is resumed.
        if leads() and (last or due(plan.eval_every)):
            run.evaluation = evaluation = _score(run)
            run.eval_seconds += evaluation.seconds
            hooks.tell("on_evaluation", run, evaluation)
            write_timing()
        if last or due(plan.checkpoint_every):
            save()
        if due(plan.record_every):
            phase("filming")
            hooks.tell("on_record", run)
        hooks.tell("on_chunk", run)
    if trainer.iteration < plan.total:  # stopped
        save()


def _score(run: "Run") -> Any:
    phase("evaluating")
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + run.config.seed), run.iteration)
    return run.evaluator(run.agents, key)
