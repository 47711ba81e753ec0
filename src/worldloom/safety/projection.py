"""The nearest action in a box that satisfies linear rows."""

import functools
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from worldloom.core.types import Array
from worldloom.safety.reductions import argmin_last, max_last, min_last, sum_last

NEGLIGIBLE = 1e-7  # of a row's largest weight: smaller ones do nothing within a box of float32
CROSSED = 5e-7  # in lengths of a row: what is less is rounding
PARALLEL = 1e-9  # the squared sine between a row and those held, below which it adds no direction
FAR = 100.0  # beyond the box: points further away are drawn in, or float32 would lose the answer


Action = Float[Array, " m"]


def project(
    point: Action,
    rows: Float[Array, "G m"],
    bounds: Float[Array, " G"],
    low: Action,
    high: Action,
    pivots: int,
) -> Action:
    """The u nearest to `point` with rows @ u <= bounds and low <= u <= high.

    Without rows the box alone; one row is solved in closed form, several by the dual active-set
    method of Goldfarb and Idnani (Mathematical Programming 27, 1983), which is exact: from the
    point itself it takes up the row that is crossed furthest, lets go of those that no longer
    press, and ends where nothing is crossed. `pivots`: how many rows are taken up or let go of, at
    most. Infeasible or not yet there: the caller finds out by looking at the rows; the result
    satisfies the box alone.
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
    eye = jnp.eye(len(point), dtype=point.dtype)
    normals = jnp.concatenate([unit, eye, -eye])
    ends = jnp.concatenate([jnp.where(usable, bounds, 0.0), high, -low])
    near = jnp.clip(point, low - FAR, high + FAR)
    return jnp.clip(_active_set(near, normals, ends, pivots), low, high)


class _Pivot(NamedTuple):
    """Where the method stands: at most m rows are held, each in a slot (m,)."""

    u: Array  # (m,)
    held: Array  # int32 (m,): the row in each slot; -1: empty
    normals: Array  # (m, m), of the held rows; zeros in empty slots
    ends: Array  # (m,)
    multipliers: Array  # (m,)
    taken: Array  # int32 (): the row that is being taken up; -1: none
    multiplier: Array  # (): its own, so far
    count: Array  # int32 (): of pivots, up to now
    done: Array  # bool (): another pivot would change nothing


def _active_set(point: Array, normals: Array, ends: Array, pivots: int) -> Array:
    """The point (m,) nearest to `point` with normals @ u <= ends, normals (N, m) of length 1."""
    size, everyone = len(point), jnp.arange(len(ends))
    slots = jnp.arange(size)

    def pivot(at: _Pivot) -> _Pivot:
        basis, triangle = _orthogonal(at.normals, at.held >= 0)
        idle = at.taken < 0
        # Between two rows u follows from the held ones: computed anew, so that no error adds up.
        u = jnp.where(idle, _onto(point, at, basis, triangle), at.u)
        over = sum_last(normals * u) - ends
        for slot in range(size):
            over = jnp.where(everyone == at.held[slot], -jnp.inf, over)
        row = jnp.where(idle, argmin_last(-over), at.taken)
        here = everyone == row
        normal = sum_last(jnp.where(here, normals.T, 0.0))
        end = sum_last(jnp.where(here, ends, 0.0))
        crossed = sum_last(normal * u) - end

        free = _rest(normal, basis)
        square = sum_last(free * free)
        pressed = _back_substitute(triangle, sum_last(basis * normal))
        loses = (at.held >= 0) & (pressed > 0.0)
        lasts = jnp.where(loses, at.multipliers / jnp.where(loses, pressed, 1.0), jnp.inf)
        until = min_last(lasts)  # until a held row no longer presses
        enough = square > PARALLEL
        reached = jnp.where(enough, crossed / jnp.where(enough, square, 1.0), jnp.inf)
        step = jnp.minimum(until, reached)
        goes = (~idle | (crossed > CROSSED)) & jnp.isfinite(step)  # else: done, or infeasible
        step = jnp.where(goes, step, 0.0)
        takes = goes & (reached <= until)
        drops = goes & ~takes

        multipliers = jnp.maximum(at.multipliers - step * pressed, 0.0)
        multiplier = jnp.where(idle, 0.0, at.multiplier) + step
        empty = at.held < 0
        first = slots == argmin_last(jnp.where(empty, 0.0, 1.0))
        into = takes & first
        out = drops & (slots == argmin_last(lasts))
        return _Pivot(
            u=u - step * jnp.where(enough, free, 0.0),
            held=jnp.where(into, row, jnp.where(out, -1, at.held)),
            normals=jnp.where(into[:, None], normal, jnp.where(out[:, None], 0.0, at.normals)),
            ends=jnp.where(into, end, jnp.where(out, 0.0, at.ends)),
            multipliers=jnp.where(into, multiplier, jnp.where(out, 0.0, multipliers)),
            taken=jnp.where(drops, row, -1),
            multiplier=jnp.where(drops, multiplier, 0.0),
            count=at.count + 1,
            done=idle & ~goes,
        )

    zeros = jnp.zeros_like(point)
    start = _Pivot(
        u=point,
        held=jnp.full(size, -1, jnp.int32),
        normals=jnp.zeros((size, size), point.dtype),
        ends=zeros,
        multipliers=zeros,
        taken=jnp.int32(-1),
        multiplier=jnp.zeros((), point.dtype),
        count=jnp.int32(0),
        done=jnp.asarray(False),
    )
    # Most are done after two or three; in a batch the loop ends when all are.
    last = jax.lax.while_loop(lambda at: (at.count < pivots) & ~at.done, pivot, start)
    return _onto(point, last, *_orthogonal(last.normals, last.held >= 0))


def _orthogonal(normals: Array, held: Array) -> tuple[Array, list[list[Array]]]:
    """Orthonormal (m, m) of the held rows, and R with normals[j] = sum_i R[i][j] basis[i]."""
    basis, triangle = [], []
    for j in range(len(normals)):
        rest, column = normals[j], jnp.zeros(j, normals.dtype)
        for _ in range(2 if basis else 0):  # twice is enough, for rows at any angle
            before = jnp.stack(basis)
            along = sum_last(before * rest)
            rest, column = rest - sum_last((along[:, None] * before).T), column + along
        length = jnp.where(held[j], jnp.sqrt(sum_last(rest * rest)), 1.0)
        basis.append(rest / length)
        triangle.append([*column, length])
    return jnp.stack(basis), triangle


def _rest(vector: Array, basis: Array) -> Array:
    """What is left of a vector (m,) beside the basis."""
    for _ in range(2):
        vector = vector - sum_last((sum_last(basis * vector)[:, None] * basis).T)
    return vector


def _back_substitute(triangle: list[list[Array]], values: Array) -> Array:
    """r (m,) with R r = values; triangle[j][i] is R[i][j]."""
    size, solved = len(triangle), []
    for i in reversed(range(size)):
        later = [triangle[j][i] for j in reversed(range(i + 1, size))]
        known = [entry * r for entry, r in zip(later, solved, strict=True)]
        solved.append((values[i] - functools.reduce(operator.add, known, 0.0)) / triangle[i][i])
    return jnp.stack(solved[::-1])


def _onto(point: Array, at: _Pivot, basis: Array, triangle: list[list[Array]]) -> Array:
    """The point nearest to `point` at which all held rows are just satisfied."""
    u = point
    for _ in range(2):  # the second time for what was rounded off
        over, along = sum_last(at.normals * u) - at.ends, []
        for j, column in enumerate(triangle):
            known = [r * y for r, y in zip(column, along, strict=False)]
            along.append((over[j] - functools.reduce(operator.add, known, 0.0)) / column[j])
        u = u - sum_last((jnp.stack(along)[:, None] * basis).T)
    return u


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
