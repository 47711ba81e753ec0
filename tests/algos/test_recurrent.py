"""PPO with a memory learns from sequences that are played again exactly as they were played."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table_world import TERMINATE, TableWorld, table

from worldloom.algos import on_policy, ppo
from worldloom.algos.on_policy import merge_axes
from worldloom.algos.ppo import PPOConfig
from worldloom.core.memory import remember
from worldloom.core.transforms import as_pure, autoreset_batch
from worldloom.nn.networks import Networks
from worldloom.nn.recurrent import GRU

WORLDS, STEPS = 3, 12
# Three states in a row, of which the last one ends an episode: not at the same steps of a rollout
# as its sequences.
WORLD = table([0], then=[1, 2, 0], reward=[0.0, 1.0, 2.0], ending=[0, 0, TERMINATE])


@pytest.fixture(scope="module", params=[0, 4, 3], ids=["whole", "4 steps", "3 steps"])
def played(request):
    """An agent, its state, and a rollout."""
    config = PPOConfig(
        unroll_length=STEPS, hidden=(8,), memory="gru", memory_units=6, num_minibatches=1,
        memory_steps=request.param, normalise_observations=True,
    )  # fmt: skip
    env = as_pure(TableWorld())
    agent = ppo.make(config, env.spec, Networks(encode=lambda obs: obs.state))
    worlds = autoreset_batch(remember(env, config.memory_size), WORLDS)
    state, timestep = worlds.reset(jax.random.key(0), WORLD)
    learner = agent.init(jax.random.key(1), timestep.obs)
    key = jax.random.key(2)
    *_, rollout, _ = jax.jit(
        lambda *args: on_policy.collect(agent, worlds, *args, WORLD, key), static_argnums=()
    )(learner, state, timestep)
    return agent, learner, rollout


def test_sequences_give_the_log_probs_and_values_that_were_played(played):
    agent, learner, rollout = played
    samples = agent.samples(rollout)
    length = agent.config.memory_steps or STEPS
    assert samples.advantage.shape == (STEPS // length * WORLDS, length)
    assert samples.starts.any(), "an episode begins within a sequence"
    policy, value, _ = agent.remembering(learner, samples.obs, samples.starts)
    flat = merge_axes(samples.replace(obs=None))
    np.testing.assert_allclose(policy.log_prob(flat.action), flat.log_prob, atol=1e-6)
    np.testing.assert_allclose(value, flat.returns - flat.advantage, atol=1e-5)


def test_episodes_begin_with_nothing_remembered(played):
    _, _, rollout = played
    begun = np.concatenate([np.ones((1, WORLDS), bool), np.asarray(rollout.terminated)[:-1]])
    blank = (np.asarray(rollout.obs.memory) == 0).all(axis=-1)
    np.testing.assert_array_equal(blank, begun)


def test_an_update_moves_every_weight_of_the_memory(played):
    agent, learner, rollout = played
    new, metrics = jax.jit(agent.update)(learner, rollout, jax.random.key(3))
    assert np.isfinite(float(metrics.loss))
    for name in ("policy_memory", "value_memory"):
        old, moved = (x.params["params"][name] for x in (learner, new))
        same = jax.tree.map(lambda a, b: bool((a == b).all()), old, moved)
        assert not any(jax.tree.leaves(same)), same


def test_a_unit_that_starts_anew_is_as_one_that_never_began():
    layer, x = GRU(4), jax.random.normal(jax.random.key(0), (2, 5, 3))
    none, no = jnp.zeros((2, 4)), jnp.zeros((2, 5), bool)
    params = layer.init(jax.random.key(1), x, none, no)
    out, last = layer.apply(params, x, none, no.at[:, 3].set(True))
    np.testing.assert_array_equal(out[:, -1], last)
    anew, _ = layer.apply(params, x[:, 3:], none, no[:, 3:])
    np.testing.assert_allclose(out[:, 3:], anew, atol=1e-6)
    on, _ = layer.apply(params, x[:, 3:], out[:, 2], no[:, 3:])
    assert np.abs(out[:, 3:] - on).max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_steps": 5}, "memory_steps=5 does not divide the 12 steps"),
        ({"memory_steps": 6, "num_minibatches": 4}, "in sequences of 6, which num_minibatches=4"),
        ({"memory": "lstm"}, "memory='lstm'"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_line(options, message):
    def cut():
        config = PPOConfig(**{"memory": "gru", "unroll_length": STEPS} | options)
        config.check_minibatches(STEPS, WORLDS, "so many")

    with pytest.raises(ValueError, match=message) as refused:
        cut()
    assert "\n" not in str(refused.value)
