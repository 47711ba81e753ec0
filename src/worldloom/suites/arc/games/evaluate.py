"""Scores in games: levels solved, and in how many actions beside those that a person needs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import play_steps
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.training.evaluate import or_random, standard_error, with_error


@dataclass(frozen=True)
class GameScores:
    """What came of E episodes of a game of L levels, each from the first level.

    sampled: the same of episodes with exploration, beside a greedy one, of which all are alike.
    """

    solved: np.ndarray  # int (E,): levels
    spent: np.ndarray  # int (E, L): actions on each level
    baseline: np.ndarray  # int (L,): those that a person needs; 0 where that is not known
    seconds: float
    sampled: "GameScores | None" = None

    @property
    def shares(self) -> np.ndarray:
        """(E,): the share of levels that were solved."""
        return self.solved / len(self.baseline)

    @property
    def mean(self) -> float:
        return float(self.shares.mean())

    @property
    def efficiency(self) -> np.ndarray | None:
        """(E,): actions against the baseline, as ARC-AGI-3 scores them, from 0 to 1.

        A level that is solved counts min(1, baseline / actions) squared; level n weighs n. None
        where the baseline of a level is not known.
        """
        if not self.baseline.all():
            return None
        weights = np.arange(1, len(self.baseline) + 1)
        done = np.arange(len(self.baseline)) < self.solved[:, None]
        ratio = np.minimum(1.0, self.baseline / np.maximum(self.spent, 1)) ** 2
        return (done * ratio * weights).sum(axis=1) / weights.sum()

    @property
    def actions(self) -> np.ndarray:
        """(E,): of each episode."""
        return self.spent.sum(axis=1)

    def to_dict(self) -> dict[str, Any]:
        efficiency = self.efficiency
        row = {
            "mean": round(self.mean, 4),
            "stderr": standard_error(self.shares),
            "levels": len(self.baseline),
            "levels_solved": float(self.solved.mean()),
            "efficiency": None if efficiency is None else round(float(efficiency.mean()), 4),
            "actions": float(self.actions.mean()),
            "level_actions": self._on_solved(),
            "episodes": len(self.solved),
        }
        if self.sampled is None:
            return row
        both = ("mean", "stderr", "efficiency", "episodes")
        theirs = self.sampled.to_dict()
        return row | {f"sampled_{name}": theirs[name] for name in both}

    def _on_solved(self) -> list[float | None]:
        """Mean actions on each level in the episodes that solved it; None where none did."""
        done = np.arange(len(self.baseline)) < self.solved[:, None]
        total = (self.spent * done).sum(axis=0)
        return [float(t / n) if n else None for t, n in zip(total, done.sum(axis=0), strict=True)]

    def lines(self) -> dict[str, str]:
        """For people."""
        episodes = "1 episode" if len(self.solved) == 1 else f"{len(self.solved)} episodes"
        levels = with_error(float(self.solved.mean()), standard_error(self.solved.astype(float)))
        share = "-" if self.efficiency is None else f"{self.efficiency.mean():.3g}"
        lines = {
            "levels solved": f"{levels} of {len(self.baseline)}, {episodes}",
            "actions": f"{self.actions.mean():.4g}",
            "efficiency": f"{share} (1: as few actions as the baseline)",
        }
        if self.sampled is not None:
            lines["with exploration"] = self.sampled.lines()["levels solved"]
        return lines


class GameEvaluator:
    """Plays whole episodes from the first level; compiled once for `episodes` games.

    act(agents, obs, key, explore=...): actions (B,) for obs (B, ...). `explore`: how much the
    agent explores in the episodes that are sampled.
    """

    def __init__(
        self, env: PureEnv, act: Callable[..., Array], episodes: int, explore: float = 1.0
    ):
        self.env, self.act, self.episodes, self.explore = env, act, episodes, explore
        self.baseline = np.asarray(env.default_params().levels.baseline)
        self._play = jax.jit(self._episodes)

    def _episodes(
        self, agents: PyTree, key: Key, params: PyTree, explore: Array, at_random: Array
    ) -> tuple[Array, Array, Array]:
        """Levels solved (E,), actions on each (E, L), and the actions themselves (T, E)."""
        worlds = batch(self.env, self.episodes)
        reset_key, play_key = draws.split(key)
        state, first = worlds.reset(reset_key, params)

        def choose(world, memory, key):
            act_key, random_key = draws.split(key)
            action = self.act(agents, world[1], act_key, explore=explore)
            return or_random(action, at_random, self.env.spec.action, random_key), memory

        def step(world, action, key):
            state, _, info, alive = world
            state, after = worlds.step(key, state, action, params)
            info = jax.tree.map(
                lambda new, old: jnp.where(alive.reshape(-1, *[1] * (new.ndim - 1)), new, old),
                after.info,
                info,
            )
            alive = alive & ~(after.terminated | after.truncated)
            return (state, after.obs, info, alive), action

        assert self.env.spec.horizon is not None
        world = (state, first.obs, first.info, jnp.ones(self.episodes, bool))
        world, _, actions = play_steps(choose, step, play_key, world, (), self.env.spec.horizon)
        return world[2].solved, world[2].spent, actions

    def play(self, agents: PyTree, key: Key, explore: float, at_random: bool) -> tuple[Any, ...]:
        """Levels solved (E,), actions on each (E, L), and the actions themselves (T, E)."""
        params = self.env.default_params()
        return jax.device_get(self._play(agents, key, params, explore, at_random))

    def __call__(self, agents: PyTree, key: Key, at_random: bool = False) -> GameScores:
        start = time.perf_counter()
        solved, spent, _ = self.play(agents, key, self.explore, at_random)
        scores = GameScores(solved, spent, self.baseline, time.perf_counter() - start)
        if at_random:
            return scores
        # Neither the game nor a greedy agent leaves anything to chance: one episode is all.
        solved, spent, _ = self.play(agents, key, 0.0, False)
        seconds = time.perf_counter() - start
        return replace(scores, solved=solved[:1], spent=spent[:1], seconds=seconds, sampled=scores)
