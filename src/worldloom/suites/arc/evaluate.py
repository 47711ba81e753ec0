"""Honest scores on ARC: every pair is played, demonstrations and test pairs stand apart.

An episode is solved by a correct submission and by nothing else. The agent is paid nothing for
similarity and starts where a person would start; what it sees never depends on the answer.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.suites.arc.environment import create_observation, start_at
from worldloom.suites.arc.episodes import AgentFn, Trajectory, play_episodes
from worldloom.suites.arc.taskset import TaskSet
from worldloom.suites.arc.types import ArcConfig, Observation

# agent(config, explore): how to act under these rules, greedily where `explore` (), a traced
# number, is 0, and above it by chance.
Agent = Callable[[ArcConfig, Array], AgentFn]

GROUPS = ("demo", "test")
_LARGEST_BATCH = 4_000_000  # cells times operations of the worlds that are played together


@dataclass(frozen=True)
class ArcEvaluation:
    """What was solved of P pairs of the tasks, once greedily and in K sampled attempts.

    An attempt is an episode, with as many submissions as the rules allow.
    """

    tasks: tuple[str, ...]
    task: np.ndarray  # int (P,): the task of each pair
    tests: np.ndarray  # bool (P,): whether it is a test pair
    solved: np.ndarray  # bool (P,): by the greedy agent
    steps: np.ndarray  # int (P,): of its episode
    attempts: np.ndarray  # bool (K, P): by the sampling agent
    seconds: float

    @property
    def mean(self) -> float:
        """The share of demonstrations that the greedy agent solves: what it was trained for."""
        return self.rates("demo")["pairs"]

    @property
    def k(self) -> int:
        return len(self.attempts)

    @property
    def ever(self) -> np.ndarray:
        """bool (P,): solved in any of the sampled attempts."""
        return np.logical_or.reduce(self.attempts, axis=0)

    def _pairs(self, group: str) -> np.ndarray:
        return self.tests if group == "test" else ~self.tests

    def solved_tasks(self, group: str, solved: np.ndarray | None = None) -> np.ndarray:
        """(N,) whether all pairs of the group are solved; NaN for a task that has none."""
        solved = self.solved if solved is None else solved
        chosen, count = self._pairs(group), len(self.tasks)
        there = np.bincount(self.task[chosen], minlength=count)
        done = np.bincount(self.task[chosen & solved], minlength=count)
        return np.where(there > 0, there == done, np.nan)

    def rates(self, group: str) -> dict[str, float]:
        """Shares of the group's pairs, and of the tasks of which all such pairs are solved."""
        chosen, ever = self._pairs(group), self.ever
        whole = self.solved_tasks(group)
        rates = {"pairs": _mean(self.solved[chosen]), "tasks": _mean(whole[~np.isnan(whole)])}
        if self.k:
            tries = self.solved_tasks(group, ever)
            rates["pass_at_1"] = _mean(self.attempts[:, chosen])
            rates["pass_at_k"] = _mean(ever[chosen])
            rates["tasks_pass_at_k"] = _mean(tries[~np.isnan(tries)])
        return rates

    def to_dict(self) -> dict[str, Any]:
        """demo_pairs, demo_tasks, test_pairs, ...: every rate, the mean, and k."""
        named = {f"{group}_{n}": x for group in GROUPS for n, x in self.rates(group).items()}
        named = {"mean": self.mean} | named
        return {n: round(x, 4) for n, x in named.items()} | {"k": self.k}

    def lines(self) -> dict[str, str]:
        """What was solved, for people."""
        lines = {}
        for group, name in (("demo", "demonstrations"), ("test", "test pairs")):
            rates = self.rates(group)
            text = f"{rates['pairs']:.0%} of pairs, {rates['tasks']:.0%} of tasks (greedy)"
            if self.k:
                pairs, tasks = rates["pass_at_k"], rates["tasks_pass_at_k"]
                text += f"; pass@1 {rates['pass_at_1']:.0%}, pass@{self.k} {pairs:.0%} of pairs, "
                text += f"{tasks:.0%} of tasks"
            lines[name] = text
        return lines

    def table(self) -> list[dict[str, Any]]:
        """A row for each task: how many of its pairs were solved, greedily and in any attempt."""
        ever = self.ever
        rows = []
        for n, name in enumerate(self.tasks):
            row: dict[str, Any] = {"task": name}
            for group in GROUPS:
                own = (self.task == n) & self._pairs(group)
                row[f"{group}s"] = int(own.sum())
                row[f"{group}s_solved"] = int(self.solved[own].sum())
                row[f"{group}s_solved_in_k"] = int((ever & own).sum()) if self.k else None
            row["solved"] = bool(self.solved_tasks("demo")[n] == 1)
            row["steps"] = _mean(self.steps[self.task == n])
            rows.append(row)
        return rows


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else math.nan


@dataclass(frozen=True)
class Film:
    """Recorded greedy episodes of n pairs: leaves (n, ...), and (T, n, ...) of the steps."""

    pairs: np.ndarray
    first: Observation
    steps: Trajectory
    solved: np.ndarray


def honest(config: ArcConfig) -> ArcConfig:
    """The rules for evaluation: no reward for similarity, no start that tells of the answer."""
    start = "blank" if config.start == "blank" else "input"
    return config.replace(evaluation=True, start=start)


def learned(act: Callable[..., Array]) -> Agent:
    """A trained agent, of which `act(agents, obs, key, explore=...)` gives flat actions (B,)."""

    def agent(config: ArcConfig, explore: Array) -> AgentFn:
        def choose(states, agents, key):
            return act(agents, create_observation(states, config), key, explore=explore), agents

        return choose

    return agent


