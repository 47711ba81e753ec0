"""A matrix as cells, darker where there is more, with the number in each."""

import math
from collections.abc import Sequence
from html import escape

from worldloom.report import svg
from worldloom.report.axes import number

_CELL, _TOP, _MOST_LABEL = 46.0, 64.0, 26  # pixels, and letters of a name


def heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    width: int = 720,
    *,
    title: str = "",
) -> str:
    """values (rows, columns), each also told where the pointer is. None is an empty cell."""
    left = 12.0 + max(map(svg.text_width, map(_short, rows)), default=0.0)
    wide = min(120.0, (width - left) / max(len(columns), 1))
    known = [x for row in values for x in row if x is not None and math.isfinite(x)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    parts = []
    for j, name in enumerate(columns):
        x = left + wide * (j + 0.5)
        # In two rows, so that long names do not run into each other.
        y = _TOP - 12.0 - 20.0 * (j % 2)
        parts.append(svg.text(x, y, _fitting(name, 2 * wide - 8), "middle"))
    for i, (name, row) in enumerate(zip(rows, values, strict=True)):
        y = _TOP + _CELL * i
        parts.append(svg.text(left - 8, y + _CELL / 2 + 4, _short(name), "end"))
        for j, value in enumerate(row):
            if value is None or not math.isfinite(value):
                continue
            share = (value - low) / (high - low) if high > low else 0.5
            x = left + wide * j
            said = f"{name} with {columns[j]}: {number(value, 4)}"
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y + 1:.1f}" width="{wide - 2:.1f}" '
                f'height="{_CELL - 2:.1f}" rx="3" style="color:{svg.color(0)}" fill="currentColor" '
                f'opacity="{0.08 + 0.5 * share:.2f}"><title>{escape(said)}</title></rect>'
            )
            parts.append(svg.text(x + wide / 2, y + _CELL / 2 + 4, number(value, 3), "middle"))
    return svg.chart(parts, width, _TOP + _CELL * len(rows) + 8, title or "matrix")


def _short(name: str) -> str:
    return name if len(name) <= _MOST_LABEL else name[: _MOST_LABEL - 1] + "…"


def _fitting(name: str, room: float) -> str:
    """As much of a name as there is room for."""
    shown = _short(name)
    while svg.text_width(shown) > room and len(shown) > 4:
        shown = shown[:-2] + "…"
    return shown
