"""A plant known from its log as a problem to train on: nothing is learned from a simulator.

Policies are scored by off-policy estimates. The filter that they ship with is made of the
description's limits and a model learned from the log. Where the description names a simulator, it
is played in at the end, as the truth to compare with. The folder of a run holds all that it needs
beside what every run has: world.yaml (the description), data.npz, model.npz, constraints.yaml and
ope.json.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import algos
from worldloom.core.files import write_json, write_text
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key, PyTree
from worldloom.core.yaml_nodes import read_text
from worldloom.nn.networks import Networks
from worldloom.nn.policy import PolicyState
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset
from worldloom.safety import ControlState, SafetyConstraints, initial_memory, safe_policy_execution
from worldloom.suites.plant import ope
from worldloom.suites.plant.description import WORLD_FILE, LoggedPlant
from worldloom.suites.plant.evaluate import PlantEvaluation, save_trajectories
from worldloom.suites.plant.learned_model import (
    MODEL_FILE,
    LearnedModel,
    learn_model,
    load_model,
    save_model,
)
from worldloom.suites.plant.logs import read_log
from worldloom.suites.plant.plant import PlantWorld
from worldloom.suites.plant.problem import (
    CONSTRAINTS_FILE,
    DATA_FILE,
    gamma_of,
    plant_facts,
    policy_of,
)
from worldloom.suites.plant.safety import constraint_text, constraints_in
from worldloom.suites.plant.suite import DATA_QUALITIES
from worldloom.training import console
from worldloom.training.config import TrainConfig
from worldloom.training.driver import Hook
from worldloom.training.run import Run
from worldloom.training.suite import Problem
from worldloom.training.trainer import Trainer

ASKED = 2048  # logged situations in which the filter is asked
HOW = "off-policy estimates from the log; there is no simulator to try it in"


def make_logged_problem(config: TrainConfig, env: PureEnv, folder: Path | None) -> Problem:
    """What the offline loop needs to learn from a described plant's log."""
    world: PlantWorld = env.base
    plant: Any = world.plant
    _check(config, plant, folder)
    settings, kept = config.settings, None if folder is None else Path(folder)

    @cache
    def data() -> Dataset:
        if kept is not None:
            return dataset_files.load(kept / DATA_FILE)
        return read_log(settings.dataset, world)

    @cache
    def model() -> LearnedModel:
        if kept is not None:
            return load_model(kept / MODEL_FILE)
        return learn_model(data(), config.seed, settings.model_updates)

    given = settings.constraints if kept is None else str(kept / CONSTRAINTS_FILE)
    own = partial(constraint_text, world, emergency=dict(plant.emergency))
    source, written = given or f"{plant.name}'s limits", read_text(given) if given else own()
    # Read before anything is learned, with a model that is never asked: mistakes come first.
    draft = constraints_in(written, source, world, model=lambda obs, action: obs)
    looks_ahead = bool({"barrier", "lookahead"} & set(draft.kinds))

    @cache
    def text() -> str:
        if given or not looks_ahead:
            return written
        names = [signal.name for signal in plant.observation]
        return own(disturbance=dict(zip(names, model().error.tolist(), strict=True)))

    @cache
    def constraints() -> SafetyConstraints:
        if not looks_ahead:
            return draft.replace(model=None)
        return constraints_in(text(), source, world, model=model().function)

    @cache
    def learned() -> ope.Learned:
        key = jax.random.key(ope.OPE_KEY + config.seed)
        return ope.learn(data(), gamma_of(config), plant.horizon, settings.ope_updates, key)

    def truth(policy: PolicyState, episodes: int, seed: int) -> PlantEvaluation:
        from worldloom.suites.plant.simulators import make_simulator, play

        console.phase("playing in the simulator", note=plant.simulator.name)
        with closing(make_simulator(plant)) as simulator:
            known = {"episodes": episodes, "gamma": gamma_of(config), "seed": seed}
            return play(simulator, world, policy, constraints(), data(), **known)

    if plant.simulator is not None and kept is None:  # before anything is learned
        from worldloom.suites.plant.simulators import make_simulator

        make_simulator(plant).close()

    def make_evaluator(trainer: Trainer, episodes: int) -> "LogEvaluator":
        simulated = None if plant.simulator is None else partial(truth, episodes=episodes)
        to_policy = partial(policy_of, trainer)
        return LogEvaluator(env, learned, constraints, to_policy, simulated)

    def about(run: Run) -> Mapping[str, Any]:
        log = data()
        origin = {"name": log.name, "digest": log.digest, "provenance": dict(log.provenance)}
        known = origin | {"rows": log.size, "episodes": len(log.starts)}
        rows = {"plant": plant_facts(world), "constraints": list(draft.names), "data": known}
        simulator = plant.simulator and plant.simulator.kind
        return rows | {"simulator": False, "truth": simulator}

    def keep(folder: Path) -> None:
        if not (folder / DATA_FILE).is_file():
            dataset_files.save(data(), folder / DATA_FILE)
        if looks_ahead and not (folder / MODEL_FILE).is_file():
            save_model(folder / MODEL_FILE, model())
        if not (folder / CONSTRAINTS_FILE).is_file():
            write_text(folder / CONSTRAINTS_FILE, text())
        if plant.simulator is not None and plant.simulator.kind == "fmu":
            path = Path(plant.simulator.name)
            if path.resolve().parent != folder.resolve():
                shutil.copyfile(path, folder / path.name)

    return Problem(
        env=env,
        make_evaluator=make_evaluator,
        references=lambda evaluator, agents: {},  # nobody can play at random either
        networks=Networks(),
        data=data,
        about=about,
        files={WORLD_FILE: plant.text},
        hooks=[LogFiles(keep)],
        pure=False,  # there is no step that could be compared with another run's
        config=replace(config, env=plant.key),
    )


