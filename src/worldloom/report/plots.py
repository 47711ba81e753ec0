"""Charts as SVG text: pure functions from data to a string, nothing to install, no script."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

import numpy as np

from worldloom.report import svg
from worldloom.report.axes import Scale, number, scale
from worldloom.report.bars import Bars, bar_chart

__all__ = ["Bars", "Number", "Series", "bar_chart", "line_chart", "with_error"]

Number = float | int | None
_HOVER_COLUMNS = 150  # enough for a mouse; more would only make the page heavy


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
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    log_x: bool = False,
    log_y: bool = False,
    references: Sequence[tuple[str, float]] = (),
    include_zero: bool = False,
    width: int = 720,
    height: int = 300,
) -> str:
    """Lines with bands over a common x; `references` are named horizontal lines."""
    colors = [svg.color(i, line.color) for i, line in enumerate(series)]
    xs = np.concatenate([[], *(line.column("x") for line in series)])
    ys = [line.column(name) for line in series for name in ("y", "low", "high")]
    values = np.concatenate([*ys, [value for _, value in references], [0.0] * include_zero])
    legend, used = "", 0.0
    if len(series) > 1:
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


def _runs(shown: np.ndarray) -> list[list[int]]:
    """Indices of the unbroken stretches of a mask (n,)."""
    runs: list[list[int]] = []
    for i in np.flatnonzero(shown).tolist():
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _band(line: Series, color: str, across: Scale, up: Scale) -> str:
    low = line.column("low")
    if up.log:  # a band that reaches below the axis ends there
        low = np.maximum(low, up.low)
    x, low, high = across(line.column("x")), up(low), up(line.column("high"))
    shapes = []
    for run in _runs(np.isfinite(x) & np.isfinite(low) & np.isfinite(high)):
        there = [f"{x[i]:.1f} {high[i]:.1f}" for i in run]
        back = [f"{x[i]:.1f} {low[i]:.1f}" for i in reversed(run)]
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
