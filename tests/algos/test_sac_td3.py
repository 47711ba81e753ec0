"""SAC and TD3: equations, acting, statistics; that they learn is in tests/learn."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import algos
from worldloom.algos.actor_critic import init_train_state
from worldloom.algos.sac import SAC, SACConfig
from worldloom.algos.td3 import TD3, TD3Config
from worldloom.core.types import Batch
from worldloom.nn.networks import Networks
from worldloom.nn.offline import critics, deterministic, gaussian, squash
from worldloom.nn.policy import policy_step

ROWS, FEATURES, SIZE = 16, 3, 2


def make(name, networks=None, **options):
    kind, config = {"sac": (SAC, SACConfig), "td3": (TD3, TD3Config)}[name]
    return kind(config(hidden=(16, 16), **options), SIZE, networks or Networks())


@partial(jax.jit, static_argnums=0)
def _start(agent, seed, obs):
    return agent.init(jax.random.key(seed), obs)


@partial(jax.jit, static_argnums=0)
def update(agent, learner, batch, key):
    """One program for each agent."""
    return agent.update(learner, batch, key)


def start(agent, obs=None, seed=0):
    return _start(agent, seed, np.zeros((1, FEATURES), np.float32) if obs is None else obs)


# Nearly all tests of learning share these, so that each is compiled once.
AGENTS = {
    "sac": make("sac", tau=0.25, normalise_observations=True, temperature_rate=0.01),
    "td3": make("td3", tau=0.25, normalise_observations=True, policy_delay=3),
}


def random_batch(seed=0) -> Batch:
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, ROWS, FEATURES)).astype(np.float32)
    return Batch(
        obs=jnp.asarray(obs),
        action=jnp.asarray(rng.uniform(-1, 1, (ROWS, SIZE)), jnp.float32),
        reward=jnp.asarray(rng.normal(size=ROWS), jnp.float32),
        discount=jnp.asarray(rng.choice([0.0, 0.9], ROWS), jnp.float32),
        next_obs=jnp.asarray(next_obs),
    )


def same(one, other) -> bool:
    return jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), one, other))


BOTH = pytest.mark.parametrize("name", ["sac", "td3"])

# Acting ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("normalised", [False, True])
def test_without_exploration_the_exported_policy_is_the_one_that_acts(name, normalised):
    agent = make(name, normalise_observations=normalised)
    seen = 50.0 + 10.0 * jax.random.normal(jax.random.key(1), (20, 8, FEATURES))
    learner = agent.observe(start(agent), seen)
    action, _ = agent.act(learner.params, seen[0], jax.random.key(2), explore=0.0)
    other, _ = agent.act(learner.params, seen[0], jax.random.key(3), explore=jnp.float32(0.0))
    np.testing.assert_array_equal(action, other)
    policy = agent.deterministic(learner.params)
    np.testing.assert_allclose(policy_step(policy, seen[0]), action, atol=1e-5)
    far = jnp.full((2, FEATURES), 1e9)
    np.testing.assert_allclose(
        policy_step(policy, far), agent.act(learner.params, far, jax.random.key(0))[0], atol=1e-5
    )
    again = agent.deterministic(learner.params)
    assert again.apply == policy.apply, "or each use would be compiled again"


def test_sac_draws_from_the_squashed_gaussian_and_knows_its_density():
    agent = make("sac")
    learner = start(agent)
    obs = jnp.tile(random_batch().obs[:1], (4000, 1))
    act = jax.jit(
        lambda explore: agent.act(learner.params, obs, jax.random.key(1), explore=explore)
    )
    action, log_prob = act(1.0)
    mean, log_std = gaussian(learner.actor.params, obs[:1])
    raw = np.arctanh(np.asarray(action, np.float64))
    np.testing.assert_allclose(raw.mean(0), mean[0], atol=0.06)
    np.testing.assert_allclose(raw.std(0), np.exp(log_std[0]), rtol=0.05)
    z = (raw - np.asarray(mean)) / np.exp(np.asarray(log_std))
    normal = -0.5 * z**2 - np.asarray(log_std) - 0.5 * np.log(2 * np.pi)
    density = (normal - np.log1p(-(np.asarray(action, np.float64) ** 2))).sum(1)
    np.testing.assert_allclose(log_prob, density, atol=1e-2)
    half = np.arctanh(np.asarray(act(0.5)[0], np.float64))
    np.testing.assert_allclose(half.std(0), 0.5 * np.exp(log_std[0]), rtol=0.05)


def test_td3_adds_noise_in_proportion_and_stays_within_bounds():
    agent = make("td3", exploration_noise=0.2)
    learner = start(agent)
    obs = jnp.tile(random_batch().obs[:1], (4000, 1))
    for explore in (0.5, 1.0):
        action, clean = agent.act(learner.params, obs, jax.random.key(1), explore=explore)
        noise = np.asarray(action - clean)
        np.testing.assert_allclose(noise.std(0), 0.2 * explore, rtol=0.05)
        np.testing.assert_allclose(noise.mean(0), 0.0, atol=0.02)
    loud = make("td3", exploration_noise=10.0)
    action, _ = loud.act(learner.params, obs, jax.random.key(1), explore=1.0)
    assert jnp.abs(action).max() == 1.0


@BOTH
def test_the_normaliser_learns_from_what_is_seen(name):
    agent = make(name, normalise_observations=True)
    learner = start(agent)
    seen = 50.0 + 10.0 * jax.random.normal(jax.random.key(1), (20, 8, FEATURES))
    observed = agent.observe(learner, seen)
    np.testing.assert_allclose(observed.normaliser.mean, seen.mean((0, 1)), rtol=1e-4)
    assert same(observed.actor, learner.actor)
    plain = make(name)
    assert plain.observe(start(plain), seen).normaliser is None


@BOTH
def test_critics_may_see_what_the_actor_does_not(name):
    networks = Networks(
        encode=lambda obs: obs["own"],
        critic_encode=lambda obs: jnp.concatenate([obs["own"], obs["more"]], -1),
    )
    agent = make(name, networks)
    batch = random_batch()
    obs = {"own": batch.obs, "more": jnp.ones((ROWS, 4))}
    learner = start(agent, obs)
    assert learner.actor.params[0]["kernel"].shape[0] == FEATURES
    assert learner.critic.params[0]["obs"].shape[1] == FEATURES + 4
    other = obs | {"more": jnp.zeros((ROWS, 4))}
    for seen in (obs, other):
        inputs, critic_inputs = agent.inputs(None, seen)
        np.testing.assert_array_equal(inputs, batch.obs)
        np.testing.assert_array_equal(critic_inputs[:, FEATURES:], seen["more"])
    actions = [agent.act(learner.params, seen, jax.random.key(0))[0] for seen in (obs, other)]
    np.testing.assert_array_equal(*actions)


# Learning --------------------------------------------------------------------------------------


def test_the_target_of_sac_is_the_soft_value_of_what_follows():
    agent, batch = make("sac", reward_scale=3.0), random_batch()
    learner = start(agent)
    other = start(agent, seed=5).critic.params
    log_temperature = init_train_state(jnp.log(0.7))
    learner = learner.replace(target_critic=other, log_temperature=log_temperature)
    noise = jax.random.normal(jax.random.key(1), (ROWS, SIZE))
    found = agent.target(learner, batch, noise)
    action, log_prob = squash(*gaussian(learner.actor.params, batch.next_obs), noise)
    q = np.asarray(critics(other, batch.next_obs, action))
    value = np.minimum(q[0], q[1]) - 0.7 * np.asarray(log_prob)
    expected = 3.0 * np.asarray(batch.reward) + np.asarray(batch.discount) * value
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_temperature_falls_while_the_policy_is_less_sure_than_it_may_be():
    agent = AGENTS["sac"]
    before = start(agent)
    after, metrics = update(agent, before, random_batch(), jax.random.key(1))
    assert metrics["temperature"] == 1.0
    assert metrics["entropy"] > -1.0 * SIZE, "its target, for each dimension of the action"
    np.testing.assert_allclose(after.log_temperature.params, -0.01, rtol=1e-3)
    sure = replace(agent, config=replace(agent.config, target_entropy=5.0))
    after, _ = update(sure, before, random_batch(), jax.random.key(1))
    np.testing.assert_allclose(after.log_temperature.params, 0.01, rtol=1e-3)


def test_the_target_of_td3_smooths_over_actions_by_clipped_noise():
    batch = random_batch()
    agent = make("td3", policy_noise=1e6, noise_clip=0.25)
    learner = start(agent)
    key = jax.random.key(3)
    quiet = replace(agent, config=replace(agent.config, policy_noise=0.0))
    action = deterministic(learner.target_actor, batch.next_obs)
    for one, offsets in ((quiet, (0.0,)), (agent, (-0.25, 0.25))):
        found = np.asarray(one.target(learner, batch, key))
        possible = []
        for first in offsets:
            for second in offsets:
                moved = jnp.clip(action + jnp.asarray([first, second]), -1.0, 1.0)
                q = critics(learner.target_critic, batch.next_obs, moved).min(0)
                possible.append(batch.reward + batch.discount * q)
        nearest = np.abs(np.asarray(possible) - found).min(axis=0)
        np.testing.assert_allclose(nearest, 0.0, atol=1e-5)


def test_the_actor_of_td3_and_all_targets_move_once_in_its_delay():
    agent = AGENTS["td3"]
    states = [start(agent)]
    for i in range(3):
        learner, metrics = update(agent, states[-1], random_batch(i), jax.random.key(i))
        states.append(learner)
    slow = [(s.actor, s.target_actor, s.target_critic) for s in states]
    assert same(slow[0], slow[2])
    assert not any(same(one, other) for one, other in zip(slow[2], slow[3], strict=True))
    assert not same(states[0].critic, states[1].critic)
    assert metrics["actor_loss"] == states[3].actor_metrics["actor_loss"] != 0.0


@BOTH
def test_targets_follow_by_their_rate(name):
    agent = AGENTS[name]
    before = start(agent).replace(updates=jnp.int32(2))  # the third update is the actor's turn too
    away = jax.tree.map(lambda x: np.asarray(x) + 1.0, before.target_critic)
    after, _ = update(agent, before.replace(target_critic=away), random_batch(), jax.random.key(1))
    expected = jax.tree.map(lambda t, p: 0.75 * t + 0.25 * np.asarray(p), away, after.critic.params)
    for one, other in zip(*map(jax.tree.leaves, (after.target_critic, expected)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@BOTH
def test_an_update_keeps_the_shape_of_its_learner_and_returns_numbers(name):
    agent = AGENTS[name]
    before = start(agent)
    after, metrics = update(agent, before, random_batch(), jax.random.key(1))
    assert jax.tree.structure(after) == jax.tree.structure(before)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, before)
    assert after.updates == 1
    assert all(x.shape == () and x.dtype == jnp.float32 for x in metrics.values())


def test_targets_start_in_buffers_of_their_own():
    learner = make("td3").init(jax.random.key(0), jnp.zeros((1, FEATURES)))
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(learner)]
    assert len(set(pointers)) == len(pointers), "so that all of it can be donated"


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("sac", {"hidden": ()}, r"sac: hidden=\(\); it must not be empty"),
        ("sac", {"temperature_rate": 0.0}, "sac: temperature_rate=0.0; it must be positive"),
        ("sac", {"target_entropy": float("nan")}, "target_entropy=nan; it must be a finite"),
        ("sac", {"learning_starts": -1}, "sac: learning_starts=-1; it must be 0 or more"),
        ("td3", {"policy_delay": 0}, "td3: policy_delay=0; it must be at least 1"),
        ("td3", {"noise_clip": -1.0}, "td3: noise_clip=-1.0; it must be 0 or more"),
        ("td3", {"tau": 1.5}, r"td3: tau=1.5; it must be in \[0, 1\]"),
    ],
)
def test_settings_that_cannot_work_are_refused(name, wrong, message):
    with pytest.raises(ValueError, match=message):
        algos.get(name).config(**wrong)
