"""Greedy evaluation in any world of one agent: returns of whole episodes with their error."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import play_steps
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree


def standard_error(values: np.ndarray) -> float:
    """Of the mean of independent values; NaN for a single one."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class EpisodeScores:
    """Returns and lengths of independent episodes."""

    returns: np.ndarray  # (episodes,)
    lengths: np.ndarray  # (episodes,)
    seconds: float

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def stderr(self) -> float:
        return standard_error(self.returns)

    def to_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "stderr": self.stderr,
            "length": float(self.lengths.mean()),
            "episodes": len(self.returns),
            "scores": [round(float(x), 4) for x in self.returns],
        }

    def lines(self) -> dict[str, str]:
        """For people."""
        error = "" if math.isnan(self.stderr) else f" +- {self.stderr:.2g} (s.e.)"
        return {
            "return": f"{self.mean:.4g}{error}, {len(self.returns)} episodes",
            "length": f"{self.lengths.mean():.4g} steps",
        }


class EpisodeEvaluator:
    """Plays whole episodes of a world of one agent; compiled once for `episodes` worlds.

    act(agents, obs, key, explore=...): actions (B, ...) for obs (B, ...).
    """

    def __init__(self, env: PureEnv, act: Callable[..., Array], episodes: int):
        self.env, self.act, self.episodes = env, act, episodes
        self._play = jax.jit(self._episodes)

    def _episodes(self, agents: PyTree, key: Key, params: PyTree) -> tuple[Array, Array]:
        worlds = batch(self.env, self.episodes)
        reset_key, play_key = draws.split(key)
        state, first = worlds.reset(reset_key, params)

        def choose(world, memory, key):
            return self.act(agents, world[1], key, explore=0.0), memory

        def step(world, action, key):
            state, _, alive, total, length = world
            state, after = worlds.step(key, state, action, params)
            total = total + jnp.where(alive, after.reward, 0.0)
            length = length + alive
            alive = alive & ~(after.terminated | after.truncated)
            return (state, after.obs, alive, total, length), ()

        alive = jnp.ones(self.episodes, bool)
        none = jnp.zeros(self.episodes)
        world = (state, first.obs, alive, none, none.astype(jnp.int32))
        assert self.env.spec.horizon is not None
        world, _, _ = play_steps(choose, step, play_key, world, (), self.env.spec.horizon)
        return world[3], world[4]

    def __call__(self, agents: PyTree, key: Key) -> EpisodeScores:
        start = time.perf_counter()
        returns, lengths = jax.device_get(self._play(agents, key, self.env.default_params()))
        return EpisodeScores(returns, lengths, time.perf_counter() - start)
