"""Recordings of an episode: what the world did, row by row."""

import jax
import numpy as np
import pytest

pytest.importorskip("mujoco")

from worldloom.core import draws
from worldloom.suites.robot.forces import torque_limits
from worldloom.suites.robot.recording import record_episode, record_episodes
from worldloom.suites.robot.shapes import moving_shapes
from worldloom.suites.robot.world import world

STEPS = 12


@pytest.fixture(scope="module")
def walking():
    """Unlike the model: forces must be those of this very world."""
    options = {"command": (0.2, 0.2), "still": 0.0, "horizon": STEPS, "randomise": 1.0}
    return world(task="walk", physics="c", push_force=(8.0, 8.0), push_pause=(2, 3), **options)


def swaying(observed):
    """A policy that keeps what it saw."""

    def act(obs):
        observed.append(np.asarray(obs.state))
        return 0.3 * np.sin(len(observed) + np.arange(13, dtype=np.float32))[None]

    return act


@pytest.fixture(scope="module")
def recorded(walking):
    observed = []
    return record_episode(walking, swaying(observed), seed=5, steps=40), observed


def test_rows_are_what_the_world_came_to(walking, recorded):
    recording, observed = recorded
    step = jax.jit(walking.step_many)
    reset_key, play_key = draws.split(jax.random.key(5))
    state, timestep = jax.jit(walking.reset_many)(reset_key[None], walking.params)
    again = []
    act = swaying(again)
    for t, key in enumerate(draws.split(play_key, 40)[:STEPS]):
        np.testing.assert_array_equal(observed[t], timestep.obs.state)
        action = act(timestep.obs)
        _, target, push = walking.drive(walking.params.rules, state, action)
        state, timestep = step(key[None], state, action, walking.params)
        np.testing.assert_array_equal(recording.qpos[t], state.physics.reading.qpos[0])
        np.testing.assert_allclose(recording.target[t], target[0], atol=1e-7)
        assert recording.velocity[t] == timestep.info.velocity[0]
        assert recording.contact[t].tolist() == timestep.info.contact[0].tolist()
        np.testing.assert_array_equal(recording.push[t], push[0])
        # The floor is level: what it gives upwards is what a touch sensor under the foot feels.
        touch = np.asarray(state.physics.reading.sensors[0])[
            [foot[0].place.start for foot in walking.robot.contacts]
        ]
        np.testing.assert_allclose(recording.force[t, :, 2], touch, atol=1e-4, rtol=1e-5)
        assert recording.terms[t].sum() * 0.02 == pytest.approx(float(timestep.reward[0]), abs=1e-6)


def test_pushes_are_recorded_while_they_last(recorded):
    recording, _ = recorded
    sizes = np.linalg.norm(recording.push, axis=1)
    assert 0 < (sizes > 0).sum() < STEPS
    np.testing.assert_allclose(sizes[sizes > 0], 8.0, rtol=1e-5)


def test_a_robot_that_stands_is_carried_and_held():
    """Its weight rests on its feet, within their soles, and servos hold by their stiffness."""
    standing = world(task="stand", physics="c", push_force=(0.0, 0.0))
    recording = record_episode(standing, lambda obs: np.zeros((1, 13)), seed=0, steps=80)
    robot = standing.robot
    late = slice(60, None)
    weight = recording.force[late].sum(1).mean(0)
    np.testing.assert_allclose(weight, [0.0, 0.0, robot.mass * 9.81], atol=1.5)
    moving = moving_shapes(robot, recording.qpos[late])
    soles = np.stack([moving.positions[:, body, :2] for body in robot.foot_bodies], axis=1)
    assert np.abs(recording.pressure[late, :, :2] - soles).max() < 0.09
    assert np.abs(recording.pressure[late, :, 2]).max() < 0.01
    bent = recording.target[late] - recording.qpos[late][:, robot.joint_qpos]
    np.testing.assert_allclose(recording.torque[late], 28.0 * bent, atol=0.4)
    assert np.abs(recording.torque).max() <= 4.5
    assert torque_limits(robot).tolist() == [4.5] * 13


def test_an_episode_ends_with_its_horizon(recorded):
    recording, _ = recorded
    assert len(recording) == STEPS
    assert not recording.fell
    assert recording.names[:2] == ("alive", "track")
    assert recording.command.tolist() == [pytest.approx(0.2)] * STEPS


@pytest.fixture(scope="module")
def falling():
    return world(task="stand", physics="c", push_force=(60.0, 60.0), push_pause=(1, 40))


def test_episodes_side_by_side_end_by_themselves_with_a_fall(falling):
    one, other = record_episodes(falling, lambda obs: np.zeros((2, 13)), [0, 3], 200)
    assert len(one) != len(other)
    for recording in (one, other):
        assert recording.fell
        assert len(recording) < 200
        assert recording.qpos[-1, 2] < 0.46
        assert recording.total == pytest.approx(recording.terms.sum() * 0.02)


@pytest.mark.slow
def test_an_episode_is_the_same_alone_and_beside_others(falling):
    _, other = record_episodes(falling, lambda obs: np.zeros((2, 13)), [0, 3], 200)
    alone = record_episode(falling, lambda obs: np.zeros((1, 13)), 3, 200)
    assert len(alone) == len(other)
    for name, within in {"push": 1e-4, "qpos": 1e-3, "torque": 0.1, "force": 0.5}.items():
        np.testing.assert_allclose(getattr(alone, name), getattr(other, name), atol=within)


@pytest.mark.slow
def test_of_a_simulation_that_diverged_no_force_is_told(falling):
    starts = falling.params.starts
    full = falling.engine.unpack(starts.physics.full)
    nq, nv = falling.robot.model.nq, falling.robot.model.nv
    broken = falling.engine.pack(full[:, :nq], np.full((len(full), nv), 1e9), full[:, nq + nv :])
    start = starts.replace(physics=starts.physics.replace(full=broken))
    recording = record_episode(
        falling.with_starts(start), lambda obs: np.zeros((1, 13)), seed=0, steps=5
    )
    assert recording.diverged
    assert len(recording) == 1
    for name in ("force", "torque", "pressure"):
        assert not getattr(recording, name).any()


def test_nonsense_is_refused(walking):
    with pytest.raises(ValueError, match="steps=0"):
        record_episode(walking, lambda obs: obs, seed=0, steps=0)
