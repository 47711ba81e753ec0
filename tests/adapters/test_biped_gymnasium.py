"""The biped through Gymnasium: a policy's observation as a Box, the critic's in the info."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.core import draws
from worldloom.core.spaces import Box

pytest.importorskip("gymnasium", reason="needs worldloom[adapters]")
pytest.importorskip("mujoco", reason="needs worldloom[robot]")

import gymnasium
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from worldloom.adapters.gymnasium import GymEnv
from worldloom.adapters.single_agent import policy_view

NAME = "worldloom.adapters.gymnasium:worldloom/Biped-v0"
OPTIONS = {"task": "walk", "physics": "c", "threads": 1, "horizon": 5}


@pytest.fixture(scope="module")
def env():
    made = gymnasium.make(NAME, **OPTIONS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def envs():
    made = gymnasium.make_vec(NAME, num_envs=3, autoreset_mode="SameStep", **OPTIONS)
    yield made
    made.close()


def test_the_biped_passes_the_checks_of_gymnasium(env):
    check_env(env.unwrapped, skip_render_check=True)  # a warning would be an error here


def test_a_policy_sees_a_box_and_acts_in_a_unit_box(env):
    sizes = dict(suites.make("biped", **OPTIONS).spec.observation.items)
    assert env.observation_space == spaces.Box(-100.0, 100.0, sizes["state"].shape, np.float32)
    joints = env.unwrapped.env.base.robot.num_joints
    assert env.action_space == spaces.Box(-1.0, 1.0, (joints,), np.float32)
    obs, info = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert info["privileged_state"].shape == sizes["privileged_state"].shape
    assert info["terms"].shape == (len(env.unwrapped.env.base.task.terms),)


def test_an_episode_is_that_of_the_pure_world(env):
    world = suites.make("biped", **OPTIONS)
    params = world.default_params()
    key, now = draws.split(jax.random.key(11))
    state, timestep = world.reset(now, params)
    obs, info = env.reset(seed=11)
    np.testing.assert_allclose(obs, timestep.obs.state, atol=1e-5)
    step = jax.jit(world.step)
    env.action_space.seed(0)
    over = False
    for _ in range(5):
        assert not over
        action = env.action_space.sample()
        key, now = draws.split(key)
        state, timestep = step(now, state, jnp.asarray(action), params)
        obs, reward, terminated, truncated, info = env.step(action)
        np.testing.assert_allclose(obs, timestep.obs.state, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            info["privileged_state"], timestep.obs.privileged_state, rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(reward, timestep.reward, rtol=1e-3, atol=1e-5)
        assert (terminated, truncated) == (bool(timestep.terminated), bool(timestep.truncated))
        assert isinstance(info["fell"], bool)
        over = terminated or truncated
    assert over


def test_worlds_of_a_vector_begin_anew_by_themselves(envs):
    obs, infos = envs.reset(seed=3)
    assert envs.observation_space.contains(obs)
    assert infos["privileged_state"].shape[0] == 3
    first = obs
    for _ in range(5):
        obs, _, terminated, truncated, infos = envs.step(np.zeros(envs.action_space.shape, "f4"))
        assert envs.observation_space.contains(obs)
    assert truncated.all()
    assert not terminated.any()
    last = np.stack(infos["final_obs"])
    assert last.shape == obs.shape
    assert (infos["final_info"]["privileged_state"] != infos["privileged_state"]).any(1).all()
    assert (obs != last).any(1).all()
    assert (obs != first).any(1).all()


def test_world_i_of_a_vector_plays_as_one_with_seed_plus_i(env, envs):
    obs, _ = envs.reset(seed=20)
    envs.action_space.seed(1)
    actions = envs.action_space.sample()
    many, rewards, *_ = envs.step(actions)
    for i in range(3):
        first, _ = env.reset(seed=20 + i)
        np.testing.assert_allclose(first, obs[i], atol=1e-5)
        obs_i, reward, *_ = env.step(actions[i])
        np.testing.assert_allclose(obs_i, many[i], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(reward, rewards[i], rtol=1e-3, atol=1e-5)


def test_it_is_drawn_at_the_rate_of_control():
    """Stable-Baselines3's `make_vec_env` makes every environment with this render mode."""
    made = gymnasium.make(NAME, render_mode="rgb_array", **OPTIONS)
    assert made.metadata["render_modes"] == ["rgb_array"]
    assert made.metadata["render_fps"] == 50
    made.reset(seed=0)
    picture = made.render()
    assert picture.dtype == np.uint8
    assert picture.shape == (300, 400, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    made.close()


def test_a_world_without_a_critics_part_is_left_alone():
    world = suites.make("arc", tasks="examples", max_steps=3)
    assert policy_view(world) is world
    biped = policy_view(suites.make("biped", **OPTIONS))
    assert isinstance(biped.spec.observation, Box)
    assert policy_view(biped) is biped


def test_an_action_of_another_size_is_refused(env):
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"the action has shape \(2,\); it must have"):
        env.unwrapped.step(np.zeros(2, "f4"))


def test_any_world_object_may_be_given():
    from worldloom.suites.robot.world import world

    env = GymEnv(world(**OPTIONS))
    assert isinstance(env.observation_space, spaces.Box)
