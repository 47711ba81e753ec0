"""Controllers do what their loops say, and tell the density of what they did honestly."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import truncnorm

from worldloom.suites.plant import Loop, Signal, controllers, reactor
from worldloom.suites.plant.controllers import QUALITIES, TUNINGS, Tuning, loops_of

SURE = Tuning(1.0, 1e-4, False)  # a controller without noise worth speaking of
KEY = jax.random.key(0)


def plant_with(*loops):
    """A plant of two signals and two actuators, as far as controllers see one."""
    plant = SimpleNamespace(
        name="toy", loops=loops,
        observation=(Signal("level", "m", 0.0, 10.0), Signal("wanted", "m", 0.0, 10.0)),
        action=(Signal("pump", "L/s", 0.0, 50.0), Signal("drain", "L/s", 0.0, 5.0)),
    )  # fmt: skip
    return SimpleNamespace(plant=plant)


def actions(world, levels, wanted=6.0, tuning=SURE):
    """What the loops do as the level goes through `levels`."""
    init, act = loops_of(world)
    memory, done = init(), []
    for level in levels:
        action, _, memory = act(tuning, KEY, memory, jnp.float32([level, wanted]))
        done.append(np.asarray(action))
    return np.stack(done)


def test_a_proportional_loop_moves_its_own_actuator_by_its_share():
    found = actions(plant_with(Loop("pump", "level", "wanted", 0.5)), [5.0, 6.0, 8.0])
    # an error of a tenth of the range, times 0.5, of a range of 2
    np.testing.assert_allclose(found[:, 0], [0.1, 0.0, -0.2], atol=1e-3)
    np.testing.assert_allclose(found[:, 1], 0.0, atol=1e-3)


def test_sums_changes_biases_and_several_loops_add_up():
    world = plant_with(
        Loop("pump", "level", 6.0, 0.0, integral=0.25, bias=0.1),
        Loop("pump", "level", 4.0, 0.0, derivative=1.0, bias=-0.2),
    )
    found = actions(world, [5.0, 5.0, 4.0])
    # sums of errors 0.1, 0.2, 0.4 and, in the third step, an error that grows by 0.1
    np.testing.assert_allclose(found[:, 0], [-0.05, 0.0, 0.3], atol=1e-3)


def test_sums_do_not_wind_up_while_the_actuator_is_at_its_end():
    world = plant_with(Loop("pump", "level", "wanted", 0.0, integral=1.0))
    found = actions(world, [0.0] * 30 + [7.0] * 3)
    np.testing.assert_allclose(found[5:30, 0], 1.0, atol=1e-3)
    # Wound up it would take more than a hundred steps of the opposite error to leave the end.
    assert found[-1, 0] < 0.9


def test_a_medium_controller_has_half_of_the_gain():
    world = plant_with(Loop("pump", "level", "wanted", 0.5))
    half = actions(world, [4.0], tuning=Tuning(TUNINGS["medium"].gain, 1e-4, False))
    np.testing.assert_allclose(half[0, 0], 0.2 * TUNINGS["medium"].gain, atol=1e-3)
    assert 0 < TUNINGS["medium"].gain < 1
    assert TUNINGS["medium"].noise > TUNINGS["expert"].noise


@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize("level", [6.0, 0.0, 3.0])  # in the middle, at the end, between
def test_the_density_is_that_of_the_actions(quality, level):
    """Logged densities agree with a histogram of the actions, and nothing is outside."""
    init, act = loops_of(plant_with(Loop("pump", "level", "wanted", 1.0)))
    obs = jnp.float32([level, 6.0])
    keys = jax.random.split(jax.random.key(1), 40_000)
    drawn = jax.jit(jax.vmap(lambda key: act(TUNINGS[quality], key, init(), obs)[:2]))(keys)
    found, density = (np.asarray(x, np.float64) for x in drawn)
    assert np.abs(found).max() <= 1.0
    assert np.isfinite(density).all()
    # With q the density, the mean of f/q over its own draws is the integral of f over the square:
    # here that of 1 over the part of it where most of the actions are.
    low, high = np.quantile(found, 0.05, axis=0), np.quantile(found, 0.95, axis=0)
    inside = ((found >= low) & (found <= high)).all(1)
    measured = (inside / np.exp(density)).mean()
    np.testing.assert_allclose(measured, np.prod(high - low), rtol=0.05)


def test_a_logged_density_follows_from_the_logged_action():
    mean, noise = np.float32([0.2, -0.995, 1.0]), 0.3
    action, density = controllers._draw(KEY, jnp.asarray(mean), Tuning(1.0, noise, False))
    spread = noise * np.maximum(1.0 - np.abs(mean), controllers.SMALLEST_ROOM)  # less at the ends
    low, high = (-1.0 - mean) / spread, (1.0 - mean) / spread
    wanted = truncnorm.logpdf(np.asarray(action), low, high, mean, spread).sum()
    np.testing.assert_allclose(density, wanted, rtol=1e-3)
    assert (np.abs(action - mean) < 5.0 * spread).all()


def test_a_random_controller_draws_from_everywhere():
    init, act = loops_of(plant_with(Loop("pump", "level", "wanted", 1.0)))
    keys = jax.random.split(jax.random.key(2), 4000)
    draw = jax.vmap(lambda key: act(TUNINGS["random"], key, init(), jnp.zeros(2))[0])
    found = np.asarray(jax.jit(draw)(keys))
    np.testing.assert_allclose(found.mean(0), 0.0, atol=0.03)
    np.testing.assert_allclose(found.std(0), 1 / np.sqrt(3), rtol=0.03)
    assert abs(np.corrcoef(found.T)[0, 1]) < 0.05


def test_worlds_of_a_batch_may_be_tuned_differently():
    init, act = loops_of(plant_with(Loop("pump", "level", "wanted", 0.5)))
    tuning = Tuning(jnp.float32([1.0, 0.5]), jnp.float32([1e-4, 1e-4]), jnp.asarray([False] * 2))
    memory = jax.vmap(lambda _: init())(jnp.arange(2))
    keys, obs = jax.random.split(KEY, 2), jnp.broadcast_to(jnp.float32([5.0, 6.0]), (2, 2))
    found = jax.jit(jax.vmap(act))(tuning, keys, memory, obs)[0]
    np.testing.assert_allclose(found[:, 0], [0.1, 0.05], atol=1e-3)


def test_names_that_are_not_there_are_told():
    with pytest.raises(ValueError, match="toy: a loop names 'levle'; did you mean 'level'"):
        loops_of(plant_with(Loop("pump", "levle", 1.0, 1.0)))
    with pytest.raises(ValueError, match="toy: a loop names 'pmup'; did you mean 'pump'"):
        loops_of(plant_with(Loop("pmup", "level", 1.0, 1.0)))
    with pytest.raises(ValueError, match="toy: a loop names 'wantd'; did you mean 'wanted'"):
        loops_of(plant_with(Loop("pump", "level", "wantd", 1.0)))


def test_actuators_without_a_loop_rest_in_the_middle():
    world = reactor.make().base
    silent = replace(world, plant=replace(world.plant, loops=()))
    init, act = loops_of(silent)
    action, density, _ = act(SURE, KEY, init(), jnp.zeros(5))
    np.testing.assert_allclose(action, 0.0, atol=1e-3)
    assert np.isfinite(density)
