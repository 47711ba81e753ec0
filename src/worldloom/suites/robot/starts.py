"""Tables of states to begin an episode in, computed once with MuJoCo before anything is compiled.

So a reset needs no engine: it costs the copy of a row, on every backend, and is the same on all.
"""

import math
from typing import Any

import numpy as np

from worldloom.suites.robot.engines import Engine
from worldloom.suites.robot.ground import STRAY, Ground
from worldloom.suites.robot.model import Robot, mujoco
from worldloom.suites.robot.types import Physics, Reading, Starts

# m. Soles begin this deep in the floor: at its very surface, rounding decides what touches.
SINK = 1e-4
TILT, BEND, TURN, DRIFT = 0.06, 0.05, 0.3, 0.1  # rad, rad, rad/s, m/s
# Of robots that lie: how long they were left to settle, how far their limbs are bent towards a
# limit at most, and how far they are rolled about their length, rad.
SETTLE_SECONDS, LIMBS, ROLLED = 2.0, 0.5, 0.3


def around_home(engine: Engine, count: int, seed: int) -> Starts:
    """`count` robots near the home pose, leaning and moving a little, with a sole on the floor.

    The first is the home pose itself, at rest.
    """
    robot, random = engine.robot, np.random.default_rng(seed)
    model = robot.model
    joints = robot.num_joints
    size = [TILT] * 2 + [BEND] * joints + [DRIFT] * 3 + [TURN] * (3 + joints)
    stray = random.uniform(-1.0, 1.0, (count, len(size))) * size
    stray[0] = 0.0
    tilt, bend, moving = np.split(stray, [2, 2 + joints], axis=1)
    qpos, qvel = np.tile(robot.home, (count, 1)), np.zeros((count, model.nv))
    # Small turns about x and y, as quaternions.
    turn = np.pad(0.5 * tilt, ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0)))
    qpos[:, 3:7] = turn / np.linalg.norm(turn, axis=1, keepdims=True)
    qpos[:, robot.joint_qpos] = np.clip(robot.home_joints + bend, robot.lower, robot.upper)
    qvel[:, :6], qvel[:, robot.joint_qvel] = moving[:, :6], moving[:, 6:]
    return table(engine, qpos, qvel, random.uniform(0.0, 1.0, count))


def table(engine: Engine, qpos: np.ndarray, qvel: np.ndarray, phase: np.ndarray) -> Starts:
    """The starts in these states (N, ...), each put down so that its lowest sole touches."""
    robot, mj = engine.robot, mujoco()
    data, qpos = mj.MjData(robot.model), qpos.copy()
    for row in qpos:
        data.qpos[:] = row
        mj.mj_kinematics(robot.model, data)
        row[2] -= lowest(robot, data) + SINK
    return _as_they_are(engine, qpos, qvel, phase)


def on_lanes(engine: Engine, ground: Ground, starts: Starts, seed: int) -> Starts:
    """The starts (N) on each lane of uneven ground, lane after lane, the first in its middle."""
    robot, count, lanes = engine.robot, len(starts.phase), len(ground.starts)
    stray = np.random.default_rng(seed).uniform(-1.0, 1.0, (lanes, count, 2)) * STRAY * ground.scale
    stray[:, 0] = 0.0
    moved = (ground.starts[:, None] + stray).reshape(-1, 2)
    whole = np.tile(engine.unpack(starts.physics.full), (lanes, 1))
    qpos, qvel, warmstart = np.split(whole, [robot.model.nq, robot.model.nq + robot.model.nv], 1)
    qpos[:, :2] += moved
    sensors = np.tile(np.asarray(starts.physics.reading.sensors), (lanes, 1))
    for place in robot.foot_position:
        sensors[:, place.start : place.start + 2] += moved
    reading = Reading(*(x.astype(np.float32) for x in (qpos, qvel, sensors)))
    physics = Physics(engine.pack(qpos, qvel, warmstart), reading)
    return Starts(physics, np.tile(np.asarray(starts.phase), lanes))


def lying(engine: Engine, count: int, seed: int) -> Starts:
    """`count` robots at rest on the ground, on their front and on their back in turn.

    They were dropped from a little above it, each with its limbs bent somehow, and settled.
    """
    robot, mj = engine.robot, mujoco()
    model, data, random = robot.model, mj.MjData(robot.model), np.random.default_rng(seed)
    steps = round(SETTLE_SECONDS / model.opt.timestep)
    qpos, qvel = np.zeros((count, model.nq)), np.zeros((count, model.nv))
    for i in range(count):
        mj.mj_resetData(model, data)
        data.qpos[:] = robot.home
        share = random.uniform(0.0, LIMBS, robot.num_joints)  # of the way to a limit
        end = np.where(random.random(robot.num_joints) < 0.5, robot.lower, robot.upper)
        data.ctrl[:] = robot.home_joints + share * (end - robot.home_joints)
        data.qpos[robot.joint_qpos] = data.ctrl
        pitch, roll = (math.pi / 2.0) * (-1) ** i, random.uniform(-ROLLED, ROLLED)
        mj.mju_euler2Quat(data.qpos[3:7], np.array([0.0, pitch, roll]), "XYZ")
        data.qpos[2] = 0.5 * robot.home_height
        for _ in range(steps):
            mj.mj_step(model, data)
        qpos[i], qvel[i] = data.qpos, data.qvel
    qpos[:, :2] = 0.0
    return _as_they_are(engine, qpos, qvel, np.zeros(count))


def _as_they_are(engine: Engine, qpos: np.ndarray, qvel: np.ndarray, phase: np.ndarray) -> Starts:
    """The starts in these states (N, ...)."""
    robot, mj = engine.robot, mujoco()
    model, data = robot.model, mj.MjData(robot.model)
    warmstart = np.zeros((len(qpos), model.nv))
    sensors = np.zeros((len(qpos), model.nsensordata))
    for i in range(len(qpos)):
        mj.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = qpos[i], qvel[i]
        mj.mj_forward(model, data)
        warmstart[i], sensors[i] = data.qacc_warmstart, data.sensordata
    reading = Reading(*(x.astype(np.float32) for x in (qpos, qvel, sensors)))
    physics = Physics(engine.pack(qpos, qvel, warmstart), reading)
    return Starts(physics, phase.astype(np.float32))


def lowest(robot: Robot, data: Any) -> float:
    """The height of the lowest point of the soles: of their bounding boxes, if not spheres."""
    model, soles = robot.model, list(robot.foot_geoms)
    down = data.geom_xmat[soles].reshape(-1, 3, 3)[:, 2]  # the vertical, in each one's own frame
    centre = data.geom_xpos[soles, 2] + (down * model.geom_aabb[soles, :3]).sum(-1)
    reach = (np.abs(down) * model.geom_aabb[soles, 3:]).sum(-1)
    round_ = model.geom_type[soles] == mujoco().mjtGeom.mjGEOM_SPHERE
    return float((centre - np.where(round_, model.geom_size[soles, 0], reach)).min())
