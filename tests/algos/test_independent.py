"""Many agents in one program do what each does alone."""

from functools import cache

import jax
import numpy as np
import pytest

from worldloom import algos
from worldloom.algos import independent
from worldloom.algos.dqn import DQNConfig
from worldloom.algos.iqn import IQNConfig
from worldloom.algos.qlearning import QLearningConfig
from worldloom.core import stack
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Batch
from worldloom.nn.networks import Networks

AGENTS, BATCH = 3, 8
SPEC = EnvSpec("test", Box(0, 3, (2, 5), "uint8"), Discrete(4), num_agents=AGENTS)
ALGORITHMS = {
    "iqn": IQNConfig(hidden=16, num_quantiles=4, levels="own", noisy=True, batch_size=BATCH),
    "dqn": DQNConfig(hidden=(16,), batch_size=BATCH),
    "qlearning": QLearningConfig(table_size=97, batch_size=BATCH),
}


class Case:
    """Learners, batches and keys of three different agents of one algorithm."""

    def __init__(self, name: str) -> None:
        agent = self.agent = algos.get(name).make(ALGORITHMS[name], SPEC, Networks())
        rng = np.random.default_rng(0)

        def seen(*shape):
            return rng.integers(0, 4, (AGENTS, *shape, 2, 5)).astype(np.uint8)

        self.batches = Batch(
            seen(BATCH),
            rng.integers(0, 4, (AGENTS, BATCH)).astype(np.int32),
            rng.normal(size=(AGENTS, BATCH)).astype(np.float32),
            np.full((AGENTS, BATCH), 0.9, np.float32),
            seen(BATCH),
        )
        self.keys = jax.random.split(jax.random.key(1), AGENTS)
        start = jax.jit(lambda key, obs: independent.init(agent, key, obs, AGENTS))
        self.learners = start(jax.random.key(0), self.batches.obs[0])
        self.train = jax.jit(lambda *a: independent.parallel_train_agents(agent, *a))
        self.train_some = jax.jit(
            lambda *a: independent.parallel_train_agents(agent, *a[:-1], ready=a[-1])
        )
        self.update_one = jax.jit(agent.update)


case_of = cache(Case)


@pytest.fixture(params=ALGORITHMS)
def case(request) -> Case:
    return case_of(request.param)


@pytest.fixture
def dqn() -> Case:
    """For what does not depend on the algorithm: the one that compiles fastest."""
    return case_of("dqn")


def assert_close(a, b) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), a, b)


def test_agents_start_from_keys_of_their_own(case):
    first, *others = stack.unstack(case.learners.params)
    if isinstance(case.agent.config, QLearningConfig):
        pytest.skip("every table starts with zeros")
    for other in others:
        assert not jax.tree.all(jax.tree.map(np.array_equal, first, other))


def test_all_at_once_learn_what_each_learns_alone(case):
    together, metrics = case.train(case.learners, case.batches, case.keys)
    for i in range(AGENTS):
        alone, measured = case.update_one(
            stack.index(case.learners, i), stack.index(case.batches, i), case.keys[i]
        )
        assert_close(stack.index(together, i), alone)
        assert_close(stack.index(metrics, i), measured)


def test_agents_that_are_not_ready_stay_as_they_are_and_report_nan(dqn):
    ready = np.array([True, False, True])
    some, metrics = dqn.train_some(dqn.learners, dqn.batches, dqn.keys, ready)
    everyone, measured = dqn.train(dqn.learners, dqn.batches, dqn.keys)
    jax.tree.map(np.testing.assert_array_equal, stack.index(some, 1), stack.index(dqn.learners, 1))
    assert all(np.isnan(x) for x in jax.tree.leaves(stack.index(metrics, 1)))
    for i in (0, 2):
        assert_close(stack.index(some, i), stack.index(everyone, i))
        assert_close(stack.index(metrics, i), stack.index(measured, i))
