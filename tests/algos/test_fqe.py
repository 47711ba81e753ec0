import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.fqe import FQE, FQEConfig, FQEHyper, fitted_q_evaluation
from worldloom.algos.off_policy_evaluation import discounted_returns
from worldloom.nn.offline import critics
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import from_columns

GAMMA, STEPS = 0.8, 25
QUICK = FQEConfig(
    hidden=(32, 32),
    num_members=2,
    updates=2500,
    batch_size=128,
    hyper=FQEHyper(learning_rate=1e-3, gamma=GAMMA, tau=0.05),
)


def step(x, u):
    """A tank that drains towards 0 and is filled; being away from 1 costs."""
    after = 0.9 * x + 0.3 * u
    return after, 1.0 - (after - 1.0) ** 2


def play(control, episodes, noise, steps=STEPS, seed=0):
    """Rows of a simulated log, episode by episode, and the discounted returns."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, episodes)
    rows, returns = [], np.zeros(episodes)
    for t in range(steps):
        u = np.clip(control(x) + noise * rng.normal(size=episodes), -1.0, 1.0)
        after, reward = step(x, u)
        rows.append((x, u, reward, after, np.full(episodes, t == steps - 1)))
        returns += GAMMA**t * reward
        x = after
    columns = [np.stack(column, 1).reshape(-1) for column in zip(*rows, strict=True)]
    return columns, returns


def controlled(params, obs):
    gain, bias = params
    return gain * obs + bias


def policy_of(gain, bias):
    params = (jnp.float32(gain), jnp.float32(bias))
    return PolicyState(params, jnp.zeros(1), jnp.ones(1), controlled)


@pytest.fixture(scope="module")
def logged():
    (x, u, reward, after, last), _ = play(lambda x: 0.2 - 0.5 * x, 80, noise=0.5)
    return from_columns(x[:, None], u[:, None], reward, after[:, None], last & False, last)


@pytest.mark.parametrize(("gain", "bias"), [(-1.0, 0.8), (0.0, -0.2)])
def test_a_policy_is_worth_what_the_simulator_pays_it(gain, bias, logged):
    """The log stops after 25 steps, the tank does not: the truth is of 100 steps."""
    values = fitted_q_evaluation(policy_of(gain, bias), logged, jax.random.key(0), QUICK)
    found, metrics = values.estimate, values.metrics
    _, returns = play(lambda x: gain * x + bias, 20_000, 0.0, steps=100, seed=1)
    truth = returns.mean()
    spread = abs(returns.std())
    assert abs(found.value - truth) < 0.1 * abs(truth) + 0.1
    assert found.low < found.value < found.high
    assert found.high - found.low < 2 * spread
    assert metrics["critic_loss"].shape == (2500,)
    assert metrics["critic_loss"][-100:].mean() < 0.1 * metrics["critic_loss"][:20].mean()


def test_a_return_of_few_steps_leaves_out_what_follows_them():
    """Values go on after a cut log; the returns that they stand beside do not."""
    (x, u, reward, after, last), _ = play(lambda x: 0.2 - 0.5 * x, 400, noise=0.5, steps=5)
    short = from_columns(x[:, None], u[:, None], reward, after[:, None], last & False, last)
    found, whole = (
        fitted_q_evaluation(
            policy_of(-1.0, 0.8), short, jax.random.key(0), QUICK, horizon=n
        ).estimate
        for n in (5, None)
    )
    truth, endless = (
        play(lambda x: 0.8 - x, 20_000, 0.0, steps=n, seed=1)[1].mean() for n in (5, 100)
    )
    assert abs(found.value - truth) < 0.1 * abs(truth) + 0.1
    assert abs(whole.value - endless) < 0.1 * abs(endless) + 0.1
    assert endless - truth > 1.0


@pytest.mark.slow  # 10,000 updates
def test_usual_settings_are_enough_for_values_to_settle(chain):
    """B pays 1 for ever: at 0.99 that is worth 100, far from where values begin."""
    dataset, _ = chain(False)
    still = PolicyState((jnp.float32(0.0), jnp.float32(0.0)), jnp.zeros(2), jnp.ones(2), first)
    config = FQEConfig(hidden=(64, 64), updates=10_000, batch_size=32)
    values = fitted_q_evaluation(still, dataset, jax.random.key(0), config)
    np.testing.assert_allclose(values.estimate.value, 99.0, rtol=0.05)
    assert values.drift < 0.05


def test_the_controller_of_the_log_is_worth_what_the_log_says(logged):
    """The one policy whose return is known without a plant: it calibrates the method."""
    values = fitted_q_evaluation(None, logged, jax.random.key(0), QUICK, horizon=STEPS)
    returns = np.asarray(discounted_returns(logged, GAMMA))
    assert values.starts.shape == (2, len(returns))
    assert abs(float(values.starts.mean()) - returns.mean()) < 0.1 * abs(returns.mean()) + 0.1


def test_better_policies_are_told_from_worse(logged):
    values = [
        fitted_q_evaluation(policy_of(gain, bias), logged, jax.random.key(1), QUICK).estimate.value
        for gain, bias in ((-1.0, 0.8), (0.0, 0.0), (0.0, -0.5))
    ]
    assert values[0] > values[1] + 0.5
    assert values[1] > values[2] + 0.5


def test_what_is_terminated_is_worth_its_reward_and_the_cut_goes_on(chain, learn):
    agent = FQE(FQEConfig(hidden=(32,), hyper=FQEHyper(3e-3, 0.5, 0.05)))
    still = PolicyState((jnp.float32(0.0), jnp.float32(0.0)), jnp.zeros(2), jnp.ones(2), first)
    for terminated, expected in ((True, [0.5, 1.0]), (False, [1.0, 2.0])):
        dataset, _ = chain(terminated)
        table = agent.table(dataset, still)
        learner, _ = learn(agent, table, 800)
        obs = dataset.normalise(jnp.eye(2))
        q = critics(learner.critic.params, obs, jnp.zeros((2, 1))).mean(0) / table.reward_scale
        np.testing.assert_allclose(q, expected, atol=0.15)


def first(params, obs):
    return 0.0 * obs[:, :1] + params[1]


def test_the_policy_is_asked_once_for_every_row(logged):
    table = FQE().table(logged, policy_of(-1.0, 0.8))
    rows = table.take(jnp.arange(logged.size))
    expected = jnp.clip(-1.0 * logged.rows.next_obs + 0.8, -1.0, 1.0)
    np.testing.assert_allclose(rows.next_action, expected, atol=1e-6)
