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

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from worldloom.core.names import suggest
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import frame_stack, time_limit
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
    given = {
        "num_agents": num_agents,
        "height": height,
        "width": width,
        "radius": radius,
        "turn_order": turn_order,
        "view": view,
        "horizon": horizon,
        "num_frames": num_frames,
    }
    options = {key: value for key, value in given.items() if value is not AS_WRITTEN}
    if options.get("radius", 0) is None:
        options["radius"] = "all"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; check the path of the world") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as a text file ({error})") from None
    made = read(text, str(path), options)
    return time_limit(frame_stack(made.world, made.num_frames), made.horizon)


def parse(text: str, source: str = "world.yaml") -> GridWorld:
    """The world that a text defines; `source` is named in errors."""
    return read(text, source).world


def read(text: str, source: str, options: dict[str, Any] | None = None) -> Definition:
    """All that a text defines, with `options` in place of what it says under the same keys."""
    written = _mapping(source, _yaml(text, source), KEYS)
    written = written | (options or {})
    at = {key: f"{source}: {key}" for key in KEYS}

    def take(key, check, default):
        return check(at[key], written[key]) if key in written else default

    if "kinds" not in written:
        raise ValueError(f"{source}: kinds is missing; list the kinds of things of the world")
    kinds = _kinds(at["kinds"], written["kinds"])
    glyphs = {kind.name: kind.glyph for kind in kinds}
    rows = _rows(source, written, glyphs, empty=kinds[0].glyph)
    maps = (rows,)
    if "floor" in written:
        floor = _known(at["floor"], written["floor"], glyphs)
        maps = ((glyphs[floor] * len(rows[0]),) * len(rows), rows)
    settings = {
        "num_agents": take("num_agents", _whole, 1),
        "radius": take("radius", _radius, 2),
        "turn_order": take("turn_order", _text, "interleaved"),
        "view": take("view", _text, "onehot"),
        "agent": _known(at["agent"], written.get("agent", "Agent"), glyphs),
        "outside": _known(at["outside"], written.get("outside", "Wall"), glyphs),
    }
    name = take("name", _text, Path(source).stem)
    horizon, num_frames = take("horizon", _whole, 100), take("num_frames", _whole, 1)
    try:
        world = GridWorld(name=name, kinds=kinds, maps=maps, **settings)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    return Definition(world, horizon, num_frames)


class _Loader(yaml.SafeLoader):
    """Plain YAML in which a key may stand only once."""

    def construct_mapping(self, node, deep=False):
        keys = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise yaml.MarkedYAMLError(
                    problem=f"{key!r} is there twice", problem_mark=key_node.start_mark
                )
            keys.append(key)
        return super().construct_mapping(node, deep)


def _yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # a SafeLoader: builds plain values only
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ValueError(
            f"{source}:{line} {problem}; mend the YAML (indentation, brackets, quotes)"
        ) from None


def _mapping(where: str, value: Any, known: Any = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r} is not a list of `key: value`; write it as one")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{where}: the key {key!r} is not text; put it in quotes")
        if known is not None and key not in known:
            raise ValueError(f"{where}: there is no key {key!r}; {suggest(key, known)}")
    return value


def _kinds(where: str, value: Any) -> tuple[Kind, ...]:
    entries = _mapping(where, value)
    if not entries:
        raise ValueError(f"{where}: is empty; name at least the empty cell, Wall and Agent")
    kinds = []
    for name, entry in entries.items():
        at = f"{where}.{name}"
        entry = _mapping(at, entry, KIND_KEYS)
        for key in ("glyph", "color"):
            if key not in entry:
                raise ValueError(f"{at}: {key} is missing; every kind needs a glyph and a color")
        becomes = _mapping(f"{at}.becomes", entry.get("becomes", {}))
        passable = entry.get("passable", True)
        if not isinstance(passable, bool):
            raise ValueError(f"{at}.passable: {passable!r} is neither true nor false; use one")
        kind = Kind(
            name=name,
            glyph=_glyph(f"{at}.glyph", entry["glyph"]),
            color=_color(f"{at}.color", entry["color"]),
            value=_number(f"{at}.value", entry.get("value", 0.0)),
            passable=passable,
            becomes=tuple(
                (_known(f"{at}.becomes", to, entries), _chance(f"{at}.becomes.{to}", chance))
                for to, chance in becomes.items()
            ),
        )
        kinds.append(kind)
    return tuple(kinds)


def _rows(source: str, written: dict[str, Any], glyphs: dict[str, str], empty: str) -> Map:
    """The top layer: the map, or a field of the given size."""
    if "map" in written:
        for key in ("height", "width", "border"):
            if key in written:
                raise ValueError(f"{source}: {key}: cannot stand beside map; remove one of them")
        drawn = written["map"]
        rows = drawn.split("\n") if isinstance(drawn, str) else drawn
        if not isinstance(rows, list) or not rows or not all(isinstance(r, str) for r in rows):
            raise ValueError(
                f"{source}: map: {drawn!r} is no map; write `map: |` and below it lines of glyphs"
            )
        rows = [row.strip() for row in rows]
        return tuple(row for row in rows if row)
    for key in ("height", "width"):
        if key not in written:
            raise ValueError(f"{source}: {key} is missing; give height and width, or a map")
    height, width = (_whole(f"{source}: {key}", written[key]) for key in ("height", "width"))
    if "border" not in written:
        return (empty * width,) * height
    border = _known(f"{source}: border", written["border"], glyphs)
    try:
        return bordered(height, width, glyphs[border], empty)
    except ValueError as error:
        raise ValueError(f"{source}: height, width: {error}") from None


# One value each --------------------------------------------------------------------------------


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: {value!r} is not text; write a word, in quotes if need be")
    return value


def _glyph(where: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1 or value.isspace():
        raise ValueError(f'{where}: {value!r} is not one character; write it in quotes, like "#"')
    return value


def _known(where: str, value: Any, names: Any) -> str:
    if value not in names:
        raise ValueError(f"{where}: there is no kind {value!r}; {suggest(str(value), names)}")
    return value


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where}: {value!r} is not a finite number; write one, such as 1.5")
    return float(value)


def _chance(where: str, value: Any) -> float:
    number = _number(where, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{where}: {value!r} is no chance; use a number between 0 and 1")
    return number


def _whole(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where}: {value!r}; it must be a whole number from 1 on")
    return value


def _radius(where: str, value: Any) -> int | None:
    if value == "all":
        return None
    try:
        return _whole(where, value)
    except ValueError as error:
        raise ValueError(f"{error}, or all") from None


def _color(where: str, value: Any) -> tuple[int, int, int]:
    shades = value if isinstance(value, list) else []
    if len(shades) != 3 or not all(type(s) is int and 0 <= s <= 255 for s in shades):
        raise ValueError(f"{where}: {value!r} is no colour; write [red, green, blue], 0 to 255")
    return tuple(shades)
