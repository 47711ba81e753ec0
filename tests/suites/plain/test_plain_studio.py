"""A world of one agent played by hand: what is shown, what is paid, what is refused."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from oracles import guess
from worldloom.core.spaces import Box, Dict, Discrete
from worldloom.core.transforms import as_pure
from worldloom.suites.plain.studio import PlainSession


@pytest.fixture(scope="module")
def by_hand():
    return PlainSession(as_pure(guess.make()))


@pytest.fixture(scope="module")
def trained():
    """As of a run, whose policy names the number that is shown."""
    problem = SimpleNamespace(env=as_pure(guess.make()))
    return PlainSession(SimpleNamespace(problem=problem, act=lambda obs: obs[:, 0].astype(int)))


def test_what_is_shown_is_what_is_paid_for(by_hand):
    state = by_hand.reset(3)
    assert (state["turn"], state["total"], state["would"], state["over"]) == (0, 0.0, None, False)
    for turn in range(1, 5):
        state = by_hand.act({"action": int(state["values"][0])})
        assert (state["turn"], state["reward"], state["total"]) == (turn, 1.0, float(turn))
    assert state["over"]
    with pytest.raises(ValueError, match="the episode is over; begin another"):
        by_hand.act({"action": 0})
    assert by_hand.state() == state
    assert by_hand.reset(3)["values"] == by_hand.reset(3)["values"]
    json.dumps([by_hand.describe(), by_hand.state()], allow_nan=False)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({}, "action must be a whole number from 0 to 2"),
        ({"action": 3}, "action must be a whole number from 0 to 2"),
        ({"action": True}, "action must be a whole number"),
        ({"action": [1]}, "action must be a whole number"),
        ({"policy": 1}, "there is no policy here"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(by_hand, message, words):
    before = by_hand.reset(0)
    with pytest.raises(ValueError, match=words):
        by_hand.act(message)
    assert by_hand.state() == before


def test_the_policy_plays_as_many_steps_as_it_is_asked_for(trained):
    state = trained.reset(1)
    assert state["would"] == state["values"][0]
    assert trained.describe()["policy"] is True
    state = trained.act({"policy": 2})
    assert (state["turn"], state["total"]) == (2, 2.0)
    state = trained.act({"policy": 50})
    assert (state["turn"], state["total"], state["over"], state["would"]) == (4, 4.0, True, None)
    for steps in (0, 51, True, "1"):
        with pytest.raises(ValueError, match="policy must be a number of steps from 1 to 50"):
            trained.act({"policy": steps})


def continuous(low, high):
    """Guess with a number for an action, which is what it is paid."""
    env = as_pure(guess.make())

    def step(key, state, action, params):
        state, timestep = env.step(key, state, jnp.int32(0), params)
        return state, timestep.replace(reward=action[0])

    return replace(env, spec=replace(env.spec, action=Box(low, high, (1,))), step=step)


def test_inputs_reach_from_one_bound_to_the_other():
    session = PlainSession(continuous(-2.0, 6.0))
    session.reset(0)
    assert session.describe()["inputs"] == 1
    assert [session.act({"action": [x]})["reward"] for x in (-1, 0.0, 1)] == [-2.0, 2.0, 6.0]
    for action in (0.5, [0.5, 0.5], [1.5], [float("nan")], ["x"]):
        with pytest.raises(ValueError, match="action must be a list of 1 numbers from -1 to 1"):
            session.act({"action": action})


@pytest.mark.parametrize(
    "space", [Discrete(3, (2,)), Dict((("a", Discrete(2)),)), Box(-1, 1, (2, 2))]
)
def test_actions_that_have_no_buttons_are_refused_in_one_line(space):
    env = as_pure(guess.make())
    with pytest.raises(ValueError, match="guess: such actions cannot be chosen by hand") as refusal:
        PlainSession(replace(env, spec=replace(env.spec, action=space)))
    assert "\n" not in str(refusal.value)


def test_long_observations_are_cut_and_what_is_not_finite_is_null():
    env = as_pure(guess.make())

    def reset(key, params):
        state, first = env.reset(key, params)
        return state, first.replace(obs=jnp.full((100,), jnp.nan))

    def step(key, state, action, params):
        state, after = env.step(key, state, action, params)
        return state, after.replace(obs=jnp.full((100,), 0.5))

    spec = replace(env.spec, observation=Box(0, 1, (100,)))
    session = PlainSession(replace(env, spec=spec, reset=reset, step=step))
    state = session.reset(0)
    assert (state["values"], state["left_out"]) == ([None] * 64, 36)
    np.testing.assert_array_equal(session.act({"action": 0})["values"], [0.5] * 64)
