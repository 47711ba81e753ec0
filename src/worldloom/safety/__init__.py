"""A compiled safety layer: what an action must satisfy, and what is executed where it does not."""

from worldloom.safety.constraint_file import parse_constraints, read_constraints
from worldloom.safety.constraints import (
    TOLERANCE,
    Barrier,
    LinearRow,
    SafetyConstraints,
    StateRow,
    make_constraints,
)
from worldloom.safety.filter import (
    ControlMemory,
    ControlState,
    SafetyReport,
    Validation,
    after_emergency,
    clear_override,
    emergency_action,
    filter_action,
    filter_batch,
    initial_memory,
    policy_forward,
    reset_latch,
    safe_policy_execution,
    validate_constraints,
    with_override,
)
from worldloom.safety.recovery import Recovery, Stage

__all__ = [
    "TOLERANCE",
    "Barrier",
    "ControlMemory",
    "ControlState",
    "LinearRow",
    "Recovery",
    "SafetyConstraints",
    "SafetyReport",
    "Stage",
    "StateRow",
    "Validation",
    "after_emergency",
    "clear_override",
    "emergency_action",
    "filter_action",
    "filter_batch",
    "initial_memory",
    "make_constraints",
    "parse_constraints",
    "policy_forward",
    "read_constraints",
    "reset_latch",
    "safe_policy_execution",
    "validate_constraints",
    "with_override",
]