class ArcEvaluator:
    """Plays every pair of the tasks; compiled once, greedy and sampling play alike.

    `rules`, made `honest`, are an argument of the program. `explore`: how much the agent explores
    in sampled attempts.
    """

    def __init__(
        self,
        tasks: TaskSet,
        rules: ArcConfig,
        agent: Agent,
        attempts: int = 0,
        explore: float = 1.0,
    ):
        self.tasks, self.rules, self.agent = tasks, honest(rules), agent
        self.attempts, self.explore = attempts, explore
        height, width = rules.grid_shape
        most = max(1, _LARGEST_BATCH // (height * width * rules.num_operations))
        self.batch = min(rules.tasks.num_pairs, most)
        self._play = jax.jit(self._episodes)
        self._record = jax.jit(self._recorded)
        self._answer = jax.jit(self._answers)

    @property
    def is_test(self) -> np.ndarray:
        """bool (P,): which pairs are test pairs."""
        buffer = self.rules.tasks
        first = np.asarray(buffer.tests_start)[np.asarray(buffer.task)]
        return np.arange(buffer.num_pairs) >= first

    def _run(self, agents: PyTree, pairs: Array, key: Key, rules: ArcConfig, explore: Array):
        start_key, play_key = draws.split(key)
        states = start_at(pairs, draws.split(start_key, pairs.shape[0]), rules)
        agent, steps = self.agent(rules, explore), int(self.rules.max_steps)
        return states, play_episodes(states, agent, steps, rules, play_key, agents)

    def _episodes(self, agents, pairs, key, rules, explore):
        _, (last, _, _) = self._run(agents, pairs, key, rules, explore)
        return last.solved, last.step_count

    def _answers(self, agents, pairs, key, rules, explore):
        _, (last, _, _) = self._run(agents, pairs, key, rules, explore)
        return create_observation(last, rules).grid, last.size

    def _recorded(self, agents, pairs, key, rules):
        states, (last, _, steps) = self._run(agents, pairs, key, rules, jnp.float32(0.0))
        return create_observation(states, rules), steps, last.solved

    def play(
        self, agents: PyTree, pairs: np.ndarray, key: Key, explore: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether each episode (n,) from one of `pairs` (n,) was solved, and its length."""
        solved, steps = self._in_batches(self._play, agents, pairs, key, explore)
        return solved, steps

    def _in_batches(self, program: Callable, agents, pairs, key, explore) -> list[np.ndarray]:
        """What the program gives for the pairs (n,), `batch` of them at a time: leaves (n, ...)."""
        count = -len(pairs) % self.batch
        rows = np.concatenate([pairs, np.zeros(count, int)]).reshape(-1, self.batch)
        parts = [
            program(agents, jnp.int32(row), jax.random.fold_in(key, n), self.rules, explore)
            for n, row in enumerate(rows)
        ]
        return [np.concatenate(part)[: len(pairs)] for part in zip(*parts, strict=True)]

    def predictions(self, agents: PyTree, key: Key) -> dict[str, list[list[np.ndarray]]]:
        """For each test pair of each task two grids (h, w), as `write_submission` takes them.

        They are the working grids at the end of two episodes: a greedy and a sampled one. Tasks
        without test pairs are left out.
        """
        pairs = np.flatnonzero(self.is_test)
        if not len(pairs):
            raise ValueError(f"{self.tasks.name}: no task has a test pair whose answer is known")
        answers: dict[str, list[list[np.ndarray]]] = {}
        attempts = [
            zip(*self._in_batches(self._answer, agents, pairs, one, explore), strict=True)
            for one, explore in zip(jax.random.split(key), (0.0, self.explore), strict=True)
        ]
        owners = np.asarray(self.rules.tasks.task)[pairs]
        for owner, *ends in zip(owners, *attempts, strict=True):
            answer = [grid[:height, :width] for grid, (height, width) in ends]
            answers.setdefault(self.tasks.ids[owner], []).append(answer)
        return answers

    def __call__(self, agents: PyTree, key: Key, attempts: int | None = None) -> ArcEvaluation:
        """Scores of all pairs; `attempts` replaces the number of sampled attempts."""
        start = time.perf_counter()
        attempts = self.attempts if attempts is None else attempts
        if attempts < 0:
            raise ValueError(f"attempts={attempts}; it must be 0 or more")
        greedy_key, sample_key = jax.random.split(key)
        pairs = np.arange(self.rules.tasks.num_pairs)
        solved, steps = self.play(agents, pairs, greedy_key, 0.0)
        sampled = np.zeros((0, len(pairs)), bool)
        if attempts:
            sampled = self.play(agents, np.tile(pairs, attempts), sample_key, self.explore)[0]
            sampled = sampled.reshape(attempts, -1)
        return ArcEvaluation(
            tasks=self.tasks.ids,
            task=np.asarray(self.rules.tasks.task),
            tests=self.is_test,
            solved=solved,
            steps=steps,
            attempts=sampled,
            seconds=time.perf_counter() - start,
        )

    def film(self, agents: PyTree, pairs: np.ndarray, key: Key) -> Film:
        """Greedy episodes of the pairs (n,), recorded."""
        played = self._record(agents, jnp.int32(pairs), key, self.rules)
        first, steps, solved = jax.device_get(played)
        return Film(np.asarray(pairs), first, steps, solved)
