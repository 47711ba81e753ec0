"""What robots are tried with beyond their task: disturbances, pushes and uneven ground."""

from dataclasses import dataclass

import jax.numpy as jnp

from worldloom.core.types import Array
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.model_checks import CONTROL_HZ
from worldloom.suites.robot.task import Task
from worldloom.suites.robot.types import Params

# Every kind of disturbance and its strengths: factors on the widths of the randomisation, steps of
# latency, factors on noise, and pushes in N.
DISTURBANCES: dict[str, tuple[float, ...]] = {
    "latency": (1, 2), "friction": (1, 2), "mass": (1, 2), "com": (1, 2), "strength": (1, 2),
    "damping": (1, 2), "offset": (1, 2), "noise": (1, 2), "push": (4, 8),
}  # fmt: skip
DISTURBED_EPISODES, DISTURBED_SECONDS = 32, 10.0
WAY = 5.0  # m, of the biped's size: what a traversal of uneven ground is
# Pushes of so many newtons for so many steps of control, every two to three seconds.
LADDER = (
    (5.0, 10), (6.0, 10), (7.0, 10), (8.0, 10), (10.0, 10),
    (9.0, 15), (12.0, 15), (16.0, 15), (20.0, 15),
)  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """One size of push, and the shares of episodes that it did not end."""

    newtons: float
    steps: int
    survived: float
    held: float  # by the robot that holds its home pose
    seconds: float = 1.0 / CONTROL_HZ  # of a step

    @property
    def milliseconds(self) -> int:
        """How long the push lasts."""
        return round(1000 * self.seconds * self.steps)

    def line(self) -> tuple[str, str]:
        """For people."""
        return (
            f"pushed by {self.newtons:g} N for {self.milliseconds} ms",
            f"{self.survived:.0%} stay up; {self.held:.0%} if it only holds its pose",
        )


@dataclass(frozen=True)
class Disturbed:
    """How a robot does in worlds that differ in one way."""

    kind: str  # of `DISTURBANCES`, or "none"
    strength: float
    survived: float
    error: float  # m/s, of those that did not fall; NaN where all did
    yaw: float  # rad/s off the command, likewise


@dataclass(frozen=True)
class Traversed:
    """How a robot got over one level of uneven ground, of one kind or of all."""

    level: int
    kind: str  # of `ground.KINDS`, or "all"
    episodes: int
    traversed: int  # that came `WAY` ahead of where they began, whatever became of them then
    fell: int  # of those that did not
    way: float  # m ahead at the furthest, on average

    def line(self) -> tuple[str, str]:
        """For people."""
        return (
            f"level {self.level}, {self.kind}",
            f"{self.traversed} of {self.episodes} get {WAY:g} m ahead; {self.way:.1f} m on average",
        )


def disturbance(task: Task, robot: Robot, kind: str, strength: float) -> dict[str, Array]:
    """The rules that make a disturbance of `DISTURBANCES`."""
    if kind == "latency":
        return {"latency": jnp.full(2, strength, jnp.int32)}
    if kind == "noise":
        return {"noise": jnp.float32(strength), "bias": jnp.float32(1.0)}
    if kind == "push":
        return {"push_force": jnp.full(2, strength * robot.weight_scale, jnp.float32)}
    return {kind: strength * jnp.float32(getattr(task.rules(robot), kind))}


def on_level(params: Params, level: int) -> Params:
    """Where all episodes begin on one level of uneven ground."""
    return params.replace(rules=params.rules.replace(levels=jnp.full(2, level, jnp.int32)))
