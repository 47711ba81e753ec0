"""Settings of a training run on ARC tasks, and the tasks that they name."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from worldloom.algos.ppo import PPOConfig
from worldloom.core.names import suggest
from worldloom.envs.arc.load import load
from worldloom.envs.arc.operations import SUBMIT
from worldloom.envs.arc.tasks import Pair, read_task
from worldloom.envs.arc.taskset import TaskSet
from worldloom.train.config import check_seed, read_fields
from worldloom.train.driver import Plan, fingerprint

ArcAlgo = Literal["ppo", "random", "greedy"]
# A run's own copy of its tasks, in ARC's own structure under each id.
TASKS_FILE = "tasks.json"
# Settings that may change when a run is resumed: they do not touch what is learned.
CADENCE = ("updates", "steps", "chunk", "eval_every", "attempts", "checkpoint_every")


@dataclass(frozen=True)
class ArcRules:
    """The world in training; evaluation pays nothing for similarity and starts honestly."""

    max_steps: int = 30
    max_trials: int = 3  # submissions in an episode; -1: any number
    operations: tuple[int, ...] = ()  # those allowed; none named: all
    extended: bool = False
    rules: Literal["edit", "o2arc"] = "edit"
    start: Literal["input", "blank", "target_blank", "curriculum"] = "input"
    start_edits: int = 3  # of the curriculum: random edits away from the answer
    similarity_weight: float = 5.0
    step_penalty: float = -0.02
    success_bonus: float = 2.0
    wrong_penalty: float = -0.3
    invalid_penalty: float = -0.1

    def options(self) -> dict[str, Any]:
        """As `worldloom.envs.arc.world.world` takes them."""
        return asdict(self) | {"operations": self.operations or None}


@dataclass(frozen=True)
class NetworkSizes:
    """Of the `GridActorCritic`."""

    channels: int = 16
    convolutions: int = 1
    context: int = 192


def short_sighted() -> PPOConfig:
    """PPO as it learns to edit grids.

    An edit is paid as soon as it is made, so the horizon is short. Exploration must outlast the
    discovery that painting a cell in its own colour is safe: the entropy bonus is weighed against
    rewards as they are, not against normalised ones, and falls slowly.
    """
    return PPOConfig(
        num_worlds=512, unroll_length=8, num_epochs=2, num_minibatches=4, gamma=0.4,
        gae_lambda=0.9, normalise_advantages=False, learning_rate=1.5e-3,
        final_learning_rate=2e-4, entropy_cost=0.03, final_entropy_cost=0.004,
        anneal_updates=1500,
    )  # fmt: skip


@dataclass(frozen=True)
class ArcTrainConfig:
    """What to train on, how, and for how long.

    `random` and `greedy` (a scripted editor that knows the answer) learn nothing: their runs are
    an evaluation alone. `steps`, if given, is the budget instead of `updates`.
    """

    algo: ArcAlgo = "ppo"
    seed: int = 0
    tasks: str = "examples"  # examples, arc-agi-1, arc-agi-2, mini-arc, concept-arc, or a folder
    split: str | None = None  # training, evaluation or all
    subset: str | None = None  # such as same-size-5-edits
    ids: tuple[str, ...] = ()  # the tasks of these ids alone
    max_size: int | None = None  # leaves out tasks with a larger grid
    limit: int | None = None  # the first so many of what is left
    path: str | None = None  # where the set lies, if no package carries it
    copies: int = 0  # turned and recoloured copies of every task, to train on beside it
    updates: int = 600
    steps: int | None = None
    chunk: int = 20  # updates in one compiled call, between which the host reports
    eval_every: int = 50  # updates between evaluations; 0: only at the end
    attempts: int = 4  # sampled attempts at every pair in an evaluation, for pass@k; 0: none
    checkpoint_every: int = 100
    world: ArcRules = field(default_factory=ArcRules)
    network: NetworkSizes = field(default_factory=NetworkSizes)
    ppo: PPOConfig = field(default_factory=short_sighted)

    def __post_init__(self):
        known = get_args(ArcAlgo)
        if self.algo not in known:
            hint = suggest(str(self.algo), list(known))
            raise ValueError(f"arc: algo={self.algo!r} is not known; {hint}")
        least = {"updates": 1, "steps": 1, "chunk": 1, "eval_every": 0, "attempts": 0,
                 "checkpoint_every": 1, "copies": 0, "limit": 1, "max_size": 1}  # fmt: skip
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"arc: {name}={value}; it must be at least {low}")
        for name in NetworkSizes.__dataclass_fields__:
            if getattr(self.network, name) < 1:
                value = getattr(self.network, name)
                raise ValueError(f"arc: network.{name}={value}; it must be at least 1")
        if self.world.operations and SUBMIT not in self.world.operations:
            raise ValueError(
                f"arc: world.operations={list(self.world.operations)} allow no submission, and "
                f"without one nothing is solved; add {SUBMIT}"
            )
        if self.algo == "greedy" and self.world.rules != "edit":
            raise ValueError(
                f"arc: algo='greedy' cannot play by world.rules={self.world.rules!r}; "
                "use 'edit', or another algo"
            )
        if self.ppo.normalise_observations:
            raise ValueError(
                "arc: ppo.normalise_observations is for measured numbers; the colours of a grid "
                "are names: leave it off"
            )
        check_seed(self.seed)

    @property
    def env(self) -> str:
        return "arc"

    @property
    def steps_per_update(self) -> int:
        return self.ppo.num_worlds * self.ppo.unroll_length

    @property
    def plan(self) -> Plan:
        """How far to go, and when the host has something to do."""
        total = self.updates
        if self.steps is not None:
            total = math.ceil(self.steps / self.steps_per_update)
        if self.algo != "ppo":
            total = 0
        return Plan(total, self.chunk, self.eval_every, self.checkpoint_every, unit="update")

    def to_dict(self) -> dict[str, Any]:
        """Plain types only; what agents that learn nothing do not use is left out."""
        plain = {"env": self.env} | asdict(self)
        unused = () if self.algo == "ppo" else ("network", "ppo", "copies")
        return {name: value for name, value in plain.items() if name not in unused}

    def fingerprint(self) -> str:
        """A short hash of everything that decides what is learned."""
        return fingerprint(self.to_dict(), CADENCE)


def from_dict(plain: Mapping[str, Any], source: str = "config") -> ArcTrainConfig:
    """The inverse of `ArcTrainConfig.to_dict`; `source` is named in errors."""
    if not isinstance(plain, Mapping) or plain.get("env") != "arc":
        raise ValueError(f"{source}: these are not the settings of a run on arc")
    settings = {name: value for name, value in plain.items() if name != "env"}
    return read_fields(ArcTrainConfig, settings, source)


# Tasks -----------------------------------------------------------------------------------------


def load_tasks(config: ArcTrainConfig) -> TaskSet:
    """The tasks that the settings name."""
    found = load(
        config.tasks, split=config.split, tasks=config.ids or None, subset=config.subset,
        path=config.path, max_size=config.max_size,
    )  # fmt: skip
    return found[: config.limit]


def write_tasks(tasks: TaskSet) -> str:
    """The text of a run's own copy of its tasks."""

    def pairs(group: tuple[Pair, ...]) -> list[dict[str, Any]]:
        return [{"input": p.input.tolist(), "output": p.output.tolist()} for p in group]

    content = {task.name: {"train": pairs(task.demos), "test": pairs(task.tests)} for task in tasks}
    return json.dumps({"name": tasks.name, "split": tasks.split, "tasks": content})


def read_tasks(folder: Path) -> TaskSet:
    """The tasks that a run folder keeps."""
    path = Path(folder) / TASKS_FILE
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        tasks = [read_task(name, task, str(path)) for name, task in kept["tasks"].items()]
        return TaskSet(tuple(tasks), kept["name"], kept["split"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not hold the tasks of a run ({type(error).__name__}); "
            "name another folder, or train again"
        ) from error
