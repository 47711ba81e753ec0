"""PPO on small Mini-ARC tasks: how many it solves, how soon, and how fast it steps."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from worldloom.envs.arc.operations import SUBMIT
from worldloom.train.arc import ArcRun, run
from worldloom.train.arc_config import ArcRules, ArcTrainConfig
from worldloom.train.arc_evaluate import ArcEvaluation
from worldloom.train.driver import Hook


def settings() -> ArcTrainConfig:
    """The first 20 tasks that keep the size and change at most 5 cells on average.

    Fills and submission are enough for those, and are what the operation mask allows; the rest
    are the defaults of `worldloom train arc`.
    """
    return ArcTrainConfig(
        tasks="mini-arc",
        subset="same-size-5-edits",
        limit=20,
        eval_every=40,
        checkpoint_every=600,
        world=ArcRules(operations=(*range(10), SUBMIT), max_steps=16, max_trials=1),
    )


class Curve(Hook):
    """Every evaluation, with the time and the steps it came after."""

    def __init__(self, note: Callable[[str], None]):
        self.rows: list[dict[str, Any]] = []
        self._note = note

    def on_evaluation(self, run: ArcRun, evaluation: ArcEvaluation) -> None:
        row = {"update": run.epoch, "steps": run.steps, "seconds": run.train_seconds}
        self.rows.append(row | evaluation.to_dict())
        solved = int(evaluation.solved_tasks("demo").sum())
        self._note(f"  {run.train_seconds:.0f} s: demonstrations of {solved} tasks solved")


def learn(note: Callable[[str], None], quick: bool = False) -> dict[str, Any]:
    """Trains once and tells what was solved: a task counts if all its demonstrations are."""
    config = settings()
    if quick:
        ppo = replace(config.ppo, num_worlds=8, anneal_updates=2)
        config = replace(config, updates=2, chunk=1, eval_every=1, limit=2, ppo=ppo)
    curve = Curve(note)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="worldloom-arc-") as folder:
        done = run(config, Path(folder) / "run", hooks=[curve])
    evaluation = done.evaluation
    assert evaluation is not None
    return {
        "settings": config.to_dict(),
        "tasks": len(evaluation.tasks),
        "demo_tasks_solved": int(evaluation.solved_tasks("demo").sum()),
        "test_tasks_solved": int(evaluation.solved_tasks("test").sum()),
        "rates": evaluation.to_dict(),
        "per_task": evaluation.table(),
        "curve": curve.rows,
        "timing": done.timing(),
        "seconds_in_all": time.perf_counter() - start,
    }
