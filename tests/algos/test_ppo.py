"""PPO: probe problems with known answers, its equations against plain loops and rlax."""

from dataclasses import replace
from functools import partial

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
    Table,
    TableWorld,
    gae_by_loop,
    table,
)

from worldloom.algos import on_policy, ppo
from worldloom.algos.on_policy import Rollout, Samples, gae
from worldloom.algos.ppo import PPO, PPOConfig
from worldloom.core import draws
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import autoreset, batch
from worldloom.core.types import TimeStep
from worldloom.nn.actor_critic import ActorCritic
from worldloom.nn.networks import Network, Networks
from worldloom.nn.normaliser import observe
from worldloom.nn.policy import policy_step

GAMMA = 0.6

NETWORK = ActorCritic(num_actions=ACTIONS, hidden=(16,))
NUM_WORLDS = 32
CONFIG = PPOConfig(
    unroll_length=8,
    num_epochs=4,
    num_minibatches=2,
    gamma=GAMMA,
    learning_rate=0.02,
    anneal_updates=60,
    entropy_cost=0.01,
    final_entropy_cost=0.0,
)
AGENT = PPO(
    CONFIG,
    Network(
        lambda key, obs: NETWORK.init(key, obs.state, obs.allowed),
        lambda params, obs: NETWORK.apply(params, obs.state, obs.allowed),
    ),
)
WORLDS = batch(autoreset(TableWorld()), NUM_WORLDS)


def first(agent, env, params, key):
    """A fresh learner, and worlds that have just been reset."""
    init_key, reset_key = jax.random.split(key)
    worlds, timestep = env.reset(reset_key, params)
    return agent.init(init_key, timestep.obs), worlds, timestep


def iteration(agent, env, state, worlds, timestep, params, key):
    """A rollout and the update from it; also the time steps (T, B, ...)."""
    play_key, learn_key = draws.split(key)
    worlds, timestep, rollout, steps = on_policy.collect(
        agent, env, state, worlds, timestep, params, play_key
    )
    state, metrics = agent.update(state, rollout, learn_key)
    return state, worlds, timestep, metrics, steps


begin = jax.jit(partial(first, AGENT, WORLDS))
iterate = jax.jit(partial(iteration, AGENT, WORLDS))
play = jax.jit(partial(on_policy.collect, AGENT, WORLDS))
update = jax.jit(AGENT.update)
policy = jax.jit(AGENT.policy)


def learn(world: Table):
    """Values (states,), probabilities (states, actions), metrics and the best reward met."""
    state, worlds, timestep = begin(world, jax.random.key(0))
    history, best = [], -np.inf
    for key in jax.random.split(jax.random.key(1), CONFIG.anneal_updates):
        state, worlds, timestep, metrics, steps = iterate(state, worlds, timestep, world, key)
        history.append(metrics)
        best = max(best, float(steps.reward.max()))
    distribution, value = policy(state, Seen(jnp.eye(STATES), world.allowed))
    return np.asarray(value), np.asarray(distribution.probs), history, best


# Probe problems --------------------------------------------------------------------------------


def test_a_constant_reward_is_the_value():
    values, *_ = learn(table([0], reward=1.0))
    assert values[0] == pytest.approx(1.0, abs=0.02)


def test_the_value_depends_on_what_is_seen():
    values, *_ = learn(table([0, 1], reward=[1.0, -1.0, 0.0]))
    np.testing.assert_allclose(values[:2], [1.0, -1.0], atol=0.03)


def test_a_reward_one_step_later_is_discounted_once():
    world = table([0], then=[1, 1, 1], reward=[0, 1, 0], ending=[GO_ON, TERMINATE, TERMINATE])
    values, *_ = learn(world)
    np.testing.assert_allclose(values[:2], [GAMMA, 1.0], atol=0.03)


def test_the_action_that_pays_is_learned():
    values, probs, metrics, _ = learn(table([0], reward=[[-1, 1], [0, 0], [0, 0]]))
    assert probs[0, 1] > 0.98
    assert values[0] == pytest.approx(1.0, abs=0.06)
    assert metrics[-1].entropy < 0.1 < metrics[0].entropy


