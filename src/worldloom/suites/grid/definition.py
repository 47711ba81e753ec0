"""Worlds from a YAML file, for rules that the table of kinds can say.

    name: berries
    num_agents: 4
    height: 12
    width: 12
    border: Wall
    kinds:                      # the first kind is the empty cell
      Empty: {glyph: ".", color: [20, 24, 20], becomes: {Berry: 0.01}}
      Wall:  {glyph: "#", color: [88, 92, 108], value: -1, passable: false}
      Berry: {glyph: "o", color: [214, 60, 60], value: 1}
      Agent: {glyph: "A", color: [64, 120, 220], passable: false}

A `map` (lines of glyphs) may stand in place of `height`, `width` and `border`. See `KEYS` for
the rest. Every mistake is a ValueError of one line: file, key, what is wrong and what to do.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldloom.core.checks import MOST
from worldloom.core.names import shown, suggest
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import frame_stack, time_limit
from worldloom.core.yaml_nodes import Node, parse_yaml, read_text
from worldloom.suites.grid.kinds import Kind, Map, bordered
from worldloom.suites.grid.world import GridWorld

KEYS = {
    "name": "what the world is called; the file's name by default",
    "kinds": "name: {glyph, color, value, passable, becomes}; the first is the empty cell",
    "map": "lines of glyphs",
    "height": "rows, in place of a map",
    "width": "columns, in place of a map",
    "border": "the kind around a world without a map",
    "floor": "a kind that lies under everything, on a layer of its own",
    "agent": "the kind that agents are seen as; Agent by default",
    "outside": "the kind that is seen beyond the map; Wall by default",
    "num_agents": "1 by default",
    "radius": "how far agents see, or all; 2 by default",
    "turn_order": "interleaved (default) or simultaneous",
    "view": "onehot (default) or rgb",
    "horizon": "turns in an episode; 100 by default",
    "num_frames": "frames that an agent sees at once; 1 by default",
}
KIND_KEYS = ("glyph", "color", "value", "passable", "becomes")
MOST_SIDE, MOST_FRAMES = MOST["height"], MOST["num_frames"]
AS_WRITTEN: Any = object()  # stands for "what the file says", where None has a meaning of its own


@dataclass(frozen=True)
class Definition:
    """What a file defines: a world and how long and how it is seen in an episode."""

    world: GridWorld
    horizon: int
    num_frames: int


def load(
    path: str | Path,
    *,
    num_agents: int = AS_WRITTEN,
    height: int = AS_WRITTEN,
    width: int = AS_WRITTEN,
    radius: int | str | None = AS_WRITTEN,
    turn_order: str = AS_WRITTEN,
    view: str = AS_WRITTEN,
    horizon: int = AS_WRITTEN,
    num_frames: int = AS_WRITTEN,
) -> PureEnv:
    """The world in a file, with a time limit and frame stacks; options go before the file's."""
    given = {name: value for name, value in locals().items() if name in KEYS}
    options = {name: value for name, value in given.items() if value is not AS_WRITTEN}
    if options.get("radius", 0) is None:
        options["radius"] = "all"
    made = read(read_text(path), str(path), options)
    return time_limit(frame_stack(made.world, made.num_frames), made.horizon)


def parse(text: str, source: str = "world.yaml") -> GridWorld:
    """The world that a text defines; `source` is named in errors."""
    return read(text, source).world


def read(text: str, source: str, options: dict[str, Any] | None = None) -> Definition:
    """All that a text defines, with `options` in place of what it says under the same keys."""
    root = parse_yaml(text, source)
    written = root.entries(KEYS)
    written |= {name: Node(value, source, (name,)) for name, value in (options or {}).items()}

    def node(key: str, default: Any) -> Node:
        return written.get(key, Node(default, source, (key,)))

    if "kinds" not in written:
        raise root.error("kinds is missing; list the kinds of things of the world")
    kinds = _kinds(written["kinds"])
    glyphs = {kind.name: kind.glyph for kind in kinds}
    rows = _rows(root, written, glyphs, empty=kinds[0].glyph)
    maps = (rows,)
    if "floor" in written:
        floor = _known(written["floor"], glyphs)
        maps = ((glyphs[floor] * len(rows[0]),) * len(rows), rows)
    settings = {
        "name": node("name", Path(source).stem).text(),
        "num_agents": node("num_agents", 1).whole(1, MOST_SIDE**2),
        "radius": _radius(node("radius", 2)),
        "turn_order": node("turn_order", "interleaved").text(),
        "view": node("view", "onehot").text(),
        "agent": _known(node("agent", "Agent"), glyphs),
        "outside": _known(node("outside", "Wall"), glyphs),
    }
    horizon, num_frames = node("horizon", 100).whole(1), node("num_frames", 1).whole(1, MOST_FRAMES)
    try:
        world = GridWorld(kinds=kinds, maps=maps, **settings)
    except ValueError as error:
        raise root.error(str(error)) from None
    return Definition(world, horizon, num_frames)


