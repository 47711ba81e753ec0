"""Constraints from a YAML file in physical units.

    emergency: {jacket_setpoint: 280 K, feed: 80 L/min}   # of every actuator
    box:
      jacket_setpoint: {low: 12 degC, high: 315 K}        # narrower than the actuator's range
    rate:
      jacket_setpoint: {at_most: 100 K/min, hard: false}  # or in a step: 10 K
    linear:
      supply: {of: {feed: 1, bypass: 1}, at_most: 150 L/min}
    state:                                                # hard: crossed means emergency
      relief: {signal: temperature, at_most: 400 K}
    barriers:
      runaway: {signal: temperature, at_most: 375 K, gamma: 0.2, disturbance: 0.5 K}
    lookahead:
      steps: 20
      backup: loops      # what takes over: the plant's control loops, or the emergency action
      rows:
        runaway: {signal: temperature, at_most: 375 K}
    deviations: 2        # of an ensemble, taken off its mean
    latch_after: 3       # emergencies in a row

Only `emergency` must be there. A box is always hard; a soft one is written as rows of a single
actuator, `linear: {gentle: {signal: feed, at_most: 100 L/min, hard: false}}`. Every unit is checked
against that of the signal. Every mistake is a ValueError of one line: file, key, what is wrong and
what to do.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.types import Array
from worldloom.safety.constraints import (
    Barrier,
    LinearRow,
    SafetyConstraints,
    StateRow,
    make_constraints,
)
from worldloom.safety.file_values import (
    SignalLike,
    by_name,
    flag,
    known_signal,
    load_yaml,
    mapping,
    number,
    quantity_and_unit,
    quantity_in,
    refuse_bare_share,
    whole_number,
)
from worldloom.safety.units import convert, parse_unit

KEYS = (
    "emergency", "box", "rate", "linear", "state", "barriers", "lookahead", "deviations",
    "latch_after",
)  # fmt: skip
ROW_KEYS = ("signal", "of", "at_most", "at_least", "hard")


def read_constraints(
    path: str | Path,
    signals_obs: Sequence[SignalLike],
    signals_action: Sequence[SignalLike],
    model: Callable[[Array, Array], Array] | None = None,
    *,
    backup: Callable[[Array], Array] | None = None,
    loops: Callable[[Array], Array] | None = None,
    step_seconds: float | None = None,
) -> SafetyConstraints:
    """The constraints in a file; see the module.

    model, backup: those of `make_constraints`; a backup that is given counts, whatever the file
    says. loops: what `backup: loops` stands for there. step_seconds: how long a step of control
    takes, which rates in units of time need.
    """
    return parse_constraints(
        read_text(path), str(path), signals_obs, signals_action, model,
        backup=backup, loops=loops, step_seconds=step_seconds,
    )  # fmt: skip


def read_text(path: str | Path) -> str:
    """A constraint file as it is; a ValueError of one line if it is no text file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as a text file ({error})") from None


def parse_constraints(
    text: str,
    source: str,
    signals_obs: Sequence[SignalLike],
    signals_action: Sequence[SignalLike],
    model: Callable[[Array, Array], Array] | None = None,
    *,
    backup: Callable[[Array], Array] | None = None,
    loops: Callable[[Array], Array] | None = None,
    step_seconds: float | None = None,
) -> SafetyConstraints:
    """The constraints that a text writes down; `source` is named in errors."""
    written = mapping(source, load_yaml(text, source), KEYS)
    file = _File(source, written, by_name(signals_obs), by_name(signals_action), step_seconds)
    if "emergency" not in written:
        raise ValueError(f"{source}: emergency is missing; say where each actuator goes then")
    low, high = file.box()
    rate, soft = file.rates()
    horizon, ahead = file.lookahead()
    backup = backup or file.backup(loops)
    try:
        return make_constraints(
            len(signals_obs), file.emergency(),
            low=low, high=high, rate=rate, soft_rates=soft, linear=file.linear(),
            state=[StateRow(*row) for row in file.state_rows("state")],
            barriers=file.barriers(), lookahead=ahead, horizon=horizon,
            model=model, backup=backup,
            deviations=file.number("deviations", 2.0),
            latch_after=file.whole("latch_after", 3, least=0),
            actuators=list(file.actuators),
        )  # fmt: skip
    except ValueError as error:
        # What is wrong with the numbers together; those of the file itself name it already.
        text = str(error)
        raise ValueError(text if text.startswith(source) else f"{source}: {text}") from None


