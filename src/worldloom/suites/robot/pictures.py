"""Films and replays of trained robots: robot.gif, robot.mp4 and replay.html."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from worldloom.core.types import Array
from worldloom.suites.robot.evaluate import COMMANDS
from worldloom.suites.robot.film import film
from worldloom.suites.robot.model import CONTROL_SECONDS
from worldloom.suites.robot.recording import record_episode
from worldloom.suites.robot.replay import write_replay
from worldloom.suites.robot.types import Observation
from worldloom.suites.robot.world import RobotWorld
from worldloom.training.driver import Hook

if TYPE_CHECKING:
    from worldloom.training.run import Run

FILM, REPLAY = "robot.gif", "replay.html"
FILM_SECONDS = 10


class Pictures(Hook):
    """robot.gif and replay.html at the end of a run."""

    def on_end(self, run: "Run") -> None:
        # Who pressed Ctrl-C wants to leave.
        if not run.interrupted:
            film_run(run, run.folder / FILM, run.config.seed)


def film_run(run: "Run", path: str | Path, seed: int = 0) -> Path:
    """Writes a GIF of one greedy episode, an MP4 where there is an encoder, and replay.html."""
    shown, path = shown_world(run.problem.env.base), Path(path)
    recording = record_episode(shown, policy_of(run), seed, round(FILM_SECONDS / CONTROL_SECONDS))
    title = f"{shown.task.name}, step {run.steps:,}"
    write_replay(path.with_name(REPLAY), shown.robot, recording, title=title)
    return film(shown.robot, recording.qpos, path).gif


def shown_world(world: RobotWorld) -> RobotWorld:
    """The world to film: a walk in the middle of what is evaluated, and never standing still."""
    if world.task.command == (0.0, 0.0):
        return world
    middle = jnp.full(2, sum(COMMANDS) / 2, jnp.float32)
    rules = world.params.rules.replace(command=middle, still=jnp.float32(0.0))
    return replace(world, params=world.params.replace(rules=rules))


def policy_of(run: "Run") -> Callable[[Any], Array]:
    """act(state (B, size)) -> greedy actions (B, n): the policy does without the critic's part."""
    world = run.problem.env.base
    privileged = world.task.observation_size(world.robot)[1]
    agents, act = run.agents, run.trainer.act

    def policy(state: Array) -> Array:
        nothing = jnp.zeros((*state.shape[:-1], privileged), jnp.float32)
        return act(agents, Observation(state, nothing), jax.random.key(0), explore=0.0)

    return jax.jit(policy)
