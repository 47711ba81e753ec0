"""The charts of one episode of a plant: margins, signals and actuators, bare against filtered."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from worldloom.report import page
from worldloom.report.page import Part
from worldloom.report.plots import Series, Shade, line_chart
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
from worldloom.suites.plant.types import Signal

POINTS = 300  # of a line over time; longer episodes are shown in stretches
SIGNALS = 10  # charts of signals, beyond which a page is no longer read

WAYS = (("bare", BARE), ("filtered", FILTERED))  # to control the plant, and their colours
Both = Sequence[Trajectories]  # of the two ways


class Clock:
    """The time of an episode of T steps, in stretches where there are too many to draw."""

    def __init__(self, steps: int, step_seconds: float):
        self.starts = np.arange(0, steps, max(1, math.ceil(steps / POINTS)))
        seconds = np.append(self.starts, steps) * step_seconds
        units = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
        # The largest unit of which an episode has at least three.
        self.unit, size = [u for u in units if u == units[0] or seconds[-1] >= 3.0 * u[1]][-1]
        self.edges = (seconds / size).tolist()  # one more than there are stretches

    def reduce(self, ufunc: np.ufunc, values: np.ndarray) -> np.ndarray:
        """Values (T, ...) of every stretch as one, by np.fmin, np.fmax or np.logical_or."""
        return ufunc.reduceat(values, self.starts)


def busiest_episode(filtered: Trajectories) -> int | None:
    """The episode in which the filter has most to do; None if it never acts."""
    busy = ((filtered.intervened | filtered.emergency) & filtered.alive).sum(0)
    return int(busy.argmax()) if busy.any() else None


def closest_episode(trajectories: Trajectories, facts: PlantFacts) -> int:
    """The episode that comes closest to a hard limit, in shares of its signal's range."""
    limits = list(enumerate(facts.limits))[: trajectories.margins.shape[-1]]
    hard = [(i, limit) for i, limit in limits if limit.hard]
    chosen = [(i, limit) for i, limit in hard if limit.kind != "rate"] or hard or limits
    if not chosen:
        return 0
    signals = [facts.bounded(limit) for _, limit in chosen]
    ranges = np.asarray([signal.high - signal.low for signal in signals])
    shares = trajectories.margins[..., [i for i, _ in chosen]] / ranges
    nearest = np.where(trajectories.alive[..., None], shares, np.inf).min((0, 2))
    return int(np.nan_to_num(nearest, nan=np.inf).argmin())


def _while_alive(both: Both, episodes: Any) -> list[Trajectories]:
    """Both trajectories up to the end of the longest of these episodes."""
    alive = both[0].alive[:, episodes] | both[1].alive[:, episodes]
    steps = 1 + int(np.flatnonzero(alive.reshape(len(alive), -1).any(1))[-1])
    return [
        Trajectories(**{name: value[:steps] for name, value in vars(trajectories).items()})
        for trajectories in both
    ]


def _shade(name: str, clock: Clock, on: np.ndarray, ink: int) -> list[Shade]:
    """The stretches in which something was on; empty if it never was."""
    edges = np.flatnonzero(np.diff(np.pad(on.astype(np.int8), 1))).reshape(-1, 2).tolist()
    spans = [(clock.edges[start], clock.edges[end]) for start, end in edges]
    return [Shade(name, spans, ink)] if spans else []


def over_time(
    lines: Sequence[Series],
    clock: Clock,
    trajectories: Trajectories,
    episode: int,
    label: str,
    references: Sequence[tuple[str, float]],
) -> Part:
    """Lines over an episode, with what the filter did in `trajectories` as shades behind them."""
    emergency, acts = (
        clock.reduce(np.logical_or, np.asarray(flags & trajectories.alive)[:, episode])
        for flags in (trajectories.emergency, trajectories.intervened)
    )
    shades = _shade("filter acts", clock, acts & ~emergency, ACTS)
    shades += _shade("emergency action", clock, emergency, EMERGENCY)
    look: dict[str, Any] = {"references": references, "shades": shades, "height": 290}
    return line_chart(lines, f"time, {clock.unit}", label, **look)


