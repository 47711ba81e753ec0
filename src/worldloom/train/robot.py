"""Training the robot: a whole run at any level, from settings to a folder, and such a run loaded.

A run folder holds config.json, metrics.jsonl, eval.jsonl, ladder.json, timing.json and
checkpoints/.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.amp import AMP, StylePrior
from worldloom.algos.ppo import PPO, Apart, PPOState
from worldloom.core.compiling import quick_compile
from worldloom.core.mesh import BATCH_AXIS, device_mesh
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.envs.robot import motion
from worldloom.envs.robot.features import features
from worldloom.envs.robot.model import Robot
from worldloom.envs.robot.traced import digest
from worldloom.envs.robot.types import Info, Observation, Rules
from worldloom.envs.robot.world import RobotWorld, world
from worldloom.nn.actor_critic import ActorCritic
from worldloom.track.machine import use_compilation_cache
from worldloom.track.sinks import write_json
from worldloom.train import driver
from worldloom.train.on_policy import OnPolicy, OnPolicyTrainer, UpdateTables
from worldloom.train.robot_config import CADENCE, RobotTrainConfig, from_dict
from worldloom.train.robot_evaluate import Act, RobotEvaluation, RobotEvaluator, Rung

LADDER_KEY = 6_000_011


# World and agent ---------------------------------------------------------------------------------


def make_world(config: RobotTrainConfig) -> RobotWorld:
    """The world to train in; that of level 1 is evaluated with the C engine, its equal."""
    engine = "c" if config.engine == "numpy" else config.engine
    made = world(
        task=config.task, physics=engine, robot=config.robot, seed=config.seed,
        **config.world.options(),
    )  # fmt: skip
    if config.world.starts == "reference":
        gait = reference_gait(made.robot, config.motion)
        made = made.with_starts(motion.starts_from(made.engine, gait, 2048, config.seed))
    return made


@cache
def reference_gait(robot: Robot, path: str | None = None) -> motion.Motion:
    """The walk that robots may start in, and are compared with: from a file, or synthesised."""
    return motion.library(robot) if path is None else motion.load(path, robot)


def make_network(config: RobotTrainConfig, num_joints: int) -> Apart:
    """A policy on what robots sense, and a value on what the simulation knows besides."""
    sizes = config.network
    net = ActorCritic(
        action_size=num_joints, hidden=sizes.hidden, activation=sizes.activation,
        initial_log_std=sizes.initial_log_std,
    )  # fmt: skip

    def init(key: Key, obs: Observation) -> PyTree:
        return net.init(key, obs.state, critic_obs=obs.privileged_state)

    def apply(params: PyTree, obs: Observation) -> Any:
        return net.apply(params, obs.state, critic_obs=obs.privileged_state)

    return Apart(init, apply)


def make_ppo(config: RobotTrainConfig, num_joints: int) -> PPO:
    """PPO for this run; on several devices, as each of them runs it."""
    axis = BATCH_AXIS if config.devices > 1 else None
    return PPO(config.ppo, make_network(config, num_joints), axis)


def outcomes(info: Info) -> dict[str, Array]:
    """What training counts at the end of an episode."""
    return {
        "fell": info.fell.astype(jnp.float32),
        "error": jnp.abs(info.velocity - info.command),
        "diverged": info.diverged.astype(jnp.float32),
    }


def make_prior(config: RobotTrainConfig, env: RobotWorld) -> StylePrior:
    """A discriminator between what the robot does and the reference gait."""
    robot, axis = env.robot, BATCH_AXIS if config.devices > 1 else None
    reference = features(np, robot, reference_gait(robot, config.motion).reading)

    def features_of(steps: TimeStep) -> Array:
        return features(jnp, robot, steps.info.inner.reading)

    return StylePrior(AMP(config.amp, axis), reference, features_of)


def make_trainer(config: RobotTrainConfig, env: RobotWorld) -> driver.Trainer:
    """What trains at this level."""
    ppo = make_ppo(config, env.robot.num_joints)
    if config.by_brax:
        from worldloom.train.robot_brax_trainer import BraxTrainer

        return BraxTrainer(config, env)
    if config.level == 1:
        from worldloom.reference.robot import RobotLoop
        from worldloom.train.robot_loop import LoopTrainer

        robots = RobotLoop(
            config.ppo.num_worlds, task=config.task, robot=env.robot, seed=config.seed,
            starts=env.params.starts, **config.world.options(),
        )  # fmt: skip
        return LoopTrainer(robots, ppo, config.seed)
    mesh = device_mesh(config.devices) if config.devices > 1 else None
    prior = make_prior(config, env) if config.amp.weight > 0.0 else None
    loop = OnPolicy(as_pure(env), ppo, outcomes, prior, mesh)
    # MJX is by far the most of a program that it is in.
    options = quick_compile() if config.engine == "mjx" else None
    return OnPolicyTrainer(loop, env.params, config.seed, config.chunk, options)


def make_act(config: RobotTrainConfig, env: RobotWorld) -> Act:
    """act(agents, obs): a policy's likeliest actions, `agents` being what its trainer gives."""
    if config.by_brax:
        from worldloom.train.robot_brax_trainer import brax_act

        return brax_act(config, env)
    ppo = PPO(config.ppo, make_network(config, env.robot.num_joints))

    def act(learner: PPOState, obs: Observation) -> Array:
        return ppo.act(learner, obs, jax.random.key(0), explore=False)[0]

    return act


