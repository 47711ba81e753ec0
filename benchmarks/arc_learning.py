"""PPO on small Mini-ARC tasks: how many it solves, how soon, and how fast it steps."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worldloom.suites.arc.evaluate import ArcEvaluation
from worldloom.suites.arc.suite import SUBMIT, SUITE, UPDATE
from worldloom.training.config import TrainConfig, make_config
from worldloom.training.driver import Hook
from worldloom.training.run import Run, train

QUICK = {
    "steps": 128,
    "num_worlds": 8,
    "chunk": 1,
    "eval_every": 64,
    "limit": 2,
    "ppo": {"anneal_updates": 2},
}


def settings(**changes: Any) -> TrainConfig:
    """The first 20 tasks that keep the size and change at most 5 cells on average.

    Fills and submission are enough for those, and are what the operation mask allows; the rest
    are the defaults of `worldloom train arc`.
    """
    given = {
        "env": "arc",
        "tasks": "mini-arc",
        "subset": "same-size-5-edits",
        "limit": 20,
        "eval_every": 40 * UPDATE,
        "checkpoint_every": 0,
        "world": {"operations": (*range(10), SUBMIT), "max_steps": 16, "max_trials": 1},
    }
    return make_config(SUITE, given | changes)


class Curve(Hook):
    """Every evaluation, with the time and the steps it came after."""

    def __init__(self, note: Callable[[str], None]):
        self.rows: list[dict[str, Any]] = []
        self._note = note

    def on_evaluation(self, run: Run, evaluation: ArcEvaluation) -> None:
        row = {"iteration": run.iteration, "steps": run.steps, "seconds": run.train_seconds}
        self.rows.append(row | evaluation.to_dict())
        solved = int(evaluation.solved_tasks("demo").sum())
        self._note(f"  {run.train_seconds:.0f} s: demonstrations of {solved} tasks solved")


def learn(note: Callable[[str], None], quick: bool = False) -> dict[str, Any]:
    """Trains once and tells what was solved: a task counts if all its demonstrations are."""
    config = settings(**QUICK if quick else {})
    curve = Curve(note)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="worldloom-arc-") as folder:
        run = train(SUITE, config, Path(folder) / "run", report=False, hooks=[curve])
    evaluation: Any = run.evaluation
    return {
        "settings": config.to_dict(),
        "tasks": len(evaluation.tasks),
        "demo_tasks_solved": int(evaluation.solved_tasks("demo").sum()),
        "test_tasks_solved": int(evaluation.solved_tasks("test").sum()),
        "rates": evaluation.to_dict(),
        "per_task": evaluation.table(),
        "curve": curve.rows,
        "timing": run.timing(),
        "seconds_in_all": time.perf_counter() - start,
    }
