"""What people did in `worldloom arc play` as transitions of point actions, for imitation.

People select any cells, a policy points at one. A fill of many cells is as many fills; an action
that no point can express, such as a move of several cells, leaves its episode out. The episodes are
replayed in the world to train in: its canvas, its rules and its clock.
"""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array, PyTree
from worldloom.replay.dataset import Dataset, from_columns
from worldloom.suites.arc import operations
from worldloom.suites.arc.environment import arc_step, create_observation, start_at
from worldloom.suites.arc.game import is_play, read_play
from worldloom.suites.arc.references import NOWHERE
from worldloom.suites.arc.taskset import TaskSet
from worldloom.suites.arc.types import ArcConfig, Observation

FILLS = range(operations.FLOOD)
FLOODS = range(operations.FLOOD, operations.UP)


class LeftOut(ValueError):
    """Why an episode cannot be learned from."""


def holds_plays(path: Path) -> bool:
    """Whether a path names a saved play, or a folder of them."""
    return path.is_dir() or is_play(path)


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
    obs, following, action, reward, terminated, truncated = (
        jax.tree.map(lambda *x: np.concatenate(x), *column)
        for column in zip(*episodes, strict=True)
    )
    provenance = (("plays", str(len(episodes))), ("left out", "; ".join(left_out)))
    return from_columns(
        obs=encode(obs),
        action=action[:, None],
        reward=reward,
        next_obs=encode(following),
        terminated=terminated,
        truncated=truncated,
        name=f"plays of {tasks.name}",
        provenance=provenance,
    )


Episode = tuple[Observation, Observation, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def replay(file: Path, tasks: TaskSet, rules: ArcConfig) -> Episode:
    """Observations (T, ...), those after them, flat actions, rewards, terminated, truncated (T,).

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
    number = tasks.ids.index(task)
    row = int(rules.tasks.demos_start[number]) + tasks[task].pair_names.index(pair)
    rules = rules.replace(start="input")
    state = start_at(jnp.int32([row]), jax.random.key(0)[None], rules)
    state = jax.tree.map(lambda x: x[0], state)
    obs = [create_observation(state, rules)]
    rows = []
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
    before = jax.tree.map(lambda x: x[:-1], stacked)
    following = jax.tree.map(lambda x: x[1:], stacked)
    return before, following, action, reward, terminated, truncated


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
        if operation in FILLS:
            cells = cells[grid[tuple(cells.T)] != operation]
        elif operation in FLOODS and len(cells) != 1:
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
