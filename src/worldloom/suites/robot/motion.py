"""Reference motions: a walk on paper, played through the simulator until it is one the robot does.

What is kept is what the robot did, as a policy would be seen doing it: readings at 50 Hz. Targets
are held for a step of control, as a policy's are. A weak harness keeps the robot on its course; it
carries no weight, and what it pulled is part of the record.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import struct

from worldloom.core.files import atomic_path
from worldloom.suites.robot import gait
from worldloom.suites.robot import starts as start_tables
from worldloom.suites.robot.engines import Engine
from worldloom.suites.robot.features import TOUCH, feet, loads
from worldloom.suites.robot.kinematics import GRAVITY, Cycle, changes, synthesise
from worldloom.suites.robot.model import Robot, mujoco
from worldloom.suites.robot.types import Array, Reading, Starts

SPEEDS = (0.15, 0.2, 0.25, 0.3)  # m/s, of a robot of the biped's size
WARM_UP, CYCLES = 4, 10  # played before anything is recorded, and recorded
STRAY = 0.03  # rad of noise on the targets: a reference is a family of walks, not a line

# The harness, for a robot of weight w and height h: springs and dampers on the base.
HOLD, DAMP = 1.5, 0.25  # w a metre, w a metre per second: horizontal
RIGHT, CALM = 2.2, 0.09  # w h a radian, w h a radian per second

BEYOND_LIMITS = 0.3  # rad that a joint of a recorded motion may be beyond its limits
# What makes a motion a reference.
LEAST_AGREEMENT = 0.8  # of contacts with the clock
SPEED_ERROR = 0.1  # of the speed
MOST_PULL = 0.15  # of the weight, by the harness on average
MOST_SLIP = 0.05  # m/s, of feet that touch


class Motion(struct.PyTreeNode):
    """What a robot did at N moments, in numpy; from step to step within each speed."""

    reading: Reading  # (N, ...) float32
    target: Array  # (N, n) what the servos were asked for in the step before, rad
    phase: Array  # (N,) of the gait's clock
    contact: Array  # (N, 2) bool
    speed: Array  # (N,) that was aimed at, m/s
    harness: Array  # (N, 6) mean force, N, and torque, Nm, in the step before

    def __len__(self) -> int:
        return len(self.phase)


# Making ----------------------------------------------------------------------------------------


def library(robot: Robot, speeds: Sequence[float] | None = None, seed: int = 0) -> Motion:
    """Walks of the robot at several speeds, one after the other; the same for the same seed.

    A ValueError says why, where the robot does not walk as planned.
    """
    motions = []
    for i, speed in enumerate(speeds or [robot.time_scale * speed for speed in SPEEDS]):
        motion = realise(robot, synthesise(robot, speed), seed=seed + i)
        problems = faults(robot, motion)
        if problems:
            raise ValueError(
                f"{robot.name} does not walk at {speed:g} m/s as planned: {'; '.join(problems)}"
            )
        motions.append(motion)
    return jax.tree.map(lambda *parts: np.concatenate(parts), *motions)


def realise(robot: Robot, cycle: Cycle, seed: int = 0, cycles: int = CYCLES) -> Motion:
    """What the robot makes of a planned walk: `cycles` of it, recorded after a warm-up."""
    engine, model = mujoco(), robot.model
    data, random = engine.MjData(model), np.random.default_rng(seed)
    way = np.array([cycle.speed, 0.0, 0.0])
    period = gait.PERIOD * robot.time_scale
    base_rate = changes(cycle.base, period) + way
    data.qpos[:] = robot.home
    data.qpos[:3], data.qpos[robot.joint_qpos] = cycle.base[0], cycle.joints[0]
    data.qvel[:3] = base_rate[0]
    data.qvel[robot.joint_qvel] = changes(cycle.joints, period)[0]

    steps = period / robot.control_seconds  # of control, in a cycle
    skip, count = round(WARM_UP * steps), round((WARM_UP + cycles) * steps)
    stray = random.normal(0.0, STRAY, (count, robot.num_joints))
    rows = []
    for step in range(count):
        # A target is held: the best one is that of the middle of its time.
        target = _at(cycle.targets, (step + 0.5) / steps) + stray[step]
        data.ctrl[:] = np.clip(target, robot.lower, robot.upper)
        pulls = np.zeros(6)
        for i in range(robot.substeps):
            time = (step + i / robot.substeps) / steps
            goal = _at(cycle.base, time) + way * time * period
            pull = _harness(robot, data, goal, _at(base_rate, time))
            data.xfrc_applied[robot.base_body] = pull
            engine.mj_step(model, data)
            pulls += pull / robot.substeps
        moment = (step + 1) / steps % 1.0
        row = (data.qpos, data.qvel, data.sensordata, data.ctrl, moment, pulls)
        rows.append([np.array(x, np.float32) for x in row])
    columns = zip(*rows[skip:], strict=True)
    qpos, qvel, sensors, target, phase, harness = (np.stack(x) for x in columns)
    return Motion(
        reading=Reading(qpos, qvel, sensors),
        target=target,
        phase=phase,
        contact=loads(np, robot, sensors) > TOUCH * robot.weight_scale,
        speed=np.full(len(qpos), cycle.speed, np.float32),
        harness=harness,
    )


def _at(table: np.ndarray, time: float) -> np.ndarray:
    """A periodic table (S, ...) at a time in cycles."""
    place = time % 1.0 * len(table)
    i, part = int(place) % len(table), place % 1.0
    return (1.0 - part) * table[i] + part * table[(i + 1) % len(table)]


def _harness(robot: Robot, data: Any, goal: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """Force and torque (6,) that keep the base on its course, level and facing forward."""
    weight = robot.mass * GRAVITY
    force = weight * (HOLD * (goal - data.qpos[:3]) + DAMP * (moving - data.qvel[:3]))
    force[2] = 0.0
    quaternion, turning = data.qpos[3:7], np.empty(3)
    mujoco().mju_rotVecQuat(turning, data.qvel[3:6], quaternion)
    lean = 2.0 * np.sign(quaternion[0]) * quaternion[1:]
    torque = -weight * robot.home_height * (RIGHT * lean + CALM * turning)
    return np.concatenate([force, torque])


def faults(robot: Robot, motion: Motion) -> list[str]:
    """Why a motion at one speed is no walk to learn from, in words; empty if it is one."""
    problems = []
    seconds = robot.control_seconds * (len(motion) - 1)
    way = motion.reading.qpos[-1, 0] - motion.reading.qpos[0, 0]
    speed = float(motion.speed[0])
    # Each as what must hold: a simulation that diverged leaves NaN, which nothing holds for.
    if not abs(way / seconds - speed) <= SPEED_ERROR * max(speed, 0.1 * robot.time_scale):
        problems.append(f"it moves at {way / seconds:.2f} m/s")
    agrees = (motion.contact == (gait.foot_phases(np, motion.phase) < gait.STANCE)).mean()
    if not agrees >= LEAST_AGREEMENT:
        problems.append(f"feet touch the ground by the clock {agrees:.0%} of the time")
    pull = np.linalg.norm(motion.harness[:, :3], axis=1).mean() / (robot.mass * GRAVITY)
    if not pull <= MOST_PULL:
        problems.append(f"the harness pulls with {pull:.0%} of its weight")
    slip = slipping(robot, motion)
    if not slip <= MOST_SLIP * robot.time_scale:
        problems.append(f"its feet slide at {slip:.2f} m/s")
    return problems


def slipping(robot: Robot, motion: Motion) -> float:
    """The mean speed of feet that touch the ground before and after a step, m/s."""
    places = feet(np, robot, motion.reading)[..., :2]
    moved = np.linalg.norm(np.diff(places, axis=0), axis=-1) / robot.control_seconds
    touching = motion.contact[1:] & motion.contact[:-1]
    return float(moved[touching].mean()) if touching.any() else 0.0


# Keeping ---------------------------------------------------------------------------------------


def fingerprint(robot: Robot) -> str:
    """What a motion must share with a robot: its joints, and the sizes of its states."""
    model = robot.model
    sizes = {"nq": model.nq, "nv": model.nv, "sensors": model.nsensordata}
    return json.dumps({"joints": robot.joints, **sizes})


def save(path: str | Path, robot: Robot, motion: Motion) -> None:
    """Writes an .npz, whole or not at all."""
    arrays: dict[str, Any] = vars(motion) | vars(motion.reading)
    arrays["robot"] = np.array(fingerprint(robot))
    del arrays["reading"]
    with atomic_path(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load(path: str | Path, robot: Robot) -> Motion:
    """A motion that `save` wrote; a ValueError where it is none, or of another robot."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        whose = str(arrays.pop("robot"))
        reading = Reading(**{name: arrays.pop(name) for name in ("qpos", "qvel", "sensors")})
        motion = Motion(reading=reading, **arrays)
    except FileNotFoundError as error:
        raise ValueError(f"there is no reference motion {path}") from error
    except Exception as error:  # whatever a file may hold
        raise ValueError(f"{path} is no reference motion: {error}") from error
    if whose == fingerprint(robot):
        problems = _damage(robot, motion)
        if problems:
            raise ValueError(f"{path} is no reference motion: {'; '.join(problems)}")
    else:
        raise ValueError(
            f"{path} is the reference motion of another robot: it is for {whose}, and "
            f"{robot.name} is {fingerprint(robot)}"
        )
    return motion


