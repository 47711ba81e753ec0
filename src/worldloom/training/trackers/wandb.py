"""Runs in Weights & Biases: settings, metrics and files.

Offline unless WANDB_MODE says otherwise: nothing leaves this machine, and nobody need have an
account. The files lie in `wandb/` of the run folder (or where WANDB_DIR says), which also keeps
`wandb.json`: the id by which a resumed run goes on as the same run of W&B, and how far each metric
was told. WANDB_PROJECT names another project than the world's.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.core.files import read_json, write_json
from worldloom.training.folders import world_label
from worldloom.training.trackers.tracker import Point, Tracker, program, relative, require

RUN_FILE = "wandb.json"
# What W&B takes for the state of a run.
_EXIT_CODES = {"FINISHED": 0, "FAILED": 1, "KILLED": 255}


class Wandb(Tracker):
    """The W&B run of the run in `folder`: made when it starts, found when it goes on."""

    name = "wandb"

    def __init__(self, folder: Path):
        super().__init__()
        require(self.name, ["wandb"], extra="wandb")
        self.folder = Path(folder)
        self._run: Any = None
        self._kept: dict[str, Any] = {"run_id": None, "steps": {}}

    def start(self, settings: Mapping[str, Any], tags: Mapping[str, str], step: int) -> None:
        # Before the import. What fails here is nobody's business unless the user wants it so.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._kept = _kept(self.folder)
        world = world_label(str(settings.get("env") or "worldloom"))
        place = Path(os.environ.get("WANDB_DIR") or self.folder)
        place.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or re.sub(r"[/\\#?%:]", "_", world),
            name=self.folder.name,
            id=self._kept["run_id"],
            resume="allow",
            dir=place,
            config={**settings, "run": dict(tags)},
            allow_val_change=True,  # a resumed run may go further
            mode=os.environ.get("WANDB_MODE") or "offline",  # pyright: ignore[reportArgumentType]
            reinit="create_new",  # who calls us may have a run of their own
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._keep()

    def log(self, points: Sequence[Point]) -> None:
        known, by_step = self._kept["steps"], {}
        for label, value, step in points:
            if step > known.get(label, -1):  # a resumed run tells some steps again
                by_step.setdefault(step, {})[label] = value
        for step, values in sorted(by_step.items()):
            self._run.log(values, step=step)
            known.update(dict.fromkeys(values, step))
        self._keep()

    def finish(self, status: str, files: Sequence[Path]) -> None:
        try:
            for file in files:  # copies: by itself W&B would only link to them
                copy = Path(shutil.copy(file, self._run.dir))
                self._run.save(copy, base_path=copy.parent, policy="now", glob=False)
        finally:
            self._run.finish(exit_code=_EXIT_CODES[status])

    def look(self) -> list[str]:
        if self._run is None or self._run.disabled:
            return []
        if not self._run.offline:
            return [str(self._run.url)]
        return [*program("wandb"), "leet", relative(Path(self._run.sync_dir))]

    def _keep(self) -> None:
        write_json(self.folder / RUN_FILE, self._kept | {"run_id": self._run.id})


def _kept(folder: Path) -> dict[str, Any]:
    """What a run folder keeps of its W&B run; nothing if it was not tracked."""
    path = folder / RUN_FILE
    if not path.is_file():
        return {"run_id": None, "steps": {}}
    kept = read_json(path)
    if not isinstance(kept.get("run_id"), str) or not isinstance(kept.get("steps"), dict):
        raise ValueError(f"{path} names no run of W&B; delete it, and the run begins a new one")
    return kept
