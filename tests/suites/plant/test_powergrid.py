"""The grid swings as the paper's equations say, and conserves what it should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from worldloom.suites.plant import powergrid

ANGLE, FREQUENCY, POWER, VALVE, LOAD, FLOW = (
    slice(0, 2), slice(2, 5), slice(5, 8), slice(8, 11), slice(11, 14), slice(14, 17)
)  # fmt: skip


@pytest.fixture(scope="module")
def env():
    return powergrid.make(disturbance=0.0, load_return=0.0)


@pytest.fixture(scope="module")
def model(env):
    return jax.jit(env.base.model())


def by_the_paper(obs, reference):
    """One second of all three areas, written out one by one, by a solver."""
    angle = np.concatenate([[0.0], obs[ANGLE]])
    load, asked = obs[LOAD] / 2000.0, reference / 2000.0

    def slope(_, x):
        d, f, p, v = x.reshape(4, 3)
        found = np.zeros((4, 3))
        for i in range(3):
            ties = sum(0.1 * np.sin(d[i] - d[j]) for j in range(3) if j != i)
            found[0, i] = 2.0 * np.pi * f[i]
            found[1, i] = 60.0 / 10.0 * (p[i] - load[i] - 8.33e-3 * f[i] - ties)
            found[2, i] = (v[i] - p[i]) / 0.3
            found[3, i] = (asked[i] - f[i] / 2.4 - v[i]) / 0.08
        return found.ravel()

    start = np.concatenate([angle, obs[FREQUENCY], obs[POWER] / 2000.0, obs[VALVE] / 2000.0])
    return solve_ivp(slope, (0.0, 1.0), start, rtol=1e-10, atol=1e-12).y[:, -1].reshape(4, 3)


def test_steps_are_those_of_a_solver(env, model):
    rng = np.random.default_rng(0)
    for _ in range(10):
        angle = rng.uniform(-0.5, 0.5, 2)
        areas = np.concatenate([[0.0], angle])
        flow = 200.0 * np.sin(areas - np.roll(areas, -1))
        obs = np.concatenate(
            [angle, rng.uniform(-0.2, 0.2, 3), rng.uniform(-200, 200, 9), flow]
        )  # fmt: skip
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        d, f, p, v = by_the_paper(obs, np.asarray(env.base.control(action), float))
        found = np.asarray(model(jnp.float32(obs), action))
        np.testing.assert_allclose(found[ANGLE], d[1:] - d[0], atol=2e-4)
        np.testing.assert_allclose(found[FREQUENCY], f, atol=1e-4)
        np.testing.assert_allclose(found[POWER], 2000.0 * p, atol=0.05)
        np.testing.assert_allclose(found[VALVE], 2000.0 * v, atol=0.05)
        np.testing.assert_allclose(found[FLOW], 200.0 * np.sin(d - np.roll(d, -1)), atol=0.05)


def test_without_an_operator_the_droop_settles_the_frequency(env, model):
    """A load of P for good costs P / (D + 1/R) of frequency, the same everywhere."""
    load = np.asarray([60.0, 0.0, 0.0])
    obs = jnp.zeros(17, jnp.float32).at[LOAD].set(load)
    for _ in range(80):
        obs = model(obs, jnp.zeros(3, jnp.float32))
    wanted = -load.sum() / 3.0 / 2000.0 / (8.33e-3 + 1.0 / 2.4)
    np.testing.assert_allclose(obs[FREQUENCY], wanted, rtol=0.02)
    np.testing.assert_allclose(
        obs[POWER].sum(), load.sum() - 3 * 8.33e-3 * -wanted * 2000, rtol=0.02
    )
    assert obs[FLOW][0] < 0  # the neighbours help, over both of the lines
    assert obs[FLOW][2] > 0


def test_an_operator_that_asks_for_the_load_settles_it_at_60_hertz(env, model):
    load = np.asarray([60.0, -40.0, 20.0])
    obs = jnp.zeros(17, jnp.float32).at[LOAD].set(load)
    action = jnp.asarray(env.base.action(load), jnp.float32)
    for _ in range(100):
        obs = model(obs, action)
    np.testing.assert_allclose(obs[FREQUENCY], 0.0, atol=2e-3)
    np.testing.assert_allclose(obs[FLOW], 0.0, atol=1.0)


def test_areas_that_swing_too_far_apart_are_out_of_step(env):
    x = env.base.plant.start(jax.random.key(0), env.default_params())
    ended = env.base.plant.ended
    assert not ended(x, env.default_params())
    assert ended(x.replace(angle=jnp.float32([0.0, 1.6, 0.0])), env.default_params())
    assert ended(x.replace(frequency=jnp.float32([0.0, -1.1, 0.0])), env.default_params())


@pytest.mark.parametrize("inertia", [5.0, 2.5])
def test_a_lonely_area_without_governor_falls_as_its_inertia_says(inertia):
    lonely = powergrid.make(inertia=inertia, tie=0.0, damping=0.0, droop=1e9, load_return=0.0)
    obs = jnp.zeros(17, jnp.float32).at[LOAD].set(100.0)
    after = lonely.base.model()(obs, jnp.zeros(3, jnp.float32))
    np.testing.assert_allclose(
        after[FREQUENCY], -100.0 / 2000.0 * 60.0 / (2.0 * inertia), rtol=1e-4
    )


def test_turbines_move_no_faster_than_their_rate():
    """A valve that is wide open at once: 2 MW a second of 2,000 are a thousandth."""
    slow = powergrid.make(rate_limit=0.001, tie=0.0, load_return=0.0)
    obs = jnp.zeros(17, jnp.float32).at[VALVE].set(100.0)
    asked = jnp.asarray(slow.base.action(np.full(3, 100.0)), jnp.float32)
    after = slow.base.model()(obs, asked)
    np.testing.assert_allclose(after[POWER], 2.0, rtol=1e-4)
    assert (powergrid.make(tie=0.0).base.model()(obs, asked)[POWER] > 10.0).all()


def test_governors_do_not_see_what_is_within_their_dead_band():
    heavy = {"tie": 0.0, "load_return": 0.0, "inertia": 1e6}  # the frequency stays where it is
    numb, plain = (powergrid.make(dead_band=band, **heavy) for band in (0.036, 0.0))
    still = jnp.zeros(3, jnp.float32)

    def valve(env, frequency):
        obs = jnp.zeros(17, jnp.float32).at[FREQUENCY].set(frequency)
        return np.asarray(env.base.model()(obs, still)[VALVE])

    np.testing.assert_array_equal(valve(numb, 0.03), 0.0)
    np.testing.assert_allclose(valve(plain, 0.03), -0.03 / 2.4 * 2000.0, rtol=0.01)
    np.testing.assert_allclose(valve(numb, -0.136), valve(plain, -0.1), rtol=1e-3)
