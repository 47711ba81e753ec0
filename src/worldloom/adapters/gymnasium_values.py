"""Spaces, observations, actions and infos, between our words for them and Gymnasium's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from worldloom.core.spaces import Box, Dict, Discrete, Space
from worldloom.core.types import PyTree


def gym_space(space: Space, unit: bool = False) -> spaces.Space:
    """Gymnasium's word for a space; with `unit`, finite boxes of floats become [-1, 1]."""
    if isinstance(space, Dict):
        return spaces.Dict({name: gym_space(part, unit) for name, part in space.items})
    if isinstance(space, Discrete):
        if space.shape:
            return spaces.MultiDiscrete(np.full(space.shape, space.n), np.dtype(space.dtype).type)
        return spaces.Discrete(space.n)
    dtype = np.dtype(space.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(space.shape) if space.shape else spaces.Box(0, 1, (), np.int8)
    low, high = (-1.0, 1.0) if unit and stretched(space) else (space.low, space.high)
    return spaces.Box(low, high, space.shape, dtype.type)


def stretched(box: Box) -> bool:
    return np.dtype(box.dtype).kind == "f" and bool(np.isfinite([box.low, box.high]).all())


def like(space: spaces.Space, value: Any) -> Any:
    """A value as the space has it, in memory that is the caller's to change."""
    if isinstance(space, spaces.Dict):
        return {name: like(part, value[name]) for name, part in space.items()}
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(value)
    return np.array(value, space.dtype)


def checked_action(
    space: Space, action: Any, lead: tuple[int, ...], unit: bool, where: str
) -> PyTree:
    """The action as arrays (*lead, ...) of the world's own types, or an error that says why not.

    Floats beyond their bounds are left to the world: policies give them, and worlds differ in
    what they make of them.
    """
    if isinstance(space, Dict):
        names = [name for name, _ in space.items]
        if not isinstance(action, Mapping) or set(action) != set(names):
            given = sorted(action) if isinstance(action, Mapping) else type(action).__name__
            raise ValueError(f"{where}: an action is a dict of {', '.join(names)}, not {given}")
        return {
            name: checked_action(part, action[name], lead, unit, f"{where}, {name}")
            for name, part in space.items
        }
    value, shape = np.asarray(action), (*lead, *space.shape)
    if value.shape != shape:
        raise ValueError(f"{where}: the action has shape {value.shape}; it must have {shape}")
    if isinstance(space, Discrete):
        if value.dtype.kind not in "iu" or not np.all((value >= 0) & (value < space.n)):
            raise ValueError(
                f"{where}: got the action {action!r}; actions are whole numbers from 0 to "
                f"{space.n - 1}"
            )
    elif unit and stretched(space):
        value = space.low + (value + 1) * ((space.high - space.low) / 2)
    return value.astype(space.dtype)


def plain_info(info: Any) -> Any:
    """An info of one world as numbers of Python and arrays."""
    if isinstance(info, dict):
        return {name: plain_info(value) for name, value in info.items()}
    return np.asarray(info).item() if np.ndim(info) == 0 else np.array(info)


def masked_infos(info: Mapping[str, Any], mask: NDArray[np.bool_]) -> dict[str, Any]:
    """Infos (B, ...) in Gymnasium's form: `_name` says which worlds `name` speaks of."""
    out: dict[str, Any] = {}
    for name, value in info.items():
        if isinstance(value, dict):
            out[name] = masked_infos(value, mask)
        else:
            keep = mask.reshape(mask.shape + (1,) * (np.ndim(value) - 1))
            out[name] = np.where(keep, value, np.zeros((), value.dtype))
        out[f"_{name}"] = mask.copy()
    return out
