"""A plant of one's own that nobody can simulate, described by a YAML file beside its log.

    name: boiler
    step: 60 s                # from one row to the next
    horizon: 240              # steps of an episode; longer stretches of the log are cut
    log:                      # how the file is written; all of it may be left out
      time: {column: timestamp, format: iso}
      gap: 10 min             # a longer pause begins a new episode
      resample: hold          # or linear: the samples are not `step` apart
      missing: [Bad, No Data]
      episode: batch          # a column that changes with the episode
      terminated: tripped     # a column of 0 and 1
    signals:
      temperature: {column: TI101, unit: K, file_unit: degF, low: 280, high: 420}
    actuators:
      valve: {column: FC7.OP, unit: "%", low: 0, high: 100, rate: 10 %/min, delay: 2 min}
    reward: -abs(temperature - 350) / 10 - 0.01 * valve     # or {column: profit, at: next}
    limits:
      overheat: {signal: temperature, at_most: 400 K}
      warm: {signal: temperature, at_least: 300 K, hard: false, alarm: low, deadband: 2 K}
    emergency: {valve: 0 %}   # where the actuators go when nothing better is known
    recovery: [{to: {valve: 50 %}, for: 5 min, ramp: true}]    # stages on the way there
    simulator: {fmu: boiler.fmu}       # the truth to compare with; see `simulators`

Numbers without a unit are in that of their signal, times in seconds. A rate is a change in time
(10 %/min) or in a step (10 %). A `delay` is dead time: what was done during it is still under way,
so that the last actions are observed as well, as `valve_1_ago` and so on. Every mistake is a
ValueError of one line: file, key, what is wrong and what to do.
"""

import hashlib
import json
import keyword
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flax import struct

from worldloom.core.names import shown, suggest
from worldloom.core.protocols import PureEnv
from worldloom.core.yaml_nodes import Node, parse_yaml, read_text
from worldloom.replay.dataset_mapping import ColumnMapping, SignalColumn, mapping_options
from worldloom.replay.dataset_resample import Method
from worldloom.safety.constraint_file import parse_stages
from worldloom.safety.units import convert, parse_quantity, parse_unit
from worldloom.suites.plant.expression import FUNCTIONS, Expression, parse_expression
from worldloom.suites.plant.plant import RESPONSE, make_world
from worldloom.suites.plant.types import Limit, Loop, Signal

KEYS = (
    *("name", "step", "horizon", "log", "signals", "actuators", "reward", "limits", "emergency"),
    *("recovery", "simulator"),
)
LOG_KEYS = ("time", "gap", "resample", "missing", "episode", "terminated", "delimiter", "decimal")
SIGNAL_KEYS = ("column", "unit", "file_unit", "low", "high")
LIMIT_KEYS = ("signal", "at_most", "at_least", "hard", "alarm", "deadband")
MOST_DELAY = 100  # steps of dead time, each of which is a signal more
WORLD_FILE = "world.yaml"  # a run's own copy of its description


class NoNumbers(struct.PyTreeNode):
    """The physics of a plant that nobody knows."""


@dataclass(frozen=True)
class SimulatorSource:
    """What a description says of its simulator."""

    kind: str  # fmu or gymnasium
    name: str  # a path, or the id of an environment
    variables: tuple[tuple[str, str | int], ...] = ()  # signal or actuator -> its name there


@dataclass(frozen=True)
class LoggedPlant:
    """A plant known from its log: a `Plant` that can be neither started nor advanced."""

    name: str
    observation: tuple[Signal, ...]
    action: tuple[Signal, ...]
    limits: tuple[Limit, ...]
    horizon: int
    step_seconds: float
    emergency: tuple[tuple[str, float], ...]  # in physical units
    mapping: ColumnMapping
    expression: Expression | None  # of the reward, where no column holds it
    delays: tuple[int, ...]  # steps of dead time of each actuator
    resample: Method | None
    text: str  # of the file
    recovery: tuple[str, ...] = ()  # stages, as YAML
    simulator: SimulatorSource | None = None
    loops: tuple[Loop, ...] = ()
    simulated: bool = False
    has_safe_state: bool = True

    @property
    def response(self) -> int:
        return RESPONSE + max(self.delays)

    @property
    def key(self) -> str:
        """Its name with a hash of the description: what runs call their world."""
        return f"{self.name}@{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    def physics(self) -> NoNumbers:
        return NoNumbers()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            f"{self.name} is known from its log alone: there is no simulator to play in; go by the "
            "off-policy estimates of a run, or write the plant (docs: write-a-plant)"
        )

    start = advance = observe = reward = ended = model = _refuse


