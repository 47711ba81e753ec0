"""The tasks as tables: terms of the reward and their weights, commands, pushes, what is seen."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from worldloom.core.checks import MOST
from worldloom.core.names import shown, suggest
from worldloom.suites.robot import rewards
from worldloom.suites.robot.ground import LEVELS, SCAN
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.model_checks import CONTROL_HZ
from worldloom.suites.robot.types import Rules

MOST_HISTORY = 50  # steps that a policy may see back
# What is sensed is multiplied by these before anybody sees it.
SCALES = {"gravity": 1.0, "turning": 0.25, "joints": 1.0, "joint_speeds": 0.1}


@dataclass(frozen=True)
class Task:
    """A task: `table` gives the terms of the reward and their weights."""

    name: str
    table: Mapping[str, float]
    command: tuple[float, float] = (0.0, 0.0)
    sideways: tuple[float, float] = (0.0, 0.0)
    turn: tuple[float, float] = (0.0, 0.0)
    still: float = 0.0
    resample: int = 0
    pace: float = 0.0
    push_force: tuple[float, float] = (0.0, 0.0)
    push_steps: int = 6
    push_pause: tuple[int, int] = (75, 200)
    levels: tuple[int, int] = (0, 1)
    climb: int = 1
    horizon: int = 1000
    lies: bool = False  # it begins on the ground, where no fall ends it
    history: int = 0  # how many earlier readings and actions a policy sees

    @property
    def moves(self) -> bool:
        """Whether it has commands."""
        return any(map(any, (self.command, self.sideways, self.turn)))

    @property
    def directions(self) -> int:
        """How many numbers a command has: the forward speed, or also sideways and yaw rate."""
        return 3 if any((*self.sideways, *self.turn)) else 1

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

    def rules(self, robot: Robot | None = None, **changes: Any) -> Rules:
        """The numbers of the task; `changes` by the names of `Rules`, or weights by name.

        What is not changed is as for the biped, scaled by the height, weight and rate of control of
        another robot.
        """
        names = [rule.name for rule in fields(Rules) if rule.name != "weights"]
        numbers = {name: getattr(self, name, WIDTHS.get(name, 0.0)) for name in names}
        if robot is not None:
            numbers |= scaled(robot, numbers)
        known = numbers | dict(self.table)
        for name in changes:
            if name not in known:
                raise ValueError(f"{self.name} has no option {shown(name)}; {suggest(name, known)}")
        known |= check_rules(self.name, changes)
        return Rules(
            weights=np.array([known[name] for name in self.table], np.float32),
            **{
                name: np.asarray(known[name], np.int32 if name in WHOLE else np.float32)
                for name in numbers
            },
        )

    def observation_size(self, robot: Robot) -> tuple[int, int]:
        """How many numbers a policy sees, and how many a critic."""
        state = sum(size for _, size in self.layout(robot))
        seen = len(SCAN) if robot.ground is not None else 0
        past = self.history * frame_size(robot)  # a critic knows more than any past tells
        return state, state - past + 14 + self.directions + seen

    def layout(self, robot: Robot) -> tuple[tuple[str, int], ...]:
        """What a policy sees, in order: names and how many numbers each."""
        n = robot.num_joints
        return (
            ("gravity", 3),
            ("turning", 3),
            ("joints", n),
            ("joint_speeds", n),
            ("last_action", n),
            ("command", self.directions),
            ("clock", 2),
            *([("history", self.history * frame_size(robot))] if self.history else []),
        )

    def sees_back(self, history: int) -> "Task":
        """The same, with a policy that sees so many earlier steps."""
        if isinstance(history, bool) or not 0 <= history <= MOST_HISTORY or history % 1:
            raise ValueError(
                f"{self.name}: history={shown(history)}; it must be a whole number of steps from "
                f"0 to {MOST_HISTORY}"
            )
        return replace(self, history=int(history))


def frame_size(robot: Robot) -> int:
    """How many numbers of each earlier step a policy sees: what was sensed, and the action."""
    return 6 + 3 * robot.num_joints


# What options may be: the least and the most of each number. Friction is gone at 2.5 times the full
# width of the randomisation.
RANGES = {
    "command": (-100.0, 100.0), "sideways": (-100.0, 100.0), "turn": (-100.0, 100.0),
    "still": (0.0, 1.0), "resample": (0, MOST["horizon"]), "pace": (0.0, 10.0),
    "push_force": (0.0, 1e6), "push_steps": (1, MOST["horizon"]),
    "push_pause": (1, MOST["horizon"]), "noise": (0.0, 1e3), "bias": (0.0, 1e3),
    "randomise": (0.0, 2.0), "friction": (0.0, 0.45), "mass": (0.0, 0.45), "strength": (0.0, 0.45),
    "damping": (0.0, 0.45), "com": (0.0, 1.0), "offset": (0.0, 1.0), "latency": (0, 2),
    "levels": (0, LEVELS), "climb": (0, 1), "horizon": (1, MOST["horizon"]),
}  # fmt: skip
WHOLE = {"push_steps", "push_pause", "horizon", "resample", "latency", "levels", "climb"}
PAIRS = {"command", "sideways", "turn", "push_force", "push_pause", "latency", "levels"}
# How far worlds differ at `randomise` 1, each switched off by 0: half-widths of uniform factors on
# friction, masses, stiffness and damping, m, rad; and fewest and most steps of latency.
WIDTHS = {
    "friction": 0.4, "mass": 0.1, "strength": 0.1, "damping": 0.3, "com": 0.01, "offset": 0.02,
    "latency": (0, 2), "bias": 1.0,
}  # fmt: skip


def scaled(robot: Robot, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of a task for a robot of another height, weight or rate of control."""
    speed, weight = robot.time_scale, robot.weight_scale
    steps = robot.control_hz / CONTROL_HZ * robot.time_scale  # of a movement
    plain = robot.control_hz / CONTROL_HZ  # of a time that is the same for all
    factors = {
        "command": speed, "sideways": speed, "turn": 1.0 / speed, "push_force": weight,
        "push_steps": steps, "push_pause": steps, "resample": plain, "horizon": plain,
        "com": robot.length_scale,
    }  # fmt: skip
    changed = {}
    for name, factor in factors.items():
        if factor != 1.0:
            values = np.asarray(numbers[name]) * factor
            changed[name] = np.round(values).astype(int) if name in WHOLE else values
    return changed


