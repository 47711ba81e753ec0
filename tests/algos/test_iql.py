import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.iql import expectile_loss
from worldloom.algos.offline import make_table
from worldloom.nn.offline import critics, mlp
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import from_columns

RATES = {"actor_rate": 3e-3, "critic_rate": 3e-3, "value_rate": 3e-3}


@pytest.fixture(scope="module")
def agent(small):
    return small("iql")


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_the_policy_is_the_mean_of_the_data_weighted_by_advantage(
    beta, agent, start, learn, bandit, bandit_table
):
    learner = start(agent, beta=beta, **RATES)
    learner, _ = learn(agent, bandit_table, 2500, learner=learner)
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    grid = np.linspace(-1.0, 1.0, 2001)
    weight = np.exp(-beta * (grid - 0.5) ** 2)  # exp(beta Q), up to a factor
    np.testing.assert_allclose(action.mean(), (weight * grid).sum() / weight.sum(), atol=0.05)


@pytest.mark.parametrize("expectile", [0.5, 0.9])
def test_values_are_the_expectile_of_known_returns(expectile, agent, start, learn):
    """Half of the actions pay 1, half nothing: the expectile of that is the expectile itself."""
    rng = np.random.default_rng(0)
    action = rng.choice([-1.0, 1.0], size=(2048, 1))
    obs, ends = rng.normal(size=(2048, 2)), np.ones(2048, bool)
    dataset = from_columns(obs, action, action[:, 0] > 0, obs, ends, ~ends)
    learner = start(agent, expectile=expectile, tau=0.05, **RATES)
    learner, _ = learn(agent, make_table(dataset, 1.0), 1500, learner=learner)
    value = mlp(learner.value.params, dataset.normalise(dataset.rows.obs))[:, 0]
    np.testing.assert_allclose(value.mean(), expectile, atol=0.05)
    q = critics(learner.critic.params, jnp.zeros((2, 2)), jnp.asarray([[1.0], [-1.0]]))
    np.testing.assert_allclose(q.mean(0), [1.0, 0.0], atol=0.1)


def test_the_expectile_of_two_numbers_balances_their_pulls():
    slope = jax.grad(lambda v: expectile_loss(jnp.asarray([0.0, 1.0]) - v, 0.7).mean())
    np.testing.assert_allclose(slope(0.7), 0.0, atol=1e-6)
    assert slope(0.6) < 0 < slope(0.8)


def test_no_action_is_asked_for_that_the_data_do_not_have(agent, start, update, bandit_table):
    """Values do not depend on the actor: learned with another one they are the same."""
    rows = bandit_table.take(jnp.arange(64))
    one = start(agent)
    other = one.replace(actor=start(agent, seed=5).actor)
    one, other = (update(agent, x, rows, jax.random.key(1))[0] for x in (one, other))
    values = [(learner.critic, learner.value) for learner in (one, other)]
    jax.tree.map(np.testing.assert_array_equal, *values)


def test_weights_are_cut_at_100(agent, start, update, bandit_table):
    rows = bandit_table.take(jnp.arange(64))
    _, metrics = update(agent, start(agent, beta=1e6), rows, jax.random.key(1))
    assert 1.0 < metrics["weight"] <= 100.0
    assert np.isfinite(metrics["actor_loss"])
