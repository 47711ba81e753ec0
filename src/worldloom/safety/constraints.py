"""What an action must satisfy before it is executed, as a pytree of arrays.

Every constraint is a row with a signed margin, below 0 where it is crossed. In this order:

    box        m: each actuator between `low` and `high`
    rate       K: the change of an actuator from the executed action of the step before
    linear     R: A u <= b
    state      S: c.x + d >= 0 of the observation x as it is now; no action changes that
    barrier    H: h(f(x, u)) >= (1 - gamma) h(x) with h(x) = c.x + d and f a model of the plant
    lookahead  L: c.x + d >= 0 at each of the next N steps, if this action is the last one that is
               chosen freely and a backup policy takes over

What a filter that holds these rows promises, and under which assumptions:

* hard box, rate and linear rows of every action that is not an emergency action: always, to
  `TOLERANCE`. Emergency actions keep box and hard rates (where the box cannot be reached in one
  step, the rates alone).
* barrier: of the model's next observation, always, to `TOLERANCE`. Of the plant's, if the
  observation is true, if the action is executed as it is returned, and if the model errs by no more
  than the row's `disturbance` (for an ensemble: `deviations` standard deviations and that). Then
  h(x_t) >= (1 - gamma)^t h(x_0) as long as no emergency action was needed: a plant that starts
  within the limit stays there.
* lookahead: N steps, under the model. The backup policy does take over where nothing better is
  found, as long as what is observed is finite and the stop has not latched.
* soft rows: that they never change an action. They are alarms: what crosses one is reported. A
  soft row that bends actions can throttle the very controller that keeps an unstable plant.
* emergency actions: nothing. One is what is left when nothing better can be found.

All numbers are held in float32, and checked as such: what it cannot hold is refused.

A plant may hide what its model needs (insulin under the skin, heat in a wall): a model with such a
state is started from the first observation, follows every executed action, and takes what is
observed as it is observed.

Actions are in [-1, 1] (shares of the actuators' ranges), observations in physical units.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core.types import Array, PyTree
from worldloom.safety.recovery import Recovery, Stage, make_recovery
from worldloom.safety.reductions import sum_last

# How far below 0 the margin of an action may be that counts as safe, as a share of its row's scale.
# float32 holds seven digits, and a margin is a difference of numbers of that scale: anything finer
# would be decided by rounding. The filter itself asks for half, so that whoever computes a margin
# in another program or precision still finds it within the whole.
TOLERANCE = 1e-5
PIVOTS = 6  # for each actuator and one more: see `project`
FLOAT32 = " in float32, between 1e-38 and 3e38"


class Alarm(NamedTuple):
    """How a row is told of where it is an alarm: its priority, and the margin that ends it."""

    priority: Literal["low", "medium", "high"] = "medium"
    deadband: float = 0.0  # in the row's unit


USUAL_ALARM = Alarm()


@dataclass(frozen=True)
class Row:
    """Named weights of signals or actuators.

    scale: the size of the numbers in their sum, which decides how exactly it can be known.
    """

    name: str
    weights: Sequence[float]
    _: KW_ONLY
    hard: bool = True
    scale: float | None = None
    alarm: Alarm = USUAL_ALARM


@dataclass(frozen=True)
class LinearRow(Row):
    """weights.u <= bound, weights (m,) of the action."""

    bound: float


@dataclass(frozen=True)
class StateRow(Row):
    """weights.x + offset >= 0, weights (n,) of the observation, all in physical units."""

    offset: float


@dataclass(frozen=True)
class Barrier(StateRow):
    """h(f(x, u)) - disturbance >= (1 - gamma) h(x), with h the sum of a `StateRow`.

    gamma in (0, 1]: the share of the remaining distance that one step may use up; 1 asks only that
    the next observation is within the limit. disturbance: by how much h may turn out lower than the
    model says.
    """

    gamma: float = 0.2
    disturbance: float = 0.0


class Rows(struct.PyTreeNode):
    """R affine functions of a vector of k numbers."""

    weights: Array  # (R, k)
    offset: Array  # (R,)

    def __call__(self, vector: Array) -> Array:
        """Values (..., R) at vectors (..., k), or at longer ones, of which the first k count."""
        width = self.weights.shape[-1]
        vector = vector if vector.shape[-1] == width else vector[..., :width]
        # No matrix product: the same digits in a batch of any size, on any device.
        return sum_last(self.weights * vector[..., None, :]) + self.offset


class SafetyConstraints(struct.PyTreeNode):
    """Constraints on m actuators of a plant with n signals; see the module. Parts that are absent
    have no rows."""

    low: Array  # (m,)
    high: Array  # (m,)
    rate: Array  # (K,): the largest change in a step of the actuators `rated`
    linear: Rows  # (R, m): b - A u
    state: Rows  # (S, n)
    barrier: Rows  # (H, n)
    gamma: Array  # (H,)
    disturbance: Array  # (H,)
    lookahead: Rows  # (L, n)
    scale: Array  # (C,): of every row
    emergency: Array  # (m,): where the actuators go when nothing better is known
    deviations: Array  # (): standard deviations of an ensemble that are taken off its mean
    latch_after: Array  # int32 (): emergencies in a row until the stop stays; 0: never
    model: jax.tree_util.Partial | None  # (obs (n,), action (m,)) -> (n,), or (E, n): an ensemble
    backup: jax.tree_util.Partial | None  # obs (n,) -> action (m,); None: emergency actions
    recovery: Recovery | None  # on the way to `emergency`; None: there at once
    hidden: jax.tree_util.Partial | None  # obs (n,) -> (k,): the rest of the model's state at first
    rated: tuple[int, ...] = struct.field(pytree_node=False)
    names: tuple[str, ...] = struct.field(pytree_node=False)  # of C rows
    hard: tuple[bool, ...] = struct.field(pytree_node=False)  # of C rows
    alarms: tuple[Alarm, ...] = struct.field(pytree_node=False)  # of C rows
    horizon: int = struct.field(pytree_node=False)  # N, steps of the lookahead
    passes: int = struct.field(pytree_node=False)  # linearisations of the model in a projection
    pivots: int = struct.field(pytree_node=False)  # rows taken up or let go of in a projection
    searches: int = struct.field(pytree_node=False)  # points tried towards the emergency action

    @property
    def action_size(self) -> int:
        return self.low.shape[-1]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each of the C rows."""
        rows = ("linear", "state", "barrier", "lookahead")
        counts = {"box": self.action_size, "rate": len(self.rated)}
        counts |= {kind: getattr(self, kind).offset.shape[-1] for kind in rows}
        return tuple(kind for kind, count in counts.items() for _ in range(count))

    @property
    def tolerance(self) -> Array:
        """How far below 0 the margin of each row (C,) may be, in its unit."""
        return TOLERANCE * self.scale


