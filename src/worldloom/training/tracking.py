"""Trackers as hooks of the chunk driver."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.core.files import read_json
from worldloom.training.driver import Hook, curves
from worldloom.training.hooks import evaluation_metrics
from worldloom.training.run import Run
from worldloom.training.trackers.async_logger import MinimalAsyncLogger
from worldloom.training.trackers.tracker import Tracker, open_tracker

# What a tracker is given of a run folder, where it is there; curves it has already.
FILES = (
    "config.json", "world.yaml", "constraints.yaml", "eval.jsonl", "ope.json",
    "timing.json", "report.html",
)  # fmt: skip
# Seconds that the end of a run waits for a slow store, and those for who pressed Ctrl-C.
_PATIENCE, _HASTE = 60.0, 10.0


def tracking_hooks(names: Sequence[str], folder: Path) -> "list[Tracking]":
    """Hooks that show the run in `folder` with the trackers of these names.

    `mlflow`, `tensorboard` and `wandb` are known; a ValueError for others, an ImportError with the
    remedy where one is not installed. Nothing is imported or written before the run starts.
    """
    return [Tracking(open_tracker(name, Path(folder))) for name in dict.fromkeys(names)]


class Tracking(Hook):
    """Settings, metrics after each chunk, evaluations and the files of a run, for one tracker.

    Training hands them to a thread and goes on. What the tracker fails on is reported once and
    counted in `tracker.failures`.
    """

    def __init__(self, tracker: Tracker):
        self.tracker = tracker
        self._logger: MinimalAsyncLogger | None = None
        self._folder = Path()
        self._status, self._steps = "FAILED", 0  # unless the run gets to its end

    def on_start(self, run: Run) -> None:
        self._folder = run.folder
        self._logger = MinimalAsyncLogger(self.tracker)
        header = json.loads((run.folder / "config.json").read_text())
        tags = {"folder": str(run.folder.absolute())}
        tags |= {name: str(header[name]) for name in ("hash", "command")}
        tags["worldloom"] = header["versions"]["worldloom"]
        self._tell({"settings": run.config.to_dict(), "tags": tags, "step": run.steps + 1})

    def on_iterations(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tell({"rows": [curves(row) for row in rows]})

    def on_evaluation(self, run: Run, evaluation: Any) -> None:
        self._tell({"rows": [{"steps": run.steps, "eval": evaluation_metrics(evaluation)}]})

    def on_end(self, run: Run) -> None:
        self._status, self._steps = "KILLED" if run.interrupted else "FINISHED", run.steps

    def close(self) -> None:
        # Files are sent from here: all hooks have written theirs by now.
        if self._logger is None:
            return
        files = [self._folder / name for name in FILES if (self._folder / name).is_file()]
        estimates = self._folder / "ope.json"
        if estimates in files and self._status == "FINISHED":
            self._tell({"rows": [{"steps": self._steps, "ope": _by_method(read_json(estimates))}]})
        self._tell({"status": self._status, "files": [str(file) for file in files]})
        self._logger.close(_PATIENCE if self._status == "FINISHED" else _HASTE)
        self.tracker.failures += self._logger.dropped
        self._logger = None

    def look(self) -> list[str]:
        """How to look at the run there: see `Tracker.look`."""
        return self.tracker.look()

    def _tell(self, news: Mapping[str, Any]) -> None:
        if self._logger is not None:
            self._logger.log(news)


def _by_method(content: Mapping[str, Any]) -> dict[str, Any]:
    """Off-policy estimates under the names of their methods, and what else is said of them."""
    estimates = {
        one["method"]: {name: value for name, value in one.items() if name != "method"}
        for one in content["estimates"]
    }
    kept = ("logged_return", "true_return", "fqe_drift", "support")
    return estimates | {name: content[name] for name in kept if name in content}
