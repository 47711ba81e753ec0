"""Quantities with units, as far as plants need them: "375 K", "101.85 degC", "10 K/min".

A unit is a product of known names, with `/`, `*` and powers (`m3`, `s^2`). What is not in the table
(such as "U" of insulin) is a unit of its own, which nothing else converts to.
"""

import re
from dataclasses import dataclass

# name -> factor to the base unit, and the base unit
_SIMPLE: dict[str, tuple[float, str]] = {
    "s": (1.0, "s"), "ms": (1e-3, "s"), "min": (60.0, "s"), "h": (3600.0, "s"),
    "d": (86400.0, "s"),
    "m": (1.0, "m"), "mm": (1e-3, "m"), "cm": (1e-2, "m"), "km": (1e3, "m"),
    "kg": (1.0, "kg"), "g": (1e-3, "kg"), "mg": (1e-6, "kg"), "t": (1e3, "kg"),
    "mol": (1.0, "mol"), "mmol": (1e-3, "mol"), "kmol": (1e3, "mol"),
    "K": (1.0, "K"), "degC": (1.0, "K"), "degF": (5.0 / 9.0, "K"),
    "rad": (1.0, "rad"), "deg": (3.141592653589793 / 180.0, "rad"),
    "A": (1.0, "A"), "mA": (1e-3, "A"), "kA": (1e3, "A"),
    "1": (1.0, ""), "": (1.0, ""), "%": (0.01, ""), "percent": (0.01, ""), "ppm": (1e-6, ""),
}  # fmt: skip
# name -> factor, and powers of base units
_DERIVED: dict[str, tuple[float, dict[str, int]]] = {
    "L": (1e-3, {"m": 3}), "dL": (1e-4, {"m": 3}), "mL": (1e-6, {"m": 3}),
    "Hz": (1.0, {"s": -1}), "mHz": (1e-3, {"s": -1}),
    **{f"{prefix}{name}": (factor * 10.0**power, powers)
       for name, factor, powers in (
           ("N", 1.0, {"kg": 1, "m": 1, "s": -2}), ("Pa", 1.0, {"kg": 1, "m": -1, "s": -2}),
           ("J", 1.0, {"kg": 1, "m": 2, "s": -2}), ("W", 1.0, {"kg": 1, "m": 2, "s": -3}),
           ("Wh", 3600.0, {"kg": 1, "m": 2, "s": -2}),
           ("V", 1.0, {"kg": 1, "m": 2, "s": -3, "A": -1}))
       for prefix, power in (("", 0), ("k", 3), ("M", 6))},
    "bar": (1e5, {"kg": 1, "m": -1, "s": -2}), "mbar": (1e2, {"kg": 1, "m": -1, "s": -2}),
    "atm": (101325.0, {"kg": 1, "m": -1, "s": -2}),
}  # fmt: skip
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
        for name, exponent in base.items():
            powers[name] = powers.get(name, 0) + sign * power * exponent
    base = tuple(sorted((name, power) for name, power in powers.items() if power))
    zero = _ZERO.get(names[0], 0.0) if len(names) == 1 else 0.0
    return Unit(text.strip(), factor, base, zero)


def _atom(name: str) -> tuple[float, dict[str, int], int]:
    """Factor, powers of base units, and the power that the name ends in."""
    if name in _SIMPLE or name in _DERIVED:
        stem, power = name, 1
    else:
        match = _ATOM.fullmatch(name)
        stem, power = (match[1], int(match[2] or 1)) if match else (name, 1)
        stem = _NAMES.get(stem, stem)
    if stem in _SIMPLE:
        factor, base = _SIMPLE[stem]
        return factor, {base: 1} if base else {}, power
    factor, powers = _DERIVED.get(stem, (1.0, {stem: 1}))
    return factor, powers, power


def convert(value: float, source: str, target: str, *, difference: bool = False) -> float:
    """A value in another unit. difference: it is one, so that 10 degC are 10 K.

    A ValueError where the units do not measure the same thing.
    """
    old, new = parse_unit(source), parse_unit(target)
    if old.base != new.base:
        raise ValueError(f"{old.text or 'a number without a unit'} is no unit of what is measured "
                         f"in {new.text or 'numbers without a unit'}")  # fmt: skip
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
