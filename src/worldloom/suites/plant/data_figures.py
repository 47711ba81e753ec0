"""What is in an offline dataset, in figures: returns, coverage, limits that were crossed."""

import json
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from worldloom import suites
from worldloom.core.types import Array
from worldloom.replay.dataset import Dataset
from worldloom.replay.dataset_checks import columns_of
from worldloom.suites.plant.datasets import episode_returns
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
        return episode_returns(self.dataset)


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
    cost, limits = columns.get("cost"), ()
    if world is not None:
        plant = world.plant
        sizes = columns["obs"].shape[1], columns["action"].shape[1]
        observation, action = plant.observation, plant.action
        limits = tuple(limit.name for limit in plant.limits)
        if sizes != (len(observation), len(action)):
            raise ValueError(
                f"{dataset.name}: {sizes[0]} signals and {sizes[1]} actions are not those of "
                f"{plant.name}, which has {len(observation)} and {len(action)}"
            )
        if cost is None and limits:
            cost = costs(world, dataset, columns)
    count = 0 if cost is None else cost.shape[1]
    if len(limits) != count:  # logged by somebody who had others
        limits = tuple(f"cost[{i}]" for i in range(count))
    measured = _quantities("obs", columns["obs"], observation)
    # Actions are shares of their range, whatever its unit.
    moved = _quantities("action", columns["action"], action)
    moved = tuple(replace(q, unit="", low=-1.0, high=1.0, declared=True) for q in moved)
    return Contents(dataset, columns, measured, moved, limits, cost, world)


def _quantities(kind: str, values: np.ndarray, signals: tuple[Signal, ...]) -> tuple[Quantity, ...]:
    """Columns (N, k) as the signals say, or as the values do where there are no signals."""
    quantities = []
    for i, column in enumerate(values.T):
        name, unit = (signals[i].name, signals[i].unit) if signals else (f"{kind}[{i}]", "")
        span = (signals[i].low, signals[i].high) if signals else (-np.inf, np.inf)
        declared = bool(np.isfinite(span).all())
        low, high = span if declared else (float(column.min()), float(column.max()))
        quantities.append(Quantity(name, unit, low, high, declared))
    return tuple(quantities)


def costs(world: PlantWorld, dataset: Dataset, columns: dict[str, np.ndarray]) -> np.ndarray:
    """By how much each row (N,) crossed each limit (C,) of its plant."""
    control = np.array(world.control(dataset.rows.action))
    last = np.concatenate([control[:1], control[:-1]])
    first = np.asarray(dataset.starts)
    last[first] = control[first]  # nothing to have changed from

    def cost(obs: Array, u: Array, before: Array) -> Array:
        return world.safety(obs, u, before, world.params).cost

    return np.asarray(jax.jit(jax.vmap(cost))(columns["next_obs"], control, last))


def figures(data: Contents) -> dict[str, Any]:
    """Everything that `worldloom data describe` prints, as plain values."""
    columns, last = data.columns, data.starts[1:] - 1
    ended = columns["terminated"][last].astype(bool)
    return {
        "name": data.dataset.name,
        "digest": data.dataset.digest,
        "rows": data.dataset.size,
        "episodes": len(last),
        "terminated": int(ended.sum()),
        "truncated": int((columns["truncated"][last].astype(bool) & ~ended).sum()),
        "steps": _spread(np.diff(data.starts)),
        "return": _spread(data.returns),
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


def _moments(values: np.ndarray) -> dict[str, float]:
    values = np.asarray(values, float)
    return {name: float(getattr(values, name)()) for name in ("mean", "std", "min", "max")}


def _spread(values: np.ndarray) -> dict[str, float]:
    quartiles = np.quantile(np.asarray(values, float), [0.25, 0.5, 0.75]).tolist()
    return _moments(values) | dict(zip(("q1", "median", "q3"), quartiles, strict=True))


def _signal(quantity: Quantity, values: np.ndarray) -> dict[str, Any]:
    outside = (values < quantity.low) | (values > quantity.high)
    return {
        "name": quantity.name,
        "unit": quantity.unit,
        **_moments(values),
        "coverage": coverage(values, quantity.low, quantity.high),
        "outside": float(outside.mean()) if quantity.declared else None,
    }


def _actuator(quantity: Quantity, values: np.ndarray) -> dict[str, Any]:
    return {
        "name": quantity.name,
        **_moments(values),
        "coverage": coverage(values, -1.0, 1.0),
        "at_end": float((np.abs(values) > AT_END).mean()),
    }
