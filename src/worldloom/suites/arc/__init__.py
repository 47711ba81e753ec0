"""Reinforcement learning on the Abstraction and Reasoning Corpus: edit a grid until it is right.

Worlds are batch first and pure; `types` documents the state, `operations` the rules. Everything is
imported when first used: importing this package imports no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldloom.suites.arc.actions import (
        check_bounds_jax,
        create_bbox_action,
        validate_action_jax,
    )
    from worldloom.suites.arc.augmentation import augment
    from worldloom.suites.arc.config import make_config
    from worldloom.suites.arc.environment import (
        arc_reset,
        arc_step,
        batch_reset,
        batch_step,
        batch_step_donating,
        create_observation,
        safe_arc_step,
    )
    from worldloom.suites.arc.episodes import (
        RandomAgent,
        Trajectory,
        VectorizedRandomAgent,
        create_batch_episode_runner,
        greedy_editor,
        run_episode_batch,
    )
    from worldloom.suites.arc.sources import TASK_SETS, load
    from worldloom.suites.arc.submission import write_submission
    from worldloom.suites.arc.tasks import Pair, Task, pack_tasks
    from worldloom.suites.arc.taskset import TaskSet
    from worldloom.suites.arc.types import (
        NUM_EXTENDED_OPERATIONS,
        NUM_OPERATIONS,
        ArcConfig,
        ArcState,
        BoxAction,
        FlatAction,
        MaskAction,
        Observation,
        PointAction,
        StepInfo,
        TaskBuffer,
    )

__all__ = [
    "NUM_EXTENDED_OPERATIONS",
    "NUM_OPERATIONS",
    "TASK_SETS",
    "ArcConfig",
    "ArcState",
    "BoxAction",
    "FlatAction",
    "MaskAction",
    "Observation",
    "Pair",
    "PointAction",
    "RandomAgent",
    "StepInfo",
    "Task",
    "TaskBuffer",
    "TaskSet",
    "Trajectory",
    "VectorizedRandomAgent",
    "arc_reset",
    "arc_step",
    "augment",
    "batch_reset",
    "batch_step",
    "batch_step_donating",
    "check_bounds_jax",
    "create_batch_episode_runner",
    "create_bbox_action",
    "create_observation",
    "greedy_editor",
    "load",
    "make_config",
    "pack_tasks",
    "run_episode_batch",
    "safe_arc_step",
    "validate_action_jax",
    "write_submission",
]
_MODULES = (
    "actions",
    "augmentation",
    "config",
    "environment",
    "episodes",
    "sources",
    "submission",
    "tasks",
    "taskset",
    "types",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            names = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in names:
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
