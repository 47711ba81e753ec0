"""Settings of a training run of the robot, at any of the four levels."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from worldloom.algos.amp import AMPConfig
from worldloom.algos.ppo import PPOConfig
from worldloom.core.names import suggest
from worldloom.envs.robot.engines import EngineName
from worldloom.envs.robot.task import task_named
from worldloom.nn.actor_critic import ACTIVATIONS
from worldloom.train.config import check_seed, read_fields
from worldloom.train.driver import Plan, fingerprint

Level = Literal[1, 2, 3, 4]
TrainerName = Literal["auto", "own", "brax"]
# What moves the robot at each level, unless `physics` says so.
LEVEL_PHYSICS: dict[int, EngineName] = {1: "numpy", 2: "c", 3: "mjx", 4: "auto"}
# Settings that may change when a run is resumed: they do not touch what is learned. Nor does the
# number of devices, but for rounding.
CADENCE = (
    "updates", "steps", "chunk", "eval_every", "eval_episodes", "checkpoint_every", "devices",
)  # fmt: skip


@dataclass(frozen=True)
class RobotRules:
    """The world in training. None leaves a number as the task has it."""

    randomise: float = 0.0  # factor on how far worlds differ from the model
    noise: float = 0.0  # factor on the noise of sensors
    command: tuple[float, float] | None = None  # m/s
    push_force: tuple[float, float] | None = None  # N
    push_steps: int | None = None
    horizon: int | None = None
    starts: Literal["home", "reference"] = "home"  # reference: on frames of the reference gait

    def options(self) -> dict[str, Any]:
        """As `worldloom.envs.robot.world.world` takes them."""
        chosen = {name: value for name, value in asdict(self).items() if value is not None}
        chosen.pop("starts")
        return chosen


@dataclass(frozen=True)
class RobotNetwork:
    """Policy and value have a torso each; the value sees what is hidden from the policy."""

    hidden: tuple[int, ...] = (128, 128)
    activation: str = "elu"
    initial_log_std: float = -1.0


def for_robots() -> PPOConfig:
    """PPO as it learns to walk in minutes."""
    return PPOConfig(
        num_worlds=512, unroll_length=24, num_epochs=4, num_minibatches=8, gamma=0.97,
        gae_lambda=0.95, entropy_cost=0.0, learning_rate=3e-4, max_grad_norm=1.0,
        normalise_observations=True,
    )  # fmt: skip


@dataclass(frozen=True)
class RobotTrainConfig:
    """What a robot is to learn, how, and for how long.

    level: 1, loops in Python over MuJoCo; 2, Brax's PPO over the C engine; 3, everything in JAX;
    4, everything compiled over the engine that is fastest here, on several devices. `steps`, if
    given, is the budget instead of `updates`.
    """

    task: str = "walk"
    level: Level = 4
    trainer: TrainerName = "auto"  # whose PPO: at level 2 Brax's; at level 4 ours, or brax
    seed: int = 0
    robot: str | None = None  # the path of an MJCF; the suite's own biped if none is given
    physics: EngineName = "auto"
    updates: int = 400
    steps: int | None = None
    devices: int = 1
    chunk: int = 10  # updates in one compiled call, between which the host reports
    eval_every: int = 100  # updates between evaluations; 0: only at the end
    eval_episodes: int = 64
    checkpoint_every: int = 100
    world: RobotRules = field(default_factory=RobotRules)
    network: RobotNetwork = field(default_factory=RobotNetwork)
    ppo: PPOConfig = field(default_factory=for_robots)
    amp: AMPConfig = field(default_factory=lambda: AMPConfig(weight=0.0))  # 0: no motion prior
    motion: str | None = None  # a reference gait of envs.robot.motion.save; else it is synthesised

    def __post_init__(self):
        task_named(self.task)
        if self.level not in get_args(Level):
            raise ValueError(f"biped: level={self.level}; use 1, 2, 3 or 4")
        self._check_trainer()
        least = {"updates": 1, "steps": 1, "chunk": 1, "eval_every": 0, "eval_episodes": 1,
                 "checkpoint_every": 1, "devices": 1}  # fmt: skip
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"biped: {name}={value}; it must be at least {low}")
        if self.network.activation not in ACTIVATIONS:
            hint = suggest(self.network.activation, list(ACTIVATIONS))
            raise ValueError(f"biped: network.activation={self.network.activation!r}; {hint}")
        own = LEVEL_PHYSICS[self.level]
        if self.physics not in ("auto", own) and self.level != 4:
            raise ValueError(
                f"biped: level {self.level} is trained with physics={own!r}, not "
                f"{self.physics!r}; leave it out, or use level 4"
            )
        if self.physics == "numpy" and self.level != 1:
            raise ValueError("biped: physics='numpy' is level 1; use --level 1, or 'c' or 'mjx'")
        if self.level != 4 and (self.devices > 1 or self.amp.weight > 0.0):
            raise ValueError("biped: several devices and motion priors are level 4")
        if self.amp.weight > 0.0 and self.task != "walk":
            raise ValueError(
                f"biped: the motion prior is a gait, and says nothing of task={self.task!r}; "
                "leave amp.weight at 0"
            )
        if self.motion is not None and self.task != "walk" and self.world.starts != "reference":
            raise ValueError(
                f"biped: task={self.task!r} has no use for a motion; leave {self.motion!r} out, or "
                "begin in it (world.starts='reference')"
            )
        check_seed(self.seed)

    def _check_trainer(self) -> None:
        if self.trainer not in get_args(TrainerName):
            hint = suggest(str(self.trainer), list(get_args(TrainerName)))
            raise ValueError(f"biped: trainer={self.trainer!r}; {hint}")
        if self.trainer == "brax" and self.level in (1, 3):
            raise ValueError(
                f"biped: level {self.level} is trained with our own PPO; "
                "trainer='brax' is for levels 2 and 4"
            )
        if self.trainer == "own" and self.level == 2:
            raise ValueError("biped: level 2 is Brax's PPO; use level 4 for trainer='own'")
        if self.by_brax and self.amp.weight > 0.0:
            raise ValueError(
                "biped: Brax's PPO has no motion priors; leave amp.weight at 0, or train with "
                "our own PPO"
            )

    @property
    def env(self) -> str:
        return "biped"

    @property
    def engine(self) -> EngineName:
        """What moves the robot."""
        return self.physics if self.level == 4 else LEVEL_PHYSICS[self.level]

    @property
    def by_brax(self) -> bool:
        """Whether Brax's PPO does the learning."""
        return self.level == 2 or self.trainer == "brax"

    @property
    def steps_per_update(self) -> int:
        return self.ppo.num_worlds * self.ppo.unroll_length

    @property
    def plan(self) -> Plan:
        """How far to go, and when the host has something to do."""
        total = self.updates
        if self.steps is not None:
            total = math.ceil(self.steps / self.steps_per_update)
        # Every call of Brax's trainer compiles it: stop only where there is something to keep.
        chunk = total if self.by_brax else self.chunk
        return Plan(total, chunk, self.eval_every, self.checkpoint_every, unit="update")

    def to_dict(self) -> dict[str, Any]:
        """Plain types only."""
        return {"env": self.env} | asdict(self)

    def fingerprint(self) -> str:
        """A short hash of everything that decides what is learned."""
        return fingerprint(self.to_dict(), CADENCE)


def from_dict(plain: Mapping[str, Any], source: str = "config") -> RobotTrainConfig:
    """The inverse of `RobotTrainConfig.to_dict`; `source` is named in errors."""
    if not isinstance(plain, Mapping) or plain.get("env") != "biped":
        raise ValueError(f"{source}: these are not the settings of a run of the biped")
    settings = {name: value for name, value in plain.items() if name != "env"}
    return read_fields(RobotTrainConfig, settings, source)
