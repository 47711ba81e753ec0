"""The robot's worlds in numpy, one after the other: level 1, and what the compiled ones must be.

The task is the same code, over numpy; the engine is a plain loop over MuJoCo. Luck comes from a
counter, so the state is all there is: saved and loaded, it goes on as it would have.
"""

from typing import Any

import jax
import numpy as np
from flax import struct

from worldloom.core.types import PyTree, TimeStep
from worldloom.envs.robot import starts as start_tables
from worldloom.envs.robot.engines import LoopEngine
from worldloom.envs.robot.model import Robot, biped
from worldloom.envs.robot.task import Task, is_sound, task_named
from worldloom.envs.robot.types import Domain, Episode, Info, Params, Physics, Starts
from worldloom.envs.robot.world import NUM_STARTS


class LoopState(struct.PyTreeNode):
    """B worlds, all in numpy."""

    physics: Physics
    episode: Episode
    domain: Domain
    tick: Any  # () int32, calls so far: where the luck comes from


class RobotLoop:
    """B worlds that start anew when their episodes end, stepped by loops in Python."""

    def __init__(
        self,
        num_worlds: int,
        *,
        task: str | Task = "walk",
        robot: Robot | None = None,
        randomise: float = 0.0,
        noise: float = 0.0,
        seed: int = 0,
        starts: Starts | None = None,
        **rules: Any,
    ):
        """Options as those of `worldloom.envs.robot.world.world`, which a table of starts with the
        C engine may come from: both engines keep states in the same form."""
        self.num_worlds, self.seed = num_worlds, seed
        self.robot = robot or biped()
        self.task = task if isinstance(task, Task) else task_named(task)
        self.engine = LoopEngine(self.robot)
        numbers = self.task.rules(randomise=randomise, noise=noise, **rules)
        if starts is None:
            starts = start_tables.around_home(self.engine, NUM_STARTS, seed=0)
        self.params = Params(numbers, jax.tree.map(np.asarray, starts))
        self.randomised = randomise > 0.0

    def uniform(self, tick: int, count: int) -> np.ndarray:
        """float32 (B, count) in [0, 1): the luck of one call."""
        stream = np.random.Philox(key=self.seed, counter=int(tick) << 64)
        return np.random.Generator(stream).random((self.num_worlds, count), np.float32)

    def reset(self) -> tuple[LoopState, TimeStep]:
        """Fresh worlds."""
        state = self.begin(self.uniform(0, self.task.reset_draws(self.robot)))
        return state, self._first(state)

    def begin(self, uniform: np.ndarray) -> LoopState:
        """Fresh worlds from uniform numbers (B, reset_draws)."""
        starts = self.params.starts
        start = self.task.begin(np, self.robot, self.params.rules, len(starts.phase), uniform)
        chosen = start_tables.row(starts, start.row)
        episode, _ = self.task.first(np, self.robot, start, chosen.physics.reading, chosen.phase)
        return LoopState(chosen.physics, episode, start.domain, np.int32(1))

    def _observe(self, state: LoopState) -> PyTree:
        return self.task.look(np, self.robot, state.episode, state.domain, state.physics.reading)

    def _first(self, state: LoopState) -> TimeStep:
        obs = self._observe(state)
        zero: Any = np.zeros(self.num_worlds, np.float32)
        no: Any = np.zeros(self.num_worlds, bool)
        info = Info(
            reading=state.physics.reading,
            terms=np.zeros((self.num_worlds, len(self.task.terms)), np.float32),
            command=state.episode.command,
            velocity=zero,
            height=state.physics.reading.qpos[:, 2],
            contact=np.ones((self.num_worlds, 2), bool),
            fell=no,
            diverged=no,
        )
        return TimeStep(obs, zero, no, no, obs, info)

    def step(self, state: LoopState, action: np.ndarray) -> tuple[LoopState, TimeStep]:
        """One step of control in every world; those that end start anew."""
        count = self.task.step_draws(self.robot)
        reset_count = self.task.reset_draws(self.robot)
        luck = self.uniform(int(state.tick), count + reset_count)
        state, timestep = self.advance(state, action, luck[:, :count])
        done = np.asarray(timestep.terminated | timestep.truncated)
        if not done.any():
            return state, timestep
        fresh = self.begin(luck[:, count:])
        state = _where(done, fresh.replace(tick=state.tick), state)
        obs = _where(done, self._observe(fresh), timestep.obs)
        return state, timestep.replace(obs=obs)

    def advance(
        self, state: LoopState, action: np.ndarray, uniform: np.ndarray
    ) -> tuple[LoopState, TimeStep]:
        """One step of control, from uniform numbers (B, step_draws); nothing starts anew."""
        task, robot, rules = self.task, self.robot, self.params.rules
        action, target, force = task.drive(np, robot, rules, state.episode, state.domain, action)
        domain = state.domain if self.randomised else None
        moved = self.engine.step(state.physics, target, force, domain)
        sound = is_sound(np, moved.reading)
        physics = _where(sound, moved, state.physics)
        out = task.finish(
            np, robot, rules, state.episode, state.domain, action, physics.reading, ~sound, uniform
        )
        state = LoopState(physics, out.episode, state.domain, np.int32(state.tick + 1))
        return state, TimeStep(
            out.obs, out.reward, out.terminated, out.truncated, out.obs, out.info
        )


def _where(chosen: np.ndarray, one: PyTree, other: PyTree) -> PyTree:
    """Row by row; what has no rows is taken from `other`."""

    def pick(a, b):
        if np.ndim(b) == 0:
            return b
        return np.where(chosen.reshape(-1, *[1] * (np.ndim(b) - 1)), a, b)

    return jax.tree.map(pick, one, other)
