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
from worldloom.training.evaluate import or_random, standard_error, with_error
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
    # (episodes,), of several agents; NaN in episodes that have none: see `gini`.
    gini: np.ndarray | None = None
    sustainability: np.ndarray | None = None  # mean turn of what pays an agent, over agents
    peace: np.ndarray | None = None  # share of agents that nobody harmed, over turns

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
        if self.paid is not None and self.against_random is not None:
            ahead = with_error(
                float(self.against_random.mean()), standard_error(self.against_random)
            )
            paid = with_error(float(self.paid.mean()), standard_error(self.paid))
            score = {
                "ahead of random": f"{ahead} for each agent, {len(self.scores)} episodes",
                "payments": f"{paid} in an episode, such as for a tag",
            }
        else:
            score = {
                "greedy score": f"{self.mean:.1f}{error}, {len(self.scores)} episodes",
                "95 % interval": f"{low:.1f} to {high:.1f}",
            }
        return score | {
            "each agent": ", ".join(f"{x:.1f}" for x in self.agent_scores.mean(axis=0)),
            **{name: f"{values.mean():.3g}" for name, values in self._society().items()},
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "stderr": self.stderr,
            "episodes": len(self.scores),
            "scores": [round(float(s), 4) for s in self.scores],
            "agents": [round(float(s), 4) for s in self.agent_scores.mean(axis=0)],
            **self._rivalry(),
            **{name: float(values.mean()) for name, values in self._society().items()},
            **{f"{n}_stderr": standard_error(values) for n, values in self._society().items()},
        }

    def _society(self) -> dict[str, np.ndarray]:
        """How rewards are spread over agents and time; what has no value in any episode is left
        out, and so are the episodes in which it has none."""
        named = {"gini": self.gini, "sustainability": self.sustainability, "peace": self.peace}
        if self.gini is not None:
            named["equality"] = 1.0 - self.gini
        known = {n: values[~np.isnan(values)] for n, values in named.items() if values is not None}
        return {n: values for n, values in known.items() if values.size}

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


def gini(agent_scores: np.ndarray) -> np.ndarray:
    """(episodes,) Gini coefficients of scores (episodes, agents): 0 where all have the same.

    Mean absolute difference over twice the mean. NaN where nobody has anything, or somebody less
    than nothing: shares are of what there is. Equality is 1 less this (Perolat et al. 2017).
    """
    scores = agent_scores.astype(np.float64)
    spread = np.abs(scores[:, :, None] - scores[:, None, :]).mean(axis=(1, 2))
    mean = scores.mean(axis=1)
    shared = (mean > 0) & (scores >= 0).all(axis=1)
    return np.where(shared, spread / (2 * np.where(shared, mean, 1.0)), np.nan)


def sustainability(rewards: Array) -> Array:
    """(B,) of rewards (T, A, B): the mean turn, from 1, in which an agent is paid, over agents that
    are (Perolat et al. 2017); NaN where nobody is. Late is good: what pays was not used up."""
    turn = jnp.arange(1, len(rewards) + 1)[:, None, None]
    times = (rewards > 0).sum(axis=0)
    mean = (turn * (rewards > 0)).sum(axis=0) / jnp.maximum(times, 1)
    return jnp.where(times > 0, mean, 0.0).sum(axis=0) / (times > 0).sum(axis=0)


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
        at_peace = getattr(self.env.base, "at_peace", None)

        def watch(state):
            return () if at_peace is None else jax.vmap(at_peace)(base_state(state)).mean(axis=1)

        last, rewards, before = self._episodes(agents, key, explore, self.episodes, watch, learned)
        peace = ()
        if at_peace is not None:  # before the first turn nobody can have been harmed
            peace = (before[1:].sum(axis=0) + watch(last)) / len(before)
        paid = (rewards > 0).sum(axis=(0, 1))
        return rewards.sum(axis=0).T, paid, sustainability(rewards), peace

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
        per_agent, paid, late, peace = jax.device_get(self._scores(agents, key, explore, learned))
        against = None
        if self.rivals and not at_random and is_constant_sum(per_agent):
            half = every // 2
            returns = self.agent_returns(agents, key, half, explore)
            against = returns[:, :half].mean(axis=1) - returns[:, half:].mean(axis=1)
        seconds = time.perf_counter() - start
        society = {}
        if every > 1:
            society = {"gini": gini(per_agent), "sustainability": late}
            society |= {"peace": peace} if len(peace) else {}
        scores = per_agent.sum(axis=1)
        return GridEvaluation(scores, per_agent, seconds, paid, against, **society)

    def agent_returns(
        self, agents: PyTree, key: Key, learned: int, explore: float = 0.0
    ) -> np.ndarray:
        """(episodes, A) returns in fresh worlds; agents from number `learned` on are random."""
        return np.asarray(self._scores(agents, key, explore, learned)[0])

    def film(self, agents: PyTree, key: Key, explore: float = 0.0) -> tuple[PyTree, np.ndarray]:
        """One episode: the world's states (horizon + 1, ...) and what each turn (horizon,) paid."""
        return jax.device_get(self._film(agents, key, explore))
