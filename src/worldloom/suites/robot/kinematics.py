"""A walk on paper: footsteps, a centre of mass that keeps its balance over them, and leg angles.

The balance is that of the linear inverted pendulum (Kajita et al. 2001): at a constant height h the
centre of mass c and the point p where the ground pushes obey c'' = g / h (c - p). The point is
chosen, under the sole that stands and from one sole to the other while both do, and c follows. All
of it is periodic but for the way made, and follows the clock of `gait`.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from worldloom.suites.robot import gait
from worldloom.suites.robot.model import Robot, mujoco
from worldloom.suites.robot.model_checks import GRAVITY

REFINEMENTS = 4  # of the base, until the centre of mass is where the pendulum has it


# Legs ------------------------------------------------------------------------------------------


class Leg(NamedTuple):
    """A leg of five joints: roll and pitch at the hip, the knee, pitch and roll at the ankle.

    In the home pose it hangs straight down from the hip but for the bend of its pitch joints.
    """

    joints: tuple[int, ...]  # places among the robot's joints, hip to ankle
    hip: np.ndarray  # (3,) where the thigh begins, seen from the base, m
    thigh: float
    shank: float
    sole: np.ndarray  # (3,) the middle of the sole's underside, seen from the ankle


def legs_of(robot: Robot) -> tuple[Leg, Leg]:
    """Left and right; a ValueError where a robot's legs are of another build."""
    if any(len(leg) != 5 for leg in robot.legs):
        raise ValueError(
            f"{robot.name}: a gait is computed for two legs of five joints (hip roll, hip pitch, "
            "knee, ankle pitch, ankle roll); name them under `legs` in the mapping, or bring a "
            "recorded motion (--motion)"
        )
    model = robot.model
    legs = []
    for joints, foot in zip(robot.legs, robot.foot_bodies, strict=True):
        shank = int(model.body_parentid[foot])
        thigh = int(model.body_parentid[shank])
        soles = [g for g in robot.foot_geoms if model.geom_bodyid[g] == foot]
        under = model.geom_pos[soles] - [0.0, 0.0, 1.0] * model.geom_size[soles, :1]
        lengths = -model.body_pos[shank][2], -model.body_pos[foot][2]
        legs.append(Leg(joints, model.body_pos[thigh].copy(), *lengths, under.mean(0)))
    _check_build(robot, legs)
    return legs[0], legs[1]


def _check_build(robot: Robot, legs: list[Leg]) -> None:
    """Our formulas must put the feet where the engine does."""
    data, joints = mujoco().MjData(robot.model), robot.home_joints
    goal = [leg.hip + np.array([0.03, 0.02, -0.95 * (leg.thigh + leg.shank)]) for leg in legs]
    for leg, ankle in zip(legs, goal, strict=True):
        joints[list(leg.joints)] = leg_angles(leg, ankle)
    _pose(robot, data, np.zeros(3), joints)
    mujoco().mj_kinematics(robot.model, data)
    feet = [data.xpos[foot] for foot in robot.foot_bodies]
    level = [data.xmat[foot][8] > 1 - 1e-6 for foot in robot.foot_bodies]
    if not (np.allclose(feet, goal, atol=1e-6) and all(level)):
        raise ValueError(
            f"{robot.name}: its legs do not hang straight down from roll and pitch at the hip, as "
            "the computed gait needs; bring a recorded motion instead (--motion)"
        )


def leg_angles(leg: Leg, ankle: np.ndarray) -> np.ndarray:
    """Angles (..., 5) that put the ankle at a place (..., 3) seen from the base, the foot level.

    What is out of reach is not finite.
    """
    x, y, z = np.moveaxis(ankle - leg.hip, -1, 0)
    roll = np.arctan2(y, -z)
    down = np.hypot(y, z)
    a, b = leg.thigh, leg.shank
    with np.errstate(invalid="ignore"):
        knee = np.arccos((x * x + down * down - a * a - b * b) / (2.0 * a * b))
    # From the line between hip and ankle, the thigh leans by what the shank's bend takes away.
    pitch = np.arctan2(-x, down) - np.arctan2(b * np.sin(knee), a + b * np.cos(knee))
    return np.stack([roll, pitch, knee, -pitch - knee, -roll], axis=-1)


# The plan --------------------------------------------------------------------------------------


class Cycle(NamedTuple):
    """One cycle of a walk at S even phases, the first 0; after it everything repeats.

    The base is level and faces forward; joints are in the robot's order.
    """

    speed: float  # m/s
    base: np.ndarray  # (S, 3) less the way made at `speed`
    joints: np.ndarray  # (S, n) rad
    targets: np.ndarray  # (S, n) what to ask of the servos, so that the joints come there


class Footsteps(NamedTuple):
    """Soles at S even phases of a cycle, and the weight on them; less the way made."""

    soles: np.ndarray  # (S, 2, 3) the middle of their undersides
    load: np.ndarray  # (S, 2) shares of the weight
    support: np.ndarray  # (S, 2) where the ground pushes


