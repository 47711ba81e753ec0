"""Gaits in numbers with known answers, and how walks are scored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.robot import motion
from worldloom.suites.robot.evaluate import RobotEvaluation, RobotEvaluator
from worldloom.suites.robot.forces import read_forces
from worldloom.suites.robot.gait_numbers import NUMBERS, Steps, foot_gap, gait_numbers, servo_torque
from worldloom.suites.robot.kinematics import synthesise
from worldloom.suites.robot.mjcf import mujoco
from worldloom.suites.robot.model import biped
from worldloom.suites.robot.robustness import DISTURBANCES
from worldloom.suites.robot.world import world


@pytest.fixture(scope="module")
def robot():
    return biped()


@pytest.fixture(scope="module")
def walk(robot):
    """A reference walk as steps (T, 1, ...)."""
    made = motion.realise(robot, synthesise(robot, 0.25), cycles=6)
    reading, target = jax.tree.map(lambda x: x[:, None], (made.reading, made.target))
    return Steps(reading, target, np.ones((len(made), 1), bool))


def test_the_numbers_of_the_reference_walk_are_those_of_its_plan(robot, walk):
    numbers = gait_numbers(robot, walk)
    assert set(numbers) == set(NUMBERS)
    assert 15 < numbers["foot_gap"] < 42  # of 42 mm at home; legs roll as it shifts its weight
    assert 20 < numbers["foot_clearance"] < 45  # of 40 planned
    assert numbers["slip"] < 0.05
    assert numbers["duty_factor"] == pytest.approx(0.6, abs=0.1)
    assert numbers["asymmetry"] < 0.1
    assert 0.0 < numbers["torque_peak_share"] <= 1.0
    assert numbers["torque_peak"] <= 4.5
    assert 0.05 < numbers["cost_of_transport"] < 3.0


def test_feet_that_overlap_have_a_gap_below_zero(robot):
    qpos = np.tile(robot.home, (3, 1))
    assert 1e3 * foot_gap(robot, qpos) == pytest.approx(42.0, abs=0.5)
    for side, sign in zip(robot.legs, (-1, 1), strict=True):
        qpos[1, robot.joint_qpos[side[0]]] += 0.2 * sign
    assert foot_gap(robot, qpos) < 0.0
    assert foot_gap(robot, qpos[::2]) > 0.04


def test_a_target_that_goes_back_and_forth_is_counted(robot, walk):
    knees = [i for i, name in enumerate(robot.joints) if "knee" in name]
    target = np.zeros_like(walk.target)
    target[::2, :, knees] = 0.1  # another direction in every step
    numbers = gait_numbers(robot, walk._replace(target=target))
    assert numbers["knee_reversals"] == pytest.approx(50.0)
    assert numbers["action_rate"] == pytest.approx(0.1 * 50 * len(knees) / robot.num_joints)
    held = gait_numbers(robot, walk._replace(target=np.zeros_like(target)))
    assert held["knee_reversals"] == held["action_rate"] == 0.0


def test_only_what_is_counted_counts(robot, walk):
    assert gait_numbers(robot, walk._replace(counted=np.zeros_like(walk.counted))) == {}
    half = np.arange(len(walk.counted))[:, None] < len(walk.counted) // 2
    wild = walk.target.copy()
    wild[len(wild) // 2 :] = np.random.default_rng(0).normal(size=wild[len(wild) // 2 :].shape)
    one, other = (
        gait_numbers(robot, walk._replace(counted=half, target=t)) for t in (walk.target, wild)
    )
    assert one == other


def test_torques_are_those_that_mujoco_applies(robot):
    engine = mujoco()
    data, random = engine.MjData(robot.model), np.random.default_rng(0)
    data.qpos[:] = robot.home
    data.qvel[robot.joint_qvel] = random.normal(0.0, 1.0, robot.num_joints)
    data.ctrl[:] = np.clip(robot.home_joints + random.normal(0, 0.2, 13), robot.lower, robot.upper)
    angle, speed = (data.qpos[robot.joint_qpos].copy(), data.qvel[robot.joint_qvel].copy())
    engine.mj_forward(robot.model, data)
    torque = servo_torque(robot, data.ctrl, angle, speed)
    np.testing.assert_allclose(torque, read_forces(robot, robot.model, data).torque, atol=1e-9)


# Scores ------------------------------------------------------------------------------------------


def scores(command, speed, forward=None, fell=False):
    """Of one episode."""
    one = np.ones(1)
    return RobotEvaluation(
        command=np.array([command]), speed=np.array([speed]), yaw=18.0 * one * speed[2],
        forward=one * (speed[0] if forward is None else forward), drift=one * 0.0,
        walked=18.0 * one, fell=np.array([fell]), lengths=np.array([1000]), returns=one, terms={},
        terms_stderr={}, gait={}, gait_distance=None, seconds=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("speed", "fell", "expected"),
    [
        ((0.26, 0.1, 0.05), False, True),  # nobody asked for anything sideways
        ((0.225, 0.0, 0.0), False, False),
        ((0.25, 0.0, 0.2), False, False),
        ((0.25, 0.0, 0.0), True, False),
    ],
)
def test_a_walk_counts_where_it_comes_to_what_was_asked_for(speed, fell, expected):
    assert bool(scores((0.25, 0.0, 0.0), speed, fell=fell).tracked[0]) is expected


def test_circles_are_fast_and_lead_nowhere():
    circle = scores((0.25, 0.0, 0.0), (0.01, 0.0, 0.35), forward=0.25)
    assert circle.good[0]
    assert not circle.tracked[0]
    assert circle.error[0] == pytest.approx(0.24)


def test_a_robot_that_is_steered_must_go_sideways_too():
    assert scores((0.2, 0.1, 0.3), (0.2, 0.1, 0.35)).tracked[0]
    assert scores((0.2, 0.1, 0.3), (0.2, 0.0, 0.3)).error[0] == pytest.approx(0.1)


def slide(robots, velocity, yaw_rate, episodes=4):
    """An evaluator whose robots are pushed along, whatever they do: kinematics with known ends."""
    evaluator = RobotEvaluator(
        robots, lambda agents, obs, key, explore: obs.state[:, :13] * 0, episodes
    )
    seconds = robots.robot.control_seconds

    class Sliding:
        def reset(self, key, params):
            state, step = evaluator_worlds.reset(key, params)
            return put(state, jnp.zeros(episodes)), step

        def step(self, key, state, action, params):
            time = (state.episode.step + 1) * seconds
            state, step = evaluator_worlds.step(key, state, action, params)
            state = put(state, time)
            reading = state.physics.reading
            return state, step.replace(
                terminated=jnp.zeros(episodes, bool), info=step.info.replace(reading=reading)
            )

    def put(state, time):
        reading, half = state.physics.reading, 0.5 * yaw_rate * time
        zero = jnp.zeros_like(half)
        heading = yaw_rate * time
        turn = jnp.stack([jnp.cos(half), zero, zero, jnp.sin(half)], axis=1)
        radius = velocity / yaw_rate if yaw_rate else 0.0
        x = radius * jnp.sin(heading) if yaw_rate else velocity * time
        y = radius * (1.0 - jnp.cos(heading))
        qpos = reading.qpos.at[:, 0].set(x).at[:, 1].set(y).at[:, 3:7].set(turn)
        moving = velocity * jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=1)
        qvel = reading.qvel.at[:, :2].set(moving)
        sensors = reading.sensors.at[:, robots.robot.orientation].set(turn)
        reading = reading.replace(qpos=qpos, qvel=qvel, sensors=sensors)
        return state.replace(physics=state.physics.replace(reading=reading))

    evaluator_worlds = evaluator._worlds
    evaluator._worlds = Sliding()
    return evaluator


@pytest.fixture(scope="module")
def short():
    return world(task="walk", physics="c", threads=1, horizon=80)


@pytest.mark.parametrize(("velocity", "rate"), [(0.2, 0.0), (0.2, 1.5)])
def test_speeds_are_measured_by_net_displacement(short, velocity, rate):
    """Also in an episode of less than four seconds, of which half is for the start."""
    result = slide(short, velocity, rate)((), jax.random.key(0))
    seconds = 40 * short.robot.control_seconds
    chord = velocity if rate == 0.0 else velocity / rate * np.sin(rate * seconds) / seconds
    np.testing.assert_allclose(result.speed[:, 0], chord, rtol=1e-4)
    np.testing.assert_allclose(result.forward, velocity, rtol=1e-4)
    np.testing.assert_allclose(result.yaw, rate * seconds, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.walked, seconds)
    low, high = short.params.rules.command
    np.testing.assert_allclose(result.command[[0, -1], 0], [low, high])  # the trained range


def test_worlds_that_differ_are_played_one_kind_after_the_other(short):
    evaluator = RobotEvaluator(short, lambda agents, obs, key, explore: obs.state[:, :13] * 0, 2)
    rows = evaluator.disturbed((), jax.random.key(0))
    kinds = [(row.kind, row.strength) for row in rows]
    assert kinds == [
        ("none", 0.0),
        *((k, float(s)) for k, some in DISTURBANCES.items() for s in some),
    ]
    assert all(0.0 <= row.survived <= 1.0 for row in rows)
    errors = {(row.kind, row.strength): row.error for row in rows}
    undisturbed = errors[("none", 0.0)]
    # A robot that only holds its pose does not mind when its targets or readings are late.
    assert errors[("latency", 2.0)] == errors[("noise", 2.0)] == undisturbed
    for kind in ("mass", "com", "strength", "damping"):
        assert errors[(kind, 2.0)] != undisturbed, kind
