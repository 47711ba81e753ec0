"""The reactor is the book's, unstable, held by its loops and lost by chance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from worldloom.suites.plant import reactor
from worldloom.suites.plant.studio import PlantSession

IDLE = jnp.float32([0.0, 0.0])  # a jacket of 300 K, a feed of 100 L/min


@pytest.fixture(scope="module")
def env():
    return reactor.make(disturbance=0.0)


@pytest.fixture(scope="module")
def model(env):
    return jax.jit(env.base.model())


def by_the_book(obs, setpoint, feed, minutes):
    """Seborg's example with the book's own numbers and a lag of the jacket, by a solver."""

    def slope(_, x):
        c, temperature, jacket = x
        k = 7.2e10 * np.exp(-8750.0 / temperature)
        return (
            feed / 100.0 * (1.0 - c) - k * c,
            feed / 100.0 * (obs[3] - temperature)
            + 5e4 / (1000.0 * 0.239) * k * c
            + 5e4 / (100.0 * 1000.0 * 0.239) * (jacket - temperature),
            (setpoint - jacket) / 0.3,
        )

    return solve_ivp(slope, (0.0, minutes), obs[:3], rtol=1e-10, atol=1e-12).y[:, -1]


def test_the_usual_working_point_is_steady(model):
    obs = jnp.float32([0.5, 350.0, 300.0, 350.0, 0.5])
    after = model(obs, IDLE)
    assert abs(after[0] - 0.5) < 2e-4
    assert abs(after[1] - 350.0) < 0.01
    np.testing.assert_allclose(after[2:], obs[2:], rtol=1e-6)


def test_steps_are_those_of_a_solver(env, model):
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1, 1, 2).astype(np.float32)
        obs = rng.uniform([0.3, 325, 285, 345, 0.4], [0.6, 360, 315, 355, 0.6])
        setpoint, feed = np.asarray(env.base.control(action), float)
        expected = by_the_book(obs, setpoint, feed, 0.1)
        found = np.asarray(model(jnp.float32(obs), action))[:3]
        np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_it_leaves_its_working_point_by_itself(model):
    cold = hot = jnp.float32([0.5, 350.0, 300.0, 350.0, 0.5])
    hot, cold = hot.at[1].add(2.0), cold.at[1].add(-2.0)
    hottest = 0.0
    for _ in range(30):  # three minutes
        hot, cold = model(hot, IDLE), model(cold, IDLE)
        hottest = max(hottest, float(hot[1]))
    assert hottest > 400.0  # it runs away, and burns out
    assert cold[1] < 340.0


def test_fouling_heats_it():
    env = reactor.make(disturbance=0.0, drift=1.0, fouling=0.5)
    clean = reactor.make(disturbance=0.0)
    state, _ = env.reset(jax.random.key(0), env.default_params())
    state = state.replace(step=jnp.int32(150))
    after = [
        jax.jit(made.step)(jax.random.key(1), state, IDLE, made.default_params())[0].x.temperature
        for made in (env, clean)
    ]
    assert after[0] > after[1] + 0.5


def test_the_studio_shows_set_points_of_loops_that_have_gains(env):
    shown = [(loop["actuator"], loop["signal"]) for loop in PlantSession(env).describe()["loops"]]
    assert shown == [("jacket_setpoint", "temperature"), ("jacket_setpoint", "wanted")]
