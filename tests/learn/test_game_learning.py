"""Agents learn games: the simplest one is played from end to end in seconds."""

import jax
import pytest

from worldloom.suites.arc.problem import make_problem
from worldloom.suites.arc.suite import SUITE
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["pqn", "ppo"])
def test_every_level_of_glide_is_solved(algo):
    config = make_config(SUITE, {"env": "glide", "algo": algo})
    problem = make_problem(config)
    trainer = make_trainer(config, problem)
    evaluator = problem.make_evaluator(trainer, 16)
    at_random = evaluator(trainer.agents(), jax.random.key(1), at_random=True)
    assert at_random.mean < 0.8, "it was too easy: random play solves it"
    for _ in range(8):
        trainer.advance(20)
        scores = evaluator(trainer.agents(), jax.random.key(0))
        if scores.mean == 1.0 and scores.efficiency[0] > 0.8:
            break
    assert scores.mean == 1.0
    assert scores.efficiency[0] > 0.8, "in few actions more than the shortest solutions take"
    assert scores.efficiency[0] > 5 * at_random.efficiency.mean()
