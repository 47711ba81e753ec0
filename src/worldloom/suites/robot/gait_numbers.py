"""A gait in numbers, from what robots did in greedy episodes: what a roboticist would look at.

All of it in numpy, from readings and targets at the rate of control. Torques are those of the
servos in the first instant of a step, when their targets have just changed.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from worldloom.suites.robot.features import TOUCH, feet, leg_joints, loads, sensed
from worldloom.suites.robot.forces import torque_limits
from worldloom.suites.robot.model import Robot, mujoco
from worldloom.suites.robot.model_checks import GRAVITY
from worldloom.suites.robot.types import Reading

GAP_STATES = 4000  # in which the gap between the feet is looked at
FAR = 1.0  # m: feet that are farther apart are not measured

# What each number is, for tables: its unit, and what it means.
NUMBERS = {
    "foot_gap": ("mm", "least gap between the feet; below 0 they overlap"),
    "foot_clearance": ("mm", "how high a swinging foot comes, on average"),
    "slip": ("m/s", "mean speed of feet on the ground"),
    "duty_factor": ("", "share of the time that a foot is on the ground"),
    "asymmetry": ("", "how much more one leg moves than the other: 0 for neither"),
    "action_rate": ("rad/s", "mean change of the servos' targets"),
    "knee_reversals": ("1/s", "changes of direction of a knee's target"),
    "torque_peak": ("Nm", "largest torque of a servo"),
    "torque_peak_share": ("", "the same over what that servo can give"),
    "cost_of_transport": ("", "mechanical work over weight and way"),
}


class Steps(NamedTuple):
    """T steps of control of R robots; rows that are not `counted` say nothing."""

    reading: Reading  # (T, R, ...) after the step
    target: np.ndarray  # (T, R, n) of the servos, rad
    counted: np.ndarray  # (T, R) bool: the robot was up, and its start was over


def gait_numbers(robot: Robot, steps: Steps) -> dict[str, float]:
    """The numbers of `NUMBERS` that these steps have something to say about."""
    both = steps.counted[1:] & steps.counted[:-1]
    if not both.any():
        return {}
    seconds = robot.control_seconds
    contact = loads(np, robot, steps.reading.sensors) > TOUCH * robot.weight_scale
    change = np.diff(steps.target.astype(np.float64), axis=0)
    numbers = {
        "foot_gap": 1e3 * foot_gap(robot, steps.reading.qpos[steps.counted]),
        "duty_factor": float(contact[steps.counted].mean()),
        "asymmetry": _asymmetry(robot, steps, contact),
        "action_rate": float(np.abs(change[both]).mean() / seconds),
    }
    places = feet(np, robot, steps.reading).astype(np.float64)
    speed = np.linalg.norm(np.diff(places[..., :2], axis=0), axis=-1) / seconds
    standing = contact[1:] & contact[:-1] & both[..., None]
    if standing.any():
        numbers["slip"] = float(speed[standing].mean())
    lifted = sensed(np, robot, steps.reading)["foot_height"].astype(np.float64)
    heights = _swing_heights(lifted, contact, steps.counted)
    if len(heights):
        numbers["foot_clearance"] = 1e3 * float(np.mean(heights))
    knees = [i for i, joint in enumerate(robot.joints) if "knee" in joint]
    turned = (change[1:] * change[:-1] < 0.0) & (both[1:] & both[:-1])[..., None]
    if knees and (both[1:] & both[:-1]).any():
        share = turned[..., knees].sum() / (both[1:] & both[:-1]).sum() / len(knees)
        numbers["knee_reversals"] = float(share / seconds)
    return numbers | _effort(robot, steps, both)


def foot_gap(robot: Robot, qpos: np.ndarray) -> float:
    """The least distance between the largest geoms of the two feet in states (N, nq), m."""
    engine, model = mujoco(), robot.model
    data, ends = engine.MjData(model), np.zeros(6)
    geoms = (np.flatnonzero(model.geom_bodyid == body) for body in robot.foot_bodies)
    left, right = (int(some[model.geom_rbound[some].argmax()]) for some in geoms)
    least = FAR
    for row in qpos[:: -(-len(qpos) // GAP_STATES)]:
        data.qpos[:] = row
        engine.mj_kinematics(model, data)
        least = min(least, engine.mj_geomDistance(model, data, left, right, FAR, ends))
    return float(least)


def servo_torque(robot: Robot, target: Any, angle: Any, speed: Any) -> np.ndarray:
    """What servos give (..., n), Nm, at a target, an angle and a speed of their joints."""
    model, limits = robot.model, torque_limits(robot)
    stiffness, damping = model.actuator_gainprm[:, 0], -model.actuator_biasprm[:, 2]
    return np.clip(stiffness * (target - angle) - damping * speed, -limits, limits)


def _effort(robot: Robot, steps: Steps, both: np.ndarray) -> dict[str, float]:
    """Torques and work; row t of `both` is for the step from t to t + 1."""
    angle = steps.reading.qpos[:-1, :, robot.joint_qpos].astype(np.float64)
    speed = steps.reading.qvel[:-1, :, robot.joint_qvel].astype(np.float64)
    torque = servo_torque(robot, steps.target[1:], angle, speed)
    size = np.abs(torque[both])
    limits = torque_limits(robot)
    numbers = {"torque_peak": float(size.max())}
    if np.isfinite(limits).all():
        numbers["torque_peak_share"] = float((size / limits).max())
    work = (np.abs(torque * speed).sum(-1) * both).sum(0) * robot.control_seconds
    way = np.zeros(both.shape[1])
    for i, counted in enumerate(steps.counted.T):
        rows = np.flatnonzero(counted)
        if len(rows):
            ends = steps.reading.qpos[rows[[0, -1]], i, :2].astype(np.float64)
            way[i] = np.linalg.norm(ends[1] - ends[0])
    if way.sum() > 0.1 * robot.length_scale * len(way):  # else it stands
        weight = robot.mass * GRAVITY
        numbers["cost_of_transport"] = float(work.sum() / (weight * way.sum()))
    return numbers


def _asymmetry(robot: Robot, steps: Steps, contact: np.ndarray) -> float:
    """The gap between left and right over their mean: of how far the legs' joints swing."""
    half = len(robot.legs[0])
    if half and half == len(robot.legs[1]):
        angles = steps.reading.qpos[..., robot.joint_qpos[leg_joints(robot)]][steps.counted]
        swing = angles.astype(np.float64).std(0)
        left, right = swing[:half], swing[half:]
    else:
        left, right = contact[steps.counted].mean(0)[:, None]
    return float(np.abs(left - right).sum() / max((left + right).sum() / 2.0, 1e-9))


def _swing_heights(height: np.ndarray, contact: np.ndarray, counted: np.ndarray) -> list[float]:
    """The highest point of each whole swing of a foot: heights and contacts (T, R, 2)."""
    highest = []
    for robot in range(height.shape[1]):
        rows = counted[:, robot]
        for foot in range(2):
            touches = contact[rows, robot, foot]
            ends = np.flatnonzero(np.diff(touches.astype(int)))
            for start, end in pairwise(ends):
                if not touches[start + 1] and end - start > 1:  # off the ground for two steps
                    highest.append(float(height[rows, robot, foot][start + 1 : end + 1].max()))
    return highest
