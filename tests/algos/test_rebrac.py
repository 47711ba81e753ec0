import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.algos.offline import make_table
from worldloom.algos.rebrac import ReBRAC, ReBRACConfig, ReBRACHyper
from worldloom.nn.offline import critics, deterministic, make_critics
from worldloom.nn.policy import policy_step


def make(**numbers):
    rates = {"actor_rate": 3e-3, "critic_rate": 3e-3}
    return ReBRAC(ReBRACConfig(hidden=(32, 32), hyper=ReBRACHyper(**(rates | numbers))))


def start(agent):
    return jax.jit(agent.init, static_argnums=(1, 2))(jax.random.key(0), 2, 1)


# penalty a + (a - 0.5) / 0.547 = 0: the data's mean is 0, and 0.547 is the mean distance of
# Q(a) = 1 - (a - 0.5)^2 from its mean over their actions.
@pytest.mark.parametrize(("penalty", "best"), [(0.2, 0.451), (2.0, 0.239)])
def test_the_actor_stands_between_the_data_and_the_best_action(
    penalty, best, learn, bandit, bandit_table
):
    agent = make()  # one program: the penalty is the learner's
    learner = start(agent)
    hyper = learner.hyper.replace(actor_penalty=jnp.float32(penalty))
    learner, _ = learn(agent, bandit_table, 2000, learner=learner.replace(hyper=hyper))
    dataset = bandit()
    action = policy_step(agent.policy(learner, dataset), dataset.rows.obs[:200])
    np.testing.assert_allclose(action.mean(), best, atol=0.05)


def test_a_constant_added_to_all_values_does_not_move_the_actor(bandit_table):
    agent = make()
    learner = start(agent)
    rows = bandit_table.take(jnp.arange(64))
    layers = learner.critic.params
    raised = (*layers[:-1], layers[-1] | {"bias": layers[-1]["bias"] + 50.0})

    def gradients(critic):
        spread = agent.critic_loss(critic, rows, rows.reward)[1]["spread"]
        loss = jax.grad(lambda w: agent.actor_loss(w, rows, critic, spread, 0.1)[0])
        return loss(learner.actor.params)

    for one, other in zip(
        *map(jax.tree.leaves, (gradients(layers), gradients(raised))), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_targets_pay_for_what_the_data_did_not_do_next(chain):
    """Where the log goes on; it says nothing of what follows its last row."""
    agent = make(policy_noise=0.0, critic_penalty=3.0, gamma=0.5)
    free = make(policy_noise=0.0, critic_penalty=0.0, gamma=0.5)
    _, table = chain(False)
    learner, other = (start(x) for x in (agent, free))
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
    key = jax.random.key(0)
    obs, action = jnp.ones((1, 3)), jnp.ones((1, 2))
    for norm, grows in ((True, False), (False, True)):
        weights = make_critics(key, 2, 3, 2, (32, 32), norm=norm)
        near, far = critics(weights, obs, action), critics(weights, 1e4 * obs, 1e4 * action)
        assert bool((jnp.abs(far) > 100 * jnp.abs(near)).all()) == grows
        if norm:  # normed features have a length of sqrt(32)
            length = jnp.linalg.norm(weights[-1]["kernel"], axis=-1)
            bound = np.sqrt(32) * length + jnp.abs(weights[-1]["bias"])
            assert (jnp.abs(far)[:, 0] <= 1.001 * bound).all()
