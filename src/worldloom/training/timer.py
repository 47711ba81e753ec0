"""Wall-clock time on the host: repeats, medians, and compiling apart from running."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from worldloom.training.console import phase


@dataclass(frozen=True)
class Timing:
    """Seconds of each repeat, in the order they were taken."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    def per(self, count: int) -> "Timing":
        """The same for one of `count` equal pieces of work."""
        return Timing(tuple(sample / count for sample in self.samples))

    def to_dict(self) -> dict[str, Any]:
        return {"median": self.median, "samples": list(self.samples)}


def seconds(fn: Callable[..., Any], *args: Any) -> float:
    """How long one call takes until its results are there."""
    start = time.perf_counter()
    jax.block_until_ready(fn(*args))
    return time.perf_counter() - start


def measure(fn: Callable[..., Any], *args: Any, repeats: int = 5, warmup: int = 1) -> Timing:
    """`repeats` timed calls after `warmup` calls that do not count."""
    return interleave({"": lambda: fn(*args)}, repeats, warmup)[""]


def interleave(
    fns: Mapping[str, Callable[[], Any]], repeats: int = 5, warmup: int = 1
) -> dict[str, Timing]:
    """Times several functions in turn, so that a slow minute of the machine slows them all.

    Each round starts with another function: none always runs in the wake of the same one.
    """
    if repeats < 1:
        raise ValueError(f"repeats={repeats}; a median needs at least 1")
    names = list(fns)
    for _ in range(warmup):
        for name in names:
            jax.block_until_ready(fns[name]())
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(repeats):
        first = round_ % max(len(names), 1)
        for name in names[first:] + names[:first]:
            samples[name].append(seconds(fns[name]))
    return {name: Timing(tuple(taken)) for name, taken in samples.items()}


def compiled(
    fn: Callable[..., Any],
    *args: Any,
    donate: tuple[int, ...] = (),
    compiler_options: dict[str, Any] | None = None,
) -> tuple[Any, float]:
    """`fn` compiled for arguments like `args`, and the seconds that took (tracing included)."""
    phase("compiling")
    start = time.perf_counter()
    program = jax.jit(fn, donate_argnums=donate).lower(*args).compile(compiler_options)
    return program, time.perf_counter() - start


def ratio(slow: float | None, fast: float | None) -> float | None:
    """How many times longer `slow` takes; None where either is unknown or endless."""
    if not slow or not fast or slow == float("inf") or fast == float("inf"):
        return None
    return slow / fast
