"""Brax environments as pure worlds: Brax's own steps, with our time limit and no wrappers."""

import importlib
import sys
import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("brax", reason="needs worldloom[robot]")

from worldloom.adapters.brax_compat import quiet_import
from worldloom.adapters.brax_worlds import make
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Dict
from worldloom.core.transforms import autoreset, base_state, batch

with quiet_import():
    from brax import envs

pytestmark = pytest.mark.usefixtures("compiled_once")
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
KEY, STEPS, LIMIT = jax.random.key(3), 24, 20
assert_close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
NAMES = sorted({name for name in envs._envs if "worldloom" not in name} - {"swimmer"})
A_MIN = "Brax 0.14.2 calls jnp.clip(a_min=...) there, which JAX 0.10 removed"
BROKEN = pytest.mark.xfail(reason=A_MIN, raises=TypeError, strict=True)


def play(env, actions, params=None, key=KEY):
    """A reset and one step for each action: the first time step, the others, and their states."""
    params = env.default_params() if params is None else params

    def run(actions, params):
        state, first = env.reset(key, params)

        def one(state, action):
            state, timestep = env.step(key, state, action, params)
            return state, (timestep, state)

        return first, *jax.lax.scan(one, state, actions)[1]

    return jax.device_get(quick_jit(run)(actions, params))


def play_brax(name, actions):
    """The states of Brax's own environment, step by step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = envs.get_environment(name, backend="spring")
        step, states = quick_jit(env.step), [quick_jit(env.reset)(KEY)]
        for action in actions:
            states.append(step(states[-1], action))
    return jax.device_get(states)


@pytest.fixture(scope="module")
def pendulum():
    return make("inverted_pendulum", backend="spring", episode_length=LIMIT)


@pytest.fixture(scope="module")
def played(pendulum):
    """Two worlds: the first is left alone, the second pushed to one side until its pole falls."""
    return play(batch(pendulum, 2), jnp.stack([jnp.zeros((STEPS, 1)), jnp.ones((STEPS, 1))], 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inverted_pendulum", "reacher"])
def test_steps_are_brax_s_own(name):
    env = make(name, backend="spring")
    actions = jax.vmap(env.spec.action.sample)(jax.random.split(KEY, STEPS))
    first, steps, states = play(env, actions)
    start, *expected = play_brax(name, actions)
    assert_close(first.obs, start.obs)
    for i, theirs in enumerate(expected):
        assert_close(steps.obs[i], theirs.obs)
        assert_close(steps.reward[i], theirs.reward)
        assert_close(base_state(states).pipeline_state.q[i], theirs.pipeline_state.q)
        assert steps.terminated[i] == bool(theirs.done)
        jax.tree.map(assert_close, {k: v[i] for k, v in steps.info.metrics.items()}, theirs.metrics)


def test_worlds_keep_to_their_spec_under_jit_vmap_and_scan(pendulum, played):
    first, steps, _ = played
    boxes = Box(-np.inf, np.inf, (4,)), Box(-1.0, 1.0, (1,))
    assert pendulum.spec == EnvSpec("brax:inverted_pendulum", *boxes, horizon=LIMIT)
    assert (first.obs.dtype, first.obs.shape) == (np.float32, (2, 4))
    for array, dtype in [(steps.reward, "f4"), (steps.terminated, "?"), (steps.truncated, "?")]:
        assert (array.dtype, array.shape) == (dtype, (STEPS, 2))
    assert jax.vmap(pendulum.spec.observation.contains)(steps.obs.reshape(-1, 4)).all()


def test_the_pole_falling_is_termination_and_time_running_out_is_truncation(played):
    _, steps, states = played
    fallen = np.abs(steps.obs[..., 1]) > 0.2
    np.testing.assert_array_equal(steps.terminated, fallen)
    assert list(fallen.any(axis=0)) == [False, True]
    np.testing.assert_array_equal(steps.truncated[:, 0], np.arange(1, STEPS + 1) >= LIMIT)
    assert not (steps.terminated & steps.truncated).any()
    # A step never resets: the clock goes on and the pole stays down.
    np.testing.assert_array_equal(states.elapsed[:, 1], np.arange(1, STEPS + 1))
    assert (np.diff(fallen[:, 1].astype(int)) >= 0).all()


def test_one_program_serves_all_steps_and_the_key_decides_the_start(pendulum):
    params = pendulum.default_params()
    reset, step = quick_jit(pendulum.reset), quick_jit(pendulum.step)
    (state, one), (_, again) = reset(KEY, params), reset(KEY, params)
    np.testing.assert_array_equal(one.obs, again.obs)
    assert (one.obs != reset(jax.random.key(4), params)[1].obs).all()
    for _ in range(3):
        state, _ = step(KEY, state, jnp.zeros(1), params)
    assert step._cache_size() == 1


def test_the_params_are_brax_s_system_and_can_be_vmapped(pendulum, played):
    params = pendulum.default_params()
    axes = jax.tree.map(lambda _: None, params).replace(gravity=0)
    many = replace(
        pendulum,
        reset=jax.vmap(pendulum.reset, (None, axes)),
        step=jax.vmap(pendulum.step, (None, 0, None, axes)),
    )
    params = params.replace(gravity=jnp.stack([params.gravity, 0.0 * params.gravity]))
    _, steps, _ = play(many, jnp.zeros((STEPS, 1)), params, draws.split(KEY, 2)[0])
    assert_close(steps.obs[:, 0], played[1].obs[:, 0])
    assert np.abs(steps.obs[-1, 0] - steps.obs[-1, 1]).max() > 1e-3


def test_an_automatic_reset_keeps_the_last_observation():
    _, steps, _ = play(autoreset(make("fast", episode_length=4), "cached"), jnp.ones((9, 1)))
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated), [3, 7])
    assert (steps.obs[[3, 7]] == 0).all()
    assert (steps.final_obs[[3, 7]] > 0).all()


def test_observations_may_be_dicts():
    env = make("fast", obs_mode="dict_state")
    _, steps, _ = play(env, jnp.ones((2, 1)))
    assert env.spec.observation == Dict((("state", Box(-np.inf, np.inf, (2,))),))
    assert jax.vmap(env.spec.observation.contains)(steps.obs).all()


class Echo(envs.Env):
    """Shows the action it was given, and counts steps in dicts in place, as Brax's own do."""

    observation_size, action_size, backend = 1, 1, "none"

    def reset(self, rng):
        zero = jnp.float32(0.0)
        return envs.State(None, jnp.zeros(1), zero, zero, {"steps": zero}, {"steps": zero})

    def step(self, state, action):
        state.metrics.update(steps=state.metrics["steps"] + 1.0)
        state.info["steps"] = state.info["steps"] + 1.0
        return state.replace(obs=action)


