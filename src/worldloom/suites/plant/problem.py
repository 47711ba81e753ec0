"""A plant as a problem to train on: the world, data and constraints, and how policies are scored.

The folder of a run holds, beside what every run has, constraints.yaml (what the filter holds the
policy to), trajectories.npz (the last evaluation, step by step) and, where it learned from logged
data, data.npz and ope.json (off-policy estimates beside the truth).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import suites
from worldloom.core.files import write_json
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, PyTree
from worldloom.core.yaml_nodes import read_text
from worldloom.nn.networks import Networks
from worldloom.nn.policy import PolicyState
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset
from worldloom.suites.plant.datasets import log_data
from worldloom.suites.plant.description import WORLD_FILE, LoggedPlant
from worldloom.suites.plant.description import load as load_description
from worldloom.suites.plant.evaluate import PlantEvaluator, save_trajectories
from worldloom.suites.plant.filtering import behind_filter, filter_outcomes
from worldloom.suites.plant.ope import OPE_FILE, OPE_KEY, off_policy_evaluation
from worldloom.suites.plant.plant import PlantWorld, plant_of
from worldloom.suites.plant.references import SHOWN, references
from worldloom.suites.plant.safety import constraint_text, constraints_in
from worldloom.suites.plant.suite import DATA_QUALITIES
from worldloom.training import loops
from worldloom.training.config import TrainConfig
from worldloom.training.driver import Hook
from worldloom.training.recording import recorded_data
from worldloom.training.run import Run
from worldloom.training.run import load as load_run
from worldloom.training.suite import Problem
from worldloom.training.trainer import Trainer

DATA_FILE, CONSTRAINTS_FILE = "data.npz", "constraints.yaml"
NO_MEMORY = "controllers of plants see one observation at a time"


def make_problem(config: TrainConfig, folder: Path | None = None) -> Problem:
    """What a loop needs to learn to control a plant."""
    settings, offline = config.settings, config.algorithm.loop == "offline"
    for name in ("filter_training", "init_from"):
        if offline and getattr(settings, name):
            raise ValueError(
                f"{config.env}: {name} is for algorithms that learn in the plant, and "
                f"{config.algo} learns from logged data; use ppo, sac or td3"
            )
    described = None if folder is None else Path(folder) / WORLD_FILE
    if described is not None and described.is_file():  # a run's own copy
        env = load_description(described)
    else:
        env = suites.make(config.env, **config.world)
    world = plant_of(env, config.env)
    if isinstance(world.plant, LoggedPlant):
        from worldloom.suites.plant.logged_problem import make_logged_problem

        return make_logged_problem(config, env, folder)
    # A run's own constraints, what is named, or the plant's limits.
    path = settings.constraints if folder is None else str(Path(folder) / CONSTRAINTS_FILE)
    text = constraint_text(world) if path is None else read_text(path)
    source = f"{config.env}'s limits" if path is None else path
    constraints = constraints_in(text, source, world)
    data = cache(partial(load_data, config, env, folder if offline else None))

    def make_evaluator(trainer: Trainer, episodes: int) -> PlantEvaluator:
        to_policy = partial(policy_of, trainer)
        gamma, at_random = gamma_of(config), config.algo == "random"
        return PlantEvaluator(env, constraints, episodes, gamma, to_policy, at_random)

    def about(run: Run) -> Mapping[str, Any]:
        known = {"plant": plant_facts(world), "constraints": list(constraints.names)}
        compared = references(world)
        if compared is not None:
            scores = {text: compared[name] for name, text in SHOWN.items()}
            known |= {"reference_scores": scores}
        if not offline:
            return known
        log = data()
        origin = {"name": log.name, "digest": log.digest, "provenance": dict(log.provenance)}
        return known | {"data": origin | {"rows": log.size, "episodes": len(log.starts)}}

    in_the_loop = settings.filter_training
    return Problem(
        env=behind_filter(env, constraints) if in_the_loop else env,
        make_evaluator=make_evaluator,
        networks=Networks(),
        outcomes=filter_outcomes if in_the_loop else lambda info: {},
        data=data,
        no_memory=NO_MEMORY,
        make_trainer=_make_warm_trainer if settings.init_from and folder is None else None,
        about=about,
        files={CONSTRAINTS_FILE: text},
        hooks=[PlantFiles()],
    )


def gamma_of(config: TrainConfig) -> float:
    """The discount that values are learned with; the usual one where none are."""
    return getattr(getattr(config.hyper, "hyper", config.hyper), "gamma", 0.99)


def policy_of(trainer: Trainer, agents: PyTree) -> PolicyState:
    """The deterministic policy of a trainer's agents, for observations in the plant's units."""
    if isinstance(agents, PolicyState):
        return agents
    loop: Any = trainer.loop
    if hasattr(loop.agent, "deterministic"):
        return loop.agent.deterministic(agents)
    size = loop.env.spec.observation.shape[0]

    def act(agents: PyTree, obs: Array) -> Array:
        return trainer.act(agents, obs, jax.random.key(0), explore=0.0)

    return PolicyState(agents, jnp.zeros(size), jnp.ones(size), act)


def _make_warm_trainer(config: TrainConfig, problem: Problem) -> Trainer:
    """A trainer whose learner starts from the offline run that `init_from` names."""
    from worldloom.suites.plant.suite import SUITE
    from worldloom.suites.plant.warm_start import warm_start

    trainer = loops.make_trainer(config, replace(problem, make_trainer=None))
    source = load_run(SUITE, config.settings.init_from)
    run = trainer.run
    trainer.load(run.replace(learner=warm_start(run.learner, config.algo, config.hyper, source)))
    return trainer


def load_data(config: TrainConfig, env: PureEnv, folder: Path | None = None) -> Dataset:
    """The data to learn from, read or made; a ValueError if they are not of this plant."""
    settings = config.settings
    if folder is None and settings.dataset in DATA_QUALITIES:
        about = {"env": config.env, "options": dict(config.world)}
        return log_data(env, settings.dataset, settings.data_steps, settings.data_seed, **about)
    path = settings.dataset if folder is None else str(Path(folder) / DATA_FILE)
    if Path(path).suffix != ".npz":
        raise ValueError(
            f"{config.env}: dataset={path}; a plant by name learns from npz files: convert it by "
            "`worldloom data convert`, or describe your plant (`worldloom data describe --plant`)"
        )
    read = recorded_data(path, env, Networks())
    assert read is not None
    return read()


def plant_facts(world: PlantWorld) -> dict[str, Any]:
    """What a report needs to know of a plant: signals with units and ranges, limits."""
    plant, bounds = world.plant, np.asarray(world.params.bounds)
    return {
        "observation": [vars(signal) for signal in plant.observation],
        "action": [vars(signal) for signal in plant.action],
        "limits": [
            vars(limit) | {"bound": float(bound)}
            for limit, bound in zip(plant.limits, bounds, strict=True)
        ],
        "step_seconds": plant.step_seconds,
        "horizon": int(world.params.horizon),
    }


class PlantFiles(Hook):
    """data.npz at a run's start; trajectories.npz and ope.json at its end."""

    phase = "estimating"

    def on_start(self, run: Run) -> None:
        path = run.folder / DATA_FILE
        if run.config.algorithm.loop == "offline" and not path.is_file():
            assert run.problem.data is not None
            dataset_files.save(run.problem.data(), path)

    def on_end(self, run: Run) -> None:
        evaluation: Any = run.evaluation
        if run.interrupted or evaluation is None:
            return
        save_trajectories(run.folder, evaluation)
        updates = run.config.settings.ope_updates
        if not updates or run.config.algorithm.loop != "offline":
            return
        assert run.problem.data is not None
        data, horizon = run.problem.data(), run.problem.env.spec.horizon
        assert horizon is not None
        key = jax.random.key(OPE_KEY + run.config.seed)
        gamma = gamma_of(run.config)
        estimates = off_policy_evaluation(run.agents, data, gamma, horizon, updates, key)
        truth = {"true_return": float(evaluation.bare.discounted.mean())}
        place = {"iteration": run.iteration, "steps": run.steps}
        write_json(run.folder / OPE_FILE, estimates | place | truth)