def load(path: str | Path) -> PureEnv:
    """The plant that a file describes, as an environment that only logged data come from."""
    return make_world(parse_description(read_text(path), str(path)))


def parse_description(text: str, source: str) -> LoggedPlant:
    """The plant that a text describes; `source` is named in errors."""
    root = parse_yaml(text, source)
    parts = root.entries(KEYS)
    for key in _NEEDED:
        if key not in parts:
            raise root.error(f"{key} is missing; {_NEEDED[key]}")
    step = _seconds(parts["step"])
    log = parts["log"].entries(LOG_KEYS) if "log" in parts else {}
    signals, actuators = (_columns(parts[key]) for key in ("signals", "actuators"))
    twice = next((name for name in actuators if name in signals), None)
    if twice is not None:
        raise parts["actuators"].error(f"{twice} is a signal as well; give each its own name")
    limits, delays, history = [], [], []
    for name, entry in _named(parts["actuators"]).items():
        column, given = actuators[name], entry.entries((*SIGNAL_KEYS, "rate", "delay"))
        if "rate" in given:
            limits.append(_rate(given["rate"], column, step))
        delays.append(_delay(given["delay"], step) if "delay" in given else 0)
        history += [_signal(column, f"{name}_{ago + 1}_ago") for ago in range(delays[-1])]
    limits = [*_limits(parts, signals, actuators), *limits]
    reward = _reward(parts["reward"], signals, actuators)
    options = _log(log) | (reward if isinstance(reward, dict) else {})
    try:
        mapping = ColumnMapping(tuple(signals.values()), tuple(actuators.values()), **options)
    except ValueError as error:
        raise root.error(str(error)) from None
    return LoggedPlant(
        name=_checked_name(parts["name"], parts["name"].text()),
        observation=(*(_signal(column) for column in signals.values()), *history),
        action=tuple(_signal(column) for column in actuators.values()),
        limits=tuple(limits),
        horizon=parts["horizon"].whole(1, 2**30) if "horizon" in parts else 1000,
        step_seconds=step,
        emergency=_emergency(parts["emergency"], actuators),
        mapping=mapping,
        expression=None if isinstance(reward, dict) else reward,
        delays=tuple(delays),
        resample=_resample(log, mapping),
        text=text,
        recovery=_recovery(parts, [_signal(column) for column in actuators.values()], step),
        simulator=_simulator(parts, (*signals, *actuators)),
    )


_NEEDED = {
    "step": "say how far rows are apart, such as 60 s",
    "signals": "list what is measured, with units and ranges",
    "actuators": "list what is moved, with units and ranges",
    "reward": "say what is worth having, such as -abs(level - 50), or {column: NAME}",
    "emergency": "say where each actuator goes when nothing better is known",
    "name": "say what the plant is called: a run keeps the description under another path",
}


# Values with units -------------------------------------------------------------------------------


def _in_unit(node: Node, unit: str, *, difference: bool = False) -> float:
    """A quantity's value in a unit, in which a bare number is already."""
    try:
        value, given = parse_quantity(node.value)
        value = convert(value, given, unit, difference=difference) if given else value
    except (ValueError, OverflowError) as error:
        raise node.error(f"{shown(node.value)}: {error}; write it in {unit or '1'}") from None
    if not abs(value) < 1e30:
        raise node.error(f"{shown(node.value)} is not a finite number")
    return value


def _seconds(node: Node) -> float:
    value = _in_unit(node, "s")
    if not 1e-3 <= value < 1e9:
        raise node.error(f"{shown(node.value)}; it must be a time of 0.001 s or more")
    return value


def _delay(node: Node, step: float) -> int:
    steps = math.ceil(_in_unit(node, "s") / step - 1e-9)
    if not 0 <= steps <= MOST_DELAY:
        raise node.error(
            f"{shown(node.value)} is {steps} steps; from 0 to {MOST_DELAY} can be observed: "
            "use a longer step"
        )
    return steps


