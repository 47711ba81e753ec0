"""Every algorithm learns a real control task: CartPole (500 is the most), or Pendulum."""

import math

import jax
import pytest

from worldloom import suites
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer

pytest.importorskip("gymnax", reason="the tasks are Gymnax's")
pytestmark = pytest.mark.slow

CARTPOLE, PENDULUM = ("gymnax:CartPole-v1", 475.0), ("gymnax:Pendulum-v1", -250.0)
# One world and small networks: seconds instead of minutes.
ALONE = {"steps": 10_000, "num_worlds": 1}
SMALL = {"hidden": (64, 64), "normalise_observations": True, "buffer_size": 10_000}
RATES = {"actor_rate": 1e-3, "critic_rate": 1e-3, "batch_size": 100, "learning_starts": 1000}
FAST_RATES = {"actor_rate": 1e-2, "critic_rate": 1e-2, "temperature_rate": 1e-2, "tau": 0.02}

# Without settings: what `worldloom train` does if nothing is said.
TASKS = {
    "ppo": ("ppo", *CARTPOLE, {}),
    "ppo, continuous": ("ppo", *PENDULUM, {}),
    "pqn": ("pqn", *CARTPOLE, {}),
    "dqn": ("dqn", *CARTPOLE, {}),
    "iqn": ("iqn", *CARTPOLE, {}),
    "td3": ("td3", *PENDULUM, ALONE | {"td3": SMALL | RATES | {"tau": 0.05}}),
    "sac": ("sac", *PENDULUM, ALONE | {"sac": SMALL | FAST_RATES | {"learning_starts": 256}}),
}


@pytest.mark.parametrize("task", TASKS)
def test_an_algorithm_learns_a_control_task(task):
    algo, env, least, settings = TASKS[task]
    suite = suites.suite("plain")
    config = make_config(suite, {"env": env, "algo": algo} | settings)
    problem = suite.problem(config, None)
    trainer = make_trainer(config, problem)
    evaluate, init = problem.make_evaluator(trainer, 64), jax.jit(trainer.loop.init)
    score = -float("inf")
    for seed in (0, 1):  # a training in ten goes wrong, with every one of them
        if score < least:
            trainer.load(init(jax.random.key(seed), *trainer.shared))
            trainer.advance(math.ceil(config.steps / trainer.steps_per_iteration))
            score = evaluate(trainer.agents(), jax.random.key(1)).mean
    assert score >= least
