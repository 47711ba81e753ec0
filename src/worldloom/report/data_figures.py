"""What is in an offline dataset, in figures: returns, coverage, limits that were crossed."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from worldloom.core.types import Array
from worldloom.envs.plant.plant import PlantWorld
from worldloom.envs.plant.types import Signal
from worldloom.replay.dataset import Dataset
from worldloom.replay.dataset_checks import columns_of

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


def plant_named(name: str, options: dict[str, Any] | None = None) -> PlantWorld | None:
    """The plant of that name, with its options; None where there is no such plant."""
    from worldloom.envs import registry

    if not name or name not in registry.names("plant"):
        return None
    world = registry.make(name, **(options or {})).base
    return world if isinstance(world, PlantWorld) else None


def contents(
    dataset: Dataset, world: PlantWorld | None = None,
    observation: Any = (), action: Any = (),
) -> Contents:  # fmt: skip
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
    seen = world.plant.observation if world is not None else observation
    moved = world.plant.action if world is not None else action
    return Contents(
        dataset, columns, _quantities("obs", columns["obs"], seen),
        _quantities("action", columns["action"], moved, unit_box=True), limits, cost, world,
    )  # fmt: skip


def _quantities(
    kind: str, values: np.ndarray, signals: tuple[Signal, ...], unit_box: bool = False
) -> tuple[Quantity, ...]:
    found = []
    for i in range(values.shape[1]):
        signal = signals[i] if signals else None
        low, high, declared = float(values[:, i].min()), float(values[:, i].max()), False
        if unit_box:
            low, high, declared = -1.0, 1.0, True  # actions are shares of their range
        elif signal is not None and np.isfinite(signal.low) and np.isfinite(signal.high):
            low, high, declared = signal.low, signal.high, True
        name, unit = (signal.name, signal.unit) if signal else (f"{kind}[{i}]", "")
        found.append(Quantity(name, "" if unit_box else unit, low, high, declared))
    return tuple(found)


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


def figures(found: Contents) -> dict[str, Any]:
    """Everything that `worldloom data describe` prints, as plain values."""
    columns, starts = found.columns, found.starts
    lengths, returns = np.diff(starts), found.returns
    ended = columns["terminated"][starts[1:] - 1].astype(bool)
    return {
        "name": found.dataset.name,
        "digest": found.dataset.digest,
        "rows": found.dataset.size,
        "episodes": len(lengths),
        "terminated": int(ended.sum()),
        "truncated": int((columns["truncated"][starts[1:] - 1].astype(bool) & ~ended).sum()),
        "steps": _spread(lengths),
        "return": _spread(returns),
        "reward": _spread(columns["reward"]),
        "signals": [_signal(q, columns["obs"][:, i]) for i, q in enumerate(found.observation)],
        "actions": [_actuator(q, columns["action"][:, i]) for i, q in enumerate(found.action)],
        "limits": violations(found),
        "log_prob": "log_prob" in columns,
        "provenance": dict(found.dataset.provenance),
    }


def violations(found: Contents) -> list[dict[str, Any]]:
    """For every limit: rows and episodes in which it was crossed, and by how much at most."""
    if found.cost is None:
        return []
    crossed = found.cost > 0.0
    by_episode = np.add.reduceat(crossed, found.starts[:-1], axis=0) > 0
    return [
        {
            "limit": name,
            "rows": int(crossed[:, i].sum()),
            "share": float(crossed[:, i].mean()),
            "episodes": int(by_episode[:, i].sum()),
            "worst": float(found.cost[:, i].max()),
        }
        for i, name in enumerate(found.limits)
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
        "mean": float(values.mean()), "std": float(values.std()), "min": float(values.min()),
        "q1": float(q1), "median": float(median), "q3": float(q3), "max": float(values.max()),
    }  # fmt: skip


def _signal(quantity: Quantity, values: np.ndarray) -> dict[str, Any]:
    outside = (values < quantity.low) | (values > quantity.high)
    return {
        "name": quantity.name, "unit": quantity.unit,
        "mean": float(values.mean(dtype=float)), "std": float(values.std(dtype=float)),
        "min": float(values.min()), "max": float(values.max()),
        "coverage": coverage(values, quantity.low, quantity.high),
        "outside": float(outside.mean()) if quantity.declared else None,
    }  # fmt: skip


def _actuator(quantity: Quantity, values: np.ndarray) -> dict[str, Any]:
    return {
        "name": quantity.name,
        "mean": float(values.mean(dtype=float)), "std": float(values.std(dtype=float)),
        "min": float(values.min()), "max": float(values.max()),
        "coverage": coverage(values, -1.0, 1.0),
        "at_end": float((np.abs(values) > AT_END).mean()),
    }  # fmt: skip
