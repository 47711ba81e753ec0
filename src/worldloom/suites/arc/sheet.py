"""Sheets of coloured grids, words and arrows: composed once, drawn as SVG or as PNG.

A sheet is put together from **blocks** (`cells`, `words`, `arrow`), side by side or one below
the other. Positions are pixels at scale 1, x to the right and y down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from worldloom.report import svg
from worldloom.report.colors import RGB, rgb
from worldloom.suites.arc import types

if TYPE_CHECKING:
    from PIL.Image import Image

Tone = Literal["ink", "soft", "good", "bad"]
Align = Literal["start", "middle"]

PALETTE: tuple[str, ...] = tuple(f"#{r:02x}{g:02x}{b:02x}" for r, g, b in types.PALETTE)
COLOR_NAMES = (
    "black",
    "blue",
    "red",
    "green",
    "yellow",
    "grey",
    "magenta",
    "orange",
    "sky",
    "maroon",
)
LINES = "#555555"  # between cells: seen on black and on colours alike
PAPER: RGB = (255, 255, 255)
TONES: dict[Tone, RGB] = {  # the last two are read on light and on dark pages
    "ink": (32, 36, 46),
    "soft": (99, 106, 120),
    "good": (35, 150, 74),
    "bad": (217, 72, 59),
}
_MARGIN = 16
_LINES_FROM = 5  # pixels: smaller cells are drawn without lines


# What is drawn -----------------------------------------------------------------------------------


class Mark(Protocol):
    """Something drawn with its corner at (x, y)."""

    @property
    def x(self) -> float: ...
    @property
    def y(self) -> float: ...
    def svg(self) -> str: ...
    def paint(self, canvas: Any, scale: int) -> None:
        """Draws with an ImageDraw in which a pixel is 1 / scale wide."""
        ...


@dataclass(frozen=True, eq=False)
class Cells:
    """A grid (h, w) of colours 0 to 9; `selected` (H, W) is outlined and may be larger."""

    x: float
    y: float
    grid: np.ndarray
    cell: int
    selected: np.ndarray | None = None

    def svg(self) -> str:
        height, width = self.grid.shape
        parts = []
        for color in np.unique(self.grid):
            squares = "".join(f"M{c} {r}h1v1h-1z" for r, c in np.argwhere(self.grid == color))
            parts.append(f'<path class="c{color}" fill="{PALETTE[color]}" d="{squares}"/>')
        if self.cell >= _LINES_FROM:
            rules = "".join(f"M0 {r}H{width}" for r in range(height + 1))
            rules += "".join(f"M{c} 0V{height}" for c in range(width + 1))
            parts.append(_stroke("lines", rules, LINES, max(0.04, 0.7 / self.cell)))
        if self.selected is not None:
            path = "".join(f"M{c0} {r0}L{c1} {r1}" for r0, c0, r1, c1 in borders(self.selected))
            parts.append(_stroke("selected", path, "#10131a", 3.8 / self.cell))
            parts.append(_stroke("selected", path, "#fff", 1.9 / self.cell))
        place = f"translate({self.x:g} {self.y:g}) scale({self.cell})"
        return f'<g class="arc-grid" transform="{place}">{"".join(parts)}</g>'

    def paint(self, canvas: Any, scale: int) -> None:
        step, left, top = self.cell * scale, round(self.x * scale), round(self.y * scale)
        height, width = self.grid.shape
        for (r, c), color in np.ndenumerate(self.grid):
            corner = (left + c * step, top + r * step)
            canvas.rectangle((*corner, corner[0] + step - 1, corner[1] + step - 1), PALETTE[color])
        if self.cell >= _LINES_FROM:
            thick = max(1, round(scale * max(0.04 * self.cell, 0.7)))
            for r in range(height + 1):
                ends = (left, top + r * step, left + width * step, top + r * step)
                canvas.line(ends, LINES, thick)
            for c in range(width + 1):
                ends = (left + c * step, top, left + c * step, top + height * step)
                canvas.line(ends, LINES, thick)
        if self.selected is not None:
            for ink, thick in ((TONES["ink"], 3.8), (PAPER, 1.9)):
                half = thick * scale / 2
                for r0, c0, r1, c1 in borders(self.selected):
                    box = (left + c0 * step, top + r0 * step, left + c1 * step, top + r1 * step)
                    grown = (box[0] - half, box[1] - half, box[2] + half - 1, box[3] + half - 1)
                    canvas.rectangle(grown, ink)


@dataclass(frozen=True)
class Words:
    """A line of text on the baseline y."""

    x: float
    y: float
    text: str
    size: float = svg.TEXT_SIZE
    tone: Tone = "ink"

    def svg(self) -> str:
        # Ink is the page's own, so that it is light on a dark page.
        look = {"ink": "", "soft": ' opacity=".68"'}.get(self.tone)
        if look is None:
            look = ' fill="#{:02x}{:02x}{:02x}"'.format(*TONES[self.tone])
        if self.size != svg.TEXT_SIZE:
            look += f' font-size="{self.size:g}" font-weight="600"'
        return f'<text x="{self.x:g}" y="{self.y:g}"{look}>{escape(self.text)}</text>'

    def paint(self, canvas: Any, scale: int) -> None:
        from PIL import ImageFont

        font = ImageFont.load_default(self.size * scale)
        place = (self.x * scale, self.y * scale)
        canvas.text(place, self.text, TONES[self.tone], font, anchor="ls")


@dataclass(frozen=True)
class Arrow:
    """From (x, y) to the right."""

    x: float
    y: float
    length: float = 22

    def svg(self) -> str:
        tip = self.x + self.length
        path = f"M{self.x:g} {self.y:g}H{tip:g}M{tip - 6:g} {self.y - 5:g}l6 5l-6 5"
        return (
            f'<path class="arrow" d="{path}" fill="none" stroke="currentColor" '
            'stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" opacity=".6"/>'
        )

    def paint(self, canvas: Any, scale: int) -> None:
        tip, y, thick = (self.x + self.length) * scale, self.y * scale, round(1.8 * scale)
        canvas.line((self.x * scale, y, tip, y), TONES["soft"], thick)
        wing = [(tip - 6 * scale, y + side * 5 * scale) for side in (-1, 1)]
        canvas.line([wing[0], (tip, y), wing[1]], TONES["soft"], thick, joint="curve")


@dataclass(frozen=True)
class Frame:
    """A rectangle's border, with a fill if one is given; dashed for what is not there."""

    x: float
    y: float
    width: float
    height: float
    tone: Tone = "soft"
    fill: str = ""
    dashed: bool = False

    def svg(self) -> str:
        ink = "currentColor" if self.tone in ("ink", "soft") else _hex(TONES[self.tone])
        look = ' stroke-dasharray="4 4" opacity=".6"' if self.dashed else ""
        return (
            f'<rect x="{self.x:g}" y="{self.y:g}" width="{self.width:g}" height="{self.height:g}" '
            f'rx="3" fill="{self.fill or "none"}" stroke="{ink}" '
            f'stroke-width="{_thickness(self.tone):g}"{look}/>'
        )

    def paint(self, canvas: Any, scale: int) -> None:
        corners = (self.x, self.y, self.x + self.width, self.y + self.height)
        box = tuple(round(scale * corner) for corner in corners)
        thick = max(1, round(_thickness(self.tone) * scale))
        fill = rgb(self.fill) if self.fill else None
        ink = (196, 200, 208) if self.dashed else TONES[self.tone]
        canvas.rounded_rectangle(box, 3 * scale, fill, ink, thick)


