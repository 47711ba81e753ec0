from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from worldloom.algos.bc import BC, BCConfig, BCHyper
from worldloom.algos.offline import make_table
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Discrete
from worldloom.nn.offline import gaussian
from worldloom.nn.policy import policy_step
from worldloom.replay.dataset import from_columns

GAIN = np.array([[0.2, -0.1], [0.0, 0.3], [-0.1, 0.1]])


def fast(**changes):
    return BC(BCConfig(hidden=(32,), hyper=BCHyper(learning_rate=3e-3), **changes))


def data(noise):
    """A linear controller, logged in units of its own."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=(4096, 3))
    action = state @ GAIN + noise * rng.normal(size=(4096, 2))
    no = np.zeros(4096, bool)
    obs = 5.0 + 20.0 * state
    return from_columns(obs, action, np.zeros(4096), obs, no, no)


def test_a_linear_controller_is_recovered(learn):
    dataset = data(noise=0.0)
    agent = fast()
    learner, _ = learn(agent, make_table(dataset), 1500)
    state = np.random.default_rng(1).uniform(-1.5, 1.5, size=(500, 3))
    action = policy_step(agent.policy(learner, dataset), jnp.asarray(5.0 + 20.0 * state))
    np.testing.assert_allclose(action, state @ GAIN, atol=0.05)


def test_the_density_of_the_data_is_learned_with_their_noise(learn):
    dataset, agent = data(noise=0.1), fast(gaussian=True)
    learner, _ = learn(agent, make_table(dataset), 2000)
    obs = dataset.normalise(dataset.rows.obs)
    std = jnp.exp(gaussian(learner.actor.params, obs)[1])
    np.testing.assert_allclose(std.mean(0), 0.1, rtol=0.15)
    density = agent.log_density(learner.actor.params, obs, dataset.rows.action).mean()
    exact = 2 * (-np.log(0.1) - 0.5 * np.log(2 * np.pi * np.e))
    assert exact - 0.15 < density < exact + 0.1
    elsewhere = agent.log_density(learner.actor.params, obs, -dataset.rows.action - 0.5).mean()
    assert elsewhere < density - 5.0


@pytest.mark.parametrize("gaussian", [False, True])
def test_gradients_are_those_of_the_loss(gaussian, bandit_table):
    agent = fast(gaussian=gaussian)
    weights = agent.init(jax.random.key(0), 2, 1).actor.params
    rows = bandit_table.take(jnp.arange(32))
    loss = jax.jit(lambda w: agent.loss(w, rows)[0])
    grads = jax.jit(jax.grad(loss))(weights)
    norm = optax.tree.norm(grads)

    def moved(size):
        return loss(jax.tree.map(lambda w, g: w + size * g / norm, weights, grads))

    np.testing.assert_allclose((moved(0.01) - moved(-0.01)) / 0.02, norm, rtol=0.02)


def choices(rows=1024):
    """A log of three actions that are right in one third of a line each, (N,) of numbers."""
    rng = np.random.default_rng(0)
    obs = rng.uniform(0.0, 3.0, (rows, 1))
    action = np.floor(obs[:, 0]).astype(int)
    no = np.zeros(rows, bool)
    return from_columns(obs, action, np.zeros(rows), obs, no, no)


def test_discrete_actions_are_cloned_from_their_numbers(learn):
    dataset, agent = choices(), replace(fast(), num_actions=3)
    table = make_table(dataset)
    assert table.action_size == 1
    learner, metrics = learn(agent, table, 1000)
    policy = agent.policy(learner, dataset)
    obs = jnp.asarray([[0.2], [0.8], [1.2], [1.8], [2.2], [2.8]])
    action = policy_step(policy, obs)
    assert action.dtype == jnp.int32
    np.testing.assert_array_equal(action, [0, 0, 1, 1, 2, 2])
    assert metrics["accuracy"][-1] > 0.9 > metrics["accuracy"][0]
    border = jnp.full((2000, 1), 1.0)
    drawn = np.bincount(policy_step(policy, border, jax.random.key(0)), minlength=3)
    assert min(drawn[0], drawn[1]) > 200, "between two thirds either may be drawn"
    assert drawn[2] < 20


def test_the_world_says_whether_actions_are_choices():
    choice = EnvSpec("choice", Box(0, 1, (2,)), Discrete(4))
    vector = EnvSpec("vector", Box(0, 1, (2,)), Box(-1, 1, (3,)))
    assert BC.make(BCConfig(), choice).num_actions == 4
    assert BC.make(BCConfig(), vector) == BC.make(BCConfig()) == BC(BCConfig())


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"bc: hidden=\(\); it must not be empty"):
        BCConfig(hidden=())
    with pytest.raises(ValueError, match=r"bc: learning_rate=0.0; it must be positive"):
        BCConfig(hyper=BCHyper(learning_rate=0.0))
