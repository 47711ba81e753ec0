"""Parallel coordinates: a line for each point of a sweep, from setting to setting to its score."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from worldloom.report import svg
from worldloom.report.axes import Scale, number, scale
from worldloom.report.runs import is_number

_TOP, _BOTTOM, _HEIGHT = 52.0, 24.0, 340.0


@dataclass(frozen=True)
class Axis:
    """One setting, or the score: where its values lie, in pixels from the top."""

    name: str
    scale: Scale | None  # None where values are listed
    places: Mapping[str, float]

    def y(self, value: Any) -> float:
        """NaN where a point has no such value."""
        if self.scale is not None:
            return float(self.scale(value)) if is_number(value) else math.nan
        return self.places.get(str(value), math.nan)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        if self.scale is None:
            return [(y, label) for label, y in self.places.items()]
        ends = self.scale.ticks
        shown = dict.fromkeys([*ends[:1], *ends[len(ends) // 2 :][:1], *ends[-1:]])
        return [(float(self.scale(at)), number(at)) for at in shown]


def axis(name: str, values: Sequence[Any], by_log: bool = False) -> Axis:
    """An axis of numbers or, where some values are none, or few of them differ, of listed ones."""
    known = [value for value in values if value is not None]
    differ = list(dict.fromkeys(map(str, known)))
    numeric = all(map(is_number, known)) and (len(differ) > 4 or len(differ) < 2)
    bottom, top = _HEIGHT - _BOTTOM, _TOP
    if numeric:
        return Axis(name, scale(known, bottom, top, log=by_log, count=4), {})
    if all(map(is_number, known)):
        differ = [str(value) for value in sorted(set(known))]
    step = (bottom - top) / max(len(differ) - 1, 1)
    middle = (bottom + top) / 2
    places = {label: bottom - n * step for n, label in enumerate(differ)}
    return Axis(name, None, places if len(differ) > 1 else dict.fromkeys(differ, middle))


def is_logarithmic(values: Sequence[Any]) -> bool:
    """Whether numbers are spread over more than a factor of 30."""
    known = [value for value in values if is_number(value)]
    return len(known) > 1 and min(known) > 0 and max(known) > 30 * min(known)


def parallel_chart(
    points: Sequence[Mapping[str, Any]],
    scores: Sequence[Any],
    stopped: Sequence[bool],
    width: int = 720,
    *,
    title: str = "",
    score_label: str = "score",
) -> str:
    """points: values by name. Better points are drawn darker, those that were stopped dashed."""
    names = list(dict.fromkeys(name for point in points for name in point))
    columns = {name: [point.get(name) for point in points] for name in names}
    axes = [axis(name, each, is_logarithmic(each)) for name, each in columns.items()]
    axes.append(axis(score_label, [s if is_number(s) else None for s in scores]))
    left, right = 46.0, width - 60.0
    gap = (right - left) / max(len(axes) - 1, 1)
    parts = []
    order = sorted(range(len(points)), key=lambda n: scores[n] if is_number(scores[n]) else -1e99)
    for rank, n in enumerate(order):
        values = [*(points[n].get(name) for name in names), scores[n]]
        corners = [(left + gap * i, each.y(v)) for i, (each, v) in enumerate(_pairs(axes, values))]
        corners = [(x, y) for x, y in corners if math.isfinite(y)]
        share = (rank + 1) / len(order)
        said = ", ".join(f"{name}={points[n][name]}" for name in names if name in points[n])
        said += f": {number(scores[n], 4) if is_number(scores[n]) else 'diverged'}"
        said += " (stopped)" if stopped[n] else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        dashes = ' stroke-dasharray="4 4"' if stopped[n] else ""
        parts.append(
            f'<polyline points="{path}" fill="none" style="color:{svg.color(0)}" '
            f'stroke="currentColor" stroke-width="{1 + 1.6 * share**4:.2f}" '
            f'opacity="{0.25 + 0.75 * share**3:.2f}"{dashes}>'
            f"<title>{escape(said)}</title></polyline>"
        )
    for i, each in enumerate(axes):
        x = left + gap * i
        parts.append(svg.line(x, _TOP, x, _HEIGHT - _BOTTOM, 0.5))
        anchor = "start" if i == 0 else "end" if i == len(axes) - 1 else "middle"
        at = {"start": x - left + 2, "end": width - 2.0}.get(anchor, x)
        # In two rows, so that long names do not run into each other.
        parts.append(svg.text(at, 14.0 + 18.0 * (i % 2), _short(each.name, gap), anchor))
        for y, label in each.ticks:
            parts.append(svg.line(x - 3, y, x + 3, y, 0.5))
            parts.append(svg.text(x + 6, y + 4, label, dim=True))
    return svg.chart(parts, width, _HEIGHT, title or "settings and scores")


def _pairs(axes: Sequence[Axis], values: Sequence[Any]) -> Any:
    return zip(axes, values, strict=True)


def _short(name: str, gap: float) -> str:
    """A name that fits between its neighbours of the same row."""
    while svg.text_width(name) > 2 * gap - 12 and "." in name:
        name = name.partition(".")[2]
    while svg.text_width(name) > 2 * gap - 12 and len(name) > 4:
        name = name[:-2] + "…"
    return name
