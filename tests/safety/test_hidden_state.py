"""A model that needs more than is observed: the filter remembers the rest, and follows it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.safety import ControlState, filter_action, filter_batch, initial_memory
from worldloom.safety.constraints import StateRow, make_constraints
from worldloom.safety.filter import after_emergency, validate_constraints

DEAD_TIME = 3  # steps, in which a level does not show what flows towards it
GAIN = 0.2


def pipe(x, u):
    """A level, and beside it what is on its way there."""
    level, first, *others = x
    return jnp.stack([level + GAIN * first, *others, u[0]])


@pytest.fixture(scope="module")
def constraints():
    return make_constraints(
        1,
        [0.0],
        lookahead=[StateRow("level", [-1.0], 1.0)],
        horizon=DEAD_TIME + 2,
        model=pipe,
        hidden=lambda obs: jnp.zeros(DEAD_TIME),
        latch_after=0,
    )


def test_what_is_under_way_is_counted_and_no_more_than_that(constraints):
    """Somebody who fills up stops as soon as what is in the pipe fills the rest, and not before."""

    def step(carry, _):
        x, memory = carry
        action, report = filter_action(jnp.ones(1), ControlState(x[:1], memory), constraints)
        return (pipe(x, action), report.memory), (x[0], report.emergency)

    start = (jnp.zeros(1 + DEAD_TIME), initial_memory(constraints))
    _, (level, emergency) = jax.jit(lambda: jax.lax.scan(step, start, None, length=20))()
    assert level.max() <= 1.0 + 1e-5
    assert level[-1] > 0.999
    assert not emergency.any()


def test_rows_of_a_batch_are_followed_each_by_itself(constraints):
    memory = jax.vmap(initial_memory, (None, 0))(constraints, jnp.zeros((2, 1)))
    obs, proposed = jnp.asarray([[0.0], [0.5]]), jnp.ones((2, 1))
    for _ in range(DEAD_TIME):  # nothing shows yet
        action, report = filter_batch(proposed, ControlState(obs, memory), constraints)
        memory = report.memory
    np.testing.assert_allclose(memory.estimate[0], [0.0, 0.0, 1.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(action[:, 0], [1.0, 0.5], atol=1e-3)  # 0.5 + 0.2 (1 + 1 + 0.5) = 1


def test_what_was_executed_without_the_filter_is_counted(constraints):
    """After an answer that came too late the action before it is still on its way."""
    memory = filter_action(
        jnp.ones(1), ControlState(jnp.zeros(1), initial_memory(constraints)), constraints
    )[1].memory
    memory = after_emergency(after_emergency(memory, constraints), constraints)
    np.testing.assert_allclose(memory.estimate, [0.0, 0.0, 1.0, 0.0])
    late = after_emergency(initial_memory(constraints), constraints)
    assert not jnp.isfinite(late.estimate).any()  # nobody has seen this plant yet


def test_a_sensor_that_fails_for_a_step_makes_nothing_forgotten(constraints):
    state = ControlState(jnp.zeros(1), initial_memory(constraints))
    memory = filter_action(jnp.ones(1), state, constraints)[1].memory
    action, report = filter_action(
        jnp.ones(1), ControlState(jnp.full(1, jnp.nan), memory), constraints
    )
    assert report.emergency
    np.testing.assert_allclose(report.memory.estimate, [0.0, 0.0, 0.0, 1.0])
    assert not action.any()


def test_an_action_is_judged_by_what_is_under_way(constraints):
    memory = initial_memory(constraints).replace(
        estimate=jnp.asarray([0.3, 1.0, 1.0, 1.0]), previous=jnp.zeros(1)
    )
    state = ControlState(jnp.asarray([0.5]), memory)  # two of the three are still to come
    assert validate_constraints(state, jnp.asarray([0.4]), constraints).is_safe
    assert not validate_constraints(state, jnp.asarray([0.6]), constraints).is_safe
