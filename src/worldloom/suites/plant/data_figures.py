"""What is in an offline dataset, in figures: returns, coverage, limits that were crossed."""

import json
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from worldloom import suites
from worldloom.core.types import Array
from worldloom.replay.dataset import Dataset
from worldloom.replay.dataset_checks import columns_of
from worldloom.suites.plant.plant import PlantWorld, plant_of
from worldloom.suites.plant.types import Signal

PARTS = 20  # of a signal's range, for its coverage
ENOUGH = 1e-3  # of all rows, for a part to count as covered
AT_END = 0.99  # of the way to an actuator's end


@dataclass(frozen=True)
class Quantity:
    """A measured or manipulated column, with the range it should be seen in."""

    name: str
    unit: str
    low: float
    high: float
    declared: bool  # the range is the plant's, not the data's

    @property
    def label(self) -> str:
        return f"{self.name} [{self.unit}]" if self.unit else self.name


@dataclass(frozen=True)
class Contents:
    """A dataset in host memory, with names for what is in it."""

    dataset: Dataset
    columns: dict[str, np.ndarray]
    observation: tuple[Quantity, ...]
    action: tuple[Quantity, ...]
    limits: tuple[str, ...]
    cost: np.ndarray | None  # (N, C)
    world: PlantWorld | None

    @property
    def starts(self) -> np.ndarray:
        """First rows (E,) of the episodes, and the number of rows."""
        return np.append(np.asarray(self.dataset.starts), self.dataset.size)

    @property
    def returns(self) -> np.ndarray:
        """(E,): the sum of rewards of each episode."""
        return np.add.reduceat(self.columns["reward"].astype(float), self.starts[:-1])


def plant_logged(dataset: Dataset) -> PlantWorld | None:
    """The plant that a dataset says it was logged from; None where it is not known here."""
    origin = dict(dataset.provenance)
    if origin.get("env") not in suites.names("plant"):  # a file must not name code to be run
        return None
    try:
        return plant_of(suites.make(origin["env"], **json.loads(origin.get("options") or "{}")))
    except (ValueError, TypeError):
        return None


def contents(
    dataset: Dataset, world: PlantWorld | None = None, observation: Any = (), action: Any = ()
) -> Contents:
    """A dataset with the names and ranges of a plant, or of declared signals, where they fit.

    Without logged costs they are those of the plant's limits, computed from the rows.
    """
    columns = columns_of(dataset)
    sizes = columns["obs"].shape[1], columns["action"].shape[1]
    if world is not None and sizes != (len(world.plant.observation), len(world.plant.action)):
        raise ValueError(
            f"{dataset.name}: {sizes[0]} signals and {sizes[1]} actions are not those of "
            f"{world.plant.name}, which has {len(world.plant.observation)} and "
            f"{len(world.plant.action)}"
        )
    cost = columns.get("cost")
    if cost is None and world is not None and world.plant.limits:
        cost = _costs(world, dataset, columns)
    limits = tuple(f"cost[{i}]" for i in range(0 if cost is None else cost.shape[1]))
    if world is not None and cost is not None and len(world.plant.limits) == cost.shape[1]:
        limits = tuple(limit.name for limit in world.plant.limits)
    if world is not None:
        observation, action = world.plant.observation, world.plant.action
    return Contents(
        dataset,
        columns,
        _quantities("obs", columns["obs"], observation),
        _quantities("action", columns["action"], action, unit_box=True),
        limits,
        cost,
        world,
    )


def _quantities(
    kind: str, values: np.ndarray, signals: tuple[Signal, ...], unit_box: bool = False
) -> tuple[Quantity, ...]:
    quantities = []
    for i in range(values.shape[1]):
        signal = signals[i] if signals else None
        low, high, declared = float(values[:, i].min()), float(values[:, i].max()), False
        if unit_box:
            low, high, declared = -1.0, 1.0, True  # actions are shares of their range
        elif signal is not None and np.isfinite(signal.low) and np.isfinite(signal.high):
            low, high, declared = signal.low, signal.high, True
        name, unit = (signal.name, signal.unit) if signal else (f"{kind}[{i}]", "")
        quantities.append(Quantity(name, "" if unit_box else unit, low, high, declared))
    return tuple(quantities)