def _check(config: TrainConfig, plant: LoggedPlant, folder: Path | None) -> None:
    """Raises ValueError for what only a simulator could do."""
    settings = config.settings
    if config.algorithm.loop != "offline":
        fitting = [name for name in algos.names() if algos.get(name).loop == "offline"]
        raise ValueError(
            f"{plant.name} is known from its log alone, and {config.algo} learns in a simulator; "
            f"use {', '.join(fitting)}"
        )
    if folder is not None and config.env != plant.key:
        raise ValueError(
            f"{Path(folder) / WORLD_FILE} is {plant.key}, the run is of {config.env}: the file was "
            "changed; put it back, or start a new run"
        )
    if folder is None and settings.dataset in DATA_QUALITIES:
        raise ValueError(
            f"{plant.name} is known from its log alone: name it by --dataset FILE, a csv, parquet "
            "or npz file or a Minari dataset"
        )
    if not settings.ope_updates:
        raise ValueError(
            f"{plant.name}: ope_updates=0 leaves a plant without a simulator unscored; use 1000 or "
            "more"
        )


class LogFiles(Hook):
    """data.npz, model.npz and constraints.yaml at a run's start; ope.json at its end."""

    phase = "writing the estimates"

    def __init__(self, keep: Callable[[Path], None]):
        self._keep = keep

    def on_start(self, run: Run) -> None:
        self._keep(run.folder)

    def on_end(self, run: Run) -> None:
        evaluation: Any = run.evaluation
        if run.interrupted or evaluation is None:
            return
        summary = dict(evaluation.summary) | {"iteration": run.iteration, "steps": run.steps}
        write_json(run.folder / ope.OPE_FILE, summary)
        evaluator: Any = run.evaluator
        try:
            played = evaluator.truth(run.agents, jax.random.key(0))
        except (ValueError, ImportError) as error:  # what was learned and estimated stands
            write_json(run.folder / ope.OPE_FILE, summary | {"no_truth": str(error)})
            console.say(f"the simulator was not played in: {error}")
            return
        if played is not None:
            summary["true_return"] = float(played.bare.discounted.mean())
            write_json(run.folder / ope.OPE_FILE, summary | {"truth": played.to_dict()})
            save_trajectories(run.folder, played)


# Scores without a simulator ----------------------------------------------------------------------


