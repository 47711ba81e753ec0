"""The chunk driver: what every training run does between compiled chunks, whatever it learns.

A run advances by iterations, of which each is a fixed number of steps (environment steps over all
worlds, or updates of an offline algorithm). Between chunks of them the host writes metrics,
evaluates, saves checkpoints and listens for Ctrl-C.
"""

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from worldloom.core.files import write_bytes, write_json, write_text
from worldloom.core.mesh import agreed, leads
from worldloom.training.checkpoint import Checkpoints
from worldloom.training.config import FORMAT, TrainConfig
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
    """Work on the host between chunks; override what you need."""

    def on_start(self, run: "Run") -> None: ...
    def on_iterations(self, run: "Run", rows: Sequence[Row]) -> None:
        """After a chunk; `rows` hold the metrics of each of its iterations."""

    def on_evaluation(self, run: "Run", evaluation: Any) -> None: ...
    def on_record(self, run: "Run") -> None:
        """Every `record_every` steps: time for a film."""

    def on_end(self, run: "Run") -> None: ...
    def close(self) -> None:
        """Called last, also when the run failed."""


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


def drive(
    run: "Run", *, resume: bool = False, hooks: Sequence[Hook] = (), command: str = ""
) -> "Run":
    """Takes a run to the end of its plan; with `resume` on from its newest checkpoint.

    Ctrl-C ends it after the current chunk with a checkpoint; `run.interrupted` then says so.
    """
    if not leads():
        with _stop_on_signal():  # all processes get it: this one must wait for what the leader says
            return _follow(run, resume)
    folder, trainer, plan = run.folder, run.trainer, run.plan
    if resume:
        checkpoints = open_checkpoints(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in run.problem.files.items():
            write = write_text if isinstance(content, str) else write_bytes
            write(folder / name, content)  # pyright: ignore[reportArgumentType]
        checkpoints = Checkpoints(folder / "checkpoints")
    try:
        if resume:
            trainer.load(checkpoints.restore(trainer.template()))
            if plan.total < trainer.iteration:
                raise ValueError(
                    f"{folder} is at step {run.steps:,} already; steps={run.config.steps:,} is "
                    "behind it, ask for more"
                )
            set_clock(run)
        with _stop_on_signal() as stop:
            write_json(folder / "config.json", _header(run, command))
            done = trainer.iteration
            metrics = JsonLines(folder / "metrics.jsonl", done)
            evals = JsonLines(folder / "eval.jsonl", done)
            with closing(metrics), closing(evals):
                for hook in hooks:
                    hook.on_start(run)
                _loop(run, metrics, evals, checkpoints, hooks, stop)
        run.interrupted = trainer.iteration < plan.total
        if run.evaluation is None and not run.interrupted:
            run.evaluation = _score(run)  # resumed after its last step: nothing was left to do
        for hook in hooks:
            hook.on_end(run)
    finally:
        for hook in hooks:
            hook.close()
        checkpoints.close()
    return run


def set_clock(run: "Run") -> None:
    """Seconds spent up to the checkpoint that was loaded, as the run's own files tell."""
    for row in read_json_lines(run.folder / "metrics.jsonl"):
        if row["iteration"] <= run.iteration:
            run.train_seconds = row["seconds"]
    for row in read_json_lines(run.folder / "eval.jsonl"):
        if row["iteration"] <= run.iteration:
            run.eval_seconds += row["eval_seconds"]


def _header(run: "Run", command: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "suite": run.suite.name,
        "command": command,
        "config": run.config.to_dict(),
        "hash": run.config.fingerprint(),
        "steps_per_iteration": run.trainer.steps_per_iteration,
        **run.problem.about(run),
        "versions": versions(),
        "machine": machine(),
    }


def metric_rows(
    metrics: Mapping[str, np.ndarray],
    first: int,
    steps_per_iteration: int,
    start: float,
    end: float,
) -> list[dict[str, Any]]:
    """A row for each of a chunk's iterations; its seconds are spread evenly over them."""
    count = len(metrics["finite"])
    rows = []
    for n in range(count):
        done = first + n + 1
        row: dict[str, Any] = {"iteration": done, "steps": done * steps_per_iteration}
        row |= {name: values[n] for name, values in metrics.items() if name != "finite"}
        row["seconds"] = round(start + (end - start) * (n + 1) / count, 4)
        rows.append(row)
    return rows


def _advance(run: "Run", metrics: JsonLines, hooks: Sequence[Hook]) -> None:
    """One chunk, and what it came to."""
    trainer, first = run.trainer, run.trainer.iteration
    compiled, start = trainer.compile_seconds, time.perf_counter()
    measured = trainer.advance(run.plan.next_stop(first) - first)
    compiled = trainer.compile_seconds - compiled
    before = run.train_seconds
    run.train_seconds += time.perf_counter() - start - compiled
    rows = metric_rows(measured, first, trainer.steps_per_iteration, before, run.train_seconds)
    for row in rows:  # tables of more than one axis are for hooks
        metrics.write({name: value for name, value in row.items() if np.ndim(value) <= 1})
    for hook in hooks:
        hook.on_iterations(run, rows)
    for row, finite in zip(rows, measured["finite"], strict=True):
        if not finite:
            raise ValueError(
                f"step {row['steps']:,}: rewards or losses are no longer finite; lower the "
                f"learning rate or mend the world's values ({run.folder} keeps its last good "
                "checkpoint)"
            )


def _loop(
    run: "Run",
    metrics: JsonLines,
    evals: JsonLines,
    checkpoints: Checkpoints,
    hooks: Sequence[Hook],
    stop: threading.Event,
) -> None:
    plan, trainer = run.plan, run.trainer

    def due(period: int) -> bool:
        return bool(period) and trainer.iteration % period == 0

    # Asked once a chunk, by all processes.
    while trainer.iteration < plan.total and not agreed(stop.is_set()):
        _advance(run, metrics, hooks)
        last = trainer.iteration >= plan.total
        # Before the checkpoint: a run killed here evaluates again when it is resumed.
        if last or due(plan.eval_every):
            _evaluate(run, evals, hooks)
        write_json(run.folder / "timing.json", run.timing())
        if last or due(plan.checkpoint_every):
            checkpoints.save(trainer.iteration, trainer.state())
        if due(plan.record_every):
            for hook in hooks:
                hook.on_record(run)
    if trainer.iteration < plan.total:  # stopped
        write_json(run.folder / "timing.json", run.timing())
        checkpoints.save(trainer.iteration, trainer.state())


def _follow(run: "Run", resume: bool) -> "Run":
    """The same run in a process that does not lead: it computes its part and writes nothing."""
    plan, trainer = run.plan, run.trainer
    if resume:
        with closing(open_checkpoints(run.folder)) as checkpoints:
            trainer.load(checkpoints.restore(trainer.template()))
    while trainer.iteration < plan.total and not agreed(False):
        first = trainer.iteration
        metrics = trainer.advance(plan.next_stop(first) - first)
        if not metrics["finite"].all():
            raise ValueError("rewards or losses are no longer finite, as the leader says")
        done, period = trainer.iteration, plan.checkpoint_every
        if done >= plan.total or (period and done % period == 0):
            trainer.state()  # of which the leader saves what this process holds
    if trainer.iteration < plan.total:
        run.interrupted = True
        trainer.state()
    return run


def _score(run: "Run") -> Any:
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + run.config.seed), run.iteration)
    return run.evaluator(run.agents, key)


def _evaluate(run: "Run", evals: JsonLines, hooks: Sequence[Hook]) -> None:
    run.evaluation = evaluation = _score(run)
    run.eval_seconds += evaluation.seconds
    row = {
        "iteration": run.iteration,
        "steps": run.steps,
        "seconds": round(run.train_seconds, 4),
        "eval_seconds": round(evaluation.seconds, 4),
    }
    evals.write(row | evaluation.to_dict())
    for hook in hooks:
        hook.on_evaluation(run, evaluation)


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
