"""Charts: lines as data for a script to draw, bars and histograms as SVG text. Pure functions."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from worldloom.report import svg
from worldloom.report.axes import log_limits, nice_ticks, number, scale
from worldloom.report.colors import Color, css_color

Number = float | int | None
Span = tuple[float, float]
_THICKNESS = 19  # pixels of a bar with the gap to its neighbour
# An axis shows at least this part of its values' size: less is rounding, and would look like news.
_ROUNDING = 1e-4
_FAR = 20.0  # spans of the data: a reference further away is named at the edge


@dataclass(frozen=True)
class Series:
    """One line. None and NaN are gaps. `low` and `high` bound a band around it."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    color: Color | None = None  # by default the palette's, by position
    dots: bool = False  # a dot for each point, with its error
    faint: bool = False  # background: thin and pale

    def __post_init__(self):
        for name in ("y", "low", "high"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.x):
                raise ValueError(
                    f"series {self.name!r}: {name} has {len(values)} values for {len(self.x)} x"
                )

    def column(self, name: str) -> np.ndarray:
        """A column as floats (n,), NaN for gaps and for a column that is not there."""
        values = getattr(self, name)
        if values is None:
            return np.full(len(self.x), math.nan)
        return np.array([math.nan if v is None else float(v) for v in values], float)


@dataclass(frozen=True)
class Shade:
    """Stretches of the x axis in which something was so."""

    name: str
    spans: Sequence[Span]
    color: Color


def with_error(
    name: str, x: Sequence[Number], y: Sequence[Number], error: Sequence[Number], **style: Any
) -> Series:
    """A line with a band of y ± error; where there is no error there is no band."""
    middle = Series(name, x, y).column("y")
    spread = Series(name, x, error).column("y")
    return Series(name, x, y, (middle - spread).tolist(), (middle + spread).tolist(), **style)


def line_chart(
    series: Sequence[Series],
    x_label: str = "",
    y_label: str = "",
    *,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    references: Sequence[tuple[str, float]] = (),
    include_zero: bool = False,
    share: bool = False,
    noise: float = 0.0,
    shades: Sequence[Shade] = (),
    height: int = 300,
) -> dict[str, Any]:
    """Lines with bands over a common x, as a part of a page; `references` are named values of y.

    share: values are per cent, on an axis from 0 to 100. noise: the y axis is no shorter.
    """
    lines = [_points(line, i, log_x, log_y) for i, line in enumerate(series)]
    values = [v for line in lines for name in ("y", "low", "high") for v in line[name] or ()]
    known = [v for v in values if v is not None]
    known += [at for _, at in references if not _is_far(at, known)] + [0.0] * include_zero
    noise = max([noise, *map(_band, lines)])
    low, high, noise = _y_range(known, share, log_y, noise)
    spec = {
        "title": title or y_label,
        "x_label": x_label,
        "y_label": y_label,
        "log": [log_x, log_y],
        "range": [low, high],
        "noise": noise,
        "height": height,
        "series": lines,
        "references": [[name, at] for name, at in references if not log_y or at > 0],
        "shades": [{"name": s.name, "color": css_color(s.color), "spans": s.spans} for s in shades],
    }
    said = [f"{title or y_label}: {y_label or 'lines'} over {x_label or 'x'}."]
    said += [_summary(line) for line in lines]
    said += [f"{name}: {number(at)}." for name, at in references]
    return {"kind": "chart", "title": spec["title"], "spec": spec, "summary": " ".join(said)}


def _points(line: Series, i: int, log_x: bool, log_y: bool) -> dict[str, Any]:
    """A line in the order of x, without what an axis cannot show; gaps are None."""
    x = line.column("x")
    known = np.isfinite(x) & ((x > 0) | (not log_x))
    order = np.flatnonzero(known)[np.argsort(x[known], kind="stable")]

    def column(name: str) -> list[float | None] | None:
        values = line.column(name)[order]
        kept = np.isfinite(values) & ((values > 0) | (not log_y))
        if name != "y" and not kept.any():
            return None
        return [float(f"{v:.6g}") if here else None for v, here in zip(values, kept, strict=True)]

    return {
        "name": line.name,
        "color": css_color(i if line.color is None else line.color),
        "x": [float(f"{v:.12g}") for v in x[order]],
        **{name: column(name) for name in ("y", "low", "high")},
        "dots": line.dots,
        "faint": line.faint,
    }


def _is_far(at: float, values: list[float]) -> bool:
    """Whether an axis that showed it would show nothing else of the values."""
    if not values:
        return False
    low, high = min(values), max(values)
    reach = _FAR * max(high - low, 0.05 * max(abs(low), abs(high)))
    return not low - reach <= at <= high + reach


def _band(line: dict[str, Any]) -> float:
    """How wide a line's band is, as a rule: what is less than that is noise."""
    if not line["low"] or not line["high"]:
        return 0.0
    pairs = zip(line["low"], line["high"], strict=True)
    widths = [high - low for low, high in pairs if low is not None and high is not None]
    return float(np.median(widths)) if widths else 0.0


