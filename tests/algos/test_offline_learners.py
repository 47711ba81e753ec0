"""What holds for every offline learner, and for the rows they draw."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.offline import (
    OFFLINE,
    averaged,
    bootstrapped,
    compute_gradients,
    descend,
    make_table,
    trained,
    training_step,
)
from worldloom.nn.offline import critics
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import from_columns

# Greedy and fast, each with nothing but the values to move it.
PROBE = {
    "td3bc": {"actor_rate": 3e-3, "critic_rate": 3e-3},
    "iql": {"actor_rate": 3e-3, "critic_rate": 3e-3, "value_rate": 3e-3, "expectile": 0.5},
    "cql": {"critic_rate": 3e-3, "conservatism": 0.0},
    "rebrac": {"actor_rate": 3e-3, "critic_rate": 3e-3, "critic_penalty": 0.0},
    "edac": {"critic_rate": 3e-3, "diversity": 0.0},
}


def make(name, **numbers):
    kind = OFFLINE[name]
    config = kind().config
    small = {"cql": {"num_samples": 2}, "edac": {"num_critics": 3}}.get(name, {})
    hyper = config.hyper.replace(**numbers)
    return kind(replace(config, hidden=(32,), hyper=hyper, **small))


def start(agent, hyper=None):
    return jax.jit(lambda hyper: agent.init(jax.random.key(0), 2, 1, hyper))(hyper)


@pytest.mark.parametrize("name", PROBE)
def test_truncated_rows_are_bootstrapped_from_and_terminated_ones_are_not(name, chain, learn):
    agent = make(name, gamma=0.5, tau=0.05, **PROBE[name])
    found = {}
    for terminated in (True, False):
        dataset, table = chain(terminated)
        learner = start(agent)
        if hasattr(learner, "log_temperature"):  # entropy is worth nothing
            learner = learner.replace(log_temperature=trained(jnp.float32(-20.0)))
        learner, _ = learn(agent, table, 1200, learner=learner)
        a, b = dataset.normalise(jnp.eye(2))
        q = critics(learner.critic.params, jnp.stack([a, b]), jnp.zeros((2, 1))).mean(0)
        found[terminated] = q
    np.testing.assert_allclose(found[True], [0.5, 1.0], atol=0.1)
    np.testing.assert_allclose(found[False], [1.0, 2.0], atol=0.15)


@pytest.mark.parametrize("name", OFFLINE)
def test_an_update_keeps_the_shape_of_its_learner_and_tells_numbers(name, bandit, bandit_table):
    agent = make(name)
    learner = start(agent)
    rows = bandit_table.take(jnp.arange(16))
    new, metrics = jax.jit(agent.update)(learner, rows, jax.random.key(1))
    assert jax.tree.structure(new) == jax.tree.structure(learner)
    for one, other in zip(jax.tree.leaves(learner), jax.tree.leaves(new), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert new.step == 1
    assert all(np.isfinite(value) and value.shape == () for value in metrics.values())
    dataset = bandit()
    action = policy_step(agent.policy(new, dataset), 100.0 * dataset.rows.obs)
    assert action.shape == (dataset.size, 1)
    assert (jnp.abs(action) <= 1.0).all()


@pytest.mark.parametrize("name", OFFLINE)
def test_learners_may_differ_in_their_numbers_in_one_program(name, bandit_table):
    agent = make(name)
    rate = next(n for n in ("learning_rate", "critic_rate") if hasattr(agent.config.hyper, n))
    base = agent.config.hyper
    hypers = [base, base.replace(**{rate: 0.1})]
    key, rows = jax.random.key(0), bandit_table.take(jnp.arange(16))
    stacked = jax.tree.map(lambda *x: jnp.asarray(x, jnp.float32), *hypers)
    learners = jax.jit(jax.vmap(lambda hyper: agent.init(key, 2, 1, hyper)))(stacked)
    many, _ = jax.jit(jax.vmap(agent.update, (0, None, None)))(learners, rows, key)
    update = jax.jit(agent.update)
    for i, hyper in enumerate(hypers):
        alone, _ = update(start(agent, hyper), rows, key)
        ours = jax.tree.map(lambda x, i=i: x[i], many)
        for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(ours), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-5)


def test_a_table_gives_back_the_rows_it_was_made_of():
    rng = np.random.default_rng(0)
    obs, next_obs = rng.normal(3.0, 7.0, size=(2, 50, 4))
    action, reward = rng.uniform(-1, 1, (50, 2)), 5.0 * rng.normal(size=50)
    terminated, truncated = np.arange(50) % 10 == 4, np.arange(50) % 10 == 9
    dataset = from_columns(obs, action, reward, next_obs, terminated, truncated)
    table = make_table(dataset)
    index = jnp.asarray([49, 4, 9, 3, 3])
    rows, logged = table.take(index), dataset.take(index)
    np.testing.assert_array_equal(rows.obs, dataset.normalise(logged.obs))
    np.testing.assert_array_equal(rows.next_obs, dataset.normalise(logged.next_obs))
    np.testing.assert_array_equal(rows.action, logged.action)
    np.testing.assert_array_equal(rows.terminated, [False, True, False, False, False])
    np.testing.assert_array_equal(rows.truncated, [True, False, True, False, False])
    np.testing.assert_array_equal(rows.followed, [False, False, False, True, True])
    np.testing.assert_array_equal(rows.next_action[3], dataset.rows.action[4])
    np.testing.assert_allclose(rows.reward, logged.reward * table.reward_scale, rtol=1e-6)
    whole = table.take(jnp.arange(50)).reward
    np.testing.assert_allclose(whole.std(), 1.0, rtol=1e-4)
    np.testing.assert_allclose(make_table(dataset, 1.0).take(index).reward, logged.reward)


def test_rewards_that_never_change_are_left_as_they_are():
    ones, no = np.ones((5, 1)), np.zeros(5, bool)
    dataset = from_columns(ones, ones, ones, ones, no, no)
    assert make_table(dataset).reward_scale == 1.0


def test_a_step_of_adam_is_the_rate_at_first():
    grads = {"a": jnp.asarray([3.0, -0.01])}
    moved = descend(trained({"a": jnp.zeros(2)}), grads, 0.1).params["a"]
    np.testing.assert_allclose(moved, [-0.1, 0.1], rtol=1e-4)


def test_targets_move_by_a_share():
    moved = averaged({"a": jnp.asarray(1.0)}, {"a": jnp.asarray(3.0)}, 0.25)
    np.testing.assert_allclose(moved["a"], 1.5)


def test_gradients_come_with_what_the_loss_tells():
    grads, told = compute_gradients(lambda x, y: (x * x * y, {"seen": x}), 3.0, 2.0)
    assert (float(grads), float(told["seen"])) == (12.0, 3.0)


def test_what_is_terminated_is_worth_its_reward(chain):
    _, table = chain(True)
    rows = table.take(jnp.asarray([0, 1]))
    np.testing.assert_allclose(bootstrapped(rows, 0.5, jnp.full(2, 8.0)), [4.0, 1.0])


def test_a_training_step_draws_its_rows_by_its_key(bandit_table):
    agent = make("bc")
    learner = start(agent)
    step = jax.jit(lambda key: training_step(agent, learner, bandit_table, key)[1]["actor_loss"])
    one, same, other = (float(step(jax.random.key(k))) for k in (1, 1, 2))
    assert one == same != other


def test_an_unknown_algorithm_is_a_key_error():
    assert "bc" in OFFLINE
    assert "sac" not in OFFLINE
    with pytest.raises(KeyError):
        OFFLINE["sac"]