def see_state_alone(
    config: RobotTrainConfig, agents: PyTree, env: RobotWorld
) -> Callable[[Array], Array]:
    """act(state (B, size)) -> actions (B, n): the policy, which needs no critic's eyes."""
    sizes, act = env.task.observation_size(env.robot), make_act(config, env)

    def see(state: Array) -> Array:
        nothing = jnp.zeros((*state.shape[:-1], sizes[1]), jnp.float32)
        return act(agents, Observation(state, nothing))

    return jax.jit(see)


def replace_rules(env: RobotWorld, rules: Rules) -> RobotWorld:
    """The same world under other numbers."""
    return replace(env, params=env.params.replace(rules=jax.tree.map(jnp.asarray, rules)))


# A run -------------------------------------------------------------------------------------------


@dataclass
class RobotRun(driver.Run):
    """A run of the robot while it runs, as hooks see it, and after it, as `run` returns it."""

    config: RobotTrainConfig
    evaluator: RobotEvaluator
    evaluation: RobotEvaluation | None = None

    @property
    def steps(self) -> int:
        return self.epoch * self.config.steps_per_update

    def timing(self) -> dict[str, Any]:
        rate = self.steps / self.train_seconds if self.train_seconds else 0.0
        return super().timing() | {"steps": self.steps, "steps_per_second": round(rate, 1)}


def _reference_of(config: RobotTrainConfig, env: RobotWorld) -> motion.Motion | None:
    """The walk to compare with, where there is one.

    A robot that no gait can be computed for may learn to walk all the same; it is then compared
    with none.
    """
    if config.task != "walk":
        return None
    try:
        return reference_gait(env.robot, config.motion)
    except ValueError:
        if config.motion is not None:
            raise
        return None


class Ladder(driver.Hook):
    """ladder.json: what pushes the trained robot takes, at the end of a run."""

    def on_end(self, run: RobotRun) -> None:
        if run.config.task != "walk" and not run.interrupted:
            key = jax.random.key(LADDER_KEY + run.config.seed)
            rungs = run.evaluator.ladder(run.trainer.agents(), key)
            write_json(run.folder / "ladder.json", [rung.to_dict() for rung in rungs])


def new_folder(root: Path, config: RobotTrainConfig) -> Path:
    """An unused folder name that says what ran at which level, and when."""
    return driver.unused(root, f"biped-{config.task}-level{config.level}-s{config.seed}")


def read_config(folder: Path) -> RobotTrainConfig:
    """The settings of an existing run of the robot."""
    return driver.read_settings(folder, from_dict)


