"""Making a configuration: the one place where its values are checked."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from worldloom.core.names import suggest
from worldloom.suites.arc.tasks import Task, pack_tasks
from worldloom.suites.arc.taskset import TaskSet
from worldloom.suites.arc.types import (
    NUM_EXTENDED_OPERATIONS,
    NUM_OPERATIONS,
    RULES,
    STARTS,
    ArcConfig,
    TaskBuffer,
)

REWARDS = (
    "similarity_weight",
    "step_penalty",
    "success_bonus",
    "wrong_penalty",
    "invalid_penalty",
)


def make_config(
    tasks: TaskBuffer | TaskSet | Sequence[Task],
    *,
    operations: Sequence[int] | None = None,
    rules: str = "edit",
    extended: bool = False,
    start: str = "input",
    demonstrations: int = 0,
    evaluation: bool = False,
    max_steps: int = 100,
    max_trials: int = 3,
    start_edits: int = 3,
    **rewards: float,
) -> ArcConfig:
    """A checked `ArcConfig`; `operations` lists the allowed ones (default: all of the rule set).

    `rewards` may give similarity_weight, step_penalty, success_bonus, wrong_penalty and
    invalid_penalty. `max_trials=-1` allows any number of submissions.
    """
    for name, value, known in (("rules", rules, RULES), ("start", start, STARTS)):
        if value not in known:
            raise ValueError(f"arc: there is no {name}={value!r}; {suggest(value, list(known))}")
    if extended and rules != "edit":
        raise ValueError('arc: extended operations belong to rules="edit"')
    for name, value in rewards.items():
        if name not in REWARDS:
            known = [*(make_config.__kwdefaults__ or {}), *REWARDS]
            raise ValueError(f"arc: there is no option {name!r}; {suggest(name, known)}")
        if not np.isfinite(value):
            raise ValueError(f"arc: {name}={value}; rewards must be finite numbers")
    if max_steps < 1:
        raise ValueError(f"arc: max_steps={max_steps}; it must be at least 1")
    if max_trials == 0:
        raise ValueError("arc: max_trials=0 allows no submission; use 1 or more, or -1 for any")
    if demonstrations < 0 or start_edits < 0:
        raise ValueError(
            f"arc: demonstrations={demonstrations} and start_edits={start_edits} must be 0 or more"
        )
    buffer = tasks if isinstance(tasks, TaskBuffer) else pack_tasks(tuple(tasks))
    if evaluation and start in ("target_blank", "curriculum"):
        raise ValueError(
            f'arc: start={start!r} tells of the answer, which evaluation hides; use "input" or '
            '"blank"'
        )
    if evaluation and not np.all(np.asarray(buffer.tests_count) > 0):
        raise ValueError("arc: evaluation needs test pairs with answers in every task")
    total = NUM_EXTENDED_OPERATIONS if extended else NUM_OPERATIONS
    mask = np.ones(total, bool)
    if operations is not None:
        for operation in operations:
            if not 0 <= operation < total:
                raise ValueError(
                    f"arc: there is no operation {operation}; they are 0 to {total - 1}"
                )
        mask = np.isin(np.arange(total), list(operations))
    return ArcConfig(
        tasks=buffer,
        operation_mask=jnp.asarray(mask),
        max_steps=max_steps,
        max_trials=max_trials,
        start_edits=start_edits,
        evaluation=evaluation,
        rules=rules,  # pyright: ignore[reportArgumentType]
        extended=extended,
        start=start,  # pyright: ignore[reportArgumentType]
        demonstrations=demonstrations,
        **rewards,
    )
