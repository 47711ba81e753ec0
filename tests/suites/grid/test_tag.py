"""The rules of tag, in both turn orders."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, RIGHT, UP, picture, scene

from worldloom.suites.grid import tag

KEY = jax.random.key(0)
STAY = 99
VALUE, COST = 2.0, 0.25
ORDERS = ("interleaved", "simultaneous")
WORLDS = {
    order: tag.world(
        height=4, width=6, num_agents=3, tag_value=VALUE, it_cost=COST, turn_order=order
    )
    for order in ORDERS
}
PARAMS = WORLDS["interleaved"].default_params()


@pytest.fixture(scope="module")
def steps():
    return {order: jax.jit(world.apply_all) for order, world in WORLDS.items()}


@pytest.fixture(scope="module")
def end_turn():
    return jax.jit(WORLDS["interleaved"].end_turn)


@pytest.fixture(scope="module")
def turn(steps):
    """One turn, without its end: (state, rewards)."""

    def play(order, before, it, *actions):
        extra = tag.TagState(jnp.int32(it), jnp.asarray(False))
        state = tag.draw(WORLDS[order], scene(WORLDS[order], before, extra))
        return steps[order](KEY, state, jnp.array(actions), PARAMS)

    return play


def kinds_of_agents(state) -> list[str]:
    world = WORLDS["interleaved"]
    return [world.kinds[state.layers[-1, y, x]].name for y, x in np.asarray(state.position)]


@pytest.mark.parametrize("order", ORDERS)
def test_walking_into_an_agent_passes_the_tag(turn, order):
    before = "###### #01..# #...2# ######"
    state, reward = turn(order, before, 0, RIGHT, STAY, STAY)
    assert int(state.extra.it) == 1
    assert reward.tolist() == [VALUE - COST, -VALUE, 0.0]
    assert picture(WORLDS[order], state) == before
    assert kinds_of_agents(state) == ["Agent", "It", "Agent"]


@pytest.mark.parametrize("order", ORDERS)
def test_only_the_agent_that_is_it_tags(turn, order):
    state, reward = turn(order, "###### #01..# #...2# ######", 2, RIGHT, LEFT, UP)
    assert int(state.extra.it) == 2
    assert reward.tolist() == [0.0, 0.0, -COST]


@pytest.mark.parametrize("order", ORDERS)
def test_who_is_it_is_seen_where_it_goes(turn, order):
    state, reward = turn(order, "###### #0..1# #...2# ######", 0, RIGHT, UP, DOWN)
    assert picture(WORLDS[order], state) == "###### #.0.1# #...2# ######"
    assert kinds_of_agents(state) == ["It", "Agent", "Agent"]
    assert reward.tolist() == [-COST, 0.0, 0.0]


@pytest.mark.parametrize("order", ORDERS)
def test_the_tag_passes_only_once_a_turn(turn, order):
    """Agent 1 is tagged and walks into agent 0 in the same turn: no tag, no cost yet."""
    state, reward = turn(order, "###### #01..# #...2# ######", 0, RIGHT, LEFT, STAY)
    assert int(state.extra.it) == 1
    assert reward.tolist() == [VALUE - COST, -VALUE, 0.0]


def test_a_new_turn_lets_the_tag_pass_again(turn, steps, end_turn):
    state, _ = turn("interleaved", "###### #01..# #...2# ######", 0, RIGHT, STAY, STAY)
    assert bool(state.extra.passed)
    state, terminated, _ = end_turn(KEY, state, PARAMS)
    assert not bool(terminated)
    state, reward = steps["interleaved"](KEY, state, jnp.array([STAY, LEFT, STAY]), PARAMS)
    assert int(state.extra.it) == 0
    assert reward.tolist() == [-VALUE, VALUE - COST, 0.0]


def test_with_simultaneous_turns_who_leaves_in_time_gets_away(turn):
    state, reward = turn("simultaneous", "###### #01..# #...2# ######", 0, RIGHT, RIGHT, STAY)
    assert int(state.extra.it) == 0
    assert reward.tolist() == [-COST, 0.0, 0.0]


def test_with_interleaved_turns_an_earlier_agent_gets_away_and_a_later_one_does_not(turn):
    state, _ = turn("interleaved", "###### #10..# #...2# ######", 1, RIGHT, RIGHT, STAY)
    assert int(state.extra.it) == 1  # agent 0 moved before agent 1 struck
    state, _ = turn("interleaved", "###### #01..# #...2# ######", 0, RIGHT, RIGHT, STAY)
    assert int(state.extra.it) == 1


def test_every_agent_starts_as_it_equally_often_and_is_seen_as_it():
    world = WORLDS["interleaved"]
    reset = jax.jit(jax.vmap(lambda key: world.reset(key, PARAMS)[0]))
    states = reset(jax.random.split(jax.random.key(1), 600))
    counts = np.bincount(np.asarray(states.extra.it), minlength=3)
    assert np.abs(counts - 200).max() < 5 * np.sqrt(600 * 2 / 9)
    tops = np.asarray(states.layers[:, -1])
    assert ((tops == world.index["It"]).sum(axis=(1, 2)) == 1).all()
    assert ((tops == world.index["Agent"]).sum(axis=(1, 2)) == 2).all()
    own = np.asarray(states.position)[np.arange(600), np.asarray(states.extra.it)]
    assert (tops[np.arange(600), own[:, 0], own[:, 1]] == world.index["It"]).all()


def test_the_numbers_of_the_world_can_be_swept():
    state = tag.draw(
        WORLDS["interleaved"],
        scene(
            WORLDS["interleaved"],
            "###### #01..# #...2# ######",
            tag.TagState(jnp.int32(0), jnp.asarray(False)),
        ),
    )

    def first_reward(value):
        params = PARAMS.replace(extra=PARAMS.extra.replace(tag_value=value))
        actions = jnp.array([RIGHT, STAY, STAY])
        return WORLDS["interleaved"].apply_all(KEY, state, actions, params)[1]

    rewards = jax.jit(jax.vmap(first_reward))(jnp.array([1.0, 3.0]))
    assert rewards.tolist() == [[1.0 - COST, -1.0, 0.0], [3.0 - COST, -3.0, 0.0]]


def test_tag_takes_two():
    with pytest.raises(ValueError, match="tag: num_agents=1; it takes at least 2"):
        tag.world(num_agents=1)
    assert replace(tag.world(num_agents=2), radius=1).frame_shape == (4, 3, 3)
