"""Learning to control a plant from logged data: a whole run, and such a run loaded.

A run folder holds config.json, data.npz (what was learned from), constraints.yaml (what the filter
holds the policy to), metrics.jsonl, eval.jsonl, judgement.json (off-policy estimates beside the
truth), course.npz (the last evaluation, step by step), timing.json and checkpoints/.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.fqe import FQEConfig, FQEHyper, fitted_q_evaluation
from worldloom.algos.off_policy_evaluation import (
    Estimate,
    discounted_returns,
    gaussian_log_prob,
    support,
    weighted_importance_sampling,
)
from worldloom.algos.offline import make_table
from worldloom.core.mesh import device_mesh
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key
from worldloom.envs import registry
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset
from worldloom.safety import SafetyConstraints
from worldloom.safety.constraint_file import read_text
from worldloom.track.machine import use_compilation_cache
from worldloom.track.sinks import write_json
from worldloom.train import driver
from worldloom.train.offline import EpochTables, Offline, OfflineTrainer
from worldloom.train.plant_config import (
    CADENCE,
    PlantTrainConfig,
    from_dict,
    load_data,
    make_algorithm,
)
from worldloom.train.plant_evaluate import Course, PlantEvaluation, PlantEvaluator
from worldloom.train.plant_safety import constraint_text, constraints_from, constraints_in

JUDGEMENT_KEY = 7_000_003
DATA_FILE, CONSTRAINTS_FILE, COURSE_FILE = "data.npz", "constraints.yaml", "course.npz"
NOISE = 0.1  # on a policy's actions, where importance sampling needs it to have a density
SHOWN_EPISODES = 8  # of the last evaluation, kept step by step


class PlantTrainer(OfflineTrainer):
    """The offline loop, of which the policy is evaluated and not the learner."""

    def __init__(self, config: PlantTrainConfig, data: Dataset):
        self.algorithm, self.data = make_algorithm(config), data
        mesh = device_mesh(config.devices) if config.devices > 1 else None
        loop = Offline(self.algorithm, config.batch_size, config.updates_per_epoch, mesh)
        super().__init__(loop, make_table(data, centre=True), config.seed, config.chunk)

    def agents(self) -> PolicyState:
        return self.algorithm.policy(super().agents(), self.data)

    @property
    def gamma(self) -> float:
        """The discount that values are learned with; the usual one where none are."""
        return getattr(self.algorithm.config.hyper, "gamma", 0.99)


@dataclass
class PlantRun(driver.Run):
    """A run of a plant while it runs, as hooks see it, and after it, as `run` returns it."""

    config: PlantTrainConfig
    trainer: PlantTrainer
    evaluator: PlantEvaluator
    evaluation: PlantEvaluation | None = None

    @property
    def updates(self) -> int:
        return self.trainer.updates

    def timing(self) -> dict[str, Any]:
        rate = self.updates / self.train_seconds if self.train_seconds else 0.0
        return super().timing() | {"updates": self.updates, "updates_per_second": round(rate, 1)}


# What data alone say -----------------------------------------------------------------------------


def judge(
    policy: PolicyState, data: Dataset, gamma: float, horizon: int | None, updates: int, key: Key
) -> dict[str, Any]:
    """What the policy would earn, and how far it leaves the data, without asking the plant.

    All returns are of episodes of `horizon` steps, discounted by `gamma`. fqe_drift: the share by
    which learned values still changed in the last tenth of the updates; far from 0, there were too
    few of them.
    """
    fqe_key, wis_key, support_key = jax.random.split(key, 3)
    config = FQEConfig(updates=updates, hyper=FQEHyper(gamma=gamma))
    fitted, learned = fitted_q_evaluation(policy, data, fqe_key, config, horizon=horizon)
    estimates: list[Estimate] = [fitted]
    if data.log_prob is not None:
        noisy = policy.replace(noise=jnp.float32(NOISE))
        log_prob = gaussian_log_prob(noisy, data)
        estimates.append(weighted_importance_sampling(data, log_prob, gamma, wis_key))
    near = support(data, policy, support_key)
    return {
        "gamma": gamma,
        "logged_return": float(discounted_returns(data, gamma).mean()),
        "estimates": [estimate._asdict() for estimate in estimates],
        "fqe_drift": _drift(np.asarray(learned["q"])),
        "support": {
            "distance": float(near.distance.mean()),
            "logged_distance": float(near.reference.mean()),
            "change": float(near.change.mean()),
            "outside": float(near.outside),
        },
    }


def _drift(values: np.ndarray) -> float:
    """The share by which a curve (updates,) changed in its last tenth, by means of hundredths."""
    tenth, hundredth = (max(len(values) // n, 1) for n in (10, 100))
    before, end = values[-tenth:][:hundredth].mean(), values[-hundredth:].mean()
    return float(abs(end - before) / max(abs(end), 1e-6))


class Judgement(driver.Hook):
    """judgement.json and course.npz, at the end of a run."""

    def on_end(self, run: PlantRun) -> None:
        evaluation = run.evaluation
        if run.interrupted or evaluation is None:
            return
        courses = {"bare": evaluation.bare_course, "filtered": evaluation.course}
        columns: dict[str, Any] = {
            f"{way}_{name}": np.asarray(value)[:, :SHOWN_EPISODES]
            for way, course in courses.items() for name, value in vars(course).items()
        }  # fmt: skip
        draft = run.folder / f".{COURSE_FILE}"  # whole or not at all
        with draft.open("wb") as file:
            np.savez_compressed(file, **columns)
        draft.replace(run.folder / COURSE_FILE)
        if run.config.judge_updates:
            key = jax.random.key(JUDGEMENT_KEY + run.config.seed)
            found = judge(
                run.trainer.agents(), run.trainer.data, run.evaluator.gamma,
                run.evaluator.env.spec.horizon, run.config.judge_updates, key,
            )  # fmt: skip
            found["epoch"] = run.epoch
            found["true_return"] = float(evaluation.bare.discounted.mean())
            write_json(run.folder / "judgement.json", found)


def read_course(folder: Path, way: str) -> Course:
    """The first episodes of a run's last evaluation, `bare` or `filtered`, in numpy."""
    with np.load(Path(folder) / COURSE_FILE) as kept:
        names = Course.__dataclass_fields__
        return Course(**{name: kept[f"{way}_{name}"] for name in names})


