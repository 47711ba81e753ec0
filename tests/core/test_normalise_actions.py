"""Actions in [-1, 1] for worlds that take others."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import normalise_actions
from worldloom.core.types import TimeStep

KEY = jax.random.key(3)


def echo(action, **functions):
    """A world whose observation is the action it was given."""
    spec = EnvSpec("echo", action, action)
    no = jnp.asarray(False)

    def step(key, state, action, params):
        return state, TimeStep(action, jnp.float32(0.0), no, no, action, ())

    return PureEnv(spec, lambda: (), lambda key, params: ((), None), step, None, **functions)


@pytest.mark.parametrize(("low", "high"), [(-2.0, 2.0), (0.0, 0.1), (-3.0, 1.0), (-1.0, 1.0)])
def test_actions_are_scaled_to_the_box_and_never_leave_it(low, high):
    env = normalise_actions(echo(Box(low, high, (5,))))
    given = jnp.array([-1.0, 0.0, 1.0, -7.0, 7.0])
    _, timestep = env.step(KEY, (), given, ())
    expected = [low, (low + high) / 2, high, low, high]
    np.testing.assert_allclose(timestep.obs, np.float32(expected), atol=1e-7)
    assert Box(low, high, (5,)).contains(timestep.obs)
    assert env.spec.action == Box(-1.0, 1.0, (5,))


def test_functions_for_turns_and_for_many_worlds_are_scaled_too():
    box = Box(-4.0, 4.0, ())
    functions = {
        "step_many": lambda key, state, action, params: (state, action),
        "observe_agent": lambda state, i, params: state,
        "apply_agent": lambda key, state, i, action, params: (state, action),
        "apply_all": lambda key, state, action, params: (state, action),
    }
    env = normalise_actions(echo(box, **functions))
    assert env.turn_based
    assert env.step_many(KEY, (), 0.5, ())[1] == 2.0
    assert env.apply_agent(KEY, (), 0, 0.5, ())[1] == 2.0
    assert env.apply_all(KEY, (), 0.5, ())[1] == 2.0
    plain = normalise_actions(echo(box))
    assert plain.step_many is None
    assert not plain.turn_based


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Discrete(3), "the actions of echo are Discrete.*only a Box of floats"),
        (Box(0, 3, (2,), "int32"), "only a Box of floats can be scaled"),
        (Box(-np.inf, 1.0, (2,)), r"echo takes actions in \[-inf, 1\]; give the box finite bounds"),
    ],
)
def test_what_cannot_be_scaled_is_refused(action, message):
    env = echo(Box(-1.0, 1.0, (2,)))
    with pytest.raises(ValueError, match=message):
        normalise_actions(replace(env, spec=replace(env.spec, action=action)))
