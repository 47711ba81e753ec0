"""A robot as a problem to train on: its world, how it is scored, and what runs keep."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import suites
from worldloom.algos.amp import AMP, StylePrior
from worldloom.core.compiling import quick_compile
from worldloom.core.files import write_json
from worldloom.core.mesh import BATCH_AXIS
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, TimeStep
from worldloom.nn.networks import Networks
from worldloom.suites.robot import motion
from worldloom.suites.robot.engines import CEngine, MjxEngine, digest
from worldloom.suites.robot.evaluate import RobotEvaluator
from worldloom.suites.robot.features import features
from worldloom.suites.robot.film import Pictures
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.suite import SUITE, RobotRules, RobotSettings
from worldloom.suites.robot.types import Info
from worldloom.suites.robot.world import RobotWorld
from worldloom.suites.robot.world import world as make_world
from worldloom.training.config import TrainConfig
from worldloom.training.driver import Hook
from worldloom.training.run import Run
from worldloom.training.suite import Problem
from worldloom.training.trainer import Trainer

LADDER_FILE, ROBUSTNESS_FILE, GROUND_FILE = "ladder.json", "robustness.json", "ground.json"
LADDER_KEY = 6_000_011
NUM_REFERENCE_STARTS = 2048
NUM_ON_LANE = 256  # of them, on each lane of uneven ground


def make_problem(config: TrainConfig, folder: Path | None = None) -> Problem:
    """What a loop needs to train a robot."""
    check(config)
    env, settings = make_env(config), config.settings
    world = env.base
    reference = _reference_of(config, world)
    digests = file_digests(config, world)
    mjx = isinstance(world.engine, MjxEngine)
    return Problem(
        env=env,
        make_evaluator=lambda trainer, episodes: RobotEvaluator(
            world, trainer.act, episodes, reference, config.memory_size
        ),
        networks=Networks(
            encode=lambda obs: obs.state, critic_encode=lambda obs: obs.privileged_state
        ),
        outcomes=outcomes,
        prior=make_prior(config, world) if config.settings.amp.weight > 0.0 else None,
        make_trainer=_make_trainer if _own_trainer(settings) else None,
        # MJX is by far the most of a program that it is in.
        compiler_options=quick_compile() if mjx else None,
        about=lambda run: {
            "robot": world.robot.name,
            "task": world.task.name,
            "engine": type(world.engine).__name__,
            "terms": dict(world.task.table),
            "files": digests,
        },
        hooks=() if world.task.moves or world.task.lies else [LADDER],
        pictures=[
            *([GROUND] if world.robot.ground is not None else []),
            *([ROBUSTNESS] if world.task.moves else []),
            Pictures(),
        ],
        check_resume=lambda header: _check_files(config, digests, header),
        pure=not isinstance(world.engine, CEngine),
        no_memory="trainers of levels 1 and 2 have none" if _own_trainer(settings) else "",
        # Every call of Brax's trainer compiles it: stop only where there is something to keep.
        chunk=config.steps if config.settings.by_brax else None,
    )


def _own_trainer(settings: Any) -> bool:
    """Whether the level is not one of the common loops."""
    return settings.by_brax or settings.level == 1


def check(config: TrainConfig) -> None:
    """Raises ValueError for settings that do not go together."""
    settings = config.settings
    if config.algo != "ppo" and (settings.by_brax or settings.level == 1):
        who = "Brax's PPO" if settings.by_brax else "PPO in a loop over MuJoCo"
        raise ValueError(
            f"{config.env}: {config.algo} at level {settings.level}, which is {who}; "
            "use --algo ppo, or level 3 or 4 with our own trainer"
        )
    if settings.level != 4 and (config.devices > 1 or settings.amp.weight > 0.0):
        raise ValueError(f"{config.env}: several devices and motion priors are level 4")
    if settings.amp.weight > 0.0 and config.algorithm.loop != "on_policy":
        raise ValueError(
            f"{config.env}: a motion prior pays on-policy algorithms, and {config.algo} is none; "
            "use --algo ppo, or leave amp.weight at 0"
        )
    starts = config.world.get("starts")
    if settings.motion is not None and settings.task != "walk" and starts != "reference":
        raise ValueError(
            f"{config.env}: task={settings.task!r} has no use for a motion; leave "
            f"{Path(settings.motion).name!r} out, or begin in it (world.starts='reference')"
        )


# The world ---------------------------------------------------------------------------------------


def make_env(config: TrainConfig) -> PureEnv:
    """The world to train in; that of level 1 is evaluated with the C engine, its equal."""
    if config.env not in SUITE.worlds:
        return _registered(config)
    settings, rules = config.settings, RobotRules(**config.world)
    made = make_world(
        task=settings.task,
        physics="c" if settings.engine == "numpy" else settings.engine,
        robot=settings.robot,
        seed=config.seed,
        **rules.options(),
    )
    if rules.starts == "reference":
        gait = reference_gait(on_flat(made.robot), settings.motion)
        count = NUM_REFERENCE_STARTS if made.robot.ground is None else NUM_ON_LANE
        table = motion.starts_from(made.engine, gait, count, config.seed)
        made = made.with_starts(table)
    return as_pure(made)


def _registered(config: TrainConfig) -> PureEnv:
    """A robot of the user's making, which chooses its own task and physics unless it takes them."""
    usual = asdict(RobotSettings())
    chosen = {name: getattr(config.settings, name) for name in ("task", "physics", "robot")}
    given = {name: value for name, value in chosen.items() if value != usual[name]}
    env = suites.make(config.env, **config.world, **given)
    if not isinstance(env.base, RobotWorld):
        raise ValueError(
            f"{config.env}: a world of the robot suite is a worldloom.suites.robot.world.RobotWorld"
            f", not a {type(env.base).__name__}; register other worlds without suite='robot'"
        )
    if config.settings.level == 3 and not isinstance(env.base.engine, MjxEngine):
        raise ValueError(f"{config.env}: level 3 is MJX; make the robot with physics='mjx'")
    return env