def make_constraints(
    observation_size: int,
    emergency: Sequence[float] | np.ndarray | Array,
    *,
    low: Any = -1.0,
    high: Any = 1.0,
    rate: dict[int, float] | None = None,
    soft_rates: Sequence[int] = (),
    linear: Sequence[LinearRow] = (),
    state: Sequence[StateRow] = (),
    barriers: Sequence[Barrier] = (),
    lookahead: Sequence[StateRow] = (),
    horizon: int = 0,
    model: Callable[[Array, Array], Array] | None = None,
    backup: Callable[[Array], Array] | None = None,
    hidden: Callable[[Array], Array] | None = None,
    deviations: float = 2.0,
    latch_after: int = 3,
    passes: int = 2,
    pivots: int | None = None,
    searches: int | None = None,
    actuators: Sequence[str] | None = None,
    recovery: Sequence[Stage] = (),
) -> SafetyConstraints:
    """Constraints put together and checked; every defect is a ValueError.

    emergency (m,): the action to fall back to; it must lie in the box. recovery: stages on the way
    there. rate: the largest change in a step, by the actuator's index. model: a known one gives the
    next observation (n,), a learned ensemble of E gives (E, n); with weights that are to be traced,
    a `jax.tree_util.Partial`. backup: what takes over in place of the emergency action wherever the
    plant can be observed, and in the lookahead. hidden: what a model's state has beside the
    observation, (k,), before anything was executed. Such a model takes and gives (n + k,); the
    filter remembers the rest from step to step.
    pivots: of a projection, see `project`; enough for the number of actuators by default.
    searches: how many points between a projection that failed and the emergency action are tried as
    well; 3 where there is a lookahead, whose rows bend, and none elsewhere.
    """
    emergency = np.asarray(emergency, np.float32).reshape(-1)
    size = len(emergency)
    rate = dict(sorted((rate or {}).items()))
    given = list(actuators) if actuators is not None else [f"u{i}" for i in range(size)]
    box = [np.broadcast_to(np.asarray(x, np.float32), (size,)).copy() for x in (low, high)]
    _check(size > 0, "emergency", "has no numbers", "give one for each actuator")
    _check(len(given) == size, "actuators", f"{len(given)} names", f"there are {size}")
    for what, values in (("low", box[0]), ("high", box[1]), ("emergency", emergency)):
        _check(np.isfinite(values).all(), what, f"{values.tolist()}", "it must be finite")
    for i, name in enumerate(given):
        bounds = f"{box[0][i]:g} .. {box[1][i]:g}"
        _check(box[0][i] < box[1][i], f"box of {name}", bounds, "low must be below high")
        inside = box[0][i] <= emergency[i] <= box[1][i]
        _check(inside, f"emergency of {name}", f"{emergency[i]:g}", f"it must lie in {bounds}")
    both = backup is not None and bool(recovery)
    _check(not both, "backup", "given beside a recovery procedure", "one can take over: drop one")
    for index, value in rate.items():
        _check(0 <= index < size, "rate", f"actuator {index}", f"there are {size}")
        fits = _held(value) and value > 0
        _check(fits, f"rate of {given[index]}", f"{value:g}", f"it must be above 0{FLOAT32}")
    for index in soft_rates:
        _check(index in rate, "soft_rates", f"actuator {index}", "it has no rate")
    rows = [*linear, *state, *barriers, *lookahead]
    for row in rows:
        what, of_action = f"row {row.name}", isinstance(row, LinearRow)
        width, of = (size, "actuators") if of_action else (observation_size, "signals")
        count = len(row.weights)
        _check(count == width, what, f"{count} weights", f"there are {width} {of}")
        finite = _held([*row.weights, _end(row)])
        _check(finite, what, "numbers that are not finite", f"give finite ones{FLOAT32}")
        fits = _held(_scale(row)) and _scale(row) > 0
        _check(fits, what, f"scale={_scale(row):g}", f"it must be above 0{FLOAT32}")
        deadband = row.alarm.deadband
        _check(deadband >= 0.0, what, f"deadband={deadband:g}", "use 0 or more")
    for row in barriers:
        fits = _held(row.gamma) and 0 < row.gamma <= 1
        _check(fits, f"barrier {row.name}", f"gamma={row.gamma:g}", "use (0, 1]")
        fits = _held(row.disturbance) and row.disturbance >= 0
        _check(fits, f"barrier {row.name}", f"disturbance={row.disturbance:g}", "use 0 or more")
    _check(not (barriers or lookahead) or model is not None, "model", "None", "rows need one")
    fits = horizon >= 1 if lookahead else horizon == 0
    _check(fits, "horizon", f"{horizon}", f"there are {len(lookahead)} rows to look ahead for")
    pivots = PIVOTS * (size + 1) if pivots is None else pivots
    counts = {"passes": (passes, 1), "pivots": (pivots, 1), "latch_after": (latch_after, 0)}
    for name, (value, least) in (counts | {"searches": (searches or 0, 0)}).items():
        _check(value >= least, name, f"{value}", f"it must be at least {least}")
    fits = _held(deviations) and deviations >= 0
    _check(fits, "deviations", f"{deviations:g}", "use 0 or more")

    made = SafetyConstraints(
        low=jnp.asarray(box[0]),
        high=jnp.asarray(box[1]),
        emergency=jnp.asarray(emergency),
        rate=_floats(list(rate.values())),
        rated=tuple(rate),
        linear=_rows([(-np.asarray(row.weights), row.bound) for row in linear], size),
        state=_rows([(row.weights, row.offset) for row in state], observation_size),
        barrier=_rows([(row.weights, row.offset) for row in barriers], observation_size),
        gamma=_floats([row.gamma for row in barriers]),
        disturbance=_floats([row.disturbance for row in barriers]),
        lookahead=_rows([(row.weights, row.offset) for row in lookahead], observation_size),
        scale=_floats([1.0] * (size + len(rate)) + [_scale(row) for row in rows]),
        deviations=jnp.float32(deviations),
        latch_after=jnp.int32(latch_after),
        model=_as_tree(model),
        backup=_as_tree(backup),
        recovery=make_recovery(recovery, size),
        hidden=_as_tree(hidden),
        names=(*given, *(given[i] for i in rate), *(row.name for row in rows)),
        hard=(*[True] * size, *(i not in soft_rates for i in rate), *(row.hard for row in rows)),
        alarms=(*[USUAL_ALARM] * (size + len(rate)), *(row.alarm for row in rows)),
        horizon=horizon,
        passes=passes,
        pivots=pivots,
        searches=searches if searches is not None else 3 * bool(lookahead),
    )
    labels = tuple(f"{kind}:{name}" for kind, name in zip(made.kinds, made.names, strict=True))
    twice = sorted({label for label in labels if labels.count(label) > 1})
    _check(not twice, "rows", ", ".join(twice), "each needs a name of its own")
    return made.replace(names=labels)


