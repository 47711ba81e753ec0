import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.td3bc import TD3BCConfig, TD3BCHyper
from worldloom.nn.policy import policy_step

RATES = {"actor_rate": 3e-3, "critic_rate": 3e-3}


@pytest.fixture(scope="module")
def agent(small):
    return small("td3bc")


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(bool((a == b).all()) for a, b in pairs)


# a + lambda (a - 0.5) = 0 with lambda = alpha / Q(a) and Q(a) = 1 - (a - 0.5)^2; the data's mean
# is 0.
@pytest.mark.parametrize(("alpha", "best"), [(0.0, 0.0), (2.5, 0.359), (50.0, 0.490)])
def test_the_actor_stands_between_the_data_and_the_best_action(
    alpha, best, agent, start, learn, bandit, bandit_table
):
    learner = start(agent, alpha=alpha, **RATES)
    learner, _ = learn(agent, bandit_table, 2000, learner=learner)
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    np.testing.assert_allclose(action.mean(), best, atol=0.05)


def test_the_scale_of_rewards_does_not_matter_to_the_actor(agent, start, bandit_table):
    learner = start(agent)
    rows = bandit_table.take(jnp.arange(64))
    *layers, last = learner.critic.params
    critic = (*layers, jax.tree.map(lambda x: 100.0 * x, last))
    louder = learner.replace(critic=learner.critic.replace(params=critic))
    grad = jax.jit(jax.grad(lambda w, learner: agent.actor_loss(w, learner, rows, {})[0]))
    grads = [jax.tree.leaves(grad(learner.actor.params, judge)) for judge in (learner, louder)]
    for one, other in zip(*grads, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_actor_and_all_targets_move_every_second_update(agent, start, update, bandit_table):
    rows = bandit_table.take(jnp.arange(64))
    first = start(agent)
    one, _ = update(agent, first, rows, jax.random.key(1))
    two, _ = update(agent, one, rows, jax.random.key(2))
    assert not same(first.critic.params, one.critic.params)
    assert same((first.actor, first.target_critic), (one.actor, one.target_critic))
    assert not same(one.actor.params, two.actor.params)
    assert not same(one.target_critic, two.target_critic)
    assert not same(one.target_actor, two.target_actor)


def test_a_turn_that_the_program_knows_is_the_one_that_the_counter_gives(
    agent, start, update, bandit_table
):
    rows = bandit_table.take(jnp.arange(64))
    counted = static = start(agent, **RATES)
    for turn in (0, 1, 0, 1):
        key = jax.random.key(turn)
        counted, _ = update(agent, counted, rows, key)
        static, _ = update(agent, static, rows, key, turn)
    for one, other in zip(jax.tree.leaves(counted), jax.tree.leaves(static), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_targets_are_smoothed_by_clipped_noise(agent, start, bandit_table):
    """With no noise the target is Q'(s', pi'(s')); with huge noise, that of its bounds."""
    rows = bandit_table.take(jnp.arange(64))
    rows = rows.replace(terminated=jnp.zeros(64, bool))
    quiet, loud = start(agent, policy_noise=0.0), start(agent, policy_noise=1e6)
    clipped = start(agent, policy_noise=1e6, noise_clip=0.0)
    keys = jax.random.split(jax.random.key(0), 2)
    target = jax.jit(agent.target)
    assert (target(quiet, rows, keys[0]) == target(quiet, rows, keys[1])).all()
    assert (target(clipped, rows, keys[0]) == target(quiet, rows, keys[0])).all()
    assert (target(loud, rows, keys[0]) != target(quiet, rows, keys[0])).any()


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="td3bc: policy_delay=0; it must be at least 1"):
        TD3BCConfig(policy_delay=0)
    with pytest.raises(ValueError, match=r"td3bc: gamma=1.5; it must be in \[0, 1\]"):
        TD3BCConfig(hyper=TD3BCHyper(gamma=1.5))