def test_the_state_given_to_a_step_stays_as_it_was_and_actions_are_clipped(monkeypatch):
    monkeypatch.setitem(envs._envs, "echo", Echo)
    env = make("echo")
    first, _ = env.reset(KEY, env.default_params())
    second, timestep = env.step(KEY, first, jnp.full(1, 7.0), env.default_params())
    assert timestep.obs == 1.0
    assert timestep.info.metrics == base_state(second).info == {"steps": 1.0}
    assert base_state(first).metrics == base_state(first).info == {"steps": 0.0}


@pytest.mark.slow  # half a minute in all
@pytest.mark.parametrize("name", [*NAMES, pytest.param("swimmer", marks=BROKEN)])
def test_every_environment_of_brax_can_be_scanned(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # halfcheetah's model makes MuJoCo write a MUJOCO_LOG.TXT
    env = make(name)
    params, action = env.default_params(), jnp.zeros(env.spec.action.shape)
    before = jax.eval_shape(env.reset, KEY, params)
    assert jax.eval_shape(env.step, KEY, before[0], action, params) == before
    assert before[1].obs.shape == env.spec.observation.shape


def test_what_is_wrong_is_named_with_what_would_be_right():
    with pytest.raises(ValueError, match="brax has no environment 'aunt'; did you mean 'ant'"):
        make("aunt")
    with pytest.raises(ValueError, match="brax:ant has no option 'backnd'; did you mean 'backend'"):
        make("ant", backnd="spring")
    with pytest.raises(ValueError, match="has no backend 'sprung'; did you mean 'spring'"):
        make("ant", backend="sprung")


def test_without_brax_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.delitem(sys.modules, "worldloom.adapters.brax_worlds")
    with pytest.raises(ImportError, match=r"need brax, .*; pip install 'worldloom\[robot\]'"):
        importlib.import_module("worldloom.adapters.brax_worlds")