def on_flat(robot: Robot) -> Robot:
    """The robot that gaits are made for."""
    return robot.flat or robot


@cache
def reference_gait(robot: Robot, path: str | None = None) -> motion.Motion:
    """The walk that robots may start in, and are compared with: from a file, or synthesised."""
    return motion.library(robot) if path is None else motion.load(path, robot)


def _reference_of(config: TrainConfig, world: RobotWorld) -> motion.Motion | None:
    """The walk to compare with; None for other tasks, and for robots without a computed gait."""
    path = config.settings.motion
    try:
        body = on_flat(world.robot)
        return reference_gait(body, path) if world.task.name == "walk" else None
    except ValueError:
        if path is not None:
            raise


# Learning ----------------------------------------------------------------------------------------


def outcomes(info: Info) -> dict[str, Array]:
    """What training counts at the end of an episode."""
    counted = {} if isinstance(info.level, tuple) else {"level": info.level.astype(jnp.float32)}
    return counted | {
        "fell": info.fell.astype(jnp.float32),
        "error": jnp.abs(info.velocity - info.command),
        "diverged": info.diverged.astype(jnp.float32),
    }


def make_prior(config: TrainConfig, world: RobotWorld) -> StylePrior:
    """A discriminator between what the robot does and the reference gait."""
    body, axis = world.robot, BATCH_AXIS if config.devices > 1 else None
    flat = on_flat(body)
    reference = features(np, flat, reference_gait(flat, config.settings.motion).reading)

    def features_of(steps: TimeStep) -> Array:
        return features(jnp, body, steps.info.inner.reading)

    return StylePrior(AMP(config.settings.amp, axis), reference, features_of)


def _make_trainer(config: TrainConfig, problem: Problem) -> Any:
    """Trainers of the levels that are not one of the common loops: 1, and Brax's."""
    if config.settings.by_brax:
        from worldloom.suites.robot.brax_trainer import BraxTrainer

        return BraxTrainer(config, problem)
    from worldloom.suites.robot.loop_trainer import PythonLoop

    agent = config.algorithm.make(config.hyper, problem.env.spec, problem.networks)
    options = {"outcomes": problem.outcomes, "seed": config.seed}
    loop: Any = PythonLoop(problem.env, agent, config.num_worlds, **options)
    return Trainer(loop, ((),), seed=config.seed, repeat=loop)


class Trials(Hook):
    """A file of what the trained robot stands, at the end of a run.

    phase: what it says meanwhile. trials(evaluator): a function of agents and a key, of which the
    rows go into the file and, as `part`, into the evaluation.
    """

    def __init__(self, phase: str, file: str, part: str, trials: Callable[[Any], Any]):
        self.phase, self.file, self.part, self.trials = phase, file, part, trials

    def on_end(self, run: Run) -> None:
        if run.interrupted:
            return
        play = self.trials(run.evaluator)
        rows = play(run.agents, jax.random.key(LADDER_KEY + run.config.seed))
        write_json(run.folder / self.file, [asdict(row) for row in rows])
        scores: Any = run.evaluation
        run.evaluation = replace(scores, **{self.part: rows})


# What pushes it takes; how it gets over uneven ground; and how it walks in worlds that differ in
# one way each.
LADDER = Trials("pushing", LADDER_FILE, "rungs", lambda evaluator: evaluator.ladder)
GROUND = Trials("traversing", GROUND_FILE, "traversals", lambda evaluator: evaluator.traversals)
ROBUSTNESS = Trials("disturbing", ROBUSTNESS_FILE, "disturbed", lambda e: e.disturbed)


# A user's own files ------------------------------------------------------------------------------


def file_digests(config: TrainConfig, world: RobotWorld) -> dict[str, str]:
    """The sha256 of what the user's own files say: the robot with its mapping, and the motion."""
    digests, path = {}, config.settings.motion
    if config.settings.robot is not None or config.env not in SUITE.worlds:
        digests["robot"] = digest(world.robot.xml, world.robot.mapping).hex()
    if path is not None:
        arrays = jax.tree.leaves(reference_gait(on_flat(world.robot), path))
        digests["motion"] = digest(*(array.tobytes() for array in arrays)).hex()
    return digests


def _check_files(config: TrainConfig, now: Mapping[str, str], header: Mapping[str, Any]) -> None:
    """Raises ValueError if the user's files are no longer those that the run began with."""
    kept = header.get("files", {})
    for name, value in now.items():
        if kept.get(name, value) == value:
            continue
        path = getattr(config.settings, name) or config.env
        beside = " or its mapping" if name == "robot" else ""
        raise ValueError(
            f"the run was trained with another {name}: {path}{beside} has changed since; "
            "bring back what it was, or start a new run"
        )
