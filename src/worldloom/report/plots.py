"""Line charts, bars and histograms as SVG text: pure functions from data to a string, no script."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

from worldloom.report import svg
from worldloom.report.axes import Scale, number, scale

Number = float | int | None
_HOVER_COLUMNS = 150  # enough for a mouse; more would only make the page heavy
_THICKNESS = 19  # pixels of a bar with the gap to its neighbour


@dataclass(frozen=True)
class Series:
    """One line. None and NaN are gaps. `low` and `high` bound a band around it."""

    name: str
    x: Sequence[Number]
    y: Sequence[Number]
    low: Sequence[Number] | None = None
    high: Sequence[Number] | None = None
    color: str | None = None  # by default the palette's, by position
    dots: bool = False  # a dot for each point
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


def with_error(
    name: str,
    x: Sequence[Number],
    y: Sequence[Number],
    error: Sequence[Number],
    *,
    color: str | None = None,
    dots: bool = False,
) -> Series:
    """A line with a band of y ± error; where there is no error there is no band."""
    middle = Series(name, x, y).column("y")
    spread = Series(name, x, error).column("y")
    low, high = (middle - spread).tolist(), (middle + spread).tolist()
    return Series(name, x, y, low, high, color=color, dots=dots)


def line_chart(
    series: Sequence[Series],
    width: int = 720,
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    log_x: bool = False,
    log_y: bool = False,
    references: Sequence[tuple[str, float]] = (),
    include_zero: bool = False,
    height: int = 300,
) -> str:
    """Lines with bands over a common x; `references` are named horizontal lines."""
    colors = [svg.color(i, line.color) for i, line in enumerate(series)]
    xs = np.concatenate([[], *(line.column("x") for line in series)])
    ys = [line.column(name) for line in series for name in ("y", "low", "high")]
    values = np.concatenate([*ys, [value for _, value in references], [0.0] * include_zero])
    legend, used = svg.legend([line.name for line in series], colors, width)
    top = used + (26 if y_label else 8)
    bottom = height - (46 if x_label else 26)
    right = width - 12.0
    up = scale(values, bottom, top, log=log_y, count=max(3, int((bottom - top) // 48)))
    left = svg.y_labels_width(up)
    count = max(3, int((right - left) // 90))
    across = scale(xs, left, right, log=log_x, count=count, tight=True)
    parts = [
        legend,
        svg.text(0, used + 13, y_label, dim=True) if y_label else "",
        svg.y_axis(up, left, right),
        svg.x_axis(across, None, bottom, x_label),
        *(_band(line, ink, across, up) for line, ink in zip(series, colors, strict=True)),
        *(_line(line, ink, across, up) for line, ink in zip(series, colors, strict=True)),
        *(_reference(name, value, up, left, right) for name, value in references),
        _hover(series, across, top, bottom, x_label),
    ]
    return svg.chart(parts, width, height, title or y_label)


# Lines -------------------------------------------------------------------------------------------


def _line(line: Series, color: str, across: Scale, up: Scale) -> str:
    x, y = across(line.column("x")), up(line.column("y"))
    shown = np.isfinite(x) & np.isfinite(y)
    runs = _runs(shown)
    path = "".join(
        "M" + "L".join(f"{x[i]:.1f} {y[i]:.1f}" for i in run) for run in runs if len(run) > 1
    )
    # A point between two gaps has no line to show it.
    dots = np.flatnonzero(shown) if line.dots else [run[0] for run in runs if len(run) == 1]
    look = 'stroke-width="1.3" opacity=".6"' if line.faint else 'stroke-width="2.2"'
    parts = [
        f'<path d="{path}" fill="none" stroke="currentColor" {look} '
        'stroke-linejoin="round" stroke-linecap="round"/>'
    ] * bool(path)
    parts += [f'<circle cx="{x[i]:.1f}" cy="{y[i]:.1f}" r="3" fill="currentColor"/>' for i in dots]
    return f'<g class="series" style="color:{color}">{"".join(parts)}</g>'


def _runs(shown: np.ndarray) -> list[np.ndarray]:
    """Indices of the unbroken stretches of a mask (n,)."""
    where = np.flatnonzero(shown)
    return [run for run in np.split(where, np.flatnonzero(np.diff(where) > 1) + 1) if len(run)]


def _band(line: Series, color: str, across: Scale, up: Scale) -> str:
    low = line.column("low")
    if up.log:  # a band that reaches below the axis ends there
        low = np.maximum(low, up.low)
    x, low, high = across(line.column("x")), up(low), up(line.column("high"))
    shapes = []
    for run in _runs(np.isfinite(x) & np.isfinite(low) & np.isfinite(high)):
        there = [f"{x[i]:.1f} {high[i]:.1f}" for i in run]
        back = [f"{x[i]:.1f} {low[i]:.1f}" for i in run[::-1]]
        shapes.append("M" + "L".join(there + back) + "Z")
    if not shapes:
        return ""
    return (
        f'<path class="band" d="{"".join(shapes)}" style="color:{color}" fill="currentColor" '
        'opacity=".2"/>'
    )


def _reference(name: str, value: float, up: Scale, left: float, right: float) -> str:
    y = float(up(value))
    if not math.isfinite(y):
        return ""
    words = svg.text(right, y - 5, f"{name} {number(value)}", "end", dim=True)
    dashed = svg.line(left, y, right, y, 0.6, ' stroke-dasharray="5 4"')
    return f'<g class="reference">{dashed}{words}</g>'


def _hover(series: Sequence[Series], across: Scale, top: float, bottom: float, x_label: str) -> str:
    """Unseen columns that show a guide line and, as a title, what every line says there."""
    every = np.concatenate([[], *(line.column("x") for line in series)])
    xs = np.unique(every[np.isfinite(across(every))])
    if not len(xs):
        return ""
    if len(xs) > _HOVER_COLUMNS:
        xs = xs[np.linspace(0, len(xs) - 1, _HOVER_COLUMNS).round().astype(int)]
    pixels = across(xs)
    edges = np.concatenate([pixels[:1] - 6, (pixels[1:] + pixels[:-1]) / 2, pixels[-1:] + 6])
    points = [{x: i for i, x in enumerate(line.column("x").tolist())} for line in series]
    columns = []
    for x, pixel, (start, end) in zip(xs.tolist(), pixels, pairwise(edges), strict=True):
        said = [f"{x_label or 'x'} {number(x, 6)}"]
        said += [_says(line, at[x]) for line, at in zip(series, points, strict=True) if x in at]
        columns.append(
            f'<g class="at"><title>{escape(chr(10).join(filter(None, said)))}</title>'
            f'<rect x="{start:.1f}" y="{top:.1f}" width="{end - start:.1f}" '
            f'height="{bottom - top:.1f}" opacity="0"/>'
            f"{svg.line(pixel, top, pixel, bottom, 0.4)}</g>"
        )
    return "".join(columns)


def _says(line: Series, i: int) -> str:
    """The value of point `i` with half the width of its band; nothing where there is a gap."""
    y, low, high = (line.column(name)[i] for name in ("y", "low", "high"))
    if not math.isfinite(y):
        return ""
    spread = (high - low) / 2
    error = f" ± {number(float(spread))}" if math.isfinite(spread) else ""
    return f"{line.name}: {number(float(y), 4)}{error}"


# Bars --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bars:
    """One group of bars, a value for each label; None and NaN are bars that were not measured."""

    name: str
    values: Sequence[Number]
    color: str | None = None


def bar_chart(
    labels: Sequence[str],
    groups: Sequence[Bars],
    width: int = 720,
    *,
    title: str = "",
    axis_label: str = "",
    log: bool = False,
    baseline: float | None = None,
    show: Callable[[float], str] = number,
) -> str:
    """Lying bars with their values written at their ends: one of each group for each label.

    Bars start at `baseline`, by default 0 and on a log axis its lower end. With a baseline of 1
    on a log axis, ratios above 1 point one way and those below 1 the other.
    """
    for group in groups:
        if len(group.values) != len(labels):
            raise ValueError(
                f"bars {group.name!r}: {len(group.values)} values for {len(labels)} labels"
            )
    colors = [svg.color(i, group.color) for i, group in enumerate(groups)]
    legend, used = svg.legend([group.name for group in groups], colors, width)
    if baseline is None and not log:
        baseline = 0.0
    covered = [math.nan if v is None else float(v) for group in groups for v in group.values]
    covered += [] if baseline is None else [baseline]
    widest = max(map(svg.text_width, labels), default=0.0)
    # Where long labels would crowd out the bars they get a line of their own.
    own_line = widest > width * 0.34
    left = 2.0 if own_line else widest + 12
    slot = _THICKNESS * len(groups) + (32 if own_line else 12)
    top = used + 4
    bottom = top + slot * len(labels)
    written = [svg.text_width(show(v)) for v in covered if math.isfinite(v)]
    right = width - 10 - max(written, default=0.0)
    across = scale(covered, left, right, log=log, count=max(2, int((right - left) // 100)))
    origin = float(across(across.low if baseline is None else baseline))
    parts = [legend, svg.x_axis(across, top, bottom, axis_label)]
    for i, label in enumerate(labels):
        y = top + slot * i + 6
        if own_line:
            parts.append(svg.text(left, y + 13, label))
            y += 20
        else:
            parts.append(svg.text(left - 8, y + _THICKNESS * len(groups) / 2 + 4, label, "end"))
        for n, (group, color) in enumerate(zip(groups, colors, strict=True)):
            value, y_bar = group.values[i], y + _THICKNESS * n
            end = math.nan if value is None else float(across(value))
            if value is None or not math.isfinite(end):
                parts.append(svg.text(origin + 6, y_bar + 14, "not measured", dim=True))
                continue
            box = (min(origin, end), y_bar + 1, max(abs(end - origin), 1.5), _THICKNESS - 3)
            says = f"{label}{' · ' * bool(group.name)}{group.name}: {show(value)}"
            parts.append(svg.rect(*box, color, says, ' class="bar" rx="3"'))
            parts.append(svg.text(max(origin, end) + 6, y_bar + 14, show(value)))
    parts.append(svg.line(origin, top, origin, bottom, 0.6))
    return svg.chart(parts, width, round(bottom + (46 if axis_label else 26)), title or axis_label)


# Histograms --------------------------------------------------------------------------------------


def histogram(
    values: np.ndarray,
    width: int = 390,
    *,
    title: str = "",
    x_label: str = "",
    span: tuple[float, float] | None = None,
    marks: Sequence[tuple[str, float]] = (),
    what: str = "rows",
    color: int = 0,
    bins: int = 40,
    height: int = 150,
) -> str:
    """How often values (N,) lie in each of `bins` equal parts of their range.

    span: a range that is shown whole, even where no value lies. marks: named vertical lines.
    """
    values = np.asarray(values, float).ravel()
    values = values[np.isfinite(values)]
    low, high = _limits(np.concatenate([values, span or (), [at for _, at in marks]]))
    counts, edges = np.histogram(values, bins, (low, high))
    top, bottom = (24.0 if title else 6.0) + 16.0 * bool(marks), height - (46 if x_label else 26.0)
    left, right = 6.0, width - 14.0
    across = _axis((low, high), left, right)
    tallest, total = max(int(counts.max()), 1), max(len(values), 1)
    parts = [svg.text(0, 13, title)] * bool(title)
    parts.append(svg.x_axis(across, None, bottom, x_label))
    x = across(edges)
    for i in np.flatnonzero(counts):
        tall = max(1.5, (bottom - top) * counts[i] / tallest)
        says = f"{number(edges[i])} to {number(edges[i + 1])}: {counts[i]:,} {what}"
        says += f" ({counts[i] / total:.1%})"
        wide = max(x[i + 1] - x[i] - 0.6, 0.8)
        parts.append(
            svg.rect(x[i], bottom - tall, wide, tall, svg.color(color), says, ' class="bar"')
        )
    for name, at in marks:
        place = float(across(at))
        anchor = "start" if place < (left + right) / 2 else "end"
        parts.append(svg.line(place, top - 4, place, bottom, 0.7, ' stroke-dasharray="5 4"'))
        parts.append(svg.text(place, top - 7, f"{name} {number(at)}", anchor, dim=True))
    return svg.chart(parts, width, height, title or x_label)


def density(
    x: np.ndarray,
    y: np.ndarray,
    width: int = 390,
    *,
    x_label: str,
    y_label: str,
    color: int = 0,
    bins: int = 28,
    height: int = 260,
) -> str:
    """How often two quantities (N,) occur together: the darker, the more often."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    x_span, y_span = _limits(x), _limits(y)
    counts, x_edges, y_edges = np.histogram2d(x, y, bins, (x_span, y_span))
    top, bottom, right = 26.0, height - 46.0, width - 14.0
    up = _axis(y_span, bottom, top)
    left = svg.y_labels_width(up)
    across = _axis(x_span, left, right)
    most, total = max(counts.max(), 1.0), max(len(x), 1)
    across_at, up_at = across(x_edges), up(y_edges)
    parts = [svg.text(0, 13, y_label, dim=True)]
    for i, j in np.argwhere(counts > 0).tolist():
        # The root keeps rare places visible beside common ones.
        shade = 0.08 + 0.92 * np.sqrt(counts[i, j] / most)
        says = (
            f"{x_label} {number(x_edges[i])} to {number(x_edges[i + 1])}, {y_label} "
            f"{number(y_edges[j])} to {number(y_edges[j + 1])}: {counts[i, j] / total:.2%} of rows"
        )
        wide, tall = across_at[i + 1] - across_at[i], up_at[j] - up_at[j + 1]
        box = (across_at[i], up_at[j + 1], wide, tall)
        parts.append(svg.rect(*box, svg.color(color), says, f' opacity="{shade:.2f}"'))
    parts += [svg.y_axis(up, left, right), svg.x_axis(across, None, bottom, x_label)]
    return svg.chart(parts, width, height, f"{y_label} against {x_label}")


def _axis(span: tuple[float, float], start: float, end: float) -> Scale:
    # A number between the ends says that ticks need not be whole ones.
    between = span[0] + 0.37 * (span[1] - span[0])
    count = max(4, int(abs(end - start) // 70))
    return scale([*span, between], start, end, count=count, tight=True)


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Smallest and largest, kept apart where they are the same, or where there are none."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-9 * max(abs(low), abs(high), 1e-9):
        room = 0.05 * abs(low) or 0.5
        return low - room, high + room
    return low, high
