"""The arc suite: ARC tasks as worlds in which an agent edits a grid, and games of ARC-AGI-3's kind.

Whatever is not the world `arc` is a game: ours, and those that users register.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from worldloom.core.checks import check_fields
from worldloom.core.names import shown
from worldloom.training.suite import Suite, World, parts_of

TASKS = "arc"  # the world of tasks
GAMES = {
    "glide": "a game: slide over ice until something is in the way",
    "crates": "a game: push every crate onto a pad",
    "doors": "a game: plates open doors, cracked floor holds once",
    "lights": "a game: put out all lamps; a click switches five",
    "flood": "a game: flood the board from a corner with colours",
}
FOR_GAMES = ("dataset",)  # of the settings of the suite; the others are about tasks
SUBMIT = 34  # the operation without which nothing is solved


@dataclass(frozen=True)
class ArcRules:
    """The world in training; evaluation pays nothing for similarity and starts honestly."""

    max_steps: int = 30  # of an episode
    max_trials: int = 3  # submissions in an episode; -1: any number
    operations: tuple[int, ...] = ()  # those allowed; none named: all
    extended: bool = False  # six more operations
    rules: Literal["edit", "o2arc"] = "edit"  # ours, or those of ARCLE
    start: Literal["input", "blank", "target_blank", "curriculum"] = "input"  # the first grid
    start_edits: int = 3  # of the curriculum: random edits away from the answer
    similarity_weight: float = 5.0
    step_penalty: float = -0.02
    success_bonus: float = 2.0
    wrong_penalty: float = -0.3
    invalid_penalty: float = -0.1

    def __post_init__(self):
        if self.operations and SUBMIT not in self.operations:
            raise ValueError(
                f"arc: world.operations={shown(list(self.operations))} allow no submission, and "
                f"without one nothing is solved; add {SUBMIT}"
            )


@dataclass(frozen=True)
class GameRules:
    """Options of every game: those of `worldloom.suites.arc.games.world.make`."""

    levels: str = ""  # a JSON file of levels in the place of the game's own
    view: Literal["cells", "frame"] = "cells"  # a colour for each cell, or 64 x 64 pixels
    start: Literal["first", "any"] = "first"  # the level that an episode begins with
    max_actions: int = 300  # of an episode
    lives: int | None = None  # the game's own where not given
    level_reward: float = 1.0  # for a solved level
    action_cost: float = 0.01  # of every action
    life_cost: float = 0.1  # of a lost life


@dataclass(frozen=True)
class NetworkSizes:
    """Of the `GridActorCritic` and of `GridQValues`."""

    channels: int = 16
    convolutions: int = 1
    context: int = 128

    def __post_init__(self):
        least = {"channels": 1, "convolutions": 1, "context": 1}
        check_fields("arc: network", self, at_least=least)


@dataclass(frozen=True)
class ArcSettings:
    """What runs on ARC tasks take beyond the common settings; those in games, `dataset` alone.

    Training sees the demonstration pairs alone; in evaluation every pair is played, whatever
    `eval_episodes` is.
    """

    CADENCE: ClassVar[tuple[str, ...]] = ("attempts",)
    # What decides the meaning of a score.
    TASK: ClassVar[tuple[str, ...]] = (
        "tasks", "split", "subset", "ids", "max_size", "limit", "path", "families", "per_family",
    )  # fmt: skip

    tasks: str = "examples"  # arc-agi-1, mini-arc, ..., a folder, or generated
    split: str | None = None  # training, evaluation or all
    subset: str | None = None  # such as same-size-5-edits
    ids: tuple[str, ...] = ()  # the tasks of these ids alone
    max_size: int | None = None  # leaves out tasks with a larger grid
    limit: int | None = None  # the first so many of what is left
    path: str | None = None  # where the set lies, if no package carries it
    families: tuple[str, ...] = ()  # of generated tasks: names, or trained, held-out, all
    per_family: int = 4  # generated tasks of each
    policy: Literal["points", "demonstrations"] = "points"  # the latter sees them, acts on objects
    adapt: int = 0  # rounds of learning from a task's own demonstrations before it is scored
    beam: int = 0  # programs side by side in the search before a test pair is played; 0: no search
    copies: int = 0  # turned and recoloured copies of every task, to train on beside it
    attempts: int = 4  # sampled attempts at every pair in an evaluation, for pass@k; 0: none
    dataset: str = ""  # for bc: a folder of plays (`arc play`), or an npz file (`eval --record`)
    network: NetworkSizes = field(default_factory=NetworkSizes)

    def __post_init__(self):
        least = {"copies": 0, "limit": 1, "max_size": 1, "attempts": 0, "per_family": 1}
        least |= {"adapt": 0, "beam": 0}
        check_fields("arc", self, at_least=least, choices={"policy": ("points", "demonstrations")})
        if self.adapt and self.beam:
            raise ValueError(f"arc: adapt={self.adapt} and beam={self.beam}; give one of the two")


UPDATE = 512 * 8  # steps of an update of PPO
# An edit is paid as soon as it is made, so the horizon is short. Exploration must outlast the
# discovery that painting a cell in its own colour is safe: PPO's entropy bonus is weighed against
# rewards as they are, not against normalised ones, and falls slowly.
BY_ALGORITHM: dict[str, Mapping[str, Any]] = {
    "ppo": {
        "num_worlds": 512,
        "chunk": 20,
        "ppo": {
            "unroll_length": 8,
            "num_epochs": 2,
            "num_minibatches": 4,
            "gamma": 0.4,
            "gae_lambda": 0.9,
            "normalise_advantages": False,
            "learning_rate": 1.5e-3,
            "final_learning_rate": 2e-4,
            "entropy_cost": 0.03,
            "final_entropy_cost": 0.004,
            "anneal_updates": 1500,
        },
    },
    "pqn": {
        "num_worlds": 512,
        "chunk": 20,
        "pqn": {
            "unroll_length": 8,
            "num_minibatches": 16,
            "gamma": 0.4,
            "q_lambda": 0.5,
            "learning_rate": 1e-3,
            "epsilon_updates": 200,
        },
    },
    # Replay makes much of few steps: a fifth of PPO's, each of which takes longer.
    "dqn": {
        "num_worlds": 256,
        "steps": 120 * UPDATE,
        "dqn": {
            "gamma": 0.4,
            "learning_rate": 1e-3,
            "batch_size": 256,
            "gradient_steps": 4,
            "buffer_size": 50_000,
            "epsilon_decay": 0.03,
        },
    },
    "random": {"num_worlds": 64, "steps": 2048},
    "bc": {"steps": 10_000, "eval_every": 0, "checkpoint_every": 0, "chunk": 1},
}


# A level pays when it is solved, a few actions later than what solves it.
IN_GAMES: dict[str, Mapping[str, Any]] = {
    "ppo": {
        "ppo": {
            "unroll_length": 16,
            "num_epochs": 4,
            "num_minibatches": 4,
            "gamma": 0.97,
            "gae_lambda": 0.95,
            "learning_rate": 1e-3,
            "entropy_cost": 0.02,
        },
    },
    "pqn": {
        "pqn": {
            "unroll_length": 16,
            "num_minibatches": 8,
            "gamma": 0.97,
            "learning_rate": 1e-3,
            "epsilon_updates": 100,
        },
    },
    "dqn": {"num_worlds": 64, "dqn": {"gamma": 0.97, "buffer_size": 100_000}},
    "bc": {"steps": 10_000, "eval_every": 0, "checkpoint_every": 0, "chunk": 1},
}


# A policy that is told the rule by demonstrations, on generated tasks; decisions are few.
TOLD: Mapping[str, Any] = {
    "tasks": "generated",
    "policy": "demonstrations",
    "per_family": 2,
    "world": {"extended": True, "max_steps": 12, "max_trials": 1},
}


def generalise() -> dict[str, Any]:
    """By cloning the solutions of tasks that are drawn anew."""
    cloning = {"batch_size": 96, "updates_per_iteration": 24, "learning_rate": 2e-3}
    return dict(TOLD) | {"algo": "bc", "steps": 6_000, "bc": cloning}


def generalise_by_ppo() -> dict[str, Any]:
    """By rewards, on tasks drawn once and their turned and recoloured copies."""
    return dict(TOLD) | {"algo": "ppo", "per_family": 4, "copies": 8, "num_worlds": 128}


def game_defaults(env: str, algo: str | None) -> Mapping[str, Any]:
    """Settings that learn our games in a minute or a few; training in these starts at any level."""
    common = {
        "algo": algo or "pqn",
        "steps": 1_024_000,
        "num_worlds": 128,
        "eval_every": 256_000,
        "eval_episodes": 32,
        "checkpoint_every": 512_000,
        "world": {"start": "any"} if env in GAMES else {},  # others may not have this option
    }
    return common | dict(IN_GAMES.get(algo or "pqn", {}))


def defaults(env: str, algo: str | None) -> Mapping[str, Any]:
    """Settings that learn small tasks, and games, in minutes."""
    if env != TASKS:
        return game_defaults(env, algo)
    if algo == "greedy":
        raise ValueError(
            "arc: greedy is not trained: the editor reads the answers, and every run has its score "
            "beside that of random play; use ppo, dqn or pqn"
        )
    common = {
        "algo": algo or "ppo",
        "steps": 600 * UPDATE,
        "eval_every": 50 * UPDATE,
        "checkpoint_every": 100 * UPDATE,
    }
    return common | dict(BY_ALGORITHM.get(algo or "ppo", {}))


def unused(env: str) -> tuple[str, ...]:
    """In games the settings that are about tasks."""
    if env == TASKS:
        return ()
    return tuple(f.name for f in fields(ArcSettings) if f.name not in FOR_GAMES)


SUITE = Suite(
    name="arc",
    worlds={
        TASKS: World(
            "worldloom.suites.arc.world:make",
            "edit a grid into the answer that demonstrations ask for",
        )
    }
    | {n: World(f"worldloom.suites.arc.games.{n}:make", text) for n, text in GAMES.items()},
    settings=ArcSettings,
    presets={"generalise": generalise, "generalise-ppo": generalise_by_ppo},
    rules={TASKS: ArcRules} | dict.fromkeys(GAMES, GameRules),
    defaults=defaults,
    unused=unused,
    **parts_of("worldloom.suites.arc", film="problem:film", studio="studio:session"),
    commands={
        "arc": (
            "worldloom.suites.arc.command:command",
            "list, draw and play ARC tasks; score runs, write submissions",
        )
    },
)
