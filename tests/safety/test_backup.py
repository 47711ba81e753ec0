"""What takes over where no safe action is found is what the lookahead relies on: the backup."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_constraint_file import TEXT, parse

from worldloom.safety import (
    ControlState,
    Stage,
    StateRow,
    emergency_action,
    filter_action,
    filter_batch,
    initial_memory,
    make_constraints,
)
from worldloom.safety.filter import CHUNK

SAFE, USUAL, BURST = 0.2, 0.5, 2.4
run = jax.jit(filter_action)


def tank(obs, action):
    """A level that a pump fills, and what is taken from it, which returns to its usual course."""
    level, taken = obs
    return jnp.stack([level + 0.1 * (action[0] + 0.5 - taken), USUAL + 0.8 * (taken - USUAL)])


def loop(obs):
    """The lower the level, the more is pumped."""
    return jnp.clip(4.0 * (0.6 - obs[:1]), -1.0, 1.0)


def tank_rows(**changes):
    """The level stays above `SAFE`; the emergency action holds the pump where demand is usual."""
    options = {
        "lookahead": [StateRow("reserve", [1.0, 0.0], -SAFE)], "horizon": 6, "model": tank,
        "backup": loop, "latch_after": 0,
    }  # fmt: skip
    return make_constraints(2, [0.0], **(options | changes))


def crossed(constraints, steps=12):
    """In how many steps a burst main takes the level below its limit, whatever the policy does."""

    def step(carry, _):
        obs, memory = carry
        action, report = filter_action(-jnp.ones(1), ControlState(obs, memory), constraints)
        obs = tank(obs, action)
        return (obs, report.memory), (obs[0] < SAFE - 1e-4, report.emergency)

    start = (jnp.asarray([0.25, BURST]), initial_memory(constraints, jnp.zeros(1)))
    _, (below, emergency) = jax.jit(lambda: jax.lax.scan(step, start, None, length=steps))()
    assert emergency.any()
    return int(below.sum())


def test_a_plant_that_no_constant_action_keeps_is_kept_by_its_backup():
    assert crossed(tank_rows()) < crossed(tank_rows(backup=None))


def test_the_backup_is_as_near_as_the_actuators_reach():
    for rate, expected in ((None, 1.0), (0.3, 0.3)):
        made = tank_rows(rate={0: rate} if rate else {})
        state = ControlState(jnp.asarray([0.25, BURST]), initial_memory(made, jnp.zeros(1)))
        action, report = run(-jnp.ones(1), state, made)
        assert report.emergency & report.infeasible
        np.testing.assert_array_equal(action, np.float32([expected]))


@pytest.mark.parametrize("blind", ["obs", "backup", "latched"])
def test_who_cannot_see_the_plant_does_what_the_memory_holds_ready(blind):
    def broken(obs):
        return loop(obs) * jnp.nan

    made = tank_rows(backup=broken if blind == "backup" else loop, rate={0: 0.3})
    memory = initial_memory(made, jnp.full(1, 0.8))
    obs = jnp.asarray([0.25, np.nan if blind == "obs" else BURST])
    memory = memory.replace(latched=jnp.asarray(blind == "latched"))
    action, report = run(-jnp.ones(1), ControlState(obs, memory), made)
    assert report.emergency
    np.testing.assert_array_equal(action, memory.fallback)
    np.testing.assert_array_equal(action, emergency_action(ControlState(obs, memory), made))
    np.testing.assert_array_equal(action, np.float32([0.5]))


@pytest.mark.parametrize("what", ["policy", "previous"])
def test_a_plant_that_is_seen_has_its_backup_whatever_else_is_broken(what):
    made = tank_rows()
    memory, proposed, bad = initial_memory(made), jnp.zeros(1), jnp.full(1, jnp.nan)
    if what == "policy":
        proposed = bad
    else:
        memory = memory.replace(previous=bad)
    obs = jnp.asarray([0.5, USUAL])
    action, report = run(proposed, ControlState(obs, memory), made)
    assert report.emergency & ~report.input_finite & report.is_safe
    np.testing.assert_allclose(action, loop(obs))


def test_a_safe_proposal_passes_bit_by_bit_beside_a_backup():
    made, obs = tank_rows(), jnp.asarray([0.8, USUAL])
    proposed = jnp.asarray([0.1234567])
    action, report = run(proposed, ControlState(obs, initial_memory(made)), made)
    assert np.asarray(action).tobytes() == np.asarray(proposed).tobytes()
    assert not report.intervened | report.emergency


@pytest.mark.parametrize("rows", [8, 3 * CHUNK + 5])
def test_rows_of_a_batch_fall_back_as_they_do_alone(rows):
    """At once, and in chunks: plants that are kept, lost, blind, and stopped."""
    made, luck = tank_rows(rate={0: 0.6}), np.random.default_rng(rows)
    obs = luck.uniform([0.15, 0.2], [0.6, BURST], (rows, 2)).astype(np.float32)
    obs[1], obs[::7, 1] = (0.25, BURST), np.nan
    proposed = luck.uniform(-1.0, 1.0, (rows, 1)).astype(np.float32)
    previous = luck.uniform(-1.0, 1.0, (rows, 1)).astype(np.float32)
    previous[1] = 0.0
    memory = jax.vmap(initial_memory, (None, 0))(made, previous)
    memory = memory.replace(latched=jnp.arange(rows) % 5 == 4)
    state = ControlState(jnp.asarray(obs), memory)
    together, reports = jax.jit(filter_batch)(proposed, state, made)
    alone = [run(proposed[i], jax.tree.map(lambda x, i=i: x[i], state), made) for i in range(rows)]
    np.testing.assert_allclose(together, [action for action, _ in alone], atol=1e-6)
    emergency = np.asarray(reports.emergency)
    np.testing.assert_array_equal(emergency, [report.emergency for _, report in alone])
    blind = ~np.isfinite(obs).all(1) | np.asarray(memory.latched)
    np.testing.assert_array_equal(together[blind], memory.fallback[blind])
    differs = (together != memory.fallback)[:, 0]
    assert (emergency & differs & ~blind).any()
    assert not emergency.all()


def test_one_thing_takes_over_and_not_two():
    with pytest.raises(ValueError, match="backup: given beside a recovery procedure; one can take"):
        tank_rows(recovery=[Stage({0: 0.5}, 2)])
    text = TEXT.replace("steps: 4", "steps: 4\n  backup: loops")
    text += "recovery:\n  - {to: {feed: 80 L/min}, for: 5}\n"
    with pytest.raises(ValueError, match="backup: given beside a recovery procedure"):
        parse(text, loops=lambda obs: obs)
