"""The search for an action that satisfies every hard row, where the proposed one does not."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array
from worldloom.safety.constraints import SafetyConstraints
from worldloom.safety.margins import barrier_margins, linearise, model_margins, reach
from worldloom.safety.projection import project
from worldloom.safety.reductions import all_last, sum_last

ACCEPTED = 0.5  # of the tolerance; see TOLERANCE
# How much more than the first linearisation missed by the next ones ask for: on a curved row
# they would otherwise always end just outside.
CAUTION = 0.1
# How many times what the slopes say an action may do before a barrier is called out of reach: a
# model bends.
BENDS = 2.0


class Choice(NamedTuple):
    """An action, the margins of its model's rows, their uncertainty, and whether it will do."""

    action: Array
    of_model: Array
    uncertainty: Array
    fits: Array

    def otherwise(self, other: "Choice") -> "Choice":
        """This one where it fits, else the other."""
        return Choice(
            jnp.where(self.fits, self.action, other.action),
            jnp.where(self.fits, self.of_model, other.of_model),
            jnp.where(self.fits, self.uncertainty, other.uncertainty),
            self.fits | other.fits,
        )


class Asked(NamedTuple):
    """What is asked for, and what is known of it before anything else is looked for."""

    choice: Choice  # fits: it satisfies every hard row
    margins: Array  # (C,)
    previous: Array  # (m,): where the actuators are, in finite numbers
    fallback: Array  # (m,): what is executed where nothing fits
    finite: Array  # bool ()
    calm: Array  # bool (): nothing but the action itself can call for the emergency action


def out_of_reach(asked: Asked, obs: Array, c: SafetyConstraints) -> Array:
    """Whether no action can keep some hard barrier in the next step, by far.

    One step of the model tells it, where a lookahead would take many steps of many actions. Asked
    is the best that box and rates allow by the slopes of the barrier, times `BENDS`. Exact for
    models in which an action acts linearly; on one that bends more, it leaves no action but the
    emergency action, if that does not satisfy all rows.
    """
    barriers = np.asarray(c.kinds) == "barrier"
    hard = np.asarray(c.hard)[barriers]
    if not hard.any():
        return jnp.asarray(False)
    low, high = reach(asked.previous, c)
    u = jnp.clip(asked.choice.action, low, high)
    value, slope, _ = linearise(obs, u, c, barrier_margins)
    gain = sum_last(jnp.maximum(slope * (low - u), slope * (high - u)))
    short = value + BENDS * gain + take_rows(c.tolerance, barriers) < 0.0
    return ~all_last(take_rows(~(short & jnp.isfinite(value)), hard))


def fall_back(asked: Asked, obs: Array, c: SafetyConstraints) -> Choice:
    """The emergency action, which may or may not fit."""
    choice = Choice(asked.fallback, *model_margins(obs, asked.fallback, c), jnp.asarray(True))
    return checked(choice, asked.previous, c)


def search_action(asked: Asked, obs: Array, c: SafetyConstraints) -> Choice:
    """The nearest action found that satisfies every hard row, where what is asked for does not.

    The emergency action, which may not fit, where none was found.
    """

    def look() -> Choice:
        nearest, last = _nearest(asked, obs, c)
        return jax.lax.cond(
            nearest.fits, lambda: nearest, lambda: _towards(asked, nearest, last, obs, c)
        )

    if not c.horizon:  # to look for another action costs as little as to ask whether there is one
        return look()
    return jax.lax.cond(out_of_reach(asked, obs, c), lambda: fall_back(asked, obs, c), look)


def search_batch(asked: Asked, obs: Array, c: SafetyConstraints) -> Choice:
    """What `search_action` finds for every row (b, ...) that is not out of reach."""
    nearest, last = jax.vmap(_nearest, (0, 0, None))(asked, obs, c)
    further = jax.vmap(_towards, (0, 0, 0, 0, None))
    # Of rows that need no other action, or can have none, nobody reads the result.
    done = (nearest.fits | asked.choice.fits | ~asked.calm).all()
    return jax.lax.cond(done, lambda: nearest, lambda: further(asked, nearest, last, obs, c))


def take_rows(values: Array, rows: np.ndarray) -> Array:
    """Those of the values (C, ...) whose rows, a mask (C,), are wanted."""
    if rows.all():
        return values
    # Slices, which become part of the arithmetic around them; a gather would be a kernel.
    parts = [values[i : i + 1] for i in np.flatnonzero(rows)]
    return jnp.concatenate(parts) if parts else values[:0]


