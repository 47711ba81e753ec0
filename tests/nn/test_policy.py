"""Policies as they are executed, and many worlds moved by them at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import worldloom
from worldloom.core import draws
from worldloom.nn.policy import PolicyState, policy_step, vectorized_env_step

WEIGHTS = jnp.asarray([[0.5, 0.0], [0.0, 3.0]])


def linear(params, obs):
    return obs @ params


@pytest.fixture
def policy():
    return PolicyState(WEIGHTS, jnp.asarray([10.0, -1.0]), jnp.asarray([2.0, 4.0]), linear)


def test_observations_are_scaled_and_actions_clipped(policy):
    obs = jnp.asarray([[12.0, -1.0], [10.0, 3.0], [8.0, -3.0]])
    np.testing.assert_allclose(
        policy_step(policy, obs), [[0.5, 0.0], [0.0, 1.0], [-0.5, -1.0]], atol=1e-6
    )


def test_any_leading_axes_will_do(policy):
    obs = draws.normal(jax.random.key(0), (3, 4, 2))
    whole = policy_step(policy, obs)
    assert whole.shape == (3, 4, 2)
    np.testing.assert_allclose(policy_step(policy, obs[1, 2]), whole[1, 2], atol=1e-6)


def test_noise_is_added_with_a_key_alone(policy):
    noisy, obs = policy.replace(noise=0.1), jnp.zeros((4000, 2)) + policy.mean
    np.testing.assert_array_equal(policy_step(noisy, obs), jnp.zeros((4000, 2)))
    drawn = policy_step(noisy, obs, jax.random.key(0))
    np.testing.assert_allclose(drawn.std(0), 0.1, rtol=0.05)
    np.testing.assert_array_equal(drawn, policy_step(noisy, obs, jax.random.key(0)))
    assert not np.array_equal(drawn, policy_step(noisy, obs, jax.random.key(1)))


def test_a_discrete_policy_takes_the_likeliest_action_or_draws(policy):
    choice = policy.replace(discrete=True)
    obs = jnp.asarray([[12.0, -1.0], [10.0, 3.0]])  # logits (0.5, 0) and (0, 3)
    np.testing.assert_array_equal(policy_step(choice, obs), [0, 1])
    assert policy_step(choice, obs[0]).shape == ()
    many = jnp.tile(obs[0], (4000, 1))
    drawn = policy_step(choice, many, jax.random.key(0))
    assert drawn.dtype == jnp.int32
    np.testing.assert_allclose(drawn.mean(), 1 / (1 + np.exp(0.5)), atol=0.03)


def test_worlds_step_side_by_side_and_are_not_reset():
    """A closed loop of policy and plants is the same as each plant by itself."""
    env = worldloom.make("dmsd", horizon=2, disturbance=0.0)  # random in its start alone
    params = env.default_params()
    starts = draws.split(jax.random.key(0), 5)
    state, first = jax.vmap(env.reset, (0, None))(starts, params)
    weights = 0.1 * draws.normal(jax.random.key(1), (6, 2))
    policy = PolicyState(weights, jnp.zeros(6), jnp.ones(6), linear)

    @jax.jit
    def together(state, obs):
        action = policy_step(policy, obs)
        return vectorized_env_step(env, jax.random.key(2), state, action, params)

    @jax.jit
    def alone(state, obs):
        return env.step(jax.random.key(2), state, policy_step(policy, obs), params)

    obs = first.obs
    for number in range(1, 4):
        before = (state, obs)
        state, after = together(*before)
        for i in range(5):
            one, step = alone(*jax.tree.map(lambda x, i=i: x[i], before))
            np.testing.assert_allclose(after.obs[i], step.obs, atol=1e-6)
            np.testing.assert_allclose(after.reward[i], step.reward, atol=1e-4)
            assert one.step == state.step[i] == number  # also after the end, at 2
        assert after.truncated.tolist() == [number >= 2] * 5
        obs = after.obs