def borders(mask: np.ndarray) -> list[tuple[int, int, int, int]]:
    """The lines around the cells of a mask (H, W): (row, column, row, column), each as long as
    it can be."""
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


def _stroke(name: str, path: str, ink: str, width: float) -> str:
    return (
        f'<path class="{name}" d="{path}" fill="none" stroke="{ink}" '
        f'stroke-width="{width:.4g}" stroke-linecap="square"/>'
    )


def _thickness(tone: Tone) -> float:
    return 1 if tone in ("ink", "soft") else 2.5


def _hex(color: RGB) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


# Blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Block:
    """Marks within a rectangle whose corner is (0, 0)."""

    width: float
    height: float
    marks: tuple[Mark, ...] = ()

    def moved(self, x: float, y: float) -> tuple[Mark, ...]:
        return tuple(replace(mark, x=mark.x + x, y=mark.y + y) for mark in self.marks)  # pyright: ignore[reportArgumentType]


def cells(grid: np.ndarray, cell: int, selected: np.ndarray | None = None) -> Block:
    """A grid; a selection that reaches beyond it gets the room it needs."""
    grid = np.asarray(grid)
    if grid.ndim != 2 or grid.size == 0 or grid.min() < 0 or grid.max() >= len(PALETTE):
        raise ValueError(
            f"arc picture: a grid must be (h, w) of colours 0 to 9, not of shape {grid.shape} "
            f"with values {np.unique(grid)[:12].tolist()}"
        )
    height, width = grid.shape
    if selected is not None:
        rows, columns = np.nonzero(selected)
        height = max([height, *(rows + 1).tolist()])
        width = max([width, *(columns + 1).tolist()])
    return Block(width * cell, height * cell, (Cells(0, 0, grid, cell, selected),))