@dataclass(frozen=True)
class LogEvaluation:
    """What the log says of a policy, and what the filter would do in logged situations."""

    summary: Mapping[str, Any]  # of `ope.evaluate`
    interventions: float  # share of logged situations in which the filter changes the action
    emergencies: float
    seconds: float
    truth: PlantEvaluation | None = None  # in the description's simulator, where it was asked

    @property
    def mean(self) -> float:
        """What the evidence speaks for: the lower end of the first interval. No true score."""
        return float(self.summary["estimates"][0]["low"])

    def to_dict(self) -> dict[str, Any]:
        both, support = self.summary["estimates"][0], self.summary["support"]
        return {
            "mean": self.mean,
            "estimate": {name: both[name] for name in ("value", "low", "high")},
            "logged_return": self.summary["logged_return"],
            "outside": support["outside"],
            "doubts": len(self.summary["doubts"]),
            "filter": {"interventions": self.interventions, "emergencies": self.emergencies},
        } | ({} if self.truth is None else {"truth": self.truth.to_dict()})

    def lines(self) -> dict[str, str]:
        """For people."""
        both, support = self.summary["estimates"][0], self.summary["support"]
        value, low, high = (f"{both[name]:.4g}" for name in ("value", "low", "high"))
        logged, doubts = self.summary["logged_return"], self.summary["doubts"]
        played = {}
        if self.truth is not None:
            discounted = float(self.truth.bare.discounted.mean())
            played["in the simulator"] = f"{discounted:.4g} (discounted, bare)"
            played |= self.truth.lines()
        return {
            "scored by": HOW if self.truth is None else HOW.partition(";")[0],
            "estimated return": f"{value}, from {low} to {high}; logged {logged:.4g} (discounted)",
            "support": f"leaves the data in {support['outside']:.1%} of logged situations",
            "doubts": "; ".join(doubts) or "none that the log shows",
            "filter": f"would act in {self.interventions:.1%} of logged situations, "
            f"{self.emergencies:.2%} emergency actions",
        } | played


class LogEvaluator:
    """Estimates what a policy would earn, from the log alone."""

    def __init__(
        self,
        env: PureEnv,
        learned: Callable[[], ope.Learned],
        constraints: Callable[[], SafetyConstraints],
        to_policy: Callable[[PyTree], PolicyState],
        simulated: Callable[..., PlantEvaluation] | None = None,
    ):
        self.env, self.to_policy, self._simulated = env, to_policy, simulated
        self._learned, self._constraints = learned, constraints
        self._ask = jax.jit(_ask_filter)

    @property
    def constraints(self) -> SafetyConstraints:
        return self._constraints()

    def __call__(self, agents: PyTree, key: Key) -> LogEvaluation:
        start = time.perf_counter()
        policy, learned = self.to_policy(agents), self._learned()
        summary = ope.evaluate(learned, policy, key)
        obs, previous = logged_situations(learned.data, ASKED)
        shares = self._ask(policy, self.constraints, obs, previous)
        interventions, emergencies = (float(share) for share in shares)
        return LogEvaluation(summary, interventions, emergencies, time.perf_counter() - start)

    def truth(self, agents: PyTree, key: Key) -> PlantEvaluation | None:
        """What a policy earns in the description's simulator, if it names one; slow."""
        if self._simulated is None:
            return None
        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        return self._simulated(self.to_policy(agents), seed=seed)

    def in_full(self, agents: PyTree, key: Key) -> LogEvaluation:
        """Estimates, with the truth beside them: on demand, and never on the way."""
        return replace(self(agents, key), truth=self.truth(agents, key))


def logged_situations(data: Dataset, count: int) -> tuple[Array, Array]:
    """Observations (B, n) from all over the log, with the actions (B, m) of the rows before."""
    first = np.zeros(data.size, bool)
    first[np.asarray(data.starts)] = True
    inside = np.flatnonzero(~first)
    inside = inside if len(inside) else np.arange(data.size)
    at = inside[np.linspace(0, len(inside) - 1, min(count, len(inside))).astype(int)]
    return data.rows.obs[at], data.rows.action[np.maximum(at - 1, 0)]


def _ask_filter(
    policy: PolicyState, constraints: SafetyConstraints, obs: Array, previous: Array
) -> tuple[Array, Array]:
    """The shares of situations in which the filter changes an action, and in which it stops."""
    memory = jax.vmap(initial_memory, (None, 0))(constraints, previous)
    _, report = safe_policy_execution(policy, ControlState(obs, memory), constraints)
    return jnp.mean(report.intervened), jnp.mean(report.emergency)
