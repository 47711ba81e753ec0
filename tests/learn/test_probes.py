"""Every learner finds the known values of the probes, in seconds."""

import numpy as np
import pytest
from probes import ONE_STEP, SPEC, TWO_STEP, Probe, known_values, learner_of

from worldloom import algos
from worldloom.algos.dqn import DQNConfig
from worldloom.algos.iqn import IQNConfig
from worldloom.algos.qlearning import QLearningConfig
from worldloom.nn.networks import Networks

IQN = {
    "hidden": 24,
    "num_quantiles": 4,
    "batch_size": 16,
    "learning_rate": 5e-3,
    "target_rate": 0.1,
}

# name -> (algorithm, configuration, updates, tolerance)
LEARNERS = {
    "iqn": ("iqn", IQNConfig(**IQN), 800, 0.1),
    "iqn, own levels and noise": ("iqn", IQNConfig(**IQN, levels="own", noisy=True), 1000, 0.1),
    "iqn, legacy": (
        "iqn",
        IQNConfig(
            **IQN,
            act_quantiles=64,
            act_levels="random",
            levels="own",
            noisy=True,
            max_grad_norm=1.0,
            legacy=True,
        ),
        1000,
        0.1,
    ),
    "dqn": ("dqn", DQNConfig(hidden=(32,), batch_size=32, learning_rate=3e-3), 1000, 0.05),
    "qlearning": ("qlearning", QLearningConfig(table_size=509, learning_rate=0.5), 300, 0.01),
}


def errors(learner: str, n_step: int, probes: tuple[Probe, ...]) -> tuple[np.ndarray, float]:
    algorithm, config, updates, tolerance = LEARNERS[learner]
    learn = learner_of(lambda: algos.get(algorithm).make(config, SPEC, Networks()), n_step, updates)
    wrong = np.abs(learn(probes) - np.stack([known_values(probe) for probe in probes]))
    return wrong, tolerance


def assert_all_known(learner: str, n_step: int, probes: tuple[Probe, ...]) -> None:
    wrong, tolerance = errors(learner, n_step, probes)
    worst = {
        probe.name: float(np.nanmax(table)) for probe, table in zip(probes, wrong, strict=True)
    }
    missed = {name: round(error, 3) for name, error in worst.items() if not error < tolerance}
    assert not missed, f"{learner} is off by more than {tolerance}"


@pytest.mark.parametrize("learner", LEARNERS)
def test_one_step_learners_find_the_known_values(learner):
    assert_all_known(learner, 1, ONE_STEP)


@pytest.mark.parametrize("learner", ["iqn", "dqn", "qlearning"])
def test_two_step_learners_find_the_known_values(learner):
    assert_all_known(learner, 2, TWO_STEP)


def test_two_step_values_are_not_those_of_one_step():
    wrong, _ = errors("qlearning", 1, TWO_STEP[1:2])
    assert np.nanmax(wrong) > 0.5, "the probe would not notice a learner that ignores n_step"
