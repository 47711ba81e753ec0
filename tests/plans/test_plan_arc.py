"""The code of the published plan for a JAX-native ARC environment, run as it is written there.

Imports and sizes are ours; so is `jax.tree.map`, for the `jax.tree_map` that JAX has dropped. What
stands between the lines of a plan's code is left out of it.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.arc import (
    RandomAgent,
    VectorizedRandomAgent,
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    check_bounds_jax,
    create_bbox_action,
    environment,
    episodes,
    load,
    make_config,
    run_episode_batch,
    safe_arc_step,
    validate_action_jax,
)

SIDE = 6


@pytest.fixture(scope="module")
def config():
    return make_config(load("examples"), max_steps=20)


@pytest.fixture(scope="module")
def task_data():
    return load("examples").buffer()


def create_test_action():
    return create_bbox_action(operation=5, r1=0, c1=0, r2=2, c2=2)


# 3.1 Simple performance benchmark ----------------------------------------------------------------


def benchmark_single_env(config, num_steps):
    """Benchmark single environment performance."""
    # Setup
    state = arc_reset(jax.random.PRNGKey(0), config)[0]
    action = create_test_action()

    # Warmup JIT
    _ = arc_step(state, action, config)

    # Benchmark
    start_time = time.perf_counter()
    for _ in range(num_steps):
        state, _obs, reward, _done, _info = arc_step(state, action, config)
        reward.block_until_ready()  # Ensure computation completes
    end_time = time.perf_counter()

    sps = num_steps / (end_time - start_time)
    return sps


def benchmark_batch_env(config, batch_size, num_steps):
    """Benchmark batch environment performance."""
    # Setup batch
    states = batch_reset(jax.random.split(jax.random.PRNGKey(0), batch_size), config)[0]
    actions = jax.tree.map(lambda x: jnp.full((batch_size,), x), create_test_action())

    # Warmup
    _ = batch_step(states, actions, config)

    # Benchmark
    start_time = time.perf_counter()
    for _ in range(num_steps):
        states, _obs, rewards, _dones, _infos = batch_step(states, actions, config)
        rewards.block_until_ready()
    end_time = time.perf_counter()

    total_steps = batch_size * num_steps
    sps = total_steps / (end_time - start_time)
    return sps


def test_the_functions_are_compiled_as_they_are_called(config):
    # A call that is traced op by op takes seconds: 20 steps/s would be a compiled one's hundredth.
    assert benchmark_single_env(config, num_steps=100) > 20
    assert benchmark_batch_env(config, batch_size=16, num_steps=20) > 16 * 20


def test_nothing_but_static_rules_compiles_again(monkeypatch):
    tasks, traces = load("examples").buffer((7, 7)), []  # a canvas that nothing else here has
    config = make_config(tasks, max_steps=20)

    def counted(name, function):
        return lambda *args: traces.append(name) or function(*args)

    for name in ("reset_world", "step_world"):
        monkeypatch.setattr(environment, name, counted(name, getattr(environment, name)))
    agent = RandomAgent(grid_shape=(7, 7))
    agent_state = agent.init(jax.random.PRNGKey(1))
    for n in range(3):
        rules = config.replace(step_penalty=-0.01 * n, max_steps=20 + n, evaluation=n > 1)
        state, _ = arc_reset(jax.random.PRNGKey(n), rules, tasks)
        for _ in range(3):
            action, agent_state = agent.select_action(agent_state, state, rules)
            state, *_ = arc_step(state, action, rules)
    assert sorted(traces) == ["reset_world", "step_world"]
    arc_step(state, action, config.replace(start="blank"))
    assert len(traces) == 3


# Primary API (batch-first) -----------------------------------------------------------------------


AGENT = VectorizedRandomAgent(grid_shape=(SIDE, SIDE))


def optimized_training(config, task_data):
    # Setup - default to batch processing
    batch_size = 32
    max_steps = 10

    # Create batch environments (same function, vectorized)
    keys = jax.random.split(jax.random.PRNGKey(42), batch_size)
    states = batch_reset(keys, config, task_data)

    # Create vectorized agent
    agent = VectorizedRandomAgent(grid_shape=(SIDE, SIDE))

    # Run episodes efficiently (replaces Python for loops)
    final_states, rewards, trajectories = run_episode_batch(
        states, agent.select_batch_actions, max_steps, config
    )

    return final_states, rewards, trajectories


def test_episodes_run_in_batches(config, task_data):
    final_states, rewards, trajectories = optimized_training(config, task_data)
    assert rewards.shape == (32,)
    assert trajectories.reward.shape == (10, 32)
    np.testing.assert_allclose(rewards, trajectories.reward.sum(axis=0), rtol=1e-5)
    assert np.asarray(final_states.step_count).max() == 10
    assert len(np.unique(np.asarray(trajectories.action.operation))) > 20


def test_a_batch_of_episodes_is_compiled_once_for_an_agent(config, task_data):
    states = batch_reset(jax.random.split(jax.random.PRNGKey(0), 4), config, task_data)
    before = episodes._play_compiled._cache_size()
    same = [
        run_episode_batch(states, AGENT.select_batch_actions, 4, config, key=key)
        for key in (jax.random.PRNGKey(1), jax.random.key(1), jax.random.PRNGKey(2))
    ]
    assert episodes._play_compiled._cache_size() == before + 1
    first, again, other = (np.asarray(played[2].action.r1) for played in same)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


# Single environment (when needed) ----------------------------------------------------------------


def single_env_usage(config, task_data, max_steps):
    # Same functions, just don't batch
    key = jax.random.PRNGKey(42)
    state, _obs = arc_reset(key, config, task_data)

    agent = RandomAgent(grid_shape=(SIDE, SIDE))
    agent_state = agent.init(key)  # which the plan forgets

    # Now JIT compiled for 10-50x speedup
    for _step in range(max_steps):
        action, agent_state = agent.select_action(agent_state, state, config)
        state, _obs, reward, done, _info = arc_step(state, action, config)

        if done:
            break

    return state, reward


def test_one_environment_is_played_step_by_step(config, task_data):
    state, reward = single_env_usage(config, task_data, max_steps=25)
    assert int(state.step_count) <= 20  # the configuration's own limit
    assert np.isfinite(float(reward))


# Testing strategy --------------------------------------------------------------------------------


def test_function_equivalence(config, task_data):
    """Test that modified functions produce same results."""

    # Save reference results before modification
    key = jax.random.PRNGKey(42)
    reference_state, _reference_obs = arc_reset(key, config, task_data)

    action = create_bbox_action(operation=5, r1=0, c1=0, r2=5, c2=5)
    reference_result = arc_step(reference_state, action, config)

    # Test modified functions
    new_state, _new_obs = arc_reset(key, config, task_data)
    new_result = arc_step(new_state, action, config)

    # Assert equivalence (within numerical precision)
    assert jnp.allclose(reference_result[1], new_result[1])  # Observations
    assert jnp.allclose(reference_result[2], new_result[2])  # Rewards
    # ... other assertions
    assert int(new_result[4].operation_type) == 5


def test_batch_scaling(config, task_data):
    """Test that batch functions scale correctly."""
    state, _obs = arc_reset(jax.random.PRNGKey(42), config, task_data)
    action = create_test_action()

    # Test single vs batch equivalence
    single_result = arc_step(state, action, config)

    # Batch of 1 should give same result
    batch_states = jax.tree.map(lambda x: x[None, ...], state)  # Add batch dim
    batch_actions = jax.tree.map(lambda x: x[None, ...], action)
    batch_result = batch_step(batch_states, batch_actions, config)

    # Extract single result from batch
    single_from_batch = jax.tree.map(lambda x: x[0], batch_result)

    # Should be equivalent
    assert jnp.allclose(single_result[1], single_from_batch[1])
    jax.tree.map(np.testing.assert_array_equal, single_result, single_from_batch)


# 2.1 Safe action processing ----------------------------------------------------------------------


def test_invalid_actions_are_an_answer(config, task_data):
    state, obs = arc_reset(jax.random.PRNGKey(42), config, task_data)
    action = create_test_action()
    wrong = action.replace(r1=jnp.int32(4))
    assert validate_action_jax(action, state, config)
    assert check_bounds_jax(action, (SIDE, SIDE))
    assert not validate_action_jax(wrong, state, config)
    assert not check_bounds_jax(wrong, (SIDE, SIDE))
    _, after, reward, done, info = safe_arc_step(state, wrong, config)
    assert int(info.operation_type) == -1  # Invalid operation marker
    assert float(info.similarity_improvement) == 0.0
    assert jnp.allclose(obs, after)
    assert float(reward) < 0.0
    assert not bool(info.episode_done)
    assert not bool(done)


# Experimental setup ------------------------------------------------------------------------------

BENCHMARK_CONFIG = {"datasets": ["mini_arc", "arc_agi_1", "arc_agi_2"]}


@pytest.mark.parametrize("dataset", BENCHMARK_CONFIG["datasets"])
def test_the_sets_of_the_plan_are_known_by_its_names(dataset):
    tasks = load(dataset)
    assert tasks.ids == load(dataset.replace("_", "-")).ids
    assert tasks.name == dataset.replace("_", "-")


# Keys of either kind -----------------------------------------------------------------------------


def test_keys_of_either_kind_are_the_same_keys(config, task_data):
    old, new = jax.random.PRNGKey(7), jax.random.key(7)
    same = jax.tree.map(np.array_equal, arc_reset(old, config), arc_reset(new, config))
    assert jax.tree.all(same)
    many = [batch_reset(jax.random.split(key, 4), config, task_data) for key in (old, new)]
    assert jax.tree.all(jax.tree.map(np.array_equal, *many))
    drawn = [AGENT.select_batch_actions(many[0][0], AGENT.init(key)) for key in (old, new)]
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), *drawn))
