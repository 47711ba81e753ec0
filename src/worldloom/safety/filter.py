"""From an action that somebody wants to the action that is executed.

In this order, in constant shape; for one plant (`filter_action`), or for a batch of them
(`filter_batch`), where another action is looked for only if some plant needs one:

1. **Finite check.** Any NaN or infinity in the observation, in what the policy proposes, in the
   remembered action or in an active override leads to the emergency action.
2. **Latch.** After `latch_after` emergency actions in a row the stop stays until `reset_latch`.
   A hard state row that is crossed right now is an emergency as well.
3. **Human override.** An active one takes the place of what the policy proposes. It is clipped to
   box and hard rates and then treated as any proposal: executed as it is where that is safe,
   projected where it is not, and replaced by the emergency action where nothing else is left. It
   does not lift a latched stop. So an operator cannot cross a hard limit through the filter;
   whoever must, has to take the plant out of its hands.
4. **Accept.** What satisfies every hard row is executed, bit by bit as it was proposed. Soft rows
   are alarms: the report has their margins, and no action is changed for them.
5. **Project.** Otherwise, and unless the model's next step shows that no action can keep a hard
   barrier by far, the nearest action that satisfies the hard rows, those of a model
   linearised where it was asked for and again where that led.
6. **Re-validate** with the model itself. Only what passes is executed. Where nothing does, actions
   on the way to the emergency action are tried, and that one itself.
7. **Emergency action**: as near as box and hard rates allow to what the backup policy does, which
   the lookahead relies on; to `constraints.emergency`, or to where its recovery procedure is by
   now, where there is none, where it cannot know the plant, and once the stop is latched. Only
   where it does not satisfy the hard rows either, or could not be asked, does the report call it
   one.

A margin that is not finite, as of a model that predicts an infinity, is that of a crossed row.
"""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Float

from worldloom.core.sparse import update_chosen
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.safety.constraints import SafetyConstraints
from worldloom.safety.margins import (
    all_margins,
    emergency_move,
    model_margins,
    reach,
    takeover_move,
)
from worldloom.safety.reductions import all_last, argmin_last, sum_last
from worldloom.safety.search import (
    Asked,
    Choice,
    checked,
    enough,
    fall_back,
    out_of_reach,
    search_action,
    search_batch,
    take_rows,
)

# Rows that another action is looked for at a time: few where a lookahead makes each of them dear.
CHUNK, CHUNK_WITHOUT_LOOKAHEAD = 32, 128


class ControlMemory(struct.PyTreeNode):
    """What the filter remembers of one plant from step to step."""

    previous: Array  # (m,): the action that was executed last
    fallback: Array  # (m,): the emergency action of the coming step, whatever is observed then
    override: Array  # (m,): what a human wants instead
    overriding: Array  # bool ()
    emergencies: Array  # int32 (): in a row, up to now
    latched: Array  # bool (): the stop stays until it is reset
    step: Array  # int32 ()
    # (n + k,): the model's state when it was asked last, -inf where that is not known; None where
    # it has none but the observation
    estimate: Array | None = None


class ControlState(struct.PyTreeNode):
    """What an action is chosen from: the observation (n,) in physical units, and the memory."""

    obs: Array
    memory: ControlMemory


# Bits of a report's flags, the lowest first.
FLAGS = (
    "is_safe", "intervened", "projected", "infeasible", "emergency", "latched", "overridden",
    "input_finite",
)  # fmt: skip


def _flag(name: str) -> property:
    return property(lambda report: (report.flags >> FLAGS.index(name)) & 1 == 1)


class SafetyReport(struct.PyTreeNode):
    """What the filter did and why. Margins (C,) are in the order of `constraints.names`.

    What was not finite has margins of -inf, and is infinitely far away. Yes and no are bits of one
    number: each array that leaves a compiled program costs as much as filtering a hundred actions.
    """

    margins_before: Array  # (C,): of what was proposed, or of the override
    margins_after: Array  # (C,): of what is executed
    active: Array  # int32 (): the row that was crossed furthest and led to it; -1: none
    distance: Array  # (): Euclidean, from what was asked for to what is executed
    model_uncertainty: Array  # (H,): the ensemble's standard deviation of each barrier's h
    flags: Array  # uint8 (): which of FLAGS hold, the properties below
    memory: ControlMemory  # for the next call

    is_safe = _flag("is_safe")  # the executed action satisfies every hard row
    intervened = _flag("intervened")  # what is executed is not what was asked for
    projected = _flag("projected")  # and is safe: the nearest that was found
    infeasible = _flag("infeasible")  # no safe action was found
    emergency = _flag("emergency")  # the emergency action is executed
    latched = _flag("latched")  # because an earlier stop still stands
    overridden = _flag("overridden")  # a human's action took the place of the policy's
    input_finite = _flag("input_finite")

    @property
    def step(self) -> Array:  # int32 (): how many actions were executed before
        return self.memory.step - 1


