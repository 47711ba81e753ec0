import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.edac import EDACConfig, alignment
from worldloom.algos.offline import make_table
from worldloom.nn.offline import critics
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import from_columns

RATES = {"actor_rate": 1e-3, "critic_rate": 3e-3, "temperature_rate": 3e-3, "entropy": -2.0}


@pytest.fixture(scope="module")
def agent(small):
    return small("edac")


def test_critics_disagree_where_there_are_no_data(agent, start, learn, bandit):
    dataset = bandit(-0.3, 0.3)
    table = make_table(dataset, reward_scale=1.0)
    learner, _ = learn(agent, table, 1500, learner=start(agent, **RATES))
    obs = dataset.normalise(dataset.rows.obs[:100])

    def spread(action):
        return critics(learner.critic.params, obs, jnp.full((100, 1), action)).std(0).mean()

    inside = max(spread(0.0), spread(0.2))
    assert min(spread(-1.0), spread(1.0)) > 3.0 * inside


def test_where_data_are_everywhere_the_best_action_is_found(
    agent, start, learn, bandit, bandit_table
):
    learner, _ = learn(agent, bandit_table, 2000, learner=start(agent, **RATES))
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    np.testing.assert_allclose(action.mean(), 0.5, atol=0.15)


def test_alignment_is_known_for_known_slopes():
    east, north = jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0])
    alike = jnp.stack([east, 3.0 * east, 0.1 * east])[:, None]
    np.testing.assert_allclose(alignment(alike), 3.0, atol=1e-5)
    np.testing.assert_allclose(alignment(jnp.stack([east, north])[:, None]), 0.0, atol=1e-5)
    np.testing.assert_allclose(alignment(jnp.stack([east, -east])[:, None]), -2.0, atol=1e-5)
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(4, 7, 3))
    unit = slopes / np.linalg.norm(slopes, axis=-1, keepdims=True)
    cosines = np.einsum("ibm,jbm->bij", unit, unit) * (1 - np.eye(4))
    expected = cosines.sum((1, 2)).mean() / 3
    np.testing.assert_allclose(alignment(jnp.asarray(slopes)), expected, atol=1e-5)


def test_slopes_are_those_of_finite_differences(agent, start, bandit_table):
    weights = start(agent).critic.params
    rows = bandit_table.take(jnp.arange(16))
    q, slopes = jax.jit(agent.slopes)(weights, rows.obs, rows.action)
    judge, step = jax.jit(critics), 1e-3
    np.testing.assert_allclose(q, judge(weights, rows.obs, rows.action), atol=1e-6)
    up, down = (judge(weights, rows.obs, rows.action + s) for s in (step, -step))
    # A kink of a ReLU may lie in between, in a few of them.
    close = jnp.isclose(slopes[..., 0], (up - down) / (2 * step), atol=2e-3)
    assert close.mean() > 0.9


def test_the_last_term_makes_slopes_less_alike(agent, start, learn):
    """Two numbers to choose: on a line, slopes that point the same way cannot turn."""
    rng = np.random.default_rng(0)
    action, obs = rng.uniform(-0.3, 0.3, (2, 1024, 2))
    ends = np.ones(1024, bool)
    table = make_table(from_columns(obs, action, action.sum(-1), obs, ends, ~ends))
    alike = []
    for diversity in (0.0, 5.0):
        learner = start(agent, action_size=2, diversity=diversity, **RATES)
        _, metrics = learn(agent, table, 600, learner=learner)
        alike.append(metrics["alignment"][-100:].mean())
    assert alike[1] < alike[0] - 1.0


def test_one_critic_is_no_ensemble():
    with pytest.raises(ValueError, match="edac: num_critics=1; it must be at least 2"):
        EDACConfig(num_critics=1)
