"""How often values occur: histograms of one quantity, and of two against each other, as SVG."""

from collections.abc import Sequence
from html import escape

import numpy as np

from worldloom.report import svg
from worldloom.report.axes import Scale, number, scale


def histogram(
    values: np.ndarray,
    *,
    title: str = "",
    x_label: str = "",
    span: tuple[float, float] | None = None,
    marks: Sequence[tuple[str, float]] = (),
    what: str = "rows",
    color: int = 0,
    bins: int = 40,
    width: int = 390,
    height: int = 150,
) -> str:
    """Bars for `bins` equal parts of the values (N,).

    span: a range that is shown whole, even where no value lies. marks: named vertical lines.
    """
    values = np.asarray(values, float).ravel()
    values = values[np.isfinite(values)]
    ends = [*(span or ()), *(at for _, at in marks)]
    low, high = _limits(np.concatenate([values, ends]))
    counts, edges = np.histogram(values, bins, (low, high))
    top, bottom = (
        (24.0 if title else 6.0) + (16.0 if marks else 0.0),
        height - (46.0 if x_label else 26.0),
    )
    left, right = 6.0, width - 14.0
    across = _axis((low, high), left, right)
    tallest, total = max(int(counts.max()), 1), max(len(values), 1)
    ink = svg.color(color)
    parts = [svg.text(0, 13, title)] * bool(title)
    parts.append(svg.x_axis(across, None, bottom, x_label))
    x = across(edges)
    for i in np.flatnonzero(counts):
        tall = max(1.5, (bottom - top) * counts[i] / tallest)
        says = f"{number(edges[i])} to {number(edges[i + 1])}: {counts[i]:,} {what}"
        says += f" ({counts[i] / total:.1%})"
        parts.append(
            f'<rect class="bar" x="{x[i]:.1f}" y="{bottom - tall:.1f}" '
            f'width="{max(x[i + 1] - x[i] - 0.6, 0.8):.1f}" height="{tall:.1f}" '
            f'style="color:{ink}" fill="currentColor"><title>{escape(says)}</title></rect>'
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
    *,
    x_label: str,
    y_label: str,
    color: int = 0,
    bins: int = 28,
    width: int = 390,
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
    ink, most, total = svg.color(color), max(counts.max(), 1.0), max(len(x), 1)
    across_at, up_at = across(x_edges), up(y_edges)
    parts = [svg.text(0, 13, y_label, dim=True)]
    for i, j in np.argwhere(counts > 0).tolist():
        # The root keeps rare places visible beside common ones.
        shade = 0.08 + 0.92 * np.sqrt(counts[i, j] / most)
        says = (
            f"{x_label} {number(x_edges[i])} to {number(x_edges[i + 1])}, {y_label} "
            f"{number(y_edges[j])} to {number(y_edges[j + 1])}: {counts[i, j] / total:.2%} of rows"
        )
        parts.append(
            f'<rect x="{across_at[i]:.1f}" y="{up_at[j + 1]:.1f}" '
            f'width="{across_at[i + 1] - across_at[i]:.1f}" height="{up_at[j] - up_at[j + 1]:.1f}" '
            f'style="color:{ink}" fill="currentColor" opacity="{shade:.2f}">'
            f"<title>{escape(says)}</title></rect>"
        )
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
