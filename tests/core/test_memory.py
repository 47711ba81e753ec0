"""Memories beside observations: whose they are, and when they are forgotten."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_map

import worldloom
from worldloom.core.memory import WithMemory, as_seen, blank, carried, remember, without_memory
from worldloom.core.transforms import autoreset_batch, base_state, batch, time_limit

SIZE = 2


@pytest.fixture(scope="module")
def tag():
    return worldloom.make("tag", height=5, width=5, num_agents=2, horizon=3)


def test_each_agent_finds_what_it_remembered(tag):
    env = remember(tag, SIZE)
    params = env.default_params()
    state, timestep = env.reset(jax.random.key(0), params)
    assert timestep.obs.memory.shape == (2, SIZE)
    state, _ = env.apply_agent(
        jax.random.key(1), state, 1, WithMemory(jnp.int32(0), jnp.array([3.0, 4.0])), params
    )
    for agent, memory in ((0, [0.0, 0.0]), (1, [3.0, 4.0])):
        np.testing.assert_array_equal(env.observe_agent(state, agent, params).memory, memory)


def test_a_world_that_starts_anew_has_forgotten(tag):
    pytest.importorskip("gymnax", reason="Gymnax is not for this JAX")
    inner = time_limit(worldloom.make("gymnax:CartPole-v1"), 3)
    worlds = autoreset_batch(remember(inner, SIZE), 2)
    params = worlds.default_params()
    state, timestep = jax.jit(worlds.reset)(jax.random.key(0), params)
    step, memories = jax.jit(worlds.step), []
    for key in jax.random.split(jax.random.key(1), 4):
        action = WithMemory(jnp.zeros(2, jnp.int32), timestep.obs.memory + 1.0)
        state, timestep = step(key, state, action, params)
        memories.append(float(timestep.obs.memory[0, 0]))
    assert memories == [1.0, 2.0, 0.0, 1.0]


def test_the_world_itself_does_not_notice(tag):
    """Played through memories, the same actions lead to the same states and rewards."""
    plain, seen = batch(tag, 4), batch(as_seen(tag, False, SIZE), 4)
    params, key = tag.default_params(), jax.random.key(0)
    states = [env.reset(key, params)[0] for env in (plain, seen)]
    action = jax.random.randint(key, (4, 2), 0, 4)
    a, paid = plain.apply_all(key, states[0], action, params)
    b, paid_too = seen.apply_all(key, states[1], WithMemory(action, jnp.ones((4, 2, SIZE))), params)
    np.testing.assert_array_equal(paid, paid_too)
    tree_map(np.testing.assert_array_equal, base_state(a), base_state(b))


def test_a_loop_of_ones_own_carries_memories_by_hand():
    obs = jnp.zeros((3, 5))
    assert blank(obs, 0) is obs
    begun = blank(obs, SIZE)
    assert begun.memory.shape == (3, SIZE)
    action = WithMemory(jnp.ones(3), jnp.full((3, SIZE), 7.0))
    assert carried(obs, action).memory is action.memory
    assert carried(obs, jnp.ones(3)) is obs
    assert without_memory(action) is action.now
