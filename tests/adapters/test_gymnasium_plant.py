"""Plants through Gymnasium: normalised at the border, units beside, its own checks passed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites
from worldloom.core import draws

pytest.importorskip("gymnasium", reason="needs worldloom[adapters]")

import gymnasium
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from worldloom.adapters.gymnasium import GymEnv, GymVectorEnv, gym_name
from worldloom.suites.plant.gymnasium import CLIP, normalised

pytestmark = pytest.mark.usefixtures("compiled_once")
NAMES = {
    "pipeline": "worldloom/Pipeline-v0",
    "dmsd": "worldloom/Dmsd-v0",
    "simglucose": "worldloom/Simglucose-v0",
    "industrial-benchmark": "worldloom/IndustrialBenchmark-v0",
    "reactor": "worldloom/Reactor-v0",
    "powergrid": "worldloom/Powergrid-v0",
    "hvac": "worldloom/Hvac-v0",
    "water": "worldloom/Water-v0",
}


def test_every_plant_has_a_name():
    assert {world: gym_name(world) for world in suites.names("plant")} == NAMES


@pytest.mark.parametrize("world", NAMES)
def test_plants_pass_the_checks_of_gymnasium(world):
    env = gymnasium.make(NAMES[world], horizon=20)
    check_env(env.unwrapped, skip_render_check=True)  # a warning would be an error here
    plant = env.unwrapped.env.base.plant
    assert env.action_space == spaces.Box(-1.0, 1.0, (len(plant.action),), np.float32)
    assert env.observation_space == spaces.Box(-CLIP, CLIP, (len(plant.observation),), np.float32)
    told = env.metadata["signals"]
    assert [row["unit"] for row in told["observation"]] == [s.unit for s in plant.observation]
    assert [row["name"] for row in told["action"]] == [s.name for s in plant.action]
    assert env.metadata["step_seconds"] == plant.step_seconds
    obs, info = env.reset(seed=0)
    assert obs in env.observation_space
    env.action_space.seed(0)
    for i in range(20):
        obs, _, terminated, truncated, info = env.step(env.action_space.sample())
        assert obs in env.observation_space
        assert len(info["safety"]["margins"]) == len(plant.limits)
        if terminated:
            break
        assert truncated == (i == 19)
    env.close()


@pytest.fixture(scope="module")
def reactor():
    return gymnasium.make("worldloom.adapters.gymnasium:worldloom/Reactor-v0", horizon=5)


def test_observations_are_the_signals_ranges_as_minus_one_to_one(reactor):
    obs, info = reactor.reset(seed=4)
    signals = reactor.metadata["signals"]["observation"]
    low, high = (np.asarray([s[end] for s in signals]) for end in ("low", "high"))
    np.testing.assert_allclose(low + (obs + 1.0) / 2.0 * (high - low), info["measured"], rtol=1e-5)
    assert 300.0 < info["measured"][1] < 400.0  # kelvin
    *_, info = reactor.step(np.float32([1.0, -1.0]))
    np.testing.assert_allclose(info["control"], [320.0, 80.0])
    assert info["action_finite"] is True
    assert info["safety"]["violated"].dtype == bool


def test_what_leaves_its_range_far_is_clipped():
    env = normalised(suites.make("reactor"))
    params = env.default_params()
    state, _ = env.reset(jax.random.key(0), params)
    hot = state.replace(x=state.x.replace(temperature=jnp.float32(5000.0)))
    _, timestep = env.step(jax.random.key(0), hot, jnp.zeros(2), params)
    assert timestep.obs[1] == CLIP
    assert timestep.final_obs[1] == CLIP
    assert timestep.info["measured"][1] > 1000.0


def test_an_episode_is_that_of_the_pure_plant(reactor):
    world = suites.make("reactor", horizon=5)
    params = world.default_params()
    key, now = draws.split(jax.random.key(11))
    state, timestep = world.reset(now, params)
    _, info = reactor.reset(seed=11)
    np.testing.assert_allclose(info["measured"], timestep.obs, rtol=1e-5)
    step = jax.jit(world.step)
    for i in range(5):
        key, now = draws.split(key)
        state, timestep = step(now, state, jnp.float32([0.1, -0.2]), params)
        _, reward, terminated, truncated, info = reactor.step(np.float32([0.1, -0.2]))
        np.testing.assert_allclose(info["measured"], timestep.obs, rtol=1e-4)
        np.testing.assert_allclose(reward, timestep.reward, rtol=1e-3)
        assert (terminated, truncated) == (False, i == 4)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_vector_declares_how_it_resets(mode):
    envs = gymnasium.make_vec("worldloom/Water-v0", num_envs=3, autoreset_mode=mode, horizon=3)
    assert isinstance(envs, GymVectorEnv)
    assert envs.metadata["autoreset_mode"] is mode
    assert envs.metadata["signals"]["action"][0]["unit"] == "m3/h"
    obs, _ = envs.reset(seed=0)
    for _ in range(3):
        assert obs in envs.observation_space
        obs, _, _, truncated, infos = envs.step(np.zeros((3, 3), np.float32))
    assert truncated.all()
    if mode is AutoresetMode.SAME_STEP:
        last = np.stack(infos["final_obs"])
        assert last.shape == obs.shape
        assert np.abs(last).max() <= CLIP
        assert (last != obs).any(1).all()
        assert infos["final_info"]["measured"].shape == (3, 7)
    envs.close()


def test_world_i_of_a_vector_plays_as_one_with_seed_plus_i(reactor):
    envs = gymnasium.make_vec("worldloom/Reactor-v0", num_envs=3, horizon=5)
    obs, _ = envs.reset(seed=20)
    envs.action_space.seed(1)
    actions = envs.action_space.sample()
    many, rewards, *_ = envs.step(actions)
    for i in range(3):
        first, _ = reactor.reset(seed=20 + i)
        np.testing.assert_allclose(first, obs[i], atol=1e-5)
        seen, reward, *_ = reactor.step(actions[i])
        np.testing.assert_allclose(seen, many[i], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(reward, rewards[i], rtol=1e-3, atol=1e-5)
    envs.close()


def test_options_reach_the_plant():
    env = gymnasium.make("worldloom/Reactor-v0", disturbance=0.0, runaway=360.0)
    assert env.unwrapped.params.bounds[0] == 360.0
    with pytest.raises(ValueError, match="reactor has no option 'disturbanc'"):
        gymnasium.make("worldloom/Reactor-v0", disturbanc=0.0)


def test_other_worlds_are_left_alone():
    world = suites.make("treasurehunt", num_agents=1)
    assert GymEnv(world).env.spec.observation == world.spec.observation
    assert "signals" not in GymEnv(world).metadata
    with pytest.raises(ValueError, match="treasurehunt is not a plant"):
        normalised(world)
