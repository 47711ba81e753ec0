"""The terms of the reward, each a function of what is known after a step, (...) from (...).

A task is a table of them with weights. Terms that reward are between 0 and 1, terms that punish are
0 or less; the weights say how much a second of each is worth.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from worldloom.suites.robot import gait
from worldloom.suites.robot.model import BIPED_HEIGHT
from worldloom.suites.robot.types import Array


class Facts(NamedTuple):
    """What the terms look at; shapes without the leading axes.

    For terms, of a robot of another size than the biped's, as if it had that: lengths, speeds and
    rates are scaled by its height, so that the widths below fit any.
    """

    command: Array  # (3,) forward and to the left, m/s, and yaw rate, rad/s
    velocity: Array  # (2,) forward and to the left, in the heading's frame, m/s
    speed: Array  # (3,) as the command, averaged
    height: Array  # () of the base above its height at home, m
    gravity: Array  # (3,) the direction down, seen from the base
    turning: Array  # (3,) rad/s, in the base's frame
    joints: Array  # (n,) from home, rad
    joint_speeds: Array  # (n,) rad/s
    target: Array  # (n,) of the servos, from home, rad
    action: Array  # (n,)
    last_action: Array  # (n,)
    foot_height: Array  # (2,) above where they are at home, m
    foot_velocity: Array  # (2, 3) m/s
    feet_apart: Array  # () from side to side, over their distance at home
    contact: Array  # (2,) bool
    phase: Array  # () of the gait
    walking: Array  # () bool: the command is not to stand still
    sideways: Array  # (n,) 1 for joints that a straight walk does not need, numpy


Term = Callable[[Any, Facts], Array]


def _near(xp: Any, gap: Array, scale: float) -> Array:
    return xp.exp(-((gap / scale) ** 2))


def _length(xp: Any, vector: Array) -> Array:
    return xp.sqrt((vector**2).sum(-1) + 1e-12)


def alive(xp: Any, f: Facts) -> Array:
    """1 as long as the episode lasts."""
    return xp.ones_like(f.height)


def track(xp: Any, f: Facts) -> Array:
    """The average speed is the one that was asked for: sharp."""
    return _near(xp, f.speed[..., 0] - f.command[..., 0], 0.08)


def approach(xp: Any, f: Facts) -> Array:
    """The speed now is near the one asked for: felt from afar."""
    return _near(xp, f.velocity[..., 0] - f.command[..., 0], 0.3)


def follow(xp: Any, f: Facts) -> Array:
    """The average speed, forward and sideways, is the one that was asked for: sharp."""
    return _near(xp, _length(xp, f.speed[..., :2] - f.command[..., :2]), 0.08)


def reach(xp: Any, f: Facts) -> Array:
    """The speed now, forward and sideways, is near the one asked for: felt from afar."""
    return _near(xp, _length(xp, f.velocity - f.command[..., :2]), 0.3)


def yaw(xp: Any, f: Facts) -> Array:
    """The average yaw rate is the one that was asked for."""
    return _near(xp, f.speed[..., 2] - f.command[..., 2], 0.2)


def apart(xp: Any, f: Facts) -> Array:
    """The feet do not come near each other: -1 where they touch, 0 from 0.9 of home on."""
    return -xp.clip((0.9 - f.feet_apart) / 0.3, 0.0, 1.0)


def straight(xp: Any, f: Facts) -> Array:
    """Neither sideways nor turning, at no moment and still less on average."""
    now = _near(xp, f.velocity[..., 1], 0.2) * _near(xp, f.turning[..., 2], 1.0)
    return now * _near(xp, f.speed[..., 2], 0.2)


def upright(xp: Any, f: Facts) -> Array:
    """The base is level."""
    return _near(xp, _length(xp, f.gravity[..., :2]), 0.25)


def steady(xp: Any, f: Facts) -> Array:
    """The base does not rock."""
    return -(f.turning[..., :2] ** 2).sum(-1)


def height(xp: Any, f: Facts) -> Array:
    """The base is as high as at home."""
    return _near(xp, f.height, 0.05)


def rise(xp: Any, f: Facts) -> Array:
    """How high the base is, over its height at home: felt from the ground up."""
    return xp.clip(1.0 + f.height / BIPED_HEIGHT, 0.0, 1.0)


def level(xp: Any, f: Facts) -> Array:
    """Which way the base is up: 1 upright, 1/2 lying, 0 on its head."""
    return 0.5 * (1.0 - f.gravity[..., 2])


def erect(xp: Any, f: Facts) -> Array:
    """It stands: level and as high as at home, sharp."""
    return upright(xp, f) * height(xp, f)


def rest(xp: Any, f: Facts) -> Array:
    """It stands, with all joints at home."""
    return erect(xp, f) * _near(xp, _length(xp, f.joints), 1.0)


def swing(xp: Any, f: Facts) -> Array:
    """The feet are as high as the gait's clock wants them."""
    goal = gait.swing_height(xp, gait.swing_progress(xp, f.phase))
    goal = xp.where(f.walking[..., None], goal, 0.0)
    return _near(xp, f.foot_height - goal, 0.02).prod(-1)


def footing(xp: Any, f: Facts) -> Array:
    """The feet touch the ground when the gait's clock wants them to, and only then."""
    stands = (gait.foot_phases(xp, f.phase) < gait.STANCE) | ~f.walking[..., None]
    return (stands == f.contact).astype(f.height.dtype).mean(-1)


def slip(xp: Any, f: Facts) -> Array:
    """Feet on the ground do not slide."""
    return -(f.contact * (f.foot_velocity[..., :2] ** 2).sum(-1)).sum(-1)


def smooth(xp: Any, f: Facts) -> Array:
    """Actions do not jump."""
    return -((f.action - f.last_action) ** 2).sum(-1)


def effort(xp: Any, f: Facts) -> Array:
    """Servos do not pull: their torque is their stiffness times this gap."""
    return -((f.target - f.joints) ** 2).sum(-1)


def pose(xp: Any, f: Facts) -> Array:
    """Joints that a straight walk does not need stay at home."""
    return -(f.sideways * f.joints**2).sum(-1)


def posture(xp: Any, f: Facts) -> Array:
    """All joints stay at home."""
    return -(f.joints**2).sum(-1)


def quiet(xp: Any, f: Facts) -> Array:
    """Joints do not move."""
    return -(f.joint_speeds**2).sum(-1)
