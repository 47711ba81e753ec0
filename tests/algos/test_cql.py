import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.cql import CQL, CQLConfig, CQLHyper
from worldloom.algos.offline import make_table
from worldloom.nn.offline import critics, squash
from worldloom.nn.policy import policy_step


def make(num_samples=4, **numbers):
    rates = {"actor_rate": 1e-3, "critic_rate": 3e-3, "temperature_rate": 3e-3}
    hyper = CQLHyper(**(rates | numbers))
    return CQL(CQLConfig(hidden=(32, 32), num_samples=num_samples, hyper=hyper))


def start(agent):
    return jax.jit(agent.init, static_argnums=(1, 2))(jax.random.key(0), 2, 1)


@pytest.fixture(scope="module")
def near_zero(bandit, learn):
    """Learned, with and without conservatism, from data that never go near the best action."""
    dataset = bandit(-0.6, 0.2)
    table = make_table(dataset, reward_scale=1.0)
    agent, found = make(), {}
    for weight in (0.0, 1.0):
        learner = start(agent)
        hyper = learner.hyper.replace(conservatism=jnp.float32(weight))
        learner, _ = learn(agent, table, 1500, learner=learner.replace(hyper=hyper))
        found[weight] = learner, dataset
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


def test_the_policy_stays_with_the_data(near_zero):
    for weight, (low, high) in ((1.0, (-0.6, 0.25)), (0.0, (0.25, 1.0))):
        learner, dataset = near_zero[weight]
        action = policy_step(make().policy(learner, dataset), dataset.rows.obs[:200])
        assert low < action.mean() < high


def test_where_data_are_everywhere_the_best_action_is_found(learn, bandit, bandit_table):
    agent = make(conservatism=0.1)
    learner, _ = learn(agent, bandit_table, 2000)
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    np.testing.assert_allclose(action.mean(), 0.5, atol=0.15)


def test_importance_weights_make_an_integral_of_the_samples(bandit_table):
    """Of exp(c) over [-1, 1], for critics that say c of everything: the gap is log 2."""
    agent = make(num_samples=1000)
    learner = start(agent)
    *hidden, last = learner.critic.params
    flat = (*hidden, {"kernel": jnp.zeros_like(last["kernel"]), "bias": jnp.full(2, 3.0)})
    rows = bandit_table.take(jnp.arange(32))
    actions, log_prob, _ = jax.jit(agent.proposals)(learner.actor.params, rows, jax.random.key(3))
    assert actions.shape == (32, 3000, 1)
    _, told = jax.jit(agent.critic_loss)(1.0, flat, rows, jnp.full(32, 3.0), actions, log_prob)
    np.testing.assert_allclose(told["gap"], math.log(2.0), atol=0.02)
    np.testing.assert_allclose(told["critic_loss"], 0.0, atol=1e-6)


def test_densities_of_squashed_actions_integrate_to_one():
    grid = jnp.linspace(-0.9999, 0.9999, 20001)
    mean, log_std = jnp.float32(0.4), jnp.float32(-0.7)
    noise = (jnp.arctanh(grid) - mean) / jnp.exp(log_std)
    action, log_prob = squash(mean[None], log_std[None], noise[:, None])
    np.testing.assert_allclose(action[:, 0], grid, atol=1e-5)
    np.testing.assert_allclose(jnp.trapezoid(jnp.exp(log_prob), grid), 1.0, atol=2e-3)
    _, extreme = squash(jnp.zeros(1), jnp.zeros(1), jnp.asarray([[20.0]]))
    assert np.isfinite(extreme).all()


def test_the_temperature_holds_the_policy_to_its_entropy(learn, bandit_table):
    agent = make(conservatism=0.0, entropy=-0.5)
    learner, metrics = learn(agent, bandit_table, 3000)
    np.testing.assert_allclose(metrics["entropy"][-300:].mean(), -0.5, atol=0.3)
    assert learner.log_temperature.params < 0.0


def test_several_actions_a_row_are_judged_as_one_by_one(bandit_table):
    agent = make()
    learner = start(agent)
    rows = bandit_table.take(jnp.arange(8))
    actions = jax.random.uniform(jax.random.key(1), (8, 5, 1))
    together = critics(learner.critic.params, rows.obs, actions)
    for s in range(5):
        alone = critics(learner.critic.params, rows.obs, actions[:, s])
        np.testing.assert_allclose(together[:, :, s], alone, rtol=1e-5, atol=1e-6)


def test_parts_of_a_batch_make_the_same_step(bandit_table):
    rows = bandit_table.take(jnp.arange(64))
    made = []
    for parts in (1, 4):
        agent = CQL(CQLConfig(hidden=(16,), num_samples=3, num_parts=parts))
        made.append(jax.jit(agent.update)(start(agent), rows, jax.random.key(1)))
    for one, other in zip(jax.tree.leaves(made[0]), jax.tree.leaves(made[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
