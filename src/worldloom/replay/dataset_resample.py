"""Samples at even times, from those of a log that were taken whenever something changed."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

Method = Literal["linear", "hold"]
# A step may differ from the usual one by this share of it: clocks jitter.
JITTER = 0.1
MOST_PERIODS = 10  # a longer pause, in the periods asked for, begins a new episode


class Samples(NamedTuple):
    """Lines (L,) of a log: columns by name, seconds, where an episode begins, and their lines."""

    columns: dict[str, np.ndarray]
    time: np.ndarray
    begins: np.ndarray
    lines: np.ndarray


def usual_step(steps: np.ndarray) -> float:
    """The median of the seconds between samples that follow each other; NaN if there are none."""
    steps = steps[np.isfinite(steps) & (steps > 0.0)]
    return float(np.median(steps)) if len(steps) else float("nan")


def is_uneven(steps: np.ndarray, usual: float) -> np.ndarray:
    """Which steps (N,) are longer or shorter than the usual one, jitter aside."""
    with np.errstate(invalid="ignore"):
        return (steps > 0.0) & (np.abs(steps - usual) > JITTER * usual)


def resample(
    source: Path,
    samples: Samples,
    seconds: float,
    method: Method,
    held: frozenset[str],
    flags: frozenset[str],
) -> Samples:
    """The samples of each episode every `seconds`, from its first one on.

    method: a straight line between two samples, or the value of the one before. held: columns that
    are held whatever the method, such as actions, which last until the next sample. flags: columns
    that are 1 if they were so at any time since the row before. Pauses of more than MOST_PERIODS
    begin a new episode. What comes after the last whole period is lost, but for a flag that is up
    there, which ends a period of its own.
    """
    if not 1e-3 <= seconds < 1e9:
        raise ValueError(f"resample={seconds:g}; it must be seconds, 0.001 or more")
    if method not in ("linear", "hold"):
        raise ValueError(f"{method!r} is no way to resample; use linear or hold")
    _, time, begins, lines = samples
    back = ~np.isfinite(time) | np.append(False, ~begins[1:] & ~(np.diff(time) > 0.0))
    if back.any():
        at = int(np.flatnonzero(back)[0])
        raise ValueError(
            f"{source}, line {lines[at]}: time is {time[at]:.10g}, which does not go forward; mend "
            "it before the file can be resampled"
        )
    begins = begins | np.append(True, np.diff(time) > MOST_PERIODS * seconds)
    starts = np.flatnonzero(begins)
    stops = np.append(starts[1:], len(time))
    parts = [
        _episode(samples, slice(*ends), seconds, method, held, flags)
        for ends in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    columns = {n: np.concatenate([part.columns[n] for part in parts]) for n in samples.columns}
    return Samples(columns, *(np.concatenate(one) for one in list(zip(*parts, strict=True))[1:]))


def _episode(
    samples: Samples,
    where: slice,
    seconds: float,
    method: Method,
    held: frozenset[str],
    flags: frozenset[str],
) -> Samples:
    time = samples.time[where]
    raised = any(samples.columns[name][where][-1] == 1 for name in flags)
    whole = (time[-1] - time[0]) / seconds
    # 0.3 / 0.1 is a little less than 3.
    count = int(np.ceil(whole - 1e-9) if raised else np.floor(whole + 1e-9)) + 1
    at = time[0] + seconds * np.arange(count)
    before = np.searchsorted(time, at + 1e-9 * seconds, side="right") - 1

    def column(name: str, values: np.ndarray) -> np.ndarray:
        if name in flags:
            counts = np.cumsum(values == 1)[before]
            return np.where(np.diff(counts, prepend=0) > 0, 1.0, values[before])
        if name in held or method == "hold":
            return values[before]
        return np.interp(at, time, values)

    begins = np.zeros(count, bool)
    begins[0] = True
    columns = {name: column(name, values[where]) for name, values in samples.columns.items()}
    return Samples(columns, at, begins, samples.lines[where][before])