def test_the_right_action_depends_on_what_is_seen():
    values, probs, *_ = learn(table([0, 1], reward=[[1, -1], [-1, 1], [0, 0]]))
    assert probs[0, 0] > 0.95
    assert probs[1, 1] > 0.95
    np.testing.assert_allclose(values[:2], 1.0, atol=0.12)


def test_a_loss_now_is_taken_for_a_larger_gain_later():
    world = table(
        [0],
        then=[[2, 1], [1, 1], [2, 2]],
        reward=[[0.1, -0.2], [1, 1], [0, 0]],
        ending=[GO_ON, TERMINATE, TERMINATE],
    )
    values, probs, *_ = learn(world)
    assert probs[0, 1] > 0.95
    assert values[0] == pytest.approx(-0.2 + GAMMA, abs=0.05)


def test_a_masked_action_is_never_taken_however_well_it_pays():
    reward = [[0.5, 100.0], [0, 0], [0, 0]]
    values, probs, _, best = learn(table([0], reward=reward, allowed=[[1, 0], [1, 1], [1, 1]]))
    assert probs[0, 1] == 0.0
    assert best == 0.5, "the masked action was taken"
    assert values[0] == pytest.approx(0.5, abs=0.02)


def test_time_running_out_is_worth_more_than_the_task_ending():
    terminated, *_ = learn(table([0], reward=1.0, ending=TERMINATE))
    truncated, *_ = learn(table([0], reward=1.0, ending=TRUNCATE))
    assert terminated[0] == pytest.approx(1.0, abs=0.02)
    assert truncated[0] == pytest.approx(1 / (1 - GAMMA), abs=0.1)


def test_truncation_bootstraps_from_what_was_seen_last_not_from_the_next_episode():
    # Episodes start in 0 or 1. From 0 time runs out in 1, which is worth 2; 0 itself is worth
    # 1 + 0.6 * 2. Bootstrapping from the first observation of the next episode would give
    # v = 1 + 0.6 * (v + 2) / 2, which is 2.29.
    world = table([0, 1], then=[1, 1, 1], reward=[1, 2, 0], ending=[TRUNCATE, TERMINATE, 1])
    values, *_ = learn(world)
    np.testing.assert_allclose(values[:2], [1 + GAMMA * 2, 2.0], atol=0.04)


class Aim:
    """Reward is the nearness of the action (2,) to a place that depends on what is seen."""

    spec = EnvSpec("aim", Box(-1, 1, (1,)), Box(-5, 5, (2,)))

    def default_params(self):
        return jnp.asarray([[1.0, -2.0], [0.5, 0.5]])  # slope and offset of the place

    def _timestep(self, seen, reward):
        return seen, TimeStep(seen, reward, reward < 0, jnp.asarray(False), seen, ())

    def reset(self, key, params):
        return self._timestep(100 + 10 * jax.random.normal(key, (1,)), jnp.float32(0))

    def step(self, key, state, action, params):
        place = params[0] * (state - 100) / 10 + params[1]
        return self._timestep(state, -jnp.square(action - place).sum() - 1e-9)


def test_a_continuous_action_finds_its_target_through_the_normaliser():
    config = replace(
        CONFIG,
        normalise_observations=True,
        anneal_updates=150,
        entropy_cost=0.0,
        num_minibatches=4,
        learning_rate=0.01,
    )
    agent = PPO(config, ActorCritic(action_size=2, hidden=(32,)))
    env = batch(autoreset(Aim()), 64)
    params = env.default_params()

    @jax.jit
    def program(key):
        def one(carry, key):
            *carry, metrics, _ = iteration(agent, env, *carry, params, key)
            return tuple(carry), metrics

        keys = jax.random.split(key, config.anneal_updates)
        (state, *_), metrics = jax.lax.scan(one, first(agent, env, params, key), keys)
        obs = jnp.asarray([[90.0], [100.0], [110.0]])
        return state, metrics, agent.act(state, obs, key, explore=0.0)[0]

    state, metrics, action = program(jax.random.key(0))
    places = params[0] * jnp.asarray([[-1.0], [0.0], [1.0]]) + params[1]
    np.testing.assert_allclose(action, places, atol=0.2)
    assert state.normaliser.mean[0] == pytest.approx(100, abs=1)
    assert state.normaliser.var[0] == pytest.approx(100, rel=0.1)
    assert metrics.skipped.sum() == 0
    assert metrics.entropy[-1] < metrics.entropy[0] - 1, "it grew surer"


