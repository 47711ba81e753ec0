"""The robot's worlds in numpy, one after the other: level 1, and what the compiled ones must be.

The task is the same code, over numpy; the engine is a plain loop over MuJoCo. Random numbers come
from a counter, so the state is all there is: saved and loaded, it goes on as it would have.
"""

from typing import Any

import jax
import numpy as np
from flax import struct

from worldloom.core.types import PyTree, TimeStep
from worldloom.suites.robot import starts as start_tables
from worldloom.suites.robot.engines import CEngine, LoopEngine
from worldloom.suites.robot.task import is_valid
from worldloom.suites.robot.types import Domain, Episode, Info, Params, Physics
from worldloom.suites.robot.world import RobotWorld


class LoopState(struct.PyTreeNode):
    """B worlds, all in numpy."""

    physics: Physics
    episode: Episode
    domain: Domain
    tick: Any  # () int32, calls so far: the counter of the random numbers


class RobotLoop:
    """B worlds that start anew when their episodes end, stepped by loops in Python."""

    def __init__(self, world: RobotWorld, num_worlds: int, seed: int = 0):
        """Robot, task, rules and starts are those of `world`, which has the C engine: both engines
        keep states in the same form."""
        if not isinstance(world.engine, CEngine):
            raise ValueError(
                f"{world.spec.name}: a loop in Python is for worlds with physics='c', whose states "
                "it shares"
            )
        self.num_worlds, self.seed = num_worlds, seed
        self.robot, self.task, self.randomised = world.robot, world.task, world.randomised
        self.engine = LoopEngine(self.robot)
        self.params: Params = jax.tree.map(np.asarray, world.params)

    def uniform(self, tick: int, count: int) -> np.ndarray:
        """float32 (B, count) in [0, 1): the random numbers of one call."""
        stream = np.random.Philox(key=self.seed, counter=int(tick) << 64)
        return np.random.Generator(stream).random((self.num_worlds, count), np.float32)

    def reset(self) -> tuple[LoopState, TimeStep]:
        """New episodes in all worlds."""
        state = self.begin(self.uniform(0, self.task.reset_draws(self.robot)))
        return state, self._first(state)

    def begin(self, uniform: np.ndarray) -> LoopState:
        """New episodes from uniform numbers (B, reset_draws)."""
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
        noise = self.uniform(int(state.tick), count + reset_count)
        state, timestep = self.advance(state, action, noise[:, :count])
        done = np.asarray(timestep.terminated | timestep.truncated)
        if not done.any():
            return state, timestep
        begun = self.begin(noise[:, count:])
        state = _where(done, begun.replace(tick=state.tick), state)
        obs = _where(done, self._observe(begun), timestep.obs)
        return state, timestep.replace(obs=obs)

    def advance(
        self, state: LoopState, action: np.ndarray, uniform: np.ndarray
    ) -> tuple[LoopState, TimeStep]:
        """One step of control, from uniform numbers (B, step_draws); nothing starts anew."""
        task, robot, rules = self.task, self.robot, self.params.rules
        action, target, force = task.drive(np, robot, rules, state.episode, state.domain, action)
        domain = state.domain if self.randomised else None
        moved = self.engine.step(state.physics, target, force, domain)
        valid = is_valid(np, moved.reading)
        physics = _where(valid, moved, state.physics)
        out = task.finish(
            np, robot, rules, state.episode, state.domain, action, physics.reading, ~valid, uniform
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
