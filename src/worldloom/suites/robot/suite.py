"""The robot suite: a small biped that learns to stand and to walk, or a robot of the user's own."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from worldloom.core.checks import check_fields
from worldloom.core.lazy import resolve
from worldloom.core.names import one_line
from worldloom.training.suite import Suite, World, parts_of

if TYPE_CHECKING:
    from worldloom.algos.amp import AMPConfig

TRAINERS = ("auto", "own", "brax")
PHYSICS = ("auto", "c", "mjx", "numpy")
# The physics engine of each level, unless `physics` says otherwise (level 4 only).
LEVEL_PHYSICS = {1: "numpy", 2: "c", 3: "mjx", 4: "auto"}


GROUNDS = ("none", "rough", "slopes", "steps", "gaps", "mixed")
HISTORY = 5  # earlier steps that a policy sees on uneven ground, unless it is told otherwise


@dataclass(frozen=True)
class RobotRules:
    """Options of the biped's world. None leaves a number as the task has it."""

    randomise: float = 0.0  # factor on the domain randomisation; 1 is its full width
    noise: float = 0.0  # factor on the noise of sensors
    command: tuple[float, float] | None = None  # range of forward speeds to ask for, m/s
    sideways: tuple[float, float] | None = None  # of speeds to the left, m/s (joystick)
    turn: tuple[float, float] | None = None  # of yaw rates, rad/s (joystick)
    still: float | None = None  # share of commands that are to stand
    resample: int | None = None  # mean steps of control until there is another command; 0: never
    pace: float | None = None  # how much quicker steps are at high speed
    push_force: tuple[float, float] | None = None  # range, N
    push_steps: int | None = None  # how long a push lasts, steps of control
    push_pause: tuple[int, int] | None = None  # from one push to the next, steps of control
    friction: float | None = None  # half-widths at randomise 1: factors; 0 switches one off
    mass: float | None = None
    strength: float | None = None  # of the servos
    damping: float | None = None  # of the joints
    com: float | None = None  # of the trunk's centres of mass, m
    offset: float | None = None  # of the joint encoders, rad
    latency: tuple[int, int] | None = None  # from a reading to the servos, steps of control
    bias: float | None = None  # of gravity and gyro, factor; with noise
    apart: float | None = None  # weight of the reward for feet that keep their distance
    smooth: float | None = None  # weight of the punishment of jumping actions
    straight: float | None = None  # weight of the reward for going straight on (walk)
    horizon: int | None = None  # steps of control in an episode
    ground: str = "none"  # rough, slopes, steps, gaps, or mixed (walk, joystick)
    levels: tuple[int, int] | None = None  # of that ground to begin on: 0 is flat, 5 the hardest
    climb: int | None = None  # 1: up and down a level by how far a robot got; 0: drawn at random
    history: int | None = None  # earlier steps that a policy sees; by default 5 on such ground
    starts: str = "home"  # initial states: home, or reference for frames of the reference gait

    def __post_init__(self):
        choices = {"starts": ("home", "reference"), "ground": GROUNDS}
        check_fields("biped", self, choices=choices)
        numbers = {k: v for k, v in self.options().items() if k not in ("ground", "history")}
        resolve("worldloom.suites.robot.task:check_rules")("biped", numbers)

    def options(self) -> dict[str, Any]:
        """As `worldloom.suites.robot.world.world` takes them."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        del given["starts"]
        return {"history": HISTORY if self.ground != "none" else 0} | given


@dataclass(frozen=True)
class RobotSettings:
    """What runs of robots take beyond the common settings.

    level: 1, loops in Python over MuJoCo; 2, Brax's PPO over the C engine; 3, everything in JAX;
    4, everything compiled over the engine that is fastest here, on several devices.
    """

    TASK: ClassVar[tuple[str, ...]] = ("task", "robot")  # what decides the meaning of a score

    task: str = "walk"  # stand, walk, push, joystick or recover
    level: int = 4  # of integration with JAX, 1 to 4
    trainer: str = "auto"  # whose PPO: at level 2 Brax's; at level 4 ours, or brax
    robot: str | None = None  # the path of an MJCF; the suite's own biped if none is given
    physics: str = "auto"  # c, mjx, or auto: c on a CPU
    motion: str | None = None  # a reference gait of `motion.save`; else it is synthesised
    # A motion prior; weight 0: none.
    amp: "AMPConfig" = field(
        default_factory=lambda: resolve("worldloom.algos.amp:AMPConfig")(weight=0.0)
    )

    def __post_init__(self):
        check_fields(
            "biped",
            self,
            choices={"level": (1, 2, 3, 4), "trainer": TRAINERS, "physics": PHYSICS},
        )
        resolve("worldloom.suites.robot.task:task_named")(self.task)
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
        own = LEVEL_PHYSICS[self.level]
        if self.physics not in ("auto", own) and self.level != 4:
            raise ValueError(
                f"biped: level {self.level} is trained with physics={own!r}, not "
                f"{self.physics!r}; leave it out, or use level 4"
            )
        if self.physics == "numpy" and self.level != 1:
            raise ValueError("biped: physics='numpy' is level 1; use --level 1, or 'c' or 'mjx'")
        if self.amp.weight > 0.0 and self.task != "walk":
            raise ValueError(
                f"biped: the motion prior is a gait, and says nothing of task={self.task!r}; "
                "leave amp.weight at 0"
            )
        for name, kind in (("robot", "MJCF file"), ("motion", "reference motion")):
            path = getattr(self, name)
            if path is not None and not os.path.isfile(path):  # also of names that are too long
                raise ValueError(f"there is no {kind} {one_line(path, 150)}")
            if path is not None:  # whole: a run may be resumed from another folder
                object.__setattr__(self, name, str(Path(path).absolute()))

    @property
    def engine(self) -> str:
        """The physics engine."""
        return self.physics if self.level == 4 else LEVEL_PHYSICS[self.level]

    @property
    def by_brax(self) -> bool:
        """Whether Brax's PPO does the learning."""
        return self.level == 2 or self.trainer == "brax"


