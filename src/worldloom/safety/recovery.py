"""Recovery procedures: what is done, step by step, from the first emergency action on.

A procedure is a sequence of stages, after which the actuators go to the constraints' emergency
action and stay there. It goes on as long as emergency actions follow each other, latched or not,
and begins anew with the next ones. A ramp is reckoned from where the actuator is, so that the count
of emergency actions, which the filter remembers anyway, is all that a procedure has to know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Float, Int

from worldloom.core.types import Array

MOST_STAGES, MOST_STEPS = 32, 100_000


@dataclass(frozen=True)
class Stage:
    """Actuators, by index, on their way to targets in [-1, 1] for so many steps; others stay.

    ramp: they arrive with the last step; else they go there at once. Box and hard rates bound both.
    """

    targets: Mapping[int, float]
    steps: int
    ramp: bool = False


class Recovery(struct.PyTreeNode):
    """S stages of m actuators."""

    end: Array  # int32 (S,): the step after the last one of each
    target: Array  # (S, m)
    moves: Array  # bool (S, m): actuators that go to their targets; the others stay
    ramp: Array  # bool (S,)


def make_recovery(stages: Sequence[Stage], size: int) -> Recovery | None:
    """Stages of `size` actuators as arrays, checked; None where there are none."""
    if not stages:
        return None
    if len(stages) > MOST_STAGES:
        raise ValueError(f"recovery: {len(stages)} stages; use at most {MOST_STAGES}")
    target, moves = np.zeros((len(stages), size), np.float32), np.zeros((len(stages), size), bool)
    for number, stage in enumerate(stages):
        if not 1 <= stage.steps <= MOST_STEPS:
            where = f"recovery: stage {number + 1}"
            raise ValueError(f"{where} takes {stage.steps} steps; use 1 to {MOST_STEPS}")
        for index, value in stage.targets.items():
            target[number, index], moves[number, index] = value, True
    end = np.cumsum([stage.steps for stage in stages]).astype(np.int32)
    ramp = np.asarray([stage.ramp for stage in stages])
    return Recovery(*map(jnp.asarray, (end, target, moves, ramp)))


def recovery_target(
    recovery: Recovery | None,
    emergency: Float[Array, "*rows m"],
    previous: Float[Array, "*rows m"],
    count: Int[Array, "*rows"] | int,
) -> Float[Array, "*rows m"]:
    """Where the actuators should go after `count` emergency actions in a row, box and rates aside.

    previous: where they are. Without a procedure that is the emergency action, whatever the count.
    """
    if recovery is None:
        return emergency
    count = jnp.asarray(count, jnp.int32)[..., None]
    place = jnp.broadcast_to(emergency, previous.shape)
    for stage in reversed(range(recovery.end.shape[0])):
        target, left = recovery.target[stage], recovery.end[stage] - count
        # The last step of a ramp is the target itself and no sum that is nearly the same.
        on_the_way = recovery.ramp[stage] & (left > 1)
        share = 1.0 / jnp.maximum(left, 1).astype(previous.dtype)
        moved = jnp.where(on_the_way, previous + share * (target - previous), target)
        place = jnp.where(left > 0, jnp.where(recovery.moves[stage], moved, previous), place)
    return place
