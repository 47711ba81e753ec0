"""State, configuration, actions and answers of the ARC worlds, in one place."""

from typing import Literal

import jax.numpy as jnp
from flax import struct

from worldloom.core.types import Array, PyTree

Rules = Literal["edit", "o2arc"]
Start = Literal["input", "blank", "target_blank", "curriculum"]
NUM_OPERATIONS = 35
NUM_EXTENDED_OPERATIONS = 41
# The ten colours of ARC as its players know them; 0 is the background.
COLORS = {
    "black": "#000000",
    "blue": "#1e93ff",
    "red": "#f93c31",
    "green": "#4fcc30",
    "yellow": "#ffdc00",
    "grey": "#999999",
    "magenta": "#e53aa3",
    "orange": "#ff851b",
    "sky": "#87d8f1",
    "maroon": "#921231",
}
COLOR_NAMES, PALETTE = tuple(COLORS), tuple(COLORS.values())


class TaskBuffer(struct.PyTreeNode):
    """P pairs of T tasks, packed: about 1 KB a pair. Made by `tasks.pack_tasks` or `load`.

    The pairs of a task lie together, demonstrations first.
    """

    grids: Array  # uint32 (P, 2, 4, S): input and target
    sizes: Array  # int32 (P, 2, 2): their heights and widths
    task: Array  # int32 (P,): the task each pair belongs to
    demos_start: Array  # int32 (T,): first demonstration pair
    demos_count: Array  # int32 (T,)
    tests_start: Array  # int32 (T,)
    tests_count: Array  # int32 (T,)
    identity: Array  # uint32 (): differs between buffers of different contents
    grid_shape: tuple[int, int] = struct.field(pytree_node=False)

    @property
    def num_pairs(self) -> int:
        return self.task.shape[-1]

    @property
    def num_tasks(self) -> int:
        return self.demos_start.shape[-1]

    @property
    def words(self) -> int:
        return self.grids.shape[-1]


class ArcConfig(struct.PyTreeNode):
    """The rules as a pytree: everything but the last four fields may be traced or changed
    without compiling again. Made by `make_config`, which checks it."""

    tasks: TaskBuffer
    operation_mask: Array  # bool (N,): what worlds allow from their reset on
    similarity_weight: Array | float = 1.0
    step_penalty: Array | float = -0.01
    success_bonus: Array | float = 10.0
    wrong_penalty: Array | float = -1.0
    invalid_penalty: Array | float = -0.1
    max_steps: Array | int = 100
    max_trials: Array | int = 3
    start_edits: Array | int = 3  # of the curriculum
    evaluation: Array | bool = False  # test pairs, and no reward for similarity
    rules: Rules = struct.field(pytree_node=False, default="edit")
    extended: bool = struct.field(pytree_node=False, default=False)
    start: Start = struct.field(pytree_node=False, default="input")
    demonstrations: int = struct.field(pytree_node=False, default=0)  # shown in observations

    @property
    def grid_shape(self) -> tuple[int, int]:
        return self.tasks.grid_shape

    @property
    def num_operations(self) -> int:
        return self.operation_mask.shape[-1]


class ArcState(struct.PyTreeNode):
    """One world, or a batch of them on a leading axis: about 1 KB each with 30x30 grids.

    Input and target are not in it: they are read from `ArcConfig.tasks`.
    """

    grid: Array  # uint32 (4, S): the working grid as bit-planes (see `planes`)
    size: Array  # int32 (2,): height and width of its active area, at the canvas's top left
    clipboard: Array  # uint32 (4, S)
    clipboard_size: Array  # int32 (2,): (0, 0) while nothing has been copied
    pair: Array  # int32 (): row of the task buffer that holds the input and the target
    step_count: Array  # int32 (): steps taken in this episode
    trials: Array  # int32 (): submissions left; negative: as many as one likes
    similarity: Array  # float32 (): of the working grid to the target
    solved: Array  # bool (): a correct grid has been submitted
    operation_mask: Array  # bool (N,): what this world allows
    tasks_id: Array  # uint32 (): which buffer `pair` points into
    undo: PyTree = None  # grid and size before the last step, with extended operations only
    objects: PyTree = None  # `o2arc.ObjectState`, under "o2arc" only


class Observation(struct.PyTreeNode):
    """What an agent may see. Nothing in it depends on the target of its pair.

    Grids are int8 (H, W) with 0 outside of their active area, whose size stands beside them.
    """

    grid: Array
    size: Array  # int32 (2,)
    input: Array
    input_size: Array
    clipboard: Array
    clipboard_size: Array
    step_count: Array
    trials: Array
    operation_mask: Array  # bool (N,)
    demonstrations: PyTree = None  # Demonstrations of the same task, if asked for
    selected: Array | None = None  # bool (H, W): the active object, under "o2arc" only

    def __jax_array__(self) -> Array:
        """The working grid: what an observation is where one array is asked for, as in JaxARC."""
        return self.grid


class Demonstrations(struct.PyTreeNode):
    """K other demonstration pairs of the task; `present` says which of the K there are."""

    input: Array  # int8 (K, H, W)
    input_size: Array  # int32 (K, 2)
    output: Array  # int8 (K, H, W)
    output_size: Array  # int32 (K, 2)
    present: Array  # bool (K,)


class StepInfo(struct.PyTreeNode):
    """What happened in a step. For people and statistics: it knows the answer."""

    similarity: Array
    similarity_improvement: Array
    operation_type: Array  # the operation's number; -1 if the action was invalid
    step_count: Array
    episode_done: Array
    terminated: Array
    truncated: Array
    solved: Array
    size_correct: Array


# Actions: an operation and the cells it works on. Each may have a leading batch axis. ----------


class MaskAction(struct.PyTreeNode):
    operation: Array  # int32 ()
    selection: Array  # bool (H, W)


class BoxAction(struct.PyTreeNode):
    """Corners inclusive, from 0; never sorted or clipped: a box that is none is invalid."""

    operation: Array
    r1: Array
    c1: Array
    r2: Array
    c2: Array


class PointAction(struct.PyTreeNode):
    operation: Array
    row: Array
    column: Array


class FlatAction(struct.PyTreeNode):
    """operation * H * W + row * W + column in one integer; a bare integer array means the same."""

    index: Array


class ObjectAction(struct.PyTreeNode):
    """operation * S + selector in one integer, for S selectors of what is in the grid
    (see `selectors`)."""

    index: Array


Action = MaskAction | BoxAction | PointAction | FlatAction | ObjectAction | Array


def int32(x: Array | int) -> Array:
    return jnp.asarray(x, jnp.int32)
