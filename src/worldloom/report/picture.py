"""Line charts as pictures that stand alone: SVG text, or PNG by Pillow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from worldloom.core.files import write_bytes
from worldloom.core.names import shown, suggest
from worldloom.report import svg
from worldloom.report.axes import Scale, number, scale, tick_labels
from worldloom.report.canvas import Pen
from worldloom.report.colors import PALETTE, rgb
from worldloom.report.plots import Series, line_chart
from worldloom.report.run_page import LABELS, OVER, learning_chart, thin
from worldloom.report.runs import Run, is_number, read_run

INK, SOFT, PAPER = "#20242e", "#5d6472", "#ffffff"
_NAMED = {"--ink": INK, "--soft": SOFT} | {f"--wl-{i + 1}": c for i, c in enumerate(PALETTE)}
_EDGE = 12.0  # pixels around a chart
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Mark:
    """A line, an area, a dot or a text, in pixels."""

    kind: str  # "line", "area", "dot" or "text"
    points: Points
    color: str = INK
    opacity: float = 1.0
    size: float = 1.0  # width of a line, radius of a dot
    text: str = ""
    anchor: str = "start"  # of a text: where its point is


@dataclass(frozen=True)
class Picture:
    """A chart. A notebook shows it; `save` writes it as an .svg or .png file."""

    title: str
    width: int
    height: int
    marks: tuple[Mark, ...] = field(repr=False)

    @property
    def svg(self) -> str:
        """The picture as the text of an SVG file, on white paper."""
        sheet = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            f'aria-label="{escape(self.title)}" font-family="{svg.FONT}" '
            f'font-size="{svg.TEXT_SIZE}">{sheet}{"".join(map(_svg, self.marks))}</svg>'
        )

    def _repr_svg_(self) -> str:
        return self.svg

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file, twice as fine as it is wide."""
        from PIL import Image

        side = 2 * max(self.width, self.height)
        pen, unit = Pen(side, supersampling=2), max(self.width, self.height)
        pen.box(0, 0, 1, 1, (255, 255, 255))
        for mark in self.marks:
            _paint(pen, mark, unit)
        file = BytesIO()
        sheet = pen.finish()[: 2 * self.height, : 2 * self.width, :3]
        Image.fromarray(sheet).save(file, "PNG")
        return file.getvalue()

    def save(self, path: str | Path) -> Path:
        """Writes the picture, as what the path ends in: .svg or .png; its path."""
        path = Path(path)
        kinds = {".svg": lambda: self.svg.encode(), ".png": self.png}
        if path.suffix not in kinds:
            raise ValueError(f"{path}: a picture is saved as .svg or .png")
        write_bytes(path, kinds[path.suffix]())
        return path


def plot(
    folder: str | Path, metric: str | None = None, over: str = "steps", unit: str = "steps"
) -> Picture:
    """The learning curve of a run, or one of the metrics that it wrote, as a picture.

    over: "steps" or "seconds". unit: what a step is called.
    """
    run = read_run(folder)
    if over not in OVER:
        raise ValueError(f"over={shown(over)}: curves are drawn over steps or over seconds")
    chart = (
        learning_chart(run, over, unit=unit) if metric is None else _metric(run, metric, over, unit)
    )
    if chart is None:
        raise ValueError(f"{folder} has no curve yet: nothing was learned or evaluated")
    return picture(chart)


def _metric(run: Run, metric: str, over: str, unit: str) -> dict[str, Any]:
    """A chart of one column of metrics.jsonl, with a line for each agent where it has several."""
    values = run.column(metric)
    if not any(value is not None for value in values):
        written = dict.fromkeys(name for row in run.metrics for name in row)
        raise ValueError(f"{run.path} has no metric {shown(metric)}; {suggest(metric, written)}")
    several = max((len(v) for v in values if isinstance(v, list)), default=0)
    x, lines = run.column(over), []
    for i in range(several or 1):
        own = [v[i] if isinstance(v, list) and i < len(v) else v for v in values]
        own = [v if is_number(v) else None for v in own]
        lines.append(Series(f"agent {i}" if several else metric, *thin(x, own)))
    label = LABELS.get(metric, metric.replace("_", " "))
    return line_chart(lines, OVER[over] or unit, label, title=label)


def picture(chart: dict[str, Any], width: int = 720) -> Picture:
    """A picture of what `plots.line_chart` gave."""
    spec, (log_x, log_y) = chart["spec"], chart["spec"]["log"]
    ticks = scale(spec["range"], 0.0, 1.0, log=log_y).ticks
    left = _EDGE + 10 + max(map(svg.text_width, tick_labels(ticks)))
    right = width - _EDGE - 18  # the last label reaches beyond it
    legend = list(_legend(spec["series"], _EDGE, width - _EDGE))
    top = max((mark.points[0][1] for mark in legend), default=_EDGE) + 34
    height = round(top + spec["height"])
    up = scale(spec["range"], height - _EDGE - 40, top, log=log_y)
    across = scale((v for line in spec["series"] for v in line["x"]), left, right, log=log_x)
    marks = [*legend, *_axes(across, up, spec), *_references(spec, across, up)]
    for line in spec["series"]:
        marks += _line(line, across, up)
    return Picture(chart["title"], width, height, tuple(marks))


