"""SAC and TD3 find the known answers of the probes, in seconds."""

from functools import cache

import numpy as np
import pytest
from continuous_probes import GAMMA, SPEC, aim, endless, learner_of, reach

from worldloom import algos
from worldloom.nn.networks import Networks

FAST = {
    "hidden": (32, 32),
    "actor_rate": 3e-3,
    "critic_rate": 3e-3,
    "tau": 0.05,
    "batch_size": 64,
    "normalise_observations": True,
}
# Entropy is worth next to nothing: with it, values would be those of another problem.
OPTIONS = {"sac": {"initial_temperature": 1e-3, "temperature_rate": 1e-6}, "td3": {}}


@cache
def learner(name: str):
    algorithm = algos.get(name)
    config = algorithm.config(**FAST, **OPTIONS[name])
    return learner_of(algorithm.make(config, SPEC, Networks()), updates=1200)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_best_action_depends_on_what_is_seen(name):
    x = np.linspace(-0.8, 0.8, 9, dtype=np.float32)
    found = learner(name)(aim(), np.stack([x, 0 * x], 1))
    np.testing.assert_allclose(found.action, x / 2, atol=0.1)
    np.testing.assert_allclose(found.value, 0.0, atol=0.05)
    assert found.metrics["critic_loss"][-50:].mean() < 0.1 * found.metrics["critic_loss"][:5].mean()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_action_is_judged_by_what_it_leads_to(name):
    x = np.linspace(-0.8, 0.8, 5, dtype=np.float32)
    found = learner(name)(reach(), np.stack([x, 0 * x], 1))
    np.testing.assert_allclose(found.action, 0.6, atol=0.15)
    second = learner(name)(reach(), np.stack([x, 0 * x + 1], 1))
    np.testing.assert_allclose(second.value, -np.square(x - 0.6), atol=0.15)


@pytest.mark.parametrize("name", OPTIONS)
def test_time_running_out_is_bootstrapped_from(name):
    x = np.linspace(-0.8, 0.8, 5, dtype=np.float32)
    found = learner(name)(endless(), np.stack([x, 0 * x], 1))
    np.testing.assert_allclose(found.value, 1 / (1 - GAMMA), atol=0.1)
