from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.offline import make_table
from worldloom.nn.offline import critics, deterministic, make_critics
from worldloom.nn.policy import policy_step

RATES = {"actor_rate": 3e-3, "critic_rate": 3e-3}


@pytest.fixture(scope="module")
def agent(small):
    return small("rebrac")


# penalty a + (a - 0.5) / 0.547 = 0: the data's mean is 0, and 0.547 is the mean distance of
# Q(a) = 1 - (a - 0.5)^2 from its mean over their actions.
@pytest.mark.parametrize(("penalty", "best"), [(0.2, 0.451), (2.0, 0.239)])
def test_the_actor_stands_between_the_data_and_the_best_action(
    penalty, best, agent, start, learn, bandit, bandit_table
):
    learner = start(agent, actor_penalty=penalty, **RATES)
    learner, _ = learn(agent, bandit_table, 2000, learner=learner)
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    np.testing.assert_allclose(action.mean(), best, atol=0.05)


def test_a_constant_added_to_all_values_does_not_move_the_actor(agent, start, bandit_table):
    learner = start(agent, actor_penalty=0.1)
    rows = bandit_table.take(jnp.arange(64))
    layers = learner.critic.params
    raised = (*layers[:-1], layers[-1] | {"bias": layers[-1]["bias"] + 50.0})

    @jax.jit
    def gradients(critic):
        metrics = agent.critic_loss(critic, rows, rows.reward)[1]
        judged = learner.replace(critic=learner.critic.replace(params=critic))
        return jax.grad(agent.actor_loss, has_aux=True)(
            learner.actor.params, judged, rows, metrics
        )[0]

    for one, other in zip(
        *map(jax.tree.leaves, (gradients(layers), gradients(raised))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_targets_pay_for_what_the_data_did_not_do_next(agent, start, chain):
    """Where the log goes on; it says nothing of what follows its last row."""
    _, table = chain(False)
    learner, other = (
        start(agent, policy_noise=0.0, critic_penalty=penalty, gamma=0.5) for penalty in (3.0, 0.0)
    )
    rows = table.take(jnp.arange(64))
    action = deterministic(learner.target_actor, rows.next_obs)
    key = jax.random.key(1)
    target = jax.jit(agent.target)
    lost = target(other, rows, key) - target(learner, rows, key)
    np.testing.assert_array_equal(rows.followed, np.tile([True, False], 32))
    expected = 0.5 * 3.0 * jnp.square(action - rows.next_action).sum(-1)
    np.testing.assert_allclose(lost, jnp.where(rows.followed, expected, 0.0), atol=1e-5)
    assert expected.max() > 0.1


def test_next_actions_are_those_of_the_log(bandit, chain):
    dataset, table = chain(False)
    rows = table.take(jnp.arange(0, 64, 2))
    np.testing.assert_array_equal(rows.next_action, dataset.rows.action[1:64:2])
    one_step = make_table(bandit())
    assert not one_step.take(jnp.arange(100)).followed.any()


def test_a_layer_norm_keeps_critics_from_growing_without_data():
    obs, action = jnp.ones((1, 3)), jnp.ones((1, 2))
    judge = jax.jit(critics)
    for norm, grows in ((True, False), (False, True)):
        make = jax.jit(
            partial(make_critics, count=2, obs_size=3, action_size=2, hidden=(32, 32), norm=norm)
        )
        weights = make(jax.random.key(0))
        near, far = judge(weights, obs, action), judge(weights, 1e4 * obs, 1e4 * action)
        assert bool((jnp.abs(far) > 100 * jnp.abs(near)).all()) == grows
        if norm:  # normed features have a length of sqrt(32)
            length = jnp.linalg.norm(weights[-1]["kernel"], axis=-1)
            bound = np.sqrt(32) * length + jnp.abs(weights[-1]["bias"])
            assert (jnp.abs(far)[:, 0] <= 1.001 * bound).all()