# A run -------------------------------------------------------------------------------------------


def new_folder(root: Path, config: PlantTrainConfig) -> Path:
    """An unused folder name that says what was learned from what, and when."""
    data = Path(config.dataset).stem
    return driver.unused(root, f"{config.env}-{config.algo}-{data}-s{config.seed}")


def read_config(folder: Path) -> PlantTrainConfig:
    """The settings of an existing run of a plant."""
    return driver.read_settings(folder, from_dict)


def constraints_of(env: PureEnv, folder: Path) -> SafetyConstraints:
    """What a run's own constraint file says."""
    return constraints_from(env.base, Path(folder) / CONSTRAINTS_FILE)


def run(
    config: PlantTrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    hooks: Sequence[driver.Hook] = (),
    command: str = "",
) -> PlantRun:
    """Learns to the end of `config.plan`; with `resume` on from the newest checkpoint in `folder`.

    Ctrl-C ends it after the current chunk with a checkpoint; `interrupted` then says so.
    """
    use_compilation_cache()
    folder = Path(folder)
    env = registry.make(config.env, **config.world)
    if resume:
        driver.check_resumable(folder, read_config(folder), config, CADENCE)
        data = dataset_files.load(folder / DATA_FILE)
        constraints = constraints_of(env, folder)
        text = ""
    else:
        driver.check_empty(folder)
        data = load_data(config)
        if config.constraints is None:
            text = constraint_text(env.base)
        else:
            text = read_text(config.constraints)
        source = config.constraints or f"{config.env}'s limits"
        constraints = constraints_in(text, source, env.base)
    trainer = PlantTrainer(config, data)
    evaluator = PlantEvaluator(env, constraints, config.eval_episodes, trainer.gamma)
    if not resume:  # nothing is written before all that can be wrong has been looked at
        dataset_files.save(data, folder / DATA_FILE, force=True)
    return driver.drive(
        PlantRun(config, folder, trainer, evaluator),
        partial(EpochTables, updates_per_epoch=config.updates_per_epoch),
        about=lambda: {
            "plant": facts(env),
            "data": {"name": data.name, "digest": data.digest, "rows": data.size,
                     "episodes": len(data.starts), "provenance": dict(data.provenance)},
            "rows": list(constraints.names),
        },
        files={} if resume else {CONSTRAINTS_FILE: text},
        resume=resume,
        hooks=[Judgement(), *hooks],
        command=command,
    )  # fmt: skip


def facts(env: PureEnv) -> dict[str, Any]:
    """What a report needs to know of a plant: signals with units and ranges, limits."""
    plant, bounds = env.base.plant, np.asarray(env.base.params.bounds)
    return {
        "observation": [vars(signal) for signal in plant.observation],
        "action": [vars(signal) for signal in plant.action],
        "limits": [
            vars(limit) | {"bound": float(bound)}
            for limit, bound in zip(plant.limits, bounds, strict=True)
        ],
        "step_seconds": plant.step_seconds,
        "horizon": int(env.base.params.horizon),
    }


# A run that is over ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedPlantRun:
    """A trained policy, its plant, its data and its constraints."""

    config: PlantTrainConfig
    env: PureEnv
    policy: PolicyState
    constraints: SafetyConstraints
    data: Dataset
    epoch: int
    gamma: float

    def act(self, obs: Array) -> Array:
        """What the policy wants, (..., m) in [-1, 1], for obs (..., n) in the plant's units.

        It is not filtered: see `worldloom.safety.safe_policy_execution` with `constraints`.
        """
        return policy_step(self.policy, jnp.asarray(obs))

    def evaluate(self, episodes: int | None = None, seed: int = 0) -> PlantEvaluation:
        """Whole episodes, as after training."""
        count = self.config.eval_episodes if episodes is None else episodes
        evaluator = PlantEvaluator(self.env, self.constraints, count, self.gamma)
        return evaluator(self.policy, jax.random.key(seed))


def load_run(folder: Path) -> LoadedPlantRun:
    """Reads the newest complete checkpoint of a run of a plant."""
    use_compilation_cache()
    folder = Path(folder)
    config = read_config(folder)
    env = registry.make(config.env, **config.world)
    data = dataset_files.load(folder / DATA_FILE)
    trainer = PlantTrainer(replace(config, devices=1), data)
    checkpoints = driver.open_checkpoints(folder)
    try:
        trainer.load(checkpoints.restore(trainer.state()))
    finally:
        checkpoints.close()
    return LoadedPlantRun(
        config, env, trainer.agents(), constraints_of(env, folder), data, trainer.epoch,
        trainer.gamma,
    )  # fmt: skip
