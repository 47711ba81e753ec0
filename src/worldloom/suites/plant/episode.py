"""The charts of one episode of a plant: margins, signals and actuators, bare against filtered."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from worldloom.report import page, svg
from worldloom.report.plots import Series, line_chart
from worldloom.suites.plant.charts import (
    ACTS,
    BARE,
    EMERGENCY,
    FILTERED,
    PlantFacts,
    unit_of,
    words,
)
from worldloom.suites.plant.evaluate import Trajectories

POINTS = 300  # of a line over time; longer episodes are shown in stretches
SIGNALS = 10  # charts of signals, beyond which a page is no longer read


class Clock:
    """The time of an episode of T steps, in stretches where there are too many to draw."""

    def __init__(self, steps: int, step_seconds: float):
        every = max(1, math.ceil(steps / POINTS))
        self.starts = np.arange(0, steps, every)
        seconds = np.append(self.starts, steps) * step_seconds
        units = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
        # The largest unit of which an episode has at least three.
        self.unit, size = [u for u in units if u == units[0] or seconds[-1] >= 3.0 * u[1]][-1]
        self.edges = (seconds / size).tolist()  # one more than there are stretches

    def lowest(self, values: np.ndarray) -> np.ndarray:
        """The smallest of every stretch of values (T, ...); NaN only where all of it is."""
        return np.fmin.reduceat(values, self.starts)

    def highest(self, values: np.ndarray) -> np.ndarray:
        return np.fmax.reduceat(values, self.starts)

    def any(self, flags: np.ndarray) -> np.ndarray:
        return np.logical_or.reduceat(flags, self.starts)


def busiest_episode(filtered: Trajectories) -> int | None:
    """The episode in which the filter has most to do; None if it never acts."""
    busy = ((filtered.intervened | filtered.emergency) & filtered.alive).sum(0)
    return int(busy.argmax()) if busy.any() else None


def closest_episode(trajectories: Trajectories, facts: PlantFacts) -> int:
    """The episode that comes closest to a hard limit, in shares of its signal's range."""
    limits = list(enumerate(facts.limits))[: trajectories.margins.shape[-1]]
    hard = [(i, limit) for i, limit in limits if limit.get("hard")]
    chosen = [(i, limit) for i, limit in hard if limit.get("kind") != "rate"] or hard or limits
    if not chosen:
        return 0
    ranges = []
    for _, limit in chosen:
        signal = facts.signal(str(limit.get("signal")))
        low, high = signal.get("low"), signal.get("high")
        ranges.append(high - low if low is not None and high is not None else 1.0)
    shares = trajectories.margins[..., [i for i, _ in chosen]] / np.asarray(ranges)
    nearest = np.where(trajectories.alive[..., None], shares, np.inf).min((0, 2))
    return int(np.nan_to_num(nearest, nan=np.inf).argmin())


def _while_alive(
    bare: Trajectories, filtered: Trajectories, episodes: Any
) -> tuple[Trajectories, Trajectories]:
    """Both trajectories up to the end of the longest of these episodes."""
    alive = bare.alive[:, episodes] | filtered.alive[:, episodes]
    steps = 1 + int(np.flatnonzero(alive.reshape(len(alive), -1).any(1))[-1])

    def cut(trajectories: Trajectories) -> Trajectories:
        return Trajectories(**{name: value[:steps] for name, value in vars(trajectories).items()})

    return cut(bare), cut(filtered)


def _shade(
    name: str, clock: Clock, on: np.ndarray, span: Sequence[float], ink: int
) -> list[Series]:
    """The stretches in which something was on, as a band from bottom to top; empty if none was."""
    x: list[float] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for i in np.flatnonzero(on):
        after = i > 0 and on[i - 1]  # widens the stretch before
        x += [clock.edges[i + 1]] if after else [clock.edges[i], clock.edges[i], clock.edges[i + 1]]
        low += [span[0]] if after else [None, span[0], span[0]]
        high += [span[1]] if after else [None, span[1], span[1]]
    gap = [None] * len(x)
    return [Series(name, x, gap, low, high, color=svg.color(ink))] if x else []


def over_time(
    lines: Sequence[Series],
    clock: Clock,
    trajectories: Trajectories,
    episode: int,
    *,
    label: str,
    references: Sequence[tuple[str, float]] = (),
    include_zero: bool = False,
    width: int = page.HALF,
    height: int = 250,
) -> str:
    """Lines over an episode, with what the filter did in `trajectories` as shades behind them."""
    values = [v for line in lines for name in ("y", "low", "high") for v in line.column(name)]
    values += [value for _, value in references] + [0.0] * include_zero
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    span = min(finite), max(finite)
    alive, stopped, changed = (
        np.asarray(flags)[:, episode]
        for flags in (trajectories.alive, trajectories.emergency, trajectories.intervened)
    )
    emergency = clock.any(stopped & alive)
    acts = clock.any(changed & alive) & ~emergency
    shades = _shade("filter acts", clock, acts, span, ACTS)
    shades += _shade("emergency action", clock, emergency, span, EMERGENCY)
    return line_chart(
        [*lines, *shades],
        title=label,
        x_label=f"time, {clock.unit}",
        y_label=label,
        references=references,
        include_zero=include_zero,
        width=width,
        height=height,
    )


