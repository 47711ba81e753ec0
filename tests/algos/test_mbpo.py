"""MBPO: rollouts as equation (1) says, known answers found through learned models, sound choice."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.mbpo import MBPO, MBPOConfig, MBPOHyper, act
from worldloom.algos.model_rows import (
    end_features,
    leaky_averages,
    least_squares,
    logistic,
    make_model_table,
    windows,
)
from worldloom.core import draws
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import from_columns

ROWS = 1024


def small(reward=None, penalty=0.0, **options):
    hyper = MBPOHyper(actor_rate=3e-3, model_rate=3e-3, penalty=penalty)
    sizes = {
        "hidden": (32, 32),
        "num_members": 2,
        "model_updates": 1000,
        "batch_size": 64,
    }
    return MBPO(MBPOConfig(**{**sizes, "rollout_length": 2, "hyper": hyper, **options}), reward)


@partial(jax.jit, static_argnums=(0, 2))
def learned(agent, table, updates, learner, key):
    def one(learner, key):
        index, key = draws.split(key)
        rows = table.take(draws.integers(index, (agent.config.batch_size,), table.size))
        return agent.update(learner, rows, key)

    return jax.lax.scan(one, learner, draws.split(key, updates))


def learn(agent, data, updates, seed=0):
    """The learner after so many updates, and its metrics (updates,)."""
    table, (start, key) = agent.table(data), jax.random.split(jax.random.key(seed))
    learner = jax.jit(lambda key: agent.init(key, table.obs_size, table.action_size))(start)
    return learned(agent, table, updates, learner, key)


def draw():
    """Observations, actions and steps (0 or 1) of uniform play."""
    rng = np.random.default_rng(0)
    x, action = rng.uniform(-1.0, 1.0, (2, ROWS))
    return x, action, rng.integers(0, 2, ROWS)


def aim(low=-1.0, high=1.0):
    """One step: the reward is -(a - x / 2)^2, of which a = x / 2 is the best."""
    x, action, step = draw()
    action = low + 0.5 * (action + 1.0) * (high - low)
    obs, ends = np.stack([x, step], 1), np.ones(ROWS, bool)
    return from_columns(obs, action[:, None], -np.square(action - x / 2), obs, ends, ~ends)


def reach():
    """Two steps: the first moves to x' = a for nothing, the second pays -(x' - 0.6)^2."""
    x, action, step = draw()
    second = step == 1
    reward = np.where(second, -np.square(x - 0.6), 0.0)
    after = np.where(second, 0.0, action)
    obs, next_obs = np.stack([x, step], 1), np.stack([after, np.ones(ROWS)], 1)
    return from_columns(obs, action[:, None], reward, next_obs, second, np.zeros(ROWS, bool))


def delayed():
    """Episodes of 32 steps in which x' = x / 2 + the action before this one, which is not seen."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1.0, 1.0, ROWS)
    before = np.where(np.arange(ROWS) % 32, np.roll(action, 1), action)
    obs = np.zeros(ROWS)
    for t in range(1, ROWS):
        obs[t] = 0.5 * obs[t - 1] + before[t - 1] if t % 32 else 0.0
    ends = np.arange(ROWS) % 32 == 31
    return from_columns(
        obs[:, None], action[:, None], -obs, (0.5 * obs + before)[:, None], ~ends & ends, ends
    )


def test_averages_are_those_of_a_loop_over_each_episode():
    rng = np.random.default_rng(0)
    x, first = rng.normal(size=(12, 2)).astype(np.float32), np.arange(12) % 5 == 0
    found = leaky_averages(x, first, (1.0, 4.0))
    assert found.shape == (12, 4)
    for k, constant in enumerate((1.0, 4.0)):
        average = None
        for t in range(12):
            average = x[t] if first[t] else average
            np.testing.assert_allclose(found[t, 2 * k : 2 * k + 2], average, atol=1e-6)
            average = average + (x[t] - average) / constant
    np.testing.assert_allclose(found[3, :2], x[2], atol=1e-6)  # a constant of 1 is what was last
    assert leaky_averages(x, first, ()).shape == (12, 0)