def check_rules(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a task, or weights of its reward, if they can be; else a ValueError."""
    for name, value in given.items():
        low, high = RANGES.get(name, (-1e6, 1e6))
        numbers = np.asarray(value) if _is_plain(value) else np.asarray("")
        shape = (2,) if name in PAIRS else ()
        fits = numbers.dtype.kind in "iuf" and numbers.shape == shape
        fits = fits and bool(((numbers >= low) & (numbers <= high)).all())
        if name in WHOLE and fits:
            fits = bool((numbers % 1 == 0).all())
        if shape and fits:
            fits = bool(numbers[0] <= numbers[1])
        if not fits:
            what = "a whole number" if name in WHOLE else "a number"
            what = "the least and the most, each " + what if shape else what
            raise ValueError(
                f"{owner}: {name}={shown(value)}; it must be {what} from {low} to {high}"
            )
    return dict(given)


def _is_plain(value: Any) -> bool:
    """A number, or a few of them."""
    if isinstance(value, list | tuple):
        return len(value) == 2 and all(isinstance(x, int | float | np.number) for x in value)
    return isinstance(value, int | float) or hasattr(value, "__array__")


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
        "smooth": 0.03, "effort": 0.02, "pose": 1.0, "apart": 0.0,
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

JOYSTICK = Task(
    "joystick",
    table={
        "alive": 0.5, "follow": 2.0, "reach": 1.0, "yaw": 1.0, "upright": 1.0, "steady": 0.03,
        "height": 0.3, "swing": 1.5, "footing": 1.0, "slip": 0.25, "smooth": 0.05, "effort": 0.02,
        "pose": 0.5, "apart": 1.0,
    },
    command=(-0.2, 0.35),
    sideways=(-0.15, 0.15),
    turn=(-0.5, 0.5),
    still=0.1,
    resample=250,
    pace=0.25,
)  # fmt: skip

RECOVER = Task(
    "recover",
    table={
        "rise": 1.0, "level": 1.0, "erect": 2.0, "rest": 1.0,
        "smooth": 0.01, "effort": 0.01, "quiet": 0.0005,
    },
    horizon=400,
    lies=True,
)  # fmt: skip

TASKS = {task.name: task for task in (STAND, WALK, PUSH, JOYSTICK, RECOVER)}


def task_named(name: str) -> Task:
    """One of the tasks."""
    if name not in TASKS:
        raise ValueError(f"there is no task {shown(name)}; {suggest(name, list(TASKS))}")
    return TASKS[name]
