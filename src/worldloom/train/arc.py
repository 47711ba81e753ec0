"""Training on ARC: a whole run, from tasks to a folder, and such a run loaded again.

A run folder holds config.json, tasks.json, metrics.jsonl, eval.jsonl, tasks.csv, timing.json and
checkpoints/. Training sees demonstration pairs alone; test pairs are for evaluation.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.algos.ppo import PPO, Apart, PPOState
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, Key, PyTree
from worldloom.envs.arc import o2arc, operations
from worldloom.envs.arc.augment import augment
from worldloom.envs.arc.environment import create_observation
from worldloom.envs.arc.episodes import AgentFn, greedy_editor
from worldloom.envs.arc.taskset import TaskSet
from worldloom.envs.arc.types import ArcConfig, Observation, StepInfo, TaskBuffer
from worldloom.envs.arc.world import world
from worldloom.nn.actor_critic import GridActorCritic, GridInputs, point_action_mask
from worldloom.nn.distributions import Categorical
from worldloom.track.machine import use_compilation_cache
from worldloom.track.sinks import plain, write_text
from worldloom.train import driver
from worldloom.train.arc_config import (
    CADENCE,
    TASKS_FILE,
    ArcTrainConfig,
    from_dict,
    load_tasks,
    read_tasks,
    write_tasks,
)
from worldloom.train.arc_evaluate import Agent, ArcEvaluation, ArcEvaluator
from worldloom.train.config import check_seed
from worldloom.train.on_policy import OnPolicy, OnPolicyTrainer, UpdateTables

# Copies of tasks and reference play draw from keys of their own.
COPIES_KEY = 3_000_017
REFERENCE_KEY = 4_000_037

# Operations that do not look at the cell they point to, and those that may point anywhere.
NOWHERE = {
    "edit": (operations.COPY_INPUT, operations.SUBMIT, operations.UNDO),
    "o2arc": (o2arc.COPY_INPUT, o2arc.RESET, operations.SUBMIT),
}
ANYWHERE = (operations.RESIZE,)  # the same number under both rule sets


# World and agents --------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="copies")
def with_copies(tasks: TaskBuffer, copies: int, key: Key) -> TaskBuffer:
    """The tasks, followed by `copies` turned and recoloured copies of each (see `augment`)."""
    more = augment(key, tasks, copies)

    def after(one: Array, other: Array, shift: int = 0) -> Array:
        return jnp.concatenate([one, other + jnp.asarray(shift, other.dtype)])

    rows = {
        name: after(getattr(tasks, name), getattr(more, name), tasks.num_pairs)
        for name in ("demos_start", "tests_start")
    }
    counts = {
        name: after(getattr(tasks, name), getattr(more, name))
        for name in ("demos_count", "tests_count", "grids", "sizes")
    }
    return tasks.replace(
        **rows, **counts,
        task=after(tasks.task, more.task, tasks.num_tasks),
        identity=tasks.identity ^ more.identity,
    )  # fmt: skip


def packed(tasks: TaskSet) -> TaskBuffer:
    """The tasks on the smallest square canvas that holds them: a network pays for every cell."""
    side = max(max(*p.input.shape, *p.output.shape) for task in tasks for p in task.pairs)
    return tasks.buffer((side, side))


def make_world(config: ArcTrainConfig, tasks: TaskSet) -> PureEnv:
    """The world to train in; its params are the rules with the tasks in them."""
    buffer = packed(tasks)
    if config.copies:
        key = jax.random.key(COPIES_KEY + config.seed)
        buffer = with_copies(buffer, config.copies, key)
    return as_pure(world(buffer, **config.world.options()))


def make_ppo(config: ArcTrainConfig, rules: ArcConfig) -> PPO:
    """PPO with the network for grids of these rules."""
    sizes = config.network
    net = GridActorCritic(
        rules.num_operations, rules.grid_shape, sizes.channels, sizes.convolutions, sizes.context,
        ANYWHERE, NOWHERE[rules.rules],
    )  # fmt: skip
    most_steps, most_trials = int(rules.max_steps), max(1, int(rules.max_trials))

    def see(obs: Observation) -> GridInputs:
        features = jnp.stack([obs.step_count / most_steps, obs.trials / most_trials], axis=-1)
        return GridInputs(
            obs.grid, obs.size, obs.input, obs.input_size, obs.clipboard, obs.clipboard_size,
            features.astype(jnp.float32), obs.operation_mask,
        )  # fmt: skip

    return PPO(
        config.ppo,
        Apart(
            init=lambda key, obs: net.init(key, see(obs)),
            apply=lambda params, obs: net.apply(params, see(obs)),  # pyright: ignore[reportReturnType, reportArgumentType]
        ),
    )


def policy_agent(ppo: PPO) -> Agent:
    """A learned policy for evaluation: its likeliest action, or one drawn from it."""

    def agent(config: ArcConfig, explore: Array) -> AgentFn:
        def act(states, learner, key):
            policy = ppo.policy(learner, create_observation(states, config))[0]
            return jnp.where(explore, policy.sample(key), policy.mode()), learner

        return act

    return agent


def random_agent(config: ArcConfig, explore: Array) -> AgentFn:
    """Draws among the same point actions as the policy, each as likely, however it is asked."""

    def act(states, agent_state, key):
        mask = point_action_mask(
            states.operation_mask, states.size, config.grid_shape, ANYWHERE, NOWHERE[config.rules]
        )
        return Categorical(jnp.zeros(mask.shape), mask).sample(key), agent_state

    return act


def editor_agent(config: ArcConfig, explore: Array) -> AgentFn:
    """The scripted editor, which knows the answer: how much the rules let anybody solve."""
    return greedy_editor(config)


def reference_agent(config: ArcConfig, explore: Array) -> AgentFn:
    """Both of them in one program: the editor where play is greedy, random play elsewhere."""
    random, editor = random_agent(config, explore), editor_agent(config, explore)
    height, width = config.grid_shape

    def act(states, agent_state, key):
        best: Any = editor(states, agent_state, key)[0]
        drawn: Any = random(states, agent_state, key)[0]
        flat = (best.operation * height + best.row) * width + best.column
        return jnp.where(explore, drawn, flat), agent_state

    return act


SCRIPTED: dict[str, Agent] = {"random": random_agent, "greedy": editor_agent}


def outcomes(info: StepInfo) -> dict[str, Array]:
    """What training counts at the end of an episode."""
    return {"solved": info.solved, "similarity": info.similarity}


def make_loop(config: ArcTrainConfig, tasks: TaskSet) -> tuple[OnPolicy, ArcConfig]:
    """The on-policy loop, and the rules that its functions take as params."""
    env = make_world(config, tasks)
    rules = env.default_params()
    return OnPolicy(env, make_ppo(config, rules), outcomes), rules


def make_evaluator(config: ArcTrainConfig, tasks: TaskSet, ppo: PPO | None = None) -> ArcEvaluator:
    """Plays all pairs of the tasks themselves, never of copies, with the configured agent."""
    rules = world(packed(tasks), **config.world.options()).config
    agent = SCRIPTED.get(config.algo) or policy_agent(ppo or make_ppo(config, rules))
    return ArcEvaluator(tasks, rules, agent, config.attempts)


# A run -------------------------------------------------------------------------------------------


@dataclass
class ArcRun(driver.Run):
    """A run on ARC while it runs, as hooks see it, and after it, as `run` returns it."""

    config: ArcTrainConfig
    evaluator: ArcEvaluator
    evaluation: ArcEvaluation | None = None

    @property
    def steps(self) -> int:
        return self.epoch * self.config.steps_per_update

    def timing(self) -> dict[str, Any]:
        rate = self.steps / self.train_seconds if self.train_seconds else 0.0
        return super().timing() | {"steps": self.steps, "steps_per_second": round(rate, 1)}


class Idle:
    """The trainer of an agent that learns nothing."""

    epoch = 0
    compile_seconds = 0.0

    def advance(self, epochs: int) -> None:
        """Nothing: its plan has no update in it."""

    def agents(self) -> PyTree:
        return ()

    def state(self) -> PyTree:
        return ()

    def load(self, state: PyTree) -> None:
        """Nothing was saved."""


class TaskTable(driver.Hook):
    """tasks.csv: what the newest evaluation solved of each task."""

    def on_evaluation(self, run: ArcRun, evaluation: ArcEvaluation) -> None:
        text, rows = io.StringIO(), evaluation.table()
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(plain(rows))
        write_text(run.folder / "tasks.csv", text.getvalue())


def new_folder(root: Path, config: ArcTrainConfig) -> Path:
    """An unused folder name that says what ran on what, and when."""
    return driver.unused(root, f"arc-{Path(config.tasks).stem}-{config.algo}-s{config.seed}")


def read_config(folder: Path) -> ArcTrainConfig:
    """The settings of an existing run on ARC."""
    return driver.read_settings(folder, from_dict)


def run(
    config: ArcTrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    hooks: Sequence[driver.Hook] = (),
    command: str = "",
) -> ArcRun:
    """Trains to the end of `config.plan`; with `resume` on from the newest checkpoint in `folder`.

    Ctrl-C ends it after the current chunk with a checkpoint; `interrupted` then says so.
    """
    use_compilation_cache()
    folder = Path(folder)
    if resume:
        if config.algo != "ppo":
            raise ValueError(f"{config.algo} learns nothing, so it cannot go on; start a new run")
        driver.check_resumable(folder, read_config(folder), config, CADENCE)
        tasks = read_tasks(folder)
    else:
        driver.check_empty(folder)
        tasks = load_tasks(config)
    if config.algo == "ppo":
        loop, rules = make_loop(config, tasks)
        evaluator = make_evaluator(config, tasks, loop.ppo)
        trainer = OnPolicyTrainer(loop, rules, config.seed, config.chunk)
    else:
        evaluator, trainer = make_evaluator(config, tasks), Idle()
    return driver.drive(
        ArcRun(config, folder, trainer, evaluator),
        partial(UpdateTables, steps_per_update=config.steps_per_update),
        about=lambda: {"references": references(evaluator)},
        files={TASKS_FILE: write_tasks(tasks)},
        resume=resume,
        hooks=[TaskTable(), *hooks],
        command=command,
    )


def references(evaluator: ArcEvaluator) -> dict[str, dict[str, Any]]:
    """What random play and the editor that knows the answer solve of the same pairs.

    The editor is left out under rules that it cannot play by.
    """
    if evaluator.rules.rules != "edit":
        alone = ArcEvaluator(evaluator.tasks, evaluator.rules, random_agent)
        return {"random play": alone((), jax.random.key(REFERENCE_KEY)).to_dict()}
    both = ArcEvaluator(evaluator.tasks, evaluator.rules, reference_agent, attempts=1)
    played = both((), jax.random.key(REFERENCE_KEY))
    alone = replace(played, attempts=played.attempts[:0])
    return {
        "random play": replace(alone, solved=played.attempts[0]).to_dict(),
        "greedy editor": alone.to_dict(),
    }


# A run that is over ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedArcRun:
    """A trained agent and its tasks; `agents` is its `PPOState`, or () if it learned nothing."""

    config: ArcTrainConfig
    evaluator: ArcEvaluator
    agents: PyTree
    update: int

    @property
    def tasks(self) -> TaskSet:
        return self.evaluator.tasks

    def act(self, obs: Observation, key: Key | None = None) -> Array:
        """Actions (B,), one flat integer each, for observations (B, ...).

        The likeliest ones, or with a key some drawn from the policy.
        """
        if not isinstance(self.agents, PPOState):
            raise ValueError(f"{self.config.algo} learned nothing: there is no policy to ask")
        ppo = make_ppo(self.config, self.evaluator.rules)
        explore = key is not None
        return ppo.act(self.agents, obs, key if explore else jax.random.key(0), explore=explore)[0]

    def evaluate(self, attempts: int | None = None, seed: int = 0) -> ArcEvaluation:
        """Scores on all pairs; `attempts` replaces the number that the run was set to."""
        check_seed(seed)
        if attempts is not None and attempts < 0:
            raise ValueError(f"attempts={attempts}; it must be 0 or more")
        return self.evaluator(self.agents, jax.random.key(seed), attempts)


def load_run(folder: Path) -> LoadedArcRun:
    """Reads the newest complete checkpoint of a run on ARC."""
    use_compilation_cache()
    config, tasks = read_config(folder), read_tasks(folder)
    if config.algo != "ppo":
        return LoadedArcRun(config, make_evaluator(config, tasks), (), 0)
    loop, rules = make_loop(config, tasks)
    checkpoints = driver.open_checkpoints(folder)
    try:
        like = jax.eval_shape(loop.init, jax.random.key(0), rules)
        learner = checkpoints.restore(like).learner
        update = checkpoints.latest or 0
    finally:
        checkpoints.close()
    return LoadedArcRun(config, make_evaluator(config, tasks, loop.ppo), learner, update)