def pack_flags(**flags: Array) -> Array:
    """Booleans of one shape, by their names in FLAGS, as bits of a uint8."""
    bits = [flags[name].astype(jnp.uint8) << bit for bit, name in enumerate(FLAGS)]
    return functools.reduce(operator.or_, bits)


# Memory ------------------------------------------------------------------------------------------


def initial_memory(
    constraints: SafetyConstraints, previous: Float[Array | np.ndarray, " m"] | None = None
) -> ControlMemory:
    """The memory before the first step.

    previous: where the actuators are, from which the rates count; the emergency action's
    place unless it is given. For a batch, map it: `jax.vmap(initial_memory, (None, 0))`.
    """
    place = constraints.emergency if previous is None else jnp.asarray(previous, jnp.float32)
    no, zero, estimate = jnp.asarray(False), jnp.int32(0), None
    if constraints.hidden is not None:
        obs = jnp.zeros(constraints.state.weights.shape[-1], place.dtype)
        rest = jax.eval_shape(constraints.hidden, obs)
        estimate = jnp.full(obs.size + rest.size, -jnp.inf, obs.dtype)
    return ControlMemory(
        previous=place,
        fallback=emergency_move(place, zero, constraints),
        override=jnp.zeros_like(place),
        overriding=no,
        emergencies=zero,
        latched=no,
        step=zero,
        estimate=estimate,
    )


def reset_latch(memory: ControlMemory) -> ControlMemory:
    """The memory (any batch) with the stop lifted. Rates go on from the last executed action.

    With a recovery procedure, `fallback` is still its next step: that of its beginning has
    `initial_memory(constraints, memory.previous)`.
    """
    return memory.replace(
        latched=jnp.zeros_like(memory.latched), emergencies=jnp.zeros_like(memory.emergencies)
    )


def with_override(memory: ControlMemory, action: Float[Array | np.ndarray, " m"]) -> ControlMemory:
    """The memory (any batch) with a human's action, which is asked for until `clear_override`."""
    action = jnp.broadcast_to(jnp.asarray(action, jnp.float32), memory.override.shape)
    return memory.replace(override=action, overriding=jnp.ones_like(memory.overriding))


def clear_override(memory: ControlMemory) -> ControlMemory:
    """The memory without a human's action: the policy is asked again."""
    return memory.replace(
        override=jnp.zeros_like(memory.override), overriding=jnp.zeros_like(memory.overriding)
    )


def emergency_action(
    state: ControlState, constraints: SafetyConstraints | None = None
) -> Float[Array, "*rows m"]:
    """The emergency action of this step, which needs neither policy nor model nor observation.

    So it is ready for whoever cannot ask the filter, which may do better with a backup policy.
    Without constraints it is the one that the memory holds ready; with them it is computed, also
    from a memory that is not finite.
    """
    if constraints is None:
        return state.memory.fallback
    memory = state.memory
    return emergency_move(
        _or_emergency(memory.previous, constraints), memory.emergencies, constraints
    )


def after_emergency(memory: ControlMemory, constraints: SafetyConstraints) -> ControlMemory:
    """The memory after `memory.fallback` was executed without the filter's being asked.

    For a caller that ran out of time, who has none left to ask a backup policy, either; it counts
    towards the latch.
    """
    if memory.estimate is not None:
        estimate = _advance(memory.estimate, memory.previous, constraints)
        memory = memory.replace(estimate=estimate)
    return _remember(memory, memory.fallback, jnp.asarray(True), constraints)


def _advance(estimate: Array, previous: Array, constraints: SafetyConstraints) -> Array:
    """The model's state a step after it was asked last; -inf where that is not known."""
    after = constraints.model(estimate, previous)  # pyright: ignore[reportOptionalCall]
    known = all_last(jnp.isfinite(estimate)) & all_last(jnp.isfinite(after))
    return jnp.where(known, after, -jnp.inf)


