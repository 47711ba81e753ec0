import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.dynamics import DynamicsConfig
from worldloom.algos.model_based_evaluation import learn_simulators, roll_out
from worldloom.nn.policy import PolicyState
from worldloom.replay.dataset import from_columns

GAMMA, STEPS = 0.9, 20
QUICK = DynamicsConfig(hidden=(32, 32), num_members=3, updates=1500, learning_rate=3e-3)


def play(control, episodes, noise, seed=0):
    """A tank that drains, is filled, and is pushed by chance; above 1.5 it runs over."""
    rng = np.random.default_rng(seed)
    x, alive = rng.uniform(-1.0, 1.0, episodes), np.ones(episodes, bool)
    rows, returns = [], np.zeros(episodes)
    for t in range(STEPS):
        u = np.clip(control(x) + noise * rng.normal(size=episodes), -1.0, 1.0)
        after = 0.95 * x + 0.3 * u + 0.1 * rng.normal(size=episodes)
        reward, over = 1.0 - 0.2 * (after - 1.0) ** 2, after > 1.5
        rows.append((x, u, reward, after, over, (t == STEPS - 1) & ~over, alive))
        returns += np.where(alive, GAMMA**t * reward, 0.0)
        x, alive = after, alive & ~over
    columns = [np.stack(column, 1) for column in zip(*rows, strict=True)]
    x, u, reward, after, over, cut, _ = (column[columns[-1]] for column in columns)
    return from_columns(x[:, None], u[:, None], reward, after[:, None], over, cut), returns


def linear(params, obs):
    return params[0] * obs + params[1]


@pytest.fixture(scope="module")
def learned():
    logged, _ = play(lambda x: 0.4 - 0.2 * x, 150, 0.6)
    assert logged.rows.terminated.sum() > 10
    return logged, learn_simulators(logged, jax.random.key(0), QUICK)


@pytest.mark.parametrize(("gain", "bias"), [(-0.6, 0.6), (0.0, 0.9), (0.0, 0.0)])
def test_a_policy_earns_in_learned_plants_what_it_earns_in_the_plant(gain, bias, learned):
    logged, plants = learned
    params = (jnp.float32(gain), jnp.float32(bias))
    policy = PolicyState(params, jnp.zeros(1), jnp.ones(1), linear)
    starts = logged.rows.obs[logged.starts]
    played = roll_out(plants, policy, starts, jax.random.key(1), horizon=STEPS)
    returns = played.returns(GAMMA)
    assert returns.shape == (3, len(starts))
    _, true = play(lambda x: gain * x + bias, 20_000, 0.0, seed=1)
    assert abs(float(returns.mean()) - true.mean()) < 0.1 * abs(true.mean()) + 0.2
    ended = ~np.asarray(played.alive)
    assert (np.asarray(played.reward)[ended] == 0.0).all()
    if bias == 0.9:  # it fills until the tank runs over
        assert ended[-1].mean() > 0.5
