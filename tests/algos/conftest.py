"""Problems with known answers for offline learners."""

from functools import partial

import jax
import numpy as np
import pytest

from worldloom.algos.offline import make_table, training_step
from worldloom.core import draws
from worldloom.replay.dataset import from_columns


@partial(jax.jit, static_argnames=("algorithm", "updates", "batch_size"))
def _learn(algorithm, learner, table, seed, updates, batch_size):
    if learner is None:
        learner = algorithm.init(jax.random.key(seed), table.obs_size, table.action_size)

    def one_round(learner, keys):
        for turn in range(algorithm.period):
            learner, metrics = training_step(
                algorithm, learner, table, keys[turn], batch_size=batch_size, turn=turn
            )
        return learner, metrics

    keys = draws.split(jax.random.key(seed + 1), updates).reshape(-1, algorithm.period)
    return jax.lax.scan(one_round, learner, keys)


@pytest.fixture(scope="session")
def learn():
    """learn(algorithm, table, updates): the learner after so many updates, and its metrics."""

    def run(algorithm, table, updates, *, seed=0, batch_size=64, learner=None):
        return _learn(algorithm, learner, table, seed, updates, batch_size)

    return run


@pytest.fixture(scope="session")
def bandit():
    """One step, one number to choose: the reward is 1 - (a - 0.5)^2, the best action 0.5.

    The data's actions are uniform in [low, high]; observations mean nothing.
    """

    def make(low=-1.0, high=1.0, rows=2048, scale=1.0):
        rng = np.random.default_rng(0)
        action = rng.uniform(low, high, (rows, 1))
        reward = scale * (1.0 - (action[:, 0] - 0.5) ** 2)
        obs = rng.normal(size=(2, rows, 2))
        ends, no = np.ones(rows, bool), np.zeros(rows, bool)
        return from_columns(obs[0], action, reward, obs[1], ends, no)

    return make


@pytest.fixture(scope="session")
def bandit_table(bandit):
    """The bandit's table, with rewards as they are."""
    return make_table(bandit(), reward_scale=1.0)


@pytest.fixture(scope="session")
def chain():
    """chain(terminated): A leads to B for nothing, B pays 1 and then the log ends.

    Worth, at a discount of 0.5: B 1 and A 0.5 if the episode is over then; 2 and 1 if the log
    just stops, and B would have led to B for ever. What is done means nothing.
    """

    def make(terminated):
        rng = np.random.default_rng(0)
        pairs, (a, b) = 256, np.eye(2)
        obs, next_obs = np.tile([a, b], (pairs, 1)), np.tile([b, b], (pairs, 1))
        second = np.tile([False, True], pairs)
        action = rng.uniform(-1.0, 1.0, (2 * pairs, 1))
        dataset = from_columns(
            obs, action, second.astype(float), next_obs,
            second & terminated, second & (not terminated),
        )  # fmt: skip
        return dataset, make_table(dataset, reward_scale=1.0)

    return make
