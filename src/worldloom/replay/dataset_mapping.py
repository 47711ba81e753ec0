"""What the columns of a plant historian's CSV export mean, as a small YAML file.

    name: line 4
    time: {column: timestamp, format: iso}    # or just a column of numbers:  time: seconds
    gap: 300                # a pause of more seconds than this begins a new episode;
    episode: batch          # or a column that changes with the episode
    missing: [Bad, No Data] # words that stand for a missing number, beside empty cells
    delimiter: ";"
    decimal: ","
    observation:
      - {column: TI101, name: temperature, unit: K, offset: 273.15, low: 280, high: 420}
    action:
      - {column: FC7.OP, name: valve, unit: "%", low: 0, high: 100}
    reward: {column: profit, at: next}        # or just its name: of the row itself
    terminated: tripped                       # a column of 0 and 1
    cost: [overheat]

A signal is column * scale + offset, in its unit. The low and high of an action are what -1 and 1
stand for and must be given; those of an observation are a range to check and may be left out.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from worldloom.core.names import one_line, shown
from worldloom.core.yaml_nodes import Node, parse_yaml, read_text


@dataclass(frozen=True)
class SignalColumn:
    """One signal: where it is, and how it becomes a number in its unit."""

    column: str
    name: str
    unit: str = ""
    scale: float = 1.0
    offset: float = 0.0
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self):
        if not self.low < self.high:
            raise ValueError(
                f"signal {self.name}: low={self.low:g} is not below high={self.high:g}"
            )
        if self.scale == 0.0 or not math.isfinite(self.scale) or not math.isfinite(self.offset):
            raise ValueError(
                f"signal {self.name}: scale={self.scale:g}, offset={self.offset:g}; both must be "
                "finite, and a scale of 0 keeps nothing"
            )


@dataclass(frozen=True)
class ColumnMapping:
    """See the module."""

    observation: tuple[SignalColumn, ...]
    action: tuple[SignalColumn, ...]
    reward: str | None = None
    reward_at: Literal["this", "next"] = "this"
    name: str = ""
    time: str | None = None
    time_format: str = "number"  # number, iso, or as strptime has it
    gap: float | None = None
    episode: str | None = None
    terminated: str | None = None
    cost: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    delimiter: str = ","
    decimal: str = "."

    def __post_init__(self):
        for kind in ("observation", "action"):
            signals = getattr(self, kind)
            if not signals:
                raise ValueError(f"mapping: there is no {kind}; list at least one column")
            names = [signal.name for signal in signals]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(
                    f"mapping: two {kind} columns are named {twice!r}; give each its own name"
                )
        for signal in self.action:
            if not (math.isfinite(signal.low) and math.isfinite(signal.high)):
                raise ValueError(
                    f"mapping: action {signal.name} needs low and high, which -1 and 1 stand for"
                )
        if "" in (self.time, self.episode, self.reward, self.terminated):
            raise ValueError("mapping: the name of a column is empty; write it, or leave it out")
        if self.gap is not None and (self.time is None or not self.gap > 0.0):
            raise ValueError(f"mapping: gap={self.gap}; it is a time above 0, of a time column")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n' or self.decimal not in (".", ","):
            raise ValueError(
                f"mapping: delimiter={shown(self.delimiter)} must be one letter, decimal="
                f"{shown(self.decimal)} a point or a comma"
            )
        if self.delimiter == self.decimal:
            raise ValueError(f"mapping: delimiter and decimal are both {self.decimal!r}")

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Those that must hold numbers in the rows that are used."""
        signals = [signal.column for signal in (*self.observation, *self.action)]
        more = [name for name in (self.reward, self.terminated) if name]
        clock = [self.time] if self.time and self.time_format == "number" else []
        return (*dict.fromkeys([*signals, *more, *self.cost, *clock]),)

    @property
    def columns(self) -> tuple[str, ...]:
        more = [name for name in (self.time, self.episode) if name]
        return (*dict.fromkeys([*self.number_columns, *more]),)


def read_mapping(path: str | Path) -> ColumnMapping:
    """The mapping in a YAML file; a ValueError of one line if something is wrong with it."""
    try:
        return _mapping(parse_yaml(read_text(path), str(path)))
    except ValueError as error:
        text = str(error)
        raise ValueError(
            one_line(text if text.startswith(str(path)) else f"{path}: {text}")
        ) from None


def _mapping(root: Node) -> ColumnMapping:
    nested = ("reward_at", "time_format")
    given = root.entries(f.name for f in fields(ColumnMapping) if f.name not in nested)
    values: dict[str, Any] = {}
    for kind in ("observation", "action"):
        node = given.pop(kind, None)
        if node is None or not isinstance(node.value, list):
            raise root.error(f"{kind} must be a list of columns, with at least one")
        values[kind] = tuple(
            _signal(Node(entry, root.source, (f"{kind} {n}",)))
            for n, entry in enumerate(node.value, start=1)
        )
    return ColumnMapping(**values, **mapping_options(given))


def mapping_options(given: dict[str, Node]) -> dict[str, Any]:
    """Fields of a `ColumnMapping` beside its signals, as YAML has them."""
    values: dict[str, Any] = {}
    for name, node in given.items():
        if isinstance(node.value, dict) and name in ("reward", "time"):
            values |= _with_extra(node, name)
        elif name == "gap":
            values[name] = node.number()
        elif name in ("cost", "missing"):
            listed = [node.value] if isinstance(node.value, str) else node.value
            if not isinstance(listed, list) or not all(isinstance(x, str) for x in listed):
                raise node.error(f"{shown(listed)}; it must be a list of texts")
            values[name] = tuple(listed)
        else:
            values[name] = node.text()
    return values


def _with_extra(node: Node, name: str) -> dict[str, Any]:
    """A column that is told with when it counts (reward), or how it is written (time)."""
    extra = "at" if name == "reward" else "format"
    entry = node.entries(("column", extra))
    if "column" not in entry:
        raise node.error("it has no column")
    values = {name: entry["column"].text()}
    if extra in entry:
        choices = ("this", "next") if name == "reward" else None
        values[f"{name}_{extra}"] = entry[extra].text(choices)
    return values


def _signal(node: Node) -> SignalColumn:
    if isinstance(node.value, str):
        return SignalColumn(node.value, node.value)
    entry = node.entries(f.name for f in fields(SignalColumn))
    if "column" not in entry:
        raise node.error("it has no column; write {column: NAME, ...}")
    column = entry.pop("column").text()
    values: dict[str, Any] = {"name": column}
    for name, value in entry.items():
        plain = name in ("name", "unit") and isinstance(value.value, str | int | float)
        values[name] = str(value.value) if plain else value.number()
    return SignalColumn(column, **values)
