"""Solve rates of a policy that is told the rule by demonstrations, beside agents that are not.

Trained on rule families of our own, and scored on new tasks of these, on families held out of
training, on Mini-ARC and on small tasks of ARC-AGI-1. Nothing of the last three is trained on.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from benchmarks.arc_search import search, solve, solve_by_programs
from worldloom.suites.arc.environment import make_config as make_rules
from worldloom.suites.arc.episodes import greedy_editor
from worldloom.suites.arc.evaluate import ArcEvaluator, learned, random_object_agent
from worldloom.suites.arc.generalising import SHOWN
from worldloom.suites.arc.generators.drawing import HELD_OUT, TRAINED, generate
from worldloom.suites.arc.problem import make_problem
from worldloom.suites.arc.searching import Searching, SearchingEvaluator
from worldloom.suites.arc.sources import load
from worldloom.suites.arc.suite import SUITE, generalise
from worldloom.suites.arc.tasks import TaskSet
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer
from worldloom.training.machine import use_compilation_cache

STEPS = 12  # of an episode: decisions of the policy
EDITOR_STEPS = 150  # the editor mends a cell in a step
SIDE = 12  # of the largest grid of others' tasks, and of the canvas
GENERATED = 2  # of the sets, which come first


@dataclass(frozen=True)
class Effort:
    """How much is trained and played."""

    seeds: tuple[int, ...] = (0, 1, 2)
    updates: int = 600
    updates_per_iteration: int = 24
    per_family: int = 4
    limit: int | None = None  # tasks of a set of others
    width: int = 16  # of the search for programs: those that grow side by side
    search_seconds: float | None = None  # of brute force on a task; what the policy took where None
    families: tuple[str, ...] = TRAINED
    held_out: tuple[str, ...] = HELD_OUT


QUICK = Effort(
    seeds=(0,),
    updates=2,
    updates_per_iteration=1,
    per_family=1,
    limit=2,
    search_seconds=0.1,
    families=TRAINED[:2],
    held_out=HELD_OUT[:1],
)


def task_sets(effort: Effort) -> dict[str, TaskSet]:
    """What is scored, by name."""
    sets = {
        "new tasks of trained families": generate(effort.families, effort.per_family, seed=77),
        "held-out families": generate(effort.held_out, effort.per_family, seed=78),
        "mini-arc": load("mini-arc"),
        "arc-agi-1 training": load("arc-agi-1", split="training", max_size=SIDE),
        "arc-agi-1 evaluation": load("arc-agi-1", split="evaluation", max_size=SIDE),
    }
    for name in list(sets)[2:]:
        sets[name] = sets[name][: effort.limit]
    return sets


def rates(first: np.ndarray, second: np.ndarray, seconds: float) -> dict[str, Any]:
    """Shares of test pairs (n,) solved by the first attempt, and by the better of two."""
    either = first | second
    return {
        "test_pairs": len(first),
        "pass_at_1": float(first.mean()),
        "pass_at_2": float(either.mean()),
        "cpu_seconds": seconds,
        "solved_per_cpu_minute": 60.0 * float(either.sum()) / seconds,
    }


@dataclass(frozen=True)
class Joined:
    """All sets as one, on one canvas, so that an agent is compiled once."""

    tasks: TaskSet
    names: tuple[str, ...]
    task_set: np.ndarray  # int (tasks,): the set of each task

    @property
    def side(self) -> int:
        return SIDE


def join(sets: dict[str, TaskSet]) -> Joined:
    """The sets, in order."""
    tasks = [replace(task, name=f"{name}: {task.name}") for name in sets for task in sets[name]]
    numbers = np.repeat(np.arange(len(sets)), [len(tasks) for tasks in sets.values()])
    return Joined(TaskSet(tuple(tasks)), tuple(sets), numbers)


def played(
    joined: Joined,
    agent: Any,
    agents: Any,
    key: Any,
    *,
    objects: bool,
    steps: int = STEPS,
    searching: Searching | None = None,
) -> dict[str, dict[str, Any]]:
    """What an agent solves of each set's test pairs, with one submission an episode.

    The first attempt is greedy, the second drawn; with a search they are those of two programs,
    where it finds any. Compiling is not counted, and the processor seconds are shared among sets
    by their pairs.
    """
    rules = make_rules(
        joined.tasks.buffer((joined.side, joined.side)),
        extended=True,
        max_steps=steps,
        max_trials=1,
        demonstrations=SHOWN if objects else 0,
    )
    evaluator = ArcEvaluator(joined.tasks, rules, agent)
    if searching is not None:
        evaluator = SearchingEvaluator(joined.tasks, rules, agent, 0, 1.0, searching)
    evaluator.batch = 64
    pairs = np.flatnonzero(evaluator.is_test)
    owner = joined.task_set[evaluator.task[pairs]]
    titles = [joined.tasks.ids[task] for task in evaluator.task[pairs]]
    kinds = np.array([title.split(": ")[1].rsplit("-", 1)[0] for title in titles])
    for explore in (0.0, 1.0):
        evaluator.play(agents, pairs[:8], key, explore)
    if isinstance(evaluator, SearchingEvaluator):
        evaluator.forget()
    start = time.process_time()
    first, second = (evaluator.play(agents, pairs, key, explore)[0] for explore in (0.0, 1.0))
    spent = time.process_time() - start
    rows = {}
    for n, name in enumerate(joined.names):
        own = owner == n
        rows[name] = rates(first[own], second[own], spent * float(own.mean()))
        if n < GENERATED:
            rows[name]["families"] = {
                str(kind): float(first[own & (kinds == kind)].mean())
                for kind in np.unique(kinds[own])
            }
    return rows


def editor(states: Any, _: Any, key: Any, config: Any, explore: Any) -> Any:
    """The greedy editor: it reads the answer, and mends a cell after the other."""
    return greedy_editor(config)(states, None, key)[0]


def learn(seed: int, effort: Effort, note: Callable[[str], None]) -> tuple[Any, float]:
    """A trainer after training on the trained families, and the processor seconds that it took.

    What `worldloom train arc --preset generalise` does, without scores on the way; compiling, with
    the first iteration, is not counted.
    """
    preset = generalise()
    given = preset | {
        "env": "arc",
        "seed": seed,
        "families": effort.families,
        "per_family": 1,
        "steps": effort.updates,
        "chunk": 1,
        "bc": preset["bc"] | {"updates_per_iteration": effort.updates_per_iteration},
    }
    config = make_config(SUITE, given)
    trainer = make_trainer(config, make_problem(config))
    iterations = -(-effort.updates // effort.updates_per_iteration)
    trainer.advance(1)
    start = time.process_time()
    for n in range(1, iterations):
        metrics = trainer.advance(1)
        if n % max(1, iterations // 8) == 0:
            spent = time.process_time() - start
            loss, share = float(metrics["actor_loss"][0]), float(metrics["accuracy"][0])
            note(f"  seed {seed}: {spent:.0f} s, loss {loss:.2f}, {share:.0%} of decisions")
    return trainer, (time.process_time() - start) * iterations / max(iterations - 1, 1)


def generalisation(effort: Effort, note: Callable[[str], None], raw: dict[str, Any]) -> None:
    """The table: every agent on every set of tasks, in `raw`, with what it took."""
    use_compilation_cache()
    sets = task_sets(effort)
    joined, key = join(sets), jax.random.key(11)
    raw |= {
        "trained_families": list(effort.families),
        "held_out_families": list(effort.held_out),
        "tasks": {name: len(tasks) for name, tasks in sets.items()},
        "updates": effort.updates,
        "policy": {name: [] for name in sets},
        "policy with search": {name: [] for name in sets},
        "train_cpu_seconds": [],
        "baselines": {},
    }
    for seed in effort.seeds:
        trainer, seconds = learn(seed, effort, note)
        raw["train_cpu_seconds"].append(seconds)
        agent, agents = learned(trainer.act, objects=True), trainer.agents()
        searching = Searching(trainer.loop.agent, width=effort.width)
        for kind, way in (("policy", None), ("policy with search", searching)):
            rows = played(joined, agent, agents, key, objects=True, searching=way)
            for name, row in rows.items():
                raw[kind][name].append(row | {"seed": seed})
                note(
                    f"  seed {seed}, {kind}, {name}: {row['pass_at_1']:.1%}, {row['pass_at_2']:.1%}"
                )
    baselines = raw["baselines"]
    baselines["random"] = played(joined, random_object_agent, (), key, objects=True)
    note("  random play: done")
    told = played(joined, editor, (), key, objects=False, steps=EDITOR_STEPS)
    baselines["greedy editor, told the answer"] = told
    note("  greedy editor: done")
    # Equal processor time: the policy's training, search and play, over all that it was scored on.
    spent = [row["cpu_seconds"] for rows in raw["policy with search"].values() for row in rows]
    each = (sum(raw["train_cpu_seconds"]) + sum(spent)) / (len(joined.tasks) * len(effort.seeds))
    each = each if effort.search_seconds is None else effort.search_seconds
    raw["search_cpu_seconds_per_task"] = each
    languages = {"brute-force search": solve, "brute-force search of programs": solve_by_programs}
    for title, solver in languages.items():
        searched = baselines[title] = {}
        for name, tasks in sets.items():
            first, second, seconds = search(tasks, each, joined.side, solver)
            row = searched[name] = rates(first, second, seconds)
            note(f"  {title}, {name}: {row['pass_at_1']:.1%}, {row['pass_at_2']:.1%}")
    for line in family_table(raw):
        note(line)


def family_table(raw: dict[str, Any]) -> list[str]:
    """Test pairs solved by the first attempt in each family, without search and with it."""
    lines = []
    for name, rows in list(raw["policy"].items())[:GENERATED]:
        lines.append(f"  {name}, by family: the policy, with search")
        for kind in rows[0]["families"]:
            alone, with_search = (
                np.mean([row["families"][kind] for row in raw[way][name]])
                for way in ("policy", "policy with search")
            )
            lines.append(f"    {kind}: {alone:.0%}, {with_search:.0%}")
    return lines


def ratios(raw: dict[str, Any]) -> dict[str, float]:
    """Test pairs solved by the first attempt, over seeds: what the bench's figures are."""

    def mean(name: str) -> float:
        return float(np.mean([row["pass_at_1"] for row in raw["policy with search"][name]]))

    return {
        "heldout_instances_solved": mean("new tasks of trained families"),
        "heldout_families_solved": mean("held-out families"),
    }
