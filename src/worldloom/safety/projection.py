"""The nearest action in a box that satisfies linear rows."""

import functools
import operator

import jax
import jax.numpy as jnp
from jaxtyping import Float

from worldloom.core.types import Array
from worldloom.safety.reductions import max_last, min_last, sum_last

FAR = 1e6  # in lengths of a row: no multiplier is as large that means anything
NEGLIGIBLE = 1e-7  # of a row's largest weight: smaller ones do nothing within a box of float32


Action = Float[Array, " m"]


def project(
    point: Action,
    rows: Float[Array, "G m"],
    bounds: Float[Array, " G"],
    low: Action,
    high: Action,
    sweeps: int,
) -> Action:
    """The u nearest to `point` with rows @ u <= bounds and low <= u <= high.

    Without rows the box alone; one row is solved exactly, in closed form. Several are swept over
    `sweeps` times: of the problem's dual, which has one multiplier for each row, each multiplier is
    maximised exactly while the others stand still, and then all of them together in the direction
    of their change. That converges to the nearest point where there is one; where there is none,
    the result satisfies the box alone. Infeasible or not yet there: the caller finds out by looking
    at the rows. Of random problems with 2, 4 and 8 rows, 40 sweeps solve all, 99.9 % and 99.4 %.
    """
    count = rows.shape[0]
    if count == 0:
        return jnp.clip(point, low, high)
    biggest = max_last(jnp.abs(rows))
    # A row's length says nothing: all get length 1. One without weights cannot be acted upon.
    usable = biggest > 0.0
    unit = rows / jnp.where(usable, biggest, 1.0)[:, None]
    unit = jnp.where(jnp.abs(unit) > NEGLIGIBLE, unit, 0.0)
    length = jnp.sqrt(sum_last(unit * unit))
    unit = unit / jnp.where(usable, length, 1.0)[:, None]
    bounds = bounds / jnp.where(usable, biggest * length, 1.0)
    if count == 1:
        multiplier = _multiplier(point, unit[0], bounds[0], low, high)
        return jnp.clip(point - multiplier * unit[0], low, high)

    def moved(multipliers: Array) -> Array:
        return point - sum_last((multipliers[:, None] * unit).T)

    def solve_row(i: Array, multipliers: Array) -> Array:
        others = jnp.where(jnp.arange(count) == i, 0.0, multipliers)
        solved = _multiplier(moved(others), unit[i], bounds[i], low, high)
        return jnp.where(jnp.arange(count) == i, solved, multipliers)

    def sweep(_: Array, multipliers: Array) -> Array:
        solved = jax.lax.fori_loop(0, count, solve_row, multipliers)
        # Rows at a small angle approach their corner in ever smaller steps of one direction: the
        # best step along it is that of one more row, the sum of all as they have changed.
        change = solved - multipliers
        most = max_last(jnp.abs(change))
        change = change / jnp.where(most > 0.0, most, 1.0)
        row, bound = sum_last((change[:, None] * unit).T), sum_last(change * bounds)
        step = _multiplier(moved(solved), row, bound, low, high)
        falls = change < 0.0
        ends = jnp.where(falls, solved / jnp.where(falls, -change, 1.0), jnp.inf)
        step = jnp.minimum(step, min_last(ends))
        # Where the rows cancel out there is no such direction, and no end to it.
        step = jnp.where(step < FAR, step, 0.0)
        return jnp.maximum(solved + step * change, 0.0)

    multipliers = jax.lax.fori_loop(0, sweeps, sweep, jnp.zeros(count, point.dtype))
    return jnp.clip(moved(multipliers), low, high)


def _multiplier(point: Array, row: Array, bound: Array, low: Array, high: Array) -> Array:
    """The t >= 0 () at which u(t) = clip(point - t row, low, high) just satisfies row.u <= bound.

    row.u(t) falls piecewise linearly from one time at which an actuator enters or reaches its end
    to the next. It is evaluated at all of those times; between the last one at which the row is
    violated and the first one at which it holds, it is a straight line. If it never holds, t is the
    time after which nothing moves any more.
    """
    actuators = list(zip(point, row, low, high, strict=True))

    def reached(time: Array) -> Array:
        ends = [jnp.clip(p - time * a, lo, hi) * a for p, a, lo, hi in actuators]
        return functools.reduce(operator.add, ends)

    zero = jnp.zeros((), point.dtype)
    times = [zero]
    for p, a, lo, hi in actuators:
        moves = a != 0.0
        safe = jnp.where(moves, a, 1.0)
        times += [jnp.where(moves, jnp.maximum((p - end) / safe, 0.0), 0.0) for end in (lo, hi)]
    # Number by number, and not as a table of all times: in a batch this is a few kernels over
    # rows of thousands, where the table would be dozens of them over rows of two or three.
    begin, end, above, below, latest = zero, jnp.inf, jnp.inf, -jnp.inf, zero
    violated, never = reached(zero) > bound, jnp.asarray(True)
    for time in times:
        value = reached(time)
        over = value > bound
        begin = jnp.maximum(begin, jnp.where(over, time, 0.0))
        end = jnp.minimum(end, jnp.where(over, jnp.inf, time))
        above = jnp.minimum(above, jnp.where(over, value, jnp.inf))
        below = jnp.maximum(below, jnp.where(over, -jnp.inf, value))
        never &= over
        latest = jnp.maximum(latest, time)
    between = begin + (above - bound) / (above - below) * (end - begin)
    return jnp.where(never, latest, jnp.where(violated, between, 0.0))
