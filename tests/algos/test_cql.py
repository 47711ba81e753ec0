import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.cql import CQL
from worldloom.algos.offline import make_table
from worldloom.nn.offline import critics, squash
from worldloom.nn.policy import policy_step

RATES = {"actor_rate": 1e-3, "critic_rate": 3e-3, "temperature_rate": 3e-3}


@pytest.fixture(scope="module")
def agent(small):
    return small("cql")


@pytest.fixture(scope="module")
def near_zero(agent, start, bandit, learn):
    """Learned, with and without conservatism, from data that never go near the best action."""
    dataset = bandit(-0.6, 0.2)
    table = make_table(dataset, reward_scale=1.0)
    found = {}
    for weight in (0.0, 1.0):
        learner = start(agent, conservatism=weight, **RATES)
        found[weight] = learn(agent, table, 1500, learner=learner)[0], dataset
    return found


def test_values_are_a_lower_bound_where_there_are_no_data(near_zero):
    learner, dataset = near_zero[1.0]
    action = jnp.linspace(-1.0, 1.0, 41)[None, :, None]
    obs = dataset.normalise(dataset.rows.obs[:50])
    judge, actions = jax.jit(critics), jnp.tile(action, (50, 1, 1))
    q = judge(learner.critic.params, obs, actions).mean((0, 1))
    true = 1.0 - (action[0, :, 0] - 0.5) ** 2
    beyond = action[0, :, 0] > 0.4
    assert (q[beyond] < true[beyond]).all()
    loose, _ = near_zero[0.0]
    free = judge(loose.critic.params, obs, actions).mean((0, 1))
    assert q[beyond].mean() < free[beyond].mean() - 0.5


def test_the_policy_stays_with_the_data(agent, near_zero):
    for weight, (low, high) in ((1.0, (-0.6, 0.25)), (0.0, (0.25, 1.0))):
        learner, dataset = near_zero[weight]
        action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
        assert low < action.mean() < high


def test_where_data_are_everywhere_the_best_action_is_found(
    agent, start, learn, bandit, bandit_table
):
    learner = start(agent, conservatism=0.1, **RATES)
    learner, _ = learn(agent, bandit_table, 2000, learner=learner)
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    np.testing.assert_allclose(action.mean(), 0.5, atol=0.15)


def test_importance_weights_make_an_integral_of_the_samples(agent, start, bandit_table):
    """Of exp(c) over [-1, 1], for critics that say c of everything: the gap is log 2."""
    learner = start(agent)
    agent = CQL(replace(agent.config, num_samples=1000))
    *hidden, last = learner.critic.params
    flat = (*hidden, {"kernel": jnp.zeros_like(last["kernel"]), "bias": jnp.full(2, 3.0)})
    rows = bandit_table.take(jnp.arange(32))
    actions, log_prob, _ = jax.jit(agent.proposals)(learner.actor.params, rows, jax.random.key(3))
    assert actions.shape == (32, 3000, 1)
    _, metrics = jax.jit(agent.critic_loss)(1.0, flat, rows, jnp.full(32, 3.0), actions, log_prob)
    np.testing.assert_allclose(metrics["gap"], math.log(2.0), atol=0.02)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-6)


def test_densities_of_squashed_actions_integrate_to_one():
    grid = jnp.linspace(-0.9999, 0.9999, 20001)
    mean, log_std = jnp.float32(0.4), jnp.float32(-0.7)
    noise = (jnp.arctanh(grid) - mean) / jnp.exp(log_std)
    action, log_prob = squash(mean[None], log_std[None], noise[:, None])
    np.testing.assert_allclose(action[:, 0], grid, atol=1e-5)
    np.testing.assert_allclose(jnp.trapezoid(jnp.exp(log_prob), grid), 1.0, atol=2e-3)
    _, extreme = squash(jnp.zeros(1), jnp.zeros(1), jnp.asarray([[20.0]]))
    assert np.isfinite(extreme).all()


def test_the_temperature_holds_the_policy_to_its_entropy(agent, start, learn, bandit_table):
    learner = start(agent, conservatism=0.0, entropy=-0.5, **RATES)
    learner, metrics = learn(agent, bandit_table, 3000, learner=learner)
    np.testing.assert_allclose(metrics["entropy"][-300:].mean(), -0.5, atol=0.3)
    assert learner.log_temperature.params < 0.0


def test_several_actions_a_row_are_judged_as_one_by_one(agent, start, bandit_table):
    learner, judge = start(agent), jax.jit(critics)
    rows = bandit_table.take(jnp.arange(8))
    actions = jax.random.uniform(jax.random.key(1), (8, 5, 1))
    together = judge(learner.critic.params, rows.obs, actions)
    for s in range(5):
        alone = judge(learner.critic.params, rows.obs, actions[:, s])
        np.testing.assert_allclose(together[:, :, s], alone, rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_make_the_same_step(agent, start, update, bandit_table):
    rows = bandit_table.take(jnp.arange(64))
    whole = CQL(replace(agent.config, num_parts=1))
    assert agent.config.num_parts == 4
    made = [update(x, start(agent), rows, jax.random.key(1)) for x in (agent, whole)]
    for one, other in zip(jax.tree.leaves(made[0]), jax.tree.leaves(made[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
