"""The building keeps its heat balance, and its people and weather have their hours."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from worldloom.suites.plant import hvac

AIR, WALLS, PEOPLE = slice(0, 4), slice(4, 8), slice(8, 12)


@pytest.fixture(scope="module")
def env():
    return hvac.make(disturbance=0.0)


@pytest.fixture(scope="module")
def model(env):
    return jax.jit(env.base.model())


def by_the_equations(obs, heat):
    """A quarter of an hour, zone by zone, by a solver."""
    outdoor, sun = obs[14], obs[15]

    def slope(_, x):
        air, walls = x[:4], x[4:]
        found = np.zeros(8)
        for i in range(4):
            beside = sum((air[j] - air[i]) / 4.0 for j in ((i - 1) % 4, (i + 1) % 4))
            gains = heat[i] + 2.0 * sun + 0.12 * obs[8 + i]
            flow = (walls[i] - air[i]) / 1.0 + (outdoor - air[i]) / 20.0 + beside + gains
            found[i] = flow / 0.5
            found[4 + i] = ((air[i] - walls[i]) / 1.0 + (outdoor - walls[i]) / 12.0) / 4.0
        return found

    return solve_ivp(slope, (0.0, 0.25), obs[:8], rtol=1e-10, atol=1e-12).y[:, -1]


def test_steps_are_those_of_a_solver(env, model):
    rng = np.random.default_rng(0)
    for _ in range(10):
        obs = np.concatenate(
            [rng.uniform(12, 30, 8), rng.integers(0, 8, 4), [1.0, 9.0], rng.uniform(-10, 35, 1),
             rng.uniform(0, 0.6, 1)]
        )  # fmt: skip
        action = rng.uniform(-1, 1, 4).astype(np.float32)
        heat = np.asarray(env.base.control(action), float)
        found = np.asarray(model(jnp.float32(obs), action))
        np.testing.assert_allclose(found[:8], by_the_equations(obs, heat), atol=2e-3)
        np.testing.assert_allclose(found[12], np.abs(heat).sum() / 3.0, rtol=1e-5)
        assert found[13] == 9.25


def test_a_heat_that_covers_the_losses_holds_the_temperature(model):
    """Both ways out of a zone that is 20 K warmer: through leaks, and through the walls."""
    inside, outdoor = 22.0, 2.0
    loss = 20.0 / 20.0 + 20.0 / (1.0 + 12.0)
    walls = inside - 20.0 / (1.0 + 12.0) * 1.0
    obs = jnp.float32([*[inside] * 4, *[walls] * 4, *[0.0] * 4, 0.0, 3.0, outdoor, 0.0])
    after = model(obs, jnp.full(4, loss / 4.0, jnp.float32))
    np.testing.assert_allclose(after[AIR], inside, atol=1e-3)
    np.testing.assert_allclose(after[WALLS], walls, atol=1e-3)


def day(env, steps=192):
    """Observations (steps, n) of a building that is left alone."""
    params = env.default_params()

    @jax.jit
    def play(key):
        state, _ = env.reset(key, params)
        keys = jax.random.split(key, steps)

        def one(state, key):
            state, timestep = env.step(key, state, jnp.zeros(4, jnp.float32), params)
            return state, timestep.obs

        return jax.lax.scan(one, state, keys)[1]

    return np.asarray(play(jax.random.key(0)))


def test_undisturbed_people_keep_office_hours_and_the_sun_its_own(env):
    obs = day(env)
    hour = obs[:, 13]
    work = (hour >= 8.0) & (hour < 18.0)
    assert (obs[work][:, PEOPLE] == 4.0).all()
    assert (obs[~work][:, PEOPLE] == 0.0).all()
    assert (obs[(hour < 6.0) | (hour > 18.0), 15] == 0.0).all()
    assert obs[:, 15].max() > 0.05
    outdoor = obs[:96, 14]
    assert hour[outdoor.argmax()] == 15.0
    np.testing.assert_allclose(outdoor.max() - outdoor.min(), 10.0, rtol=1e-3)
    np.testing.assert_allclose(np.diff(hour) % 24.0, 0.25)


def test_disturbed_people_come_and_go_but_only_at_work():
    obs = day(hvac.make())
    hour, people = obs[:, 13], obs[:, PEOPLE]
    work = (hour >= 8.0) & (hour < 18.0)
    assert len(np.unique(people[work])) > 3
    assert (people[~work] == 0.0).all()
