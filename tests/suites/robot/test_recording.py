"""Recordings of an episode: what the world did, row by row."""

import jax
import numpy as np
import pytest

pytest.importorskip("mujoco")

from worldloom.core import draws
from worldloom.suites.robot.recording import record_episode
from worldloom.suites.robot.world import world

STEPS = 12


@pytest.fixture(scope="module")
def walking():
    return world(task="walk", physics="c", command=(0.2, 0.2), still=0.0, horizon=STEPS)


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
        _, target, _ = walking.drive(walking.params.rules, state, action)
        state, timestep = step(key[None], state, action, walking.params)
        np.testing.assert_array_equal(recording.qpos[t], state.physics.reading.qpos[0])
        np.testing.assert_allclose(recording.target[t], target[0], atol=1e-7)
        assert recording.velocity[t] == timestep.info.velocity[0]
        assert recording.contact[t].tolist() == timestep.info.contact[0].tolist()
        assert recording.terms[t].sum() * 0.02 == pytest.approx(float(timestep.reward[0]), abs=1e-6)


def test_an_episode_ends_with_its_horizon(recorded):
    recording, _ = recorded
    assert len(recording) == STEPS
    assert not recording.fell
    assert recording.names[:2] == ("alive", "track")
    assert recording.command.tolist() == [pytest.approx(0.2)] * STEPS


def test_an_episode_ends_with_a_fall():
    falling = world(task="stand", physics="c", push_force=(60.0, 60.0), push_pause=(1, 2))
    recording = record_episode(falling, lambda obs: np.zeros((1, 13)), seed=0, steps=200)
    assert recording.fell
    assert len(recording) < 200
    assert recording.qpos[-1, 2] < 0.46


def test_nonsense_is_refused(walking):
    with pytest.raises(ValueError, match="steps=0"):
        record_episode(walking, lambda obs: obs, seed=0, steps=0)