def _damage(robot: Robot, motion: Motion) -> list[str]:
    """What is wrong with the arrays of a motion that names this robot, in words."""
    model, n = robot.model, robot.num_joints
    shapes = {"qpos": (model.nq,), "qvel": (model.nv,), "sensors": (model.nsensordata,)}
    shapes |= {"target": (n,), "phase": (), "contact": (2,), "speed": (), "harness": (6,)}
    arrays = {**vars(motion), **vars(motion.reading)}
    del arrays["reading"]
    count = len(arrays["phase"]) if np.ndim(arrays["phase"]) else 0
    problems = [
        f"{name} has the shape {np.shape(arrays[name])}, not {(count, *shape)}"
        for name, shape in shapes.items()
        if np.shape(arrays[name]) != (count, *shape)
    ]
    problems += [
        f"{name} is not all finite numbers"
        for name, x in arrays.items()
        if np.asarray(x).dtype.kind not in "fiub" or not np.isfinite(x).all()
    ]
    if problems or count < 2:
        return problems or ["it has fewer than two moments"]
    angles = motion.reading.qpos[:, robot.joint_qpos]
    reach = np.maximum(np.abs(robot.lower), np.abs(robot.upper)) + BEYOND_LIMITS
    if (np.abs(angles) > reach).any():
        joint = robot.joints[int((np.abs(angles) - reach).max(0).argmax())]
        problems.append(
            f"{joint} is far beyond its limits, up to {np.abs(angles).max():.3g}; "
            "angles are in radians"
        )
    if (np.abs(np.linalg.norm(motion.reading.qpos[:, 3:7], axis=1) - 1.0) > 0.01).any():
        problems.append("the base's orientation (qpos 3 to 6) is no unit quaternion w x y z")
    if motion.phase.min() < 0.0 or motion.phase.max() > 1.0:
        problems.append("phase is not within 0 and 1")
    return problems


# Starting in it --------------------------------------------------------------------------------


def starts_from(engine: Engine, motion: Motion, count: int, seed: int) -> Starts:
    """`count` starts at random moments of a motion, a little astray, with the clock set to each."""
    robot, random = engine.robot, np.random.default_rng(seed)
    rows = random.integers(0, len(motion), count)
    qpos = motion.reading.qpos[rows].astype(np.float64)
    qvel = motion.reading.qvel[rows].astype(np.float64)
    qpos[:, :2] = 0.0
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    bend = random.normal(0.0, STRAY, (len(rows), robot.num_joints))
    joints = qpos[:, robot.joint_qpos] + bend
    qpos[:, robot.joint_qpos] = np.clip(joints, robot.lower, robot.upper)
    return start_tables.table(engine, qpos, qvel, motion.phase[rows])
