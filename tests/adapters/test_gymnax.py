"""Gymnax environments as pure worlds: as Gymnax steps them, but without its automatic reset."""

import importlib
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")

import gymnax
from gymnax.utils import load_mnist

from worldloom.adapters.gymnax import make
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import autoreset, batch

pytestmark = pytest.mark.usefixtures("compiled_once")
quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
CONTROL = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"]
STOCHASTIC = ["FourRooms-misc", "Breakout-MinAtar"]
KEY, HORIZON, STEPS = jax.random.key(3), 30, 40
ALWAYS_RIGHT = jnp.ones(STEPS, jnp.int32)


def play(env, key, actions):
    """A reset and one step for each action: the first time step, the others, and their states."""
    params = env.default_params()

    def step(state, x):
        # Gymnax's step keeps the second half of its key for the automatic reset.
        state, timestep = env.step(jax.random.split(x[0])[0], state, x[1], params)
        return state, (timestep, state)

    return scanned(lambda key: env.reset(key, params), step, key, actions)


def play_gymnax(name, key, actions):
    """The same with Gymnax's own functions, which reset automatically."""
    env, params = gymnax.make(name)
    params = params.replace(max_steps_in_episode=HORIZON)

    def step(state, x):
        _, state, reward, terminated, truncated, info = env.step(x[0], state, x[1], params)
        return state, ((info["final_observation"], reward, terminated, truncated), state)

    return scanned(lambda key: env.reset(key, params)[::-1], step, key, actions)


def scanned(reset, step, key, actions):
    def run(key, actions):
        reset_key, step_key = jax.random.split(key)
        state, first = reset(reset_key)
        keys = jax.random.split(step_key, len(actions))
        return first, *jax.lax.scan(step, state, (keys, actions))[1]

    return jax.device_get(quick_jit(run)(key, actions))


def samples(env, *shape):
    keys = jax.random.split(jax.random.key(5), shape)
    flat = jax.vmap(env.spec.action.sample)(keys.reshape(-1))
    return flat.reshape(*shape, *env.spec.action.shape)


def assert_close(ours, theirs):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=0, atol=1e-6), ours, theirs)


@pytest.mark.parametrize("name", CONTROL + STOCHASTIC)
def test_an_episode_is_gymnax_s_own_to_its_end_and_goes_on_after_it(name):
    env = make(name, max_steps_in_episode=HORIZON)
    actions = samples(env, STEPS)
    real = actions * 2.0 if name == "Pendulum-v1" else actions
    first, ours, states = play(env, KEY, actions)
    start, theirs, their_states = play_gymnax(name, KEY, real)
    end = int(np.argmax(theirs[2] | theirs[3]))  # the last step of the first episode
    assert 3 < end < HORIZON
    ours = (ours.final_obs, ours.reward, ours.terminated, ours.truncated)
    assert_close(first.obs, start)
    assert_close(*(jax.tree.map(lambda x: x[: end + 1], steps) for steps in (ours, theirs)))
    assert_close(*(jax.tree.map(lambda x: x[:end], steps) for steps in (states, their_states)))
    assert their_states.time[end] == 0
    np.testing.assert_array_equal(states.time, np.arange(1, STEPS + 1))


def test_time_running_out_is_truncation_alone():
    _, steps, _ = play(make("MountainCar-v0"), KEY, jnp.ones(200, jnp.int32))  # no force
    np.testing.assert_array_equal(steps.truncated, np.arange(1, 201) == 200)
    assert not steps.terminated.any()


def test_the_task_ending_on_the_last_step_is_termination_alone():
    _, steps, _ = play(make("CartPole-v1"), KEY, ALWAYS_RIGHT)
    falls = int(np.argmax(steps.terminated)) + 1
    assert not steps.truncated.any()
    _, steps, _ = play(make("CartPole-v1", max_steps_in_episode=falls), KEY, ALWAYS_RIGHT)
    assert steps.terminated[falls - 1]
    assert not steps.truncated[falls - 1]


SLOW = pytest.mark.slow
CLASSIC = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Catch-bsuite")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in CLASSIC else SLOW) for n in gymnax.registered_envs],
)
def test_every_environment_keeps_to_its_spec_under_jit_vmap_and_scan(name, monkeypatch):
    mnist = (np.full((2, 28, 28), -56, np.int8), np.array([3, 4], np.uint8))
    monkeypatch.setattr(load_mnist, "load_mnist", lambda: (mnist, mnist))  # Gymnax downloads it
    env = make(name)
    first, steps, _ = play(batch(env, 3), KEY, samples(env, STEPS, 3))
    horizon = int(env.default_params().max_steps_in_episode)
    assert (env.spec.name, env.spec.horizon) == (f"gymnax:{name}", horizon)
    for array, dtype in [(steps.reward, "f4"), (steps.terminated, "?"), (steps.truncated, "?")]:
        assert (array.dtype, array.shape) == (dtype, (STEPS, 3))
    assert first.obs.dtype == steps.obs.dtype == np.float32
    seen = np.concatenate([first.obs[None], steps.obs]).reshape(-1, *env.spec.observation.shape)
    assert jax.vmap(env.spec.observation.contains)(seen).all()


