"""Pictures of coloured grids, words and arrows: composed once, drawn as SVG or as PNG.

A picture is put together from `cells`, `words` and `arrow`, side by side or one below the other.
Positions are pixels at scale 1, x to the right and y down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from worldloom.report import svg
from worldloom.suites.arc.types import PALETTE

if TYPE_CHECKING:
    from PIL.Image import Image

Tone = Literal["ink", "soft", "good", "bad"]
Segment = tuple[int, int, int, int]  # row, column, row, column
Stroke = tuple[str, Sequence[Segment], str, float]  # name, lines between cells, colour, thickness

LINES = "#555555"  # between cells: seen on black and on colours alike
TONES: dict[Tone, str] = {"ink": "#20242e", "soft": "#636a78", "good": "#1b7a3b", "bad": "#c0392b"}
_MARGIN = 16
_LINES_FROM = 5  # pixels: smaller cells are drawn without lines


def _tone(tone: Tone) -> str:
    return f"var(--{tone},{TONES[tone]})"  # lighter on a dark page


class Svg:
    """Draws as SVG. Ink is the page's own colour, so that it is light on a dark page."""

    def __init__(self):
        self.parts: list[str] = []

    def grid(self, x: float, y: float, grid: np.ndarray, cell: int, strokes: list[Stroke]) -> None:
        parts = []
        for color in np.unique(grid):
            squares = "".join(f"M{c} {r}h1v1h-1z" for r, c in np.argwhere(grid == color))
            parts.append(f'<path class="c{color}" fill="{PALETTE[color]}" d="{squares}"/>')
        for name, segments, ink, thick in strokes:
            path = "".join(f"M{c0} {r0}L{c1} {r1}" for r0, c0, r1, c1 in segments)
            parts.append(
                f'<path class="{name}" d="{path}" fill="none" stroke="{ink}" '
                f'stroke-width="{thick / cell:.4g}" stroke-linecap="square"/>'
            )
        place = f"translate({x:g} {y:g}) scale({cell})"
        self.parts.append(f'<g class="arc-grid" transform="{place}">{"".join(parts)}</g>')

    def text(self, x: float, y: float, text: str, size: float, tone: Tone) -> None:
        look = {"ink": "", "soft": ' opacity=".68"'}.get(tone, f' fill="{_tone(tone)}"')
        if size != svg.TEXT_SIZE:
            look += f' font-size="{size:g}" font-weight="600"'
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{look}>{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(
            f'<path d="M{path}" fill="none" stroke="currentColor" stroke-width="1.8" '
            'stroke-linecap="round" stroke-linejoin="round" opacity=".6"/>'
        )

    def frame(self, x: float, y: float, width: float, height: float, tone: Tone | None) -> None:
        ink, thick = ("currentColor", 1) if tone in (None, "soft") else (_tone(tone), 2.5)
        dashes = ' stroke-dasharray="4 4" opacity=".6"' if tone is None else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="none" '
            f'stroke="{ink}" stroke-width="{thick:g}"{dashes}/>'
        )


class Png:
    """Draws with Pillow, `scale` pixels for each of the SVG's."""

    def __init__(self, canvas: Any, scale: int):
        self.canvas, self.scale = canvas, scale

    def grid(self, x: float, y: float, grid: np.ndarray, cell: int, strokes: list[Stroke]) -> None:
        step, left, top = cell * self.scale, round(x * self.scale), round(y * self.scale)
        for (r, c), color in np.ndenumerate(grid):
            corner = (left + c * step, top + r * step)
            box = (*corner, corner[0] + step - 1, corner[1] + step - 1)
            self.canvas.rectangle(box, PALETTE[color])
        for _, segments, ink, thick in strokes:
            wide = max(1, round(thick * self.scale))
            before = wide // 2
            for r0, c0, r1, c1 in segments:
                start = (left + c0 * step - before, top + r0 * step - before)
                end = (left + c1 * step - before + wide - 1, top + r1 * step - before + wide - 1)
                self.canvas.rectangle((*start, *end), ink)

    def text(self, x: float, y: float, text: str, size: float, tone: Tone) -> None:
        from PIL import ImageFont

        font = ImageFont.load_default(size * self.scale)
        self.canvas.text((x * self.scale, y * self.scale), text, TONES[tone], font, anchor="ls")

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        scaled = [(x * self.scale, y * self.scale) for x, y in points]
        self.canvas.line(scaled, TONES["soft"], round(1.8 * self.scale), joint="curve")

    def frame(self, x: float, y: float, width: float, height: float, tone: Tone | None) -> None:
        box = [round(self.scale * corner) for corner in (x, y, x + width, y + height)]
        thick = self.scale if tone in (None, "soft") else round(2.5 * self.scale)
        ink = "#c4c8d0" if tone is None else TONES[tone]
        self.canvas.rounded_rectangle(box, 3 * self.scale, outline=ink, width=thick)