def _y_range(values: list[float], share: bool, log: bool, noise: float) -> tuple[float, ...]:
    """Both ends of the y axis, and how short a stretch of it may be looked at."""
    if share:
        return 0.0, 100.0, 1.0
    positive = [v for v in values if v > 0]
    if log:
        return *(log_limits(min(positive), max(positive)) if positive else (1.0, 10.0)), 0.0
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    shortest = max(noise, _ROUNDING * max(abs(low), abs(high)))
    if high - low < shortest:  # nothing but rounding: seen from zero, and a constant as such
        low, high = min(low, -noise / 2, 0.0), max(high, noise / 2, 0.0)
    ticks = nice_ticks(low, high)
    return ticks[0], ticks[-1], shortest


def _summary(line: dict[str, Any]) -> str:
    """What a line says, for those who do not see it."""
    known = [v for v in line["y"] if v is not None]
    if not known:
        return f"{line['name']}: no values."
    first, last, least, most = (number(v, 4) for v in (known[0], known[-1], min(known), max(known)))
    return f"{line['name']}: {len(known)} points from {first} to {last}, all in {least} to {most}."


# Bars --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bars:
    """One group of bars, a value for each label; None and NaN are bars that were not measured."""

    name: str
    values: Sequence[Number]
    color: Color | Sequence[Color] | None = None  # one, or one for each label
    errors: Sequence[Number] | None = None  # standard errors
    spans: Sequence[tuple[Number, Number]] | None = None  # intervals, in the place of errors

    def span(self, i: int) -> Span | None:
        """The interval around bar `i`; None if it is not known."""
        low, high = self.spans[i] if self.spans else (None, None)
        if low is None or high is None or not math.isfinite(high - low):
            error, value = self.error(i), self.values[i]
            return None if not error or value is None else (value - error, value + error)
        return low, high

    def said(self, i: int, show: Callable[[float], str]) -> str:
        """The value of bar `i` and how sure it is, in words; it has one."""
        value, error, span = self.values[i], self.error(i), self.span(i)
        assert value is not None
        if self.spans and span is not None:
            return f"{show(value)} ({show(span[0])} to {show(span[1])})"
        return show(value) + (f" ± {number(error, 2)}" if error is not None else "")

    def error(self, i: int) -> float | None:
        """The error of bar `i`; None if it is not known."""
        error = self.errors[i] if self.errors else None
        return error if error is not None and math.isfinite(error) else None


