"""A robot drawn without a graphics card: from the side, and small from the front."""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from worldloom.report.colors import RGB, darker, lighter, mix
from worldloom.suites.robot.ground import Ground
from worldloom.suites.robot.shapes import MovingShapes, outline

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SUPERSAMPLING = 3
SIDE = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # x to the right, z up: seen from its right
FRONT = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # it faces us, its left on our right
PAPER: RGB = (234, 238, 246)
GROUND: RGB = (210, 218, 230)
CARD: RGB = (222, 230, 242)
INK: RGB = (72, 80, 94)
_LIGHT = np.array([-0.35, 0.55])  # where it comes from, on the paper


def drawings(
    motion: MovingShapes, size: tuple[int, int], rows: Iterable[int]
) -> Iterator["Picture"]:
    """A picture (width, height) of each of the frames `rows`."""
    camera, lift = smooth(motion.base[:, 0]), np.zeros(len(motion.base))
    if motion.ground is not None:
        under = motion.ground.at(np, motion.ground.mean, motion.base[:, :2].astype(np.float32))
        lift = smooth(under.astype(np.float64))
    for frame in rows:
        yield _draw(motion, frame, (float(camera[frame]), float(lift[frame])), size)


def smooth(path: np.ndarray, width: int = 25) -> np.ndarray:
    """A path (T,) for a camera: about a second's average of it, so that steps do not shake it."""
    if len(path) < 3:
        return path
    weights = np.hanning(width + 2)[1:-1]
    padded = np.pad(path, width // 2, mode="edge")
    return np.convolve(padded, weights / weights.sum(), mode="valid")


def _draw(
    motion: MovingShapes, frame: int, camera: tuple[float, float], size: tuple[int, int]
) -> "Picture":
    from PIL import Image, ImageDraw

    width, height = (number * SUPERSAMPLING for number in size)
    image = Image.new("RGB", (width, height), PAPER)
    pixels = 0.50 * height / motion.height  # per metre: a robot with a torso fills the height
    paper = _Paper(image, pixels, (0.44 * width, 0.86 * height))
    paper.floor(motion, float(motion.base[frame, 1]), camera)
    paper.robot(motion, frame, SIDE, camera)
    card = Image.new("RGB", (round(0.23 * width), round(0.38 * height)), CARD)
    small = _Paper(card, 0.42 * pixels, (0.5 * card.width, 0.88 * card.height))
    small.line(mix(GROUND, INK, 0.3))
    small.robot(motion, frame, FRONT, (float(motion.base[frame, 1]), camera[1]))
    corners = Image.new("L", card.size, 0)
    ImageDraw.Draw(corners).rounded_rectangle((0, 0, *card.size), 0.06 * card.height, 255)
    image.paste(card, (round(0.75 * width), round(0.05 * height)), corners)
    return image.resize(size, Image.Resampling.BOX)


class _Paper:
    """Draws metres on an image: `origin` is the pixel of the camera's place on the floor."""

    def __init__(self, image: "Picture", pixels: float, origin: tuple[float, float]):
        from PIL import ImageDraw

        self._image, self._draw = image, ImageDraw.Draw(image)
        self._pixels, self._origin = pixels, np.array(origin)

    def _at(self, points: np.ndarray) -> list[tuple[float, float]]:
        spots = self._origin + np.asarray(points) * [self._pixels, -self._pixels]
        return [(float(x), float(y)) for x, y in spots]

    def floor(self, motion: MovingShapes, aside: float, at: tuple[float, float]) -> None:
        """The ground `aside` of the world's middle, with a tick every 0.1 m and a number every
        0.5 m; `at` is where the camera is."""
        from PIL import ImageFont

        width, height = self._image.size
        camera, font = at[0], ImageFont.load_default(0.038 * height)
        edge = self._profile(motion.ground, aside, at)
        self._draw.polygon([*edge, (width, height), (0, height)], GROUND)
        self._draw.line(edge, mix(GROUND, INK, 0.45), round(0.006 * height))
        y = self._origin[1]
        if motion.ground is not None:  # ticks are below all of it
            y = min(max(y, max(spot[1] for spot in edge)), 0.9 * height)
        left = camera - self._origin[0] / self._pixels
        right = camera + (width - self._origin[0]) / self._pixels
        for step in range(math.ceil(left * 10) - 2, math.floor(right * 10) + 3):
            x = self._origin[0] + (step / 10 - camera) * self._pixels
            named = step % 5 == 0
            length = (0.032 if named else 0.016) * height
            ink = mix(GROUND, INK, 0.55 if named else 0.3)
            self._draw.line((x, y, x, y + length), ink, max(1, round(0.004 * height)))
            if named:
                text = f"{step / 10:g} m".replace("-", "\u2212")
                place, ink = (x, y + 0.075 * height), mix(GROUND, INK, 0.85)
                self._draw.text(place, text, ink, font, anchor="mm")

    def _profile(
        self, ground: Ground | None, aside: float, at: tuple[float, float]
    ) -> list[tuple[float, float]]:
        """The surface from the left edge to the right one, in pixels."""
        width = self._image.size[0]
        if ground is None:
            return [(0.0, self._origin[1]), (width, self._origin[1])]
        x = np.arange(0.0, width + 1.0, 2.0 * SUPERSAMPLING)
        along = at[0] + (x - self._origin[0]) / self._pixels
        spots = np.stack([along, np.full_like(along, aside)], axis=-1).astype(np.float32)
        high = ground.at(np, ground.heights, spots) - at[1]
        return [
            (float(a), float(b))
            for a, b in zip(x, self._origin[1] - self._pixels * high, strict=True)
        ]

    def line(self, ink: RGB) -> None:
        """A plain floor, the middle of the width."""
        (x, y), width = self._origin, self._image.size[0]
        self._draw.line((x - 0.36 * width, y, x + 0.36 * width, y), ink, round(0.018 * width))

    def robot(
        self, motion: MovingShapes, frame: int, view: np.ndarray, camera: tuple[float, float]
    ) -> None:
        """All shapes, the far ones first and a little paler."""
        away = np.cross(view[0], view[1])  # towards us
        centres, rotations = motion.centres[frame], motion.rotations[frame]
        if motion.ground is None:
            self._shadow(centres @ view[0] - camera[0])
        depth = centres @ away
        reach = max(float(np.ptp(depth)), 1e-6)
        for i in np.argsort(depth, kind="stable"):
            shape = motion.shapes[i]
            behind = 0.30 * (depth.max() - depth[i]) / reach
            color = mix(shape.rgb, PAPER, float(behind))
            place = view @ centres[i] - camera
            edge = outline(shape, rotations[i], view)
            self._draw.polygon(self._at(place + edge), darker(color, 0.42))
            inner = _inset(edge, 0.0034)
            self._draw.polygon(self._at(place + inner), darker(color, 0.06))
            if shape.kind == "box":
                self._draw.polygon(self._at(place + _inset(inner, 0.005)), color)
                continue
            thin = float(np.sort(shape.size)[0])
            shine = _inset(inner, 0.30 * thin) + 0.14 * thin * _LIGHT
            self._draw.polygon(self._at(place + shine), lighter(color, 0.14))

    def _shadow(self, along: np.ndarray) -> None:
        corners = np.array([[along.min() - 0.02, 0.007], [along.max() + 0.02, -0.012]])
        self._draw.ellipse(self._at(corners), mix(GROUND, INK, 0.22))


def _inset(edge: np.ndarray, by: float) -> np.ndarray:
    """An outline about its centre, moved inwards."""
    reach = np.linalg.norm(edge, axis=1, keepdims=True)
    # What is long is shortened, what is thin stays in proportion.
    return edge * (1.0 - np.minimum(by / np.maximum(reach, 1e-9), 0.9))
