"""The planning oracle: beside Riccati's optimum, and beside what else controls a plant."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.plant_mpc import Shooting, oracle_returns
from benchmarks.plant_oracle import controller_returns
from worldloom import suites
from worldloom.core import draws
from worldloom.suites.plant import Signal, make_world
from worldloom.suites.plant.plant import play_episodes

A, B = np.asarray([[1.0, 0.2], [0.0, 1.0]]), np.asarray([0.0, 0.2])
Q, R, STEPS = np.diag([1.0, 0.1]), 0.05, 12


@dataclass(frozen=True)
class Cart:
    """A double integrator with quadratic costs, of which the optimum is known."""

    name: str = "cart"
    observation: tuple = (Signal("place", "m", -1.0, 1.0), Signal("speed", "m/s", -1.0, 1.0))
    action: tuple = (Signal("push", "N", -50.0, 50.0),)
    limits: tuple = ()
    loops: tuple = ()
    horizon: int = STEPS
    step_seconds: float = 0.2

    def physics(self):
        return ()

    def start(self, key, params):
        return 2.0 * draws.uniform(key, (2,)) - 1.0

    def advance(self, key, x, u, step, params):
        return jnp.asarray(A, jnp.float32) @ x + jnp.asarray(B, jnp.float32) * u[0]

    def observe(self, x, params):
        return x

    def reward(self, x, u, next_x, params):
        return -(next_x @ jnp.asarray(Q, jnp.float32) @ next_x + R * u[0] ** 2)

    def ended(self, x, params):
        return jnp.asarray(False)

    def model(self, obs, u, params):
        return self.advance(None, obs, u, 0, params)


def riccati(start):
    """The least cost of STEPS steps from a state (2,)."""
    value = np.zeros((2, 2))
    for _ in range(STEPS):
        after = Q + value
        gain = (B @ after @ A) / (R + B @ after @ B)
        closed = A - np.outer(B, gain)
        value = R * np.outer(gain, gain) + closed.T @ after @ closed
    return start @ value @ start


def test_it_finds_riccatis_optimum_within_two_per_cent():
    env = make_world(Cart())
    settings = Shooting(horizon=STEPS, gradients=40, samples=16)
    found = oracle_returns(env, 6, seed=5, settings=settings)
    keys = draws.split(draws.split(jax.random.key(5))[0], 6)
    starts = [np.asarray(env.base.plant.start(key, None), float) for key in keys]
    best = np.asarray([-riccati(start) for start in starts])
    assert (found <= 0.999 * best).all(), "nobody beats the optimum"  # of negative returns
    np.testing.assert_allclose(found, best, rtol=0.02)


@pytest.mark.nightly
@pytest.mark.slow
def test_it_beats_tuned_loops_and_every_constant():
    env = suites.make("dmsd", horizon=60)
    planned = oracle_returns(env, 4)
    tuned = controller_returns(env, "pid_tuned", 4)  # from the same starts, without chance
    assert planned.mean() > tuned.mean()
    levels = jnp.linspace(-1.0, 1.0, 9)
    pairs = jnp.stack(jnp.meshgrid(levels, levels), -1).reshape(-1, 2)
    constants = jax.jit(jax.vmap(lambda action: constant_return(env, action)))(pairs)
    assert planned.mean() > float(constants.max())


def constant_return(env, action):
    """The mean return of always the same action, from the same starts."""

    def choose(obs, memory, key):
        return (jnp.broadcast_to(action, (4, 2)),), memory

    keys = draws.split(jax.random.key(0))
    reward = play_episodes(
        env, env.default_params(), (keys[0], keys[1]), 4, lambda state: (), choose,
        lambda obs, alive, chosen, after: jnp.where(alive, after.reward, 0.0),
    )  # fmt: skip
    return reward.sum(0).mean()


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="horizon=0; it must be at least 1"):
        Shooting(horizon=0)
