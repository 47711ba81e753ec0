"""The agent that does not learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos import independent, random
from worldloom.algos.random import Random, RandomConfig
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Batch
from worldloom.nn.networks import Networks


def test_choices_are_uniform_whatever_exploration_is_asked_for():
    agent = Random(RandomConfig(), Discrete(5))
    obs = {"several": jnp.zeros((5000, 1, 2), jnp.uint8), "arrays": jnp.zeros((5000,))}
    for explore in (0.0, 1.0):
        action, q = agent.act(jnp.float32(0), obs, jax.random.key(0), explore=explore)
        assert q.shape == (5000, 5)
        assert np.abs(np.bincount(action, minlength=5) - 1000).max() < 120


def test_vectors_are_uniform_within_their_bounds():
    spec = EnvSpec("arm", Box(0, 1, (3,)), Box(-2.0, 6.0, (2,)))
    agent = random.make(RandomConfig(), spec, Networks())
    action, _ = agent.act(jnp.float32(0), jnp.zeros((4000, 3)), jax.random.key(0))
    assert action.shape == (4000, 2)
    assert (action.min() >= -2.0) & (action.min() < -1.9)
    assert (action.max() > 5.9) & (action.max() <= 6.0)
    np.testing.assert_allclose(action.mean(0), 2.0, atol=0.15)
    np.testing.assert_allclose(action.std(0), 8 / np.sqrt(12), atol=0.1)
    assert abs(np.corrcoef(np.asarray(action).T)[0, 1]) < 0.05


def test_nothing_is_uniform_without_bounds():
    spec = EnvSpec("arm", Box(0, 1, (3,)), Box(-np.inf, np.inf, (2,)))
    with pytest.raises(ValueError, match="random: nothing is uniform on the actions of arm"):
        random.make(RandomConfig(), spec, Networks())


def test_random_agents_stack_and_do_not_learn():
    agent = Random(RandomConfig(), Discrete(5))
    obs = jnp.zeros((3, 1, 1, 2), jnp.uint8)
    learners = independent.init(agent, jax.random.key(0), obs[0], 3)
    assert jax.tree.leaves(learners)[0].shape == (3,)
    column = jnp.zeros((3, 1))
    batches = Batch(obs, column.astype(jnp.int32), column, column, obs)
    keys = jax.random.split(jax.random.key(0), 3)
    after, metrics = independent.parallel_train_agents(agent, learners, batches, keys)
    jax.tree.map(np.testing.assert_array_equal, after, learners)
    assert all(np.isnan(x).all() and x.shape == (3,) for x in jax.tree.leaves(metrics))
