"""One person edits one ARC world, by the same compiled step that agents use, and it is recorded.

What was recorded becomes transitions of point actions, for imitation.
"""

import json
import re
import zipfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import __version__
from worldloom.core.files import atomic_path
from worldloom.core.types import Array, PyTree
from worldloom.replay.dataset import Dataset, from_columns
from worldloom.suites.arc import operations
from worldloom.suites.arc.draw import operation_name
from worldloom.suites.arc.environment import (
    NOWHERE,
    REWARDS,
    arc_step,
    create_observation,
    make_config,
    start_at,
)
from worldloom.suites.arc.operations import SUBMIT
from worldloom.suites.arc.tasks import Task, TaskSet
from worldloom.suites.arc.types import (
    COLOR_NAMES,
    PALETTE,
    ArcConfig,
    ArcState,
    MaskAction,
    Observation,
)

FORMAT = "worldloom arc play 1"
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


class Refused(ValueError):
    """What was asked for makes sense, but not now."""


@jax.jit
def start_from_input(pair: jax.Array, config: ArcConfig) -> tuple[ArcState, Observation]:
    """One world on the pair with this row of the tasks, whatever the start of `config`."""
    config = config.replace(start="input")
    state = start_at(pair[None], jax.random.key(0)[None], config)  # the key is not used
    state = jax.tree.map(lambda x: x[0], state)
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
        self.grid_shape, self.num_operations = self.config.grid_shape, self.config.num_operations
        self.start(len(task.demos) if task.tests else 0)

    @property
    def over(self) -> bool:
        return bool(self._steps) and bool(self._steps[-1]["done"])

    @property
    def solved(self) -> bool:
        return bool(self._worlds[-1][0].solved)

    # Playing -------------------------------------------------------------------------------------

    def start(self, pair: int) -> None:
        """A new episode on the pair with this number, demonstrations first."""
        names = self.task.pair_names
        if not 0 <= pair < len(names):
            raise ValueError(f"there is no pair {pair}; they are 0 to {len(names) - 1}")
        self.pair = pair
        # States and observations, one more than there are steps.
        self._worlds = [jax.device_get(start_from_input(jnp.int32(pair), self.config))]
        self._steps: list[dict[str, Any]] = []  # by the names under which they are saved
        self.unsaved = 0  # steps since the last save

    def warm_up(self) -> None:
        """Compiles the step, so that the first action is answered at once."""
        action = MaskAction(jnp.int32(0), jnp.zeros(self.grid_shape, bool))
        jax.block_until_ready(arc_step(self._worlds[0][0], action, self.config))

    def step(self, operation: int, selection: np.ndarray) -> None:
        """One action: an operation on the cells of a mask (H, W)."""
        if self.over:
            raise Refused("the episode is over; start a new one")
        action = MaskAction(jnp.int32(operation), jnp.asarray(selection))
        stepped = arc_step(self._worlds[-1][0], action, self.config)
        state, obs, reward, done, info = jax.device_get(stepped)
        self._worlds.append((state, obs))
        self._steps.append(
            {
                "action.operation": np.int32(operation),
                "action.selection": selection,
                "reward": reward,
                "terminated": info.terminated,
                "truncated": info.truncated,
                "done": done,
                "valid": info.operation_type >= 0,
            }
        )
        self.unsaved += 1

    def take_back(self) -> None:
        """The last step undone, as if it had never been made; a submission stays made."""
        if not self.can_take_back:
            raise Refused("there is nothing to take back")
        self._steps.pop()
        self._worlds.pop()
        self.unsaved = max(0, self.unsaved - 1)

    @property
    def can_take_back(self) -> bool:
        steps = self._steps
        return bool(steps and not self.over and steps[-1]["action.operation"] != SUBMIT)

    def similarity(self) -> float:
        return float(self._worlds[-1][0].similarity)

    # What the page shows -------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """What stays during an episode: demonstrations, operations and colours.

        Of a demonstration that is being played, the output is missing.
        """
        demonstrations = self.task.to_json()["train"]
        if self.pair < len(demonstrations):
            demonstrations[self.pair]["output"] = None
        groups = {name: [i for i in ids if i < self.num_operations] for name, ids in GROUPS.items()}
        return {
            "task": self.task.name,
            "pairs": self.task.pair_names,
            "demonstrations": demonstrations,
            "canvas": list(self.grid_shape),
            "groups": [
                {"name": name, "operations": [{"id": i, "name": operation_name(i)} for i in ids]}
                for name, ids in groups.items()
            ],
            "palette": list(PALETTE),
            "colors": list(COLOR_NAMES),
            "max_steps": int(self.config.max_steps),
            "max_trials": int(self.config.max_trials),
            "folder": str(self.folder),
        }

    def view(self) -> dict[str, Any]:
        """The world as a player may see it."""
        obs = self._worlds[-1][1]
        last = self._steps[-1] if self._steps else None

        def area(grid: np.ndarray, size: np.ndarray) -> list[list[int]]:
            return grid[: size[0], : size[1]].tolist()

        return {
            "pair": self.pair,
            "input": area(obs.input, obs.input_size),
            "grid": area(obs.grid, obs.size),
            "clipboard": area(obs.clipboard, obs.clipboard_size),
            "allowed": np.flatnonzero(obs.operation_mask).tolist(),
            "steps": len(self._steps),
            "step_count": int(obs.step_count),
            "trials": int(obs.trials),
            "over": self.over,
            "solved": self.solved,
            "valid": last is None or bool(last["valid"]),
            "last": None if last is None else operation_name(int(last["action.operation"])),
            "can_take_back": self.can_take_back,
        }

    # The record ----------------------------------------------------------------------------------

    def save(self) -> Path:
        """Writes the episode so far as training data, never over a file: see `read_play`."""
        if not self._steps:
            raise Refused("there is no step to save yet")
        config, pair = self.config, self.task.pair_names[self.pair]
        now = datetime.now().astimezone()
        obs = jax.tree.map(lambda *leaves: np.stack(leaves), *(obs for _, obs in self._worlds))
        arrays = {f"observation.{n}": x for n, x in vars(obs).items() if x is not None}
        arrays |= {name: np.stack([step[name] for step in self._steps]) for name in self._steps[0]}
        metadata = {
            "format": FORMAT,
            "worldloom": __version__,
            "saved": now.isoformat(timespec="seconds"),
            "task": self.task.name,
            "pair": pair,
            "steps": len(self._steps),
            "finished": self.over,
            "solved": self.solved,
            "rules": config.rules,
            "extended": config.extended,
            "grid_shape": list(self.grid_shape),
            "max_steps": int(config.max_steps),
            "max_trials": int(config.max_trials),
        } | {name: float(getattr(config, name)) for name in REWARDS}
        self.folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "-", f"{self.task.name}-{pair}-{now:%Y%m%d-%H%M%S}")
        path, number = self.folder / f"{name}.npz", 2
        while path.exists():
            path, number = self.folder / f"{name}-{number}.npz", number + 1
        with atomic_path(path) as draft, draft.open("wb") as file:
            np.savez_compressed(file, **arrays, metadata=np.array(json.dumps(metadata)))
        self.unsaved = 0
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


# Learning from plays -----------------------------------------------------------------------------
#
# People select any cells, a policy points at one. A fill of many cells is as many fills; an action
# that no point can express, such as a move of several cells, leaves its episode out. The episodes
# are replayed in the world to train in: its canvas, its rules and its clock.


class LeftOut(ValueError):
    """Why an episode cannot be learned from."""


def read_plays(
    path: Path, tasks: TaskSet, rules: ArcConfig, encode: Callable[[PyTree], Array]
) -> Dataset:
    """The plays in a folder, or one of a file, as a dataset of what `encode` makes of observations.

    Plays of test pairs are left out: these are for evaluation. `provenance` says what was left
    out, and why; a ValueError if nothing remains.
    """
    files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
    episodes, left_out = [], []
    for file in files:
        try:
            episodes.append(replay(file, tasks, rules))
        except LeftOut as reason:
            left_out.append(f"{file.name}: {reason}")
    if not episodes:
        reasons = "; ".join(left_out[:3]) or "there is no npz file in it"
        raise ValueError(f"{path}: no play to learn from ({reasons})")
    columns = jax.tree.map(lambda *x: np.concatenate(x), *episodes)
    encoded = {name: encode(columns[name]) for name in ("obs", "next_obs")}
    return from_columns(
        **columns | encoded,
        name=f"plays of {tasks.name}",
        provenance=(("plays", str(len(episodes))), ("left out", "; ".join(left_out))),
    )


def replay(file: Path, tasks: TaskSet, rules: ArcConfig) -> dict[str, Any]:
    """The columns of a dataset: `obs` and `next_obs` (T, ...), flat actions (T, 1), rewards (T,)...

    Up to the end of the episode, which the clock of `rules` may bring sooner.
    """
    arrays, about = read_play(file)
    task, pair = about["task"], about["pair"]
    if task not in tasks:
        raise LeftOut(f"{task} is not among the tasks")
    if pair not in tasks[task].pair_names:
        raise LeftOut(f"{task} has no {pair}")
    if pair.startswith("test"):
        raise LeftOut(f"{pair} is for evaluation")
    if about["rules"] != rules.rules:
        raise LeftOut(f"it was played by the rules {about['rules']!r}")
    row = rules.tasks.demos_start[tasks.index(task)] + tasks[task].pair_names.index(pair)
    state, first = start_from_input(row, rules)
    obs, rows = [first], []
    for action in point_actions(arrays, rules):
        state, after, reward, done, info = arc_step(state, jnp.int32(action), rules)
        obs.append(after)
        rows.append((action, reward, info.terminated))
        if done:
            break
    if not rows:
        raise LeftOut("nothing was done in it")
    action, reward, terminated = (np.array(column) for column in zip(*rows, strict=True))
    truncated = np.zeros_like(terminated)
    truncated[-1] = not terminated[-1]
    stacked = jax.tree.map(lambda *x: np.stack(x), *jax.device_get(obs))
    return {
        "obs": jax.tree.map(lambda x: x[:-1], stacked),
        "action": action[:, None],
        "reward": reward,
        "next_obs": jax.tree.map(lambda x: x[1:], stacked),
        "terminated": terminated,
        "truncated": truncated,
    }


def point_actions(arrays: dict[str, np.ndarray], rules: ArcConfig) -> list[int]:
    """The actions of a play as flat point actions on the canvas of `rules`."""
    mask = np.asarray(rules.operation_mask)
    actions: list[int] = []
    for t, operation in enumerate(arrays["action.operation"].tolist()):
        if not arrays["valid"][t]:
            continue
        grid, (high, wide) = arrays["observation.grid"][t], arrays["observation.size"][t]
        cells = np.argwhere(arrays["action.selection"][t])
        if operation == operations.CLEAR:
            cells = np.argwhere(np.ones((high, wide))) if not len(cells) else cells
            operation = 0
        if operation in NOWHERE[rules.rules]:
            cells = np.zeros((1, 2), int)
        elif operation == operations.RESIZE:
            cells = cells.max(axis=0, initial=-1, keepdims=True)[: len(cells)]
        else:
            cells = cells[(cells < (high, wide)).all(axis=1)]
        if operation < operations.FLOOD:
            cells = cells[grid[tuple(cells.T)] != operation]
        elif operation < operations.UP and len(cells) != 1:
            continue  # it does nothing
        elif len(cells) > 1:
            raise LeftOut(f"step {t + 1}, {operations.NAMES[operation]}, is of many cells")
        if operation >= len(mask) or not mask[operation]:
            raise LeftOut(f"step {t + 1}, {operations.NAMES[operation]}, is not allowed here")
        if (cells >= rules.grid_shape).any():
            raise LeftOut(f"step {t + 1} points beyond the canvas of {rules.grid_shape}")
        height, width = rules.grid_shape
        actions += [int((operation * height + r) * width + c) for r, c in cells]
    return actions
