"""ARC tasks as a problem to train on: the world, its networks, how it is scored, what runs keep."""

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.files import plain, write_text
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.actor_critic import (
    GridActorCritic,
    GridInputs,
    GridNetwork,
    GridQValues,
    one_hot_cells,
)
from worldloom.nn.networks import Network, Networks
from worldloom.suites.arc.adapting import Adapting, AdaptingEvaluator
from worldloom.suites.arc.augmentation import with_copies
from worldloom.suites.arc.draw import shots_of
from worldloom.suites.arc.environment import NOWHERE
from worldloom.suites.arc.evaluate import (
    ANYWHERE,
    ArcEvaluation,
    ArcEvaluator,
    learned,
    random_object_agent,
    references,
)
from worldloom.suites.arc.game import is_play, read_plays
from worldloom.suites.arc.games import problem as games
from worldloom.suites.arc.generalising import (
    GENERALISE,
    GENERATED,
    SHOWN,
    SHOWN_SEED,
    demonstration_network,
    drawn_anew,
    imitates,
    imitation_trainer,
)
from worldloom.suites.arc.generators.drawing import generate
from worldloom.suites.arc.page import EPISODES_FILE, TASKS_FILE
from worldloom.suites.arc.searching import Searching, SearchingEvaluator
from worldloom.suites.arc.sources import load
from worldloom.suites.arc.suite import TASKS, ArcSettings, NetworkSizes
from worldloom.suites.arc.tasks import TaskSet, longest_side, read_tasks
from worldloom.suites.arc.types import ArcConfig, Observation, StepInfo, TaskBuffer
from worldloom.suites.arc.world import make
from worldloom.training.config import TrainConfig
from worldloom.training.driver import Hook
from worldloom.training.recording import recorded_data
from worldloom.training.run import Run
from worldloom.training.suite import Problem

COPIES_KEY = 3_000_017  # copies of tasks draw from keys of their own
FILM_KEY = 2_000_003  # and so do recordings


def make_problem(config: TrainConfig, folder: Path | None = None) -> Problem:
    """What a loop needs to train on ARC tasks: those of the settings, or those a run has kept.

    Of a world that is not the one of tasks, what it needs to train in a game.
    """
    if config.env != TASKS:
        return games.make_problem(config, folder)
    if getattr(config.hyper, "normalise_observations", False):
        raise ValueError(
            f"arc: {config.algo}.normalise_observations is for measured numbers; the colours of a "
            "grid are names: leave it off"
        )
    settings: ArcSettings = config.settings
    tasks = load_tasks(settings) if folder is None else read_tasks(Path(folder) / TASKS_FILE)
    buffer = packed(tasks)
    rules = make_world(config, buffer).default_params()  # of the tasks themselves, never of copies
    if settings.copies:
        key = jax.random.key(COPIES_KEY + config.seed)
        buffer = with_copies(buffer, settings.copies, key)
    env = make_world(config, buffer)
    objects = settings.policy == "demonstrations"
    if objects and config.algo not in GENERALISE:
        raise ValueError(
            f"arc: policy='demonstrations' learns by {', '.join(GENERALISE)}, not by {config.algo}"
        )
    for name in ("adapt", "beam"):
        if getattr(settings, name) and not imitates(config):
            raise ValueError(f"arc: {name} is for algo=bc on generated tasks; leave it out")
    # As much as in training where that is the agent's own business, else now and then.
    explore = 0.1 if config.algorithm.loop == "off_policy" else 1.0

    def make_evaluator(trainer: Any, episodes: int) -> ArcEvaluator:
        agent = learned(trainer.act, objects)
        if settings.adapt:
            adapting = Adapting(trainer.loop.agent, settings.adapt)
            return AdaptingEvaluator(tasks, rules, agent, settings.attempts, explore, adapting)
        if settings.beam:
            searching = Searching(trainer.loop.agent, width=settings.beam)
            return SearchingEvaluator(tasks, rules, agent, settings.attempts, explore, searching)
        return ArcEvaluator(tasks, rules, agent, settings.attempts, explore)

    networks = make_networks(settings.network, rules)
    if objects:
        networks = replace(networks, actor_critic=lambda _: demonstration_network(rules))
    # What bc learns from: what people did, or episodes of another agent.
    data = recorded_data(settings.dataset, env, networks)
    plays = Path(settings.dataset)
    if settings.dataset and (plays.is_dir() or is_play(plays)):
        data = partial(read_plays, plays, tasks, env.default_params(), networks.encode)
    return Problem(
        env=env,
        make_evaluator=make_evaluator,
        networks=networks,
        data=drawn_anew if imitates(config) else data,
        make_trainer=imitation_trainer if imitates(config) else None,
        outcomes=outcomes,
        no_memory="the networks that edit grids have none",
        about=_about,
        references=partial(references, random=random_object_agent) if objects else references,
        files={TASKS_FILE: tasks.to_json()},
        hooks=[TaskTable()],
        pictures=[Episodes()],
    )


def with_beam(run: Run, width: int) -> Any:
    """A run's evaluator, with so many programs side by side in its search; 0: without search."""
    if run.config.env != TASKS or not imitates(run.config):
        raise ValueError("arc: beam is for runs of algo=bc on generated tasks; leave it out")
    settings = replace(run.config.settings, beam=width, adapt=0)
    problem = make_problem(replace(run.config, settings=settings), run.folder)
    return problem.make_evaluator(run.trainer, run.config.eval_episodes)


