"""Double IQN without an outside oracle: its loss, its draws, its choices and its target."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from worldloom.algos.iqn import IQN, PASSES, IQNConfig, midpoints, quantile_huber
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.core.types import Batch
from worldloom.nn.networks import Network, Networks

ROWS, ACTIONS = 6, 3
SPEC = EnvSpec("probe", Box(0.0, 1.0, (2, 5)), Discrete(ACTIONS), num_frames=2)
CONFIG = IQNConfig(hidden=8, num_quantiles=4, act_quantiles=6, batch_size=ROWS)


def make_agent(**options) -> IQN:
    return IQN.make(replace(CONFIG, **options), SPEC, Networks())


def make_batch(seed=0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        obs=jnp.asarray(rng.random((ROWS, 2, 5)), jnp.float32),
        action=jnp.asarray(rng.integers(ACTIONS, size=ROWS), jnp.int32),
        reward=jnp.asarray(rng.normal(size=ROWS), jnp.float32),
        discount=jnp.asarray(rng.choice([0.0, 0.9], size=ROWS), jnp.float32),
        next_obs=jnp.asarray(rng.random((ROWS, 2, 5)), jnp.float32),
    )


@pytest.fixture(scope="module")
def agent():
    return make_agent()


@pytest.fixture(scope="module")
def learner(agent):
    return jax.jit(lambda key: agent.init(key, jnp.zeros((1, 2, 5))))(jax.random.key(0))


@pytest.fixture(scope="module")
def other(agent):
    """Parameters of another network with another taste, to tell the target from the online one."""
    params = jax.jit(lambda key: agent.init(key, jnp.zeros((1, 2, 5))))(jax.random.key(1)).params
    params["params"]["advantage"]["bias"] *= -1.0
    return params


# The quantile Huber loss -------------------------------------------------------------------------


def huber_by_loops(now, aim, taus) -> np.ndarray:
    rows, levels = now.shape
    loss = np.zeros((rows, levels, aim.shape[1]))
    for b in range(rows):
        for i in range(levels):
            for j in range(aim.shape[1]):
                u = aim[b, j] - now[b, i]
                huber = 0.5 * u**2 if abs(u) <= 1 else abs(u) - 0.5
                loss[b, i, j] = abs(taus[b, i] - (1 if u < 0 else 0)) * huber
    return loss


def test_the_loss_of_every_pair_agrees_with_plain_loops():
    rng = np.random.default_rng(0)
    now, aim = 2 * rng.normal(size=(5, 4)), 2 * rng.normal(size=(5, 7))
    now[0, 0], now[1, 1] = aim[0, 0], aim[1, 1] + 1  # no error, and the kink of the Huber loss
    taus = rng.random((5, 4))
    ours = quantile_huber(*(jnp.asarray(x, jnp.float32) for x in (now, aim, taus)))
    np.testing.assert_allclose(ours, huber_by_loops(now, aim, taus), atol=1e-6)


def test_levels_shared_by_the_batch_are_levels_of_every_row():
    rng = np.random.default_rng(1)
    now, aim = jnp.asarray(rng.normal(size=(2, 5, 4)), jnp.float32)
    taus = jnp.asarray(rng.random(4), jnp.float32)
    np.testing.assert_array_equal(
        quantile_huber(now, aim, taus), quantile_huber(now, aim, jnp.tile(taus, (5, 1)))
    )


@pytest.mark.parametrize(
    "law", [stats.expon(scale=60.0), stats.norm(10.0, 40.0)], ids=["exponential", "normal"]
)
def test_what_minimises_the_loss_are_the_quantiles_of_the_targets(law):
    # The targets are wide beside the Huber threshold of 1, inside of which the loss is quadratic
    # and its minimiser an expectile.
    taus = midpoints(9)
    targets = jnp.asarray(law.ppf(np.asarray(midpoints(501))), jnp.float32)[None]

    @jax.jit
    def fit():
        optimiser = optax.adam(optax.cosine_decay_schedule(2.0, 1500))

        def step(carry, _):
            quantiles, state = carry
            grad = jax.grad(lambda q: quantile_huber(q, targets, taus).mean(axis=2).sum())
            change, state = optimiser.update(grad(quantiles), state)
            return (quantiles + change, state), None

        start = jnp.zeros((1, 9))
        return jax.lax.scan(step, (start, optimiser.init(start)), None, 1500)[0][0][0]

    expected = law.ppf(np.asarray(taus))
    assert np.ptp(expected) > 50
    np.testing.assert_allclose(fit(), expected, atol=0.01 * np.ptp(expected))


def test_the_original_averages_where_the_paper_sums(learner, other):
    batch = make_batch()
    agents = [make_agent(legacy=legacy) for legacy in (True, False)]
    taus, noises = agents[0].draw(jax.random.key(2), ROWS)
    legacy, paper = (a.loss(learner.params, other, batch, taus, noises)[0] for a in agents)
    np.testing.assert_allclose(paper, CONFIG.num_quantiles * legacy, rtol=1e-6)


# The target --------------------------------------------------------------------------------------


def test_online_chooses_the_next_action_and_the_target_values_it(agent, learner, other):
    batch = make_batch()
    taus, noises = agent.draw(jax.random.key(2), ROWS)

    def quantiles(params, obs, name):
        flat = obs.reshape(ROWS, -1)
        return np.asarray(agent.network.apply(params, flat, taus[name]), np.float64)

    best = quantiles(learner.params, batch.next_obs, "select").mean(axis=1).argmax(axis=1)
    own_best = quantiles(other, batch.next_obs, "target").mean(axis=1).argmax(axis=1)
    assert (best != own_best).any(), "double and plain Q-learning differ on this batch"
    rows = np.arange(ROWS)
    after = quantiles(other, batch.next_obs, "target")[rows, :, best]
    aim = np.asarray(batch.reward)[:, None] + np.asarray(batch.discount)[:, None] * after
    now = quantiles(learner.params, batch.obs, "online")[rows, :, np.asarray(batch.action)]
    levels = np.tile(np.asarray(taus["online"]), (ROWS, 1))
    expected = huber_by_loops(now, aim, levels).mean(axis=2).sum(axis=1).mean()
    loss, q_mean = agent.loss(learner.params, other, batch, taus, noises)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(q_mean, now.mean(), rtol=1e-5)


def test_an_ended_episode_takes_nothing_from_the_next_observation(agent, learner, other):
    batch = make_batch()
    ended = batch.replace(discount=jnp.zeros(ROWS))
    taus, noises = agent.draw(jax.random.key(2), ROWS)
    loss = jax.jit(lambda b: agent.loss(learner.params, other, b, taus, noises)[0])
    elsewhere = make_batch(seed=9).next_obs
    assert loss(ended) == loss(ended.replace(next_obs=elsewhere))
    assert loss(batch) != loss(batch.replace(next_obs=elsewhere))


def test_the_target_follows_by_its_rate_after_the_step(agent, learner, other):
    before = learner.replace(target=other)
    after, metrics = jax.jit(agent.update)(before, make_batch(), jax.random.key(3))
    share = agent.config.target_rate
    expected = jax.tree.map(lambda t, p: (1 - share) * t + share * p, other, after.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.target, expected)
    assert int(after.updates) == 1
    assert all(np.isfinite(x) for x in jax.tree.leaves(metrics))
    assert float(metrics.grad_norm) > 0


def test_a_hard_copy_comes_every_so_many_epochs_and_only_where_asked(learner, other):
    mixed = learner.replace(target=other)
    every_five = make_agent(sync_epochs=5)
    for epoch in range(11):
        target = every_five.start_epoch(mixed, jnp.int32(epoch)).target
        source = learner.params if epoch % 5 == 0 else other
        jax.tree.map(np.testing.assert_array_equal, target, source)
    never = make_agent(sync_epochs=0)
    assert never.start_epoch(mixed, jnp.int32(0)) is mixed


def test_a_learner_starts_with_an_equal_target_in_buffers_of_its_own(learner):
    jax.tree.map(np.testing.assert_array_equal, learner.params, learner.target)
    pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(learner)]
    assert len(set(pointers)) == len(pointers), "so that all of it can be donated"


def test_a_row_of_weight_zero_adds_nothing_and_the_mean_is_over_all(agent, learner, other):
    taus, noises = agent.draw(jax.random.key(2), ROWS)
    loss = jax.jit(lambda batch: agent.loss(learner.params, other, batch, taus, noises)[0])
    batch, alone = make_batch(), np.eye(ROWS, dtype=np.float32)
    each = [loss(batch.replace(weight=one)) for one in alone]
    assert min(each) > 0
    np.testing.assert_allclose(sum(each), loss(batch), rtol=1e-5)
    np.testing.assert_allclose(loss(batch.replace(weight=1 - alone[0])), sum(each[1:]), rtol=1e-5)


# Draws -------------------------------------------------------------------------------------------


def test_shared_levels_have_one_in_each_stratum_and_passes_differ(agent):
    n = CONFIG.num_quantiles
    for seed in range(20):
        taus, noises = agent.draw(jax.random.key(seed), ROWS)
        assert set(taus) == set(noises) == set(PASSES)
        assert noises == dict.fromkeys(PASSES)
        for levels in taus.values():
            assert levels.shape == (n,)
            np.testing.assert_array_equal(np.floor(np.asarray(levels) * n), np.arange(n))
        assert len({float(levels[0]) for levels in taus.values()}) == len(PASSES)


def test_own_levels_are_uniform_and_differ_between_rows_and_passes():
    agent = make_agent(levels="own", num_quantiles=25)
    taus, _ = agent.draw(jax.random.key(1), 400)
    values = np.concatenate([np.ravel(levels) for levels in taus.values()])
    assert values.shape == (3 * 400 * 25,)
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert len(np.unique(values)) > 0.99 * len(values)


def test_own_levels_are_as_many_as_the_batch_has_rows(learner):
    agent = make_agent(levels="own", batch_size=2 * ROWS)
    _, metrics = jax.jit(agent.update)(learner, make_batch(), jax.random.key(3))
    assert np.isfinite(metrics.loss)
    assert {levels.shape[0] for levels in agent.draw(jax.random.key(3), ROWS)[0].values()} == {ROWS}


def test_every_pass_has_noise_of_its_own():
    agent = make_agent(noisy=True)
    _, noises = agent.draw(jax.random.key(1), ROWS)
    firsts = {float(noises[name]["ff_1"][0][0, 0]) for name in PASSES}
    assert len(firsts) == len(PASSES)


# Acting ------------------------------------------------------------------------------------------


def test_midpoints_are_the_middles_of_equal_parts():
    np.testing.assert_allclose(midpoints(4), [0.125, 0.375, 0.625, 0.875])


def test_greedy_actions_are_the_best_by_mean_quantile_and_need_no_key(agent, learner):
    obs = make_batch().obs
    act = jax.jit(lambda key: agent.act(learner.params, obs, key, explore=0.0))
    action, q = act(jax.random.key(0))
    again, q_again = act(jax.random.key(1))
    quantiles = agent.network.apply(learner.params, obs.reshape(ROWS, -1), midpoints(6))
    np.testing.assert_allclose(q, quantiles.mean(axis=1), atol=1e-6)
    np.testing.assert_array_equal(action, np.argmax(q, axis=1))
    np.testing.assert_array_equal(action, again)
    np.testing.assert_array_equal(q, q_again)
    assert action.dtype == jnp.int32


def test_random_levels_make_the_values_depend_on_the_key(learner):
    agent = make_agent(act_levels="random")
    obs = make_batch().obs
    act = jax.jit(lambda key: agent.act(learner.params, obs, key)[1])
    first, second = act(jax.random.key(0)), act(jax.random.key(1))
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(first, act(jax.random.key(0)))


def test_exploring_takes_every_action_equally_often_and_as_often_as_it_says(agent, learner):
    obs = jnp.tile(make_batch().obs[:1], (6000, 1, 1))
    act = jax.jit(
        lambda epsilon: agent.act(learner.params, obs, jax.random.key(4), explore=epsilon)
    )
    greedy = int(act(0.0)[0][0])
    for epsilon in (0.3, 1.0):
        counts = np.bincount(act(epsilon)[0], minlength=ACTIONS) / 6000
        expected = np.full(ACTIONS, epsilon / ACTIONS)
        expected[greedy] += 1 - epsilon
        np.testing.assert_allclose(counts, expected, atol=5 * np.sqrt(0.25 / 6000))


# Options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "iqn: hidden=0; it must be at least 1"),
        ({"batch_size": 0}, "iqn: batch_size=0"),
        ({"gamma": 1.5}, r"iqn: gamma=1.5; it must be in \[0, 1\]"),
        ({"target_rate": -0.1}, "iqn: target_rate=-0.1"),
        ({"learning_rate": 0.0}, "iqn: learning_rate=0.0; it must be positive"),
        ({"learning_rate": float("nan")}, "iqn: learning_rate=nan"),
        ({"sync_epochs": -1}, "iqn: sync_epochs=-1"),
        ({"buffer_size": 0}, "iqn: buffer_size=0; it must be at least 1"),
        ({"epsilon_decay": 2.0}, r"iqn: epsilon_decay=2.0; it must be in \[0, 1\]"),
        ({"levels": "mine"}, "iqn: levels='mine' is not known; known: shared, own"),
        ({"act_levels": "rand"}, "iqn: act_levels='rand' is not known; did you mean 'random'"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        replace(CONFIG, **options)


def test_a_world_with_continuous_actions_is_refused():
    spec = replace(SPEC, action=Box(-1.0, 1.0, (2,)))
    with pytest.raises(ValueError, match="needs a Discrete choice"):
        IQN.make(CONFIG, spec, Networks())


@pytest.mark.parametrize(
    "networks",
    [Networks(masked=True), Networks(q_values=lambda config: Network(print, print))],
    ids=["masked", "own network"],
)
def test_what_the_quantile_network_cannot_use_is_left_to_dqn(networks):
    with pytest.raises(ValueError, match=r"iqn: probe brings a network .* use dqn"):
        IQN.make(CONFIG, SPEC, networks)


def test_observations_enter_by_the_encoder_of_the_world():
    encode = Networks(encode=lambda obs: obs["seen"].reshape(obs["seen"].shape[0], -1))
    agent = IQN.make(CONFIG, SPEC, encode)
    obs = {"seen": make_batch().obs, "noise": jnp.zeros(ROWS)}
    learner = agent.init(jax.random.key(0), obs)
    plain = make_agent().init(jax.random.key(0), obs["seen"])
    jax.tree.map(np.testing.assert_array_equal, learner, plain)
    both = [
        one.act(learner.params, seen, jax.random.key(1))[1]
        for one, seen in ((agent, obs), (make_agent(), obs["seen"]))
    ]
    np.testing.assert_array_equal(*both)


def test_exploration_falls_by_its_share_to_its_least():
    config = replace(CONFIG, epsilon=0.8, epsilon_decay=0.5, epsilon_min=0.15)
    at = [float(config.exploration(jnp.int32(n), jnp.float32(0))) for n in range(4)]
    np.testing.assert_allclose(at, [0.8, 0.4, 0.2, 0.15], rtol=1e-5)


def test_exploration_falls_in_a_line_where_its_steps_are_given():
    config = replace(CONFIG, epsilon=0.9, epsilon_min=0.1, epsilon_steps=1000)
    at = [float(config.exploration(jnp.int32(9), jnp.float32(n))) for n in (0, 250, 1000, 5e9)]
    np.testing.assert_allclose(at, [0.9, 0.7, 0.1, 0.1], rtol=1e-5)


def test_the_original_configuration_is_whole():
    original = IQNConfig.original()
    assert (original.gradient_steps, original.buffer_size) == (1, 1024)
    assert (original.epsilon, original.epsilon_decay, original.epsilon_min) == (1.0, 0.001, 0.0)
    assert (original.n_step, original.gamma, original.batch_size) == (3, 0.99, 256)
