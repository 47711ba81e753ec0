"""GIFs with one palette, in which frame t is picture t."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from worldloom.core.files import write_bytes

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

_AS_BEFORE = 255  # the palette entry of pixels that a frame leaves alone


def save_gif(images: Sequence["Picture"], path: str | Path, ms: int = 100) -> Path:
    """Writes a GIF that loops for ever, `ms` for each frame; the last one rests a second.

    Frame t of the file is image t, also where two images are equal. All frames share one palette
    and each stores only the pixels that changed.
    """
    from PIL import GifImagePlugin, Image

    if not images:
        raise ValueError(f"save_gif: no frames for {path}; give at least one picture")
    if any(image.size != images[0].size for image in images):
        sizes = sorted({image.size for image in images})
        raise ValueError(f"save_gif: frames of different sizes {sizes}; all must be of one size")
    palette = _shared_palette(images)
    width, height = images[0].size
    table = bytes(palette.getpalette() or ()).ljust(768, b"\0")
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + table
    parts = [head, b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"]  # 0: loop for ever
    shown = None
    for number, image in enumerate(images):
        now = np.asarray(image.convert("RGB").quantize(palette=palette, dither=Image.Dither.NONE))
        corner, patch = _change(shown, now)
        wait = ms if number < len(images) - 1 else max(ms, 1000)
        options = {"duration": wait, "transparency": _AS_BEFORE, "disposal": 1}
        frame = Image.fromarray(patch)
        frame.putpalette(bytes(768))  # the palette itself is written once, up front
        parts += GifImagePlugin.getdata(frame, corner, **options)
        shown = now
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_bytes(path, b"".join(parts) + b"\x3b")


def _change(shown: np.ndarray | None, now: np.ndarray) -> tuple[tuple[int, int], np.ndarray]:
    """The corner (x, y) and the indices of the rectangle that changed; at least one pixel."""
    if shown is None:
        return (0, 0), now
    changed = shown != now
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    if not len(rows):
        return (0, 0), now[:1, :1]
    part = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    patch = np.where(changed[part], now[part], _AS_BEFORE).astype(np.uint8)
    return (int(columns[0]), int(rows[0])), patch


def _shared_palette(images: Sequence["Picture"]) -> "Picture":
    """An image that carries the colours of all frames: 255, which leaves one for 'as before'.

    Colours count by the root of how often they occur: a field of sand must not take the colours
    of the one agent in it.
    """
    from PIL import Image

    tally = np.zeros(1 << 18, np.int64)
    for image in images:
        red, green, blue = np.moveaxis(np.asarray(image.convert("RGB"), np.int32) >> 2, -1, 0)
        tally += np.bincount(((red << 12) | (green << 6) | blue).ravel(), minlength=1 << 18)
    present = np.flatnonzero(tally)
    weight = np.ceil(np.sqrt(tally[present])).astype(int)
    colors = np.stack([present >> 12, (present >> 6) & 63, present & 63], axis=-1) * 4 + 2
    swatch = np.repeat(colors.clip(0, 255).astype(np.uint8), weight, axis=0)
    return Image.fromarray(swatch[None]).quantize(
        255, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
    )