def test_a_rollout_is_that_of_a_loop_over_its_equations():
    """Every number of it, in numpy, row by row: members, penalty, ends, memory, log and bounds."""
    agent = small(num_members=3, history=(2.0, 5.0), rollout_length=4)
    data = reach()
    table = agent.table(data)
    learner = jax.jit(lambda key: agent.init(key, 2, 1))(jax.random.key(0))
    rows, key, gamma = table.take(jnp.asarray([0, 1, 2, 3, ROWS - 2])), jax.random.key(3), 0.9
    members = jax.tree.map(lambda x: x[:3], learner.model.params)
    actor = partial(act, learner.actor.params)
    reward, spread = jax.jit(partial(agent.rollout, actor))(members, rows, key, gamma)
    assert reward.shape == spread.shape == (4, 5)
    weights, scales = jax.device_get((members, table.scales))
    logged = jax.device_get(table.take(jnp.arange(ROWS)))
    inputs_of = np.asarray(table.take(jnp.arange(ROWS)).inputs)

    def forward(layers, x):
        for layer in layers[:-1]:
            x = x @ layer["kernel"] + layer["bias"]
            x = x * sigmoid(x)
        return x @ layers[-1]["kernel"] + layers[-1]["bias"]

    def sigmoid(x):
        return 1.0 / (1.0 + np.exp(-x))

    def change(model, inputs):
        fit = np.asarray(scales.fit(inputs[None]))[0]
        return fit + scales.remainder_std * forward(model["residual"], inputs)

    pairs = [int(draws.integers(one, (), 6)) for one in draws.split(key, 4)]
    gains = jax.device_get(learner.actor.params)
    for row, index in enumerate(np.asarray(rows.index)):
        obs, memory = np.asarray(rows.obs[row]), np.asarray(rows.memory[row])
        weight, known = 1.0, True
        for t, number in enumerate(pairs):
            i = number % 3
            j = (i + 1 + number // 3) % 3
            assert i != j
            action = np.tanh(sum(forward(layers, obs) for layers in gains.values()))
            scaled = (action - scales.action_mean) / scales.action_std
            inputs = np.concatenate([obs, memory, scaled])
            one, other = (jax.tree.map(lambda x, k=k: x[k], weights) for k in (i, j))
            apart = (change(one, inputs) - change(other, inputs)) / scales.change_std
            spread_there = np.sqrt(0.5 * np.mean(np.square(apart)))
            paid = forward(one["reward"], inputs)[0]
            np.testing.assert_allclose(reward[t, row], weight * paid, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(spread[t, row], weight * spread_there, rtol=1e-3, atol=1e-5)
            moved = change(one, inputs)
            here = min(index + t, ROWS - 1)
            if known:
                done = logged.next_obs[here] - logged.obs[here]
                moved = moved + done - change(one, inputs_of[here])
            after = np.clip(obs + moved, scales.low, scales.high)
            features = np.concatenate([obs, after, obs**2, after**2])
            end = sigmoid(features @ scales.end["kernel"] + scales.end["bias"])
            weight *= 0.9 * (1.0 - end)
            if known and not logged.followed[here]:
                known, weight = False, weight * float(logged.terminated[here])
            seen = np.concatenate([obs, scaled])
            memory = memory + (np.tile(seen, 2) - memory) / np.repeat([2.0, 5.0], 3)
            obs = after


def test_whoever_does_what_was_logged_sees_what_was_logged():
    """Whatever the models: what they cannot explain is the log's, up to its time limit."""
    rng, size = np.random.default_rng(0), 64
    obs = np.zeros(size + 1)
    for t in range(size):  # a walk that no model could foresee, which is restarted half way
        obs[t + 1] = 0.5 * obs[t] - 0.25 * np.sin(obs[t]) + rng.normal()
    before, after = obs[:-1, None], obs[1:, None]
    action = np.tanh(0.3 * (before - before.mean()) / before.std())
    ends = np.arange(size) % 32 == 31
    data = from_columns(before, action, -after[:, 0], after, ends & False, ends)
    agent = small(lambda obs, action, next_obs: -next_obs[0], rollout_length=40)
    learner = jax.jit(lambda key: agent.init(key, 1, 1))(jax.random.key(0))
    rows = agent.table(data).take(jnp.asarray([0, 5, 40]))
    policy = lambda obs: jnp.tanh(0.3 * obs)  # noqa: E731
    rollout = jax.jit(partial(agent.rollout, policy))
    reward, _ = rollout(learner.model.params, rows, jax.random.key(1), 1.0)
    scaled = np.asarray(agent.table(data).take(jnp.arange(size)).reward)
    for column, (start, stop) in enumerate([(0, 32), (5, 32), (40, 64)]):
        expected = np.zeros(40)
        expected[: stop - start] = scaled[start:stop]
        np.testing.assert_allclose(reward[:, column], expected, atol=1e-4)


def test_what_is_linear_is_solved_to_the_last_digits():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3)).astype(np.float32)
    x = np.concatenate([x, x[:, :1]], 1)  # two inputs say the same
    kernel, bias = np.asarray([[1.0, 0.0], [-2.0, 0.5], [0.0, 3.0], [1.0, 0.0]]), [0.5, -1.0]
    none = np.zeros(0, int)
    fit = least_squares(x, x @ kernel + bias, none, none)
    np.testing.assert_allclose(fit["kernel"], kernel, atol=1e-5)
    np.testing.assert_allclose(fit["bias"], bias, atol=1e-5)