STEPS_PER_UPDATE = 512 * 24  # of PPO with its defaults
# What learns to walk in minutes.
PPO = {
    "unroll_length": 24,
    "num_epochs": 4,
    "num_minibatches": 8,
    "gamma": 0.97,
    "gae_lambda": 0.95,
    "entropy_cost": 0.0,
    "learning_rate": 3e-4,
    "max_grad_norm": 1.0,
    "normalise_observations": True,
    "hidden": (128, 128),
    "activation": "elu",
    "initial_log_std": -1.0,
}
_OFF_POLICY = {
    "hidden": (128, 128),
    "gamma": 0.97,
    "normalise_observations": True,
    "reward_scale": 10.0,  # a step is worth about 0.1
    "buffer_size": 500_000,
    "learning_starts": 10_000,
    "gradient_steps": 16,
}
OFF_POLICY = {"sac": _OFF_POLICY | {"initial_temperature": 0.1}, "td3": _OFF_POLICY}


def defaults(env: str, algo: str | None) -> Mapping[str, Any]:
    """Settings that learn to walk."""
    algo = algo or "ppo"
    common = {"algo": algo, "eval_episodes": 64, "amp": {"weight": 0.0}}
    off_policy, options = algo in OFF_POLICY, OFF_POLICY | {"ppo": PPO}
    every = 250_000 if off_policy else 100 * STEPS_PER_UPDATE
    return common | {
        "steps": 4 * every,
        "num_worlds": 128 if off_policy else 512,
        "eval_every": every,
        "checkpoint_every": every,
        **({algo: options[algo]} if algo in options else {}),
    }


# What a walk is trained with that is to be put on a robot: worlds that differ, late and noisy
# readings, pushes, feet that keep apart, targets that do not jump, no turning, and a gait like the
# reference's.
READY = {"randomise": 1.0, "noise": 1.0, "apart": 1.0, "straight": 1.5, "smooth": 0.08}
READY_PUSH = (0.0, 8.0)  # N, of the biped
STYLE_WEIGHT = 0.05


def refine(env: str, algo: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of walks that are to be put on a robot; none for other tasks."""
    if env not in SUITE.worlds or given.get("task", "walk") != "walk":
        return {}
    own = given.get("robot") is None  # of which the size is known, and that a gait is computed for
    ready: dict[str, Any] = {"world": READY | ({"push_force": READY_PUSH} if own else {})}
    fused = given.get("level", 4) == 4 and given.get("trainer") in (None, "auto", "own")
    if own and fused and algo == "ppo":
        ready["amp"] = {"weight": STYLE_WEIGHT}
    return ready


SUITE = Suite(
    name="robot",
    worlds={
        "biped": World(
            "worldloom.suites.robot.world:make",
            "a small biped that learns to stand, take pushes and walk",
        ),
    },
    settings=RobotSettings,
    rules={"biped": RobotRules},
    defaults=defaults,
    refine=refine,
    **parts_of(
        "worldloom.suites.robot",
        export="export:export",
        film="film:film_run",
        studio="studio:RobotSession",
    ),
    commands={
        "pushes": (
            "worldloom.suites.robot.command:pushes",
            "push a trained robot with growing force",
        ),
        "deploy": (
            "worldloom.suites.robot.command:deploy",
            "run an exported robot's control loop in MuJoCo",
        ),
    },
)
