"""The waterworks keep their balances of water and chlorine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from worldloom.suites.plant import water


@pytest.fixture(scope="module")
def env():
    return water.make(disturbance=0.0)


@pytest.fixture(scope="module")
def model(env):
    return jax.jit(env.base.model())


def by_the_equations(obs, u):
    """Five minutes with Torricelli's law as it is, by a solver."""
    demand, organic = obs[4], obs[5]

    def slope(_, x):
        h1, h2, c1, c2 = x
        through = u[1] * 130.0 * np.sqrt(h1)
        return (
            (u[0] - through) / 30.0,
            (through - demand) / 60.0,
            (u[2] - u[0] * c1) / (30.0 * (h1 + 0.1)) - 0.2 * organic * c1,
            through * (c1 - c2) / (60.0 * (h2 + 0.1)) - 0.05 * c2,
        )

    return solve_ivp(slope, (0.0, 1.0 / 12.0), obs[:4], rtol=1e-10, atol=1e-12).y[:, -1]


def test_steps_are_those_of_a_solver(env, model):
    rng = np.random.default_rng(0)
    for _ in range(20):
        obs = rng.uniform([1, 1, 0.2, 0.2, 50, 1, 3], [4, 4, 3, 3, 150, 4, 9])
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        expected = by_the_equations(obs, np.asarray(env.base.control(action), float))
        found = np.asarray(model(jnp.float32(obs), action))[:4]
        # Outflows fade near the bottom, which at a metre is still felt a little.
        np.testing.assert_allclose(found, expected, rtol=0.01)


def test_water_is_conserved(model):
    obs = jnp.float32([2.0, 3.0, 1.0, 1.0, 90.0, 2.0, 5.0])
    pump = 120.0
    after = model(obs, jnp.float32([2.0 * pump / 200.0 - 1.0, 0.3, 0.0]))
    stored = 30.0 * (after[0] - obs[0]) + 60.0 * (after[1] - obs[1])
    np.testing.assert_allclose(stored, (pump - 90.0) / 12.0, rtol=0.1)


def test_chlorine_without_a_dose_only_falls(model):
    obs = jnp.float32([2.0, 3.0, 1.0, 1.0, 90.0, 2.0, 5.0])
    for _ in range(20):
        after = model(obs, jnp.float32([0.0, 0.0, -1.0]))
        assert 0.0 <= after[2] < obs[2]
        assert 0.0 <= after[3] < obs[3]
        obs = after


def test_tanks_run_empty_and_over_but_no_further(env):
    plant, params = env.base.plant, env.default_params()
    state, _ = env.reset(jax.random.key(0), params)
    step = jax.jit(env.step)
    for action, level in (([-1.0, 1.0, -1.0], 0.0), ([1.0, -1.0, 1.0], 5.0)):
        now = state
        for _ in range(40):
            now, timestep = step(jax.random.key(1), now, jnp.float32(action), params)
            assert 0.0 <= timestep.obs[0] <= 5.0
            assert np.isfinite(timestep.obs).all()
        np.testing.assert_allclose(timestep.obs[0], level, atol=0.05)
    assert plant.ended(now.x, params)  # it ran over
    assert plant.ended(state.x.replace(level_2=jnp.float32(0.05)), params)
    assert not plant.ended(state.x, params)


def test_the_demand_has_its_peaks_morning_and_evening(env):
    hours = jnp.arange(0.0, 24.0, 0.5)
    n = env.default_params().physics
    demand = np.asarray(env.base.plant._demand(hours, jnp.float32(0.0), n))
    assert hours[demand.argmax()] == 19.0
    morning = demand[(hours >= 4.0) & (hours <= 10.0)]
    assert 4.0 < hours[hours >= 4.0][morning.argmax()] < 10.0
    np.testing.assert_allclose(demand.mean(), 100.0, rtol=1e-3)