# Equations -------------------------------------------------------------------------------------


def random_steps(seed=0, steps=12, worlds=6):
    """rewards, values, next_values, terminated, truncated: (T, B) each, next values by chance."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(3, steps, worlds)).astype(np.float32)
    ending = rng.choice(3, (steps, worlds), p=[0.6, 0.2, 0.2])
    return *numbers, ending == TERMINATE, ending == TRUNCATE


@pytest.mark.parametrize("gae_lambda", [0.0, 0.9, 1.0])
def test_advantages_are_those_of_a_plain_loop(gae_lambda):
    steps = random_steps()
    assert steps[3].any()
    assert steps[4].any()
    found = jax.jit(gae)(*steps, 0.97, gae_lambda)
    np.testing.assert_allclose(found, gae_by_loop(*steps, 0.97, gae_lambda), atol=1e-5)


def test_an_ending_that_is_both_is_a_termination():
    rewards, values, next_values, terminated, _ = map(jnp.asarray, random_steps())
    both = gae(rewards, values, next_values, terminated, terminated, 0.9, 0.8)
    alone = gae(rewards, values, next_values, terminated, jnp.zeros_like(terminated), 0.9, 0.8)
    np.testing.assert_array_equal(both, alone)


def test_advantages_are_those_of_rlax():
    # Its import is slow and it pulls in much: here it is an oracle, and no dependency.
    rlax = pytest.importorskip("rlax", reason="rlax, an oracle for advantages, is not installed")
    rewards, values, last, terminated, truncated = random_steps(1)
    # rlax has one value for each observation, so here an episode's last one is as good as the
    # next one's first; it cuts the sum where lambda is 0.
    all_values = np.concatenate([values, last[:1]])
    ours = jax.jit(gae)(rewards, values, all_values[1:], terminated, truncated, 0.97, 0.9)
    for world in range(rewards.shape[1]):
        discount = jnp.asarray(np.where(terminated[:, world], 0.0, 0.97), jnp.float32)
        lambdas = jnp.asarray(np.where(truncated[:, world], 0.0, 0.9), jnp.float32)
        theirs = rlax.truncated_generalized_advantage_estimation(
            jnp.asarray(rewards[:, world]), discount, lambdas, jnp.asarray(all_values[:, world])
        )
        np.testing.assert_allclose(ours[:, world], theirs, atol=1e-5)


def random_samples(state, seed=0, size=64):
    rng = np.random.default_rng(seed)
    seen = Seen(rng.normal(size=(size, STATES)).astype(np.float32), rng.random((size, 2)) < 0.8)
    action = np.where(seen.allowed[:, 1], 1, 0).astype(np.int32)
    now = policy(state, seen)[0].log_prob(jnp.asarray(action))
    old = np.asarray(now) + rng.normal(size=size).astype(np.float32) * 0.3
    numbers = rng.normal(size=(2, size)).astype(np.float32)
    return Samples(seen, action, old, numbers[0], numbers[1])


def test_the_loss_is_the_clipped_one_of_the_paper():
    state = AGENT.init(jax.random.key(0), Seen(jnp.zeros((1, STATES)), jnp.ones((1, 2), bool)))
    batch = random_samples(state)
    distribution, value = policy(state, batch.obs)
    probs = np.asarray(distribution.probs, np.float64)
    chosen = probs[range(64), batch.action]
    ratio = chosen / np.exp(batch.log_prob.astype(np.float64))
    advantage = batch.advantage - batch.advantage.mean()
    advantage /= batch.advantage.std()
    objective = []
    for r, a in zip(ratio, advantage, strict=True):
        objective.append(min(r * a, 1.2 * a) if a > 0 else min(r * a, max(r, 0.8) * a))
    entropy = [-sum(p * np.log(p) for p in row if p > 0) for row in probs]
    value_loss = np.mean((np.asarray(value) - batch.returns) ** 2) / 2
    expected = -np.mean(objective) + 0.5 * value_loss - 0.01 * np.mean(entropy)
    loss, parts = jax.jit(AGENT.loss)(state.params, state, batch)
    assert loss == pytest.approx(expected, rel=1e-4)
    assert parts["entropy"] == pytest.approx(np.mean(entropy), rel=1e-4)
    assert parts["kl"] == pytest.approx(np.mean(ratio - 1 - np.log(ratio)), rel=1e-3)
    outside = (ratio < 0.8) | (ratio > 1.2)
    assert 0.2 < outside.mean() < 0.8, "both sides of the clip must be met"
    assert parts["clip_fraction"] == pytest.approx(outside.mean())


def test_a_ratio_that_has_gone_too_far_the_right_way_gives_no_gradient():
    def slope(log_prob, advantage):
        objective = partial(ppo.clipped_objective, clip_epsilon=0.2)
        return jax.grad(lambda x: objective(x, 0.0, advantage)[0])(jnp.log(log_prob))

    assert slope(1.3, 1.0) == 0.0
    assert slope(0.7, -1.0) == 0.0
    assert slope(1.3, -1.0) == pytest.approx(-1.3)
    assert slope(0.7, 1.0) == pytest.approx(0.7)


# Programs --------------------------------------------------------------------------------------

MIXED = table(
    [0, 1],
    then=[[1, 0], [0, 1], [2, 2]],
    reward=[[0, 1], [2, 0], [0, 0]],
    ending=[[GO_ON, TRUNCATE], [TERMINATE, GO_ON], [1, 1]],
)


def start(seed=0):
    return begin(MIXED, jax.random.key(seed))


def played():
    """A fresh state, and a rollout with endings of both kinds in it."""
    state, worlds, timestep = start()
    return state, play(state, worlds, timestep, MIXED, jax.random.key(1))[2]


def test_a_rollout_records_what_was_thought_and_where_it_led():
    state, worlds, timestep = start()
    _, after, rollout, steps = play(state, worlds, timestep, MIXED, jax.random.key(1))
    assert rollout.reward.shape == (CONFIG.unroll_length, NUM_WORLDS)
    flat = on_policy.merge_axes(rollout)
    distribution, value = policy(state, flat.obs)
    np.testing.assert_allclose(flat.value, value, atol=1e-6)
    np.testing.assert_allclose(flat.log_prob, distribution.log_prob(flat.action), atol=1e-6)
    goes_on = ~np.asarray(flat.terminated)
    assert np.asarray(flat.truncated).any()
    assert not goes_on.all()
    led_to = policy(state, on_policy.merge_axes(steps.final_obs))[1]
    np.testing.assert_allclose(flat.next_value[goes_on], led_to[goes_on], atol=1e-6)
    np.testing.assert_array_equal(rollout.obs.state[1:], steps.obs.state[:-1])
    np.testing.assert_array_equal(after.obs.state, steps.obs.state[-1])


def test_the_same_seed_gives_the_same_result_and_another_another():
    one = iterate(*start(), MIXED, jax.random.key(1))
    again = iterate(*start(), MIXED, jax.random.key(1))
    other = iterate(*start(), MIXED, jax.random.key(2))
    jax.tree.map(np.testing.assert_array_equal, one, again)
    assert not np.array_equal(one[-1].reward, other[-1].reward)


def test_nothing_is_compiled_again_in_steady_state():
    state, worlds, timestep = start()
    for i in range(4):
        state, worlds, timestep, *_ = iterate(state, worlds, timestep, MIXED, jax.random.key(i))
    assert iterate._cache_size() == 1
    assert state.updates == 4


def test_the_metrics_say_how_well_values_explain_returns():
    state, rollout = played()
    perfect = rollout.replace(reward=rollout.reward * 0, next_value=rollout.value / GAMMA)
    perfect = perfect.replace(terminated=rollout.terminated & False)
    assert update(state, perfect, jax.random.key(0))[1].explained_variance > 0.999
    blind = rollout.replace(value=rollout.value * 0, next_value=rollout.next_value * 0)
    _, metrics = update(state, blind, jax.random.key(0))
    assert abs(metrics.explained_variance) < 1e-5
    assert all(x.shape == () and x.dtype == jnp.float32 for x in jax.tree.leaves(metrics))


def test_devices_that_share_the_worlds_learn_what_one_learns_from_all():
    """With a mapped axis in the place of devices."""
    steps, worlds = 12, 6
    config = PPOConfig(
        unroll_length=steps, num_epochs=2, num_minibatches=3, normalise_observations=True
    )
    network = ActorCritic(action_size=2, hidden=(16,))
    alone, together = PPO(config, network), PPO(config, network, device_axis="devices")
    other = np.arange(worlds) >= worlds // 2  # these see and earn quite other things
    rewards, values, next_values, *endings = random_steps(steps=steps, worlds=worlds)
    rng = np.random.default_rng(2)
    obs = rng.normal(size=(steps, worlds, 3)) * (1 + other[:, None]) + 4 * other[:, None]
    obs, action = obs.astype(np.float32), rng.normal(size=(steps, worlds, 2)).astype(np.float32)
    state = jax.jit(alone.init)(jax.random.key(0), obs[0])
    distribution, _ = jax.jit(alone.policy)(state, obs.reshape(-1, 3))
    acted = distribution.log_prob(jnp.asarray(action.reshape(-1, 2)))
    acted = acted.reshape(steps, worlds) + rng.normal(size=(steps, worlds)).astype(np.float32) / 10
    earned = (rewards + 3 * other).astype(np.float32)
    weight = (rng.random((steps, worlds)) > 0.3).astype(np.float32)  # not as many in each half
    rollout = Rollout(obs, action, acted, values, earned, *endings, next_values, weight)

    update = jax.jit(alone.update)
    share = jax.vmap(together.update, in_axes=(0, None, None), axis_name="devices")
    share = jax.jit(share)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    keys = jax.random.split(jax.random.key(1), 2)
    for key in keys:  # twice: the second sees through what the normaliser learned in the first
        state, metrics = update(state, rollout, key)
        both, shared = share(both, rollout, key)
        for ours, theirs in zip(
            jax.tree.leaves((both, shared)), jax.tree.leaves((state, metrics)), strict=True
        ):
            np.testing.assert_array_equal(ours[0], ours[1])
            np.testing.assert_allclose(ours[0], theirs, rtol=1e-5, atol=2e-6)


def test_what_is_not_finite_changes_nothing_and_is_counted():
    state, rollout = played()
    broken = rollout.replace(reward=rollout.reward * jnp.nan)
    new, metrics = update(state, broken, jax.random.key(0))
    assert metrics.skipped == CONFIG.num_epochs * CONFIG.num_minibatches
    jax.tree.map(np.testing.assert_array_equal, new.params, state.params)
    jax.tree.map(np.testing.assert_array_equal, new.opt_state, state.opt_state)
    assert np.isfinite(metrics.loss)
    one = rollout.replace(reward=rollout.reward.at[0, 0].set(jnp.inf))
    new, metrics = update(state, one, jax.random.key(0))
    assert metrics.skipped == CONFIG.num_epochs, "once in each pass"
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(new))


def test_every_epoch_meets_every_step_once_in_another_order():
    orders = [np.asarray(on_policy.shuffled(jax.random.key(i), 256, 4)) for i in range(3)]
    for rows in orders:
        assert rows.shape == (4, 64)
        np.testing.assert_array_equal(np.sort(rows.ravel()), np.arange(256))
    assert not np.array_equal(orders[0], orders[1])
    near = np.abs(np.diff(orders[2].ravel())) == 1
    assert near.mean() < 0.05, "neighbours in time are not left together"


def test_learning_rate_and_entropy_cost_fall_to_their_ends():
    config = PPOConfig(
        learning_rate=0.1,
        anneal_updates=10,
        final_learning_rate=0.02,
        entropy_cost=0.5,
        final_entropy_cost=0.1,
    )
    agent = PPO(config, NETWORK)
    updates = jnp.asarray([0, 5, 10, 99])
    rates, costs = (jax.vmap(f)(updates) for f in (agent.learning_rate, agent.entropy_cost))
    np.testing.assert_allclose(rates, [0.1, 0.06, 0.02, 0.02], rtol=1e-5)
    np.testing.assert_allclose(costs, [0.5, 0.3, 0.1, 0.1], rtol=1e-5)
    assert PPO(PPOConfig(), NETWORK).learning_rate(jnp.int32(10**6)) == pytest.approx(3e-4)


def test_without_exploration_the_likeliest_action_is_taken():
    state, _, timestep = start()
    action, extras = AGENT.act(state, timestep.obs, jax.random.key(0), explore=0.0)
    probs = policy(state, timestep.obs)[0].probs
    traced = AGENT.act(state, timestep.obs, jax.random.key(0), explore=jnp.float32(0.0))[0]
    np.testing.assert_array_equal(traced, action)
    np.testing.assert_array_equal(action, np.asarray(probs).argmax(axis=1))
    np.testing.assert_allclose(np.exp(extras.log_prob), np.asarray(probs).max(axis=1), rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"unroll_length": 0}, "unroll_length=0; it must be at least 1"),
        ({"gamma": 1.5}, r"gamma=1.5; it must be in \[0, 1\]"),
        ({"clip_epsilon": 0.0}, "clip_epsilon=0.0; it must be positive"),
        ({"final_entropy_cost": -1.0}, "final_entropy_cost=-1.0; it must be 0 or more"),
        ({"activation": "tan"}, "activation='tan' is not known; did you mean 'tanh'"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**wrong)


def test_a_rollout_that_minibatches_do_not_divide_is_refused():
    state, rollout = played()
    agent = PPO(replace(CONFIG, num_minibatches=3), AGENT.network)
    with pytest.raises(ValueError, match="256 steps does not split into num_minibatches=3"):
        agent.update(state, rollout, jax.random.key(0))


def test_steps_of_weight_zero_teach_nothing():
    state, rollout = played()
    rest = jnp.arange(NUM_WORLDS) >= 8
    weight = jnp.broadcast_to(rest, rollout.reward.shape).astype(jnp.float32)
    one = AGENT.samples(rollout.replace(weight=weight))
    spoilt = one.replace(returns=jnp.where(one.weight > 0, one.returns, 1e6))
    loss = jax.jit(AGENT.loss)
    assert loss(state.params, state, one)[0] == loss(state.params, state, spoilt)[0]
    full = one.replace(weight=jnp.ones_like(one.weight))
    bare = loss(state.params, state, one.replace(weight=None))[0]
    assert loss(state.params, state, full)[0] == pytest.approx(float(bare), rel=1e-5)


# Made for a world ------------------------------------------------------------------------------


@pytest.mark.parametrize("normalised", [False, True])
def test_the_deterministic_policy_is_the_mode(normalised):
    spec = EnvSpec("arm", Box(-1, 1, (3,)), Box(-1, 1, (2,)))
    config = PPOConfig(hidden=(8,), normalise_observations=normalised)
    agent = ppo.make(config, spec, Networks())
    obs = 5.0 + 3.0 * jax.random.normal(jax.random.key(1), (4, 6, 3))
    state = jax.jit(agent.init)(jax.random.key(0), obs[0])
    state = state.replace(normaliser=observe(state.normaliser, obs))
    action, _ = agent.act(state, obs[0], jax.random.key(2), explore=0.0)
    exported = policy_step(agent.deterministic(state), obs[0])
    np.testing.assert_allclose(exported, jnp.clip(action, -1, 1), atol=1e-5)


def test_a_critic_may_see_what_the_policy_does_not():
    spec = EnvSpec("arm", Box(-1, 1, (3,)), Discrete(2))
    networks = Networks(
        encode=lambda obs: obs["own"],
        critic_encode=lambda obs: jnp.concatenate([obs["own"], obs["more"]], -1),
    )
    agent = ppo.make(PPOConfig(hidden=(8,)), spec, networks)
    obs = {"own": jnp.ones((4, 3)), "more": jnp.ones((4, 2))}
    state = jax.jit(agent.init)(jax.random.key(0), obs)
    other = obs | {"more": jnp.zeros((4, 2))}
    (one, value), (two, other_value) = agent.policy(state, obs), agent.policy(state, other)
    np.testing.assert_array_equal(one.logits, two.logits)
    assert (value != other_value).all()
