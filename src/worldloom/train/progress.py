"""Progress bars as hooks of the chunk driver."""

from collections.abc import Mapping, Sequence
from typing import Any

from worldloom.track.console import ProgressBar
from worldloom.train.arc_evaluate import ArcEvaluation
from worldloom.train.driver import Hook, Run
from worldloom.train.evaluate import Evaluation
from worldloom.train.plant_evaluate import PlantEvaluation
from worldloom.train.robot_evaluate import RobotEvaluation


class Progress(Hook):
    """Epochs, score and speed while a run trains."""

    def __init__(self):
        self._bar: ProgressBar | None = None
        self._greedy = ""

    def on_start(self, run: Run) -> None:
        plan = run.config.plan
        self._bar = ProgressBar(plan.total, run.epoch, unit=plan.unit)

    def on_epochs(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._bar:
            self._bar.update(run.epoch, self._note(run, rows[-1]))

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        self._greedy = f"  greedy {evaluation.mean:.0f}"

    def on_end(self, run: Run) -> None:
        self.close()

    def close(self) -> None:
        if self._bar:
            self._bar.close()

    def _note(self, run: Run, row: Mapping[str, Any]) -> str:
        rate = run.epoch / run.train_seconds if run.train_seconds else 0.0
        return f"score {row['score']:.0f}{self._greedy}  {rate:.1f} epochs/s"


class ArcProgress(Progress):
    """Updates, share of solved episodes, return and speed while a run on ARC trains."""

    def on_evaluation(self, run: Run, evaluation: ArcEvaluation) -> None:
        rates = evaluation.to_dict()
        self._greedy = f"  demos {rates['demo_pairs']:.0%}, tests {rates['test_pairs']:.0%}"

    def _note(self, run: Run, row: Mapping[str, Any]) -> str:
        rate = run.timing()["steps_per_second"]
        solved = f"solved {row['solved']:.0%}  return {row['return']:.1f}"
        return f"{solved}{self._greedy}  {rate:,.0f} steps/s"


class RobotProgress(Progress):
    """Updates, return, falls and speed while a robot trains."""

    def on_evaluation(self, run: Run, evaluation: RobotEvaluation) -> None:
        self._greedy = f"  greedy: {evaluation.good.mean():.0%} good"

    def _note(self, run: Run, row: Mapping[str, Any]) -> str:
        rate = run.timing()["steps_per_second"]
        told = f"return {row['return']:.1f}  length {row['length']:.0f}"
        return f"{told}{self._greedy}  {rate:,.0f} steps/s"


class PlantProgress(Progress):
    """Epochs, loss and speed while a run learns from logged data."""

    def on_evaluation(self, run: Run, evaluation: PlantEvaluation) -> None:
        self._greedy = f"  return {evaluation.mean:.1f}"

    def _note(self, run: Run, row: Mapping[str, Any]) -> str:
        rate = run.timing()["updates_per_second"]
        losses = [f"{name} {value:.3g}" for name, value in row.items() if name.endswith("loss")]
        return f"{'  '.join(losses[:2])}{self._greedy}  {rate:,.0f} updates/s"
