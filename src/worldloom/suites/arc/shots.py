"""Episodes of ARC for people to look at: moments with what is done in them, in words."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from worldloom.suites.arc import o2arc, operations
from worldloom.suites.arc.sheet import COLOR_NAMES
from worldloom.suites.arc.types import BoxAction, MaskAction, Observation, PointAction, Rules

if TYPE_CHECKING:
    from worldloom.suites.arc.episodes import Trajectory

_NAMES: dict[Rules, tuple[str, ...]] = {"edit": operations.NAMES, "o2arc": o2arc.NAMES}


@dataclass(frozen=True, eq=False)
class Shot:
    """A moment of an episode: the grid (h, w), and what is about to be done to it.

    `operation` is its number under `rules`, None for the answer; `selected` (H, W) are the cells
    it is done to, None if it is invalid.
    """

    grid: np.ndarray
    operation: int | None = None
    selected: np.ndarray | None = None
    valid: bool = True
    rules: Rules = "edit"


def operation_name(operation: int, rules: Rules = "edit") -> str:
    """An operation in words, with its colour's name: 'fill green', 'rotate clockwise'."""
    names = _NAMES[rules]
    if not 0 <= operation < len(names):
        return f"operation {operation}"
    if operation < operations.FLOOD + 10:
        verb, _, colour = names[operation].rpartition(" ")
        return f"{verb} {COLOR_NAMES[int(colour)]}"
    return names[operation]


def done(shot: Shot) -> str:
    """What is done to a grid, in words."""
    if shot.operation is None:
        return ""
    name = operation_name(shot.operation, shot.rules)
    return name if shot.valid else f"{name} (invalid)"


def selected_cells(action: Any, grid_shape: tuple[int, int]) -> np.ndarray | None:
    """The cells (H, W) of one action (`types.Action`) of any form; None if its box is invalid."""
    height, width = grid_shape
    if isinstance(action, MaskAction):
        return np.asarray(action.selection, bool)
    if isinstance(action, BoxAction):
        r1, c1, r2, c2 = (int(x) for x in (action.r1, action.c1, action.r2, action.c2))
    elif isinstance(action, PointAction):
        r1 = r2 = int(action.row)
        c1 = c2 = int(action.column)
    else:
        cell = int(getattr(action, "index", action)) % (height * width)
        r1 = r2 = cell // width
        c1 = c2 = cell % width
    if not (0 <= r1 <= r2 < height and 0 <= c1 <= c2 < width):
        return None
    mask = np.zeros(grid_shape, bool)
    mask[r1 : r2 + 1, c1 : c2 + 1] = True
    return mask


def shots_of(
    first: Observation, steps: "Trajectory", world: int = 0, rules: Rules = "edit"
) -> list[Shot]:
    """The episode of one world of a trajectory (T, B); `first` (B, ...) is what reset showed."""
    import jax

    start, played = jax.device_get((first, steps))
    shape = start.grid.shape[-2:]
    count = int(np.asarray(played.active)[:, world].sum())
    grids = [_area(start.grid[world], start.size[world])]
    grids += [
        _area(played.observation.grid[t, world], played.observation.size[t, world])
        for t in range(count)
    ]
    shots = []
    for t in range(count):
        action: Any = jax.tree.map(lambda x, t=t: x[t, world], played.action)
        number = getattr(action, "operation", None)
        if number is None:
            number = int(getattr(action, "index", action)) // (shape[0] * shape[1])
        valid = int(played.info.operation_type[t, world]) >= 0
        shots.append(Shot(grids[t], int(number), selected_cells(action, shape), valid, rules))
    return [*shots, Shot(grids[-1])]


def _area(grid: np.ndarray, size: np.ndarray) -> np.ndarray:
    return grid[: size[0], : size[1]]
