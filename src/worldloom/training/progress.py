"""Watching a run while it trains: a progress bar, a profile."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from worldloom.training.driver import Hook
from worldloom.training.run import Run


class ProgressBar:
    """Steps done, a few words and the time left; silent where standard error is no terminal."""

    def __init__(self, total: int, done: int = 0, note: str = "compiling", unit: str = "steps"):
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("training", total=total, completed=done, note=note)
        self._progress.start()

    def update(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note)

    def close(self) -> None:
        self._progress.stop()


class ShowProgress(Hook):
    """Steps, return or loss, the newest evaluation and the speed while a run trains."""

    def __init__(self):
        self._bar: ProgressBar | None = None
        self._score = ""

    def on_start(self, run: Run) -> None:
        total = run.plan.total * run.trainer.steps_per_iteration
        unit = "updates" if run.config.algorithm.loop == "offline" else "steps"
        self._bar = ProgressBar(total, run.steps, unit=unit)

    def on_iterations(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._bar:
            rate = run.timing()["steps_per_second"]
            note = f"{_summary(rows[-1])}{self._score}  {rate:,.0f}/s"
            self._bar.update(run.steps, note)

    def on_evaluation(self, run: Run, evaluation: Any) -> None:
        self._score = f"  evaluated {evaluation.mean:.4g}"

    def on_end(self, run: Run) -> None:
        self.close()

    def close(self) -> None:
        if self._bar:
            self._bar.close()


class ProfileTrace(Hook):
    """A jax.profiler trace of the first two chunks, in `profile/` of the run folder.

    Of no more: a small program leaves a million events a second, and all are kept in memory.
    """

    def __init__(self):
        self._chunks = 0

    def on_start(self, run: Run) -> None:
        jax.profiler.start_trace(str(run.folder / "profile"))
        self._chunks = 2

    def on_iterations(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._chunks == 1:
            self.close()
        self._chunks = max(self._chunks - 1, 0)

    def close(self) -> None:
        if self._chunks:
            jax.profiler.stop_trace()
        self._chunks = 0


def _summary(row: Mapping[str, Any]) -> str:
    shown = [name for name in ("return", "length", "solved") if _is_number(row.get(name))]
    shown = shown or [name for name in row if name.endswith("loss") and _is_number(row[name])]
    return "  ".join(f"{name} {float(row[name]):.4g}" for name in shown[:2])


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False