def bar_chart(
    labels: Sequence[str],
    groups: Sequence[Bars],
    width: int = 720,
    *,
    title: str = "",
    axis_label: str = "",
    log: bool = False,
    baseline: float | None = None,
    share: bool = False,
    references: Sequence[tuple[str, float]] = (),
    show: Callable[[float], str] = number,
) -> str:
    """Lying bars with their values written at their ends: one of each group for each label.

    Bars start at `baseline`, by default 0 and on a log axis its lower end. With a baseline of 1
    on a log axis, ratios above 1 point one way and those below 1 the other. share: values are per
    cent, on an axis from 0 to 100. references: named vertical lines.
    """
    for group in groups:
        if len(group.values) != len(labels):
            raise ValueError(
                f"bars {group.name!r}: {len(group.values)} values for {len(labels)} labels"
            )
    inks = [_inks(i, group.color, len(labels)) for i, group in enumerate(groups)]
    first = [ink for each in inks for ink in each[:1]] or [""] * len(groups)
    legend, used = svg.legend([group.name for group in groups], first, width)
    if baseline is None and not log:
        baseline = 0.0
    covered = [0.0, 100.0] * share + [at for _, at in references]
    for group in groups:
        for i, value in enumerate(group.values):
            covered += [] if value is None else [value, *(group.span(i) or ())]
    covered += [] if baseline is None else [baseline]
    widest = max(map(svg.text_width, labels), default=0.0)
    # Where long labels would crowd out the bars they get a line of their own.
    own_line = widest > width * 0.34
    left = 2.0 if own_line else widest + 12
    slot = _THICKNESS * len(groups) + (32 if own_line else 12)
    top = used + 4 + 20.0 * len(references)
    bottom = top + slot * len(labels)
    known = [(g, i) for g in groups for i, v in enumerate(g.values) if v is not None]
    written = [svg.text_width(group.said(i, show)) for group, i in known]
    right = width - 10 - max(written, default=0.0)
    across = scale(covered, left, right, log=log, count=max(2, int((right - left) // 100)))
    origin = float(across(across.low if baseline is None else baseline))
    parts = [legend, svg.x_axis(across, top, bottom, axis_label)]
    for n, (name, at) in enumerate(references):
        parts.append(_mark(f"{name} {show(at)}", float(across(at)), used + 20 * n, bottom, width))
    for i, label in enumerate(labels):
        y = top + slot * i + 6
        if own_line:
            parts.append(svg.text(left, y + 13, label))
            y += 20
        else:
            parts.append(svg.text(left - 8, y + _THICKNESS * len(groups) / 2 + 4, label, "end"))
        for n, (group, ink) in enumerate(zip(groups, inks, strict=True)):
            value, y_bar = group.values[i], y + _THICKNESS * n
            end = math.nan if value is None else float(across(value))
            if value is None or not math.isfinite(end):
                parts.append(svg.text(origin + 6, y_bar + 14, "not measured", dim=True))
                continue
            box = (min(origin, end), y_bar + 1, max(abs(end - origin), 1.5), _THICKNESS - 3)
            said, span = group.said(i, show), group.span(i)
            says = f"{label}{' · ' * bool(group.name)}{group.name}: {said}"
            parts.append(svg.rect(*box, ink[i], says, ' class="bar" rx="3"'))
            reach = end
            if span is not None:
                start, reach = map(float, across(span))
                middle = y_bar + (_THICKNESS - 1) / 2
                parts.append(svg.line(start, middle, reach, middle, 1.0, ' stroke-width="1.6"'))
                parts += [svg.line(x, middle - 4, x, middle + 4, 1.0) for x in (start, reach)]
            parts.append(svg.text(max(origin, end, reach) + 6, y_bar + 14, said))
    parts.append(svg.line(origin, top, origin, bottom, 0.6))
    return svg.chart(parts, width, round(bottom + (46 if axis_label else 26)), title or axis_label)


def _inks(i: int, given: Color | Sequence[Color] | None, count: int) -> list[str]:
    """The colours of a group's bars, one for each label."""
    if given is None or isinstance(given, int | str):
        given = [i if given is None else given] * count
    return [svg.color(ink) for ink in given]


def _mark(words: str, x: float, top: float, bottom: float, width: float) -> str:
    """A dashed vertical line, its name beside its top where there is room."""
    after = x + 6 + svg.text_width(words) < width
    said = svg.text(x + 6 if after else x - 6, top + 14, words, "start" if after else "end", True)
    dashed = svg.line(x, top + 4, x, bottom, 0.7, ' stroke-dasharray="5 4"')
    return f'<g class="reference">{dashed}{said}</g>'


# Histograms --------------------------------------------------------------------------------------


def histogram(
    values: np.ndarray,
    *,
    title: str,
    span: Span | None = None,
    marks: Sequence[tuple[str, float]] = (),
    what: str = "rows",
    color: Color = 0,
    bins: int = 40,
    height: int = 220,
) -> dict[str, Any]:
    """How often values (N,) lie in each of `bins` equal parts of their range, as a part of a page.

    span: a range that is shown whole, even where no value lies. marks: named values.
    """
    values = np.asarray(values, float).ravel()
    values = values[np.isfinite(values)]
    limits = _limits(np.concatenate([values, span or (), [at for _, at in marks]]))
    counts, edges = np.histogram(values, bins, limits)
    bars = Series(what, edges.tolist(), [*counts.tolist(), None], color=color)
    chart = line_chart([bars], title=title, y_label=title, include_zero=True, height=height)
    chart["spec"] |= {"bars": len(values), "marks": [list(mark) for mark in marks]}
    likeliest = int(counts.argmax())
    low, high, first, last = (number(v) for v in (*limits, edges[likeliest], edges[likeliest + 1]))
    said = f"{title}: {len(values):,} {what} from {low} to {high}, most from {first} to {last}."
    return chart | {"summary": " ".join([said, *(f"{name}: {number(at)}." for name, at in marks)])}


def density(
    x: np.ndarray, y: np.ndarray, *, x_label: str, y_label: str, color: Color = 0, bins: int = 28
) -> dict[str, Any]:
    """How often two quantities (N,) occur together, as a part of a page: darker is more often."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(x) & np.isfinite(y)
    spans = _limits(x[known]), _limits(y[known])
    counts, *edges = np.histogram2d(x[known], y[known], bins, spans)
    cells = [
        [float(f"{v:.5g}") for v in (*edges[0][i : i + 2], *edges[1][j : j + 2], counts[i, j])]
        for i, j in np.argwhere(counts > 0)
    ]
    title = f"{y_label} against {x_label}"
    chart = line_chart([], title=title, x_label=x_label, y_label=y_label, height=300)
    chart["spec"] |= {"cells": cells, "span": spans[0], "range": spans[1]}
    chart["spec"]["shades"] = [{"name": "rows", "color": css_color(color), "spans": []}]
    filled = f"{title}: rows in {len(cells)} of {bins * bins} cells."
    return chart | {"summary": filled}


def _limits(values: np.ndarray) -> Span:
    """Smallest and largest, kept apart where they are the same, or where there are none."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        room = 0.05 * abs(low) or 0.5
        return low - room, high + room
    return low, high
