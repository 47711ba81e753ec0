"""The robot as an environment of pure functions, whichever engine moves it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from worldloom.core import draws
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.spaces import Box, Dict
from worldloom.core.transforms import as_pure
from worldloom.core.types import Array, Key, TimeStep
from worldloom.suites.robot import starts as start_tables
from worldloom.suites.robot.engines import Engine, EngineName, make_engine
from worldloom.suites.robot.model import Robot, biped, load
from worldloom.suites.robot.task import Task, is_valid, task_named
from worldloom.suites.robot.types import Params, RobotState, Starts

NUM_STARTS = 512


def make(**options: Any) -> PureEnv:
    """The environment; see `world` for the options."""
    return as_pure(world(**options))


def world(
    *,
    task: str | Task = "walk",
    physics: EngineName = "auto",
    robot: str | Path | Robot | None = None,
    threads: int | None = None,
    randomise: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
    **rules: Any,
) -> "RobotWorld":
    """A robot with a task: stand, walk or push.

    physics: c, mjx, or auto. robot: the path of an MJCF with its mapping beside it; by default the
    biped of the suite. threads: of the C engine; all cores by default. randomise, noise: factors
    on how worlds differ and on the noise of sensors. seed: of the table of starts. Other options
    are numbers of the task by name (`command=(0.1, 0.3)`, `horizon=500`), and weights of the terms
    of its reward (`smooth=0.1`).
    """
    body = robot if isinstance(robot, Robot) else biped() if robot is None else load(robot)
    chosen_task = task if isinstance(task, Task) else task_named(task)
    if physics == "numpy":
        raise ValueError(
            'physics="numpy" is a loop outside of jit: use worldloom.suites.robot.loop, or "c" here'
        )
    engine = make_engine(physics, body, threads)
    table = start_tables.around_home(engine, NUM_STARTS, seed)
    numbers = chosen_task.rules(randomise=randomise, noise=noise, **rules)
    params = jax.tree.map(jnp.asarray, Params(numbers, table))
    return RobotWorld(body, chosen_task, engine, params, randomised=randomise > 0.0)


@dataclass(frozen=True, eq=False)
class RobotWorld:
    """A robot, a task and an engine; written for many worlds at once.

    xp: jax.numpy, or numpy where the engine is a plain loop.
    """

    robot: Robot
    task: Task
    engine: Engine
    params: Params
    randomised: bool = False
    xp: Any = jnp

    @property
    def spec(self) -> EnvSpec:
        state, privileged = self.task.observation_size(self.robot)
        limit = 100.0
        return EnvSpec(
            name=f"{self.robot.name}-{self.task.name}",
            observation=Dict(
                (
                    ("state", Box(-limit, limit, (state,))),
                    ("privileged_state", Box(-limit, limit, (privileged,))),
                )
            ),
            action=Box(-1.0, 1.0, (self.robot.num_joints,)),
            horizon=int(self.params.rules.horizon),
        )

    def default_params(self) -> Params:
        return self.params

    def with_starts(self, starts: Starts) -> "RobotWorld":
        """The same world, beginning elsewhere."""
        return replace(self, params=self.params.replace(starts=jax.tree.map(jnp.asarray, starts)))

    # Many worlds -------------------------------------------------------------------------------

    def reset_many(self, keys: Key, params: Params) -> tuple[RobotState, TimeStep]:
        """New episodes from keys (B,)."""
        return self.begin(_uniform(keys, self.task.reset_draws(self.robot)), params)

    def begin(self, uniform: Array, params: Params) -> tuple[RobotState, TimeStep]:
        """New episodes from uniform numbers (B, reset_draws)."""
        return self.task.begin(self.xp, self.robot, params.rules, params.starts, uniform)

    def step_many(
        self, keys: Key, state: RobotState, action: Array, params: Params
    ) -> tuple[RobotState, TimeStep]:
        """One step of control in B worlds."""
        return self.advance(state, action, _uniform(keys, self.task.step_draws(self.robot)), params)

    def advance(
        self, state: RobotState, action: Array, uniform: Array, params: Params
    ) -> tuple[RobotState, TimeStep]:
        """One step of control in B worlds, from uniform numbers (B, step_draws)."""
        task, robot, rules, xp = self.task, self.robot, params.rules, self.xp
        episode, domain = state.episode, state.domain
        action, target, force = task.drive(xp, robot, rules, episode, domain, action)
        moved = self.engine.step(state.physics, target, force, domain if self.randomised else None)
        valid = is_valid(xp, moved.reading)
        # What has diverged is taken back, and ends the episode.
        physics = jax.tree.map(
            lambda new, old: xp.where(valid.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            moved,
            state.physics,
        )
        episode, timestep = task.finish(
            xp, robot, rules, episode, domain, action, physics.reading, ~valid, uniform
        )
        return RobotState(physics, episode, domain), timestep

    # One world ---------------------------------------------------------------------------------

    def reset(self, key: Key, params: Params) -> tuple[RobotState, TimeStep]:
        return _first(self.reset_many(key[None], params))

    def step(
        self, key: Key, state: RobotState, action: Array, params: Params
    ) -> tuple[RobotState, TimeStep]:
        state, action = jax.tree.map(lambda x: x[None], (state, action))
        return _first(self.step_many(key[None], state, action, params))

    def describe(self) -> dict[str, Any]:
        """Static facts, for tables."""
        return {
            "name": self.spec.name,
            "size": f"{self.robot.mass:.1f} kg",
            "agents": 1,
            "actions": list(self.robot.joints),
        }


def _uniform(keys: Key, count: int) -> Array:
    return jax.vmap(lambda key: draws.uniform(key, (count,)))(keys)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[0], tree)
