"""Playing worlds: what is recorded, in which order agents act, and which keys they get."""

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core import draws
from worldloom.core.rollout import (
    agent_turn,
    newest_frame,
    play_turn,
    play_turns,
    run_episode_batch,
    turn_keys,
    unroll,
)
from worldloom.core.transforms import as_pure, autoreset, batch, frame_stack, time_limit
from worldloom.core.types import Turn

KEY = jax.random.key(3)
WORLDS, AGENTS, FRAMES = 4, 3, 2


def act_by_number(agent, obs, key):
    """Agent a always plays the number that it is given as parameters; what it saw is recorded."""
    return jnp.full(obs.shape[:1], agent, jnp.int32), obs[:, -1]


def act_at_random(agent, obs, key):
    """A choice that shows whose key was used, and reads the observation; it is recorded."""
    return (draws.integers(key, obs.shape[:1], 10) + obs[:, -1, 0] + agent) % 10, obs[:, -1]


def make_worlds(bell, order):
    return batch(time_limit(frame_stack(bell(AGENTS, order), FRAMES), 5), WORLDS)


@pytest.fixture(scope="module")
def interleaved(bell):
    return make_worlds(bell, "interleaved")


@pytest.fixture(scope="module")
def simultaneous(bell):
    return make_worlds(bell, "simultaneous")


def start(worlds):
    return jax.jit(worlds.reset)(KEY, ())[0]


@lru_cache
def turn_of_numbers(worlds):
    """One turn in which agents play 1, 2 and 4: (state before, state after, turn)."""
    state, agents = start(worlds), jnp.array([1, 2, 4])
    return state, *jax.jit(lambda s: play_turn(worlds, act_by_number, KEY, s, agents, ()))(state)


def tally(state) -> np.ndarray:
    return np.asarray(state.inner.inner.tally)


# unroll ------------------------------------------------------------------------------------------


