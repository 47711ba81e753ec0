"""The constraints of a plant: from its limits, or from a file.

What a plant says of itself is written down as the text of a constraint file, in its own units, and
read like any other: `constraint_text` is where somebody who wants other constraints starts from.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.names import suggest
from worldloom.core.types import Array, Key
from worldloom.safety.constraint_file import parse_constraints
from worldloom.safety.constraints import SafetyConstraints
from worldloom.suites.plant.controllers import without_memory
from worldloom.suites.plant.plant import RESPONSE, PlantWorld

SETTLING = 100  # steps for which an action is held to see where it leads
MOST_CORNERS = 4  # actuators whose combinations are all tried
STARTS = 256  # states that a backup is tried from
LOOKAHEAD = 10  # steps, at least


def constraints_for(world: PlantWorld, **options: Any) -> SafetyConstraints:
    """The constraints that a plant's limits and its known model amount to.

    options: those of `constraint_text`.
    """
    return constraints_in(constraint_text(world, **options), f"{world.plant.name}'s limits", world)


def constraints_in(
    text: str,
    source: str,
    world: PlantWorld,
    model: Callable[[Array, Array], Array] | None = None,
) -> SafetyConstraints:
    """The constraints in a file's text, checked against the plant's signals, with its model.

    source: where the text is from, which errors name. model: in place of the plant's known one.
    """
    plant = world.plant
    made = parse_constraints(
        text,
        source,
        plant.observation,
        plant.action,
        model or world.model(),
        hidden=None if model else world.hidden(),
        loops=without_memory(world) if plant.loops else None,
        step_seconds=plant.step_seconds,
    )
    _check_lookahead(world, made.horizon, f"{source}: lookahead.steps")
    if int(made.latch_after) and not getattr(plant, "has_safe_state", True):
        raise ValueError(
            f"{source}: latch_after={int(made.latch_after)}; no constant action keeps "
            f"{plant.name}, a stop that stays would lose it: write latch_after: 0"
        )
    return made


def constraint_text(
    world: PlantWorld,
    *,
    gamma: float = 1.0,
    reserve: float = 0.05,
    emergency: Mapping[str, float] | None = None,
    trip: bool = False,
    lookahead: int | None = None,
    latch_after: int | None = None,
    disturbance: Mapping[str, float] | None = None,
) -> str:
    """What a plant's limits and its known model amount to, as the text of a constraint file.

    Limits of observations become barriers, with `gamma`, and rows of the state as it is now, which
    are alarms; with `trip`, hard limits that are crossed lead to the
    emergency action. Rates stay rates. Soft limits are alarms, and change no action. emergency:
    physical values by actuator; `safest_action` where it is not given.

    lookahead: steps for which hard limits must hold if the backup takes over; 0: none. A barrier
    looks one step ahead, which is too late where an actuator acts with a lag: behind a barrier
    alone the reactor runs away. By default half as far again as the plant takes to respond, which
    no lookahead may fall short of. latch_after:
    emergencies in a row until the stop stays, 0: never; by default as many as the lookahead has
    steps, within which the plant should have recovered, and 0 for a plant that no constant action
    keeps: a latched stop would lose it. disturbance: of barriers, by signal: how far its model may
    err in a step.
    reserve: the share of a signal's range by which barriers and lookahead stay away from its hard
    limits, for what the model does not know; with 0, a plant that is disturbed at the very edge
    crosses it.
    """
    plant = world.plant
    if not 0.0 <= reserve < 1.0:
        raise ValueError(f"{plant.name}: reserve={reserve:g}; it is a share of a signal's range")
    if lookahead is None:
        lookahead = max(LOOKAHEAD, 3 * _response(world) // 2)
    _check_lookahead(world, lookahead, f"{plant.name}: lookahead")
    where = _emergency(world, emergency)
    ranges = {s.name: s.high - s.low for s in plant.observation}
    units = {s.name: s.unit for s in (*plant.observation, *plant.action)}
    bounds = np.asarray(world.params.bounds)
    lines = ["emergency:"]
    lines += [f"  {name}: {value:.9g} {units[name]}".rstrip() for name, value in where.items()]
    stages = getattr(plant, "recovery", ())
    lines += ["recovery:", *(f"  - {stage}" for stage in stages)] if stages else []
    parts: dict[str, list[str]] = {"rate": [], "state": [], "barriers": [], "lookahead": []}
    for limit, bound in zip(plant.limits, bounds, strict=True):
        quantity = f"{bound:.9g} {units[limit.signal]}".rstrip()
        hard = str(limit.hard).lower()
        if limit.kind == "rate":
            parts["rate"].append(f"{limit.signal}: {{at_most: {quantity}, hard: {hard}}}")
            continue
        trips = str(trip and limit.hard).lower()
        row = f"{limit.name}: {{signal: {limit.signal}, {limit.kind}: "
        about = "" if limit.priority == "medium" else f", alarm: {limit.priority}"
        if limit.deadband:
            about += f", deadband: {limit.deadband:.9g} {units[limit.signal]}".rstrip()
        parts["state"].append(f"{row}{quantity}, hard: {trips}{about}}}")
        kept = reserve * ranges[limit.signal] * limit.hard
        bound = bound - kept if limit.kind == "at_most" else bound + kept
        row += f"{bound:.9g} {units[limit.signal]}".rstrip()
        err = (disturbance or {}).get(limit.signal, 0.0)
        doubt = f", disturbance: {err:.6g} {units[limit.signal]}".rstrip() if err else ""
        parts["barriers"].append(f"{row}, hard: {hard}, gamma: {gamma:.9g}{doubt}}}")
        if lookahead and limit.hard:
            parts["lookahead"].append(f"{row}}}")
    for key, rows in parts.items():
        if not rows:
            continue
        lines.append(f"{key}:")
        indent = "  "
        if key == "lookahead":
            backup = "emergency"
            if not stages:  # which take over wherever there are any
                backup = safest_backup(world, where, lookahead, reserve)
            lines += [f"  steps: {lookahead}", f"  backup: {backup}", "  rows:"]
            indent = "    "
        lines += [indent + row for row in rows]
    if latch_after is None:
        latch_after = (lookahead or LOOKAHEAD) * getattr(plant, "has_safe_state", True)
    return "\n".join([*lines, f"latch_after: {latch_after}"]) + "\n"


def _response(world: PlantWorld) -> int:
    return getattr(world.plant, "response", RESPONSE)


def _check_lookahead(world: PlantWorld, steps: int, where: str) -> None:
    """Refuses a lookahead that ends before the action shows: it would find nothing wrong."""
    least = _response(world) + 1
    if 0 < steps < least:
        raise ValueError(
            f"{where}={steps}; {world.plant.name} responds after {least - 1} steps: "
            f"use {least} or more"
        )


def _emergency(world: PlantWorld, given: Mapping[str, float] | None) -> dict[str, float]:
    """Physical values by actuator."""
    names = [signal.name for signal in world.plant.action]
    if given is None:
        values = np.asarray(world.control(jnp.asarray(safest_action(world))))
        return dict(zip(names, values.tolist(), strict=True))
    for name in sorted(given.keys() - set(names)):
        raise ValueError(f"{world.plant.name}: emergency: {name!r}; {suggest(name, names)}")
    for name in sorted(set(names) - given.keys()):
        raise ValueError(f"{world.plant.name}: emergency: {name} is missing; give all of them")
    return {name: float(given[name]) for name in names}


def safest_action(world: PlantWorld) -> np.ndarray:
    """The constant action (m,) in [-1, 1] that keeps the plant's model furthest from its limits.

    Tried are the low end, the middle and the high end of every actuator, from the middle of all
    signals' ranges on, for `SETTLING` steps; with more than `MOST_CORNERS` actuators only one is
    moved at a time. What counts is the smallest margin on the way, in shares of its signal's range,
    of hard limits; of all, where none is hard; the middle, where there are none. A guess, made so
    that there is an emergency action at all: whoever knows the plant says which one it is.
    """
    plant, size = world.plant, len(world.plant.action)
    least = _least_margin(world)
    if least is None:
        return np.zeros(size, np.float32)
    tried = np.concatenate([np.zeros((1, size)), -np.eye(size), np.eye(size)])
    if size <= MOST_CORNERS:
        tried = np.asarray(list(itertools.product((0.0, -1.0, 1.0), repeat=size)))
    tried = tried.astype(np.float32)
    middle = jnp.asarray([(s.low + s.high) / 2.0 for s in plant.observation], jnp.float32)

    def held(action: Array) -> Array:
        return least(middle, lambda _: action, SETTLING)

    margins = np.asarray(jax.jit(jax.vmap(held))(tried))
    return tried[int(np.argmax(np.where(np.isfinite(margins), margins, -np.inf)))]


def safest_backup(
    world: PlantWorld, emergency: Mapping[str, float], steps: int, reserve: float
) -> str:
    """`loops` or `emergency`: what to let take over for `steps`.

    The one under which the plant's model keeps `reserve` from more of the states that episodes
    start in; the emergency action, where both do as well. To hold still brings a reactor to rest,
    but keeps no building warm in every weather.
    """
    least = _least_margin(world)
    if least is None or not world.plant.loops:
        return "emergency"
    still = world.action(jnp.asarray(list(emergency.values()), jnp.float32))

    @jax.jit
    def kept(key: Key) -> list[Array]:
        keys = jax.random.split(key, STARTS)
        starts = jax.vmap(lambda key: world.reset(key, world.params)[1].obs)(keys)
        backups = (without_memory(world), lambda _: still)
        margins = [jax.vmap(lambda obs, b=b: least(obs, b, steps))(starts) for b in backups]
        return [(each >= reserve).mean() for each in margins]

    loops, held = kept(jax.random.key(0))
    return "loops" if loops > held else "emergency"


def _least_margin(
    world: PlantWorld,
) -> Callable[[Array, Callable[[Array], Array], int], Array] | None:
    """(obs (n,), policy, steps) -> the smallest margin on the way, by the plant's model.

    In shares of its signal's range; of hard limits, or of all where none is hard. None: there are
    no limits.
    """
    plant = world.plant
    pairs = zip(plant.limits, np.asarray(world.params.bounds), strict=True)
    limits = [pair for pair in pairs if pair[0].kind != "rate"]
    limits = [pair for pair in limits if pair[0].hard] or limits
    if not limits:
        return None
    names = [signal.name for signal in plant.observation]
    which = np.asarray([names.index(limit.signal) for limit, _ in limits], np.int32)
    sign = np.asarray([1.0 if limit.kind == "at_most" else -1.0 for limit, _ in limits], np.float32)
    bound = np.asarray([b for _, b in limits], np.float32)
    ranges = np.asarray([signal.high - signal.low for signal in plant.observation], np.float32)
    model, hidden = world.model(), world.hidden()

    def least(obs: Array, policy: Callable[[Array], Array], steps: int) -> Array:
        def step(obs: Array, _: None) -> tuple[Array, Array]:
            obs = model(obs, policy(obs))
            return obs, jnp.min(sign * (bound - obs[which]) / ranges[which])

        obs = jnp.concatenate([obs, hidden(obs)]) if hidden else obs
        return jax.lax.scan(step, obs, None, length=steps)[1].min()

    return least
