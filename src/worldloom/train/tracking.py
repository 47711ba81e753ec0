"""Trackers as hooks of the chunk driver."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.track.async_logger import MinimalAsyncLogger
from worldloom.track.sinks import read_json_lines
from worldloom.track.trackers import Tracker, open_tracker
from worldloom.train.driver import Hook, Run

# What a tracker is given of a run folder, where it is there; curves it has already.
FILES = (
    "config.json", "world.yaml", "constraints.yaml", "eval.jsonl", "judgement.json",
    "timing.json", "report.html",
)  # fmt: skip
# Seconds that the end of a run waits for a slow store, and those for who pressed Ctrl-C.
_PATIENCE, _HASTE = 60.0, 10.0


def tracking_hooks(names: Sequence[str], folder: Path) -> list[Hook]:
    """Hooks that show the run in `folder` with the trackers of these names.

    `mlflow` and `tensorboard` are known; a ValueError for others, an ImportError with the remedy
    where one is not installed. Nothing is imported or written before the run starts.
    """
    return [Tracking(open_tracker(name, Path(folder))) for name in dict.fromkeys(names)]


class Tracking(Hook):
    """Settings, metrics after each chunk, evaluations and the files of a run, for one tracker.

    Training hands them to a thread and goes on. What the tracker fails on is told once and counted
    in `tracker.failures`.
    """

    def __init__(self, tracker: Tracker):
        self.tracker = tracker
        self._logger: MinimalAsyncLogger | None = None
        self._folder = Path()
        self._status = "FAILED"  # unless the run gets to its end

    def on_start(self, run: Run) -> None:
        self._folder = run.folder
        self._logger = MinimalAsyncLogger(self.tracker)
        header = json.loads((run.folder / "config.json").read_text())
        tags = {"folder": str(run.folder.absolute())}
        tags |= {name: str(header[name]) for name in ("worldloom", "hash", "command")}
        self._tell({"settings": run.config.to_dict(), "tags": tags, "step": run.epoch})
        self._tell_again(run)

    def on_epochs(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tell({"unit": run.config.plan.unit, "rows": list(rows)})

    def on_evaluation(self, run: Run, evaluation: Any) -> None:
        self._tell_evaluation(run.config.plan.unit, run.epoch, evaluation.to_dict())

    def on_end(self, run: Run) -> None:
        self._status = "KILLED" if run.interrupted else "FINISHED"

    def close(self) -> None:
        # Files are sent from here: all hooks have written theirs by now.
        if self._logger is None:
            return
        files = [self._folder / name for name in FILES if (self._folder / name).is_file()]
        self._tell({"status": self._status, "files": [str(file) for file in files]})
        self._logger.close(_PATIENCE if self._status == "FINISHED" else _HASTE)
        self.tracker.failures += self._logger.dropped
        self._logger = None

    def _tell_again(self, run: Run) -> None:
        """The evaluation at the step that a run goes on from, which TensorBoard has forgotten."""
        unit = run.config.plan.unit
        for row in read_json_lines(run.folder / "eval.jsonl"):
            if row[unit] == run.epoch:
                found = {k: v for k, v in row.items() if k not in (unit, "seconds", "eval_seconds")}
                self._tell_evaluation(unit, run.epoch, found)

    def _tell_evaluation(self, unit: str, epoch: int, values: Mapping[str, Any]) -> None:
        # A list holds its episodes here, which are no curves.
        found = {k: v for k, v in values.items() if not isinstance(v, list)}
        self._tell({"unit": unit, "rows": [{unit: epoch, "eval": found}]})

    def _tell(self, news: Mapping[str, Any]) -> None:
        if self._logger is not None:
            self._logger.log(news)
