"""Honest scores on ARC: every pair is played, demonstrations and test pairs stand apart.

An episode is solved by a correct submission and by nothing else. The agent is paid nothing for
similarity and starts where a person would start; what it sees never depends on the answer.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.actor_critic import point_action_mask
from worldloom.nn.distributions import Categorical
from worldloom.suites.arc import planes, selectors
from worldloom.suites.arc.environment import NOWHERE, create_observation, start_at
from worldloom.suites.arc.episodes import Trajectory, greedy_editor, play_episodes
from worldloom.suites.arc.operations import RESIZE
from worldloom.suites.arc.tasks import TaskSet
from worldloom.suites.arc.types import Action, ArcConfig, ArcState, ObjectAction, Observation
from worldloom.training.evaluate import RANDOM_PLAY, standard_error

# agent(states, agents, key, config, explore) -> actions (B,): greedy where `explore` (), a traced
# number, is 0, and above it by chance.
Agent = Callable[[ArcState, PyTree, Key, ArcConfig, Array], Action]

GROUPS = ("demo", "test")
REFERENCE_KEY = 4_000_037  # reference play draws from keys of its own
ANYWHERE = (RESIZE,)  # may point beyond the area; the same number under both rule sets
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

    def stderr(self, group: str) -> float:
        """Of the share of the group's pairs that the greedy agent solves."""
        return standard_error(self.solved[self._pairs(group)].astype(float))

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
        chosen, ever = self._pairs(group), np.logical_or.reduce(self.attempts)
        rates = {"pairs": _mean(self.solved[chosen]), "tasks": _mean(self.solved_tasks(group))}
        if self.k:
            rates["pass_at_1"] = _mean(self.attempts[:, chosen])
            rates["pass_at_k"] = _mean(ever[chosen])
            rates["tasks_pass_at_k"] = _mean(self.solved_tasks(group, ever))
        return rates

    def to_dict(self) -> dict[str, Any]:
        """demo_pairs, demo_tasks, test_pairs, ...: every rate, the mean, and k."""
        named = {f"{group}_{n}": x for group in GROUPS for n, x in self.rates(group).items()}
        named = {"mean": self.mean, "stderr": self.stderr("demo")} | named
        counts = {"k": self.k, "episodes": int(self._pairs("demo").sum())}
        return {n: round(x, 4) for n, x in named.items()} | counts

    def lines(self) -> dict[str, str]:
        """What was solved, for people."""
        lines = {}
        for group, name in (("demo", "demonstrations"), ("test", "test pairs")):
            rates = self.rates(group)
            error = self.stderr(group)
            spread = "" if math.isnan(error) else f" +- {100.0 * error:.2g} (s.e.)"
            text = f"{rates['pairs']:.0%}{spread} of pairs, {rates['tasks']:.0%} of tasks (greedy)"
            if self.k:
                pairs, tasks = rates["pass_at_k"], rates["tasks_pass_at_k"]
                text += f"; pass@1 {rates['pass_at_1']:.0%}, pass@{self.k} {pairs:.0%} of pairs, "
                text += f"{tasks:.0%} of tasks"
            lines[name] = text
        return lines

    def table(self) -> list[dict[str, Any]]:
        """A row for each task: how many of its pairs were solved, greedily and in any attempt."""
        ever, whole = np.logical_or.reduce(self.attempts), self.solved_tasks("demo")
        rows = []
        for n, name in enumerate(self.tasks):
            row: dict[str, Any] = {"task": name}
            for group in GROUPS:
                own = (self.task == n) & self._pairs(group)
                row[f"{group}s"] = int(own.sum())
                row[f"{group}s_solved"] = int(self.solved[own].sum())
                row[f"{group}s_solved_in_k"] = int((ever & own).sum()) if self.k else None
            row["solved"] = bool(whole[n] == 1)
            row["steps"] = _mean(self.steps[self.task == n])
            rows.append(row)
        return rows


