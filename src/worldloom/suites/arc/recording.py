"""Episodes of a trained agent to look at: which pairs, and what was done, as plain types."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from worldloom.core.files import plain, write_text
from worldloom.suites.arc.evaluate import ArcEvaluation, Film
from worldloom.suites.arc.page import EPISODES_FILE
from worldloom.suites.arc.references import NOWHERE
from worldloom.suites.arc.shots import Shot, shots_of
from worldloom.suites.arc.taskset import TaskSet
from worldloom.training.driver import Hook

if TYPE_CHECKING:
    from worldloom.training.run import Run

FILM_KEY = 2_000_003  # recordings draw from keys of their own
_EPISODES = 8


class Episodes(Hook):
    """episodes.json with a few greedy episodes of the trained agent."""

    def on_end(self, run: "Run") -> None:
        # Who pressed Ctrl-C wants to leave: a recording would first have to be compiled.
        if run.evaluation is None or run.interrupted:
            return
        evaluator: Any = run.evaluator
        evaluation: Any = run.evaluation
        key = jax.random.fold_in(jax.random.key(FILM_KEY + run.config.seed), run.iteration)
        film = evaluator.film(run.agents, telling_pairs(evaluation), key)
        nowhere = NOWHERE[evaluator.rules.rules]
        episodes = recorded(film, evaluator.tasks, evaluation.task, nowhere)
        write_text(run.folder / EPISODES_FILE, json.dumps(plain(episodes)))


def telling_pairs(evaluation: ArcEvaluation, count: int = _EPISODES) -> np.ndarray:
    """Up to `count` pairs to show: solved and not, demonstrations and tests, of many tasks."""
    kinds = [
        np.flatnonzero((evaluation.tests == tests) & (evaluation.solved == solved)).tolist()
        for solved in (True, False)
        for tests in (False, True)
    ]
    chosen: list[int] = []
    while len(chosen) < count and any(kinds):
        for pairs in filter(None, kinds):
            # One of a task that is not shown yet, if there is one.
            shown = evaluation.task[chosen]
            new = [pair for pair in pairs if evaluation.task[pair] not in shown]
            chosen.append((new or pairs)[0])
            pairs.remove(chosen[-1])
    return np.array(chosen[:count], int)


def recorded(
    film: Film, tasks: TaskSet, task: np.ndarray, nowhere: Sequence[int]
) -> list[dict[str, Any]]:
    """Episodes as plain types; `task` (P,) is that of each pair, `nowhere` points at no cell."""
    first_pair = np.searchsorted(task, np.arange(len(tasks)))
    episodes = []
    for n, pair in enumerate(film.pairs):
        owner = tasks[int(task[pair])]
        number = int(pair - first_pair[task[pair]])
        shots = shots_of(film.first, film.steps, n)
        episodes.append(
            {
                "task": owner.name,
                "pair": owner.pair_names[number],
                "solved": bool(film.solved[n]),
                "input": owner.pairs[number].input,
                "target": owner.pairs[number].output,
                "shots": [_as_plain(shot, nowhere) for shot in shots],
            }
        )
    return episodes


def _as_plain(shot: Shot, nowhere: Sequence[int]) -> dict[str, Any]:
    selected = None if shot.operation in nowhere else shot.selected
    return {
        "grid": shot.grid,
        "operation": shot.operation,
        "cells": None if selected is None else np.argwhere(selected),
        "valid": shot.valid,
    }
