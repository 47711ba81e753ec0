"""Kinds of things, maps drawn with their glyphs, and what can be wrong with either."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from worldloom.core.names import suggest

MOST_KINDS = 127  # layers are int8
# A map is rows of glyphs; a world has one for each of its layers.
Map = tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """One kind of thing. Kind 0 of a world is its empty cell.

    `becomes` names what a thing of this kind may turn into by itself at the end of a turn, with
    the chance of each per turn. The empty cell turns into things on the top layer only: on the
    layers below it means that nothing is there, under a wall for instance.
    """

    name: str
    glyph: str
    color: tuple[int, int, int]
    value: float = 0.0
    passable: bool = True
    becomes: tuple[tuple[str, float], ...] = ()


WALL = Kind("Wall", "#", (88, 92, 108), passable=False)


def drawn(height: int, width: int, glyphs: Callable[[int, int], Sequence[str]]) -> tuple[Map, ...]:
    """A map for each layer, from the glyphs of all layers in the cell (row, column)."""
    cells = [[glyphs(row, column) for column in range(width)] for row in range(height)]
    layers = range(len(cells[0][0]))
    return tuple(tuple("".join(cell[n] for cell in row) for row in cells) for n in layers)


def bordered(height: int, width: int, wall: str, inside: str) -> Map:
    """A map of `inside` with a border of `wall`."""
    if height < 3 or width < 3:
        raise ValueError(
            f"a world of {height}x{width} has no room inside its walls; use 3x3 or more"
        )
    full, row = wall * width, wall + inside * (width - 2) + wall
    return (full, *[row] * (height - 2), full)


def check_kinds(world: str, kinds: Sequence[Kind], mentioned: Iterable[str]) -> None:
    """Raises ValueError unless names and glyphs tell the kinds apart and all `mentioned` exist."""
    names = [kind.name for kind in kinds]
    if len(names) > MOST_KINDS:
        raise ValueError(f"{world}: {len(names)} kinds are too many; use at most {MOST_KINDS}")
    if len(set(names)) != len(names):
        raise ValueError(f"{world}: two kinds share a name in {names}; rename one")
    glyphs = [kind.glyph for kind in kinds]
    if any(len(g) != 1 for g in glyphs) or len(set(glyphs)) != len(glyphs):
        raise ValueError(
            f"{world}: each kind needs one character of its own as glyph, not {glyphs}"
        )
    targets = [target for kind in kinds for target, _ in kind.becomes]
    for name in (*mentioned, *targets):
        if name not in names:
            raise ValueError(f"{world}: there is no kind {name!r}; {suggest(name, names)}")
    for kind in kinds:
        total = sum(rate for _, rate in kind.becomes)
        # Written so that a rate that is not a number fails, too.
        if not (all(rate >= 0 for _, rate in kind.becomes) and total <= 1):
            raise ValueError(
                f"{world}: the chances of {kind.name} turning into something add up to {total:g}; "
                "they must be chances between 0 and 1"
            )


def check_solid(world: str, role: str, kind: Kind) -> None:
    """Raises ValueError if a kind that must stop agents can be walked into."""
    if kind.passable:
        raise ValueError(
            f"{world}: {role}={kind.name!r} can be walked into, so that agents would share a cell "
            f"or leave the map; give the kind {kind.name!r} passable=False"
        )


def check_maps(world: str, kinds: Sequence[Kind], maps: Sequence[Map]) -> None:
    """Raises ValueError unless all layers are rectangles of one size, drawn with known glyphs."""
    shapes = {(len(rows), len(row)) for rows in maps for row in rows}
    if len(shapes) != 1 or (0 in next(iter(shapes))):
        raise ValueError(
            f"{world}: the maps have rows of sizes {sorted(shapes)}; every layer must be a "
            "rectangle of one size"
        )
    glyphs = [kind.glyph for kind in kinds]
    unknown = sorted({g for rows in maps for row in rows for g in row} - set(glyphs))
    if unknown:
        raise ValueError(
            f"{world}: no kind has the glyph {unknown[0]!r} used in a map; "
            f"known: {' '.join(glyphs)}"
        )
