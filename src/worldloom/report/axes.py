"""Scales, ticks and numbers for charts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

NONE = "\u2013"  # a dash where there is no number
MINUS = "\u2212"  # as wide as a digit, unlike a hyphen


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers in equal steps, from at most `low` to at least `high`."""
    if high <= low:
        spread = abs(low) * 0.1 or 1.0
        low, high = low - spread, high + spread
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    # A hair of tolerance: 0.3 / 0.1 is 2.9999999999999996, and a tick at 0.4 would be in vain.
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def log_limits(low: float, high: float) -> tuple[float, float]:
    """The closest 1, 2 or 5 times a power of ten at most `low` and at least `high`."""
    if not 0 < low <= high < math.inf:
        raise ValueError(f"a log axis needs positive limits, got {low:g} to {high:g}")
    steps = _round_steps(low / 10, high * 10)
    start = max(step for step in steps if step <= low * (1 + 1e-9))
    end = min(step for step in steps if step >= high * (1 - 1e-9))
    if start < end:
        return start, end
    return max(s for s in steps if s < start), min(s for s in steps if s > end)


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to `high`: 1-2-5 steps if they are few, else powers of ten."""
    fine = [s for s in _round_steps(low, high) if low * (1 - 1e-9) <= s <= high * (1 + 1e-9)]
    tens = [step for step in fine if abs(math.log10(step) - round(math.log10(step))) < 1e-9]
    if len(fine) <= count + 2 or len(tens) < 2:
        return fine
    return tens[:: max(1, math.ceil(len(tens) / (count + 1)))]


def _round_steps(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [float(f"{m}e{n}") for n in powers for m in (1, 2, 5)]


@dataclass(frozen=True)
class Scale:
    """Maps values from `low`..`high` to pixels; what a log axis cannot show becomes NaN."""

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float  # the pixel of `low`
    end: float  # the pixel of `high`
    log: bool = False

    def __call__(self, values: Iterable[float] | float) -> np.ndarray:
        numbers = np.asarray(values, float)
        low, high = self.low, self.high
        if self.log:
            numbers = np.log10(np.where(numbers > 0, numbers, np.nan))
            low, high = math.log10(low), math.log10(high)
        return self.start + (numbers - low) / (high - low) * (self.end - self.start)


def scale(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    log: bool = False,
    count: int = 5,
) -> Scale:
    """A scale from round number to round number that covers all finite values.

    On a log axis these are the positive ones.
    """
    numbers = np.asarray(list(values), float)
    numbers = numbers[np.isfinite(numbers) & ((numbers > 0) | (not log))]
    if not len(numbers):
        numbers = np.array([1.0, 10.0] if log else [0.0, 1.0])
    first, last = float(numbers.min()), float(numbers.max())
    if log:
        low, high = log_limits(first, last)
        ticks = log_ticks(low, high, count)
    else:
        ticks = nice_ticks(first, last, count)
        low, high = ticks[0], ticks[-1]
    return Scale(low, high, tuple(ticks), start, end, log)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people: 12,300, 4.56, 0.00123, 1.2e-7; a dash for none."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    size, exponent = abs(value), ""
    if size >= 1e7 or size < 1e-4:
        text, exponent = f"{value:.{digits - 1}e}".split("e")
        exponent = f"e{int(exponent)}"
    else:
        text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(size)))}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return (text + exponent).replace("-", MINUS)


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Short labels: 1k, 2.5M, and as many digits as tell neighbours apart."""
    largest = max(map(abs, ticks), default=0.0)
    # Thousands only from ten thousand on: 1,500 reads better than 1.5k.
    units = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
    size, unit = next((each[1:] for each in units if largest >= each[0]), (math.inf, ""))
    return [
        number(tick / size, 4) + unit if unit and abs(tick) >= 1e3 else number(tick, 6)
        for tick in ticks
    ]
