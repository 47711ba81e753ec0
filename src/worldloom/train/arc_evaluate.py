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
from worldloom.envs.arc.environment import create_observation, start_at
from worldloom.envs.arc.episodes import AgentFn, Trajectory, run_episode_batch
from worldloom.envs.arc.taskset import TaskSet
from worldloom.envs.arc.types import ArcConfig, Observation

# agent(config, explore): how to act under these rules, greedily or, where `explore` (), a traced
# bool, is true, by sampling.
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
        found = {"pairs": _mean(self.solved[chosen]), "tasks": _mean(whole[~np.isnan(whole)])}
        if self.k:
            tries = self.solved_tasks(group, ever)
            found["pass_at_1"] = _mean(self.attempts[:, chosen])
            found["pass_at_k"] = _mean(ever[chosen])
            found["tasks_pass_at_k"] = _mean(tries[~np.isnan(tries)])
        return found

    def to_dict(self) -> dict[str, Any]:
        """demo_pairs, demo_tasks, test_pairs, ...: every rate, and k."""
        named = {f"{group}_{n}": x for group in GROUPS for n, x in self.rates(group).items()}
        return {n: round(x, 4) for n, x in named.items()} | {"k": self.k}

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


class ArcEvaluator:
    """Plays every pair of the tasks; compiled once, greedy and sampling play alike.

    `rules`, made `honest`, are an argument of the program.
    """

    def __init__(self, tasks: TaskSet, rules: ArcConfig, agent: Agent, attempts: int = 0):
        self.tasks, self.rules, self.agent, self.attempts = tasks, honest(rules), agent, attempts
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
        return states, run_episode_batch(
            states, self.agent(rules, explore), int(self.rules.max_steps), rules,
            key=play_key, agent_state=agents,
        )  # fmt: skip

    def _episodes(self, agents, pairs, key, rules, explore):
        _, (last, _, _) = self._run(agents, pairs, key, rules, explore)
        return last.solved, last.step_count

    def _answers(self, agents, pairs, key, rules, explore):
        _, (last, _, _) = self._run(agents, pairs, key, rules, explore)
        return create_observation(last, rules).grid, last.size

    def _recorded(self, agents, pairs, key, rules):
        states, (last, _, steps) = self._run(agents, pairs, key, rules, jnp.asarray(False))
        return create_observation(states, rules), steps, last.solved

    def play(
        self, agents: PyTree, pairs: np.ndarray, key: Key, explore: bool
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
        found: dict[str, list[list[np.ndarray]]] = {}
        attempts = [
            zip(*self._in_batches(self._answer, agents, pairs, one, explore), strict=True)
            for one, explore in zip(jax.random.split(key), (False, True), strict=True)
        ]
        owners = np.asarray(self.rules.tasks.task)[pairs]
        for owner, *ends in zip(owners, *attempts, strict=True):
            answer = [grid[:height, :width] for grid, (height, width) in ends]
            found.setdefault(self.tasks.ids[owner], []).append(answer)
        return found

    def __call__(self, agents: PyTree, key: Key, attempts: int | None = None) -> ArcEvaluation:
        """Scores of all pairs; `attempts` replaces the number of sampled attempts."""
        start = time.perf_counter()
        attempts = self.attempts if attempts is None else attempts
        greedy_key, sample_key = jax.random.split(key)
        pairs = np.arange(self.rules.tasks.num_pairs)
        solved, steps = self.play(agents, pairs, greedy_key, False)
        sampled = np.zeros((0, len(pairs)), bool)
        if attempts:
            sampled = self.play(agents, np.tile(pairs, attempts), sample_key, True)[0]
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