def _locate(state: ControlState, constraints: SafetyConstraints) -> ControlState:
    """The state with that of the model in the place of the observation, and in the memory."""
    memory, hidden, size = state.memory, constraints.hidden, state.obs.shape[-1]
    if hidden is None or memory.estimate is None:
        return state
    after = _advance(memory.estimate, memory.previous, constraints)
    rest = jnp.where(jnp.isfinite(after[0]), after[size:], hidden(state.obs))
    estimate = jnp.concatenate([state.obs, rest])
    kept = jnp.where(all_last(jnp.isfinite(estimate)), estimate, after)
    return ControlState(estimate, memory.replace(estimate=kept))


def _remember(
    memory: ControlMemory, action: Array, emergency: Array, constraints: SafetyConstraints
) -> ControlMemory:
    count = jnp.where(emergency, memory.emergencies + 1, 0)
    limit = constraints.latch_after
    return memory.replace(
        previous=action,
        fallback=emergency_move(action, count, constraints),
        emergencies=count,
        latched=memory.latched | ((limit > 0) & (count >= limit)),
        step=memory.step + 1,
    )


def _or_emergency(previous: Array, constraints: SafetyConstraints) -> Array:
    return jnp.where(jnp.isfinite(previous), previous, constraints.emergency)


# The filter --------------------------------------------------------------------------------------


class Validation(struct.PyTreeNode):
    """Signed margins (C,) of an action, and whether it satisfies every hard row."""

    margins: Array
    is_safe: Array  # bool ()


def validate_constraints(
    state: ControlState, action: Float[Array, " m"], constraints: SafetyConstraints
) -> Validation:
    """How an action stands to every row, in the order of `constraints.names`.

    A row is satisfied where its margin is finite and at least `-constraints.tolerance`.
    """
    state = _locate(state, constraints)
    of_model, _ = model_margins(state.obs, action, constraints)
    margins = all_margins(state.obs, action, state.memory.previous, of_model, constraints)
    hard = np.asarray(constraints.hard)
    satisfied = jnp.isfinite(margins) & (margins >= -constraints.tolerance)
    return Validation(margins, all_last(take_rows(satisfied, hard)))


def policy_forward(
    policy_params: PolicyState, state: ControlState, key: Key | None = None
) -> Float[Array, "*rows m"]:
    """What a policy proposes, before any filter; with a key, as it explores."""
    return policy_step(policy_params, state.obs, key)


def safe_policy_execution(
    policy_params: PolicyState,
    state: ControlState,
    safety_constraints: SafetyConstraints,
    key: Key | None = None,
) -> tuple[Float[Array, "*rows m"], SafetyReport]:
    """The action that is executed for what the policy proposes, and the report on it.

    state: of one plant, or of many with the same leading axes on every leaf, to which the
    constraints apply alike. key: for a policy that explores; None: it does not.
    """
    proposed = policy_forward(policy_params, state, key)
    if state.obs.ndim == 1:
        return filter_action(proposed, state, safety_constraints)
    rows = state.obs.shape[:-1]
    flat, states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(rows) :]), (proposed, state))
    out = filter_batch(flat, states, safety_constraints)
    return jax.tree.map(lambda x: x.reshape(*rows, *x.shape[1:]), out)


def filter_action(
    proposed: Float[Array, " m"], state: ControlState, constraints: SafetyConstraints
) -> tuple[Float[Array, " m"], SafetyReport]:
    """The action that is executed in place of a proposed one, and the report on it.

    See the module for the order, and `worldloom.safety.constraints` for what it promises. Another
    action is looked for only where one is needed; under a `vmap` always: use `filter_batch`.
    """
    c, state = constraints, _locate(state, constraints)
    obs, asked = state.obs, _ask(proposed, state, c)
    choice = jax.lax.cond(
        asked.choice.fits | ~asked.calm, lambda: asked.choice, lambda: search_action(asked, obs, c)
    )
    choice = jax.lax.cond(asked.calm, lambda: choice, lambda: fall_back(asked, obs, c))
    return _execute(asked, choice, state, c)


