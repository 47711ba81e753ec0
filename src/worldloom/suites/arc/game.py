"""One person edits one ARC world, by the same compiled step that agents use, and it is recorded."""

import json
import re
import zipfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import __version__
from worldloom.core.files import atomic_path
from worldloom.suites.arc.config import REWARDS, make_config
from worldloom.suites.arc.environment import batch_step, create_observation, start_at
from worldloom.suites.arc.operations import SUBMIT
from worldloom.suites.arc.sheet import COLOR_NAMES, PALETTE
from worldloom.suites.arc.shots import Shot, operation_name
from worldloom.suites.arc.tasks import Task
from worldloom.suites.arc.types import (
    NUM_EXTENDED_OPERATIONS,
    NUM_OPERATIONS,
    ArcConfig,
    ArcState,
    MaskAction,
    Observation,
)

# Which operations stand together on the page.
GROUPS: dict[str, tuple[int, ...]] = {
    "Fill": tuple(range(10)),
    "Flood fill": tuple(range(10, 20)),
    "Move": (20, 21, 22, 23),
    "Turn": (24, 25, 26, 27, 35, 36, 37),
    "Clipboard": (28, 30, 29, 40),
    "Grid": (31, 32, 33, 38, 39),
    "Answer": (SUBMIT,),
}


FORMAT = "worldloom arc play 1"


class Refused(ValueError):
    """What was asked for makes sense, but not now."""


@dataclass(frozen=True, eq=False)
class _Moment:
    state: ArcState  # a batch of one
    obs: Observation  # numpy, one world


@dataclass(frozen=True, eq=False)
class _Step:
    operation: int
    selection: np.ndarray  # bool (H, W)
    reward: float
    terminated: bool
    truncated: bool
    valid: bool


@jax.jit
def _begin(pair: jax.Array, config: ArcConfig) -> tuple[ArcState, Observation]:
    """A fresh world (1, ...) on one pair; its key is not used, since it starts from the input."""
    state = start_at(pair[None], jax.random.key(0)[None], config)
    return state, create_observation(state, config)


