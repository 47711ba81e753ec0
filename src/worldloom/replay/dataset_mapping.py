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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from worldloom.core.names import suggest


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
            if not getattr(self, kind):
                raise ValueError(f"mapping: there is no {kind}; list at least one column")
        for signal in self.action:
            if not (math.isfinite(signal.low) and math.isfinite(signal.high)):
                raise ValueError(
                    f"mapping: action {signal.name} needs low and high, which -1 and 1 stand for"
                )
        if self.gap is not None and (self.time is None or not self.gap > 0.0):
            raise ValueError(f"mapping: gap={self.gap}; it is a time above 0, of a time column")
        if len(self.delimiter) != 1 or self.decimal not in (".", ","):
            raise ValueError(
                f"mapping: delimiter={self.delimiter!r} must be one letter, decimal="
                f"{self.decimal!r} a point or a comma"
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
    import yaml

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such mapping file")
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path} is not a YAML file: {said}") from None
    try:
        return mapping(found)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def mapping(values: Any) -> ColumnMapping:
    """A mapping from plain values, as YAML has them."""
    if not isinstance(values, Mapping):
        raise ValueError(f"a mapping is a list of names and values, not {type(values).__name__}")
    nested = ("reward_at", "time_format")
    known = [name for name in ColumnMapping.__dataclass_fields__ if name not in nested]
    for name in values:
        if name not in known:
            raise ValueError(f"mapping: there is no setting {name!r}; {suggest(str(name), known)}")
    given = {name: value for name, value in values.items() if value is not None}
    for name in ("observation", "action"):
        given[name] = _signals(name, given.get(name))
    for name, extra, choices in (("reward", "at", ("this", "next")), ("time", "format", None)):
        if isinstance(given.get(name), Mapping):
            given |= _with_extra(name, given[name], extra, choices)
    for name in ("name", "reward", "time", "episode", "terminated", "delimiter", "decimal"):
        if name in given and not isinstance(given[name], str):
            raise ValueError(f"mapping: {name} must be a text, not {given[name]!r}")
    for name in ("cost", "missing"):
        if name in given:
            listed = [given[name]] if isinstance(given[name], str) else given[name]
            if not isinstance(listed, list) or not all(isinstance(x, str) for x in listed):
                raise ValueError(f"mapping: {name} must be a list of texts, not {given[name]!r}")
            given[name] = tuple(listed)
    if "gap" in given:
        given["gap"] = _number("gap", given["gap"])
    return ColumnMapping(**given)


def _with_extra(name: str, value: Any, extra: str, choices: tuple[str, ...] | None) -> dict:
    for key in value:
        if key not in ("column", extra):
            hint = suggest(str(key), ["column", extra])
            raise ValueError(f"mapping: {name} has no {key!r}; {hint}")
    if "column" not in value:
        raise ValueError(f"mapping: {name} has no column")
    found = {name: value["column"]}
    if extra in value:
        said = value[extra]
        if not isinstance(said, str) or (choices and said not in choices):
            wanted = " or ".join(choices) if choices else "number, iso or a format of strptime"
            raise ValueError(f"mapping: {name}: {extra}={said!r}; use {wanted}")
        found[f"{name}_{extra}"] = said
    return found


def _signals(kind: str, listed: Any) -> tuple[SignalColumn, ...]:
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"mapping: {kind} must be a list of columns, with at least one")
    known = list(SignalColumn.__dataclass_fields__)
    found = []
    for i, entry in enumerate(listed):
        entry = {"column": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, Mapping) or not isinstance(entry.get("column"), str):
            raise ValueError(f"mapping: {kind} {i + 1} has no column; write {{column: NAME, ...}}")
        where = f"mapping: {kind} {entry['column']}"
        for name in entry:
            if name not in known:
                raise ValueError(f"{where} has no {name!r}; {suggest(str(name), known)}")
        values: dict[str, Any] = {"name": entry["column"], **entry}
        for name in ("scale", "offset", "low", "high"):
            if name in values:
                values[name] = _number(f"{where}: {name}", values[name])
        for name in ("name", "unit"):
            values[name] = str(values.get(name, ""))
        found.append(SignalColumn(**values))
    names = [signal.name for signal in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"mapping: two {kind} columns are named {twice!r}; give each its own name")
    return tuple(found)


def _number(where: str, value: Any) -> float:
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}={value!r} is not a number") from None
