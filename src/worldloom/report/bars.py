"""Bar charts, lying or standing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from worldloom.report import svg
from worldloom.report.axes import NONE, Scale, number, scale

_THICKNESS = 19  # pixels of a lying bar with the gap to its neighbour


@dataclass(frozen=True)
class Bars:
    """One group of bars, a value for each label; None and NaN are bars that were not measured."""

    name: str
    values: Sequence[float | int | None]
    color: str | None = None

    def value(self, i: int) -> float:
        given = self.values[i]
        return math.nan if given is None else float(given)


@dataclass(frozen=True)
class _Plan:
    """What both directions draw."""

    labels: Sequence[str]
    groups: Sequence[Bars]
    colors: Sequence[str]
    covered: Sequence[float]  # values that the axis must show
    baseline: float | None
    log: bool
    axis_label: str
    show: Callable[[float], str]
    top: float  # where the legend ends

    def origin(self, axis: Scale) -> float:
        return float(axis(axis.low if self.baseline is None else self.baseline))

    def says(self, i: int, group: Bars) -> str:
        of_group = f" · {group.name}" if group.name else ""
        return escape(f"{self.labels[i]}{of_group}: {self.show(group.value(i))}")


def bar_chart(
    labels: Sequence[str],
    groups: Sequence[Bars],
    *,
    title: str = "",
    axis_label: str = "",
    log: bool = False,
    baseline: float | None = None,
    horizontal: bool = True,
    show: Callable[[float], str] = number,
    width: int = 720,
    height: int = 300,
) -> str:
    """Bars with their values written at their ends: one of each group for each label.

    Bars start at `baseline`, by default 0 and on a log axis its lower end. With a baseline of 1
    on a log axis, ratios above 1 point one way and those below 1 the other. The height of lying
    bars follows from their number.
    """
    for group in groups:
        if len(group.values) != len(labels):
            raise ValueError(
                f"bars {group.name!r}: {len(group.values)} values for {len(labels)} labels"
            )
    colors = [svg.color(i, group.color) for i, group in enumerate(groups)]
    legend, used = "", 0.0
    if len(groups) > 1:
        legend, used = svg.legend([group.name for group in groups], colors, width)
    if baseline is None and not log:
        baseline = 0.0
    values = [group.value(i) for group in groups for i in range(len(labels))]
    covered = values + ([] if baseline is None else [baseline])
    plan = _Plan(labels, groups, colors, covered, baseline, log, axis_label, show, used)
    if horizontal:
        parts, height = _lying(plan, width)
    else:
        parts = _standing(plan, width, height)
    return svg.chart([legend, *parts], width, height, title or axis_label)


def _lying(plan: _Plan, width: float) -> tuple[list[str], int]:
    widest = max(map(svg.text_width, plan.labels), default=0.0)
    # Where long labels would crowd out the bars they get a line of their own.
    own_line = widest > width * 0.34
    left = 2.0 if own_line else widest + 12
    slot = _THICKNESS * len(plan.groups) + (32 if own_line else 12)
    top = plan.top + 4
    bottom = top + slot * len(plan.labels)
    written = [svg.text_width(plan.show(v)) for v in plan.covered if math.isfinite(v)]
    right = width - 10 - max(written, default=0.0)
    count = max(2, int((right - left) // 100))
    across = scale(plan.covered, left, right, log=plan.log, count=count)
    origin = plan.origin(across)
    parts = [svg.x_axis(across, top, bottom, plan.axis_label)]
    for i, label in enumerate(plan.labels):
        y = top + slot * i + 6
        if own_line:
            parts.append(svg.text(left, y + 13, label))
            y += 20
        else:
            middle = y + _THICKNESS * len(plan.groups) / 2
            parts.append(svg.text(left - 8, middle + 4, label, "end"))
        for n, group in enumerate(plan.groups):
            value, y_bar = group.value(i), y + _THICKNESS * n
            end = float(across(value))
            if not math.isfinite(end):
                parts.append(svg.text(origin + 6, y_bar + 14, "not measured", dim=True))
                continue
            box = (min(origin, end), y_bar + 1, abs(end - origin), _THICKNESS - 3)
            parts.append(_bar(box, plan.colors[n], plan.says(i, group)))
            parts.append(svg.text(max(origin, end) + 6, y_bar + 14, plan.show(value)))
    parts.append(svg.line(origin, top, origin, bottom, 0.6))
    return parts, round(bottom + (46 if plan.axis_label else 26))


def _standing(plan: _Plan, width: float, height: float) -> list[str]:
    top = plan.top + (26 if plan.axis_label else 8)
    bottom = height - 28
    count = max(3, int((bottom - top) // 48))
    up = scale(plan.covered, bottom, top + 12, log=plan.log, count=count)
    left = svg.y_labels_width(up)
    slot = (width - left - 8) / max(len(plan.labels), 1)
    thickness = min(56.0, slot * 0.8 / max(len(plan.groups), 1))
    origin = plan.origin(up)
    parts = [svg.text(0, plan.top + 13, plan.axis_label, dim=True)] * bool(plan.axis_label)
    parts.append(svg.y_axis(up, left, width - 8))
    for i, label in enumerate(plan.labels):
        middle = left + slot * (i + 0.5)
        parts.append(svg.text(middle, bottom + 18, label, "middle"))
        for n, group in enumerate(plan.groups):
            value, x = group.value(i), middle + thickness * (n - len(plan.groups) / 2)
            end = float(up(value))
            if not math.isfinite(end):
                parts.append(svg.text(x + thickness / 2, origin - 5, NONE, "middle", dim=True))
                continue
            box = (x + 1, min(origin, end), thickness - 2, abs(end - origin))
            parts.append(_bar(box, plan.colors[n], plan.says(i, group)))
            if svg.text_width(plan.show(value)) <= thickness + 6:
                above = min(origin, end) - 5
                parts.append(svg.text(x + thickness / 2, above, plan.show(value), "middle"))
    parts.append(svg.line(left, origin, width - 8, origin, 0.6))
    return parts


def _bar(box: tuple[float, float, float, float], color: str, says: str) -> str:
    x, y, width, height = box
    return (
        f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.5):.1f}" '
        f'height="{max(height, 1.5):.1f}" rx="3" style="color:{color}" fill="currentColor">'
        f"<title>{says}</title></rect>"
    )
