"""Simultaneous turns: all look, then all move. Each rule alone, then all of them at once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import DOWN, LEFT, RIGHT, UP, picture, scene

from worldloom.core.transforms import frame_stack
from worldloom.suites.grid.kinds import Kind, bordered
from worldloom.suites.grid.world import MOVES, OFFSETS, GridWorld

KINDS = (
    Kind("Empty", ".", (0, 0, 0)),
    Kind("Wall", "#", (90, 90, 90), value=-1.0, passable=False),
    Kind("Gem", "*", (0, 200, 200), value=10.0),
    Kind("Bell", "B", (200, 200, 0), value=4.0, passable=False),
    Kind("Agent", "A", (0, 0, 200), passable=False),
)
WORLD = GridWorld(
    "room", KINDS, (bordered(5, 6, "#", "."),), num_agents=3, turn_order="simultaneous"
)
PARAMS = WORLD.default_params()
KEY = jax.random.key(0)
STAY = 99  # no action: the agent stands still


@pytest.fixture(scope="module")
def step():
    return jax.jit(lambda state, action: WORLD.apply_all(KEY, state, action, PARAMS))


@pytest.fixture(scope="module")
def turn(step):
    """One turn: (picture after, rewards)."""

    def play(before, *actions):
        state, reward = step(scene(WORLD, before), jnp.array(actions))
        return picture(WORLD, state), reward.tolist()

    return play


def test_moves_into_free_cells_that_nobody_else_wants_succeed(turn):
    after, reward = turn("###### #0..1# #....# #2..*# ######", RIGHT, LEFT, RIGHT)
    assert after == "###### #.01.# #....# #.2.*# ######"
    assert reward == [0.0, 0.0, 0.0]


def test_a_cell_wanted_by_two_is_entered_by_none(turn):
    after, reward = turn("###### #0.1.# #....# #2...# ######", RIGHT, LEFT, RIGHT)
    assert after == "###### #0.1.# #....# #.2..# ######"
    assert reward == [0.0, 0.0, 0.0]


def test_a_cell_wanted_by_three_is_entered_by_none(turn):
    before = "###### #.0..# #1.2.# #....# ######"
    assert turn(before, DOWN, RIGHT, LEFT) == (before, [0.0, 0.0, 0.0])


def test_an_item_that_two_want_stays_and_pays_nothing(turn):
    before = "###### #0*1.# #....# #2...# ######"
    assert turn(before, RIGHT, LEFT, STAY) == (before, [0.0, 0.0, 0.0])


def test_an_item_that_one_wants_is_taken(turn):
    after, reward = turn("###### #0*1.# #....# #2...# ######", RIGHT, RIGHT, STAY)
    assert after == "###### #.0.1# #....# #2...# ######"
    assert reward == [10.0, 0.0, 0.0]


def test_a_cell_occupied_at_the_start_of_the_turn_cannot_be_entered(turn):
    before = "###### #01..# #....# #2...# ######"
    assert turn(before, RIGHT, STAY, STAY) == (before, [0.0, 0.0, 0.0])


def test_following_into_a_cell_that_is_just_left_fails(turn):
    after, _ = turn("###### #012.# #....# #....# ######", RIGHT, RIGHT, RIGHT)
    assert after == "###### #01.2# #....# #....# ######"


def test_a_swap_fails_for_both(turn):
    before = "###### #01..# #....# #2...# ######"
    assert turn(before, RIGHT, LEFT, STAY) == (before, [0.0, 0.0, 0.0])


def test_walls_cost_as_ever_also_when_two_bump_into_the_same_one(turn):
    before = "###### #0B1.# #....# #2...# ######"
    assert turn(before, UP, UP, LEFT) == (before, [-1.0, -1.0, -1.0])
    # A solid thing is no item that could be taken: each who bumps into it is paid.
    assert turn(before, RIGHT, LEFT, STAY) == (before, [4.0, 4.0, 0.0])


def test_an_agent_that_stands_on_a_cell_does_not_contest_the_cells_around_it(turn):
    after, reward = turn("###### #0*1.# #....# #2...# ######", RIGHT, STAY, STAY)
    assert after == "###### #.01.# #....# #2...# ######"
    assert reward == [10.0, 0.0, 0.0]


def test_nobody_sees_the_moves_of_this_turn():
    """With frame stacks: what is remembered of a turn is what all saw before anybody moved."""
    env = frame_stack(WORLD, 2)
    state, first = jax.jit(env.reset)(jax.random.key(3), PARAMS)
    actions = jnp.array([UP, LEFT, RIGHT])
    _, after = jax.jit(env.step)(jax.random.key(4), state, actions, PARAMS)
    assert np.array_equal(after.obs[:, 0], first.obs[:, 1])


def test_all_have_moved_before_anybody_interacts():
    def interact(world, key, state, act, params):
        order = state.extra.at[act.agent].set(state.position.sum())
        return state.replace(extra=order), jnp.eye(3)[act.agent] * act.met

    world = replace(WORLD, actions=(*MOVES, "look"), interact=interact)
    state = scene(world, "###### #0..1# #....# #2*..# ######", extra=jnp.zeros(3, jnp.int32))
    state, reward = jax.jit(world.apply_all)(KEY, state, jnp.array([RIGHT, DOWN, RIGHT]), PARAMS)
    moved = 1 + 2 + 2 + 4 + 3 + 2
    assert state.extra.tolist() == [moved, moved, moved]
    assert reward.tolist() == [0.0, 0.0, 10.0 + world.index["Gem"]]  # `met` is from before the move


def expected_turn(top: np.ndarray, position: np.ndarray, action: np.ndarray):
    """The rules again, written for one agent at a time with nothing but loops."""
    values = [kind.value for kind in KINDS]
    moves = [0 <= a < 4 for a in action]
    targets = [tuple(p + OFFSETS[a]) if m else None
               for p, a, m in zip(position, action, moves, strict=True)]  # fmt: skip
    reward, there = np.zeros(3), position.copy()
    for i in range(3):
        if not moves[i]:
            continue
        kind = top[targets[i]]
        rivals = sum(target == targets[i] for target in targets) - 1
        if not KINDS[kind].passable:
            reward[i] = values[kind]
        elif rivals == 0:
            reward[i] = values[kind]
            there[i] = targets[i]
    after = top.copy()
    for y, x in position:
        after[y, x] = 0
    for y, x in there:
        after[y, x] = WORLD.index["Agent"]
    return after, there, reward


def test_random_turns_follow_the_rules(step):
    """Four by three cells for three agents: contests, swaps and queues happen all the time."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        top = WORLD.start_layers[-1].copy()
        cells = rng.permutation(WORLD.start_cells)
        for y, x in cells[3:]:
            top[y, x] = rng.choice([0, 0, WORLD.index["Gem"], WORLD.index["Bell"]])
        for y, x in cells[:3]:
            top[y, x] = WORLD.index["Agent"]
        action = rng.integers(0, 5, size=3)
        state = scene(WORLD, "###### #0..1# #....# #2...# ######")
        state = state.replace(layers=jnp.asarray(top)[None], position=jnp.asarray(cells[:3]))
        state, reward = step(state, jnp.asarray(action, jnp.int32))
        after, there, paid = expected_turn(top, cells[:3], action)
        assert np.array_equal(state.layers[0], after)
        assert np.array_equal(state.position, there)
        assert np.array_equal(reward, paid)
