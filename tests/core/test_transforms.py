"""Functions from environment to environment, on worlds worked out by hand (see conftest)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Discrete
from worldloom.core.transforms import (
    TimeLimitState,
    as_pure,
    autoreset,
    autoreset_batch,
    base_state,
    batch,
    episode_stats,
    frame_stack,
    time_limit,
)
from worldloom.core.types import TimeStep

KEY = jax.random.key(7)


def run(env, actions, key=KEY):
    """Reset, then one step for each row of `actions`: (first time step, time steps (T, ...))."""

    @jax.jit
    def whole(key, actions):
        reset_key, step_key = jax.random.split(key)
        params = env.default_params()
        state, first = env.reset(reset_key, params)

        def one(state, x):
            k, action = x
            return env.step(k, state, action, params)

        keys = jax.random.split(step_key, len(actions))
        return first, jax.lax.scan(one, state, (keys, actions))[1]

    return whole(key, jnp.asarray(actions, jnp.int32))


def assert_trees_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, as_data(a), as_data(b))


def as_data(tree):
    """Typed keys as their numbers, so that numpy can compare them."""

    def data(x):
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return jax.tree.map(data, tree)


# as_pure -----------------------------------------------------------------------------------------


def test_as_pure_gathers_the_functions_of_a_world_and_leaves_a_pure_one_alone(bell, counter):
    world = bell()
    pure = as_pure(world)
    assert isinstance(pure, PureEnv)
    assert pure.turn_based
    assert pure.base is world
    assert as_pure(pure) is pure
    assert not as_pure(counter()).turn_based


def test_a_turn_of_a_world_without_turns_says_so(counter):
    with pytest.raises(TypeError, match="no turns that can be taken apart"):
        as_pure(counter()).observe_agent(None, 0, ())


def test_base_state_digs_through_all_transforms(bell):
    env = episode_stats(autoreset(time_limit(frame_stack(bell(), 2), 3)))
    state, _ = jax.jit(env.reset)(KEY, ())
    assert type(base_state(state)).__name__ == "BellState"
    assert env.base == bell()


def test_base_state_leaves_a_world_its_own_inner(counter):
    class Nested(struct.PyTreeNode):
        inner: jax.Array

    own = Nested(jnp.int32(3))
    assert base_state(own) is own
    assert base_state(TimeLimitState(own, jnp.int32(0))) is own


# time_limit --------------------------------------------------------------------------------------


def test_time_runs_out_exactly_at_the_horizon(counter):
    env = time_limit(counter(length=100), 4)
    _, steps = run(env, [0] * 5)
    np.testing.assert_array_equal(steps.truncated, [False, False, False, True, True])
    assert not steps.terminated.any()
    assert env.spec.horizon == 4


def test_the_end_of_the_task_is_never_also_a_truncation(counter):
    _, steps = run(time_limit(counter(length=4), 4), [0] * 4)
    np.testing.assert_array_equal(steps.terminated, [False, False, False, True])
    assert not steps.truncated.any()


def test_a_turn_based_world_has_its_time_limit_in_end_turn(bell):
    env = time_limit(bell(), 2)
    assert env.turn_based
    state, _ = env.reset(KEY, ())
    state, _, early = env.end_turn(KEY, state, ())
    state, over, late = env.end_turn(KEY, state, ())
    assert (bool(early), bool(late), bool(over)) == (False, True, False)


def test_a_turn_based_world_that_ends_is_not_truncated(bell):
    env = time_limit(bell(limit=100), 1)
    state, _ = env.reset(KEY, ())
    _, terminated, truncated = env.end_turn(KEY, state, ())
    assert terminated
    assert not truncated


def test_of_two_limits_the_shorter_is_the_horizon(counter):
    inner_first = time_limit(time_limit(counter(100), 3), 9)
    outer_first = time_limit(time_limit(counter(100), 9), 3)
    for env in (inner_first, outer_first):
        assert env.spec.horizon == 3
        assert run(env, [0] * 3)[1].truncated.tolist() == [False, False, True]


# frame_stack -------------------------------------------------------------------------------------


def test_a_stack_starts_from_zeros_and_is_oldest_first(bell):
    env = frame_stack(bell(num_agents=1), 3)
    first, steps = run(env, [[1], [2], [3], [4]])
    assert env.spec.observation.shape == (3, 3)
    assert env.spec.num_frames == 3
    tally = int(first.obs[0, -1, 0])
    tallies = [tally, tally + 101, tally + 203, tally + 306, tally + 410]
    assert first.obs[0, :, 0].tolist() == [0, 0, tallies[0]]
    assert not first.obs[0, :2].any()
    assert steps.obs[0, 0, :, 0].tolist() == [0, *tallies[:2]]
    for t in range(1, 4):
        assert steps.obs[t, 0, :, 0].tolist() == tallies[t - 1 : t + 2]


def test_interleaved_agents_remember_what_they_saw_on_their_own_turn(bell):
    env = frame_stack(bell(num_agents=3), 2)
    first, steps = run(env, [[1, 2, 3]])
    tally = int(first.obs[0, -1, 0])
    assert steps.obs[0, :, 0, 0].tolist() == [tally, tally + 1, tally + 3]
    assert steps.obs[0, :, 1, 0].tolist() == [tally + 106] * 3


def test_simultaneous_agents_remember_the_start_of_the_turn(bell):
    env = frame_stack(bell(num_agents=3, turn_order="simultaneous"), 2)
    first, steps = run(env, [[1, 2, 3]])
    tally = int(first.obs[0, -1, 0])
    assert steps.obs[0, :, 0, 0].tolist() == [tally] * 3


def test_no_frame_leaks_into_the_next_episode(bell):
    env = autoreset(time_limit(frame_stack(bell(num_agents=2), 3), 2))
    _, steps = run(env, [[1, 1]] * 4)
    done = np.asarray(steps.truncated)
    assert done.tolist() == [False, True, False, True]
    assert not steps.obs[1, :, :2].any(), "the first stack of an episode has no past"
    assert steps.obs[1, :, 2, 0].max() < 50, "a start, before the world's first move"
    assert steps.final_obs[1, :, 2, 0].min() >= 200, "while the last one is kept apart"
    assert not steps.obs[2, :, 0].any()


def test_one_frame_is_a_stack_of_one(bell):
    env = frame_stack(bell(), 1)
    first, steps = run(env, [[1, 2, 3]])
    plain_first, plain_steps = run(as_pure(bell()), [[1, 2, 3]])
    np.testing.assert_array_equal(first.obs[:, 0], plain_first.obs)
    np.testing.assert_array_equal(steps.obs[:, :, 0], plain_steps.obs)
    np.testing.assert_array_equal(steps.reward, plain_steps.reward)


# batch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("worlds", [1, 4])
def test_each_world_of_a_batch_equals_a_world_alone_with_its_split_key(bell, worlds):
    one = time_limit(frame_stack(bell(), 2), 5)
    many = batch(one, worlds)
    keys = draws.split(KEY, worlds)
    actions = jnp.arange(worlds * 3, dtype=jnp.int32).reshape(worlds, 3) % 10

    @jax.jit
    def alone(key, action):
        state, first = one.reset(key, ())
        seen = one.observe_agent(state, 1, ())
        acted = one.apply_agent(key, state, 2, action[2], ())
        return first, seen, acted, one.end_turn(key, state, ()), one.step(key, state, action, ())

    @jax.jit
    def together(key, actions):
        state, first = many.reset(key, ())
        seen = many.observe_agent(state, 1, ())
        acted = many.apply_agent(key, state, 2, actions[:, 2], ())
        return first, seen, acted, many.end_turn(key, state, ()), many.step(key, state, actions, ())

    result = together(KEY, actions)
    for w in range(worlds):
        here = jax.tree.map(lambda x, w=w: x[w], result)
        assert_trees_equal(here, alone(keys[w], actions[w]))


def test_worlds_of_a_batch_differ(counter):
    _, first = jax.jit(batch(counter(), 8).reset)(KEY, jnp.float32(1))
    assert len(set(first.obs[:, 0].tolist())) > 4


# autoreset ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fresh", "cached", "pool"])
def test_a_new_episode_starts_where_one_ended_and_final_obs_keeps_the_end(counter, mode):
    env = autoreset(counter(length=3), mode, pool_size=5)
    first, steps = run(env, [0] * 7)
    np.testing.assert_array_equal(steps.terminated, [0, 0, 1, 0, 0, 1, 0])
    np.testing.assert_array_equal(steps.obs[:, 1], [1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(steps.final_obs[:, 1], [1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(steps.reward, [1, 2, 3, 1, 2, 3, 1])
    np.testing.assert_array_equal(steps.info.count, [1, 2, 3, 1, 2, 3, 1])
    starts = [int(first.obs[0]), *steps.obs[:, 0].tolist()]
    assert starts[0] == starts[1] == starts[2], "an episode keeps its start"
    assert starts[3] == starts[4] == starts[5]
    assert steps.final_obs[2, 0] == starts[0], "the last observation is of the old episode"


def starts_of(env, episodes: int, key=KEY) -> list[int]:
    """Where each of many one-step episodes started."""
    first, steps = run(env, [1] * episodes, key)
    return [int(first.obs[0]), *steps.obs[:, 0].tolist()]


def test_fresh_starts_are_all_new(counter):
    assert len(set(starts_of(autoreset(counter()), 40))) > 30


def test_cached_returns_to_the_same_start(counter):
    env = autoreset(counter(), "cached")
    assert len(set(starts_of(env, 10))) == 1
    assert starts_of(env, 1) != starts_of(env, 1, jax.random.key(8)), "but each key has its own"


def test_a_pool_offers_a_few_starts_and_uses_them_all(counter):
    env = autoreset(counter(), "pool", pool_size=4)
    state, _ = jax.jit(env.reset)(jax.random.split(KEY)[0], jnp.float32(1))
    pool = set(np.asarray(state.starts[0].start).tolist())
    assert len(pool) == 4
    assert set(starts_of(env, 60)) == pool


def test_the_keys_of_a_world_start_over_with_it(counter):
    env = autoreset(counter(), "cached")
    params = jnp.float32(1)
    state, _ = jax.jit(env.reset)(KEY, params)
    after, _ = jax.jit(env.step)(jax.random.key(1), state, jnp.int32(1), params)
    assert_trees_equal(after.inner, state.inner)


def test_the_clock_starts_over_with_each_episode(counter):
    _, steps = run(autoreset(time_limit(counter(length=100), 3)), [0] * 7)
    np.testing.assert_array_equal(steps.truncated, [0, 0, 1, 0, 0, 1, 0])


def test_autoreset_over_a_batch_restarts_only_the_worlds_that_ended(counter):
    env = autoreset(batch(counter(length=50), 3))
    _, steps = run(env, [[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(steps.obs[:, :, 1], [[1, 1, 1], [2, 0, 2], [3, 1, 3]])


@pytest.mark.parametrize("chunk", [1, 2, 32])
def test_a_batch_starts_anew_just_the_worlds_that_ended(counter, chunk):
    inner = counter(length=50)
    env = autoreset_batch(inner, 3, chunk)
    actions = [[0, 0, 0], [1, 1, 0], [0, 0, 1]]
    _, steps = run(env, actions)
    np.testing.assert_array_equal(steps.obs[:, :, 1], [[1, 1, 1], [0, 0, 2], [1, 1, 0]])
    np.testing.assert_array_equal(steps.final_obs[:, :, 1], [[1, 1, 1], [2, 2, 2], [1, 1, 3]])
    np.testing.assert_array_equal(steps.terminated, [[0, 0, 0], [1, 1, 0], [0, 0, 1]])
    # What starts anew is what a reset with that world's own key gives, state and all.
    params = env.default_params()
    state, _ = env.reset(KEY, params)
    after, timestep = jax.jit(env.step)(KEY, state, jnp.asarray([0, 1, 0]), params)
    _, start_key = draws.split(KEY)
    fresh, fresh_step = jax.vmap(inner.reset, (0, None))(draws.split(start_key, 3), params)
    assert_trees_equal(
        jax.tree.map(lambda x: x[1], (after, timestep.obs)),
        jax.tree.map(lambda x: x[1], (fresh, fresh_step.obs)),
    )


# episode_stats -----------------------------------------------------------------------------------


def test_return_and_length_are_counted_across_autoresets(counter):
    env = episode_stats(autoreset(counter(length=3)))
    first, steps = run(env, [0, 0, 0, 0, 1, 0])
    info = steps.info
    assert first.info.episode_length == 0
    np.testing.assert_array_equal(info.episode_return, [1, 3, 0, 1, 0, 1])
    np.testing.assert_array_equal(info.episode_length, [1, 2, 0, 1, 0, 1])
    np.testing.assert_array_equal(info.last_return, [0, 0, 6, 6, 3, 3])
    np.testing.assert_array_equal(info.last_length, [0, 0, 3, 3, 2, 2])
    np.testing.assert_array_equal(info.inner.count, [1, 2, 3, 1, 2, 1], "the world's own info")


def test_every_agent_has_a_return_of_its_own(bell):
    env = episode_stats(autoreset(time_limit(bell(), 2)))
    _, steps = run(env, [[1, 2, 3], [4, 5, 6]])
    # Agent 0 also gets half of every act.
    np.testing.assert_array_equal(steps.info.episode_return[0], [1 + 3, 2, 3])
    np.testing.assert_array_equal(steps.info.last_return[1], [4 + 4 + 7.5, 2 + 5, 3 + 6])


@pytest.mark.parametrize("worlds", [2, 3])
def test_stats_outside_of_a_batch_equal_stats_inside(bell, worlds):
    # With as many worlds as agents, a mask over worlds could be mistaken for one over agents.
    ends_early = autoreset(bell(num_agents=3, limit=230))
    rows = np.random.default_rng(0).integers(0, 10, (6, worlds, 3))
    _, outside = run(episode_stats(batch(ends_early, worlds)), rows)
    _, inside = run(batch(episode_stats(ends_early), worlds), rows)
    assert outside.terminated.any()
    assert not outside.terminated.all()
    for name in ("episode_return", "episode_length", "last_return", "last_length"):
        np.testing.assert_array_equal(getattr(outside.info, name), getattr(inside.info, name))


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda env: time_limit(env, 0), "time_limit: horizon=0"),
        (lambda env: frame_stack(env, 0), "frame_stack: num_frames=0"),
        (lambda env: batch(env, 0), "batch: num_worlds=0"),
        (lambda env: autoreset(env, "often"), "autoreset: mode='often'; use 'fresh'"),
        (lambda env: autoreset(env, "pool", pool_size=0), "autoreset: pool_size=0"),
        (lambda env: frame_stack(autoreset(env), 2), "frame_stack: bell is not a turn-based"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(bell, transform, message):
    with pytest.raises(ValueError, match=message):
        transform(bell())


def test_frame_stack_needs_turns(counter):
    with pytest.raises(ValueError, match="frame_stack: counter is not a turn-based world"):
        frame_stack(counter(), 2)


def test_a_world_written_for_many_is_not_mapped():
    class Counter:
        spec = EnvSpec("counter", Discrete(3), Discrete(2))

        def default_params(self):
            return jnp.int32(10)

        def reset(self, key, params):
            state = jnp.int32(0)
            no = jnp.asarray(False)
            return state, TimeStep(state, jnp.float32(0), no, no, state, ())

        def step(self, key, state, action, params):
            raise AssertionError("the function for one world was called")

        def reset_many(self, keys, params):
            return jax.vmap(self.reset, (0, None))(keys, params)

        def step_many(self, keys, state, action, params):
            state = state + action
            over = state >= params
            reward = action.astype(jnp.float32)
            return state, TimeStep(state, reward, over, jnp.zeros_like(over), state, ())

    worlds = autoreset_batch(Counter(), 3)
    state, _ = worlds.reset(jax.random.key(0), 2)
    for expected in ([0, 1, 1], [0, 0, 0]):  # at 2 a world starts again
        state, timestep = worlds.step(jax.random.key(0), state, jnp.array([0, 1, 1]), 2)
        np.testing.assert_array_equal(state, expected)
    np.testing.assert_array_equal(timestep.final_obs, [0, 2, 2])
