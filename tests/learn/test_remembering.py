"""Who remembers solves what nobody else can: alone, beside others, with one network or several."""

import jax
import pytest
from memory_probe import Recall, RecallTogether

from worldloom import algos
from worldloom.core.memory import as_seen
from worldloom.core.transforms import as_pure
from worldloom.nn.networks import Networks
from worldloom.training.loops.on_policy import OnPolicyLoop
from worldloom.training.loops.on_policy_turns import OnPolicyTurnLoop

OPTIONS = {
    "hidden": (16,), "unroll_length": 8, "num_minibatches": 2, "learning_rate": 1e-2, "gamma": 0.9,
    "memory_units": 16,
}  # fmt: skip
WORLDS, UPDATES = 32, 60


def last_return(loop, *shared, updates: int = UPDATES) -> float:
    """What episodes return at the end of learning, of which 1 is the most for each agent."""

    @jax.jit
    def learn(run):
        return jax.lax.scan(lambda run, _: loop.iterate(run, *shared), run, length=updates)[1]

    returns = learn(loop.init(jax.random.key(0), *shared))["return"]
    return float(returns[-5:].mean())


@pytest.mark.parametrize(("memory", "steps"), [("gru", 0), ("gru", 4), ("none", 0)])
def test_a_cue_is_remembered_with_a_memory_and_only_then(memory, steps):
    algorithm, env = algos.get("ppo"), as_pure(Recall())
    config = algorithm.config(**OPTIONS, memory=memory, memory_steps=steps)
    agent = algorithm.make(config, env.spec, Networks())
    seen = as_seen(env, False, config.memory_size)
    score = last_return(OnPolicyLoop(seen, agent, WORLDS), ())
    assert (score > 0.95) == (memory == "gru"), score
    assert score < 0.7 or memory == "gru"


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "shared"), [("ppo", False), ("ppo", True), ("mappo", False)])
def test_agents_beside_each_other_remember_what_each_was_shown(algo, shared):
    algorithm, env = algos.get(algo), as_pure(RecallTogether())
    config = algorithm.config(**OPTIONS, memory="gru")
    agent = algorithm.make(config, env.spec, Networks())
    # Of a rollout of one episode each agent learns from half as much as above.
    loop = OnPolicyTurnLoop(env, agent, (), 2 * WORLDS, shared, algorithm.centralised)
    assert last_return(loop, updates=3 * UPDATES) > 1.9
