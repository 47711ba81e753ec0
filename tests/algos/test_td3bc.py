import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.td3bc import TD3BC, TD3BCConfig, TD3BCHyper
from worldloom.nn.offline import member
from worldloom.nn.policy import policy_step


def make(**numbers):
    rates = {"actor_rate": 3e-3, "critic_rate": 3e-3}
    return TD3BC(TD3BCConfig(hidden=(32, 32), hyper=TD3BCHyper(**(rates | numbers))))


def start(agent):
    return jax.jit(agent.init, static_argnums=(1, 2))(jax.random.key(0), 2, 1)


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(bool((a == b).all()) for a, b in pairs)


# a + lambda (a - 0.5) = 0 with lambda = alpha / Q(a) and Q(a) = 1 - (a - 0.5)^2; the data's mean
# is 0.
@pytest.mark.parametrize(("alpha", "best"), [(0.0, 0.0), (2.5, 0.359), (50.0, 0.490)])
def test_the_actor_stands_between_the_data_and_the_best_action(
    alpha, best, learn, bandit, bandit_table
):
    agent = make()  # one program: alpha is the learner's
    learner = start(agent)
    hyper = learner.hyper.replace(alpha=jnp.float32(alpha))
    learner, _ = learn(agent, bandit_table, 2000, learner=learner.replace(hyper=hyper))
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    np.testing.assert_allclose(action.mean(), best, atol=0.05)


def test_the_scale_of_rewards_does_not_matter_to_the_actor(bandit_table):
    agent = make()
    learner = start(agent)
    rows = bandit_table.take(jnp.arange(64))
    critic = member(learner.critic.params, 0)
    louder = (*critic[:-1], jax.tree.map(lambda x: 100.0 * x, critic[-1]))
    grad = jax.jit(jax.grad(lambda w, c: agent.actor_loss(w, rows, c, 2.5)[0]))
    weights = learner.actor.params
    for one, other in zip(
        jax.tree.leaves(grad(weights, critic)), jax.tree.leaves(grad(weights, louder)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_actor_and_all_targets_move_every_second_update(bandit_table):
    agent = make()
    update = jax.jit(agent.update)
    rows = bandit_table.take(jnp.arange(64))
    first = start(agent)
    one, _ = update(first, rows, jax.random.key(1))
    two, _ = update(one, rows, jax.random.key(2))
    assert not same(first.critic.params, one.critic.params)
    assert same((first.actor, first.target_critic), (one.actor, one.target_critic))
    assert not same(one.actor.params, two.actor.params)
    assert not same(one.target_critic, two.target_critic)
    assert not same(one.target_actor, two.target_actor)


def test_a_turn_that_the_program_knows_is_the_one_that_the_counter_tells(bandit_table):
    agent = make()
    rows = bandit_table.take(jnp.arange(64))
    learner = start(agent)
    told = learner
    counted, known = jax.jit(agent.update), jax.jit(agent.update, static_argnums=3)
    for turn in (0, 1, 0, 1):
        key = jax.random.key(turn)
        learner, _ = counted(learner, rows, key)
        told, _ = known(told, rows, key, turn)
    for one, other in zip(jax.tree.leaves(learner), jax.tree.leaves(told), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_targets_are_smoothed_by_clipped_noise(bandit_table):
    """With no noise the target is Q'(s', pi'(s')); with huge noise, that of its bounds."""
    agent = make()
    learner = start(agent)
    rows = bandit_table.take(jnp.arange(64))
    rows = rows.replace(terminated=jnp.zeros(64, bool))
    quiet = learner.replace(hyper=learner.hyper.replace(policy_noise=jnp.float32(0.0)))
    keys = jax.random.split(jax.random.key(0), 2)
    target = jax.jit(agent.target)
    assert (target(quiet, rows, keys[0]) == target(quiet, rows, keys[1])).all()
    loud = learner.replace(hyper=learner.hyper.replace(policy_noise=jnp.float32(1e6)))
    clipped = loud.replace(hyper=loud.hyper.replace(noise_clip=jnp.float32(0.0)))
    assert (target(clipped, rows, keys[0]) == target(quiet, rows, keys[0])).all()
    assert (target(loud, rows, keys[0]) != target(quiet, rows, keys[0])).any()


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="td3bc: policy_delay=0; it must be at least 1"):
        TD3BCConfig(policy_delay=0)
    with pytest.raises(ValueError, match=r"td3bc: gamma=1.5; it must be in \[0, 1\]"):
        TD3BCConfig(hyper=TD3BCHyper(gamma=1.5))
