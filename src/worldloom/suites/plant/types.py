"""Signals with units, limits, and the state of a plant."""

from dataclasses import dataclass
from typing import Literal, get_type_hints

from flax import struct

from worldloom.core.types import Array, PyTree


@dataclass(frozen=True)
class Signal:
    """A measured or manipulated quantity: its unit, and the range it normally lies in.

    Of an action, `low` and `high` are what -1 and 1 stand for. Of an observation they are the range
    that is mapped to [-1, 1] where others want normalised numbers; a plant may leave it.
    """

    name: str
    unit: str
    low: float
    high: float

    def __post_init__(self):
        if not self.low < self.high:
            raise ValueError(f"signal {self.name}: low={self.low:g} is not below {self.high:g}")


@dataclass(frozen=True)
class Measured:
    """Marks a field of a plant's state that is observed: ``Annotated[Array, Measured("K", ...)]``.

    unit, low, high: those of its `Signal`. size: of an array (size,), whose signals are numbered
    from 1; 0 for a number.
    """

    unit: str
    low: float
    high: float
    size: int = 0

    def signals(self, name: str) -> tuple[Signal, ...]:
        numbers = range(1, self.size + 1)
        names = [f"{name}_{i}" for i in numbers] if self.size else [name]
        return tuple(Signal(name, self.unit, self.low, self.high) for name in names)


def measured_fields(state: type) -> dict[str, Measured]:
    """The measured fields of a plant's state by name, in their order."""
    marks = {
        name: getattr(hint, "__metadata__", (None,))[0]
        for name, hint in get_type_hints(state, include_extras=True).items()
    }
    return {name: mark for name, mark in marks.items() if isinstance(mark, Measured)}


def measured(state: type) -> tuple[Signal, ...]:
    """The signals of all measured fields of a plant's state."""
    fields = measured_fields(state).items()
    return tuple(signal for name, mark in fields for signal in mark.signals(name))


@dataclass(frozen=True)
class Limit:
    """A signal that must stay below or above a bound, in its unit.

    kind: "at_most" and "at_least" bound an observation, "rate" the change of an action from one
    step to the next, either way. hard: never to be crossed; soft ones are worth avoiding.
    priority, deadband: of the alarm that a server raises, and how far within the bound it ends.
    """

    name: str
    signal: str
    kind: Literal["at_most", "at_least", "rate"]
    bound: float
    hard: bool = True
    priority: Literal["low", "medium", "high"] = "medium"
    deadband: float = 0.0


@dataclass(frozen=True)
class Loop:
    """One PID loop: the actuator that is moved so that a signal follows its set point.

    `setpoint` is a number, in the signal's unit, or another signal's name. Gains are shares of the
    actuator's range for an error of the signal's whole range: proportional, for that error during
    a step (integral), for its change in a step. `bias` is the action in [-1, 1] without any error.
    """

    actuator: str
    signal: str
    setpoint: str | float
    proportional: float
    integral: float = 0.0
    derivative: float = 0.0
    bias: float = 0.0


class EnvironmentState(struct.PyTreeNode):
    """One plant: what only it knows, how long it runs, and what was done last."""

    x: PyTree
    step: Array  # int32 ()
    action: Array  # float32 (m,), in [-1, 1]


class SafetyMetrics(struct.PyTreeNode):
    """How far from each limit, in the order of the plant's `limits` and in its signal's unit."""

    margins: Array  # (C,): below 0 where a limit is crossed
    cost: Array  # (C,): by how much it is crossed, or 0
    violated: Array  # bool (C,)


class PlantInfo(struct.PyTreeNode):
    """What a step tells beside the reward."""

    safety: SafetyMetrics
    control: Array  # (m,): what was done, in physical units
    action_finite: Array  # bool (): an action that is not finite is replaced by the last one
    diverged: Array  # bool (): the plant's state was no longer finite; it was taken back


class PlantParams(struct.PyTreeNode):
    """The numbers of a plant; all of them may be traced and vmapped."""

    physics: PyTree  # the plant's own
    bounds: Array  # (C,), of its limits
    disturbance: Array  # (): a factor on whatever disturbs it; 0: nothing does
    drift: Array  # (): a factor on how its physics change in the course of an episode
    horizon: Array  # int32 (): steps