def _mean(values: np.ndarray) -> float:
    """The mean of what is a number; NaN where nothing is."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else math.nan


def honest(config: ArcConfig) -> ArcConfig:
    """The rules for evaluation: no reward for similarity, no start that tells of the answer."""
    start = "blank" if config.start == "blank" else "input"
    return config.replace(evaluation=True, start=start)


def learned(act: Callable[..., Array], objects: bool = False) -> Agent:
    """A trained agent, of which `act(agents, obs, key, explore=...)` gives numbers (B,).

    They are flat actions, or object actions.
    """

    def agent(states: ArcState, agents: PyTree, key: Key, config: ArcConfig, explore: Array):
        action = act(agents, create_observation(states, config), key, explore=explore)
        if not objects:
            return action
        # As cells, which pages can draw.
        return selectors.resolve(ObjectAction(action), states, config.grid_shape)

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
        self._play = jax.jit(self._ends)
        self._record = jax.jit(self._episodes)
        self.task = np.asarray(rules.tasks.task)  # int (P,): the task of each pair
        first_test = np.asarray(rules.tasks.tests_start)[self.task]
        self.is_test = np.arange(len(self.task)) >= first_test  # bool (P,)

    def _episodes(self, agents: PyTree, pairs: Array, key: Key, rules: ArcConfig, explore: Array):
        """First observations (n, ...), final states (n, ...) and every step (T, n, ...)."""
        start_key, play_key = draws.split(key)
        states = start_at(pairs, draws.split(start_key, pairs.shape[0]), rules)

        def choose(states, agents, key):
            return self.agent(states, agents, key, rules, explore), agents

        steps = int(self.rules.max_steps)
        last, _, steps = play_episodes(states, choose, steps, rules, play_key, agents)
        return create_observation(states, rules), last, steps

    def _ends(self, agents, pairs, key, rules, explore) -> tuple[Array, ...]:
        _, last, _ = self._episodes(agents, pairs, key, rules, explore)
        return last.solved, last.step_count, create_observation(last, rules).grid, last.size

    def play(
        self, agents: PyTree, pairs: np.ndarray, key: Key, explore: float
    ) -> tuple[np.ndarray, ...]:
        """How the episodes from the pairs (n,) end, `batch` of them at a time.

        Whether each was solved (n,), its steps (n,), the last grid (n, H, W) and its size (n, 2).
        """
        padding = np.zeros(-len(pairs) % self.batch, int)
        rows = np.concatenate([pairs, padding]).reshape(-1, self.batch)
        parts = [
            self._play(agents, jnp.int32(row), jax.random.fold_in(key, n), self.rules, explore)
            for n, row in enumerate(rows)
        ]
        return tuple(np.concatenate(part)[: len(pairs)] for part in zip(*parts, strict=True))

    def predictions(self, agents: PyTree, key: Key) -> dict[str, list[list[np.ndarray]]]:
        """For each test pair of each task two grids (h, w), as `write_submission` takes them.

        They are the working grids at the end of two episodes: a greedy and a sampled one. Tasks
        without test pairs are left out.
        """
        pairs = np.flatnonzero(self.is_test)
        if not len(pairs):
            raise ValueError(f"{self.tasks.name}: no task has a test pair whose answer is known")
        attempts = []
        for one, explore in zip(jax.random.split(key), (0.0, self.explore), strict=True):
            _, _, grids, sizes = self.play(agents, pairs, one, explore)
            attempts.append([grid[:h, :w] for grid, (h, w) in zip(grids, sizes, strict=True)])
        answers: dict[str, list[list[np.ndarray]]] = {}
        for owner, *grids in zip(self.task[pairs], *attempts, strict=True):
            answers.setdefault(self.tasks.ids[owner], []).append(grids)
        return answers

    def __call__(self, agents: PyTree, key: Key, attempts: int | None = None) -> ArcEvaluation:
        """Scores of all pairs; `attempts` replaces the number of sampled attempts."""
        start = time.perf_counter()
        attempts = self.attempts if attempts is None else attempts
        if attempts < 0:
            raise ValueError(f"attempts={attempts}; it must be 0 or more")
        greedy_key, sample_key = jax.random.split(key)
        pairs = np.arange(len(self.task))
        solved, steps, *_ = self.play(agents, pairs, greedy_key, 0.0)
        sampled = np.zeros((0, len(pairs)), bool)
        if attempts:
            sampled = self.play(agents, np.tile(pairs, attempts), sample_key, self.explore)[0]
            sampled = sampled.reshape(attempts, -1)
        return ArcEvaluation(
            tasks=self.tasks.ids,
            task=self.task,
            tests=self.is_test,
            solved=solved,
            steps=steps,
            attempts=sampled,
            seconds=time.perf_counter() - start,
        )

    def record(
        self, agents: PyTree, pairs: np.ndarray, key: Key
    ) -> tuple[Observation, ArcState, Trajectory]:
        """Greedy episodes of the pairs (n,): first observations, final states, and every step."""
        played = self._record(agents, jnp.int32(pairs), key, self.rules, jnp.float32(0.0))
        return jax.device_get(played)


# Agents that learn nothing, as what learned ones are compared with ------------------------------


def random_agent(states: ArcState, _: PyTree, key: Key, config: ArcConfig, explore: Array) -> Array:
    """Draws among the same point actions as a policy, each as likely, whatever `explore` is."""
    mask = point_action_mask(
        states.operation_mask, states.size, config.grid_shape, ANYWHERE, NOWHERE[config.rules]
    )
    return Categorical(jnp.zeros(mask.shape), mask).sample(key)


def random_object_agent(
    states: ArcState, _: PyTree, key: Key, config: ArcConfig, explore: Array
) -> ObjectAction:
    """Draws among the object actions that make sense, each as likely, whatever `explore` is."""
    shape = config.grid_shape
    found = selectors.selectable(planes.unpack(states.grid, shape).astype(jnp.int32), states.size)
    mask = selectors.object_action_mask(states.operation_mask, found.usable, states.size, shape)
    return ObjectAction(Categorical(jnp.zeros(mask.shape), mask).sample(key))


def _editor_or_random(
    states: ArcState, agents: PyTree, key: Key, config: ArcConfig, explore: Array
):
    """Both in one program: the editor that knows the answer where play is greedy, else random."""
    best: Any = greedy_editor(config)(states, agents, key)[0]
    height, width = config.grid_shape
    flat = (best.operation * height + best.row) * width + best.column
    return jnp.where(explore > 0, random_agent(states, agents, key, config, explore), flat)


def references(
    evaluator: ArcEvaluator, agents: PyTree = (), random: Agent = random_agent
) -> dict[str, ArcEvaluation]:
    """What random play and the editor that knows the answer solve of the same pairs.

    agents: are not asked. The editor is left out under rules that it cannot play by, and where
    others than point actions are drawn.
    """
    key = jax.random.key(REFERENCE_KEY)
    if evaluator.rules.rules != "edit" or random is not random_agent:
        alone = ArcEvaluator(evaluator.tasks, evaluator.rules, random)
        return {RANDOM_PLAY: alone((), key)}
    played = ArcEvaluator(evaluator.tasks, evaluator.rules, _editor_or_random, attempts=1)((), key)
    alone = replace(played, attempts=played.attempts[:0])
    return {
        RANDOM_PLAY: replace(alone, solved=played.attempts[0]),
        "greedy editor": alone,
    }
