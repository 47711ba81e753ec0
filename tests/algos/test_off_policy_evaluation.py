import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.off_policy_evaluation import (
    bootstrap,
    discounted_returns,
    episode_bootstrap,
    gaussian_log_prob,
    importance_weights,
    support,
    weighted_importance_sampling,
)
from worldloom.core import draws
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import from_columns

NOISE, GAMMA, STEPS = 0.4, 0.9, 4


def log_density(action, mean):
    return -0.5 * ((action - mean) / NOISE) ** 2 - np.log(NOISE * np.sqrt(2 * np.pi))


def play(gain, episodes, seed=0):
    """A cart on a line: x' = 0.8 x + 0.5 u, it costs to be away from 0. The controller -gain x is
    blurred by noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=episodes)
    columns = []
    for t in range(STEPS):
        action = -gain * x + NOISE * rng.normal(size=episodes)
        after = 0.8 * x + 0.5 * action
        columns.append((x, action, -(after**2), after, log_density(action, -gain * x), t + 0 * x))
        x = after
    x, action, reward, after, density, t = (
        np.stack(np.broadcast_arrays(*column), 1).reshape(-1)
        for column in zip(*columns, strict=True)
    )
    return from_columns(
        x[:, None],
        action[:, None],
        reward,
        after[:, None],
        np.zeros(len(x), bool),
        t == STEPS - 1,
        log_prob=density,
    )


def linear(params, obs):
    return params * obs


def controller(gain):
    return PolicyState(jnp.float32(-gain), jnp.zeros(1), jnp.ones(1), linear, NOISE)


@pytest.fixture(scope="module")
def logged():
    return play(gain=0.3, episodes=4000)


@pytest.fixture(scope="module")
def truth():
    return float(discounted_returns(play(gain=0.7, episodes=40_000, seed=9), GAMMA).mean())


@pytest.mark.parametrize("per_decision", [True, False])
def test_importance_sampling_finds_what_another_controller_would_earn(per_decision, logged, truth):
    # Densities are of what was drawn, and the line has no ends: nothing is clipped.
    dataset = logged
    mean = -0.7 * dataset.rows.obs[:, 0]
    log_prob = jnp.asarray(log_density(dataset.rows.action[:, 0], mean))
    found = weighted_importance_sampling(
        dataset, log_prob, GAMMA, jax.random.key(0), per_decision=per_decision
    )
    assert found.low < truth < found.high
    assert abs(found.value - truth) < 0.15 * abs(truth)
    own = float(discounted_returns(dataset, GAMMA).mean())
    assert abs(found.value - truth) < 0.3 * abs(own - truth)
    assert 50 < found.effective < 3000


@pytest.mark.parametrize("per_decision", [True, False])
def test_the_controller_that_logged_the_data_earns_what_they_did(per_decision, logged):
    found = weighted_importance_sampling(
        logged, logged.log_prob, GAMMA, jax.random.key(0), per_decision=per_decision
    )
    returns = np.asarray(discounted_returns(logged, GAMMA))
    np.testing.assert_allclose(found.value, returns.mean(), rtol=1e-4)
    np.testing.assert_allclose(found.effective, 4000, rtol=1e-4)
    half = 1.96 * returns.std() / np.sqrt(len(returns))
    np.testing.assert_allclose(found.high - found.low, 2 * half, rtol=0.2)


def test_a_policy_with_noise_has_the_density_of_its_noise(logged):
    policy = controller(0.3)
    inside = np.abs(0.3 * np.asarray(logged.rows.obs[:, 0])) < 1.0  # its own actions are clipped
    np.testing.assert_allclose(
        gaussian_log_prob(policy, logged)[inside], logged.log_prob[inside], atol=1e-4
    )
    with pytest.raises(ValueError, match="has no density"):
        gaussian_log_prob(policy.replace(noise=0.0), logged)


def test_an_interval_of_few_effective_episodes_is_not_given():
    """Resampling one episode that has all the weight would promise a return to the last digit."""
    few = play(gain=0.3, episodes=60)
    mean = -2.5 * few.rows.obs[:, 0]
    log_prob = jnp.asarray(log_density(few.rows.action[:, 0], mean))
    found = weighted_importance_sampling(few, log_prob, GAMMA, jax.random.key(0))
    assert found.effective < 80
    assert (found.low, found.high) == (None, None)
    assert np.isfinite(found.value)


def test_bootstrap_samples_are_of_whole_episodes(logged):
    samples = np.asarray(episode_bootstrap(logged, jax.random.key(0), 3))
    assert samples.shape == (3, logged.size)
    episodes = samples.reshape(3, -1, STEPS)
    assert (episodes[..., 0] % STEPS == 0).all()
    assert (np.diff(episodes, axis=-1) == 1).all()
    assert 0.6 < len(np.unique(samples[0])) / logged.size < 0.67  # 1 - 1/e


def test_returns_are_summed_episode_by_episode():
    ends = np.asarray([False, True, True, False, False, True])
    zeros = np.zeros((6, 1))
    dataset = from_columns(zeros, zeros, [1, 2, 3, 4, 5, 6], zeros, ends, ~ends & False)
    np.testing.assert_allclose(discounted_returns(dataset, 0.5), [2.0, 3.0, 8.0])


def test_an_ended_episode_keeps_its_weight():
    """Two episodes, of 2 steps and of 1; the ratio is 2 at each step of the first, 8 in the other.

    Weights of one step are known up to a factor.
    """
    ends = np.asarray([False, True, True])
    dataset = from_columns(
        np.zeros((3, 1)),
        np.zeros((3, 1)),
        [1.0, 1.0, 5.0],
        np.zeros((3, 1)),
        ends,
        ~ends & False,
        log_prob=np.zeros(3),
    )
    log_prob = jnp.log(jnp.asarray([2.0, 2.0, 8.0]))
    weights = importance_weights(dataset, log_prob)
    np.testing.assert_allclose(weights, [[0.25, 0.5], [1.0, 1.0]], rtol=1e-6)
    key = jax.random.key(0)
    found = weighted_importance_sampling(dataset, log_prob, 0.5, key)
    expected = (0.25 * 1 + 1 * 5) / 1.25 + 0.5 * (0.5 * 1 + 0) / 1.5
    np.testing.assert_allclose(found.value, expected, rtol=1e-5)
    whole = weighted_importance_sampling(dataset, log_prob, 0.5, key, per_decision=False)
    np.testing.assert_allclose(whole.value, (0.5 * 1.5 + 1.0 * 5.0) / 1.5, rtol=1e-5)


def test_data_without_densities_are_refused_with_a_remedy(bandit):
    with pytest.raises(ValueError, match=r"has no log_prob.*fitted Q evaluation"):
        importance_weights(bandit(), jnp.zeros(2048))


def test_a_bootstrap_interval_is_that_of_the_mean_and_hangs_on_its_key():
    values = jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, (400, 1)), jnp.float32)
    ones = jnp.ones_like(values)
    value, low, high = bootstrap(jax.random.key(0), values, ones, resamples=2000)
    np.testing.assert_allclose(value, values.mean(), rtol=1e-5)
    half = 1.96 * float(values.std()) / 20.0
    np.testing.assert_allclose((low, high), (value - half, value + half), atol=0.1 * half + 0.03)
    assert bootstrap(jax.random.key(0), values, ones, resamples=2000) == (value, low, high)
    assert bootstrap(jax.random.key(1), values, ones, resamples=2000)[1] != low
    narrow = bootstrap(jax.random.key(0), values, ones, resamples=2000, confidence=0.5)
    assert low < narrow[1] < narrow[2] < high
    with pytest.raises(ValueError, match="confidence=95"):
        bootstrap(jax.random.key(0), values, ones, confidence=95)


@pytest.fixture(scope="module")
def supported(logged):
    return {
        gain: support(logged, controller(gain), jax.random.key(0), queries=300)
        for gain in (0.3, 0.7, -20.0)
    }


def test_support_tells_clones_from_strangers(supported):
    clone, near, stranger = (supported[gain] for gain in (0.3, 0.7, -20.0))
    assert clone.outside < 0.1  # noise left out, it is in the middle of the data
    assert stranger.outside > 0.3
    assert clone.distance.mean() <= near.distance.mean() < stranger.distance.mean()
    np.testing.assert_allclose(clone.change.mean(), NOISE * np.sqrt(2 / np.pi), rtol=0.15)


def test_the_nearest_row_is_the_nearest(logged):
    part = from_columns(
        *(np.asarray(x)[:500] for x in vars(logged.rows).values()), log_prob=logged.log_prob[:500]
    )
    policy = controller(0.7)
    found = support(part, policy, jax.random.key(0), queries=40, block=64)
    obs, action = np.asarray(part.rows.obs), np.asarray(part.rows.action)
    rows = np.concatenate([(obs - obs.mean(0)) / obs.std(0), action / action.std(0)], -1)
    chosen = np.asarray(draws.integers(jax.random.key(0), (40,), 500))
    wanted = np.clip(-0.7 * obs[chosen], -1.0, 1.0) / action.std(0)
    pairs = np.concatenate([rows[chosen, :1], wanted], -1)
    far = np.linalg.norm(pairs[:, None] - rows[None], axis=-1)
    far[np.arange(40), chosen] = np.inf
    np.testing.assert_allclose(found.distance, far.min(-1), atol=2e-3)