def words(text: str, size: float = svg.TEXT_SIZE, tone: Tone = "ink") -> Block:
    width = svg.text_width(text) * size / svg.TEXT_SIZE
    return Block(width, round(size * 1.35), (Words(0, round(size), text, size, tone),))


def arrow(length: float = 22) -> Block:
    return Block(length, 10, (Arrow(0, 5, length),))


def framed(block: Block, tone: Tone, gap: float = 4) -> Block:
    """A block with a border of some tone around it."""
    width, height = block.width + 2 * gap, block.height + 2 * gap
    return Block(width, height, (Frame(0, 0, width, height, tone), *block.moved(gap, gap)))


def padded(block: Block, width: float, height: float) -> Block:
    """A block with room to the right and below, up to the given size."""
    return Block(max(block.width, width), max(block.height, height), block.marks)


def beside(blocks: Sequence[Block], gap: float, align: Align = "start") -> Block:
    """Blocks from left to right."""
    height = max((block.height for block in blocks), default=0)
    x, marks = 0.0, []
    for block in blocks:
        y = 0 if align == "start" else round((height - block.height) / 2)
        marks += block.moved(x, y)
        x += block.width + gap
    return Block(max(0, x - gap), height, tuple(marks))


def below(blocks: Sequence[Block], gap: float) -> Block:
    """Blocks from top to bottom, with their left edges in line."""
    y, marks = 0.0, []
    for block in blocks:
        marks += block.moved(0, y)
        y += block.height + gap
    return Block(max((b.width for b in blocks), default=0), max(0, y - gap), tuple(marks))


def flow(blocks: Sequence[Block], width: float, gap: float, row_gap: float) -> Block:
    """Blocks in rows of at most `width`, as words in a paragraph."""
    rows: list[list[Block]] = []
    used = 0.0
    for block in blocks:
        if not rows or used + gap + block.width > width:
            rows.append([])
            used = -gap
        rows[-1].append(block)
        used += gap + block.width
    return below([beside(row, gap) for row in rows], row_gap)


# Files -------------------------------------------------------------------------------------------


def to_svg(block: Block, title: str) -> str:
    """A whole SVG document; text takes the colour of the page it stands in."""
    marks = block.moved(_MARGIN, _MARGIN)
    parts = [mark.svg() for mark in marks]
    return svg.chart(parts, block.width + 2 * _MARGIN, block.height + 2 * _MARGIN, title)


def to_png(block: Block, scale: int = 2) -> "Image":
    """A picture on white paper, `scale` pixels for each of the SVG's."""
    from PIL import Image, ImageDraw

    if scale < 1:
        raise ValueError(f"arc picture: scale={scale}; it must be 1 or more")
    size = [round((side + 2 * _MARGIN) * scale) for side in (block.width, block.height)]
    image = Image.new("RGB", (size[0], size[1]), PAPER)
    canvas = ImageDraw.Draw(image)
    for mark in block.moved(_MARGIN, _MARGIN):
        mark.paint(canvas, scale)
    return image