def _rate(node: Node, actuator: SignalColumn, step: float) -> Limit:
    """The largest change of an actuator in a step, from one in a step or in a unit of time."""
    entry = node.entries(("at_most", "hard")) if isinstance(node.value, dict) else {"at_most": node}
    if "at_most" not in entry:
        raise node.error("at_most is missing; say by how much it may change")
    unit, most = actuator.unit, entry["at_most"]
    try:
        value, given = parse_quantity(most.value)
        in_time = f"{unit}/s" if unit else "1/s"
        by_time = bool(given) and parse_unit(given).base == parse_unit(in_time).base
        change = convert(value, given, in_time if by_time else unit, difference=True)
    except (ValueError, OverflowError):
        hint = f"such as '10 {unit}/min' or, in a step, '10 {unit}'"
        raise most.error(
            f"{shown(most.value)} is no change of {unit or '1'}; write it {hint}"
        ) from None
    change *= step if by_time else 1.0
    if not 0.0 < change < 1e30:
        raise most.error(f"{shown(most.value)}; a change must be above 0")
    hard = entry["hard"].flag() if "hard" in entry else True
    return Limit(f"{actuator.name}_rate", actuator.name, "rate", change, hard)


# Parts -------------------------------------------------------------------------------------------


def _named(node: Node) -> dict[str, Node]:
    """Entries by name; a name without anything behind it is there as well."""
    node.entries()
    if not node.value:
        raise node.error("is empty; name at least one")
    path = node.path
    return {n: Node({} if v is None else v, node.source, (*path, n)) for n, v in node.value.items()}


def _checked_name(node: Node, name: str) -> str:
    if not name.replace("-", "_").isidentifier() or len(name) > 60:
        raise node.error(f"{shown(name)} is no name; use letters, digits and _, not a digit first")
    return name


def _columns(node: Node) -> dict[str, SignalColumn]:
    """Signals or actuators by name, with their columns in the file."""
    columns = {}
    for name, at in _named(node).items():
        own = ("rate", "delay") if node.path[-1] == "actuators" else ()
        entry = at.entries((*SIGNAL_KEYS, *own))
        _checked_name(at, name)
        if not name.isidentifier() or keyword.iskeyword(name) or name in FUNCTIONS:
            raise at.error(f"{name} cannot stand in an expression; give another name, and column:")
        for end in ("low", "high"):
            if end not in entry:
                raise at.error(f"{end} is missing; `worldloom data describe` proposes ranges")
        unit = _unit(entry["unit"]) if "unit" in entry else ""
        scale, offset = _conversion(entry, unit)
        try:
            columns[name] = SignalColumn(
                column=str(entry["column"].value) if "column" in entry else name,
                name=name,
                unit=unit,
                scale=scale,
                offset=offset,
                low=_in_unit(entry["low"], unit),
                high=_in_unit(entry["high"], unit),
            )
        except ValueError as error:
            text = str(error)
            raise (error if text.startswith(node.source) else at.error(text)) from None
    return columns


def _unit(node: Node) -> str:
    if isinstance(node.value, bool | dict | list):
        raise node.error(f"{shown(node.value)} is no unit; write it as text, such as K or '%'")
    unit = str(node.value)
    try:
        parse_unit(unit)
    except ValueError as error:
        raise node.error(str(error)) from None
    return unit


def _conversion(entry: Mapping[str, Node], unit: str) -> tuple[float, float]:
    """Scale and offset from the unit in the file to the signal's own."""
    if "file_unit" not in entry:
        return 1.0, 0.0
    node = entry["file_unit"]
    given = _unit(node)
    try:
        offset = convert(0.0, given, unit)
        return convert(1.0, given, unit) - offset, offset
    except ValueError as error:
        raise node.error(f"{error}; the unit of the signal is {unit or '1'}") from None


def _signal(column: SignalColumn, name: str = "") -> Signal:
    return Signal(name or column.name, column.unit, column.low, column.high)


