"""A picture as an array of pixels, which a notebook shows and `save` writes."""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.files import write_bytes


@dataclass(frozen=True, eq=False)
class Pixels:
    """Red, green and blue (height, width, 3) uint8. `np.asarray(picture)` is the array."""

    array: np.ndarray

    def __repr__(self) -> str:
        height, width, _ = self.array.shape
        return f"Pixels({width} x {height})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.array, dtype, copy=copy)

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file."""
        height, width, _ = self.array.shape
        rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter: none
        rows[:, 1:] = self.array.reshape(height, -1)
        parts = {
            b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0),
            b"IDAT": zlib.compress(rows.tobytes(), 6),
            b"IEND": b"",
        }
        chunks = (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in parts.items()
        )
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    def _repr_png_(self) -> bytes:
        return self.png()

    def save(self, path: str | Path) -> Path:
        """Writes a PNG file; its path."""
        if Path(path).suffix != ".png":
            raise ValueError(f"{path}: pixels are saved as .png")
        return write_bytes(path, self.png())
