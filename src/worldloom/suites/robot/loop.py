"""The robot's worlds in numpy, one after the other: level 1, and what the compiled ones must be.

The world is the same code, over numpy; the engine is a plain loop over MuJoCo. Random numbers come
from a counter, so the state is all there is: saved and loaded, it goes on as it would have.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from worldloom.core.types import PyTree, TimeStep
from worldloom.suites.robot.engines import CEngine, LoopEngine
from worldloom.suites.robot.types import RobotState
from worldloom.suites.robot.world import RobotWorld


class LoopState(RobotState):
    """B worlds, all in numpy."""

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
        self.params = jax.tree.map(np.asarray, world.params)
        self.world = replace(world, engine=LoopEngine(world.robot), params=self.params, xp=np)

    def uniform(self, tick: int, count: int) -> np.ndarray:
        """float32 (B, count) in [0, 1): the random numbers of one call."""
        stream = np.random.Philox(key=self.seed, counter=int(tick) << 64)
        return np.random.Generator(stream).random((self.num_worlds, count), np.float32)

    def reset(self) -> tuple[LoopState, TimeStep]:
        """New episodes in all worlds."""
        uniform = self.uniform(0, self.world.num_draws[0])
        state, timestep = self.world.begin(uniform, self.params)
        return LoopState(**vars(state), tick=np.int32(1)), timestep

    def step(self, state: LoopState, action: np.ndarray) -> tuple[LoopState, TimeStep]:
        """One step of control in every world; those that end start anew."""
        reset_count, count = self.world.num_draws
        uniform = self.uniform(int(state.tick), count + reset_count)
        new, timestep = self.world.advance(state, action, uniform[:, :count], self.params)
        done = np.asarray(timestep.terminated | timestep.truncated)
        if done.any():
            ended = new if self.world.robot.ground is not None else None
            begun, first = self.world.begin(uniform[:, count:], self.params, ended)
            new, obs = _where(done, (begun, first.obs), (new, timestep.obs))
            timestep = timestep.replace(obs=obs)
        return LoopState(**vars(new), tick=np.int32(state.tick + 1)), timestep


def _where(chosen: np.ndarray, one: PyTree, other: PyTree) -> PyTree:
    """Row by row."""
    return jax.tree.map(
        lambda a, b: np.where(chosen.reshape(-1, *[1] * (np.ndim(b) - 1)), a, b), one, other
    )
