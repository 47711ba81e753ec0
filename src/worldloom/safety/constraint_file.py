"""Constraints from a YAML file in physical units.

    emergency: {jacket_setpoint: 280 K, feed: 80 L/min}   # of every actuator
    recovery:                                             # stages on the way there
      - {to: {feed: 0 L/min}, for: 30 s}                  # what is not named stays where it is
      - {to: {jacket_setpoint: 280 K}, for: 5, ramp: true}  # in 5 steps
    box:
      jacket_setpoint: {low: 12 degC, high: 315 K}        # narrower than the actuator's range
    rate:
      jacket_setpoint: {at_most: 100 K/min, hard: false}  # or in a step: 10 K; here an alarm
    linear:
      supply: {of: {feed: 1, bypass: 1}, at_most: 150 L/min}
    state:                                                # hard: crossed means emergency
      relief: {signal: temperature, at_most: 400 K}
    barriers:
      runaway: {signal: temperature, at_most: 375 K, gamma: 0.2, disturbance: 0.5 K}
    lookahead:
      steps: 20
      backup: loops      # what takes over: the plant's control loops, or `emergency`
      rows:
        runaway: {signal: temperature, at_most: 375 K}
    deviations: 2        # of an ensemble, taken off its mean
    latch_after: 3       # emergencies in a row

Only `emergency` must be there. What is not hard is an alarm: it is reported where it is crossed,
and changes no action. A box is always hard; an alarm is written as a row of a single actuator,
`linear: {gentle: {signal: feed, at_most: 100 L/min, hard: false}}`. A row's `alarm` is its priority
(low, medium, high), its `deadband` how far within the bound an alarm ends (2 K). Every unit is
checked against that of the signal. Every mistake is a ValueError of one line: file, key, what is
wrong and what to do.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from worldloom.core.names import shown, suggest
from worldloom.core.types import Array
from worldloom.core.yaml_nodes import Node, parse_yaml, read_text
from worldloom.replay.dataset_checks import Range
from worldloom.safety.constraints import (
    Alarm,
    Barrier,
    LinearRow,
    SafetyConstraints,
    StateRow,
    make_constraints,
)
from worldloom.safety.recovery import MOST_STEPS as LONGEST
from worldloom.safety.recovery import Stage
from worldloom.safety.units import convert, parse_quantity, parse_unit

KEYS = ("emergency", "recovery", "box", "rate", "linear", "state", "barriers", "lookahead")
NUMBERS = ("deviations", "latch_after")
MOST_STEPS = 10_000  # of a lookahead
ROW_KEYS = ("signal", "of", "at_most", "at_least", "hard", "alarm", "deadband")


class SignalLike(Range, Protocol):
    """A signal with its unit; of an actuator, -1 and 1 stand for `low` and `high`."""

    @property
    def unit(self) -> str: ...


Signals = Mapping[str, SignalLike]


def read_constraints(
    path: str | Path,
    signals_obs: Sequence[SignalLike],
    signals_action: Sequence[SignalLike],
    model: Callable[[Array, Array], Array] | None = None,
    **options: Any,
) -> SafetyConstraints:
    """The constraints in a file; see the module, and `parse_constraints` for the options."""
    return parse_constraints(
        read_text(path), str(path), signals_obs, signals_action, model, **options
    )


def parse_constraints(
    text: str,
    source: str,
    signals_obs: Sequence[SignalLike],
    signals_action: Sequence[SignalLike],
    model: Callable[[Array, Array], Array] | None = None,
    *,
    backup: Callable[[Array], Array] | None = None,
    hidden: Callable[[Array], Array] | None = None,
    loops: Callable[[Array], Array] | None = None,
    step_seconds: float | None = None,
) -> SafetyConstraints:
    """The constraints that a text writes down; `source` is named in errors.

    model, backup, hidden: those of `make_constraints`; a backup that is given counts, whatever the
    text says. loops: what `backup: loops` stands for there. step_seconds: how long a step of
    control takes, which rates in units of time need.
    """
    root = parse_yaml(text, source)
    parts = root.entries((*KEYS, *NUMBERS))
    if "emergency" not in parts:
        raise root.error("emergency is missing; say where each actuator goes then")
    signals, actuators = ({one.name: one for one in many} for many in (signals_obs, signals_action))
    file = _File(root, parts, signals, actuators, step_seconds)
    options: dict[str, Any] = {
        **file.box(),
        **file.rates(),
        **file.lookahead(),
        "linear": list(file.linear()),
        "state": [row for row, _ in file.state_rows(file.part("state"))],
        "barriers": list(file.barriers()),
        "emergency": file.emergency(),
        "recovery": file.recovery(),
        "backup": backup or file.backup(loops),
    }
    if "deviations" in parts:
        options["deviations"] = parts["deviations"].number()
    if "latch_after" in parts:
        options["latch_after"] = parts["latch_after"].whole(least=0)
    try:
        options |= {"model": model, "hidden": hidden, "actuators": list(actuators)}
        return make_constraints(len(signals_obs), **options)
    except ValueError as error:  # what is wrong with the numbers together
        raise root.error(str(error)) from None


def parse_stages(
    node: Node, signals_action: Sequence[SignalLike], step_seconds: float | None
) -> list[Stage]:
    """The stages of a recovery procedure that a list writes down."""
    actuators = {one.name: one for one in signals_action}
    return _File(node, {"recovery": node}, {}, actuators, step_seconds).recovery()


# Values with units -------------------------------------------------------------------------------


def _quantity(node: Node) -> tuple[float, str]:
    """The finite number and the unit of a quantity such as '375 K'."""
    try:
        value, unit = parse_quantity(node.value)
        parse_unit(unit)
    except OverflowError:
        raise node.error("a number that large cannot be held") from None
    except ValueError as error:
        raise node.error(str(error)) from None
    if not math.isfinite(value):
        raise node.error(f"{shown(node.value)} is not finite")
    return value, unit


def _value_in(node: Node, unit: str, *, difference: bool = False, hint: str = "") -> float:
    """A quantity's value in a unit; see `convert` for differences. hint: how else to write it."""
    value, given = _quantity(node)
    known = parse_unit(unit)
    if not given and not known.base and known.factor != 1.0:  # is a bare 40 40 % or 4000 %?
        raise node.error(
            f"{shown(node.value)} has no unit, and this is measured in {unit}; "
            f"write '{node.value} {unit}'"
        )
    try:
        return convert(value, given, unit, difference=difference)
    except ValueError as error:
        hint = hint or f"in {unit or '1'}"
        raise node.error(f"{shown(node.value)}: {error}; write it {hint}") from None


