"""Predictions as the JSON file that ARC competitions take."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldloom.core.files import write_text
from worldloom.core.names import suggest
from worldloom.suites.arc.tasks import TaskSet, is_list, read_grid

ATTEMPTS = ("attempt_1", "attempt_2")


def write_submission(
    path: str | os.PathLike,
    predictions: Mapping[str, Sequence[Any]],
    tasks: TaskSet | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Writes {task id: [{"attempt_1": grid, "attempt_2": grid}, ...]}; returns the path.

    `predictions` has for each task id a list with one item per test input: one or two grids, or
    a map with "attempt_1" and perhaps "attempt_2". A grid is nested lists or an array (h, w) of
    colours, cut to its size. A missing second attempt repeats the first. With `tasks`, every task
    and each of its test inputs must be answered, and no others.

    The file is written whole or not at all, and an existing one stays unless `overwrite`.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path}: this file exists; use overwrite=True to replace it")
    if tasks is not None:
        _check_complete(predictions, tasks)
    content = {}
    for task_id, answers in predictions.items():
        where = f"submission: task {task_id}"
        if not is_list(answers) or not answers:
            raise ValueError(f"{where}: give a list with the attempts for each test input")
        content[task_id] = [
            _read_attempts(answer, f"{where}, test {i}") for i, answer in enumerate(answers)
        ]
    if not content:
        raise ValueError("submission: there is no prediction to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, json.dumps(content, separators=(",", ":")))


def _read_attempts(answer: Any, where: str) -> dict[str, list[list[int]]]:
    if isinstance(answer, Mapping):
        if ATTEMPTS[0] not in answer or set(answer) - set(ATTEMPTS):
            raise ValueError(f"{where}: the attempts are {' and '.join(ATTEMPTS)}, not {[*answer]}")
        grids = [answer[name] for name in ATTEMPTS if name in answer]
    elif is_list(answer):
        grids = list(answer)
    else:
        raise ValueError(f"{where}: give a list of one or two grids, not {type(answer).__name__}")
    if not 1 <= len(grids) <= len(ATTEMPTS):
        raise ValueError(f"{where}: {len(grids)} attempts; one or two are allowed")
    cells = [
        read_grid(grid, f"{where}, {name}").tolist()
        for name, grid in zip(ATTEMPTS, grids, strict=False)
    ]
    return dict(zip(ATTEMPTS, [cells[0], cells[-1]], strict=True))


def _check_complete(predictions: Mapping[str, Sequence[Any]], tasks: TaskSet) -> None:
    for task_id in predictions:
        if task_id not in tasks:
            hint = suggest(str(task_id), tasks.ids)
            raise ValueError(f"submission: {tasks.name} has no task {task_id!r}; {hint}")
    for task in tasks:
        if task.name not in predictions:
            raise ValueError(f"submission: there is no prediction for task {task.name!r}")
        given, asked = len(predictions[task.name]), len(task.tests)
        if given != asked:
            raise ValueError(
                f"submission: task {task.name} has {asked} test inputs, and {given} are answered"
            )