def _legend(lines: Sequence[dict[str, Any]], left: float, right: float) -> Iterator[Mark]:
    x, y = left, _EDGE + 10
    for line in lines if len(lines) > 1 else ():
        needs = 17 + svg.text_width(line["name"]) + 18
        if x > left and x + needs > right:
            x, y = left, y + 20
        yield Mark("text", [(x + 17, y)], text=line["name"])
        yield Mark("dot", [(x + 6, y - 4)], _hex(line["color"]), size=5)
        x += needs


def _axes(across: Scale, up: Scale, spec: dict[str, Any]) -> Iterator[Mark]:
    for value, words in zip(up.ticks, tick_labels(up.ticks), strict=True):
        y = float(up(value))
        yield Mark("line", [(across.start, y), (across.end, y)], opacity=0.14)
        yield Mark("text", [(across.start - 8, y + 4)], SOFT, text=words, anchor="end")
    for value, words in zip(across.ticks, tick_labels(across.ticks), strict=True):
        x = float(across(value))
        yield Mark("line", [(x, up.end), (x, up.start)], opacity=0.14)
        yield Mark("text", [(x, up.start + 17)], SOFT, text=words, anchor="middle")
    middle = (across.start + across.end) / 2
    yield Mark("text", [(middle, up.start + 36)], SOFT, text=spec["x_label"], anchor="middle")
    yield Mark("text", [(_EDGE, up.end - 14)], SOFT, text=spec["y_label"])


def _references(spec: dict[str, Any], across: Scale, up: Scale) -> Iterator[Mark]:
    for name, at in spec["references"]:
        y = float(up(at))
        for n in range(0, int(across.end - across.start), 9):  # dashes
            ends = [(across.start + n, y), (min(across.start + n + 5, across.end), y)]
            yield Mark("line", ends, opacity=0.7)
        said = f"{name} {number(at)}"
        yield Mark("text", [(across.end, y - 5)], SOFT, text=said, anchor="end")


def _line(line: dict[str, Any], across: Scale, up: Scale) -> Iterator[Mark]:
    ink, xs = _hex(line["color"]), across(line["x"])
    low, high = line["low"], line["high"]
    if low and high and not line["dots"]:
        known = [i for i in range(len(xs)) if low[i] is not None and high[i] is not None]
        there = [(float(xs[i]), float(up(high[i]))) for i in known]
        back = [(float(xs[i]), float(up(low[i]))) for i in reversed(known)]
        yield Mark("area", [*there, *back], ink, 0.16)
    piece: list[tuple[float, float]] = []
    for x, y in [*zip(xs, line["y"], strict=True), (0.0, None)]:
        if y is not None:
            piece.append((float(x), float(up(y))))
        elif piece:  # a gap
            yield Mark(
                "line", piece, ink, 0.5 if line["faint"] else 1.0, 1.4 if line["faint"] else 2
            )
            piece = []
    for i, y in enumerate(line["y"] if line["dots"] else ()):
        if y is not None:
            if low and high and low[i] is not None and high[i] is not None:
                ends = [(float(xs[i]), float(up(v))) for v in (low[i], high[i])]
                yield Mark("line", ends, ink, size=1.4)
            yield Mark("dot", [(float(xs[i]), float(up(y)))], ink, size=3)


def _hex(color: str) -> str:
    return _NAMED.get(color, color)


def _svg(mark: Mark) -> str:
    faded = f' opacity="{mark.opacity:g}"' if mark.opacity < 1 else ""
    (x, y), *_ = mark.points or [(0.0, 0.0)]
    if mark.kind == "text":
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{mark.anchor}"'
        return f'<text {place} fill="{mark.color}"{faded}>{escape(mark.text)}</text>'
    if mark.kind == "dot":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{mark.size:g}" fill="{mark.color}"{faded}/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in mark.points)
    if mark.kind == "area":
        return f'<polygon points="{path}" fill="{mark.color}"{faded}/>'
    stroke = f'stroke="{mark.color}" stroke-width="{mark.size:g}" stroke-linejoin="round"'
    return f'<polyline points="{path}" fill="none" {stroke}{faded}/>'


def _paint(pen: Pen, mark: Mark, unit: float) -> None:
    places = [(x / unit, y / unit) for x, y in mark.points]
    ink = (*rgb(mark.color), round(255 * mark.opacity))
    if mark.kind == "text":
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[mark.anchor]
        pen.text(mark.text, *places[0], svg.TEXT_SIZE / unit, ink, anchor)
    elif mark.kind == "dot":
        pen.disc(*places[0], mark.size / unit, ink)
    elif mark.kind == "area" and len(places) > 2:
        pen.shape(places, ink)
    elif mark.kind == "line":
        opaque = ink if mark.opacity == 1 else _on_paper(ink)
        for a, b in pairwise(places):
            pen.line([a, b], opaque, mark.size / unit)


def _on_paper(ink: tuple[int, ...]) -> tuple[int, ...]:
    """A translucent colour as it looks on white: lines are many, and sheets for each are slow."""
    share = ink[3] / 255
    return tuple(round(255 + (part - 255) * share) for part in ink[:3])
