"""A progress bar as a hook of the runner."""

from collections.abc import Mapping, Sequence
from typing import Any

from worldloom.track.console import ProgressBar
from worldloom.train.evaluate import Evaluation
from worldloom.train.runner import Hook, Run


class Progress(Hook):
    """Epochs, score and speed while a run trains."""

    def __init__(self):
        self._bar: ProgressBar | None = None
        self._greedy = ""

    def on_start(self, run: Run) -> None:
        self._bar = ProgressBar(run.config.epochs, run.epoch)

    def on_epochs(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        rate = run.epoch / run.train_seconds if run.train_seconds else 0.0
        note = f"score {rows[-1]['score']:.0f}{self._greedy}  {rate:.1f} epochs/s"
        if self._bar:
            self._bar.update(run.epoch, note)

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        self._greedy = f"  greedy {evaluation.mean:.0f}"

    def on_end(self, run: Run) -> None:
        self.close()

    def close(self) -> None:
        if self._bar:
            self._bar.close()