@dataclass(frozen=True)
class _File:
    """A file's content, and the signals it may speak of."""

    source: str
    written: Mapping[str, Any]
    signals: dict[str, SignalLike]
    actuators: dict[str, SignalLike]
    step_seconds: float | None

    def part(self, key: str) -> dict[str, Any]:
        value = self.written.get(key)
        return mapping(f"{self.source}: {key}", value if value is not None else {}, None)

    # Actuators -----------------------------------------------------------------------------------

    def share(self, where: str, name: str, quantity: Any) -> float:
        """An actuator's physical value as a number of [-1, 1]."""
        signal = known_signal(where, name, self.actuators, "actuator")
        value = quantity_in(where, quantity, signal.unit)
        span = signal.high - signal.low
        if not signal.low - 1e-6 * span <= value <= signal.high + 1e-6 * span:
            raise ValueError(
                f"{where}: {quantity} is outside of what {name} can do, "
                f"{signal.low:g} .. {signal.high:g} {signal.unit}"
            )
        return min(max(2.0 * (value - signal.low) / span - 1.0, -1.0), 1.0)

    def emergency(self) -> np.ndarray:
        part = self.part("emergency")
        found = {
            name: self.share(f"{self.source}: emergency.{name}", name, value)
            for name, value in part.items()
        }
        for name in self.actuators:
            if name not in found:
                raise ValueError(
                    f"{self.source}: emergency.{name} is missing; every actuator needs one"
                )
        return np.asarray([found[name] for name in self.actuators], np.float32)

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        ends = {"low": np.full(len(self.actuators), -1.0), "high": np.ones(len(self.actuators))}
        for name, entry in self.part("box").items():
            where = f"{self.source}: box.{name}"
            known_signal(where, name, self.actuators, "actuator")
            for end, value in mapping(where, entry, ("low", "high")).items():
                index = list(self.actuators).index(name)
                ends[end][index] = self.share(f"{where}.{end}", name, value)
        return ends["low"], ends["high"]

    def rates(self) -> tuple[dict[int, float], list[int]]:
        rates, soft = {}, []
        for name, entry in self.part("rate").items():
            where = f"{self.source}: rate.{name}"
            signal = known_signal(where, name, self.actuators, "actuator")
            row = mapping(where, entry, ("at_most", "hard"))
            if "at_most" not in row:
                raise ValueError(f"{where}.at_most is missing; say by how much it may change")
            change = self.change(f"{where}.at_most", row["at_most"], signal.unit)
            index = list(self.actuators).index(name)
            rates[index] = 2.0 * change / (signal.high - signal.low)
            if not flag(f"{where}.hard", row.get("hard", True)):
                soft.append(index)
        return rates, soft

    def change(self, where: str, quantity: Any, unit: str) -> float:
        """A change in a step, also of one that is given in a unit of time."""
        value, given = quantity_and_unit(where, quantity)
        refuse_bare_share(where, quantity, given, unit)
        try:
            return convert(value, given, unit, difference=True)
        except ValueError:
            pass
        try:
            in_a_second = convert(value, given, f"{unit}/s" if unit else "1/s", difference=True)
        except ValueError as error:
            raise ValueError(
                f"{where}: {quantity!r}: {error}; write it as a change in a step ({unit}) "
                f"or in time ({unit}/min)"
            ) from None
        if self.step_seconds is None:
            raise ValueError(f"{where}: {quantity!r}: the length of a step is unknown; "
                             f"write the change in a step, in {unit}")  # fmt: skip
        return in_a_second * self.step_seconds

    def linear(self) -> list[LinearRow]:
        rows = []
        for name, entry in self.part("linear").items():
            where = f"{self.source}: linear.{name}"
            row = mapping(where, entry, ROW_KEYS)
            weights, bound, sign = self.sum(where, row, self.actuators, "actuator")
            low = np.asarray([signal.low for signal in self.actuators.values()])
            high = np.asarray([signal.high for signal in self.actuators.values()])
            # Physical values are (low + high) / 2 + u (high - low) / 2.
            shares = sign * weights * (high - low) / 2.0
            rest = sign * (bound - float(weights @ (low + high)) / 2.0)
            scale = float(np.abs(weights) @ np.maximum(np.abs(low), np.abs(high))) + abs(bound)
            hard = flag(f"{where}.hard", row.get("hard", True))
            rows.append(LinearRow(name, shares.tolist(), rest, hard, scale))
        return rows

    # Signals -------------------------------------------------------------------------------------

    def sum(
        self, where: str, row: Mapping[str, Any], known: dict[str, SignalLike], what: str
    ) -> tuple[np.ndarray, float, int]:
        """Weights, bound, and whether the sum must stay below (1) or above it (-1)."""
        if ("signal" in row) == ("of" in row):
            raise ValueError(f"{where}: give either signal: NAME or of: {{NAME: FACTOR, ...}}")
        if "signal" in row:
            known_signal(f"{where}.signal", row["signal"], known, what)
            of = {row["signal"]: 1.0}
        else:
            of = mapping(f"{where}.of", row["of"], None)
        weights = np.zeros(len(known))
        units = {}
        for name, factor in of.items():
            signal = known_signal(f"{where}.of", name, known, what)
            units[signal.unit] = name
            weights[list(known).index(name)] = number(f"{where}.of.{name}", factor)
        if not weights.any():
            raise ValueError(f"{where}.of: every factor is 0; a sum of nothing cannot be kept")
        if len(units) > 1:
            raise ValueError(f"{where}.of: adds up signals in {', '.join(sorted(units))}; "
                             "they must have one unit")  # fmt: skip
        if ("at_most" in row) == ("at_least" in row):
            raise ValueError(f"{where}: give either at_most or at_least")
        end = "at_most" if "at_most" in row else "at_least"
        unit = next(iter(units))
        total = float(weights.sum())
        difference = not math.isclose(total, 1.0)
        _, given = quantity_and_unit(f"{where}.{end}", row[end])
        if difference and total != 0.0 and parse_unit(given).zero != parse_unit(unit).zero:
            raise ValueError(f"{where}.{end}: {row[end]!r}: a sum of temperatures has no zero of "
                             f"its own; write it in {unit}")  # fmt: skip
        bound = quantity_in(f"{where}.{end}", row[end], unit, difference=difference)
        return weights, bound, 1 if end == "at_most" else -1

    def state_rows(
        self, key: str, part: Mapping[str, Any] | None = None, extra: tuple[str, ...] = ()
    ) -> list[tuple[str, list[float], float, bool, float]]:
        """Name, weights, offset, hard and scale of each row of a part."""
        rows = []
        for name, entry in (self.part(key) if part is None else part).items():
            where = f"{self.source}: {key}.{name}"
            row = mapping(where, entry, ROW_KEYS + extra)
            weights, bound, sign = self.sum(where, row, self.signals, "signal")
            ends = [max(abs(s.low), abs(s.high)) for s in self.signals.values()]
            scale = float(np.abs(weights) @ np.asarray(ends)) + abs(bound)
            hard = flag(f"{where}.hard", row.get("hard", True))
            rows.append((name, (-sign * weights).tolist(), sign * bound, hard, scale))
        return rows

    def barriers(self) -> list[Barrier]:
        made = []
        part = self.part("barriers")
        for row in self.state_rows("barriers", part, ("gamma", "disturbance")):
            entry, where = part[row[0]], f"{self.source}: barriers.{row[0]}"
            gamma = number(f"{where}.gamma", entry.get("gamma", 0.2))
            if not 0.0 < gamma <= 1.0:
                raise ValueError(f"{where}.gamma: {gamma:g}; it must be above 0 and at most 1")
            signal = entry.get("signal") or next(iter(entry["of"]))
            unit = self.signals[signal].unit
            worst = entry.get("disturbance")
            disturbance = 0.0 if worst is None else quantity_in(
                f"{where}.disturbance", worst, unit, difference=True
            )  # fmt: skip
            if disturbance < 0.0:
                raise ValueError(f"{where}.disturbance: {worst}; it must not be negative")
            made.append(Barrier(*row, gamma=gamma, disturbance=disturbance))
        return made

    def lookahead(self) -> tuple[int, list[StateRow]]:
        part = self.part("lookahead")
        if not part:
            return 0, []
        part = mapping(f"{self.source}: lookahead", part, ("steps", "backup", "rows"))
        steps = whole_number(f"{self.source}: lookahead.steps", part.get("steps"), least=1)
        rows = mapping(f"{self.source}: lookahead.rows", part.get("rows"), None)
        return steps, [StateRow(*row) for row in self.state_rows("lookahead.rows", rows)]

    def backup(self, loops: Callable[[Array], Array] | None) -> Callable[[Array], Array] | None:
        named = self.part("lookahead").get("backup", "emergency")
        if named not in ("emergency", "loops"):
            where = f"{self.source}: lookahead.backup"
            raise ValueError(f"{where}: {named!r}; it must be emergency or loops")
        if named == "loops" and loops is None:
            where = f"{self.source}: lookahead.backup"
            raise ValueError(f"{where}: loops, of which none are known here; write emergency")
        return loops if named == "loops" else None

    # Numbers -------------------------------------------------------------------------------------

    def number(self, key: str, default: float) -> float:
        return number(f"{self.source}: {key}", self.written.get(key, default))

    def whole(self, key: str, default: int, least: int) -> int:
        return whole_number(f"{self.source}: {key}", self.written.get(key, default), least)