def margins(bare: Trajectories, filtered: Trajectories, facts: PlantFacts, episode: int) -> str:
    """The margin of every limit over an episode, bare against filtered; bands are of all."""
    count = min(filtered.margins.shape[-1], len(facts.limits))
    if not count:
        return ""
    bare, filtered = _while_alive(bare, filtered, slice(None))
    clock = Clock(len(filtered.alive), facts.step_seconds)

    def lines(i: int) -> list[Series]:
        made = []
        for name, trajectories, ink in (("bare", bare, BARE), ("filtered", filtered, FILTERED)):
            every = np.where(trajectories.alive, trajectories.margins[..., i], np.nan)
            low = np.fmin.reduce(clock.lowest(every), axis=1)
            high = np.fmax.reduce(clock.highest(every), axis=1)
            y = clock.lowest(every[:, episode])
            made.append(
                Series(
                    name,
                    clock.edges[1:],
                    y.tolist(),
                    low.tolist(),
                    high.tolist(),
                    color=svg.color(ink),
                )
            )
        return made

    def draw(i: int, width: int, height: int) -> str:
        limit = facts.limits[i]
        unit = facts.unit(limit)
        label = f"{words(limit['name'])}: margin{', ' * bool(unit)}{unit}"
        return over_time(
            lines(i),
            clock,
            filtered,
            episode,
            label=label,
            references=[("limit", 0.0)],
            width=width,
            height=height,
        )

    if count == 1:
        return page.figure(lambda width: draw(0, width, 300))
    return page.pairs([draw(i, page.HALF, 270) for i in range(count)])


def signals(bare: Trajectories, filtered: Trajectories, facts: PlantFacts, episode: int) -> str:
    """Signals and actuators of one episode, in their units, bare against filtered."""
    bare, filtered = _while_alive(bare, filtered, episode)
    clock = Clock(len(filtered.alive), facts.step_seconds)

    def lines(part: str, i: int, signal: Mapping[str, Any]) -> list[Series]:
        made = []
        for name, trajectories, ink in (("bare", bare, BARE), ("filtered", filtered, FILTERED)):
            values = getattr(trajectories, part)[:, episode]
            values = values if i < 0 else values[:, i]
            if part == "action" and {"low", "high"} <= signal.keys():
                low, high = signal["low"], signal["high"]
                values = low + 0.5 * (np.clip(values, -1.0, 1.0) + 1.0) * (high - low)
            shown = np.where(trajectories.alive[:, episode], values, np.nan)[clock.starts]
            made.append(Series(name, clock.edges[:-1], shown.tolist(), color=svg.color(ink)))
        return made

    def chart(part: str, i: int, signal: Mapping[str, Any], note: str = "") -> str:
        unit, name = unit_of(signal), words(signal.get("name") or f"{part} {i}")
        bounds = [
            (words(limit["name"]), float(limit["bound"]))
            for limit in facts.limits
            if limit.get("signal") == signal.get("name") and limit.get("kind") != "rate"
        ]
        label = f"{name}{', ' * bool(unit)}{unit}{note}"
        return over_time(
            lines(part, i, signal), clock, filtered, episode, label=label, references=bounds
        )

    def named(part: str, known: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
        count = getattr(filtered, part).shape[-1]
        return [(i, known[i] if i < len(known) else {}) for i in range(count)]

    bounded = {limit.get("signal") for limit in facts.limits}
    moving = [
        (i, signal)
        for i, signal in named("obs", facts.observation)
        if np.ptp(filtered.obs[:, episode, i]) > 0 or np.ptp(bare.obs[:, episode, i]) > 0
    ]
    moving.sort(key=lambda pair: pair[1].get("name") not in bounded)  # those with limits first
    charts = [chart("obs", i, signal) for i, signal in moving[:SIGNALS]]
    charts += [
        chart("action", i, signal, " (actuator)")
        for i, signal in named("action", facts.action)[:SIGNALS]
    ]
    charts.append(chart("reward", -1, {"name": "reward"}, " of a step"))
    left_out = filtered.obs.shape[-1] - len(moving[:SIGNALS])
    many = "signal is" if left_out == 1 else "signals are"
    why = "" if len(moving) > SIGNALS else ": without a change in this episode"
    said = f"{left_out} more {many} not drawn{why}."
    return page.pairs(charts) + (f'<p class="soft">{said}</p>' if left_out else "")
