"""Reinforcement learning on the Abstraction and Reasoning Corpus: edit a grid until it is right.

Worlds are batch first and pure; `types` documents the state, `operations` the rules. Everything is
imported when first used: importing this package imports no jax.
"""
# ruff: noqa: F403, F405  what is exported is listed once, in __all__

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldloom.suites.arc.actions import *
    from worldloom.suites.arc.augmentation import *
    from worldloom.suites.arc.environment import *
    from worldloom.suites.arc.episodes import *
    from worldloom.suites.arc.sources import *
    from worldloom.suites.arc.submission import *
    from worldloom.suites.arc.tasks import *
    from worldloom.suites.arc.types import *

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
    "environment",
    "episodes",
    "sources",
    "submission",
    "tasks",
    "types",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            names = vars(importlib.import_module(f"{__name__}.{module}"))
            if name in names:
                return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