def _check(holds: bool | np.bool_, what: str, value: str, remedy: str) -> None:
    if not holds:
        raise ValueError(f"safety constraints: {what}: {value}; {remedy}")


def _held(values: Any) -> bool:
    """Whether float32 holds all values: finite, and not 0 where they are not.

    A weight that became infinite or vanished would disarm its row.
    """
    values = np.asarray(values, np.float64)
    with np.errstate(over="ignore", under="ignore"):
        size = np.abs(values.astype(np.float32))
    return bool((np.isfinite(size) & ((size >= np.finfo(np.float32).tiny) | (values == 0.0))).all())


def _floats(values: list[float]) -> Array:
    return jnp.asarray(np.asarray(values, np.float32))


def _rows(rows: list[tuple[Any, float]], width: int) -> Rows:
    weights = np.asarray([row[0] for row in rows], np.float32).reshape(len(rows), width)
    return Rows(jnp.asarray(weights), _floats([row[1] for row in rows]))


def _end(row: LinearRow | StateRow) -> float:
    return row.bound if isinstance(row, LinearRow) else row.offset


def _scale(row: LinearRow | StateRow) -> float:
    if row.scale is not None:
        return row.scale
    return max(abs(_end(row)), float(np.abs(row.weights).sum())) or 1e-6


def _as_tree(function: Callable[..., PyTree] | None) -> jax.tree_util.Partial | None:
    """A function as a pytree: its code is static, weights it was bound to are leaves."""
    if function is None or isinstance(function, jax.tree_util.Partial):
        return function
    return jax.tree_util.Partial(function)