def filter_batch(
    proposed: Float[Array, "b m"], state: ControlState, constraints: SafetyConstraints
) -> tuple[Float[Array, "b m"], SafetyReport]:
    """`filter_action` of every row, at the cost of the rows' margins where all are accepted.

    A branch that one row of a `vmap` takes is computed for all of them, taken or not: here the rows
    that need it are gathered first, in batches that are larger than a chunk of them. Smaller ones,
    and those of exported programs, search for all rows if one needs it. What a row gets does not
    depend on the others.
    """
    c, size = constraints, state.obs.shape[0]
    state = jax.vmap(_locate, (0, None))(state, c)
    asked = jax.vmap(_ask, (0, 0, None))(proposed, state, c)

    # A batch whose size is not known yet (`jax.export`) cannot be cut into chunks.
    chunk = CHUNK if c.horizon else CHUNK_WITHOUT_LOOKAHEAD
    chunk = chunk if isinstance(size, int) else size

    def of_rows(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
        return lambda rows: jax.vmap(function, (0, 0, None))(*rows, c)

    def search(rows: tuple[Asked, Array]) -> Choice:
        return search_batch(*rows, c)

    rows = (asked, state.obs)
    unsettled = asked.calm & ~asked.choice.fits
    lost = jnp.zeros_like(unsettled)
    if c.horizon:
        lost = update_chosen(unsettled, of_rows(out_of_reach), lost, rows, chunk)
    choice = update_chosen(unsettled & ~lost, search, asked.choice, rows, chunk)
    choice = update_chosen(~asked.calm | lost, of_rows(fall_back), choice, rows, chunk)
    return jax.vmap(_execute, (0, 0, 0, None))(asked, choice, state, c)


def _ask(proposed: Array, state: ControlState, c: SafetyConstraints) -> Asked:
    """Steps 1 to 4 of the module: what is asked for, and whether it can be accepted."""
    obs, memory = state.obs, state.memory
    finite = (
        all_last(jnp.isfinite(obs))
        & all_last(jnp.isfinite(proposed))
        & all_last(jnp.isfinite(memory.previous))
        & (all_last(jnp.isfinite(memory.override)) | ~memory.overriding)
    )
    previous = _or_emergency(memory.previous, c)
    override = jnp.clip(memory.override, *reach(previous, c))
    target = jnp.where(memory.overriding, override, proposed)
    value, uncertainty = model_margins(obs, target, c)
    choice = Choice(target, value, uncertainty, jnp.asarray(True))
    margins = all_margins(obs, target, previous, value, c)
    trips = (np.asarray(c.kinds) == "state") & np.asarray(c.hard)
    calm = finite & ~memory.latched & all_last(enough(take_rows(margins, trips), c, trips))
    fallback = takeover_move(previous, obs, memory.emergencies, memory.latched, c)
    return Asked(checked(choice, previous, c), margins, previous, fallback, finite, calm)


def _execute(
    asked: Asked, choice: Choice, state: ControlState, c: SafetyConstraints
) -> tuple[Array, SafetyReport]:
    """The chosen action and the report on it."""
    obs, memory, target, finite = state.obs, state.memory, asked.choice.action, asked.finite
    action, of_model, uncertainty, fits = choice
    emergency = ~(asked.calm & fits)
    kinds, hard = np.asarray(c.kinds), np.asarray(c.hard)
    before = jnp.where(finite & jnp.isfinite(asked.margins), asked.margins, -jnp.inf)
    after = all_margins(obs, action, asked.previous, of_model, c)
    known = all_last(jnp.isfinite(obs)) | np.isin(kinds, ("box", "rate", "linear"))
    after = jnp.where(known & jnp.isfinite(after), after, -jnp.inf)
    intervened = ~all_last(action == target)
    # A soft row that is crossed is an alarm and no cause.
    worst = argmin_last(jnp.where(hard, before / c.scale, jnp.inf))
    caused = (intervened | emergency) & finite & ~memory.latched
    flags = pack_flags(
        is_safe=all_last(take_rows(after >= -c.tolerance, hard)),
        intervened=intervened,
        projected=intervened & ~emergency,
        infeasible=asked.calm & ~fits,
        emergency=emergency,
        latched=memory.latched,
        overridden=memory.overriding & ~emergency,
        input_finite=finite,
    )
    report = SafetyReport(
        margins_before=before,
        margins_after=after,
        active=jnp.where(caused, worst, -1),
        distance=jnp.where(finite, jnp.sqrt(sum_last((action - target) ** 2)), jnp.inf),
        model_uncertainty=jnp.where(jnp.isfinite(uncertainty), uncertainty, jnp.inf),
        flags=flags,
        memory=_remember(memory, action, emergency, c),
    )
    return action, report
