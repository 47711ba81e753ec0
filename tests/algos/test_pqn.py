"""PQN: probe problems with known answers, and its returns against a plain loop."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table_world import (
    ACTIONS,
    GO_ON,
    STATES,
    TERMINATE,
    TRUNCATE,
    Seen,
    TableWorld,
    gae_by_loop,
    table,
)

from worldloom.algos import on_policy, pqn
from worldloom.algos.on_policy import Rollout
from worldloom.algos.pqn import PQN, PQNConfig
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import autoreset, batch
from worldloom.nn.networks import Network, Networks
from worldloom.nn.values import NOT_ALLOWED, LayerNormMLP

GAMMA, UPDATES, NUM_WORLDS = 0.6, 80, 32
CONFIG = PQNConfig(
    unroll_length=8,
    num_epochs=4,
    num_minibatches=2,
    gamma=GAMMA,
    learning_rate=0.01,
    anneal_updates=UPDATES,
    epsilon_updates=UPDATES // 2,
    epsilon_min=0.2,
)


def masked_values(config) -> Network:
    net = LayerNormMLP((16,), ACTIONS)
    return Network(
        init=lambda key, obs: net.init(key, obs.state),
        apply=lambda params, obs: jnp.where(obs.allowed, net.apply(params, obs.state), NOT_ALLOWED),
    )


AGENT = PQN(CONFIG, ACTIONS, Networks(q_values=masked_values, masked=True))
WORLDS = batch(autoreset(TableWorld()), NUM_WORLDS)


@jax.jit
def program(world, key):
    """The state after so many updates, the metrics of each, and the best reward met."""
    init_key, reset_key, play_key = jax.random.split(key, 3)
    worlds, timestep = WORLDS.reset(reset_key, world)

    def one(carry, key):
        state, worlds, timestep = carry
        keys = jax.random.split(key)
        worlds, timestep, rollout, steps = on_policy.collect(
            AGENT, WORLDS, state, worlds, timestep, world, keys[0]
        )
        state, metrics = AGENT.update(state, rollout, keys[1])
        return (state, worlds, timestep), (metrics, steps.reward.max())

    start = (AGENT.init(init_key, timestep.obs), worlds, timestep)
    (state, *_), (metrics, best) = jax.lax.scan(one, start, jax.random.split(play_key, UPDATES))
    return AGENT.values(state, Seen(jnp.eye(STATES), world.allowed)), metrics, best.max()


def learn(world):
    values, metrics, best = program(world, jax.random.key(0))
    return np.asarray(values), metrics, float(best)


# Probe problems --------------------------------------------------------------------------------


def test_the_reward_of_each_action_in_each_state_is_its_value():
    reward = [[1.0, -1.0], [-0.5, 0.5], [0.0, 0.0]]
    values, metrics, _ = learn(table([0, 1], reward=reward))
    np.testing.assert_allclose(values[:2], reward[:2], atol=0.05)
    assert metrics["skipped"].sum() == 0
    assert metrics["explained_variance"][-1] > metrics["explained_variance"][0]


def test_the_next_state_is_worth_its_best_action_and_a_share_of_what_was_done():
    world = table(
        [0], then=1, reward=[[0, 0], [1, -1], [0, 0]], ending=[GO_ON, TERMINATE, TERMINATE]
    )
    values, *_ = learn(world)
    # Peng's Q(lambda) counts exploring too: with chance 0.2 an action is drawn, half of them -1.
    played, share = 0.9 * 1.0 + 0.1 * -1.0, CONFIG.q_lambda
    first = GAMMA * ((1 - share) * 1.0 + share * played)
    np.testing.assert_allclose(values[:2], [[first, first], [1.0, -1.0]], atol=0.06)


def test_time_running_out_is_bootstrapped_from_what_was_seen_last():
    # From 0 time runs out in 1, which is worth 2. Bootstrapping from the first observation of the
    # next episode, 0 or 1, would give 2.29.
    world = table([0, 1], then=[1, 1, 1], reward=[1, 2, 0], ending=[TRUNCATE, TERMINATE, 1])
    values, *_ = learn(world)
    np.testing.assert_allclose(values[:2], [[1 + GAMMA * 2] * 2, [2.0, 2.0]], atol=0.08)


def test_a_reward_without_end_is_worth_its_series():
    values, *_ = learn(table([0], reward=1.0, ending=TRUNCATE))
    np.testing.assert_allclose(values[0], 1 / (1 - GAMMA), atol=0.1)


def test_a_masked_action_is_never_taken_however_well_it_pays():
    reward = [[0.5, 100.0], [0, 0], [0, 0]]
    values, metrics, best = learn(table([0], reward=reward, allowed=[[1, 0], [1, 1], [1, 1]]))
    assert best == 0.5, "the masked action was taken"
    assert values[0, 0] == pytest.approx(0.5, abs=0.02)
    assert jnp.isfinite(metrics["loss"]).all()


# Equations and schedules -----------------------------------------------------------------------


@pytest.mark.parametrize("q_lambda", [0.0, 0.7, 1.0])
def test_returns_mix_the_next_value_with_the_next_return(q_lambda):
    rng = np.random.default_rng(0)
    steps, worlds = 10, 5
    rewards = rng.normal(size=(steps, worlds)).astype(np.float32)
    values = rng.normal(size=(steps + 1, worlds)).astype(np.float32)
    ending = rng.choice(3, (steps, worlds), p=[0.7, 0.2, 0.1])
    ended, cut = ending == TERMINATE, ending == TRUNCATE
    next_values = np.where(cut, rng.normal(size=(steps, worlds)), values[1:]).astype(np.float32)
    agent = PQN(replace(CONFIG, q_lambda=q_lambda, reward_scale=2.0), ACTIONS)
    zeros = np.zeros_like(rewards)
    rollout = Rollout(zeros, zeros, zeros, values[:-1], rewards, ended, cut, next_values)
    expected = np.zeros((steps, worlds))
    for world in range(worlds):
        for t in reversed(range(steps)):
            at = (t, world)
            goes_on = t < steps - 1 and not ended[at] and not cut[at]
            after = expected[t + 1, world] if goes_on else next_values[at]
            mixed = (1 - q_lambda) * next_values[at] + q_lambda * after
            expected[at] = 2.0 * rewards[at] + GAMMA * (0.0 if ended[at] else mixed)
    np.testing.assert_allclose(
        jax.jit(agent.samples)(rollout).returns.reshape(expected.shape), expected, atol=1e-5
    )
    advantage = gae_by_loop(2 * rewards, values[:-1], next_values, ended, cut, GAMMA, q_lambda)
    np.testing.assert_allclose(expected - values[:-1], advantage, atol=1e-5)


def test_exploration_and_learning_rate_follow_the_number_of_updates():
    config = PQNConfig(
        epsilon=1.0,
        epsilon_min=0.2,
        epsilon_updates=10,
        learning_rate=0.1,
        anneal_updates=4,
        final_learning_rate=0.02,
    )
    agent = PQN(config, ACTIONS)
    counts = jnp.asarray([0, 5, 10, 99])
    np.testing.assert_allclose(jax.vmap(agent.epsilon)(counts), [1.0, 0.6, 0.2, 0.2], rtol=1e-5)
    np.testing.assert_allclose(
        jax.vmap(agent.learning_rate)(jnp.asarray([0, 2, 4, 9])), [0.1, 0.06, 0.02, 0.02], rtol=1e-5
    )


def plain(**options):
    spec = EnvSpec("plain", Box(-1, 1, (3,)), Discrete(4))
    return pqn.PQN.make(PQNConfig(hidden=(8,), **options), spec, Networks())


def test_actions_are_random_as_often_as_the_schedule_says():
    agent = plain(epsilon=0.8)
    obs = jax.random.normal(jax.random.key(0), (4000, 3))
    state = jax.jit(agent.init)(jax.random.key(1), obs)
    act = jax.jit(agent.act)
    greedy, extras = act(state, obs, jax.random.key(2), explore=0.0)
    q = agent.values(state, obs)
    np.testing.assert_array_equal(greedy, q.argmax(axis=1))
    np.testing.assert_allclose(extras.value, q.max(axis=1), atol=1e-6)
    assert (extras.log_prob == 0).all()
    action, _ = act(state, obs, jax.random.key(2))
    assert np.mean(action != greedy) == pytest.approx(0.8 * 3 / 4, abs=0.04)
    half, _ = act(state, obs, jax.random.key(2), explore=0.5)
    assert np.mean(half != greedy) == pytest.approx(0.4 * 3 / 4, abs=0.04)


def test_layer_norm_makes_values_blind_to_the_scale_of_activations():
    net = LayerNormMLP((16,), 3)
    obs = jax.random.normal(jax.random.key(0), (5, 4))
    params = net.init(jax.random.key(1), obs)
    layer = params["params"]["Linear_0"]
    louder = params["params"] | {"Linear_0": jax.tree.map(lambda x: 1000.0 * x, layer)}
    values = net.apply(params, obs)
    np.testing.assert_allclose(net.apply({"params": louder}, obs), values, atol=1e-3)
    assert np.ptp(values) > 0.1


def test_the_normaliser_learns_from_each_rollout_after_the_update():
    agent = plain(normalise_observations=True, num_epochs=1, num_minibatches=1)
    obs = 5.0 + 2.0 * jax.random.normal(jax.random.key(0), (16, 8, 3))
    flat = jnp.zeros((16, 8))
    no = jnp.zeros((16, 8), bool)
    state = jax.jit(agent.init)(jax.random.key(1), obs[0])
    action = jnp.zeros((16, 8), jnp.int32)
    rollout = Rollout(obs, action, flat, flat, flat, no, no, flat)
    after, metrics = jax.jit(agent.update)(state, rollout, jax.random.key(2))
    assert after.updates == 1
    np.testing.assert_allclose(after.normaliser.mean, obs.mean((0, 1)), rtol=1e-4)
    assert all(x.shape == () and x.dtype == jnp.float32 for x in jax.tree.leaves(metrics))


def test_devices_that_share_the_worlds_learn_what_one_learns_from_all():
    """With a mapped axis in the place of devices."""
    alone = plain(num_epochs=2, num_minibatches=3)
    together = replace(alone, device_axis="devices")
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(4, 6, 3)).astype(np.float32)
    numbers = rng.normal(size=(3, 4, 6)).astype(np.float32)
    action = rng.integers(0, 4, (4, 6)).astype(np.int32)
    no = np.zeros((4, 6), bool)
    rollout = Rollout(obs, action, numbers[0], numbers[0], numbers[1], no, no, numbers[2])
    state = jax.jit(alone.init)(jax.random.key(0), obs[0])
    act = jax.vmap(together.act, in_axes=(None, 0, None), axis_name="devices")
    chosen, _ = jax.jit(act)(state, obs[0].reshape(2, 3, 3), jax.random.key(2))
    np.testing.assert_array_equal(chosen.reshape(6), alone.act(state, obs[0], jax.random.key(2))[0])
    one, metrics = jax.jit(alone.update)(state, rollout, jax.random.key(1))
    share = jax.vmap(together.update, in_axes=(None,) * 3, axis_size=2, axis_name="devices")
    both, shared = jax.jit(share)(state, rollout, jax.random.key(1))
    for ours, theirs in zip(
        jax.tree.leaves((both, shared)), jax.tree.leaves((one, metrics)), strict=True
    ):
        np.testing.assert_allclose(ours[0], theirs, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q_lambda": 1.5}, r"pqn: q_lambda=1.5; it must be in \[0, 1\]"),
        ({"hidden": ()}, r"pqn: hidden=\(\); it must not be empty"),
        ({"learning_rate": 0.0}, "pqn: learning_rate=0.0; it must be positive"),
        ({"epsilon_updates": -1}, "pqn: epsilon_updates=-1; it must be 0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        PQNConfig(**wrong)
