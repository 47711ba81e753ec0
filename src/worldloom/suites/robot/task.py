"""The tasks as tables: terms of the reward and their weights, commands, pushes, what is seen."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from worldloom.core.names import suggest
from worldloom.suites.robot import rewards
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.types import Rules

# What is sensed is multiplied by these before anybody sees it.
SCALES = {"gravity": 1.0, "turning": 0.25, "joints": 1.0, "joint_speeds": 0.1}


@dataclass(frozen=True)
class Task:
    """A task: `table` gives the terms of the reward and their weights."""

    name: str
    table: Mapping[str, float]
    command: tuple[float, float] = (0.0, 0.0)
    still: float = 0.0
    push_force: tuple[float, float] = (0.0, 0.0)
    push_steps: int = 6
    push_pause: tuple[int, int] = (75, 200)
    horizon: int = 1000

    def __post_init__(self):
        for name in self.table:
            if not isinstance(getattr(rewards, name, None), type(rewards.alive)):
                raise ValueError(f"{self.name}: there is no reward term {name!r}")

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(self.table)

    @cached_property
    def functions(self) -> tuple[rewards.Term, ...]:
        """The terms, in the order of `terms`."""
        return tuple(getattr(rewards, name) for name in self.table)

    def rules(self, **changes: Any) -> Rules:
        """The numbers of the task; `changes` by the names of `Rules`, or weights by name."""
        weights = dict(self.table)
        for name in list(changes):
            if name in weights:
                weights[name] = changes.pop(name)
        names = [rule.name for rule in fields(Rules) if rule.name != "weights"]
        numbers = {name: getattr(self, name, 0.0) for name in names}  # without noise, all alike
        for name in changes:
            if name not in numbers:
                hint = suggest(name, [*numbers, *weights])
                raise ValueError(f"{self.name} has no option {name!r}; {hint}")
        numbers |= changes
        whole = {"push_steps", "push_pause", "horizon"}
        return Rules(
            weights=np.array(list(weights.values()), np.float32),
            **{
                name: np.asarray(value, np.int32 if name in whole else np.float32)
                for name, value in numbers.items()
            },
        )

    def observation_size(self, robot: Robot) -> tuple[int, int]:
        """How many numbers a policy sees, and how many a critic."""
        state = sum(size for _, size in self.layout(robot))
        return state, state + 12

    def layout(self, robot: Robot) -> tuple[tuple[str, int], ...]:
        """What a policy sees, in order: names and how many numbers each."""
        n = robot.num_joints
        return (
            ("gravity", 3),
            ("turning", 3),
            ("joints", n),
            ("joint_speeds", n),
            ("last_action", n),
            ("command", 1),
            ("clock", 2),
        )


# The tasks -------------------------------------------------------------------------------------

STAND = Task(
    "stand",
    table={
        "alive": 1.0, "upright": 2.0, "height": 0.5, "steady": 0.05, "posture": 0.5,
        "slip": 0.5, "quiet": 0.002, "smooth": 0.02, "effort": 0.02,
    },
    push_force=(4.0, 14.0),
)  # fmt: skip

WALK = Task(
    "walk",
    table={
        "alive": 0.5, "track": 2.0, "approach": 1.0, "straight": 0.5, "upright": 1.0,
        "steady": 0.03, "height": 0.3, "swing": 1.5, "footing": 1.0, "slip": 0.5,
        "smooth": 0.03, "effort": 0.02, "pose": 1.0,
    },
    command=(0.1, 0.35),
    still=0.05,
)  # fmt: skip

PUSH = Task(
    "push",
    table={**STAND.table, "posture": 0.2, "quiet": 0.001},
    push_force=(5.0, 20.0),
    push_steps=10,
    push_pause=(50, 150),
)

TASKS = {task.name: task for task in (STAND, WALK, PUSH)}


def task_named(name: str) -> Task:
    """One of the tasks."""
    if name not in TASKS:
        raise ValueError(f"there is no task {name!r}; {suggest(name, list(TASKS))}")
    return TASKS[name]
