"""Sprites, drawn here from shapes: one small function for each known kind of thing.

Each painter draws on a unit square, in the colour its world gives the kind. Finished sprites are
cached.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from worldloom.report.canvas import Pen
from worldloom.report.colors import RGB, darker, lighter, mix, rgb, series_color

INK: RGB = (34, 30, 56)
WHITE: RGB = (255, 255, 255)
SHADOW = (*INK, 70)
TEXTURES = 4  # versions of a floor tile, so that a field does not look stamped
OPEN_BELOW, OPEN_ABOVE, OPEN_LEFT, OPEN_RIGHT = 1, 2, 4, 8  # where a block of wall ends
STILL, UP, DOWN, LEFT, RIGHT = range(5)  # where an agent looks
_GAZE = ((0.0, 0.02), (0.0, -0.06), (0.0, 0.07), (-0.06, 0.0), (0.06, 0.0))


# Floors ----------------------------------------------------------------------------------------

_SPECKS = (  # one constellation for each texture
    ((0.22, 0.30), (0.68, 0.18), (0.80, 0.70), (0.35, 0.82)),
    ((0.15, 0.62), (0.52, 0.40), (0.86, 0.28)),
    ((0.30, 0.15), (0.60, 0.66), (0.90, 0.88), (0.12, 0.90)),
    ((0.45, 0.24), (0.75, 0.50), (0.20, 0.50)),
)


def _ground(pen: Pen, color: RGB) -> None:
    pen.box(-1, -1, 2, 2, color)


def _sand(pen: Pen, color: RGB, variant: int) -> None:
    base = lighter(color, 0.06 if variant % 2 else 0.0)
    _ground(pen, base)
    for n, (x, y) in enumerate(_SPECKS[variant % TEXTURES]):
        pen.disc(x, y, 0.035, darker(base, 0.16) if n % 2 else lighter(base, 0.45), 0.028)


def _grass(pen: Pen, color: RGB, variant: int) -> None:
    base = lighter(color, 0.07 if variant % 2 else 0.0)
    _ground(pen, base)
    for x, y in _SPECKS[variant % TEXTURES][:3]:
        blade = darker(base, 0.22)
        pen.line([(x - 0.06, y - 0.08), (x, y + 0.04)], blade, 0.035)
        pen.line([(x + 0.06, y - 0.10), (x, y + 0.04)], lighter(base, 0.25), 0.035)


def _water(pen: Pen, color: RGB, variant: int) -> None:
    _ground(pen, color)
    for x, y in _SPECKS[variant % TEXTURES][:2]:
        pen.arc(x - 0.07, y, 0.09, 20, 160, lighter(color, 0.45), 0.04)
        pen.arc(x + 0.10, y, 0.09, 20, 160, lighter(color, 0.45), 0.04)


def _soil(pen: Pen, color: RGB, variant: int) -> None:
    _ground(pen, color)
    for x, y in _SPECKS[variant % TEXTURES]:
        pen.disc(x, y, 0.05, darker(color, 0.25), 0.035)


def _wall(pen: Pen, color: RGB, variant: int) -> None:
    """A block of stone seen from above, its rim lit, its brick front showing where it ends."""
    texture, sides = variant % TEXTURES, variant // TEXTURES
    top = lighter(color, 0.14)
    _ground(pen, top)
    for x, y in _SPECKS[texture][:3]:
        pen.disc(x, y, 0.05, lighter(top, 0.10), 0.035)
    rim = lighter(top, 0.26)
    edges = ((OPEN_LEFT, 0, 0.07, 1), (OPEN_RIGHT, 0.93, 1, 1), (OPEN_ABOVE, 0, 1, 0.07))
    for side, left, right, bottom in edges:
        if sides & side:
            pen.box(left, 0, right, bottom, rim)
    if sides & OPEN_BELOW:
        pen.box(0, 0.50, 1, 1, darker(color, 0.62))
        pen.box(0, 0.46, 1, 0.53, rim)
        for row, starts in enumerate(((0.0, 0.50), (-0.25, 0.25, 0.75))):
            y = 0.555 + 0.215 * row
            for n, x in enumerate(starts):
                brick = darker(color, 0.14 + 0.07 * ((n + row) % 2))
                pen.box(x + 0.025, y, x + 0.475, y + 0.18, brick, 0.04)
        pen.box(0, 0.97, 1, 1, darker(color, 0.75))


# Things ----------------------------------------------------------------------------------------


def _outlined(
    pen: Pen, discs: Sequence[tuple[float, ...]], fill: RGB, edge: RGB, grow: float
) -> None:
    """Discs (x, y, rx) or (x, y, rx, ry) over the same ones grown, in the colour of the edge."""
    for more, ink in ((grow, edge), (0.0, fill)):
        for x, y, rx, *ry in discs:
            pen.disc(x, y, rx + more, ink, *(r + more for r in ry))


def _gem(pen: Pen, color: RGB, variant: int) -> None:
    left, right, top, girdle, tip = 0.17, 0.83, 0.20, 0.42, 0.86
    pen.disc(0.5, 0.86, 0.26, SHADOW, 0.07)
    grow = 0.045
    rim = [(0.29, top - grow), (0.71, top - grow), (right + grow * 1.3, girdle)]
    rim += [(0.5, tip + grow * 1.3), (left - grow * 1.3, girdle)]
    pen.shape(rim, darker(color, 0.62))
    pen.shape([(0.31, top), (0.69, top), (right, girdle), (left, girdle)], lighter(color, 0.38))
    pen.shape([(left, girdle), (0.38, girdle), (0.5, tip)], lighter(color, 0.16))
    pen.shape([(0.38, girdle), (0.62, girdle), (0.5, tip)], color)
    pen.shape([(0.62, girdle), (right, girdle), (0.5, tip)], darker(color, 0.28))
    pen.shape([(0.31, top), (0.38, girdle), (left, girdle)], lighter(color, 0.55))
    pen.shape([(0.69, top), (0.62, girdle), (right, girdle)], lighter(color, 0.08))
    pen.shape([(0.36, 0.25), (0.52, 0.25), (0.47, 0.33), (0.39, 0.33)], WHITE)


def _food(pen: Pen, color: RGB, variant: int) -> None:
    """A drumstick, in the colour of what was roasted."""
    pen.disc(0.50, 0.88, 0.28, SHADOW, 0.07)
    bone, edge = (250, 240, 222), darker(color, 0.62)
    for grow, ink in ((0.04, INK), (0.0, bone)):
        pen.line([(0.55, 0.57), (0.78, 0.80)], ink, 0.11 + 2 * grow)
        pen.disc(0.86, 0.76, 0.075 + grow, ink)
        pen.disc(0.76, 0.87, 0.075 + grow, ink)
    meat = ((0.38, 0.38, 0.27), (0.46, 0.47, 0.23), (0.54, 0.56, 0.16))
    _outlined(pen, meat, color, edge, 0.045)
    pen.disc(0.45, 0.50, 0.17, darker(color, 0.13))
    pen.disc(0.40, 0.43, 0.20, color)
    pen.disc(0.28, 0.27, 0.075, lighter(color, 0.6))
    pen.disc(0.40, 0.22, 0.035, lighter(color, 0.5))


def _bone(pen: Pen, color: RGB, variant: int) -> None:
    pen.disc(0.5, 0.84, 0.30, SHADOW, 0.07)
    for grow, ink in ((0.045, darker(color, 0.75)), (0.0, color)):
        pen.line([(0.30, 0.66), (0.70, 0.34)], ink, 0.15 + 2 * grow)
        for x, y in ((0.20, 0.62), (0.31, 0.76), (0.69, 0.24), (0.80, 0.38)):
            pen.disc(x, y, 0.10 + grow, ink)
    pen.line([(0.34, 0.60), (0.64, 0.36)], lighter(color, 0.8), 0.05)


def _apple(pen: Pen, color: RGB, variant: int) -> None:
    pen.disc(0.5, 0.87, 0.26, SHADOW, 0.07)
    body = ((0.38, 0.56, 0.21, 0.25), (0.62, 0.56, 0.21, 0.25), (0.50, 0.64, 0.22, 0.20))
    _outlined(pen, body, color, darker(color, 0.6), 0.04)
    pen.disc(0.33, 0.47, 0.07, lighter(color, 0.6), 0.09)
    pen.line([(0.50, 0.38), (0.54, 0.20)], (92, 60, 40), 0.06)
    pen.shape([(0.54, 0.30), (0.64, 0.16), (0.82, 0.18), (0.72, 0.30)], (86, 160, 70))


def _tree(pen: Pen, color: RGB, variant: int) -> None:
    pen.disc(0.5, 0.90, 0.30, SHADOW, 0.07)
    pen.box(0.42, 0.60, 0.58, 0.92, (112, 78, 54), 0.05)
    crown = ((0.32, 0.48, 0.22), (0.68, 0.48, 0.22), (0.50, 0.30, 0.25), (0.50, 0.54, 0.24))
    _outlined(pen, crown, color, darker(color, 0.55), 0.04)
    for x, y, r in ((0.40, 0.26, 0.09), (0.26, 0.43, 0.06), (0.62, 0.40, 0.05)):
        pen.disc(x, y, r, lighter(color, 0.28))


def _hare(pen: Pen, color: RGB, variant: int) -> None:
    pen.disc(0.5, 0.88, 0.27, SHADOW, 0.07)
    head = ((0.37, 0.26, 0.085, 0.21), (0.63, 0.26, 0.085, 0.21), (0.5, 0.62, 0.27, 0.245))
    _outlined(pen, head, color, darker(color, 0.68), 0.045)
    for x in (0.37, 0.63):
        pen.disc(x, 0.25, 0.038, (240, 170, 170), 0.13)
        pen.disc(x + (0.02 if x < 0.5 else -0.02), 0.57, 0.045, INK, 0.055)
    pen.disc(0.41, 0.71, 0.10, lighter(color, 0.7), 0.075)
    pen.disc(0.59, 0.71, 0.10, lighter(color, 0.7), 0.075)
    pen.disc(0.5, 0.66, 0.045, (226, 120, 130), 0.035)


def _stag(pen: Pen, color: RGB, variant: int) -> None:
    pen.disc(0.5, 0.92, 0.24, SHADOW, 0.06)
    for side in (-1, 1):
        for width, ink in ((0.105, INK), (0.055, (236, 214, 170))):
            pen.line([(0.5 + side * 0.13, 0.42), (0.5 + side * 0.27, 0.10)], ink, width)
            pen.line([(0.5 + side * 0.18, 0.32), (0.5 + side * 0.40, 0.24)], ink, width)
            pen.line([(0.5 + side * 0.23, 0.20), (0.5 + side * 0.13, 0.08)], ink, width)
    ears = ((0.5 - 0.27, 0.47, 0.10, 0.065), (0.5 + 0.27, 0.47, 0.10, 0.065))
    head = ((0.5, 0.56, 0.20, 0.20), (0.5, 0.74, 0.135, 0.15))
    _outlined(pen, ears + head, color, darker(color, 0.68), 0.04)
    pen.disc(0.5, 0.77, 0.11, lighter(color, 0.45), 0.10)
    pen.disc(0.5, 0.73, 0.06, INK, 0.042)
    for x in (0.41, 0.59):
        pen.disc(x, 0.54, 0.042, INK, 0.052)


def _muck(pen: Pen, color: RGB, variant: int) -> None:
    """A heap of dirt that lies on something else."""
    for x, y, r in ((0.40, 0.56, 0.30), (0.66, 0.44, 0.22), (0.64, 0.68, 0.20)):
        pen.disc(x, y, r, (*darker(color, 0.30), 235), r * 0.8)
    pen.disc(0.40, 0.52, 0.20, (*color, 255), 0.14)
    for x, y, r in ((0.34, 0.50, 0.055), (0.62, 0.42, 0.045), (0.66, 0.68, 0.05)):
        pen.disc(x, y, r, lighter(color, 0.45))


def _foul(pen: Pen, color: RGB, variant: int) -> None:
    """Foul water: the whole cell, with blots and bubbles."""
    _ground(pen, lighter(color, 0.10))
    for n, (x, y) in enumerate(_SPECKS[variant % TEXTURES]):
        pen.disc(x, y, 0.17, darker(color, 0.18), 0.10)
        pen.disc(x + 0.05, y - 0.03, 0.045 + 0.015 * (n % 2), lighter(color, 0.42))


def _beam(pen: Pen, color: RGB, variant: int) -> None:
    for r, strength in ((0.46, 70), (0.34, 110), (0.20, 190)):
        pen.disc(0.5, 0.5, r, (*lighter(color, 0.25), strength))
    pen.disc(0.5, 0.5, 0.09, lighter(color, 0.85))


def _rock(pen: Pen, color: RGB, variant: int) -> None:
    pen.disc(0.5, 0.84, 0.34, SHADOW, 0.08)
    outline = [(0.14, 0.80), (0.20, 0.44), (0.44, 0.22), (0.72, 0.30), (0.88, 0.62), (0.84, 0.82)]
    pen.shape(outline, darker(color, 0.6))
    pen.shape([(0.5 + (x - 0.5) * 0.86, 0.54 + (y - 0.54) * 0.84) for x, y in outline], color)
    pen.shape([(0.28, 0.46), (0.46, 0.30), (0.66, 0.35), (0.50, 0.50)], lighter(color, 0.35))


def _ore(pen: Pen, color: RGB, variant: int) -> None:
    """A rock in the ground: the whole cell."""
    _soil(pen, (150, 120, 90), variant)
    _rock(pen, color, variant)


def _coin(pen: Pen, color: RGB, variant: int) -> None:
    pen.disc(0.5, 0.86, 0.26, SHADOW, 0.07)
    _outlined(pen, ((0.5, 0.5, 0.30),), color, darker(color, 0.6), 0.045)
    pen.disc(0.5, 0.5, 0.20, lighter(color, 0.25))
    pen.box(0.46, 0.38, 0.54, 0.62, darker(color, 0.35), 0.03)


def _crown(pen: Pen, color: RGB, variant: int) -> None:
    """What marks the one who is it: a ring at the feet and a spiky crown above the eyes."""
    pen.arc(0.5, 0.55, 0.47, 0, 360, (*color, 230), 0.08)
    left = [(0.24, 0.28), (0.20, 0.02), (0.38, 0.13), (0.5, 0.0)]
    points = [*left, (0.62, 0.13), (0.80, 0.02), (0.76, 0.28)]
    pen.shape(points, INK)
    inner = [(0.5 + (x - 0.5) * 0.80, 0.17 + (y - 0.17) * 0.66) for x, y in points]
    pen.shape(inner, (255, 205, 64))


def _creature(pen: Pen, color: RGB, gaze: int) -> None:
    """A round friend with eyes that look where it last went."""
    pen.disc(0.5, 0.90, 0.33, SHADOW, 0.08)
    edge = darker(color, 0.58)
    for grow, ink in ((0.05, edge), (0.0, color)):
        pen.disc(0.34, 0.87, 0.095 + grow, ink, 0.06 + grow)
        pen.disc(0.66, 0.87, 0.095 + grow, ink, 0.06 + grow)
        pen.box(0.16 - grow, 0.14 - grow, 0.84 + grow, 0.86 + grow, ink, 0.33 + grow)
    pen.disc(0.5, 0.74, 0.23, lighter(color, 0.16), 0.10)
    pen.disc(0.34, 0.24, 0.085, lighter(color, 0.45), 0.05)
    dx, dy = _GAZE[gaze]
    for x in (0.36, 0.64):
        x, y = x + dx * 0.8, 0.45 + dy * 0.8
        pen.disc(x, y, 0.125, WHITE, 0.145)
        pen.disc(x + dx, y + dy, 0.068, INK, 0.082)
        pen.disc(x + dx - 0.022, y + dy - 0.03, 0.024, WHITE)
    pen.arc(0.5 + dx * 0.8, 0.60 + dy * 0.6, 0.085, 20, 160, edge, 0.045)


def _plain(pen: Pen, color: RGB, glyph: str) -> None:
    """Any other kind: a tile of its colour with its glyph."""
    pen.box(0.06, 0.06, 0.94, 0.94, darker(color, 0.35), 0.16)
    pen.box(0.09, 0.08, 0.91, 0.89, color, 0.14)
    dark = sum(color) < 384
    pen.text(glyph, 0.5, 0.49, 0.62, mix(color, WHITE if dark else INK, 0.85))


Painter = Callable[[Pen, RGB, int], None]

# Kinds by name in small letters; floors have textures, the others look the same everywhere.
FLOORS: dict[str, Painter] = {"sand": _sand, "pollution": _foul, "soil": _soil, "wall": _wall}
FLOORS |= dict.fromkeys(("grass", "orchard"), _grass)
FLOORS |= dict.fromkeys(("iron", "gold", "begungold"), _ore)
FLOORS |= dict.fromkeys(("start", "cooperatesite", "defectsite"), _sand)
FLOORS |= dict.fromkeys(("water", "river", "cleanriver"), _water)
THINGS: dict[str, Painter] = {"gem": _gem, "food": _food, "bone": _bone, "apple": _apple}
THINGS |= {"hare": _hare, "stag": _stag, "it": _crown}
THINGS |= dict.fromkeys(("redcoin", "greencoin"), _coin)
THINGS |= dict.fromkeys(("cooperate", "defect"), _gem)
THINGS |= dict.fromkeys(("tree", "appletree", "bush"), _tree)
THINGS |= dict.fromkeys(("dirt", "waste"), _muck)
THINGS |= dict.fromkeys(("beam", "cleanbeam", "zapbeam"), _beam)
THINGS |= dict.fromkeys(("rock", "stone"), _rock)
SPRITES = FLOORS | THINGS

# Worlds in which others see which way an agent faces have an agent kind for each direction.
FACINGS = {"facingup": UP, "facingdown": DOWN, "facingleft": LEFT, "facingright": RIGHT}


@lru_cache(maxsize=4096)
def thing(name: str, glyph: str, color: RGB, tile: int, variant: int = 0) -> np.ndarray:
    """The sprite of a kind, (tile, tile, 4) uint8, read-only.

    `variant` is the texture of a floor, plus TEXTURES times the open sides of a block.
    """
    pen = Pen(tile)
    if name.lower() in SPRITES:
        SPRITES[name.lower()](pen, color, variant)
    else:
        _plain(pen, color, glyph)
    return pen.finish()


@lru_cache(maxsize=4096)
def agent(number: int, tile: int, gaze: int = STILL) -> np.ndarray:
    """The sprite of agent `number`, (tile, tile, 4) uint8, read-only."""
    pen = Pen(tile)
    _creature(pen, rgb(series_color(number)), gaze)
    return pen.finish()


@lru_cache(maxsize=64)
def shade(tile: int) -> np.ndarray:
    """The shadow a block casts on the cell below it, (tile, tile, 4) uint8, read-only."""
    sprite = np.zeros((tile, tile, 4), np.uint8)
    sprite[..., :3] = INK
    depth = (np.arange(tile) + 0.5) / tile
    sprite[..., 3] = (90 * np.clip(1 - depth / 0.4, 0, 1))[:, None]
    sprite.setflags(write=False)
    return sprite
