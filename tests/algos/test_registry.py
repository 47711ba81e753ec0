"""Agents by name, and the agent that does not learn."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos import independent, registry
from worldloom.algos.dqn import DQNConfig
from worldloom.algos.random import Random, RandomConfig
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Batch

SPEC = EnvSpec("test", Box(0, 1, (1, 2), "uint8"), Discrete(5), num_agents=3)


@pytest.mark.parametrize("name", registry.names())
def test_every_agent_is_made_with_its_defaults_and_has_what_loops_ask_for(name):
    agent = registry.make(name, None, SPEC)
    assert agent.config == registry.CONFIGS[name]()
    assert agent.num_actions == 5
    assert agent.config.batch_size >= 1
    assert agent.config.n_step >= 1
    assert 0 <= agent.config.gamma <= 1
    assert hash(agent) == hash(registry.make(name, registry.CONFIGS[name](), SPEC))


def test_an_unknown_agent_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="there is no agent 'qlerning'; did you mean 'qlearning'"):
        registry.make("qlerning", None, SPEC)
    with pytest.raises(ValueError, match="known: iqn, dqn, qlearning, random"):
        registry.config_class("xyz")


def test_a_configuration_of_another_agent_is_refused():
    with pytest.raises(ValueError, match=r"iqn: got a DQNConfig .* it takes a IQNConfig"):
        registry.make("iqn", DQNConfig(), SPEC)


def test_a_world_of_continuous_actions_is_refused():
    spec = EnvSpec("arm", Box(0, 1, (2,)), Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match=r"arm: actions are a Box, .* needs a Discrete choice"):
        registry.make("dqn", None, spec)


def test_asking_for_names_imports_no_algorithm():
    program = (
        "import sys; from worldloom.algos import registry; list(registry.CONFIGS);"
        "registry.names(); print('worldloom.algos.iqn' in sys.modules);"
        "registry.CONFIGS['dqn']; print('worldloom.algos.dqn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_the_random_agent_plays_uniformly_whatever_exploration_is_asked_for():
    agent = Random(RandomConfig(), 5)
    obs = jnp.zeros((5000, 1, 2), jnp.uint8)
    for explore in (0.0, 1.0):
        action, q = agent.act(jnp.float32(0), obs, jax.random.key(0), explore=explore)
        assert q.shape == (5000, 5)
        assert np.abs(np.bincount(action, minlength=5) - 1000).max() < 120


def test_random_agents_stack_and_do_not_learn():
    agent = Random(RandomConfig(), 5)
    learners = independent.init(agent, jax.random.key(0), SPEC)
    assert jax.tree.leaves(learners)[0].shape == (3,)
    column = jnp.zeros((3, 1))
    obs = jnp.zeros((3, 1, 1, 2), jnp.uint8)
    batches = Batch(obs, column.astype(jnp.int32), column, column, obs)
    keys = jax.random.split(jax.random.key(0), 3)
    after, metrics = independent.parallel_train_agents(agent, learners, batches, keys)
    jax.tree.map(np.testing.assert_array_equal, after, learners)
    assert all(np.isnan(x).all() and x.shape == (3,) for x in jax.tree.leaves(metrics))