def test_unroll_records_what_was_seen_done_and_answered(counter):
    env = autoreset(counter(length=3))
    params = jnp.float32(2)

    def act(obs, key):
        return (obs[1] == 1).astype(jnp.int32)  # ends every episode at its second step

    @jax.jit
    def play(key):
        state, first = env.reset(key, params)
        return first, unroll(env, act, key, state, first, params, 5)

    first, (state, last, (obs, action, after)) = play(KEY)
    assert obs.shape == (5, 2)
    assert action.shape == after.reward.shape == (5,)
    np.testing.assert_array_equal(obs[0], first.obs)
    np.testing.assert_array_equal(obs[1:], after.obs[:-1], "each step starts where one ended")
    np.testing.assert_array_equal(obs[:, 1], [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(action, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(after.terminated, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(after.reward, [2, 4, 2, 4, 2])
    np.testing.assert_array_equal(last.obs, after.obs[-1])
    assert int(state.inner.count) == 1


def test_unroll_gives_every_step_and_both_its_parts_a_key_of_their_own(counter):
    params = jnp.float32(1)
    env = as_pure(counter(length=100))

    def paid_by_key(key, state, action, params):
        state, after = env.step(key, state, action, params)
        return state, after.replace(reward=draws.uniform(key))

    def act(obs, key):
        return draws.integers(key, (), 1000)

    @jax.jit
    def play(key):
        state, first = env.reset(key, params)
        played = unroll(replace(env, step=paid_by_key), act, key, state, first, params, 6)[2]
        act_keys, step_keys = jax.vmap(draws.split)(draws.split(key, 6)).T
        actions = jax.vmap(lambda k: draws.integers(k, (), 1000))(act_keys)
        return played, (actions, jax.vmap(draws.uniform)(step_keys))

    (_, action, after), expected = play(KEY)
    jax.tree.map(np.testing.assert_array_equal, (action, after.reward), expected)
    assert len(set(action.tolist())) == 6


# One turn ----------------------------------------------------------------------------------------


def test_later_agents_see_the_moves_of_earlier_agents(interleaved):
    old, new, turn = turn_of_numbers(interleaved)
    before = tally(old)
    assert isinstance(turn, Turn)
    assert turn.record.shape == (AGENTS, WORLDS, 3)
    np.testing.assert_array_equal(turn.record[:, :, 0], before + np.array([[0], [1], [3]]))
    np.testing.assert_array_equal(turn.record[:, :, 2], np.arange(AGENTS)[:, None] + 0 * before)
    np.testing.assert_array_equal(turn.action, np.array([[1], [2], [4]]) + 0 * before)
    np.testing.assert_array_equal(tally(new), before + 7 + 100)


def test_simultaneous_agents_all_see_the_start_of_the_turn(simultaneous):
    old, new, turn = turn_of_numbers(simultaneous)
    before = tally(old)
    assert turn.record.shape == (AGENTS, WORLDS, 3)
    np.testing.assert_array_equal(turn.record[:, :, 0], before + np.zeros((AGENTS, 1)))
    np.testing.assert_array_equal(turn.action, np.array([[1], [2], [4]]) + 0 * before)
    np.testing.assert_array_equal(tally(new), before + 7 + 100)


@pytest.mark.parametrize("order", ["interleaved", "simultaneous"])
def test_rewards_that_an_act_pays_to_others_reach_them(order, request):
    _, _, turn = turn_of_numbers(request.getfixturevalue(order))
    assert turn.reward.shape == (AGENTS, WORLDS)
    np.testing.assert_array_equal(turn.reward, np.array([[1 + 3.5], [2], [4]]) + np.zeros(WORLDS))


def test_a_turn_is_its_agents_turns_one_by_one(interleaved):
    """What the sequential mode does by hand is what the scan does."""
    agents = jnp.arange(AGENTS)
    state = start(interleaved)
    whole = jax.jit(lambda s: play_turn(interleaved, act_at_random, KEY, s, agents, ()))(state)
    one = jax.jit(lambda k, s, i: agent_turn(interleaved, act_at_random, k, s, i, agents[i], ()))
    keys, world_key = turn_keys(KEY, AGENTS)
    rows = []
    for i in range(AGENTS):
        state, row = one(keys[i], state, jnp.int32(i))
        rows.append(row)
    record, action, paid = (jnp.stack(part) for part in zip(*rows, strict=True))
    end_key = draws.split(world_key)[1]
    state, terminated, truncated = jax.jit(interleaved.end_turn)(end_key, state, ())
    by_hand = Turn(record, action, paid.sum(axis=0).T, terminated, truncated)
    jax.tree.map(np.testing.assert_array_equal, whole, (state, by_hand))


@pytest.mark.parametrize("order", ["interleaved", "simultaneous"])
def test_agents_choose_with_the_keys_that_turn_keys_gives_them(order, request):
    worlds = request.getfixturevalue(order)

    def act(agent, obs, key):
        return draws.integers(key, obs.shape[:1], 10), ()

    agents = jnp.zeros(AGENTS)
    _, turn = jax.jit(lambda s: play_turn(worlds, act, KEY, s, agents, ()))(start(worlds))
    keys, _ = turn_keys(KEY, AGENTS)
    for i in range(AGENTS):
        choose_key, _ = draws.split(keys[i])
        np.testing.assert_array_equal(turn.action[i], draws.integers(choose_key, (WORLDS,), 10))


# Many turns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["interleaved", "simultaneous"])
def test_many_turns_are_one_turn_many_times(order, request):
    worlds = request.getfixturevalue(order)
    agents = jnp.arange(AGENTS)
    keys = jax.random.split(KEY, 6)
    state = start(worlds)

    def watch(state):
        return state.inner.inner.tally

    many = jax.jit(lambda s: play_turns(worlds, act_at_random, keys, s, agents, (), watch))
    once = jax.jit(lambda k, s: play_turn(worlds, act_at_random, k, s, agents, ()))
    last, turns, watched = many(state)
    rows, seen = [], []
    for key in keys:
        seen.append(tally(state))
        state, turn = once(key, state)
        rows.append(turn)
    by_hand = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    jax.tree.map(np.testing.assert_array_equal, (last, turns), (state, by_hand))
    np.testing.assert_array_equal(watched, seen, "watched before each turn")
    np.testing.assert_array_equal(turns.truncated[:, 0], [0, 0, 0, 0, 1, 1])


def test_an_episode_batch_is_a_reset_and_its_turns(interleaved):
    agents = jnp.arange(AGENTS)

    @jax.jit
    def both(key):
        whole = run_episode_batch(interleaved, act_at_random, key, agents, (), 5)
        reset_key, play_key = draws.split(key)
        state, _ = interleaved.reset(reset_key, ())
        keys = draws.split(play_key, 5)
        return whole, play_turns(interleaved, act_at_random, keys, state, agents, ())

    whole, by_hand = both(KEY)
    jax.tree.map(np.testing.assert_array_equal, whole, by_hand)
    assert whole[1].record.shape == (5, AGENTS, WORLDS, 3)
    assert whole[1].truncated[-1].all()


def test_a_turn_needs_a_world_whose_turns_can_be_taken_apart(bell):
    worlds = batch(autoreset(frame_stack(bell(), FRAMES)), 2)
    state, _ = worlds.reset(KEY, ())
    with pytest.raises(TypeError, match="no turns that can be taken apart"):
        play_turn(worlds, act_by_number, KEY, state, jnp.zeros(AGENTS), ())


def test_a_turn_needs_a_world_that_says_in_which_order_its_agents_act(bell):
    worlds = batch(frame_stack(bell(turn_order=None), FRAMES), 2)
    state, _ = worlds.reset(KEY, ())
    with pytest.raises(ValueError, match="bell: turn_order=None, so it has no turns to play"):
        play_turn(worlds, act_by_number, KEY, state, jnp.zeros(AGENTS), ())


def test_the_newest_frame_is_the_last_of_a_stack(interleaved):
    obs = interleaved.observe_agent(start(interleaved), 1, ())
    assert obs.shape == (WORLDS, FRAMES, 3)
    np.testing.assert_array_equal(newest_frame(interleaved.spec, obs), obs[:, -1])


def test_the_newest_frame_needs_a_world_of_frame_stacks(bell):
    worlds = batch(bell(AGENTS), 2)
    state, _ = worlds.reset(KEY, ())
    complaint = (
        r"bell: an observation of \(3,\) is no stack of num_frames=1; wrap .* in frame_stack"
    )
    with pytest.raises(ValueError, match=complaint):
        newest_frame(worlds.spec, worlds.observe_agent(state, 0, ()))


def test_an_unknown_order_of_turns_is_refused(bell):
    with pytest.raises(ValueError, match="bell: turn_order='at once'; use 'interleaved' or"):
        _ = bell(turn_order="at once").spec
