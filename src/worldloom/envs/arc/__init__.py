"""Reinforcement learning on the Abstraction and Reasoning Corpus: edit a grid until it is right.

Worlds are batch first and pure; `types` documents the state, `operations` the rules.
"""

from worldloom.envs.arc.actions import (
    check_bounds_jax,
    create_bbox_action,
    validate_action_jax,
)
from worldloom.envs.arc.augment import augment
from worldloom.envs.arc.config import make_config
from worldloom.envs.arc.environment import (
    arc_reset,
    arc_step,
    batch_reset,
    batch_step,
    batch_step_donating,
    create_observation,
    safe_arc_step,
)
from worldloom.envs.arc.episodes import (
    RandomAgent,
    Trajectory,
    VectorizedRandomAgent,
    create_batch_episode_runner,
    greedy_editor,
    run_episode_batch,
)
from worldloom.envs.arc.load import TASK_SETS, load
from worldloom.envs.arc.submission import write_submission
from worldloom.envs.arc.tasks import Pair, Task, pack_tasks
from worldloom.envs.arc.taskset import TaskSet
from worldloom.envs.arc.types import (
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
