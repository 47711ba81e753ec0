"""Agents learn to edit grids: a tiny set of tasks is solved from nothing in seconds."""

import json

import jax
import numpy as np
import pytest

from worldloom.suites.arc.problem import make_problem
from worldloom.suites.arc.suite import SUITE
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer

SETTINGS = {
    "ppo": {
        "num_worlds": 256,
        "ppo": {
            "unroll_length": 16,
            "learning_rate": 2e-3,
            "gamma": 0.95,
            "gae_lambda": 0.95,
            "entropy_cost": 0.05,
            "normalise_advantages": True,
            "anneal_updates": 0,
        },
    },
    "dqn": {
        "num_worlds": 64,
        "dqn": {
            "gradient_steps": 2,
            "batch_size": 256,
            "learning_rate": 2e-3,
            "gamma": 0.9,
            "buffer_size": 20_000,
            "epsilon_decay": 0.1,
        },
    },
    "pqn": {
        "num_worlds": 256,
        "pqn": {
            "unroll_length": 8,
            "num_minibatches": 16,
            "learning_rate": 1e-3,
            "gamma": 0.9,
            "epsilon_updates": 80,
        },
    },
}
ITERATIONS = {"ppo": 60, "dqn": 30, "pqn": 120}


@pytest.fixture
def tasks(tmp_path):
    """Two tasks of 3 x 3: one coloured cell, wherever it is, becomes another colour."""

    def pair(place, before, after):
        cells = np.zeros((2, 9), int)
        cells[:, place] = before, after
        grids = cells.reshape(2, 3, 3).tolist()
        return {"input": grids[0], "output": grids[1]}

    for before, after in ((1, 2), (3, 1)):
        train = [pair(place, before, after) for place in (0, 4, 8)]
        task = {"train": train, "test": [pair(2, before, after)]}
        (tmp_path / f"{before}.json").write_text(json.dumps(task))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("algo", SETTINGS)
def test_a_cell_is_recoloured_and_submitted(algo, tasks):
    given = {
        "env": "arc",
        "algo": algo,
        "tasks": tasks,
        "world": {"max_steps": 6, "operations": (0, 1, 2, 34), "wrong_penalty": 0.0},
        "network": {"context": 32},
    }
    config = make_config(SUITE, given | SETTINGS[algo])
    problem = make_problem(config)
    trainer = make_trainer(config, problem)
    solved, length = [], [np.nan]
    while trainer.iteration < ITERATIONS[algo] and (not solved or solved[-1] < 0.99):
        metrics = trainer.advance(10)
        solved, length = [*solved, *metrics["solved"]], metrics["length"]
    assert solved[0] < 0.05, "it was too easy: random play solves it"
    assert solved[-1] > (0.99 if algo == "ppo" else 0.9), "the others still explore"
    assert length[-1] < 2.6, "one fill and one submission are enough"
    evaluation = problem.make_evaluator(trainer, 0)(trainer.agents(), jax.random.key(0))
    assert evaluation.mean == 1.0