def margins(both: Both, facts: PlantFacts, episode: int) -> Part:
    """The margin of every limit over an episode, bare against filtered; bands are of all."""
    count = min(both[1].margins.shape[-1], len(facts.limits))
    shown = _while_alive(both, slice(None))
    clock = Clock(len(shown[0].alive), facts.step_seconds)

    def chart(i: int) -> Part:
        lines = []
        for (name, ink), trajectories in zip(WAYS, shown, strict=True):
            every = np.where(trajectories.alive, trajectories.margins[..., i], np.nan)
            lowest, highest = clock.reduce(np.fmin, every), clock.reduce(np.fmax, every)
            y = lowest[:, episode], np.fmin.reduce(lowest, axis=1), np.fmax.reduce(highest, axis=1)
            columns = (values.tolist() for values in y)
            lines.append(Series(name, clock.edges[1:], *columns, color=ink))
        unit = unit_of(facts.bounded(facts.limits[i]))
        label = f"{words(facts.limits[i].name)}: margin{', ' * bool(unit)}{unit}"
        return over_time(lines, clock, shown[1], episode, label, [("limit", 0.0)])

    charts = [chart(i) for i in range(count)]
    return page.figure(charts[0]) if count == 1 else page.pairs(charts)


def signals(both: Both, facts: PlantFacts, episode: int) -> Part:
    """Signals and actuators of one episode, in their units, bare against filtered."""
    shown = _while_alive(both, episode)
    clock = Clock(len(shown[0].alive), facts.step_seconds)

    def chart(signal: Signal, columns: Sequence[Any], note: str = "") -> Part:
        """`columns` are the values (T,) of both trajectories."""
        lines = []
        for (name, ink), trajectories, values in zip(WAYS, shown, columns, strict=True):
            y = np.where(trajectories.alive[:, episode], values, np.nan)[clock.starts]
            lines.append(Series(name, clock.edges[:-1], y.tolist(), color=ink))
        bounds = [
            (words(limit.name), float(limit.bound))
            for limit in facts.limits
            if limit.signal == signal.name and limit.kind != "rate"
        ]
        unit = unit_of(signal)
        label = f"{words(signal.name)}{', ' * bool(unit)}{unit}{note}"
        return over_time(lines, clock, shown[1], episode, label, bounds)

    def named(part: str, known: Sequence[Signal]) -> list[tuple[Signal, list[np.ndarray]]]:
        """Signals, of which unknown ones are numbered, and what both trajectories say of them."""
        both = [getattr(trajectories, part)[:, episode] for trajectories in shown]
        unknown = [Signal(f"{part} {i}", "", -1.0, 1.0) for i in range(both[0].shape[-1])]
        every = [*known, *unknown[len(known) :]]
        return [(signal, [values[:, i] for values in both]) for i, signal in enumerate(every)]

    measured = named("obs", facts.observation)
    moving = [pair for pair in measured if any(np.ptp(values) > 0 for values in pair[1])]
    bounded = {limit.signal for limit in facts.limits}
    moving.sort(key=lambda pair: pair[0].name not in bounded)  # those with limits first
    charts = [chart(*pair) for pair in moving[:SIGNALS]]
    for actuator, actions in named("action", facts.action)[:SIGNALS]:
        low, high = actuator.low, actuator.high
        controls = [low + 0.5 * (np.clip(a, -1.0, 1.0) + 1.0) * (high - low) for a in actions]
        charts.append(chart(actuator, controls, " (actuator)"))
    rewards = [trajectories.reward[:, episode] for trajectories in shown]
    charts.append(chart(Signal("reward", "", 0.0, 1.0), rewards, " of a step"))
    left_out = len(measured) - len(moving[:SIGNALS])
    many = "signal is" if left_out == 1 else "signals are"
    why = "" if len(moving) > SIGNALS else ": without a change in this episode"
    said = f"{left_out} more {many} not drawn{why}."
    return [page.pairs(charts), page.soft(said) if left_out else None]