def film(run: Run, path: Path, seed: int = 0) -> Path:
    """Writes a GIF of one greedy episode of a trained run in a game."""
    if run.config.env == TASKS:
        raise ValueError("--gif: runs on ARC tasks have no film; their report shows episodes")
    return games.save_film(run, path, seed)


# Tasks and worlds --------------------------------------------------------------------------------


def load_tasks(settings: ArcSettings) -> TaskSet:
    """The tasks that the settings name; those that are generated are the same every time."""
    if settings.tasks == GENERATED:
        tasks = generate(settings.families, settings.per_family, SHOWN_SEED, SHOWN)
        return tasks[: settings.limit]
    named = ("split", "subset", "path", "max_size")
    choice = {name: getattr(settings, name) for name in named}
    return load(settings.tasks, tasks=settings.ids or None, **choice)[: settings.limit]


def packed(tasks: TaskSet) -> TaskBuffer:
    """The tasks on the smallest square canvas that holds them: a network pays for every cell."""
    side = longest_side(tasks)
    return tasks.buffer((side, side))


def make_world(config: TrainConfig, tasks: TaskBuffer) -> PureEnv:
    """The world of these tasks under the run's rules."""
    options: dict[str, Any] = dict(config.world)
    options["operations"] = options["operations"] or None
    if config.settings.policy == "demonstrations":
        options |= {"action": "object", "demonstrations": SHOWN}
    return make(tasks, **options)


def outcomes(info: StepInfo) -> dict[str, Array]:
    """What training counts at the end of an episode."""
    return {"solved": info.solved, "similarity": info.similarity}


# Networks ----------------------------------------------------------------------------------------


def make_networks(sizes: NetworkSizes, rules: ArcConfig) -> Networks:
    """Networks for grids of these rules; both see the same and forbid the same actions."""
    most_steps, most_trials = int(rules.max_steps), max(1, int(rules.max_trials))

    def inputs(obs: Observation) -> GridInputs:
        features = jnp.stack([obs.step_count / most_steps, obs.trials / most_trials], axis=-1)
        fields: dict[str, Any] = {name: getattr(obs, name, None) for name in GridInputs._fields}
        return GridInputs(**fields | {"features": features.astype(jnp.float32)})

    def network(kind: type[GridNetwork]) -> Network:
        net = kind(
            num_operations=rules.num_operations,
            shape=rules.grid_shape,
            **vars(sizes),
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
    """What config.json says beside the settings."""
    dataset: Any = getattr(run.trainer.loop, "dataset", None)
    return {} if dataset is None else {"data": dict(dataset.provenance)}


class TaskTable(Hook):
    """tasks.csv: what the newest evaluation solved of each task."""

    def on_evaluation(self, run: Run, evaluation: ArcEvaluation) -> None:
        text, rows = io.StringIO(), evaluation.table()
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(plain(rows))
        write_text(run.folder / "tasks.csv", text.getvalue())


class Episodes(Hook):
    """episodes.json with a few greedy episodes of the trained agent."""

    phase = "filming"

    def on_end(self, run: Run) -> None:
        # Who pressed Ctrl-C wants to leave: a recording would first have to be compiled.
        if run.evaluation is None or run.interrupted:
            return
        evaluator: Any = run.evaluator
        evaluation: Any = run.evaluation
        key = jax.random.fold_in(jax.random.key(FILM_KEY + run.config.seed), run.iteration)
        episodes = recorded(evaluator, run.agents, telling_pairs(evaluation), key)
        write_text(run.folder / EPISODES_FILE, json.dumps(plain(episodes)))


def telling_pairs(evaluation: ArcEvaluation, count: int = 8) -> np.ndarray:
    """Up to `count` pairs to show: solved and not, demonstrations and tests, of many tasks."""
    kinds = [
        np.flatnonzero((evaluation.tests == tests) & (evaluation.solved == solved)).tolist()
        for solved in (True, False)
        for tests in (False, True)
    ]
    chosen: list[int] = []
    while len(chosen) < count and any(kinds):
        for pairs in filter(None, kinds):
            # One of a task that is not shown yet, if there is one.
            shown = evaluation.task[chosen]
            new = [pair for pair in pairs if evaluation.task[pair] not in shown]
            chosen.append((new or pairs)[0])
            pairs.remove(chosen[-1])
    return np.array(chosen[:count], int)


def recorded(
    evaluator: ArcEvaluator, agents: PyTree, pairs: np.ndarray, key: Key
) -> list[dict[str, Any]]:
    """Greedy episodes of the pairs (n,): task, pair, input, target, and each shot's fields."""
    first, last, steps = evaluator.record(agents, pairs, key)
    rules = evaluator.rules
    episodes = []
    for n, pair in enumerate(pairs):
        owner = int(rules.tasks.task[pair])
        task, number = evaluator.tasks[owner], int(pair - rules.tasks.demos_start[owner])
        episodes.append(
            {
                "task": task.name,
                "pair": task.pair_names[number],
                "solved": bool(last.solved[n]),
                "input": task.pairs[number].input,
                "target": task.pairs[number].output,
                "shots": [vars(shot) for shot in shots_of(first, steps, n, rules.rules)],
            }
        )
    return episodes
