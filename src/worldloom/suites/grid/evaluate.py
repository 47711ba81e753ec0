"""Greedy evaluation, apart from training: scores with their error, and episodes to look at."""

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
from worldloom.core.rollout import run_episode_batch
from worldloom.core.transforms import base_state, batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.training.evaluate import or_random, standard_error
from worldloom.training.loops.turns import alive


@dataclass(frozen=True)
class GridEvaluation:
    """Scores of independent episodes; a score is the reward of all agents in one world."""

    scores: np.ndarray  # (episodes,)
    agent_scores: np.ndarray  # (episodes, agents)
    seconds: float
    paid: np.ndarray | None = None  # (episodes,): how often an agent was paid, such as for a tag
    # (episodes,), of worlds in which one wins what another loses: the mean return of half of the
    # agents, less that of the others, which play at random.
    against_random: np.ndarray | None = None

    @property
    def mean(self) -> float:
        return float(self.scores.mean())

    @property
    def stderr(self) -> float:
        return standard_error(self.scores)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean, by its normal approximation."""
        return self.mean - 1.96 * self.stderr, self.mean + 1.96 * self.stderr

    def lines(self) -> dict[str, str]:
        """For people."""
        low, high = self.interval
        error = "" if math.isnan(self.stderr) else f" +- {self.stderr:.1f} (s.e.)"
        return {
            "greedy score": f"{self.mean:.1f}{error}, {len(self.scores)} episodes",
            "95 % interval": f"{low:.1f} to {high:.1f}",
            "each agent": ", ".join(f"{x:.1f}" for x in self.agent_scores.mean(axis=0)),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "stderr": self.stderr,
            "episodes": len(self.scores),
            "scores": [round(float(s), 4) for s in self.scores],
            "agents": [round(float(s), 4) for s in self.agent_scores.mean(axis=0)],
            **self._rivalry(),
        }

    def _rivalry(self) -> dict[str, Any]:
        if self.paid is None or self.against_random is None:
            return {}
        named = {"paid": self.paid, "against_random": self.against_random}
        means = {name: float(values.mean()) for name, values in named.items()}
        errors = {f"{name}_stderr": standard_error(values) for name, values in named.items()}
        agents = [round(standard_error(s), 4) for s in self.agent_scores.T]
        return means | errors | {"agents_stderr": agents}


def is_constant_sum(agent_scores: np.ndarray) -> bool:
    """Whether one agent wins what another loses: scores (episodes, agents) that differ, of one sum.

    Sums then differ by rounding alone.
    """
    if agent_scores.shape[1] < 2 or len(agent_scores) < 2:
        return False
    spread = np.ptp(agent_scores, axis=0).max()
    return bool(spread > 0.0 and np.ptp(agent_scores.sum(axis=1)) <= 1e-4 * spread)


class GridEvaluator:
    """Plays whole episodes with fixed parameters; compiled once for `episodes` worlds.

    act(params, obs, key, explore=...): actions (B,) of one agent. rivals: where the sum of all
    agents says nothing, half of them also play against random ones.
    """

    def __init__(
        self, env: PureEnv, act: Callable[..., Array], episodes: int = 200, rivals: bool = False
    ):
        if episodes < 1:
            raise ValueError(f"episodes={episodes}; evaluate at least 1 (2 for a standard error)")
        self.env, self.act, self.episodes, self.rivals = env, act, episodes, rivals
        self._scores = jax.jit(self._play_many)
        self._film = jax.jit(self._play_one)

    def _episodes(
        self, agents: PyTree, key: Key, explore: float, count: int, watch, learned: Array | int
    ):
        """The last states, rewards (horizon, A, count) until an episode's end, what was watched.

        learned: so many agents act as they learned to; those after them play at random.
        """

        def act(agent, obs, key):
            params, is_random = agent
            action = self.act(params, obs, key, explore=explore)
            return or_random(action, is_random, self.env.spec.action, draws.split(key)[1]), ()

        agents = (agents, jnp.arange(self.env.spec.num_agents) >= learned)
        env, params = batch(self.env, count), self.env.default_params()
        turns = self.env.spec.horizon
        if turns is None:
            raise ValueError(f"{self.env.spec.name} has no end; wrap it in time_limit")
        last, played, watched = run_episode_batch(env, act, key, agents, params, turns, watch)
        return last, played.reward * alive(played.terminated)[:, None, :], watched

    def _play_many(self, agents: PyTree, key: Key, explore: float, learned: Array):
        many = self.episodes
        _, rewards, _ = self._episodes(agents, key, explore, many, lambda state: (), learned)
        return rewards.sum(axis=0).T, (rewards > 0).sum(axis=(0, 1))

    def _play_one(self, agents: PyTree, key: Key, explore: float):
        every = self.env.spec.num_agents
        last, rewards, before = self._episodes(agents, key, explore, 1, base_state, every)
        states = jax.tree.map(
            lambda x, end: jnp.concatenate([x[:, 0], end]), before, base_state(last)
        )
        return states, rewards[:, :, 0].sum(axis=1)

    def __call__(
        self, agents: PyTree, key: Key, explore: float = 0.0, at_random: bool = False
    ) -> GridEvaluation:
        """Scores of `episodes` fresh worlds for stacked agents, or for as many random ones."""
        start, every = time.perf_counter(), self.env.spec.num_agents
        learned = 0 if at_random else every
        per_agent, paid = map(np.asarray, self._scores(agents, key, explore, learned))
        against = None
        if self.rivals and not at_random and is_constant_sum(per_agent):
            half = every // 2
            returns = np.asarray(self._scores(agents, key, explore, half)[0])
            against = returns[:, :half].mean(axis=1) - returns[:, half:].mean(axis=1)
        seconds = time.perf_counter() - start
        return GridEvaluation(per_agent.sum(axis=1), per_agent, seconds, paid, against)

    def film(self, agents: PyTree, key: Key, explore: float = 0.0) -> tuple[PyTree, np.ndarray]:
        """One episode: the world's states (horizon + 1, ...) and what each turn (horizon,) paid."""
        return jax.device_get(self._film(agents, key, explore))