def _known(node: Node, name: Any, known: Signals, what: str) -> SignalLike:
    """The signal of that name."""
    if not isinstance(name, str) or name not in known:
        raise node.error(f"there is no {what} {shown(name)}; {suggest(str(name), list(known))}")
    return known[name]


def _is_hard(entry: Mapping[str, Node]) -> bool:
    return entry["hard"].flag() if "hard" in entry else True


@dataclass(frozen=True)
class _File:
    """A file's content, and the signals it may speak of."""

    root: Node
    parts: Mapping[str, Node]
    signals: Signals
    actuators: Signals
    step_seconds: float | None

    def part(self, key: str) -> dict[str, Node]:
        return self.parts[key].entries() if key in self.parts else {}

    # Actuators -----------------------------------------------------------------------------------

    def share(self, node: Node, name: str) -> float:
        """An actuator's physical value as a number of [-1, 1]."""
        signal = _known(node, name, self.actuators, "actuator")
        value, span = _value_in(node, signal.unit), signal.high - signal.low
        if not signal.low - 1e-6 * span <= value <= signal.high + 1e-6 * span:
            raise node.error(
                f"{node.value} is outside of what {name} can do, "
                f"{signal.low:g} .. {signal.high:g} {signal.unit}"
            )
        return min(max(2.0 * (value - signal.low) / span - 1.0, -1.0), 1.0)

    def emergency(self) -> np.ndarray:
        given = {name: self.share(node, name) for name, node in self.part("emergency").items()}
        for name in self.actuators:
            if name not in given:
                where = f"{self.root.where}: emergency.{name}"
                raise ValueError(f"{where} is missing; every actuator needs one")
        return np.asarray([given[name] for name in self.actuators], np.float32)

    def recovery(self) -> list[Stage]:
        stages, names = [], list(self.actuators)
        for node in self.parts["recovery"].items() if "recovery" in self.parts else ():
            entry = node.entries(("to", "for", "ramp"))
            if "for" not in entry:
                raise node.error("for is missing; say how long it takes, such as 30 s")
            to = entry["to"].entries() if "to" in entry else {}
            targets = {name: self.share(value, name) for name, value in to.items()}
            ramp = entry["ramp"].flag() if "ramp" in entry else False
            by_index = {names.index(name): value for name, value in targets.items()}
            stages.append(Stage(by_index, self.steps(entry["for"]), ramp))
        return stages

    def steps(self, node: Node) -> int:
        """A duration in steps, at least 1: a whole number of them, or a time."""
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return node.whole(1, LONGEST)
        seconds = _value_in(node, "s", hint="as a time (30 s) or in steps (5)")
        if self.step_seconds is None:
            raise node.error(f"{node.value!r}: the length of a step is unknown; write steps (5)")
        steps = math.ceil(seconds / self.step_seconds - 1e-9)
        if not 1 <= steps <= LONGEST:
            raise node.error(f"{shown(node.value)} is {steps} steps; use 1 to {LONGEST}")
        return steps

    def box(self) -> dict[str, np.ndarray]:
        ends = {"low": np.full(len(self.actuators), -1.0), "high": np.ones(len(self.actuators))}
        for name, node in self.part("box").items():
            _known(node, name, self.actuators, "actuator")
            for end, value in node.entries(("low", "high")).items():
                ends[end][list(self.actuators).index(name)] = self.share(value, name)
        return ends

    def rates(self) -> dict[str, Any]:
        rates, soft = {}, []
        for name, node in self.part("rate").items():
            signal = _known(node, name, self.actuators, "actuator")
            entry = node.entries(("at_most", "hard"))
            if "at_most" not in entry:
                raise ValueError(f"{node.where}.at_most is missing; say by how much it may change")
            index = list(self.actuators).index(name)
            change = self.change(entry["at_most"], signal.unit)
            rates[index] = 2.0 * change / (signal.high - signal.low)
            if not _is_hard(entry):
                soft.append(index)
        return {"rate": rates, "soft_rates": soft}

    def change(self, node: Node, unit: str) -> float:
        """A change in a step, also of one that is given in a unit of time."""
        value, given = _quantity(node)
        in_time = f"{unit}/s" if unit else "1/s"
        if not given or parse_unit(given).base != parse_unit(in_time).base:
            hint = f"as a change in a step ({unit}) or in time ({unit}/min)"
            return _value_in(node, unit, difference=True, hint=hint)
        if self.step_seconds is None:
            raise node.error(
                f"{node.value!r}: the length of a step is unknown; "
                f"write the change in a step, in {unit}"
            )
        return convert(value, given, in_time, difference=True) * self.step_seconds

    def linear(self) -> Iterator[LinearRow]:
        low, high = (
            np.asarray([getattr(signal, end) for signal in self.actuators.values()])
            for end in ("low", "high")
        )
        for name, node in self.part("linear").items():
            entry = node.entries(ROW_KEYS)
            weights, bound, sign, _ = self.sum(node, entry, self.actuators, "actuator")
            # Physical values are (low + high) / 2 + u (high - low) / 2.
            shares = sign * weights * (high - low) / 2.0
            rest = sign * (bound - float(weights @ (low + high)) / 2.0)
            alarm = self.alarm(entry, weights, self.actuators)
            yield LinearRow(name, shares.tolist(), rest, hard=_is_hard(entry), alarm=alarm)

    # Signals -------------------------------------------------------------------------------------

    def sum(
        self, node: Node, entry: Mapping[str, Node], known: Signals, what: str
    ) -> tuple[np.ndarray, float, int, float]:
        """Weights, bound, whether the sum must stay below (1) or above it (-1), and its scale."""
        if ("signal" in entry) == ("of" in entry):
            raise node.error("give either signal: NAME or of: {NAME: FACTOR, ...}")
        if "signal" in entry:
            factors = {_known(entry["signal"], entry["signal"].value, known, what).name: 1.0}
        else:
            listed = entry["of"].entries()
            for name in listed:
                _known(entry["of"], name, known, what)
            factors = {name: factor.number() for name, factor in listed.items()}
        weights = np.asarray([factors.get(name, 0.0) for name in known])
        units = sorted({known[name].unit for name in factors})
        if not weights.any():
            raise entry["of"].error("every factor is 0; a sum of nothing cannot be kept")
        if len(units) > 1:
            raise entry["of"].error(
                f"adds up signals in {', '.join(units)}; they must have one unit"
            )
        if ("at_most" in entry) == ("at_least" in entry):
            raise node.error("give either at_most or at_least")
        end = entry["at_most" if "at_most" in entry else "at_least"]
        total = float(weights.sum())
        difference = not math.isclose(total, 1.0)
        zeros = [parse_unit(unit).zero for unit in (_quantity(end)[1], units[0])]
        if difference and total != 0.0 and zeros[0] != zeros[1]:
            raise end.error(
                f"{end.value!r}: a sum of temperatures has no zero of its own; "
                f"write it in {units[0]}"
            )
        bound = _value_in(end, units[0], difference=difference)
        sizes = [max(abs(signal.low), abs(signal.high)) for signal in known.values()]
        scale = float(np.abs(weights) @ np.asarray(sizes)) + abs(bound)
        return weights, bound, 1 if "at_most" in entry else -1, scale

    def state_rows(
        self, part: Mapping[str, Node], extra: tuple[str, ...] = ()
    ) -> Iterator[tuple[StateRow, dict[str, Node]]]:
        """The rows of a part, each with its entries."""
        for name, node in part.items():
            entry = node.entries(ROW_KEYS + extra)
            weights, bound, sign, scale = self.sum(node, entry, self.signals, "signal")
            alarm = self.alarm(entry, weights, self.signals)
            options = {"hard": _is_hard(entry), "scale": scale, "alarm": alarm}
            yield StateRow(name, (-sign * weights).tolist(), sign * bound, **options), entry

    def alarm(self, entry: Mapping[str, Node], weights: np.ndarray, known: Signals) -> Alarm:
        priority = entry["alarm"].text(("low", "medium", "high")) if "alarm" in entry else "medium"
        deadband = 0.0
        if "deadband" in entry:
            node = entry["deadband"]
            unit = next(s.unit for s, w in zip(known.values(), weights, strict=True) if w)
            deadband = _value_in(node, unit, difference=True)
            if deadband < 0.0:
                raise node.error(f"{node.value}; it must not be negative")
        return Alarm(priority, deadband)  # pyright: ignore[reportArgumentType]

    def barriers(self) -> Iterator[Barrier]:
        for row, entry in self.state_rows(self.part("barriers"), ("gamma", "disturbance")):
            options = {}
            if "gamma" in entry:
                options["gamma"] = entry["gamma"].number()
                if not 0.0 < options["gamma"] <= 1.0:
                    raise entry["gamma"].error(
                        f"{options['gamma']:g}; it must be above 0 and at most 1"
                    )
            if "disturbance" in entry:
                node = entry["disturbance"]
                known = zip(self.signals.values(), row.weights, strict=True)
                unit = next(signal.unit for signal, weight in known if weight)
                options["disturbance"] = _value_in(node, unit, difference=True)
                if options["disturbance"] < 0.0:
                    raise node.error(f"{node.value}; it must not be negative")
            yield Barrier(**vars(row), **options)

    def lookahead(self) -> dict[str, Any]:
        if not self.part("lookahead"):
            return {}
        node = self.parts["lookahead"]
        entry = node.entries(("steps", "backup", "rows"))
        for name in ("steps", "rows"):
            if name not in entry:
                raise node.error(f"{name} is missing")
        rows = [row for row, _ in self.state_rows(entry["rows"].entries())]
        return {"horizon": entry["steps"].whole(1, MOST_STEPS), "lookahead": rows}

    def backup(self, loops: Callable[[Array], Array] | None) -> Callable[[Array], Array] | None:
        node = self.part("lookahead").get("backup")
        if node is None or node.text(("emergency", "loops")) == "emergency":
            return None
        if loops is None:
            raise node.error("loops, of which none are known here; write emergency")
        return loops
