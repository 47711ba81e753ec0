"""Greedy evaluation in any world of one agent: returns of whole episodes with their error."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.algos.random import uniform_actions
from worldloom.core import draws
from worldloom.core.memory import WithMemory
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import play_steps
from worldloom.core.spaces import Box
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree

RANDOM_PLAY = "random play"
RANDOM_KEY = 7_000_003  # random play draws from keys of its own


def standard_error(values: np.ndarray) -> float:
    """Of the mean of independent values; NaN for a single one."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def ratio_error(totals: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Standard errors (...) of totals.sum(0) / sizes.sum(), of independent episodes (E, ...).

    sizes (E,): such as their steps, of which each episode has its own number. NaN for a single one.
    """
    totals, sizes = np.asarray(totals, float), np.asarray(sizes, float)
    rate = totals.sum(0) / max(sizes.sum(), 1e-12)
    count = len(sizes)
    if count < 2:
        return np.full_like(rate, np.nan)
    apart = totals - sizes.reshape(-1, *[1] * rate.ndim) * rate
    return apart.std(0, ddof=1) / (math.sqrt(count) * max(sizes.mean(), 1e-12))


def or_random(action: Any, at_random: Array | bool, space: Any, key: Key) -> Any:
    """Actions (B, ...), or uniform ones where `at_random` (): one program plays both."""
    if isinstance(action, WithMemory):
        return action.replace(now=or_random(action.now, at_random, space, key))
    uniform = uniform_actions(space, key, action.shape[0])
    return jnp.where(at_random, uniform.astype(action.dtype), action)


def random_play(evaluator: Any, agents: PyTree) -> dict[str, Any]:
    """What uniform actions score, by name: beside it stands every score that is learned.

    Played by the evaluator's own program; nothing where nothing is uniform on a world's actions.
    """
    space = evaluator.env.spec.action
    if isinstance(space, Box) and not math.isfinite(space.high - space.low):
        return {}
    return {RANDOM_PLAY: evaluator(agents, jax.random.key(RANDOM_KEY), at_random=True)}


def reference_rows(evaluations: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Evaluations by name as config.json keeps them: rows of eval.jsonl without single episodes."""
    rows = {name: evaluation.to_dict() for name, evaluation in evaluations.items()}
    return {name: {n: v for n, v in row.items() if n != "scores"} for name, row in rows.items()}


def is_rivalry(evaluation: Any) -> bool:
    """Whether one agent wins what another loses, so that the sum of their returns is a constant."""
    return getattr(evaluation, "against_random", None) is not None


def score_of(evaluation: Any) -> float:
    """What tells better agents from worse ones: the mean, or how far rivals are ahead of random
    ones."""
    return float(evaluation.against_random.mean()) if is_rivalry(evaluation) else evaluation.mean


def with_error(mean: float, error: float | None) -> str:
    """A mean with its standard error, where that is known, for people."""
    digits = ".4g" if abs(mean) < 100.0 else ".1f"
    known = error is not None and math.isfinite(error)
    return f"{mean:{digits}}" + (f" +- {error:.2g} (s.e.)" if known else "")


def reference_lines(rows: Mapping[str, Any], evaluation: Any = None) -> dict[str, str]:
    """What `reference_rows` say beside an evaluation, for people."""
    if is_rivalry(evaluation):
        return {RANDOM_PLAY: "0: nobody is ahead"}
    lines = {}
    for name, row in rows.items():
        known = row if isinstance(row, Mapping) else {}
        mean, error = known.get("mean"), known.get("stderr")
        if isinstance(mean, int | float) and isinstance(error, int | float | None):
            lines[name] = with_error(mean, error)
    return lines


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
        return {
            "return": f"{with_error(self.mean, self.stderr)}, {len(self.returns)} episodes",
            "length": f"{self.lengths.mean():.4g} steps",
        }


class EpisodeEvaluator:
    """Plays whole episodes of a world of one agent; compiled once for `episodes` worlds.

    act(agents, obs, key, explore=...): actions (B, ...) for obs (B, ...).
    """

    def __init__(self, env: PureEnv, act: Callable[..., Array], episodes: int):
        self.env, self.act, self.episodes = env, act, episodes
        self._play = jax.jit(self._episodes)

    def _episodes(
        self, agents: PyTree, key: Key, params: PyTree, at_random: Array
    ) -> tuple[Array, Array]:
        worlds = batch(self.env, self.episodes)
        reset_key, play_key = draws.split(key)
        state, first = worlds.reset(reset_key, params)

        def choose(world, memory, key):
            action = self.act(agents, world[1], key, explore=0.0)
            return or_random(action, at_random, self.env.spec.action, key), memory

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

    def __call__(self, agents: PyTree, key: Key, at_random: bool = False) -> EpisodeScores:
        start, params = time.perf_counter(), self.env.default_params()
        returns, lengths = jax.device_get(self._play(agents, key, params, at_random))
        return EpisodeScores(returns, lengths, time.perf_counter() - start)
