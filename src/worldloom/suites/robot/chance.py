"""What is left to chance in a world, from uniform numbers: commands, differences, pushes.

Over either array library, on any leading axes.
"""

import math
from typing import Any

import jax
import numpy as np

from worldloom.suites.robot.types import Array, Domain, Dynamics, Push, Rules

# What gravity and gyro are wrong by for an episode, at a factor of 1: half-widths of uniform draws.
BIAS = np.repeat([0.02, 0.05], 3).astype(np.float32)


def draw_command(xp: Any, rules: Rules, u: Array) -> Array:
    """A command (..., 3) from uniform numbers (..., 4)."""
    ends = xp.stack([rules.command, rules.sideways, rules.turn], axis=-2)  # (..., 3, 2)
    drawn = ends[..., 0] + (ends[..., 1] - ends[..., 0]) * u[..., 1:]
    return xp.where(u[..., :1] < rules.still, 0.0, drawn).astype(np.float32)


def draw_domain(xp: Any, rules: Rules, u: Array, randomised: bool) -> Domain:
    """How a world differs, from uniform numbers (..., 15 + n); as the model if not randomised.

    Of the latency, readings have a part and targets the rest.
    """
    factor = rules.randomise * (2.0 * u - 1.0) if randomised else xp.zeros_like(u)
    least, most = rules.latency[..., 0], rules.latency[..., 1]
    late = least + xp.floor(u[..., 4] * (most - least + 1)).astype(np.int32)
    late = xp.where((rules.randomise > 0.0) & randomised, late, 0)
    sensors = xp.floor(u[..., 5] * (late + 1)).astype(np.int32)
    dynamics = Dynamics(
        friction=1.0 + rules.friction * factor[..., 0],
        mass=1.0 + rules.mass * factor[..., 1],
        strength=1.0 + rules.strength * factor[..., 2],
        damping=1.0 + rules.damping * factor[..., 3],
        com=rules.com * factor[..., 6:9],
    )
    bias = BIAS * rules.noise * rules.bias * (2.0 * u[..., 9:15] - 1.0)
    return Domain(
        dynamics=jax.tree.map(lambda x: x.astype(np.float32), dynamics),
        offset=(rules.offset * factor[..., 15:]).astype(np.float32),
        bias=bias.astype(np.float32),
        action_delay=(late - sensors).astype(np.int32),
        sensor_delay=sensors,
    )


def draw_push(xp: Any, rules: Rules, step: Array, u: Array) -> Push:
    """A push some steps after `step`, in a random direction, from uniform numbers (..., 3)."""
    soonest, latest = rules.push_pause[..., 0], rules.push_pause[..., 1]
    pause = soonest + xp.floor(u[..., 0] * (latest - soonest)).astype(np.int32)
    least, most = rules.push_force[..., 0], rules.push_force[..., 1]
    size = least + (most - least) * u[..., 1]
    angle = 2.0 * math.pi * u[..., 2]
    force = size[..., None] * xp.stack([xp.cos(angle), xp.sin(angle)], axis=-1)
    return Push((step + pause).astype(np.int32), force.astype(np.float32))