def _kinds(node: Node) -> tuple[Kind, ...]:
    node.entries()
    if not node.value:
        raise node.error("is empty; name at least the empty cell, Wall and Agent")
    kinds = []
    for name, value in node.value.items():
        at = Node(value, node.source, (*node.path, name))
        entry = at.entries(KIND_KEYS)
        for key in ("glyph", "color"):
            if key not in entry:
                raise at.error(f"{key} is missing; every kind needs a glyph and a color")
        becomes = entry["becomes"].entries() if "becomes" in entry else {}
        for to in becomes:
            _known(Node(to, node.source, entry["becomes"].path), node.value)
        kinds.append(
            Kind(
                name=name,
                glyph=_glyph(entry["glyph"]),
                color=_color(entry["color"]),
                value=entry["value"].number() if "value" in entry else 0.0,
                passable=entry["passable"].flag() if "passable" in entry else True,
                becomes=tuple((to, _chance(chance)) for to, chance in becomes.items()),
            )
        )
    return tuple(kinds)


def _rows(root: Node, written: dict[str, Node], glyphs: dict[str, str], empty: str) -> Map:
    """The top layer: the map, or a field of the given size."""
    if "map" in written:
        for key in ("height", "width", "border"):
            if key in written:
                raise written[key].error("cannot stand beside map; remove one of them")
        drawn = written["map"].value
        rows = drawn.split("\n") if isinstance(drawn, str) else drawn
        if not isinstance(rows, list) or not rows or not all(isinstance(r, str) for r in rows):
            raise written["map"].error(
                f"{shown(drawn)} is no map; write `map: |` and below it lines of glyphs"
            )
        rows = tuple(row.strip() for row in rows if row.strip())
        if not rows:
            raise written["map"].error("it has no lines; draw at least one")
        if max(len(rows), *map(len, rows)) > MOST_SIDE:
            raise written["map"].error(f"it is too large; a side is at most {MOST_SIDE}")
        return rows
    for key in ("height", "width"):
        if key not in written:
            raise root.error(f"{key} is missing; give height and width, or a map")
    height, width = (written[key].whole(1, MOST_SIDE) for key in ("height", "width"))
    if "border" not in written:
        return (empty * width,) * height
    border = _known(written["border"], glyphs)
    try:
        return bordered(height, width, glyphs[border], empty)
    except ValueError as error:
        raise root.error(f"height, width: {error}") from None


# One value each --------------------------------------------------------------------------------


def _glyph(node: Node) -> str:
    value = node.value
    if not isinstance(value, str) or len(value) != 1 or value.isspace():
        raise node.error(f'{shown(value)} is not one character; write it in quotes, like "#"')
    return value


def _known(node: Node, names: Any) -> str:
    if not isinstance(node.value, str) or node.value not in names:
        hint = suggest(str(node.value), names)
        raise node.error(f"there is no kind {shown(node.value)}; {hint}")
    return node.value


def _chance(node: Node) -> float:
    number = node.number()
    if not 0 <= number <= 1:
        raise node.error(f"{shown(node.value)} is no chance; use a number between 0 and 1")
    return number


def _radius(node: Node) -> int | None:
    if node.value == "all":
        return None
    try:
        return node.whole(1, MOST_SIDE)
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def _color(node: Node) -> tuple[int, int, int]:
    shades = node.value if isinstance(node.value, list) else []
    if len(shades) != 3 or not all(type(s) is int and 0 <= s <= 255 for s in shades):
        raise node.error(f"{shown(node.value)} is no colour; write [red, green, blue], 0 to 255")
    return tuple(shades)
