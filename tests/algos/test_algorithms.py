"""The list of algorithms: names without imports, descriptors that keep their word."""

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom import algos
from worldloom.algos.algorithm import Algorithm
from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box, Dict, Discrete
from worldloom.nn.networks import Networks

NAMES = set(
    "bc cql dqn edac iql iqn mappo mbpo ppo pqn qlearning random rebrac sac td3 td3bc vdn".split()  # noqa: SIM905
)
CHOICE = EnvSpec("choice", Box(0, 1, (4,)), Discrete(5))
VECTOR = EnvSpec("vector", Box(-1, 1, (4,)), Box(-1, 1, (2,)))


@pytest.fixture
def registered(monkeypatch):
    """Whatever a test registers is gone after it."""
    monkeypatch.setattr(algos, "_REGISTERED", {})


def test_every_algorithm_has_a_name_and_one_line():
    assert set(algos.names()) == NAMES
    assert all(10 < len(text) < 80 and "\n" not in text for text in algos.names().values())


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_descriptor_says_what_its_file_does(name):
    algorithm = algos.get(name)
    assert (algorithm.name, algorithm.description) == (name, algos.names()[name])
    config = algorithm.config()
    assert hash(config) == hash(algorithm.config()), "options must be usable as static arguments"
    fits = {"discrete": CHOICE, "continuous": VECTOR}
    for kind, spec in fits.items():
        if kind not in algorithm.actions:
            assert "actions" in algorithm.why_not(spec)
        elif not (algorithm.centralised or algorithm.team_axis):
            assert algorithm.why_not(spec) is None
            agent = algorithm.make(config, spec, Networks())
            assert agent.config is config
            assert agent == algorithm.make(config, spec, Networks()) or name == "ppo"


@pytest.mark.parametrize(
    "name", sorted(n for n in NAMES if algos.get(n).loop == "off_policy" and n != "random")
)
def test_off_policy_agents_act_greedily_by_a_traced_zero(name):
    algorithm = algos.get(name)
    spec = CHOICE if "discrete" in algorithm.actions else VECTOR
    agent = algorithm.make(algorithm.config(), spec, Networks())
    learner = jax.jit(agent.init)(jax.random.key(0), jnp.zeros((1, 4)))
    obs = jax.random.normal(jax.random.key(1), (64, 4))
    act = jax.jit(lambda key, explore: agent.act(learner.params, obs, key, explore=explore)[0])
    one, two = (act(jax.random.key(k), jnp.float32(0.0)) for k in (1, 2))
    if name != "qlearning":  # which breaks ties at random, and here all values are equal
        np.testing.assert_array_equal(one, two)
    assert (act(jax.random.key(1), jnp.float32(1.0)) != one).any()
    assert one.shape == ((64,) if spec is CHOICE else (64, 2))


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(
        ValueError, match="there is no algorithm 'qlerning'; did you mean 'qlearning'"
    ):
        algos.get("qlerning")
    with pytest.raises(ValueError, match="known: bc, cql, dqn"):
        algos.get("xyzzy")


def test_names_and_attributes_import_no_jax_and_no_algorithm():
    program = (
        "import sys; from worldloom import algos; algos.names(); dir(algos); "
        "print('jax' in sys.modules, 'worldloom.algos.iqn' in sys.modules);"
        "print(algos.DQNConfig.__module__, 'worldloom.algos.iqn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "False", "worldloom.algos.dqn", "False"]


def test_algorithms_and_their_options_are_attributes():
    for name in ("IQL", "IQLConfig", "IQLHyper", "PPO", "PPOConfig", "SAC", "TD3Config", "PQN"):
        assert getattr(algos, name).__name__ == name
        assert name in dir(algos)
    with pytest.raises(AttributeError, match="has no attribute 'IQ'"):
        _ = algos.IQ


def test_an_algorithm_of_the_users_own_is_known_by_its_name(registered):
    mine = replace(algos.get("dqn"), name="mine", description="an algorithm of my own")
    algos.register(mine)
    assert algos.get("mine") is mine
    assert algos.names()["mine"] == "an algorithm of my own"
    for taken in (mine, algos.get("dqn")):
        with pytest.raises(ValueError, match="already an algorithm named"):
            algos.register(taken)


def test_an_algorithm_in_a_file_is_found_by_its_path(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass, replace\n"
        "from worldloom.algos.dqn import ALGORITHM as DQN, DQNConfig\n"
        "@dataclass(frozen=True)\n"
        "class OwnConfig(DQNConfig):\n"
        "    more: int = 3\n"
        "ALGORITHM = replace(DQN, name='own', config=OwnConfig)\n"
        "OTHER = replace(DQN, name='other')\n"
        "WRONG = 1\n"
    )
    found = algos.get(str(file))
    assert isinstance(found, Algorithm)
    assert found.config().more == 3
    assert algos.get(str(file)) is found, "its classes must not be made twice"
    assert algos.get(f"{file}:OTHER").name == "other"
    with pytest.raises(ValueError, match=r"own.py: WRONG is not an Algorithm; write WRONG ="):
        algos.get(f"{file}:WRONG")
    with pytest.raises(ValueError, match=r"there is no file .*gone.py"):
        algos.get(str(tmp_path / "gone.py"))


def test_a_world_that_does_not_fit_is_refused_with_the_reason():
    assert algos.get("sac").why_not(CHOICE) == (
        "sac needs continuous actions, and those of choice are discrete"
    )
    assert "has one" in algos.get("mappo").why_not(CHOICE)
    several = replace(CHOICE, observation=Dict((("a", Box(0, 1, (2,))),)))
    assert "several" in algos.get("qlearning").why_not(several)
    assert algos.get("dqn").why_not(several) is None


def test_actions_beyond_one_are_refused_by_those_who_squash():
    wide = replace(VECTOR, action=Box(-2, 2, (2,)))
    for name in ("sac", "td3"):
        algorithm = algos.get(name)
        with pytest.raises(ValueError, match=rf"{name}: the actions of vector .* in \[-1, 1\]"):
            algorithm.make(algorithm.config(), wide, Networks())
