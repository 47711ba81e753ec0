"""VDN on problems whose team values are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from probes import GAMMA

from worldloom.algos.on_policy import Rollout
from worldloom.algos.pqn import PQN, PQNConfig
from worldloom.algos.vdn import AGENTS, VDN, VDNConfig
from worldloom.nn.networks import Networks

STATES, ACTIONS, WORLDS = 2, 2, 64
OPTIONS = {
    "hidden": (32,), "gamma": GAMMA, "q_lambda": 0.5, "num_minibatches": 1, "num_epochs": 4,
    "learning_rate": 5e-3,
}  # fmt: skip
# What the action of either agent adds to the reward of the *other* one, in either state.
GIVES = np.array([[[0.0, 1.0], [2.0, 0.0]], [[3.0, 0.0], [0.0, 1.0]]])  # (agent, state, action)
SEEN = jnp.eye(STATES)[:, None]  # (states, 1 frame, features)


def rollout(agent, learners, key) -> Rollout:
    """One visit of state 0, then one of state 1, then the end; actions are random."""
    actions = jax.random.randint(key, (2, STATES, WORLDS), 0, ACTIONS)
    gifts = jnp.asarray(GIVES)[:, jnp.arange(STATES)[:, None]]  # (agent, T, 1, action)
    paid = jnp.take_along_axis(gifts, actions[..., None], axis=-1)[..., 0]
    values = jax.vmap(lambda learner: agent.value(learner, SEEN))(learners)  # (agent, states)
    values = jnp.broadcast_to(values[..., None], actions.shape)
    after = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], axis=1)
    last = jnp.broadcast_to(jnp.array([False, True])[:, None], actions.shape)
    obs = jnp.broadcast_to(SEEN[None, :, None], (2, STATES, WORLDS, *SEEN.shape[1:]))
    zero = jnp.zeros_like(values)
    return Rollout(obs, actions, zero, values, paid[::-1], last, last & False, after)


def learn(agent, shared: bool = False, updates: int = 200) -> np.ndarray:
    """Values (agent, state, action) after so many rollouts."""

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 2)
        learners = jax.vmap(lambda k: agent.init(k, SEEN))(keys[jnp.array([0, 0 if shared else 1])])

        def one(learners, key):
            play_key, learn_key = jax.random.split(key)
            keys = jax.random.split(learn_key, 2)
            update = jax.vmap(agent.update, axis_name=AGENTS)
            return update(learners, rollout(agent, learners, play_key), keys)[0], None

        learners, _ = jax.lax.scan(one, learners, jax.random.split(key, updates))
        return jax.vmap(lambda learner: agent.values(learner, SEEN))(learners)

    return np.asarray(run(jax.random.key(0)))


def team_values(parts: np.ndarray) -> np.ndarray:
    """(state, action of agent 0, action of agent 1)."""
    return parts[0][:, :, None] + parts[1][:, None, :]


def known() -> np.ndarray:
    """What either gives, and in state 0 also what the best team gets in state 1, discounted."""
    now = team_values(GIVES)
    best = now.reshape(STATES, -1).max(axis=1)
    return now + np.array([GAMMA * best[1], 0.0])[:, None, None]


@pytest.mark.slow
def test_the_sum_of_parts_is_the_teams_value():
    """With lambda 0: later values are those of the best actions, however the rollout went on."""
    agent = VDN(VDNConfig(**OPTIONS | {"q_lambda": 0.0}), ACTIONS, Networks())
    np.testing.assert_allclose(team_values(learn(agent)), known(), atol=0.1)


@pytest.mark.slow
def test_agents_do_what_helps_the_other_and_alone_they_do_not():
    best = GIVES.argmax(axis=-1)
    parts = learn(VDN(VDNConfig(**OPTIONS), ACTIONS, Networks()))
    assert (parts.argmax(axis=-1) == best).all()
    alone = learn(PQN(PQNConfig(**OPTIONS), ACTIONS, Networks()))
    # What an agent is paid does not depend on what it does: to it all actions are alike.
    assert np.abs(np.diff(alone, axis=-1)).max() < 0.5
    assert np.abs(np.diff(parts, axis=-1)).min() > 0.7


@pytest.mark.slow
def test_a_team_of_one_network_stays_one():
    agent = VDN(VDNConfig(**OPTIONS), ACTIONS, Networks(), axis_name=AGENTS)
    parts = learn(agent, shared=True, updates=20)
    np.testing.assert_array_equal(parts[0], parts[1])