def synthesise(robot: Robot, speed: float) -> Cycle:
    """A walk at `speed`, m/s, sampled at the engine's own step."""
    engine, legs = mujoco(), legs_of(robot)
    model, data = robot.model, engine.MjData(robot.model)
    period = gait.PERIOD * robot.time_scale
    count = round(period / model.opt.timestep)
    rate = partial(changes, period=period)
    steps = footsteps(legs, robot, speed, np.arange(count) / count)

    def middle(base: np.ndarray, joints: np.ndarray) -> np.ndarray:
        """The centre of mass (3,)."""
        _pose(robot, data, base, joints)
        engine.mj_kinematics(model, data)
        engine.mj_comPos(model, data)
        return data.subtree_com[robot.base_body].copy()

    height = middle(robot.home[:3], robot.home_joints)[2]
    goal = balanced(steps.support, height, period)
    base = np.column_stack([goal, np.full(count, robot.home_height)])
    joints = np.tile(robot.home_joints, (count, 1))
    for _ in range(REFINEMENTS):
        for side, leg in enumerate(legs):
            joints[:, leg.joints] = leg_angles(leg, steps.soles[:, side] - leg.sole - base)
        if not np.isfinite(joints).all():
            raise ValueError(
                f"{robot.name}: a walk at {speed:g} m/s takes strides of "
                f"{speed * period:.2f} m, which its legs do not reach; walk slower"
            )
        middles = np.stack([middle(*both) for both in zip(base, joints, strict=True)])
        base[:, :2] += goal - middles[:, :2]
    torque = _torques(robot, speed, base, joints, steps)
    # A servo pulls kp (target - angle) - kv rate: solved for the target.
    stiffness, damping = model.actuator_gainprm[:, 0], -model.actuator_biasprm[:, 2]
    ahead = (torque + damping * rate(joints)) / stiffness
    return Cycle(speed, base, joints, np.clip(joints + ahead, robot.lower, robot.upper))


def footsteps(legs: tuple[Leg, Leg], robot: Robot, speed: float, phase: np.ndarray) -> Footsteps:
    """Strides straight ahead at `phase` (S,), each foot in its hip's track."""
    own, swung = gait.foot_phases(np, phase), gait.swing_progress(np, phase)
    moved = swung**3 * (10.0 - 15.0 * swung + 6.0 * swung**2)  # from rest to rest, with least jerk
    # In the middle of its stance a foot is under the base.
    stride = speed * gait.PERIOD * robot.time_scale
    x = stride * (0.5 * gait.STANCE - own + moved) + [leg.sole[0] for leg in legs]
    y = np.broadcast_to([leg.hip[1] + leg.sole[1] for leg in legs], x.shape)
    lift = robot.length_scale * gait.swing_height(np, swung)
    soles = np.stack([x, y, lift], axis=-1)
    # The weight passes over while both feet stand.
    both = gait.STANCE - 0.5
    left = np.interp(phase, [0.0, both, 0.5, 0.5 + both, 1.0], [0.0, 1.0, 1.0, 0.0, 0.0])
    load = np.stack([left, 1.0 - left], axis=-1)
    return Footsteps(soles, load, (load[..., None] * soles[..., :2]).sum(1))


def balanced(support: np.ndarray, height: float, period: float = gait.PERIOD) -> np.ndarray:
    """The one periodic course (S, 2) of a pendulum's mass for a periodic point of support (S, 2).

    Frequency by frequency, c'' = w^2 (c - p) says c = p / (1 + (frequency / w)^2).
    """
    waves = 2.0 * math.pi * np.arange(len(support) // 2 + 1) / period
    gain = 1.0 / (1.0 + waves**2 * height / GRAVITY)
    return np.fft.irfft(np.fft.rfft(support, axis=0) * gain[:, None], n=len(support), axis=0)


def changes(values: np.ndarray, period: float = gait.PERIOD) -> np.ndarray:
    """How fast samples (S, ...) of a cycle change, per second."""
    step = period / len(values)
    return (np.roll(values, -1, axis=0) - np.roll(values, 1, axis=0)) / (2.0 * step)


def _pose(robot: Robot, data: Any, base: np.ndarray, joints: np.ndarray) -> None:
    data.qpos[:] = robot.home
    data.qpos[:3], data.qpos[3:7] = base, [1.0, 0.0, 0.0, 0.0]
    data.qpos[robot.joint_qpos] = joints


def _torques(
    robot: Robot, speed: float, base: np.ndarray, joints: np.ndarray, steps: Footsteps
) -> np.ndarray:
    """What the joints (S, n) must hold against weight, ground and inertia."""
    engine, model = mujoco(), robot.model
    data = engine.MjData(model)
    way = np.array([speed, 0.0, 0.0])
    rate = partial(changes, period=gait.PERIOD * robot.time_scale)
    base_rate, joint_rate = rate(base) + way, rate(joints)
    base_pull, joint_pull = rate(base_rate), rate(joint_rate)
    torque = np.empty_like(joints)
    move, turn = np.empty((3, model.nv)), np.empty((3, model.nv))
    lift = np.array([0.0, 0.0, 1.0])  # out of reach of the floor, whose push is put in by hand
    for i in range(len(joints)):
        _pose(robot, data, base[i] + lift, joints[i])
        data.qvel[:3], data.qvel[robot.joint_qvel] = base_rate[i], joint_rate[i]
        data.qacc[:3], data.qacc[robot.joint_qvel] = base_pull[i], joint_pull[i]
        engine.mj_inverse(model, data)
        needed = data.qfrc_inverse.copy()
        # The ground must hold the base: each foot by its share of the force, and of the moment
        # about the point of support, which is what the pendulum leaves out.
        force = needed[:3].copy()
        moment = needed[3:6] - np.cross([*steps.support[i], 0.0] - base[i], force)
        for side, foot in enumerate(robot.foot_bodies):
            engine.mj_jac(model, data, move, turn, steps.soles[i, side] + lift, foot)
            needed -= steps.load[i, side] * (move.T @ force + turn.T @ moment)
        torque[i] = needed[robot.joint_qvel]
    return torque
