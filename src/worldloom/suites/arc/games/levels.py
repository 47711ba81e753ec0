"""Levels of games: maps drawn in characters, or read from a JSON file, as arrays to look up.

A JSON file of levels is a list of objects: `size` [height, width], `kinds` {name: [[row, column],
...]}, and where there are any `limit` and `baseline`, in actions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core.files import read_json
from worldloom.core.names import shown, suggest
from worldloom.core.types import Array

LARGEST = 64  # cells on a side: a cell is a pixel at least
MOST_KINDS = 7  # one bit each; another says which cells are on the board


@dataclass(frozen=True)
class Level:
    """One level: cells by kind. limit: actions until it is lost (0: never).

    baseline: actions that a person needs; ours are those of a shortest solution.
    """

    size: tuple[int, int]
    kinds: Mapping[str, Sequence[tuple[int, int]]]
    limit: int = 0
    baseline: int = 0


@dataclass(frozen=True)
class Legend:
    """What the characters of a map stand for: none, one or several kinds in a cell."""

    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def level(self, rows: str, limit: int = 0, baseline: int = 0) -> Level:
        """A level from its map, one line for each row."""
        lines = rows.split()
        width = len(lines[0])
        kinds: dict[str, list[tuple[int, int]]] = {}
        for r, line in enumerate(lines):
            if len(line) != width:
                raise ValueError(f"row {r} of a map has {len(line)} cells, not {width}: {line!r}")
            for c, symbol in enumerate(line):
                if symbol not in self.symbols:
                    raise ValueError(f"row {r} of a map has {symbol!r}, which stands for nothing")
                for kind in self.symbols[symbol]:
                    kinds.setdefault(kind, []).append((r, c))
        return Level((len(lines), width), kinds, limit, baseline)

    def levels(self, text: str) -> tuple[Level, ...]:
        """Levels from a line each: limit, baseline, and the rows of the map."""
        words = [line.split(maxsplit=2) for line in text.strip().splitlines()]
        return tuple(self.level(rows, int(limit), int(baseline)) for limit, baseline, rows in words)


class LevelTable(struct.PyTreeNode):
    """L levels as arrays, or a single one without the leading axis: see `at`."""

    cells: Array  # uint8 ([L,] H, W): a bit for each kind, the highest for the board itself
    size: Array  # int32 ([L,] 2): height and width
    limit: Array  # int32 ([L],)
    baseline: Array  # int32 ([L],)
    names: tuple[str, ...] = struct.field(pytree_node=False)
    fills: bool = struct.field(pytree_node=False)  # every level is as large as the canvas

    @property
    def shape(self) -> tuple[int, int]:
        """Of the canvas that holds every level."""
        height, width = self.cells.shape[-2:]
        return height, width

    def at(self, index: Array | int) -> "LevelTable":
        """The level of this number."""
        return jax.tree.map(lambda x: jnp.asarray(x)[index], self)

    def __getitem__(self, kind: str) -> Array:
        """Where cells of a kind are: bool ([L,] H, W)."""
        return (self.cells >> self.names.index(kind)) & 1 == 1

    @property
    def board(self) -> Array:
        """Where the board is: bool ([L,] H, W)."""
        return self.cells >> MOST_KINDS == 1

    def find(self, kind: str) -> Array:
        """The first cell of a kind, int32 (2,), of a single level."""
        first = self[kind].ravel().argmax().astype(jnp.int32)
        return jnp.stack([first // self.shape[1], first % self.shape[1]])


def tabulate(levels: Sequence[Level], kinds: Sequence[str]) -> LevelTable:
    """Levels side by side on the smallest canvas that holds them all."""
    if len(kinds) > MOST_KINDS:
        raise ValueError(f"{len(kinds)} kinds of cells; {MOST_KINDS} is the most")
    shape = np.max([level.size for level in levels], axis=0)
    cells = np.zeros((len(levels), *shape), np.uint8)
    for n, level in enumerate(levels):
        cells[n, : level.size[0], : level.size[1]] = 1 << MOST_KINDS
        for name, places in level.kinds.items():
            for row, column in places:
                cells[n, row, column] |= 1 << kinds.index(name)

    def whole(values: Sequence[Any]) -> Any:
        return np.array(values, np.int32)

    sizes = whole([level.size for level in levels])
    table: Any = cells  # in numpy: a world may be made inside of a trace
    return LevelTable(
        cells=table,
        size=sizes,
        limit=whole([level.limit for level in levels]),
        baseline=whole([level.baseline for level in levels]),
        names=tuple(kinds),
        fills=bool((sizes == shape).all()),
    )


def read_levels(path: str | Path, kinds: Sequence[str]) -> list[Level]:
    """The levels of a JSON file; a ValueError of one line if it holds none."""
    if not Path(path).is_file():
        raise ValueError(f"levels={str(path)!r} is no file; name a JSON file of levels")
    content = read_json(path)
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path}: it holds no list of levels")
    return [_read(value, kinds, f"{path}: level {n}") for n, value in enumerate(content)]


def _read(value: Any, kinds: Sequence[str], place: str) -> Level:
    given = value if isinstance(value, dict) else {}
    size: Any = given.get("size")
    cells: Any = given.get("kinds")
    if not _is_pair(size) or not all(1 <= side <= LARGEST for side in size):
        raise ValueError(f"{place}: size={shown(size)}; it must be [height, width], 1 to {LARGEST}")
    if not isinstance(cells, dict):
        raise ValueError(f"{place}: kinds={shown(cells)}; it must be names and lists of cells")
    for name, places in cells.items():
        if name not in kinds:
            raise ValueError(f"{place}: there is no kind {shown(name)}; {suggest(name, kinds)}")
        for cell in places if isinstance(places, list) else [places]:
            if not _is_pair(cell) or not all(0 <= x < n for x, n in zip(cell, size, strict=True)):
                raise ValueError(f"{place}: {name} has {shown(cell)}, which is no cell of it")
    if "player" in kinds and len(cells.get("player", ())) != 1:
        raise ValueError(f"{place}: it needs exactly one player")
    numbers = {name: given.get(name, 0) for name in ("limit", "baseline")}
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number < 2**31:
            raise ValueError(f"{place}: {name}={shown(number)}; it must be a number of actions")
    return Level(
        (size[0], size[1]), {n: [(r, c) for r, c in p] for n, p in cells.items()}, **numbers
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and [type(x) for x in value] == [int, int]