def personal():
    """Episodes of 16 steps in which x' = x + c a, where c is seen, and differs between episodes."""
    rng = np.random.default_rng(0)
    gain = np.repeat(rng.uniform(0.5, 1.5, ROWS // 16), 16)
    action, obs = rng.uniform(-1.0, 1.0, ROWS), np.zeros(ROWS)
    for t in range(1, ROWS):
        obs[t] = obs[t - 1] + gain[t - 1] * action[t - 1] if t % 16 else 0.0
    after, ends = obs + gain * action, np.arange(ROWS) % 16 == 15
    columns = np.stack([obs, gain], 1), action[:, None], -np.abs(after), np.stack([after, gain], 1)
    return from_columns(*columns, ends & (np.arange(ROWS) < 32), ends & (np.arange(ROWS) >= 32))


def test_each_kind_of_episode_has_a_linear_model_of_its_own():
    scales = make_model_table(personal()).scales
    assert (scales.still.tolist(), scales.moving.tolist()) == ([1], [0, 2])
    assert scales.remainder_std[0] < 1e-4 * scales.change_std[0]
    assert scales.change_std[1] == scales.remainder_std[1] == 0.0


def test_a_row_of_several_steps_is_what_a_loop_makes_of_them():
    data = personal()
    rows, long = jax.device_get((data.rows, windows(data, 5).rows))
    np.testing.assert_array_equal(long.obs, rows.obs)
    for t in range(ROWS):
        last = min(t + 4, t // 16 * 16 + 15)
        np.testing.assert_allclose(long.action[t], rows.action[t : last + 1].mean(0), atol=1e-5)
        np.testing.assert_allclose(long.reward[t], rows.reward[t : last + 1].mean(), atol=1e-5)
        np.testing.assert_array_equal(long.next_obs[t], rows.next_obs[last])
        assert long.terminated[t] == rows.terminated[last]
        assert long.truncated[t] == rows.truncated[last]


def test_rollouts_of_several_steps_replay_every_so_many_th_row():
    table = make_model_table(personal(), interval=5)
    course = table.course(jnp.asarray([32, 40]), 4)
    rows = table.take(jnp.asarray([32, 37, 42, 40, 45]))
    change = rows.next_obs - rows.obs
    np.testing.assert_array_equal(course.change[:3, 0], change[:3])
    np.testing.assert_array_equal(course.change[:2, 1], change[3:])
    # The third row from 32, of 42 to 46, is whole; what comes after it touches the time limit.
    np.testing.assert_array_equal(course.known.T, [[1, 1, 1, 1], [1, 1, 0, 0]])
    np.testing.assert_array_equal(course.goes_on.T, [[1, 1, 1, 0], [1, 0, 1, 1]])


def test_an_end_is_known_by_the_limit_that_was_crossed():
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1.0, 1.0, (4000, 2)).astype(np.float32)
    after = rng.uniform(-1.0, 1.0, (4000, 2)).astype(np.float32)
    fit = logistic(end_features(obs, after), after[:, 0] < -0.9)

    def probability(x):
        there = np.zeros((1, 2)), np.asarray([[x, 0.3]])
        return 1.0 / (1.0 + np.exp(-(end_features(*there) @ fit["kernel"] + fit["bias"])[0]))

    assert probability(-0.97) > 0.9
    assert probability(-0.8) < 0.05
    assert probability(0.5) < 1e-3
    never = logistic(end_features(obs, after), np.zeros(4000, bool))
    assert (end_features(obs, after) @ never["kernel"] + never["bias"]).max() < -1e20


@pytest.mark.slow
def test_the_best_action_depends_on_what_is_seen():
    agent, data = small(), aim()
    learner, metrics = learn(agent, data, 2000)
    x = np.linspace(-0.8, 0.8, 9)
    action = policy_step(agent.policy(learner, data), np.stack([x, np.ones(9)], 1))
    np.testing.assert_allclose(action[:, 0], x / 2, atol=0.1)
    assert metrics["model_loss"][-1] < 0.1 * metrics["model_loss"][0]
    # In two steps of a model in which each ends the episode, only the first is paid.
    np.testing.assert_allclose(metrics["model_return"][-1], 0.0, atol=0.1)


@pytest.mark.slow
def test_an_action_is_judged_by_what_it_leads_to():
    agent, data = small(), reach()
    learner, _ = learn(agent, data, 2000)
    first = np.stack([np.linspace(-0.8, 0.8, 5), np.zeros(5)], 1)
    np.testing.assert_allclose(policy_step(agent.policy(learner, data), first), 0.6, atol=0.15)


@pytest.mark.slow
def test_a_declared_reward_takes_the_place_of_the_logged_one():
    agent = small(lambda obs, action, next_obs: -jnp.square(action[0] + 0.3))
    learner, _ = learn(agent, aim(), 2000)
    action = policy_step(agent.policy(learner, aim()), np.zeros((1, 2)))
    np.testing.assert_allclose(action, -0.3, atol=0.1)


@pytest.mark.slow
def test_until_models_are_learned_the_policy_does_what_is_logged_on_average():
    agent, data = small(policy="linear", model_updates=300), aim(-0.9, -0.7)
    learner, metrics = learn(agent, data, 300)
    (layer,) = learner.selected["linear"]  # a gain for each signal, and a bias
    assert (layer["kernel"].shape, layer["bias"].shape) == ((2, 1), (1,))
    action = policy_step(agent.policy(learner, data), data.mean[None])
    np.testing.assert_allclose(action, -0.8, atol=0.01)
    assert (np.asarray(metrics["held_out_return"]) == 0.0).all()
    assert learner.selected_return < -1e29


@pytest.mark.nightly
@pytest.mark.slow
def test_a_penalty_keeps_the_policy_where_the_models_agree():
    """The reward rises with the action, also beyond the logged ones, where models only guess."""
    away = {}
    for penalty in (0.0, 30.0):
        agent = small(penalty=penalty, num_members=4)
        rng = np.random.default_rng(0)
        action, ends = rng.uniform(-1.0, 0.0, (ROWS, 1)), np.ones(ROWS, bool)
        obs = rng.normal(size=(ROWS, 1))
        data = from_columns(obs, action, action[:, 0], obs + action**2, ends, ~ends)
        learner, _ = learn(agent, data, 2500)
        away[penalty] = float(policy_step(agent.last_policy(learner, data), obs).mean())
    assert away[0.0] > 0.5
    assert away[30.0] < 0.3


@pytest.mark.nightly
@pytest.mark.slow
def test_a_model_with_a_past_knows_what_is_hidden_from_one_without():
    errors = {}
    for history in ((), (1.0,)):
        metrics = learn(small(history=history), delayed(), 1000)[1]
        errors[history] = float(metrics["model_loss"][-100:].mean())
    assert errors[(1.0,)] < 0.2 * errors[()]


@pytest.mark.slow
def test_the_iterate_that_is_kept_earned_most_in_the_models_held_out():
    """At a rate at which the policy jumps about, the last iterate is hardly ever the best."""
    agent, data = small(model_updates=300, policy="linear", hyper=MBPOHyper(actor_rate=0.5)), aim()
    learner, metrics = learn(agent, data, 400)
    returns = np.asarray(metrics["held_out_return"])[300:]
    assert learner.selected_return == returns.max() > returns[-1]
    held_out = jax.tree.map(lambda x: x[2:], learner.model.params)
    rows, policy = agent.table(data).take(learner.starts), partial(act, learner.selected)
    again = jax.jit(partial(agent.rollout, policy))(held_out, rows, jax.random.key(0), 0.99)
    np.testing.assert_allclose(again[0].sum(0).mean(), learner.selected_return, rtol=1e-4)


def test_a_time_constant_below_a_step_is_refused():
    with pytest.raises(ValueError, match="time constants are steps"):
        MBPOConfig(history=(0.5,))