def _rooted(config: RobotTrainConfig) -> RobotTrainConfig:
    """The same settings with whole paths: a run may be gone on with from another folder."""
    paths = {"robot": config.robot, "motion": config.motion}
    whole = {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    return replace(config, **whole)


def _digests(config: RobotTrainConfig, env: RobotWorld) -> dict[str, str]:
    """The sha256 of what the user's own files say: the robot with its mapping, and the motion."""
    found = {}
    if config.robot is not None:
        found["robot"] = digest(env.robot.xml, env.robot.mapping).hex()
    if config.motion is not None:
        arrays = jax.tree.leaves(reference_gait(env.robot, config.motion))
        found["motion"] = digest(*(array.tobytes() for array in arrays)).hex()
    return found


def _check_files(folder: Path, config: RobotTrainConfig, env: RobotWorld) -> None:
    """Raises ValueError if the user's files are no longer those that the run began with."""
    kept = json.loads((Path(folder) / "config.json").read_text()).get("files", {})
    for name, now in _digests(config, env).items():
        if kept.get(name, now) != now:
            beside = " or its mapping" if name == "robot" else ""
            raise ValueError(
                f"{folder} was trained with another {name}: {getattr(config, name)}{beside} has "
                "changed since; bring back what it was, or start a new run"
            )


def run(
    config: RobotTrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    hooks: Sequence[driver.Hook] = (),
    command: str = "",
) -> RobotRun:
    """Trains to the end of `config.plan`; with `resume` on from the newest checkpoint in `folder`.

    Ctrl-C ends it after the current chunk with a checkpoint; `interrupted` then says so.
    """
    use_compilation_cache()
    folder = Path(folder)
    if resume:
        driver.check_resumable(folder, _rooted(read_config(folder)), _rooted(config), CADENCE)
    else:
        driver.check_empty(folder)
    env = make_world(config)
    reference = _reference_of(config, env)
    config = _rooted(config)  # not before: a file that is not there is named as it was typed
    if resume:
        _check_files(folder, config, env)
    evaluator = RobotEvaluator(env, make_act(config, env), config.eval_episodes, reference)
    return driver.drive(
        RobotRun(config, folder, make_trainer(config, env), evaluator),
        partial(UpdateTables, steps_per_update=config.steps_per_update),
        about=lambda: {
            "engine": type(env.engine).__name__,
            "terms": dict(env.task.table),
            "files": _digests(config, env),
        },
        resume=resume,
        hooks=[Ladder(), *hooks],
        command=command,
    )


# A run that is over ------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadedRobotRun:
    """A trained robot and its world."""

    config: RobotTrainConfig
    world: RobotWorld
    agents: PyTree  # a `PPOState`, or what Brax keeps
    update: int

    def act(self, obs: Observation) -> Array:
        """The likeliest actions (B, n) for observations (B, ...)."""
        return make_act(self.config, self.world)(self.agents, obs)

    def evaluate(self, episodes: int | None = None, seed: int = 0) -> RobotEvaluation:
        """Whole episodes, as after training."""
        return self._evaluator(episodes)(self.agents, jax.random.key(seed))

    def ladder(self, episodes: int | None = None, seed: int = 0) -> list[Rung]:
        """The pushes it takes."""
        return self._evaluator(episodes).ladder(self.agents, jax.random.key(seed))

    def _evaluator(self, episodes: int | None) -> RobotEvaluator:
        count = self.config.eval_episodes if episodes is None else episodes
        reference = _reference_of(self.config, self.world)
        return RobotEvaluator(self.world, make_act(self.config, self.world), count, reference)


def load_run(folder: Path) -> LoadedRobotRun:
    """Reads the newest complete checkpoint of a run of the robot."""
    use_compilation_cache()
    config = read_config(folder)
    env = make_world(config)
    _check_files(folder, config, env)
    trainer = make_trainer(replace(config, devices=1), env)
    checkpoints = driver.open_checkpoints(folder)
    try:
        trainer.load(checkpoints.restore(trainer.state()))
    finally:
        checkpoints.close()
    return LoadedRobotRun(config, env, trainer.agents(), trainer.epoch)
