"""Every gridworld passes PettingZoo's own checks, and plays as the pure world does."""

import importlib
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import suites

pytest.importorskip("pettingzoo", reason="needs worldloom[adapters]")

with warnings.catch_warnings():
    # Where pygame is installed, these checks import an example of PettingZoo's that it deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import parallel_api_test, parallel_seed_test

from worldloom.adapters.pettingzoo import parallel_env

HORIZON = 6


@pytest.fixture(scope="module")
def envs():
    """One compiled environment for each world, made when it is first asked for."""
    made = {}

    def get(name: str):
        if name not in made:
            made[name] = parallel_env(name, horizon=HORIZON)
        return made[name]

    return get


def random_actions(env, rng: np.random.Generator) -> dict[str, int]:
    return {agent: int(rng.integers(env.action_space(agent).n)) for agent in env.agents}


@pytest.mark.parametrize("name", suites.names("grid"))
def test_every_world_passes_the_api_test(envs, name, capsys):
    parallel_api_test(envs(name), num_cycles=HORIZON + 2)


@pytest.mark.parametrize("name", suites.names("grid"))
def test_an_episode_is_in_its_spaces_and_ends_by_truncation(envs, name):
    env, rng = envs(name), np.random.default_rng(0)
    obs, infos = env.reset(seed=1)
    assert set(obs) == set(infos) == set(env.possible_agents)
    for turn in range(1, HORIZON + 1):
        for agent, seen in obs.items():
            assert env.observation_space(agent).contains(seen)
        assert env.state_space.contains(env.state())
        live = list(env.agents)
        obs, rewards, terminated, truncated, _ = env.step(random_actions(env, rng))
        assert all(isinstance(reward, float) for reward in rewards.values())
        over = terminated[live[0]] or turn == HORIZON
        assert all(truncated[agent] == (over and not terminated[agent]) for agent in live)
        assert env.agents == ([] if over else live)
        if over:
            break


def test_two_instances_pass_the_seed_test():
    made = []

    def make():
        made.append(parallel_env("treasurehunt", horizon=HORIZON))
        return made[-1]

    parallel_seed_test(make, num_cycles=HORIZON)  # asserts by itself
    one, other = made
    np.testing.assert_array_equal(one.state(), other.state())


def test_the_same_seed_replays_an_episode_and_no_seed_goes_on_to_another(envs):
    env = envs("treasurehunt")

    def episode(seed):
        rng = np.random.default_rng(0)
        env.reset(seed=seed)
        seen = [env.render()]
        for _ in range(HORIZON):
            env.step(random_actions(env, rng))
            seen.append(env.render())
        return seen

    first = episode(5)
    assert episode(None) != first
    assert episode(5) == first
    assert episode(6) != first


def test_the_constructor_seed_decides_the_first_world():
    first, same, other = (
        parallel_env("treasurehunt", seed=s, horizon=HORIZON, num_agents=2) for s in (3, 3, 4)
    )
    for env in (first, same, other):
        env.reset()
    assert first.render() == same.render() != other.render()


def test_the_turns_are_those_of_the_pure_world(envs):
    env, rng = envs("treasurehunt"), np.random.default_rng(2)
    pure, params = env.env, env.env.default_params()
    reset, step = jax.jit(pure.reset), jax.jit(pure.step)
    obs, _ = env.reset(seed=11)
    key, reset_key = jax.random.split(jax.random.key(11))
    world, timestep = reset(reset_key, params)
    for _ in range(HORIZON):
        np.testing.assert_array_equal(np.stack(list(obs.values())), timestep.obs)
        actions = random_actions(env, rng)
        obs, rewards, *_ = env.step(actions)
        key, step_key = jax.random.split(key)
        world, timestep = step(step_key, world, jnp.array(list(actions.values())), params)
        np.testing.assert_array_equal(list(rewards.values()), timestep.reward)


def test_a_turn_compiles_nothing_new(envs):
    env, rng = envs("treasurehunt"), np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        env.step(random_actions(env, rng))
    assert env._step._cache_size() == 1
    assert env._reset._cache_size() == 1


def test_observations_are_the_callers_to_change(envs):
    env = envs("treasurehunt")
    obs, _ = env.reset(seed=0)
    before = env.state()
    obs["agent_0"][:] = 9
    np.testing.assert_array_equal(env.state(), before)
    again, _ = env.reset(seed=0)
    assert again["agent_0"].max() < 9


def test_the_map_is_rendered_as_text_with_every_agent(envs):
    env = envs("treasurehunt")
    env.reset(seed=0)
    rows = env.render().splitlines()
    assert len(rows) == 10
    assert rows[0] == "#" * 10
    assert {c for row in rows for c in row} >= set("01234")


def test_bad_turns_are_refused_in_one_line(envs):
    env = envs("treasurehunt")
    env.reset(seed=0)
    good = dict.fromkeys(env.agents, 0)
    with pytest.raises(ValueError, match="every one of agent_0 to agent_4 must act"):
        env.step({"agent_0": 0})
    with pytest.raises(
        ValueError, match="agent_2 chose 7; an action is a whole number from 0 to 3"
    ):
        env.step(good | {"agent_2": 7})
    for _ in range(HORIZON):
        env.step(good)
    with pytest.raises(ValueError, match=r"the episode is over.*call reset\(\) first"):
        env.step(good)


def test_unknown_worlds_and_options_are_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'treasurehunt'"):
        parallel_env("tresurehunt")
    with pytest.raises(ValueError, match="did you mean 'num_agents'"):
        parallel_env("treasurehunt", num_agent=2)


def test_rendering_before_the_first_reset_says_so():
    with pytest.raises(ValueError, match=r"no world yet; call reset\(\) first"):
        parallel_env("treasurehunt").render()


def test_without_pettingzoo_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "worldloom.adapters.pettingzoo")
    with pytest.raises(ImportError, match=r"pip install 'worldloom\[adapters\]'"):
        importlib.import_module("worldloom.adapters.pettingzoo")