def enough(margins: Array, c: SafetyConstraints, rows: np.ndarray) -> Array:
    """Which of the margins, those of a mask (C,) of rows, are acceptable."""
    return jnp.isfinite(margins) & (margins >= -ACCEPTED * take_rows(c.tolerance, rows))


def checked(choice: Choice, previous: Array, c: SafetyConstraints) -> Choice:
    """The choice that fits if it satisfies box, hard rates, and hard linear and model rows."""
    u, (low, high) = choice.action, reach(previous, c)
    general = np.isin(c.kinds, ("linear", "barrier", "lookahead"))
    held = enough(jnp.concatenate([c.linear(u), choice.of_model]), c, general)
    hard = np.asarray(c.hard)[general]
    inside = all_last((u >= low) & (u <= high))
    return choice._replace(fits=inside & all_last(take_rows(held, hard)))


def _nearest(asked: Asked, obs: Array, c: SafetyConstraints) -> tuple[Choice, Array]:
    """The nearest action to what was asked for that satisfies the hard rows.

    And the last one (m,) that was tried.
    """
    kinds, hard = np.asarray(c.kinds), np.asarray(c.hard)
    linear, modelled = hard[kinds == "linear"], hard[np.isin(kinds, ("barrier", "lookahead"))]
    target, previous = asked.choice.action, asked.previous
    low, high = reach(previous, c)

    def projected(point: Array, value: Array, slope: Array, more: Array) -> Array:
        # value + slope (u - point) >= more, as rows @ u <= bounds
        bounds = value - sum_last(slope * point) - more
        rows = jnp.concatenate([-take_rows(c.linear.weights, linear), -take_rows(slope, modelled)])
        bounds = jnp.concatenate([take_rows(c.linear.offset, linear), take_rows(bounds, modelled)])
        return project(target, rows, bounds, low, high, c.pivots)

    def nearer(best: Choice, far: Array, u: Array, value: Array, uncertainty: Array):
        tried = checked(Choice(u, value, uncertainty, jnp.asarray(True)), previous, c)
        distance = sum_last((u - target) ** 2)
        better = tried.fits & (distance < far)
        return tried._replace(fits=better).otherwise(best), jnp.where(better, distance, far)

    def linearised(_: Array, carry: Any) -> Any:
        u, expected, more, best, far = carry
        value, slope, uncertainty = linearise(obs, u, c)
        best, far = nearer(best, far, u, value, uncertainty)
        more = jnp.maximum(more, CAUTION * jnp.maximum(expected - value, 0.0))
        following = projected(u, value, slope, more)
        return following, value + sum_last(slope * (following - u)), more, best, far

    none = jnp.zeros_like(asked.choice.of_model)
    best = asked.choice._replace(fits=jnp.asarray(False))
    far = jnp.asarray(jnp.inf, obs.dtype)
    if modelled.any():
        # A loop, also of two passes: in one piece XLA would compute a projection anew for each
        # number that the model makes of it, dozens of times.
        carry = (target, none - jnp.inf, none, best, far)
        u, *_, best, far = jax.lax.fori_loop(0, c.passes, linearised, carry)
    else:
        u = projected(target, none, jnp.zeros((len(none), len(target))), none)
    value, uncertainty = model_margins(obs, u, c)
    return nearer(best, far, u, value, uncertainty)[0], u


def _towards(
    asked: Asked, nearest: Choice, last: Array, obs: Array, c: SafetyConstraints
) -> Choice:
    """The nearest one, or the first that fits from the last one tried (m,) to the emergency action.

    Where a row bends too much for its slopes, some of these still satisfy it. The emergency action,
    where none fits.
    """
    low, high = reach(asked.previous, c)
    fallback = asked.fallback
    count = c.searches + 1
    shares = jnp.arange(count, dtype=last.dtype)[::-1] / count
    points = jnp.clip(fallback + shares[:, None] * (last - fallback), low, high)
    points = jnp.concatenate([points[:-1], fallback[None]])
    margins, uncertainties = jax.vmap(lambda u: model_margins(obs, u, c))(points)
    choice = nearest
    for i in range(count):
        point = Choice(points[i], margins[i], uncertainties[i], jnp.asarray(False))
        choice = choice.otherwise(checked(point, asked.previous, c))
    return choice
