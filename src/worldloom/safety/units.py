"""Quantities with units, as far as plants need them: "375 K", "101.85 degC", "10 K/min".

A unit is a product of known names, with `/`, `*` and powers (`m3`, `s^2`). Names that are not in
the tables here are looked up in pint, where it is installed. What pint does not know either (such
as "U" of insulin) is a unit of its own, which nothing else converts to.
"""

import importlib.util
import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

# Units that prefixes go before, and those that they do not: a factor, and what it is of.
_PREFIXED: dict[str, tuple[float, str]] = {
    "g": (1e-3, "kg"), "L": (1e-3, "m3"), "Hz": (1.0, "1/s"), "N": (1.0, "kg*m/s2"),
    "Pa": (1.0, "N/m2"), "J": (1.0, "N*m"), "W": (1.0, "J/s"), "Wh": (3600.0, "J"),
    "V": (1.0, "W/A"), "bar": (1e5, "Pa"),
}  # fmt: skip
_PLAIN: dict[str, tuple[float, str]] = {
    "min": (60.0, "s"), "h": (3600.0, "s"), "d": (86400.0, "s"), "t": (1e3, "kg"),
    "degC": (1.0, "K"), "degF": (5.0 / 9.0, "K"), "deg": (math.pi / 180.0, "rad"),
    "1": (1.0, ""), "%": (0.01, ""), "percent": (0.01, ""), "ppm": (1e-6, ""),
    "atm": (101325.0, "Pa"),
}  # fmt: skip
_BASE = ("s", "m", "kg", "mol", "K", "rad", "A")  # of which prefixes go before s, m, mol and A
_PINT_BASE = {"second": "s", "meter": "m", "kilogram": "kg", "mole": "mol", "kelvin": "K",
              "radian": "rad", "ampere": "A"}  # fmt: skip
_OWN = ("U",)  # of insulin; to pint it is a unit of enzymes
_PREFIX = {"k": 1e3, "M": 1e6, "d": 0.1, "c": 1e-2, "m": 1e-3}
# Where zero lies, in K, of temperatures that stand alone; differences of them have no zero.
_ZERO = {"degC": 273.15, "degF": 459.67 * 5.0 / 9.0}
_NAMES = {"°C": "degC", "°F": "degF", "°": "deg", "l": "L", "dl": "dL", "ml": "mL", "hr": "h",
          "hour": "h", "hours": "h", "minute": "min", "minutes": "min", "second": "s",
          "seconds": "s", "sec": "s", "day": "d", "days": "d", "degree": "deg",
          "degrees": "deg"}  # fmt: skip
_ATOM = re.compile(r"(.*?)(?:\^?(-?[0-9]+))?")
_QUANTITY = re.compile(r"\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(.*?)\s*")


@dataclass(frozen=True)
class Unit:
    """`factor` base units of the powers `base`; `zero`: what 0 of it is in base units."""

    text: str
    factor: float
    base: tuple[tuple[str, int], ...]
    zero: float = 0.0


@cache
def parse_unit(text: str) -> Unit:
    """The unit that a text names; a ValueError if it is not written as one."""
    factor, powers = 1.0, {}
    parts = re.split(r"([/*·])", text.strip().replace(" ", ""))
    names = [_NAMES.get(part, part) for part in parts]
    for i in range(0, len(names), 2):
        sign = -1 if i and names[i - 1] == "/" else 1
        if not names[i] and len(names) > 1:
            raise ValueError(f"the unit {text!r} has an empty place; write for example 'L/min'")
        size, base, power = _atom(names[i])
        factor *= size ** (sign * power)
        for name, exponent in base:
            powers[name] = powers.get(name, 0) + sign * power * exponent
    base = tuple(sorted((name, power) for name, power in powers.items() if power))
    zero = _ZERO.get(names[0], 0.0) if len(names) == 1 else 0.0
    return Unit(text.strip(), factor, base, zero)


def _atom(name: str) -> tuple[float, tuple[tuple[str, int], ...], int]:
    """Factor, powers of base units, and the power that the name ends in."""
    match = _ATOM.fullmatch(name)
    if not name or name in _PLAIN or match is None:
        stem, power = name, 1
    else:
        stem, power = match[1], int(match[2] or 1)
    stem = _NAMES.get(stem, stem)
    if stem in _PREFIXED or stem in _PLAIN:
        factor, expression = (_PREFIXED | _PLAIN)[stem]
        unit = parse_unit(expression)
        return factor * unit.factor, unit.base, power
    rest = stem[1:]
    if stem not in _BASE and stem[:1] in _PREFIX and rest in (*_PREFIXED, "s", "m", "mol", "A"):
        factor, base, _ = _atom(rest)
        return _PREFIX[stem[0]] * factor, base, power
    if stem in ("", *_BASE, *_OWN):
        return 1.0, ((stem, 1),) if stem else (), power
    factor, base = _of_pint(stem) or (1.0, ((stem, 1),))
    return factor, base, power


def _of_pint(name: str) -> tuple[float, tuple[tuple[str, int], ...]] | None:
    """What pint knows of a unit; None where it knows none, or one whose zero is its own."""
    registry = _registry()
    if registry is None:
        return None
    try:
        factor, unit = registry.get_base_units(name)
        powers = {_PINT_BASE.get(str(base), str(base)): p for base, p in unit._units.items()}
    except Exception:  # pint has many words for a unit that it does not know
        return None
    if any(power != int(power) for power in powers.values()):
        return None
    return float(factor), tuple(sorted((base, int(power)) for base, power in powers.items()))


@cache
def _registry() -> Any:
    """Pint's units, which take half a second to read; None where it is not installed."""
    if importlib.util.find_spec("pint") is None:
        return None
    import pint

    return pint.UnitRegistry()


def convert(value: float, source: str, target: str, *, difference: bool = False) -> float:
    """A value in another unit. difference: it is one, so that 10 degC are 10 K.

    A ValueError where the units do not measure the same thing.
    """
    old, new = parse_unit(source), parse_unit(target)
    if old.base != new.base:
        more = "" if importlib.util.find_spec("pint") else " (more units: pip install pint)"
        raise ValueError(
            f"{old.text or 'a number without a unit'} is no unit of what is measured in "
            f"{new.text or 'numbers without a unit'}{more}"
        )
    if old.factor == new.factor and old.zero == new.zero:
        return value
    if difference:
        return value * old.factor / new.factor
    return (value * old.factor + old.zero - new.zero) / new.factor


def parse_quantity(text: object) -> tuple[float, str]:
    """The number and the unit of a text such as '375 K'; a bare number has the unit ''."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return float(text), ""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit, such as '375 K'")
    return float(match[1]), match[2]