def _limits(
    parts: Mapping[str, Node], signals: Mapping[str, SignalColumn], actuators: Mapping[str, Any]
) -> list[Limit]:
    limits = []
    if "limits" not in parts or not parts["limits"].value:
        return limits
    for name, node in _named(parts["limits"]).items():
        entry = node.entries(LIMIT_KEYS)
        signal = entry["signal"].text() if "signal" in entry else name
        if signal in actuators:
            raise node.error(f"{signal} is an actuator: its low, high and rate are its limits")
        if signal not in signals:
            raise node.error(f"there is no signal {shown(signal)}; {suggest(signal, signals)}")
        ends = [end for end in ("at_most", "at_least") if end in entry]
        if len(ends) != 1:
            raise node.error("give either at_most or at_least")
        bound = _in_unit(entry[ends[0]], signals[signal].unit)
        hard = entry["hard"].flag() if "hard" in entry else True
        priority = entry["alarm"].text(("low", "medium", "high")) if "alarm" in entry else "medium"
        deadband = 0.0
        if "deadband" in entry:
            deadband = _in_unit(entry["deadband"], signals[signal].unit, difference=True)
            if deadband < 0.0:
                raise entry["deadband"].error(f"{entry['deadband'].value}; it must not be negative")
        named = _checked_name(node, name)
        limits.append(Limit(named, signal, ends[0], bound, hard, priority, deadband))  # pyright: ignore[reportArgumentType]
    return limits


def _reward(
    node: Node, signals: Mapping[str, SignalColumn], actuators: Mapping[str, SignalColumn]
) -> Expression | dict[str, Any]:
    """The reward's expression, or where it is in a column what the mapping says of that."""
    if isinstance(node.value, dict):
        return mapping_options({"reward": node})
    try:
        return parse_expression(node.text(), signals, actuators)
    except ValueError as error:
        text = str(error)
        raise (error if text.startswith(node.source) else node.error(text)) from None


def _emergency(node: Node, actuators: Mapping[str, SignalColumn]) -> tuple[tuple[str, float], ...]:
    given = node.entries(actuators)
    for name in actuators:
        if name not in given:
            raise node.error(f"{name} is missing; every actuator needs a place")
    values = {name: _in_unit(given[name], column.unit) for name, column in actuators.items()}
    for name, column in actuators.items():
        if not column.low <= values[name] <= column.high:
            raise given[name].error(
                f"{given[name].value} is outside of what {name} can do, "
                f"{column.low:g} .. {column.high:g} {column.unit}"
            )
    return tuple(values.items())


def _recovery(parts: Mapping[str, Node], actuators: list[Signal], step: float) -> tuple[str, ...]:
    """The stages of a recovery procedure, checked, as a constraint file has them."""
    if "recovery" not in parts:
        return ()
    node = parts["recovery"]
    parse_stages(node, actuators, step)
    return tuple(json.dumps(stage, ensure_ascii=False) for stage in node.value)  # which is YAML


def _simulator(parts: Mapping[str, Node], names: tuple[str, ...]) -> SimulatorSource | None:
    if "simulator" not in parts:
        return None
    node = parts["simulator"]
    entry = node.entries(("fmu", "gymnasium", "variables"))
    kinds = [kind for kind in ("fmu", "gymnasium") if kind in entry]
    if len(kinds) != 1:
        raise node.error("give either fmu: FILE or gymnasium: ID")
    (kind,), variables = kinds, []
    for name, one in (entry["variables"].entries(names) if "variables" in entry else {}).items():
        place = one.whole(0) if kind == "gymnasium" else one.text()
        variables.append((name, place))
    written = entry[kind].text()
    path = Path(node.source).parent / written
    beside = Path(node.source).parent / path.name  # as the folder of a run has it
    name = str(path if path.exists() or not beside.exists() else beside)
    return SimulatorSource(kind, written if kind == "gymnasium" else name, tuple(variables))


def _log(entry: Mapping[str, Node]) -> dict[str, Any]:
    """What a column mapping takes beside signals and reward."""
    plain = {key: node for key, node in entry.items() if key not in ("gap", "resample")}
    gap = {"gap": _seconds(entry["gap"])} if "gap" in entry else {}
    return mapping_options(plain) | gap


def _resample(log: Mapping[str, Node], mapping: ColumnMapping) -> Method | None:
    if "resample" not in log:
        return None
    if mapping.time is None:
        raise log["resample"].error("there is no time column to go by; name it as log.time")
    return log["resample"].text(("hold", "linear"))  # pyright: ignore[reportReturnType]


def physical(plant: LoggedPlant, action: np.ndarray) -> np.ndarray:
    """Actions (N, m) of [-1, 1] in physical units, in float64."""
    low, high = (np.asarray([getattr(s, end) for s in plant.action]) for end in ("low", "high"))
    return low + 0.5 * (action + 1.0) * (high - low)