@dataclass(frozen=True, eq=False)
class Picture:
    """A rectangle of pixels, and how it is drawn with its corner at (x, y)."""

    width: float
    height: float
    draw: Callable[[Svg | Png, float, float], None]

    def svg(self, title: str, margin: int = _MARGIN) -> str:
        """A whole SVG document; text takes the colour of the page it stands in."""
        surface = Svg()
        self.draw(surface, margin, margin)
        return svg.chart(surface.parts, self.width + 2 * margin, self.height + 2 * margin, title)

    def png(self, scale: int = 2) -> "Image":
        """A picture on white paper, `scale` pixels for each of the SVG's."""
        from PIL import Image, ImageDraw

        if scale < 1:
            raise ValueError(f"arc picture: scale={scale}; it must be 1 or more")
        width, height = (round((x + 2 * _MARGIN) * scale) for x in (self.width, self.height))
        image = Image.new("RGB", (width, height), "#ffffff")
        self.draw(Png(ImageDraw.Draw(image), scale), _MARGIN, _MARGIN)
        return image


def cells(grid: np.ndarray, cell: int, selected: np.ndarray | None = None) -> Picture:
    """A grid (h, w) of colours 0 to 9, each cell `cell` pixels wide.

    The cells of the mask `selected` (H, W) are outlined; where they reach beyond the grid they get
    the room they need.
    """
    grid = np.asarray(grid)
    if grid.ndim != 2 or grid.size == 0 or grid.min() < 0 or grid.max() >= len(PALETTE):
        raise ValueError(
            f"arc picture: a grid must be (h, w) of colours 0 to 9, not of shape {grid.shape} "
            f"with values {np.unique(grid)[:12].tolist()}"
        )
    height, width = grid.shape
    strokes: list[Stroke] = []
    if cell >= _LINES_FROM:
        rules = [(r, 0, r, width) for r in range(height + 1)]
        rules += [(0, c, height, c) for c in range(width + 1)]
        strokes.append(("lines", rules, LINES, max(0.04 * cell, 0.7)))
    if selected is not None and selected.any():
        outline = borders(selected)
        strokes += [("selected", outline, "#10131a", 3.8), ("selected", outline, "#fff", 1.9)]
        height, width = np.maximum(grid.shape, np.argwhere(selected).max(axis=0) + 1).tolist()
    return Picture(
        width * cell, height * cell, lambda surface, x, y: surface.grid(x, y, grid, cell, strokes)
    )


def borders(mask: np.ndarray) -> list[Segment]:
    """The lines around the cells of a mask (H, W), each as long as it can be."""
    lines = []
    inside = np.pad(np.asarray(mask, bool), 1)
    for turned in (False, True):
        cells = inside.T if turned else inside
        edge = cells[1:, 1:-1] != cells[:-1, 1:-1]  # between one row and the next
        for row, line in enumerate(edge):
            steps = np.flatnonzero(np.diff(np.pad(line.astype(np.int8), 1)))
            for start, end in steps.reshape(-1, 2).tolist():
                lines.append((start, row, end, row) if turned else (row, start, row, end))
    return lines


def words(text: str, size: float = svg.TEXT_SIZE, tone: Tone = "ink") -> Picture:
    """A line of text."""
    width = svg.text_width(text) * size / svg.TEXT_SIZE
    return Picture(
        width,
        round(size * 1.35),
        lambda surface, x, y: surface.text(x, y + round(size), text, size, tone),
    )


def arrow(length: float = 22) -> Picture:
    """An arrow to the right."""

    def draw(surface: Svg | Png, x: float, y: float) -> None:
        tip = (x + length, y + 5)
        surface.line([(x, y + 5), tip])
        surface.line([(x + length - 6, y), tip, (x + length - 6, y + 10)])

    return Picture(length, 10, draw)


def framed(picture: Picture, tone: Tone | None, gap: float = 4) -> Picture:
    """A picture with a border around it; dashed, for what is not there, without a tone."""
    width, height = picture.width + 2 * gap, picture.height + 2 * gap

    def draw(surface: Svg | Png, x: float, y: float) -> None:
        surface.frame(x, y, width, height, tone)
        picture.draw(surface, x + gap, y + gap)

    return Picture(width, height, draw)


def beside(pictures: Sequence[Picture], gap: float, middle: bool = False) -> Picture:
    """Pictures from left to right, with their tops or their middles in line."""
    height = max(picture.height for picture in pictures)

    def draw(surface: Svg | Png, x: float, y: float) -> None:
        for picture in pictures:
            down = round((height - picture.height) / 2) if middle else 0
            picture.draw(surface, x, y + down)
            x += picture.width + gap

    return Picture(sum(p.width for p in pictures) + gap * (len(pictures) - 1), height, draw)


def below(pictures: Sequence[Picture], gap: float) -> Picture:
    """Pictures from top to bottom, with their left edges in line."""

    def draw(surface: Svg | Png, x: float, y: float) -> None:
        for picture in pictures:
            picture.draw(surface, x, y)
            y += picture.height + gap

    height = sum(picture.height for picture in pictures) + gap * (len(pictures) - 1)
    return Picture(max(picture.width for picture in pictures), height, draw)


def flow(pictures: Sequence[Picture], width: float, gap: float, row_gap: float) -> Picture:
    """Pictures in rows of at most `width`, as words in a paragraph."""
    rows: list[list[Picture]] = []
    used = 0.0
    for picture in pictures:
        if not rows or used + gap + picture.width > width:
            rows.append([])
            used = -gap
        rows[-1].append(picture)
        used += gap + picture.width
    return below([beside(row, gap) for row in rows], row_gap)
