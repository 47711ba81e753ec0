"""Robots behind `obs, reward, done, info = env.step(actions)`, for loops written by hand."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.adapters.single_agent import as_dict
from worldloom.core import draws
from worldloom.core.draws import as_key
from worldloom.core.transforms import autoreset_batch
from worldloom.core.types import Key
from worldloom.suites.robot.loop import RobotLoop
from worldloom.suites.robot.world import RobotWorld, world


class WildRobotEnv:
    """`num_envs` robots that start anew when their episodes end: a shell over the pure world.

    Args:
        env_cfg: options of `worldloom.make("biped", ...)` by name, or a `RobotWorld`.
        use_jax: arrays of JAX from a compiled step; else numpy, from a loop over MuJoCo (level 1).
        seed: of the random numbers in numpy; with JAX of the key that `reset` is not given.
    """

    def __init__(
        self, env_cfg: Any = None, num_envs: int = 1, *, use_jax: bool = False, seed: int = 0
    ):
        options = getattr(env_cfg or {}, "items", None)
        self.world: RobotWorld = env_cfg if options is None else world(**dict(options()))
        self.num_envs, self.seed, self.use_jax = num_envs, seed, use_jax
        self.observation_size = self.world.task.observation_size(self.world.robot)[0]
        self.action_size = self.world.robot.num_joints
        self._state: Any = None
        if use_jax:
            worlds = autoreset_batch(self.world, num_envs)
            self._reset, self._step = jax.jit(worlds.reset), jax.jit(worlds.step)
        else:
            self._robots = RobotLoop(self.world, num_envs, seed)

    def reset(self, rng: Key | None = None) -> Any:
        """Observations (B, n) of new episodes; `rng` is a key of either kind, with `use_jax`."""
        if not self.use_jax:
            self._state, timestep = self._robots.reset()
            return timestep.obs.state
        self._key, now = draws.split(jax.random.key(self.seed) if rng is None else as_key(rng))
        self._state, timestep = self._reset(now, self.world.params)
        return timestep.obs.state

    def step(self, actions: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
        """One step of control with actions (B, m): obs (B, n), reward (B,), done (B,), info.

        Where `done`, obs is the first of a new episode. info: "truncated" where time ran out,
        "final_obs" from before the reset, the critic's "privileged_state", and what the task
        measured.
        """
        if self._state is None:
            raise ValueError("step: there is no episode yet; call reset first")
        shape = (self.num_envs, self.action_size)
        if np.shape(actions) != shape:
            raise ValueError(f"step: actions of shape {np.shape(actions)}; they must be {shape}")
        if self.use_jax:
            self._key, now = draws.split(self._key)
            actions = jnp.asarray(actions)
            self._state, timestep = self._step(now, self._state, actions, self.world.params)
        else:
            actions = np.asarray(actions, np.float32)
            self._state, timestep = self._robots.step(self._state, actions)
        info = as_dict(timestep.info) | {
            "truncated": timestep.truncated,
            "final_obs": timestep.final_obs.state,
            "privileged_state": timestep.obs.privileged_state,
        }
        done = timestep.terminated | timestep.truncated
        return timestep.obs.state, timestep.reward, done, info
