"""What holds for every offline learner, and for the rows they draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import algos
from worldloom.algos.actor_critic import apply_gradients, gradient_step, init_train_state
from worldloom.algos.offline import bootstrapped, make_table, training_step
from worldloom.core import stack
from worldloom.nn.offline import critics
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import from_columns

OFFLINE = ["bc", "cql", "edac", "iql", "mbpo", "rebrac", "td3bc"]

# Greedy and fast, each with nothing but the values to move it.
PROBE = {
    "td3bc": {"actor_rate": 3e-3, "critic_rate": 3e-3},
    "iql": {"actor_rate": 3e-3, "critic_rate": 3e-3, "value_rate": 3e-3, "expectile": 0.5},
    "cql": {"critic_rate": 3e-3, "conservatism": 0.0},
    "rebrac": {"actor_rate": 3e-3, "critic_rate": 3e-3, "critic_penalty": 0.0},
    "edac": {"critic_rate": 3e-3, "diversity": 0.0},
}


@pytest.mark.parametrize("name", PROBE)
def test_truncated_rows_are_bootstrapped_from_and_terminated_ones_are_not(
    name, small, start, chain, learn
):
    agent, found = small(name), {}
    for terminated in (True, False):
        dataset, table = chain(terminated)
        learner = start(agent, gamma=0.5, tau=0.05, **PROBE[name])
        if hasattr(learner, "log_temperature"):  # entropy is worth nothing
            learner = learner.replace(log_temperature=init_train_state(jnp.float32(-20.0)))
        learner, _ = learn(agent, table, 800, learner=learner)
        obs = dataset.normalise(jnp.eye(2))
        found[terminated] = critics(learner.critic.params, obs, jnp.zeros((2, 1))).mean(0)
    np.testing.assert_allclose(found[True], [0.5, 1.0], atol=0.1)
    np.testing.assert_allclose(found[False], [1.0, 2.0], atol=0.15)


@pytest.mark.parametrize("name", OFFLINE)
def test_an_update_keeps_the_shape_of_its_learner_and_returns_numbers(
    name, small, start, update, bandit
):
    agent, dataset = small(name), bandit()
    learner = start(agent)
    rows = agent.table(dataset).take(jnp.arange(64))
    new, metrics = update(agent, learner, rows, jax.random.key(1))
    assert jax.tree.structure(new) == jax.tree.structure(learner)
    for one, other in zip(jax.tree.leaves(learner), jax.tree.leaves(new), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert new.step == 1
    assert all(np.isfinite(value) and value.shape == () for value in metrics.values())
    action = policy_step(agent.policy(new, dataset), 100.0 * dataset.rows.obs)
    assert action.shape == (dataset.size, 1)
    assert (jnp.abs(action) <= 1.0).all()


@pytest.mark.parametrize("name", ["bc", "td3bc", "cql"])  # one of each frame
def test_learners_may_differ_in_their_numbers_in_one_program(
    name, small, start, update, bandit_table
):
    agent = small(name)
    rate = "learning_rate" if name == "bc" else "critic_rate"
    learners = [start(agent, **{rate: value}) for value in (3e-4, 0.1)]
    key, rows = jax.random.key(0), bandit_table.take(jnp.arange(64))
    many, _ = jax.jit(jax.vmap(agent.update, (0, None, None)))(stack.stack(learners), rows, key)
    for i, learner in enumerate(learners):
        alone, _ = update(agent, learner, rows, key)
        for one, other in zip(*map(jax.tree.leaves, (alone, stack.index(many, i))), strict=True):
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
    moved = apply_gradients(init_train_state({"a": jnp.zeros(2)}), grads, 0.1).params["a"]
    np.testing.assert_allclose(moved, [-0.1, 0.1], rtol=1e-4)


@pytest.mark.parametrize("name", ["iql", "cql", "edac"])
def test_target_critics_move_towards_the_critics_by_a_share(
    name, small, start, update, bandit_table
):
    agent = small(name)
    before = start(agent, tau=0.25)
    away = jax.tree.map(lambda x: np.asarray(x) + 1.0, before.target_critic)
    rows = bandit_table.take(jnp.arange(64))
    after, _ = update(agent, before.replace(target_critic=away), rows, jax.random.key(1))
    expected = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * np.asarray(p), away, after.critic.params)
    for one, other in zip(*map(jax.tree.leaves, (after.target_critic, expected)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_gradient_step_comes_with_the_metrics_of_the_loss():
    state = init_train_state(jnp.float32(3.0))
    stepped, metrics = gradient_step(state, 0.1, lambda x, y: (x * x * y, {"obs": x}), 2.0)
    assert float(metrics["obs"]) == 3.0
    jax.tree.map(
        np.testing.assert_array_equal, stepped, apply_gradients(state, jnp.float32(12.0), 0.1)
    )


def test_what_is_terminated_is_worth_its_reward(chain):
    _, table = chain(True)
    rows = table.take(jnp.asarray([0, 1]))
    np.testing.assert_allclose(bootstrapped(rows, 0.5, jnp.full(2, 8.0)), [4.0, 1.0])


def test_a_training_step_draws_its_rows_by_its_key(small, start, bandit_table):
    agent = small("bc")
    learner = start(agent)
    step = jax.jit(lambda key: training_step(agent, learner, bandit_table, key)[1]["actor_loss"])
    one, same, other = (float(step(jax.random.key(k))) for k in (1, 1, 2))
    assert one == same != other


def test_these_are_all_offline_algorithms():
    assert [name for name in algos.names() if algos.get(name).loop == "offline"] == OFFLINE