def test_the_key_decides_the_start_and_one_program_serves_all_steps():
    env = make("MountainCar-v0")
    params, reset, step = env.default_params(), quick_jit(env.reset), quick_jit(env.step)
    keys = (KEY, KEY, jax.random.key(4))
    (state, one), (_, again), (_, other) = (reset(key, params) for key in keys)
    np.testing.assert_array_equal(one.obs, again.obs)
    assert (one.obs != other.obs).any()
    for action in range(3):
        state, _ = step(KEY, state, jnp.int32(action), params)
    assert step._cache_size() == 1


def test_parameters_are_gymnax_s_own_and_can_be_vmapped():
    env = make("Pendulum-v1", g=3)
    params = env.default_params()
    assert jax.tree.structure(params) == jax.tree.structure(gymnax.make("Pendulum-v1")[1])
    many = jax.tree.map(lambda x: jnp.stack([x, x]), params).replace(g=jnp.array([3.0, 30.0]))
    state, _ = env.reset(KEY, params)
    alone, _ = env.step(KEY, state, jnp.zeros(1), params)
    both, _ = jax.vmap(env.step, (None, None, None, 0))(KEY, state, jnp.zeros(1), many)
    np.testing.assert_allclose(both.theta_dot[0], alone.theta_dot, atol=1e-6)
    assert abs(both.theta_dot[1] - alone.theta_dot) > 1e-2


def test_an_automatic_reset_keeps_the_last_observation():
    _, steps, _ = play(autoreset(make("CartPole-v1")), KEY, ALWAYS_RIGHT)
    ends = np.flatnonzero(steps.terminated)
    assert len(ends) > 1
    assert (np.abs(steps.final_obs[ends, 2]) > 0.2).all()  # fallen
    assert (np.abs(steps.obs[ends]) <= 0.05).all()  # begun anew


@pytest.mark.parametrize(
    ("name", "observation", "action"),
    [
        ("CartPole-v1", Box(-np.inf, np.inf, (4,)), Discrete(2)),
        ("Pendulum-v1", Box(-8.0, 8.0, (3,)), Box(-1.0, 1.0, (1,))),
        ("FrozenLake-misc", Box(0.0, 1.0, (16,)), Discrete(4)),
    ],
)
def test_spaces_are_translated(name, observation, action):
    assert (make(name).spec.observation, make(name).spec.action) == (observation, action)


def test_actions_are_scaled_to_the_real_torque_limit():
    env = make("Pendulum-v1", max_torque=0.5)
    assert env.base.spec.action == Box(-0.5, 0.5, (1,))
    state, _ = env.reset(KEY, env.default_params())
    for action, torque in [(1.0, 0.5), (-1.0, -0.5), (0.0, 0.0), (9.0, 0.5)]:
        new, _ = env.step(KEY, state, jnp.full(1, action), env.default_params())
        assert float(new.last_u) == torque


def test_a_discrete_observation_is_one_hot():
    _, steps, states = play(make("FrozenLake-misc"), KEY, ALWAYS_RIGHT)
    np.testing.assert_array_equal(np.argmax(steps.obs, axis=-1), states.position)
    assert (steps.obs.sum(axis=-1) == 1).all()


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("CartPole-v2", {}, "gymnax has no environment 'CartPole-v2'; did you mean 'CartPole-v1'"),
        ("Pendulum-v1", {"max_torqe": 1.0}, "no parameter 'max_torqe'; did you mean 'max_torque'"),
        ("Pendulum-v1", {"g": [1.0, 2.0]}, r"g=\[1.0, 2.0\] does not fit; it must be float32"),
        ("CartPole-v1", {"max_steps_in_episode": 2.5}, "max_steps_in_episode=2.5 does not fit"),
        ("CartPole-v1", {"max_steps_in_episode": 0}, "=0; it must be at least 1"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(name, params, message):
    with pytest.raises(ValueError, match=message):
        make(name, **params)


def test_without_gymnax_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.delitem(sys.modules, "worldloom.adapters.gymnax")
    message = r"need gymnax, which is not installed; pip install 'worldloom\[gymnax\]'"
    with pytest.raises(ImportError, match=message):
        importlib.import_module("worldloom.adapters.gymnax")
