"""The values of a constraint file, each checked with the place where it stands.

Every mistake is a ValueError of one line that begins with that place.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import yaml

from worldloom.core.names import suggest
from worldloom.safety.units import convert, parse_quantity, parse_unit


class SignalLike(Protocol):
    """A signal: of an actuator, -1 and 1 stand for `low` and `high`."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class _Loader(yaml.SafeLoader):
    """YAML in which a key that is written twice is a mistake and not a replacement."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.YAMLError(f"the key {key!r} is not a name")
            if key in seen:
                raise yaml.YAMLError(
                    f"{key} is written twice (line {key_node.start_mark.line + 1})"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str, source: str) -> Any:
    """What a YAML text says; `source` is named in errors."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{source}: not a YAML file: {' '.join(str(error).split())}") from None


def mapping(where: str, value: Any, keys: Sequence[str] | None) -> dict[str, Any]:
    """A value that must be keys with values, all of them known where `keys` are given."""
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {value!r} is not a list of keys with values")
    for key in value:
        if keys is not None and key not in keys:
            raise ValueError(f"{where}: unknown key {key!r}; {suggest(key, keys)}")
    return value


def by_name(signals: Sequence[SignalLike]) -> dict[str, SignalLike]:
    """Signals by their names, in their order."""
    return {signal.name: signal for signal in signals}


def known_signal(where: str, name: Any, known: dict[str, SignalLike], what: str) -> SignalLike:
    """The signal of that name."""
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{where}: there is no {what} {name!r}; {suggest(str(name), known)}")
    return known[name]


def quantity_and_unit(where: str, quantity: Any) -> tuple[float, str]:
    """The finite number and the unit of a quantity such as '375 K'."""
    try:
        value, unit = parse_quantity(quantity)
        parse_unit(unit)
    except OverflowError:
        raise ValueError(f"{where}: a number that large cannot be held") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not math.isfinite(value):
        raise ValueError(f"{where}: {quantity!r} is not finite")
    return value, unit


def quantity_in(where: str, quantity: Any, unit: str, *, difference: bool = False) -> float:
    """A quantity's value in a unit; see `convert` for differences."""
    value, given = quantity_and_unit(where, quantity)
    refuse_bare_share(where, quantity, given, unit)
    try:
        return convert(value, given, unit, difference=difference)
    except ValueError as error:
        raise ValueError(f"{where}: {quantity!r}: {error}; write it in {unit or '1'}") from None


def refuse_bare_share(where: str, quantity: Any, given: str, unit: str) -> None:
    """A ValueError for a bare 40 of what is measured in %: is it 40 % or 4000 %?"""
    known = parse_unit(unit)
    if not given and not known.base and known.factor != 1.0:
        raise ValueError(
            f"{where}: {quantity!r} has no unit, and this is measured in {unit}; "
            f"write '{quantity} {unit}'"
        )


def number(where: str, value: Any) -> float:
    """A finite number without a unit."""
    if isinstance(value, str):  # YAML takes 1e-3, which has no point, for a text
        with suppress(ValueError):
            value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e30:
        raise ValueError(f"{where}: {value!r} is not a finite number")
    return float(value)


def whole_number(where: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{where}: {value!r}; it must be a whole number of at least {least}")
    return value


def flag(where: str, value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {value!r}; it must be true or false")
    return value
