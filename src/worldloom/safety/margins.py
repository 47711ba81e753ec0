"""Signed margins of every row, and how those of a model's rows change with the action."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from worldloom.core.types import Array
from worldloom.safety.constraints import SafetyConstraints
from worldloom.safety.recovery import recovery_target
from worldloom.safety.reductions import all_last, sum_last

# Added to an ensemble's variance: members that agree have a standard deviation whose slope is
# not a number.
LEAST_VARIANCE = 1e-12


def reach(
    previous: Float[Array, " m"], constraints: SafetyConstraints
) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """The lowest and highest actions that box and hard rates allow after `previous`.

    Where the box cannot be reached in one step, low is above high and nothing is allowed.
    """
    step = _steps(constraints)
    low = jnp.maximum(constraints.low, previous - step)
    return low, jnp.minimum(constraints.high, previous + step)


def move(
    previous: Float[Array, " m"], target: Float[Array, " m"], constraints: SafetyConstraints
) -> Float[Array, " m"]:
    """As near to `target` as box and hard rates allow after `previous`.

    Where these contradict each other the rate is kept: the actuator is on its way to its box.
    """
    step = _steps(constraints)
    target = jnp.clip(target, constraints.low, constraints.high)
    return jnp.clip(target, previous - step, previous + step)


def emergency_move(
    previous: Float[Array, "*rows m"], count: Array | int, constraints: SafetyConstraints
) -> Float[Array, "*rows m"]:
    """The emergency action after `previous` and `count` (*rows) emergency actions in a row."""
    c = constraints
    return move(previous, recovery_target(c.recovery, c.emergency, previous, count), c)


def takeover_move(
    previous: Float[Array, " m"],
    obs: Float[Array, " n"],
    count: Array | int,
    latched: Array,
    constraints: SafetyConstraints,
) -> Float[Array, " m"]:
    """What is executed where nothing better is found: what the lookahead says takes over.

    The backup's action at obs. The emergency action, which needs no observation, where there is no
    backup, where obs or what the backup makes of it is not finite, and after a latched stop.
    """
    c = constraints
    blind = emergency_move(previous, count, c)
    if c.backup is None:
        return blind
    wanted = c.backup(obs)
    known = all_last(jnp.isfinite(obs)) & all_last(jnp.isfinite(wanted)) & ~latched
    return jnp.where(known, move(previous, wanted, c), blind)


def _steps(constraints: SafetyConstraints) -> Array:
    """The largest change (m,) of each actuator; infinite where there is no hard rate."""
    first = constraints.action_size
    steps = [jnp.asarray(jnp.inf, constraints.rate.dtype)] * first
    for k, actuator in enumerate(constraints.rated):
        if constraints.hard[first + k]:
            steps[actuator] = constraints.rate[k]
    return jnp.stack(steps)


def barrier_margins(
    obs: Float[Array, " n"], action: Float[Array, " m"], constraints: SafetyConstraints
) -> tuple[Float[Array, " H"], Float[Array, " H"]]:
    """Margins of barriers, which ask for one step of the model, and the ensemble's deviations."""
    return _barriers(_members(obs, action, constraints), obs, constraints)


def _members(obs: Array, action: Array, c: SafetyConstraints) -> Array:
    """Next observations (E, n), of every member of an ensemble."""
    return jnp.atleast_2d(c.model(obs, action))  # pyright: ignore[reportOptionalCall]


def _barriers(members: Array, obs: Array, c: SafetyConstraints) -> tuple[Array, Array]:
    expected, deviation = _pessimistic(c.barrier(members), c)
    return expected - c.disturbance - (1.0 - c.gamma) * c.barrier(obs), deviation


def model_margins(
    obs: Float[Array, " n"], action: Float[Array, " m"], constraints: SafetyConstraints
) -> tuple[Float[Array, " K"], Float[Array, " H"]]:
    """Margins of barriers and lookahead, and the ensemble's deviations of h.

    A known model has no deviation. What a model cannot say, because it is not finite, has a margin
    of -inf: so much of a signal is no room.
    """
    c = constraints
    if c.model is None:
        return jnp.zeros(0, action.dtype), jnp.zeros(0, action.dtype)
    members = _members(obs, action, c)
    margins, deviation = _barriers(members, obs, c)
    if not c.lookahead.offset.shape[-1]:
        return margins, deviation

    def follow(carry: tuple[Array, Array, Array], count: Array | None):
        x, u, least = carry
        if c.backup is None:
            u = emergency_move(u, 0 if count is None else count, c)
        else:
            u = move(u, c.backup(x), c)
        members = _members(x, u, c)
        margins = _pessimistic(c.lookahead(members), c)[0]
        return (_mean(members), u, jnp.minimum(least, margins)), None

    start = (_mean(members), action, _pessimistic(c.lookahead(members), c)[0])
    counts = None if c.recovery is None else jnp.arange(c.horizon - 1)
    (_, _, least), _ = jax.lax.scan(follow, start, counts, length=c.horizon - 1)
    return jnp.concatenate([margins, least]), deviation


def _pessimistic(values: Array, c: SafetyConstraints) -> tuple[Array, Array]:
    """Mean less `deviations` standard deviations (R,) of members' values (E, R), and those."""
    mean, deviation = values[0], jnp.zeros_like(values[0])
    if values.shape[0] > 1:
        mean = _mean(values)
        deviation = jnp.sqrt(_mean((values - mean) ** 2) + LEAST_VARIANCE)
        mean = mean - c.deviations * deviation
    return jnp.where(jnp.isfinite(mean), mean, -jnp.inf), deviation


def _mean(members: Array) -> Array:
    return sum_last(members.T) / members.shape[0]


def linearise(
    obs: Float[Array, " n"],
    action: Float[Array, " m"],
    constraints: SafetyConstraints,
    margins: Callable[..., tuple[Array, Array]] = model_margins,
) -> tuple[Float[Array, " K"], Float[Array, "K m"], Float[Array, " H"]]:
    """What `margins` gives, with the slopes of the margins between the two."""
    if constraints.model is None:
        none = jnp.zeros(0, action.dtype)
        return none, jnp.zeros((0, constraints.action_size), action.dtype), none

    def along(direction: Array) -> tuple[Array, Array, Array]:
        return jax.jvp(
            lambda u: margins(obs, u, constraints), (action,), (direction,), has_aux=True
        )

    # The values do not depend on the direction: they are computed once.
    directions = jnp.eye(constraints.action_size, dtype=action.dtype)
    return jax.vmap(along, out_axes=(None, -1, None))(directions)


def all_margins(
    obs: Float[Array, " n"],
    action: Float[Array, " m"],
    previous: Float[Array, " m"],
    of_model: Float[Array, " K"],
    constraints: SafetyConstraints,
) -> Float[Array, " C"]:
    """Margins in the order of `constraints.names`; `of_model` is that of `model_margins`."""
    c = constraints
    change = jnp.abs(action - previous)
    return jnp.concatenate(
        [
            jnp.minimum(action - c.low, c.high - action),
            *(c.rate[k : k + 1] - change[i : i + 1] for k, i in enumerate(c.rated)),
            c.linear(action),
            c.state(obs),
            of_model,
        ]
    )
