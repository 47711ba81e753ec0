"""ARC tasks as a problem to train on: the world, its networks, how it is scored, what runs keep."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.core.files import plain, write_text
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array
from worldloom.nn.actor_critic import (
    GridActorCritic,
    GridInputs,
    GridNetwork,
    GridQValues,
    one_hot_cells,
)
from worldloom.nn.networks import Network, Networks
from worldloom.replay.dataset import Dataset
from worldloom.suites.arc.augmentation import with_copies
from worldloom.suites.arc.evaluate import ArcEvaluation, ArcEvaluator, learned
from worldloom.suites.arc.page import TASKS_FILE
from worldloom.suites.arc.plays import holds_plays, read_plays
from worldloom.suites.arc.recording import Episodes
from worldloom.suites.arc.references import ANYWHERE, NOWHERE, references
from worldloom.suites.arc.sources import load
from worldloom.suites.arc.suite import ArcSettings, NetworkSizes
from worldloom.suites.arc.taskset import TaskSet, read_tasks
from worldloom.suites.arc.types import ArcConfig, Observation, StepInfo, TaskBuffer
from worldloom.suites.arc.world import world
from worldloom.training.config import TrainConfig
from worldloom.training.driver import Hook
from worldloom.training.recording import recorded_data
from worldloom.training.run import Run
from worldloom.training.suite import Problem

COPIES_KEY = 3_000_017  # copies of tasks draw from keys of their own


def make_problem(config: TrainConfig, folder: Path | None = None) -> Problem:
    """What a loop needs to train on ARC tasks: those of the settings, or those a run has kept."""
    if getattr(config.hyper, "normalise_observations", False):
        raise ValueError(
            f"arc: {config.algo}.normalise_observations is for measured numbers; the colours of a "
            "grid are names: leave it off"
        )
    settings: ArcSettings = config.settings
    tasks = load_tasks(settings) if folder is None else read_tasks(Path(folder) / TASKS_FILE)
    env = make_env(config, tasks)
    # Scored on the tasks themselves, never on copies.
    rules = make_world(config, packed(tasks)).default_params()
    # As much as in training where that is the agent's own business, else now and then.
    explore = 0.1 if config.algorithm.loop == "off_policy" else 1.0

    def make_evaluator(trainer: Any, episodes: int) -> ArcEvaluator:
        return ArcEvaluator(tasks, rules, learned(trainer.act), settings.attempts, explore)

    networks = make_networks(settings.network, rules)
    return Problem(
        env=env,
        make_evaluator=make_evaluator,
        networks=networks,
        data=_data(settings.dataset, tasks, env, networks),
        outcomes=outcomes,
        about=_about,
        files={TASKS_FILE: tasks.to_json()},
        hooks=[TaskTable()],
        pictures=[Episodes()],
    )


# Tasks and worlds --------------------------------------------------------------------------------


def load_tasks(settings: ArcSettings) -> TaskSet:
    """The tasks that the settings name."""
    tasks = load(
        settings.tasks,
        split=settings.split,
        tasks=settings.ids or None,
        subset=settings.subset,
        path=settings.path,
        max_size=settings.max_size,
    )
    return tasks[: settings.limit]


def packed(tasks: TaskSet) -> TaskBuffer:
    """The tasks on the smallest square canvas that holds them: a network pays for every cell."""
    side = max(max(*p.input.shape, *p.output.shape) for task in tasks for p in task.pairs)
    return tasks.buffer((side, side))


def make_world(config: TrainConfig, tasks: TaskBuffer) -> PureEnv:
    """The world of these tasks under the run's rules."""
    options: dict[str, Any] = dict(config.world)
    options["operations"] = options["operations"] or None
    return as_pure(world(tasks, **options))


def make_env(config: TrainConfig, tasks: TaskSet) -> PureEnv:
    """The world to train in, copies of tasks included; its params are the rules with the tasks."""
    buffer = packed(tasks)
    if config.settings.copies:
        key = jax.random.key(COPIES_KEY + config.seed)
        buffer = with_copies(buffer, config.settings.copies, key)
    return make_world(config, buffer)


def outcomes(info: StepInfo) -> dict[str, Array]:
    """What training counts at the end of an episode."""
    return {"solved": info.solved, "similarity": info.similarity}


def _data(
    path: str, tasks: TaskSet, env: PureEnv, networks: Networks
) -> Callable[[], Dataset] | None:
    """What bc learns from: what people did, or episodes of another agent."""
    if path and holds_plays(Path(path)):
        return lambda: read_plays(Path(path), tasks, env.default_params(), networks.encode)
    return recorded_data(path, env, networks)


# Networks ----------------------------------------------------------------------------------------


def make_networks(sizes: NetworkSizes, rules: ArcConfig) -> Networks:
    """Networks for grids of these rules; both see the same and forbid the same actions."""
    most_steps, most_trials = int(rules.max_steps), max(1, int(rules.max_trials))

    def inputs(obs: Observation) -> GridInputs:
        features = jnp.stack([obs.step_count / most_steps, obs.trials / most_trials], axis=-1)
        return GridInputs(
            grid=obs.grid,
            size=obs.size,
            input=obs.input,
            input_size=obs.input_size,
            clipboard=obs.clipboard,
            clipboard_size=obs.clipboard_size,
            features=features.astype(jnp.float32),
            operation_mask=obs.operation_mask,
        )

    def network(kind: type[GridNetwork]) -> Network:
        net = kind(
            num_operations=rules.num_operations,
            shape=rules.grid_shape,
            channels=sizes.channels,
            convolutions=sizes.convolutions,
            context=sizes.context,
            anywhere=ANYWHERE,
            nowhere=NOWHERE[rules.rules],
        )
        return Network(
            init=lambda key, obs: net.init(key, inputs(obs)),
            apply=lambda params, obs: net.apply(params, inputs(obs)),
        )

    def encode(obs: Observation) -> Array:
        grids = inputs(obs)
        cells = one_hot_cells(grids).reshape(grids.grid.shape[0], -1)
        return jnp.concatenate([cells, grids.features], axis=-1)

    return Networks(
        encode=encode,
        actor_critic=lambda config: network(GridActorCritic),
        q_values=lambda config: network(GridQValues),
        masked=True,
    )


# What a run keeps --------------------------------------------------------------------------------


def _about(run: Run) -> Mapping[str, Any]:
    evaluator: Any = run.evaluator
    dataset: Any = getattr(run.trainer.loop, "dataset", None)
    data = {} if dataset is None else {"data": dict(dataset.provenance)}
    return {"references": references(evaluator)} | data


class TaskTable(Hook):
    """tasks.csv: what the newest evaluation solved of each task."""

    def on_evaluation(self, run: Run, evaluation: ArcEvaluation) -> None:
        text, rows = io.StringIO(), evaluation.table()
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(plain(rows))
        write_text(run.folder / "tasks.csv", text.getvalue())