class Game:
    """The episodes of one task that one person plays.

    Nothing it tells gives the answer away; how near the grid is to it, `similarity` tells.
    Steps can be taken back up to the last submission: they leave the record too.
    """

    def __init__(
        self,
        task: Task,
        folder: str | Path = "plays",
        *,
        extended: bool = True,
        trials: int = 3,
        max_steps: int = 1000,
    ):
        self.task = task
        self.folder = Path(folder)
        self.config = make_config([task], extended=extended, max_trials=trials, max_steps=max_steps)
        self.pairs = task.pair_names
        self.unsaved = 0  # steps since the last save
        self.start(len(task.demos) if task.tests else 0)

    @property
    def grid_shape(self) -> tuple[int, int]:
        return self.config.grid_shape

    @property
    def num_operations(self) -> int:
        return NUM_EXTENDED_OPERATIONS if self.config.extended else NUM_OPERATIONS

    @property
    def over(self) -> bool:
        return bool(self._steps) and (self._steps[-1].terminated or self._steps[-1].truncated)

    @property
    def solved(self) -> bool:
        return bool(self._moments[-1].state.solved[0])

    # Playing -------------------------------------------------------------------------------------

    def start(self, pair: int) -> None:
        """A new episode on the pair with this number, demonstrations first."""
        if not 0 <= pair < len(self.pairs):
            raise ValueError(f"there is no pair {pair}; they are 0 to {len(self.pairs) - 1}")
        self.pair = pair
        state, obs = _begin(jnp.int32(pair), self.config)
        self._moments = [_Moment(state, _first(obs))]
        self._steps: list[_Step] = []
        self.unsaved = 0

    def warm_up(self) -> None:
        """Compiles the step, so that the first action is answered at once."""
        nowhere = np.zeros((1, *self.grid_shape), bool)
        action = MaskAction(jnp.zeros(1, jnp.int32), jnp.asarray(nowhere))
        jax.block_until_ready(batch_step(self._moments[0].state, action, self.config))

    def step(self, operation: int, selection: np.ndarray) -> None:
        """One action: an operation on the cells of a mask (H, W)."""
        if self.over:
            raise Refused("the episode is over; start a new one")
        action = MaskAction(jnp.array([operation], jnp.int32), jnp.asarray(selection)[None])
        before = self._moments[-1].state
        state, obs, reward, _, info = batch_step(before, action, self.config)
        info = _first(info)
        self._moments.append(_Moment(state, _first(obs)))
        self._steps.append(
            _Step(
                operation,
                selection,
                float(reward[0]),
                bool(info.terminated),
                bool(info.truncated),
                int(info.operation_type) >= 0,
            )
        )
        self.unsaved += 1

    def take_back(self) -> None:
        """The last step undone, as if it had never been made; a submission stays made."""
        if not self.can_take_back:
            raise Refused("there is nothing to take back")
        self._steps.pop()
        self._moments.pop()
        self.unsaved = max(0, self.unsaved - 1)

    @property
    def can_take_back(self) -> bool:
        return bool(self._steps) and not self.over and self._steps[-1].operation != SUBMIT

    def similarity(self) -> float:
        return float(self._moments[-1].state.similarity[0])

    def shots(self) -> list[Shot]:
        """The episode so far, for its picture."""
        grids = [_area(m.obs.grid, m.obs.size) for m in self._moments]
        done = zip(grids, self._steps, strict=False)
        rules = self.config.rules
        shots = [Shot(grid, s.operation, s.selection, s.valid, rules) for grid, s in done]
        return [*shots, Shot(grids[-1])]

    # What the page shows -------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """What stays during an episode: demonstrations, operations and colours.

        Of a demonstration that is being played, the output is missing.
        """
        return {
            "task": self.task.name,
            "pairs": self.pairs,
            "demonstrations": [
                {
                    "input": pair.input.tolist(),
                    "output": None if number == self.pair else pair.output.tolist(),
                }
                for number, pair in enumerate(self.task.demos)
            ],
            "canvas": list(self.grid_shape),
            "groups": [
                {
                    "name": name,
                    "operations": [
                        {"id": i, "name": operation_name(i, self.config.rules)}
                        for i in operations
                        if i < self.num_operations
                    ],
                }
                for name, operations in GROUPS.items()
            ],
            "palette": list(PALETTE),
            "colors": list(COLOR_NAMES),
            "max_steps": int(self.config.max_steps),
            "max_trials": int(self.config.max_trials),
            "folder": str(self.folder),
        }

    def view(self) -> dict[str, Any]:
        """The world as a player may see it."""
        obs = self._moments[-1].obs
        last = self._steps[-1] if self._steps else None
        return {
            "pair": self.pair,
            "input": _area(obs.input, obs.input_size).tolist(),
            "grid": _area(obs.grid, obs.size).tolist(),
            "clipboard": _area(obs.clipboard, obs.clipboard_size).tolist(),
            "allowed": np.flatnonzero(obs.operation_mask).tolist(),
            "steps": len(self._steps),
            "step_count": int(obs.step_count),
            "trials": int(obs.trials),
            "over": self.over,
            "solved": self.solved,
            "valid": last is None or last.valid,
            "last": None if last is None else operation_name(last.operation, self.config.rules),
            "can_take_back": self.can_take_back,
        }

    # The record ----------------------------------------------------------------------------------

    def save(self) -> Path:
        """Writes the episode so far as training data: see `read_play`."""
        if not self._steps:
            raise Refused("there is no step to save yet")
        obs = [moment.obs for moment in self._moments]
        observations = jax.tree.map(lambda *leaves: np.stack(leaves), *obs)
        arrays = {
            f"observation.{name}": getattr(observations, name)
            for name in Observation.__dataclass_fields__
            if getattr(observations, name) is not None
        }
        terminated = np.array([s.terminated for s in self._steps])
        truncated = np.array([s.truncated for s in self._steps])
        arrays |= {
            "action.operation": np.array([s.operation for s in self._steps], np.int32),
            "action.selection": np.stack([s.selection for s in self._steps]),
            "reward": np.array([s.reward for s in self._steps], np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
            "valid": np.array([s.valid for s in self._steps]),
        }
        now = datetime.now().astimezone()
        metadata = {
            "format": FORMAT,
            "worldloom": __version__,
            "saved": now.isoformat(timespec="seconds"),
            "task": self.task.name,
            "pair": self.pairs[self.pair],
            "steps": len(self._steps),
            "finished": self.over,
            "solved": self.solved,
            "rules": self.config.rules,
            "extended": self.config.extended,
            "grid_shape": list(self.grid_shape),
            "max_steps": int(self.config.max_steps),
            "max_trials": int(self.config.max_trials),
        } | {name: float(getattr(self.config, name)) for name in REWARDS}
        name = f"{self.task.name}-{self.pairs[self.pair]}-{now:%Y%m%d-%H%M%S}"
        path = _write(self.folder, re.sub(r"[^\w.-]+", "-", name), arrays, metadata)
        self.unsaved = 0
        return path


def _write(folder: Path, name: str, arrays: dict[str, np.ndarray], metadata: dict) -> Path:
    """Whole or not at all, and never over a file that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{name}.npz", 2
    while path.exists():
        path, number = folder / f"{name}-{number}.npz", number + 1
    everything: dict[str, Any] = arrays | {"metadata": np.array(json.dumps(metadata))}
    with atomic_path(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **everything)
    return path


def is_play(path: str | Path) -> bool:
    """Whether a file is a saved episode of `worldloom arc play`."""
    if not zipfile.is_zipfile(path):
        return False
    with np.load(path, allow_pickle=False) as file:
        return "metadata" in file and FORMAT in str(file["metadata"])


def read_play(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the metadata of a saved episode of T steps.

    `observation.*` (T+1, ...) are the fields of `Observation`: row t is what action t was chosen
    from, row T the end. `action.operation` (T,) and `action.selection` (T, H, W) are the actions
    (`MaskAction`); `reward`, `terminated`, `truncated`, `done` and `valid` are (T,).
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    if "metadata" not in arrays:
        raise ValueError(f"{path}: this is no saved play of `worldloom arc play`")
    return arrays, json.loads(str(arrays.pop("metadata")))


def _first(batch: Any) -> Any:
    """The only world of a batch, as numpy."""
    return jax.tree.map(lambda x: x[0], jax.device_get(batch))


def _area(grid: Any, size: Any) -> np.ndarray:
    return grid[: size[0], : size[1]]
