"""Watching a run while it trains: a progress bar, a profile."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from worldloom.training import console
from worldloom.training.driver import Hook
from worldloom.training.run import Run


class ShowProgress(Hook):
    """Steps, return or loss, the newest evaluation and the speed while a run trains."""

    _score = ""

    def __init__(self):
        console.begin()
        console.phase("preparing")

    def on_start(self, run: Run) -> None:
        unit = "updates" if run.config.algorithm.loop == "offline" else "steps"
        total = run.plan.total * run.trainer.steps_per_iteration
        console.phase("compiling", done=run.steps, total=total, unit=unit)

    def on_iterations(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        rate = run.timing()["steps_per_second"]
        note = f"{_summary(rows[-1])}{self._score}  {rate:,.0f}/s"
        console.phase("training", done=run.steps, note=note)

    def on_evaluation(self, run: Run, evaluation: Any) -> None:
        self._score = f"  score {evaluation.mean:.4g}"

    def close(self) -> None:
        console.end()


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
    return "  ".join(f"{name} {float(row[name]):.4g}" for name in shown[:1])


def _is_number(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False
