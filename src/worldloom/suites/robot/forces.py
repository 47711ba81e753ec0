"""Contact forces and joint torques of a robot, read from MuJoCo's data after a step."""

from typing import Any, NamedTuple

import numpy as np

from worldloom.suites.robot.model import Robot, mujoco


class Forces(NamedTuple):
    """What ground and servos did in an instant, in the world's frame."""

    torque: np.ndarray  # (n,) of the servos on their joints, Nm
    force: np.ndarray  # (2, 3) on the left and on the right foot, N
    pressure: np.ndarray  # (2, 3) where it acts: the centre of pressure; 0 where nothing touches


def read_forces(robot: Robot, model: Any, data: Any) -> Forces:
    """As after `mj_step`: of the instant before the engine's last step, like all sensors.

    Contacts count that are on a foot's own body, whatever they are with.
    """
    engine, part = mujoco(), np.zeros(6)
    force, moment, weight = np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 1))
    for number in range(data.ncon):
        contact = data.contact[number]
        engine.mj_contactForce(model, data, number, part)
        on_second = part[:3] @ contact.frame.reshape(
            3, 3
        )  # its rows are axes, the first the normal
        for geom, sign in zip(contact.geom, (-1.0, 1.0), strict=True):
            body = int(model.geom_bodyid[geom]) if geom >= 0 else -1  # no geom: a soft body
            if body in robot.foot_bodies:
                foot = robot.foot_bodies.index(body)
                force[foot] += sign * on_second
                moment[foot] += part[0] * contact.pos
                weight[foot] += part[0]
    pressure = np.divide(moment, weight, out=np.zeros((2, 3)), where=weight > 0.0)
    return Forces(data.qfrc_actuator[robot.joint_qvel].copy(), force, pressure)


def torque_limits(robot: Robot) -> np.ndarray:
    """The most (n,) that each servo can give, Nm; inf where nothing limits it."""
    model = robot.model
    joint, inf = model.actuator_trnid[:, 0], np.inf
    servo = np.where(model.actuator_forcelimited, np.abs(model.actuator_forcerange).max(-1), inf)
    frame = np.where(model.jnt_actfrclimited, np.abs(model.jnt_actfrcrange).max(-1), inf)[joint]
    return np.minimum(servo * np.abs(model.actuator_gear[:, 0]), frame)
