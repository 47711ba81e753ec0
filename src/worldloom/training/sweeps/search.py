"""What a sweep varies, and which points of it are tried: all of them, or some at random.

A space is a list of (name, values): values are listed, or a `Range`. Samplers that learn from what
was tried are Optuna's: `worldloom.training.sweeps.study`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldloom import algos
from worldloom.training.config import TrainConfig, make_config, merge, nest
from worldloom.training.suite import Suite


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both of them included; by their logarithm where `log` is."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self):
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"{self}: it must go up, from a finite number to another")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: a logarithm needs numbers above 0")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"

    def at(self, share: float) -> float | int:
        """The number at this share, in [0, 1], of the way."""
        half = 0.5 if self.whole else 0.0  # so that the ends are as likely as others
        low, high = self.low - half, self.high + half
        if self.log:
            value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        else:
            value = low + share * (high - low)
        value = min(max(value, self.low), self.high)
        return min(max(math.floor(value + half), int(self.low)), int(self.high)) if half else value

    def spaced(self, count: int) -> list[float | int]:
        """`count` of its numbers, evenly spaced with the ends among them; each once."""
        shares = [n / (count - 1) for n in range(count)] if count > 1 else [0.5]
        exact = Range(self.low, self.high, self.log)
        values = [float(f"{exact.at(share):.6g}") for share in shares]
        return list(dict.fromkeys(map(round, values) if self.whole else values))


Values = list[Any] | Range
Space = list[tuple[str, Values]]


@dataclass(frozen=True)
class Point:
    """One combination of a space."""

    values: Mapping[str, Any]
    config: TrainConfig

    @property
    def label(self) -> str:
        return label_of(self.values)


def label_of(values: Mapping[str, Any]) -> str:
    """Settings as rows name them."""
    return " ".join(f"{name}={shown(value)}" for name, value in values.items())


def shown(value: Any) -> str:
    """A value as a label has it: numbers that were drawn are short."""
    return f"{value:.4g}" if isinstance(value, float) and len(repr(value)) > 8 else str(value)


def make_point(suite: Suite, given: Mapping[str, Any], values: Mapping[str, Any]) -> Point:
    """A point, checked as any configuration is.

    Options of an algorithm are for the runs that learn with it.
    """
    algo = values.get("algo") or given.get("algo") or suite.defaults(given["env"], None)["algo"]
    others = set(algos.names()) - {algos.get(algo).name}
    values = {n: v for n, v in values.items() if n.partition(".")[0] not in others}
    kept = {n: v for n, v in given.items() if n not in others}
    return Point(values, make_config(suite, merge(kept, nest(values))))


def grid_points(suite: Suite, given: Mapping[str, Any], space: Space) -> list[Point]:
    """Every combination of listed values, each once."""
    for name, values in space:
        if isinstance(values, Range):
            raise ValueError(
                f"{name}={values}: a grid needs values; say how many, as in {values}:5, "
                "or search at random"
            )
    names = [name for name, _ in space]
    lists = [values for _, values in space if isinstance(values, list)]
    combinations = (dict(zip(names, each, strict=True)) for each in itertools.product(*lists))
    return _once(make_point(suite, given, values) for values in combinations)


def random_points(
    suite: Suite, given: Mapping[str, Any], space: Space, count: int, seed: int
) -> list[Point]:
    """`count` points drawn at random; the first of them are the same for any larger count."""
    check_ends(suite, given, space)
    draws = (_draw(space, np.random.default_rng((seed, n))) for n in range(count))
    return _once(make_point(suite, given, values) for values in draws)


def check_ends(suite: Suite, given: Mapping[str, Any], space: Space) -> None:
    """Raises ValueError where an end of a range, or a listed value, is no setting."""
    first = first_corner(space)
    for name, values in space:
        for value in _ends(values):
            make_point(suite, given, first | {name: value})


def first_corner(space: Space) -> dict[str, Any]:
    """The lowest or first value of everything: a point that is the same for whoever asks."""
    return {name: _ends(values)[0] for name, values in space}


def _ends(values: Values) -> list[Any]:
    return [values.at(0.0), values.at(1.0)] if isinstance(values, Range) else values


def _draw(space: Space, rng: np.random.Generator) -> dict[str, Any]:
    return {
        name: values.at(rng.random())
        if isinstance(values, Range)
        else values[int(rng.integers(len(values)))]
        for name, values in space
    }


def _once(points: Any) -> list[Point]:
    chosen: dict[str, Point] = {}
    for point in points:
        chosen.setdefault(f"{point.config.fingerprint()} {point.config.steps}", point)
    return list(chosen.values())


# Early stopping --------------------------------------------------------------------------------


def rungs(total: int, halving: int) -> list[int]:
    """Iterations at which points are compared: total/halving, total/halving^2, ..., ascending.

    Four at most, and none before the fourth iteration; none at all where `halving` is 0.
    """
    found = []
    while halving and len(found) < 4 and total // halving >= 4:
        total //= halving
        found.append(total)
    return found[::-1]


def goes_on(value: float, values: Sequence[float], halving: int) -> bool:
    """Whether a point is among the best 1/halving of all that came to the same rung so far.

    Asynchronous successive halving (Li et al. 2020): nobody waits for anybody. Its own value is
    among the `values`; what is not finite never goes on.
    """
    better = sum(other > value for other in values)
    return math.isfinite(value) and better < math.ceil(len(values) / halving)
