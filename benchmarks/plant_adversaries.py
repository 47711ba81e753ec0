"""Policies and plants that try to get an unsafe action past the filter, in batches of thousands.

Each adversary plays the part of the policy, of the sensors or of the plant. `attack` runs it in
closed loop with the filter, checks every executed action anew, and counts.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.types import Array, Key
from worldloom.safety.constraints import SafetyConstraints
from worldloom.safety.filter import (
    ControlState,
    SafetyReport,
    filter_action,
    initial_memory,
    reset_latch,
    validate_constraints,
)
from worldloom.safety.reductions import max_last, min_last, sum_last

DELAY = 5  # steps by which the delayed adversary is late
ASCENTS = 4  # steps of the gradient adversary
WIDE = 1.5  # proposals reach this far, beyond any box

# (key, state, the state DELAY steps ago, constraints) -> observation (n,) seen, action (m,) wanted
Propose = Callable[[Key, ControlState, ControlState, SafetyConstraints], tuple[Array, Array]]


class Adversary(NamedTuple):
    """What it proposes, and whether the plant is disturbed as badly as the barriers allow for."""

    propose: Propose
    disturbs: bool = False


class Attack(struct.PyTreeNode):
    """Counts over all cases; a case is one call of the filter."""

    cases: Array  # int32 ()
    violations: Array  # of actions that were not emergencies: a hard row crossed beyond tolerance
    unbounded: Array  # of any action: not finite, or box or hard rate crossed beyond tolerance
    altered: Array  # safe proposals, of a plant that is not stopped, not executed bit by bit
    unfinished: Array  # inputs that were not finite and did not lead to an emergency action
    broken: Array  # plants that lost a barrier's promise in a step without an emergency
    interventions: Array
    emergencies: Array
    worst: Array  # float32 (): the smallest hard margin of an accepted action, in scales


def uniform(
    key: Key, state: ControlState, late: ControlState, constraints: SafetyConstraints
) -> tuple[Array, Array]:
    """Any action, also outside of the box."""
    wild = WIDE * (2.0 * draws.uniform(key, constraints.low.shape) - 1.0)
    return state.obs, wild


def bang_bang(
    key: Key, state: ControlState, late: ControlState, constraints: SafetyConstraints
) -> tuple[Array, Array]:
    """Every actuator at one end, or far beyond it."""
    which, far = draws.split(key)
    up = draws.uniform(which, constraints.low.shape) < 0.5
    ends = jnp.where(up, constraints.high, constraints.low)
    return state.obs, ends * jnp.where(draws.uniform(far) < 0.5, 1.0, WIDE)


def gradient(
    key: Key, state: ControlState, late: ControlState, constraints: SafetyConstraints
) -> tuple[Array, Array]:
    """Climbs towards the smallest margin it can find, from anywhere in [-1, 1]."""

    def danger(action: Array) -> Array:
        margins = validate_constraints(state, action, constraints).margins / constraints.scale
        # The box is left by any bang; where there is nothing else, it is all there is to cross.
        others = margins[constraints.action_size :]
        return -min_last(others if others.shape[0] else margins)

    def climb(i: Array, action: Array) -> Array:
        slope = jax.vmap(lambda d: jax.jvp(danger, (action,), (d,))[1])(directions)
        return jnp.clip(action + 0.5 ** i.astype(jnp.float32) * jnp.sign(slope), -1.0, 1.0)

    directions = jnp.eye(constraints.action_size)
    action = 2.0 * draws.uniform(key, constraints.low.shape) - 1.0
    return state.obs, jax.lax.fori_loop(0, ASCENTS, climb, action)


def nan_injector(
    key: Key, state: ControlState, late: ControlState, constraints: SafetyConstraints
) -> tuple[Array, Array]:
    """Puts NaN or an infinity into one number of half of all observations or actions."""
    at, what, wild = draws.split(key, 3)
    _, action = uniform(wild, state, late, constraints)
    both = jnp.concatenate([state.obs, action])
    drawn = draws.uniform(what, (2,))
    poison = jnp.asarray([jnp.nan, jnp.inf, -jnp.inf])[(3.0 * drawn[0]).astype(jnp.int32)]
    hit = jnp.arange(both.shape[0]) == draws.integers(at, (), both.shape[0])
    both = jnp.where(hit & (drawn[1] < 0.5), poison, both)
    return both[: state.obs.shape[0]], both[state.obs.shape[0] :]


def delayed(
    key: Key, state: ControlState, late: ControlState, constraints: SafetyConstraints
) -> tuple[Array, Array]:
    """What was worst some steps ago: a policy behind a slow network."""
    return state.obs, gradient(key, late, late, constraints)[1]


ADVERSARIES: dict[str, Adversary] = {
    "uniform": Adversary(uniform),
    "bang_bang": Adversary(bang_bang),
    "gradient": Adversary(gradient),
    "nan_injector": Adversary(nan_injector),
    "delayed": Adversary(delayed),
    "worst_disturbance": Adversary(gradient, disturbs=True),
}


def attack(
    adversary: Adversary,
    constraints: SafetyConstraints,
    start: Callable[[Key], Array],
    key: Key,
    cases: int = 100_000,
    batch: int = 4096,
    episode: int = 25,
) -> Attack:
    """Runs at least `cases` cases and counts what went wrong.

    start(key) draws an observation (n,). Plants follow the constraints' model, a disturbed one less
    what every barrier allows for, and start anew every `episode` steps, at the place where their
    actuators are: rates must hold across that.
    """
    if cases < 1 or batch < 1 or episode < 1:
        raise ValueError(f"attack: cases={cases}, batch={batch}, episode={episode}; use 1 or more")
    batch = min(batch, cases)
    length = math.ceil(cases / batch)
    run = _program(adversary, start, batch, length, episode)
    return jax.device_get(run(constraints, key))


@lru_cache(maxsize=64)
def _program(
    adversary: Adversary, start: Callable[[Key], Array], batch: int, length: int, episode: int
) -> Callable[[SafetyConstraints, Key], Attack]:
    return jax.jit(partial(_run, adversary, start, batch, length, episode))


def _run(
    adversary: Adversary,
    start: Callable[[Key], Array],
    batch: int,
    length: int,
    episode: int,
    constraints: SafetyConstraints,
    key: Key,
) -> Attack:
    def one(key: Key) -> Attack:
        first, key = draws.split(key)
        memory = initial_memory(constraints)
        obs = start(first)
        past = jnp.broadcast_to(obs, (DELAY, *obs.shape))
        none = jnp.int32(0)
        counts = Attack(*[none] * 8, worst=jnp.float32(jnp.inf))

        def step(carry, number):
            obs, memory, past, counts, key = carry
            key, wish, fresh, calm = draws.split(key, 4)
            state = ControlState(obs, memory)
            late = ControlState(past[0], memory)
            obs_seen, asked = adversary.propose(wish, state, late, constraints)
            state = ControlState(obs_seen, memory)
            action, report = filter_action(asked, state, constraints)
            counts = _count(counts, state, asked, action, report, constraints)
            following, kept = _follow(adversary, obs, action, constraints)
            counts = counts.replace(
                broken=counts.broken + (~kept & ~report.emergency & report.input_finite)
            )
            over = ((number + 1) % episode == 0) | ~jnp.isfinite(following).all()
            obs = jnp.where(over, start(fresh), following)
            # Somebody comes along and lifts the stop, or hardly anything would be tried.
            lifted = reset_latch(report.memory)
            lift = draws.uniform(calm) < 0.5
            memory = jax.tree.map(lambda a, b: jnp.where(lift, a, b), lifted, report.memory)
            past = jnp.concatenate([past[1:], obs[None]])
            return (obs, memory, past, counts, key), None

        carry = (obs, memory, past, counts, key)
        return jax.lax.scan(step, carry, jnp.arange(length))[0][3]

    counts = jax.vmap(one)(draws.split(key, batch))
    summed = jax.tree.map(lambda x: x.sum(axis=0), counts)
    return summed.replace(worst=counts.worst.min())


def _count(
    counts: Attack,
    state: ControlState,
    asked: Array,
    action: Array,
    report: SafetyReport,
    constraints: SafetyConstraints,
) -> Attack:
    hard, kinds = np.asarray(constraints.hard), np.asarray(constraints.kinds)
    margins = validate_constraints(state, action, constraints).margins
    low = margins < -constraints.tolerance
    executed = ~report.emergency
    bounds = np.isin(kinds, ("box", "rate")) & hard
    proposed = validate_constraints(state, asked, constraints).margins
    # At 0 or more there is no doubt that a proposal is safe, whatever soft rows say. An emergency
    # does not excuse: who always stops would pass every other count.
    calm = report.input_finite & ~report.latched
    safe = (jnp.isfinite(proposed) & (proposed >= 0.0))[hard].all() & calm
    return counts.replace(
        cases=counts.cases + 1,
        violations=counts.violations + (executed & (low | ~jnp.isfinite(margins))[hard].any()),
        unbounded=counts.unbounded + (low[bounds].any() | ~jnp.isfinite(action).all()),
        altered=counts.altered + (safe & (action != asked).any()),
        unfinished=counts.unfinished + (~report.input_finite & ~report.emergency),
        interventions=counts.interventions + report.intervened,
        emergencies=counts.emergencies + report.emergency,
        worst=jnp.minimum(
            counts.worst,
            jnp.where(executed, min_last((margins / constraints.scale)[hard]), jnp.inf),
        ),
    )


def _follow(
    adversary: Adversary, obs: Array, action: Array, constraints: SafetyConstraints
) -> tuple[Array, Array]:
    """The next observation (n,), and whether hard barriers kept what they promise."""
    c = constraints
    if c.model is None:
        return obs, jnp.asarray(True)
    members = jnp.atleast_2d(c.model(obs, action))
    following = sum_last(members.T) / members.shape[0]
    if adversary.disturbs:
        following = following - _push(following, c)
    barriers = np.asarray(c.kinds) == "barrier"
    hard = np.flatnonzero(np.asarray(c.hard)[barriers])
    room = 2.0 * c.tolerance[np.flatnonzero(barriers)]  # a step of the plant is rounded as well
    kept = c.barrier(following) >= (1.0 - c.gamma) * c.barrier(obs) - room
    return following, kept[hard].all()


def _push(obs: Array, c: SafetyConstraints) -> Array:
    """The disturbance (n,) that lowers the nearest barrier most, within what all allow for."""
    weights, allowed = c.barrier.weights, c.disturbance
    if not allowed.shape[0]:
        return jnp.zeros_like(obs)
    scale = c.scale[np.flatnonzero(np.asarray(c.kinds) == "barrier")]
    # Of barriers in other units, and only of those that allow for anything.
    nearest = jnp.argmin(jnp.where(allowed > 0.0, c.barrier(obs) / scale, jnp.inf))
    along = weights[nearest] * allowed[nearest] / sum_last(weights[nearest] ** 2)
    lowered = sum_last(weights * along)  # (H,)
    excess = jnp.where(lowered > 0.0, lowered / jnp.maximum(allowed, 1e-30), 0.0)
    excess = max_last(excess)
    return along / jnp.maximum(excess, 1.0)


def violation_bound(violations: int, cases: int, confidence: float = 0.95) -> float:
    """The rate of violations that is not exceeded, with that confidence, after what was counted.

    Wilson's upper bound; without any violation the rule of three, -ln(1 - confidence) / cases,
    where that is larger. It speaks of cases drawn as these were, and of no others.
    """
    if not (0 <= violations <= cases and cases >= 1):
        raise ValueError(f"violation_bound: {violations} violations in {cases} cases")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"violation_bound: confidence={confidence}; use one between 0 and 1")
    z = NormalDist().inv_cdf(confidence)
    rate, squared = violations / cases, z * z / cases
    spread = z * math.sqrt(rate * (1.0 - rate) / cases + squared / (4.0 * cases))
    wilson = (rate + squared / 2.0 + spread) / (1.0 + squared)
    if violations == 0:
        wilson = max(wilson, 1.0 - (1.0 - confidence) ** (1.0 / cases))
    return min(wilson, 1.0)
