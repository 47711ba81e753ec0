"""Problems with known answers for offline learners, and programs that all tests of one share.

Most of what these tests take is compiling: agents come from `small`, which differ from each other
in nothing but their name, and whatever numbers a test is about are in the learner.
"""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import algos
from worldloom.algos.offline import make_table, training_step
from worldloom.core import draws
from worldloom.replay.dataset import from_columns

CHUNK = 100  # updates in one call
ROWS = 2048  # of every dataset, so that one program serves all of them


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(agent, obs_size, action_size, key):
    return agent.init(key, obs_size, action_size)


@partial(jax.jit, static_argnums=(0, 4))
def _update(agent, learner, rows, key, turn):
    return agent.update(learner, rows, key, turn)


@partial(jax.jit, static_argnums=(0, 4))
def _chunk(agent, learner, table, keys, batch_size):
    def one_round(learner, keys):
        for turn in range(agent.period):
            learner, metrics = training_step(
                agent, learner, table, keys[turn], batch_size=batch_size, turn=turn
            )
        return learner, metrics

    return jax.lax.scan(one_round, learner, keys.reshape(-1, agent.period))


@cache
def _small(name):
    algorithm = algos.get(name)
    sizes = {
        "cql": {"num_samples": 4},
        "edac": {"num_critics": 4},
        "mbpo": {"model_updates": 600, "rollout_length": 2, "num_members": 2},
    }.get(name, {})
    return algorithm.make(replace(algorithm.config(), hidden=(32, 32), **sizes))


@pytest.fixture(scope="session")
def small():
    """small(name): the agent of an offline algorithm, with small networks."""
    return _small


@pytest.fixture(scope="session")
def start():
    """start(agent, **numbers): a fresh learner for the bandit, with numbers of its own."""

    def run(agent, *, seed=0, obs_size=2, action_size=1, **numbers):
        learner = _start(agent, obs_size, action_size, jax.random.key(seed))
        hyper = {name: jnp.float32(value) for name, value in numbers.items()}
        return learner.replace(hyper=learner.hyper.replace(**hyper))

    return run


@pytest.fixture(scope="session")
def update():
    """update(agent, learner, rows, key, turn=None): one update, compiled once for an agent."""
    return lambda agent, learner, rows, key, turn=None: _update(agent, learner, rows, key, turn)


@pytest.fixture(scope="session")
def learn():
    """learn(agent, table, updates): the learner after so many updates, and its metrics."""

    def run(agent, table, updates, *, seed=0, batch_size=64, learner=None):
        if learner is None:
            learner = _start(agent, table.obs_size, table.action_size, jax.random.key(seed))
        keys = draws.split(jax.random.key(seed + 1), updates).reshape(-1, CHUNK)
        history = []
        for some in keys:
            learner, metrics = _chunk(agent, learner, table, some, batch_size)
            history.append(jax.device_get(metrics))
        return learner, jax.tree.map(lambda *parts: np.concatenate(parts), *history)

    return run


@pytest.fixture(scope="session")
def bandit():
    """One step, one number to choose: the reward is 1 - (a - 0.5)^2, the best action 0.5.

    The data's actions are uniform in [low, high]; observations mean nothing.
    """

    def make(low=-1.0, high=1.0, rows=ROWS, scale=1.0):
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
        pairs, (a, b) = ROWS // 2, np.eye(2)
        obs, next_obs = np.tile([a, b], (pairs, 1)), np.tile([b, b], (pairs, 1))
        second = np.tile([False, True], pairs)
        action = rng.uniform(-1.0, 1.0, (2 * pairs, 1))
        ends, cut = second & terminated, second & (not terminated)
        dataset = from_columns(obs, action, second.astype(float), next_obs, ends, cut)
        return dataset, make_table(dataset, reward_scale=1.0)

    return make