def _costs(world: PlantWorld, dataset: Dataset, columns: dict[str, np.ndarray]) -> np.ndarray:
    """By how much each row (N,) crossed each limit (C,) of its plant."""
    control = np.array(world.control(dataset.rows.action))
    last = np.concatenate([control[:1], control[:-1]])
    first = np.asarray(dataset.starts)
    last[first] = control[first]  # nothing to have changed from

    def cost(obs: Array, u: Array, before: Array) -> Array:
        return world.safety(obs, u, before, world.params).cost

    return np.asarray(jax.jit(jax.vmap(cost))(columns["next_obs"], control, last))


# Figures -----------------------------------------------------------------------------------------


def figures(data: Contents) -> dict[str, Any]:
    """Everything that `worldloom data describe` prints, as plain values."""
    columns, starts = data.columns, data.starts
    lengths, returns = np.diff(starts), data.returns
    ended = columns["terminated"][starts[1:] - 1].astype(bool)
    return {
        "name": data.dataset.name,
        "digest": data.dataset.digest,
        "rows": data.dataset.size,
        "episodes": len(lengths),
        "terminated": int(ended.sum()),
        "truncated": int((columns["truncated"][starts[1:] - 1].astype(bool) & ~ended).sum()),
        "steps": _spread(lengths),
        "return": _spread(returns),
        "reward": _spread(columns["reward"]),
        "signals": [_signal(q, columns["obs"][:, i]) for i, q in enumerate(data.observation)],
        "actions": [_actuator(q, columns["action"][:, i]) for i, q in enumerate(data.action)],
        "limits": violations(data),
        "log_prob": "log_prob" in columns,
        "provenance": dict(data.dataset.provenance),
    }


def violations(data: Contents) -> list[dict[str, Any]]:
    """For every limit: rows and episodes in which it was crossed, and by how much at most."""
    if data.cost is None:
        return []
    crossed = data.cost > 0.0
    by_episode = np.add.reduceat(crossed, data.starts[:-1], axis=0) > 0
    return [
        {
            "limit": name,
            "rows": int(crossed[:, i].sum()),
            "share": float(crossed[:, i].mean()),
            "episodes": int(by_episode[:, i].sum()),
            "worst": float(data.cost[:, i].max()),
        }
        for i, name in enumerate(data.limits)
    ]


def coverage(values: np.ndarray, low: float, high: float) -> float:
    """The share of equal parts of a range that hold more than a few of the values (N,)."""
    if not low < high:
        return 1.0  # it never moves, and there is nowhere else to be
    counts, _ = np.histogram(values, PARTS, (low, high))
    return float((counts >= max(1.0, ENOUGH * len(values))).mean())


def _spread(values: np.ndarray) -> dict[str, float]:
    values = np.asarray(values, float)
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "q1": float(q1),
        "median": float(median),
        "q3": float(q3),
        "max": float(values.max()),
    }


def _signal(quantity: Quantity, values: np.ndarray) -> dict[str, Any]:
    outside = (values < quantity.low) | (values > quantity.high)
    return {
        "name": quantity.name,
        "unit": quantity.unit,
        "mean": float(values.mean(dtype=float)),
        "std": float(values.std(dtype=float)),
        "min": float(values.min()),
        "max": float(values.max()),
        "coverage": coverage(values, quantity.low, quantity.high),
        "outside": float(outside.mean()) if quantity.declared else None,
    }


def _actuator(quantity: Quantity, values: np.ndarray) -> dict[str, Any]:
    return {
        "name": quantity.name,
        "mean": float(values.mean(dtype=float)),
        "std": float(values.std(dtype=float)),
        "min": float(values.min()),
        "max": float(values.max()),
        "coverage": coverage(values, -1.0, 1.0),
        "at_end": float((np.abs(values) > AT_END).mean()),
    }
