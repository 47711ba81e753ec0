"""A policy with its safety filter as programs that need none of our code, by `jax.export`.

Three programs, each for any number of rows, with arrays and dicts of arrays in and out:

    control    obs (b, n), memory, key data (b, 2) -> action, proposed, memory, report
    emergency  memory -> memory after `memory["fallback"]` was executed without asking the filter
    start      previous action (b, m) -> memory of plants that start there

The memory's and the report's names are those of `ControlMemory` and `SafetyReport`. Weights,
constraints and the plant's model are constants of the programs.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.safety.constraints import SafetyConstraints
from worldloom.safety.filter import (
    ControlMemory,
    ControlState,
    SafetyReport,
    after_emergency,
    filter_action,
    filter_batch,
    initial_memory,
)
from worldloom.serving.program import Rows, serialise

KEY_WORDS = 2  # of a threefry key
MEMORY = tuple(field.name for field in fields(ControlMemory))
# What a bundle tells of a report, in the order of its manifest.
REPORT = (
    "is_safe", "margins_before", "margins_after", "active", "intervened", "projected", "infeasible",
    "emergency", "latched", "overridden", "distance", "input_finite", "model_uncertainty", "step",
)  # fmt: skip


def control_row(policy: PolicyState, constraints: SafetyConstraints) -> Callable[..., Rows]:
    """The function (obs (n,), memory, key data (2,)) that the control program computes of a row.

    Of a policy that does not explore the key is ignored.
    """

    def run(obs: Array, memory: Mapping[str, Array], key: Array) -> Rows:
        proposed = _propose(policy, obs, key)
        return _answer(proposed, *filter_action(proposed, _state(obs, memory), constraints))

    return run


def control(policy: PolicyState, constraints: SafetyConstraints) -> Callable[..., Rows]:
    """The control program: what `control_row` computes of rows (b, ...).

    Where all of them are accepted, at the cost of their margins.
    """

    def run(obs: Array, memory: Mapping[str, Array], key: Array) -> Rows:
        proposed = jax.vmap(lambda obs, key: _propose(policy, obs, key))(obs, key)
        return _answer(proposed, *filter_batch(proposed, _state(obs, memory), constraints))

    return run


def _propose(policy: PolicyState, obs: Array, key: Array) -> Array:
    drawn = jax.random.wrap_key_data(key, impl="threefry2x32") if explores(policy) else None
    return policy_step(policy, obs, drawn)


def _state(obs: Array, memory: Mapping[str, Array]) -> ControlState:
    return ControlState(obs, ControlMemory(**memory))


def _answer(proposed: Array, action: Array, report: SafetyReport) -> Rows:
    reported = {name: getattr(report, name) for name in REPORT}
    memory = as_dict(report.memory)
    return {"action": action, "proposed": proposed, "memory": memory, "report": reported}


def explores(policy: PolicyState) -> bool:
    """Whether a policy's actions depend on a key."""
    return bool(np.any(np.asarray(policy.noise) != 0.0))


def programs(
    policy: PolicyState, constraints: SafetyConstraints, observation_size: int
) -> dict[str, bytes]:
    """The three programs, serialised, by the names of their files."""

    def emergency(memory: Rows) -> Rows:
        return as_dict(after_emergency(ControlMemory(**memory), constraints))

    def start(previous: Array) -> Rows:
        return as_dict(initial_memory(constraints, previous))

    obs = jnp.zeros(observation_size, jnp.float32)
    key = jnp.zeros(KEY_WORDS, jnp.uint32)
    memory = as_dict(initial_memory(constraints))
    return {
        "control.jax": serialise(control(policy, constraints), obs, memory, key),
        "emergency.jax": serialise(jax.vmap(emergency), memory),
        "start.jax": serialise(jax.vmap(start), memory["previous"]),
    }


def as_dict(node: Any) -> dict[str, Any]:
    """The fields of a struct by name, not deeper, without those that are None."""
    named = {field.name: getattr(node, field.name) for field in fields(node)}
    return {name: value for name, value in named.items() if value is not None}


def rows_of(constraints: SafetyConstraints) -> list[dict[str, Any]]:
    """Name, kind, hardness, scale and alarm of every row of the constraints, in their order."""
    c = constraints
    every = zip(c.names, c.kinds, c.hard, np.asarray(c.scale).tolist(), strict=True)
    rows = [dict(zip(("name", "kind", "hard", "scale"), row, strict=True)) for row in every]
    return [row | alarm._asdict() for row, alarm in zip(rows, c.alarms, strict=True)]
