"""What an engine's readings say, over either array library: of a robot, and of its gait.

By the same functions for tasks, for recorded motions and for policies. Quaternions are w x y z.
"""

from typing import Any

import numpy as np

from worldloom.suites.robot.kinematics import GRAVITY
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.model_checks import Touch
from worldloom.suites.robot.types import Array, Reading

TOUCH = 0.5  # N on a foot that count as a contact
FIRM = 0.05  # of the weight on a foot: that counts as half a contact

# What counts as a difference of 1, in rad, rad/s, m/s and m, for the biped's size. A reference may
# hold its height to the millimetre: told apart by that alone, every policy would be a fake.
SCALES = {
    "joints": 0.15, "joint_speeds": 2.0, "velocity": 0.15, "turning": 0.5, "height": 0.02,
    "gravity": 0.08, "foot_height": 0.02, "contact": 0.5,
}  # fmt: skip


def into_frame(xp: Any, quaternion: Array, vector: Array) -> Array:
    """A vector (..., 3) of the world, seen from a frame that is turned by `quaternion` (..., 4)."""
    w, axis = quaternion[..., :1], -quaternion[..., 1:]
    across = 2.0 * xp.cross(axis, vector)
    return vector + w * across + xp.cross(axis, across)


def yaw(xp: Any, quaternion: Array) -> Array:
    """The angle (...) about the vertical."""
    w, x, y, z = (quaternion[..., i] for i in range(4))
    return xp.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def feet(xp: Any, robot: Robot, reading: Reading) -> Array:
    """Where the feet are, (..., 2, 3)."""
    return xp.stack([reading.sensors[..., place] for place in robot.foot_position], axis=-2)


def loads(xp: Any, robot: Robot, sensors: Array) -> Array:
    """The force on each foot, (..., 2), N, from what its sensors say."""
    feet = [sum(_load(xp, touch, sensors) for touch in foot) for foot in robot.contacts]
    return xp.stack(feet, axis=-1)


def _load(xp: Any, touch: Touch, sensors: Array) -> Array:
    numbers = sensors[..., touch.place]
    size = xp.abs(numbers[..., 0]) if numbers.shape[-1] == 1 else xp.sqrt((numbers**2).sum(-1))
    return size if touch.newtons == 1.0 else touch.newtons * xp.minimum(size, touch.most)


def sensed(xp: Any, robot: Robot, reading: Reading) -> dict[str, Array]:
    """Of a reading (...): velocity in the frame of the heading, (..., 3); turning and the direction
    down in the frame of the base; joints from home; heights of base and soles above those at home,
    on uneven ground from that below them;
    the distance between the feet from side to side; the force on each foot, N.
    """
    sensors = reading.sensors
    quaternion = sensors[..., robot.orientation]
    down = xp.broadcast_to(np.array([0.0, 0.0, -1.0], np.float32), (*quaternion.shape[:-1], 3))
    heading = yaw(xp, quaternion)
    cos, sin = xp.cos(heading), xp.sin(heading)
    vx, vy, vz = (reading.qvel[..., i] for i in range(3))
    places = feet(xp, robot, reading)
    height = reading.qpos[..., 2] - np.float32(robot.home_height)
    foot_height = places[..., 2] - np.float32(robot.home_foot_height)
    if robot.ground is not None:
        ground = robot.ground
        height = height - ground.at(xp, ground.mean, reading.qpos[..., :2])
        foot_height = foot_height - ground.at(xp, ground.surface, places[..., :2])
    return {
        "joints": reading.qpos[..., robot.joint_qpos] - robot.home_joints.astype(np.float32),
        "joint_speeds": reading.qvel[..., robot.joint_qvel],
        "velocity": xp.stack([cos * vx + sin * vy, cos * vy - sin * vx, vz], axis=-1),
        "turning": sensors[..., robot.gyro],
        "height": height,
        "gravity": into_frame(xp, quaternion, down),
        "feet": places,
        "foot_height": foot_height,
        "feet_apart": cos * (places[..., 0, 1] - places[..., 1, 1])
        - sin * (places[..., 0, 0] - places[..., 1, 0]),
        "touch": loads(xp, robot, sensors),
    }


def leg_joints(robot: Robot) -> list[int]:
    """Places of the legs' joints among all; all joints, where legs are not told apart."""
    legs = [joint for leg in robot.legs for joint in leg]
    return legs or list(range(robot.num_joints))


def features(xp: Any, robot: Robot, reading: Reading) -> Array:
    """(..., F) float32 of a reading (...), in the order and the units of `SCALES`.

    Where the robot is and where it faces leave no trace. A contact is soft, 0 to 1: a threshold
    would be a cliff for a discriminator to stand on.
    """
    legs, parts = leg_joints(robot), sensed(xp, robot, reading)
    parts |= {name: parts[name][..., legs] for name in ("joints", "joint_speeds")}
    parts["height"] = parts["height"][..., None]
    touch = parts["touch"]
    parts["contact"] = touch / (touch + np.float32(FIRM * robot.mass * GRAVITY))
    units = {"joint_speeds": 1.0 / robot.time_scale, "turning": 1.0 / robot.time_scale}
    units |= {"velocity": robot.time_scale}
    units |= dict.fromkeys(("height", "foot_height"), robot.length_scale)
    scaled = [
        parts[name] / np.float32(scale * units.get(name, 1.0)) for name, scale in SCALES.items()
    ]
    return xp.concatenate(scaled, axis=-1).astype(np.float32)


# How far two gaits are apart -------------------------------------------------------------------


def profile(robot: Robot, reading: Reading, phase: Array, bins: int = 18) -> np.ndarray:
    """The mean angles of the legs (bins, joints), rad, over the phases of the gait's clock.

    `reading` and `phase` have the same leading axes. A phase that never occurred is NaN.
    """
    angles = np.asarray(reading.qpos, np.float64)[..., robot.joint_qpos[leg_joints(robot)]]
    angles = angles.reshape(-1, angles.shape[-1])
    which = np.minimum((np.asarray(phase, np.float64).reshape(-1) * bins).astype(int), bins - 1)
    total = np.zeros((bins, angles.shape[-1]))
    np.add.at(total, which, angles)
    count = np.bincount(which, minlength=bins)[:, None]
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def gait_distance(one: np.ndarray, other: np.ndarray) -> float:
    """How far apart two gaits are, rad: 0 for the same, and free of any learned judge.

    The root of the mean square, over the legs' joints and the phases of the clock that both
    profiles (bins, joints) have, of the gap between their mean angles at that phase.
    """
    gap = one - other
    known = np.isfinite(gap)
    if not known.any():
        raise ValueError("gait_distance: the two gaits have no phase of the clock in common")
    return float(np.sqrt(np.square(gap[known]).mean()))
