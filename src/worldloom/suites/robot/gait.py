"""The clock of a gait, over either array library: who swings when, and how high.

A cycle has two steps. The left foot follows the phase, the right one is half a cycle ahead; a foot
stands while its own phase is below STANCE and swings for the rest.
"""

import math
from typing import Any

import numpy as np

from worldloom.suites.robot.types import Array

PERIOD = 0.72  # seconds of a cycle
STANCE = 0.6  # of a cycle; what exceeds a half is double support
SWING_HEIGHT = 0.04  # m
PACE_SPEED = 0.4  # m/s: the speed at which `Rules.pace` is in full effect


def foot_phases(xp: Any, phase: Array) -> Array:
    """(..., 2): the phase of each foot, 0 to 1."""
    both = xp.stack([phase, phase + 0.5], axis=-1)
    return both - xp.floor(both)


def swing_progress(xp: Any, phase: Array) -> Array:
    """(..., 2): how far each foot is through its swing, 0 to 1; 0 while it stands."""
    return xp.maximum(foot_phases(xp, phase) - STANCE, 0.0) / (1.0 - STANCE)


def swing_height(xp: Any, progress: Array) -> Array:
    """How high a foot is at some progress of its swing: a smooth hump, flat at both ends."""
    return SWING_HEIGHT * 0.5 * (1.0 - xp.cos(2.0 * math.pi * progress))


def advance(xp: Any, phase: Array, seconds: float, command: Array, pace: Array) -> Array:
    """The phase some time later, at a command (..., 3): a command to stand stops the clock.

    seconds, command: for a robot of the biped's size. Faster walks, sideways and backwards too,
    take quicker steps, by `pace` at PACE_SPEED.
    """
    speed = xp.sqrt((command[..., :2] ** 2).sum(-1))
    quicker = 1.0 + pace * xp.minimum(speed / PACE_SPEED, 1.0)
    later = phase + quicker * np.float32(seconds / PERIOD)
    return xp.where(walks(xp, command), later - xp.floor(later), phase)


def walks(xp: Any, command: Array) -> Array:
    """Whether a command (..., 3) is not to stand."""
    return (xp.abs(command) > 0.0).any(-1)
