"""A pen for small pictures: draws large and scales down, which smooths the edges."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

Ink = tuple[int, ...]
_SUPERSAMPLING = 8


class Pen:
    """Draws filled shapes on a unit square, x to the right and y down.

    Colours are (red, green, blue) or, translucent, (red, green, blue, alpha).
    """

    def __init__(self, tile: int, supersampling: int = _SUPERSAMPLING):
        from PIL import Image

        self.tile = tile
        self.side = tile * supersampling
        self.image = Image.new("RGBA", (self.side, self.side))

    def _paint(self, fill: Ink, draw: Callable[[Any, Ink], None]) -> None:
        from PIL import Image, ImageDraw

        if len(fill) == 3 or fill[3] == 255:
            return draw(ImageDraw.Draw(self.image), fill)
        # Pillow's shapes overwrite; what is translucent must be laid over instead.
        sheet = Image.new("RGBA", self.image.size)
        draw(ImageDraw.Draw(sheet), fill)
        self.image.alpha_composite(sheet)

    def _at(self, *numbers: float) -> list[float]:
        return [number * self.side for number in numbers]

    def disc(self, x: float, y: float, rx: float, fill: Ink, ry: float | None = None) -> None:
        box = self._at(x - rx, y - (ry or rx), x + rx, y + (ry or rx))
        self._paint(fill, lambda draw, ink: draw.ellipse(box, ink))

    def box(
        self, left: float, top: float, right: float, bottom: float, fill: Ink, r: float = 0
    ) -> None:
        edges = self._at(left, top, right, bottom)
        radius = r * self.side
        self._paint(fill, lambda draw, ink: draw.rounded_rectangle(edges, radius, ink))

    def shape(self, points: list[tuple[float, float]], fill: Ink) -> None:
        corners = [tuple(self._at(*point)) for point in points]
        self._paint(fill, lambda draw, ink: draw.polygon(corners, ink))

    def arc(
        self, x: float, y: float, r: float, start: int, end: int, fill: Ink, width: float = 0.05
    ) -> None:
        """A part of a circle; degrees run clockwise from the right."""
        box = self._at(x - r, y - r, x + r, y + r)
        wide = round(width * self.side)
        self._paint(fill, lambda draw, ink: draw.arc(box, start, end, ink, wide))

    def line(self, points: list[tuple[float, float]], fill: Ink, width: float) -> None:
        """A line with round ends and joints."""
        for (x0, y0), (x1, y1) in pairwise(points):
            ends, wide = self._at(x0, y0, x1, y1), round(width * self.side)
            self._paint(fill, lambda draw, ink, e=ends, w=wide: draw.line(e, ink, w))
        for x, y in points:
            self.disc(x, y, width / 2, fill)

    def text(
        self, text: str, x: float, y: float, size: float, fill: Ink, anchor: str = "mm"
    ) -> None:
        """anchor: as Pillow's; "mm" is the middle, "ls" the left end of the base line."""
        from PIL import ImageFont

        font = ImageFont.load_default(size * self.side)
        place = tuple(self._at(x, y))
        self._paint(fill, lambda draw, ink: draw.text(place, text, ink, font, anchor=anchor))

    def finish(self) -> np.ndarray:
        """The sprite (tile, tile, 4) uint8."""
        from PIL import Image

        small = self.image.resize((self.tile, self.tile), Image.Resampling.BOX)
        pixels = np.array(small)
        pixels.setflags(write=False)
        return pixels
