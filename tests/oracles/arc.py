"""The rules of the ARC worlds in plain numpy, one cell at a time: the oracle of `envs.arc`.

A grid here is an int array (h, w) whose shape *is* its active area; the canvas appears only where
a rule speaks of it. A selection is a bool array (H, W) over the whole canvas, or None where the
action names no cells of the canvas at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Grid = NDArray[np.int_]  # (h, w), colours 0 .. 9
Cells = NDArray[np.bool_]  # (h, w) or (H, W): which cells

MOVES = {20: (-1, 0), 21: (1, 0), 22: (0, -1), 23: (0, 1)}
# Where cell (i, j) of a box of p x q goes, counted from the box's top-left corner.
TURNS: dict[int, Callable[[int, int, int, int], tuple[int, int]]] = {
    24: lambda i, j, p, q: (j, p - 1 - i),
    25: lambda i, j, p, q: (q - 1 - j, i),
    26: lambda i, j, p, q: (i, q - 1 - j),
    27: lambda i, j, p, q: (p - 1 - i, j),
    35: lambda i, j, p, q: (p - 1 - i, q - 1 - j),
    36: lambda i, j, p, q: (j, i),
    37: lambda i, j, p, q: (q - 1 - j, p - 1 - i),
}
COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE, SUBMIT = range(28, 35)
CROP, UNDO, PASTE_NONZERO = range(38, 41)


@dataclass(frozen=True)
class EditRules:
    """What is the same for all worlds of a run."""

    similarity_weight: float = 1.0
    step_penalty: float = -0.01
    success_bonus: float = 10.0
    wrong_penalty: float = -1.0
    invalid_penalty: float = -0.1
    max_steps: int = 100
    evaluation: bool = False


def _nothing() -> Grid:
    return np.zeros((0, 0), int)


@dataclass(frozen=True)
class World:
    """One world. `before` is the grid that undo brings back; `allowed` (N,) is its mask."""

    grid: Grid
    input: Grid
    target: Grid
    before: Grid
    allowed: Cells
    trials: int
    clipboard: Grid = field(default_factory=_nothing)
    steps: int = 0
    solved: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a step reports beside the reward."""

    similarity: float
    improvement: float
    operation_type: int
    step_count: int
    terminated: bool
    truncated: bool
    solved: bool
    size_correct: bool

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


def start(grid: Grid, input: Grid, target: Grid, allowed: Cells, trials: int) -> World:
    """A fresh world that begins with `grid`."""
    return World(grid=grid, input=input, target=target, before=grid, allowed=allowed, trials=trials)


# Actions: each form gives an operation and the selected cells, or None for an invalid selection -


def from_mask(operation: int, mask: Cells) -> tuple[int, Cells]:
    """Any set of cells (H, W), the empty one included."""
    return operation, mask


def from_box(
    operation: int, r1: int, c1: int, r2: int, c2: int, canvas: tuple[int, int]
) -> tuple[int, Cells | None]:
    """Corners inclusive and in order, on the canvas."""
    height, width = canvas
    if not (0 <= r1 <= r2 < height and 0 <= c1 <= c2 < width):
        return operation, None
    mask = np.zeros(canvas, bool)
    mask[r1 : r2 + 1, c1 : c2 + 1] = True
    return operation, mask


def from_point(
    operation: int, row: int, column: int, canvas: tuple[int, int]
) -> tuple[int, Cells | None]:
    """One cell of the canvas."""
    return from_box(operation, row, column, row, column, canvas)


def from_flat(index: int, canvas: tuple[int, int]) -> tuple[int, Cells | None]:
    """operation * H * W + row * W + column. Out of range is an operation that does not exist."""
    height, width = canvas
    operation, cell = divmod(index, height * width)
    return from_point(operation, *divmod(cell, width), canvas)


# Cells and boxes -------------------------------------------------------------------------------


def bounding_box(cells: Cells) -> tuple[int, int, int, int]:
    """(top, left, bottom, right), inclusive, of cells that are not empty."""
    rows, columns = np.nonzero(cells)
    return int(rows.min()), int(columns.min()), int(rows.max()), int(columns.max())


def cut_to_area(selection: Cells, grid: Grid) -> Cells:
    """A: the selected cells (h, w) that lie in the active area."""
    height, width = grid.shape
    return selection[:height, :width]


def _inside(row: int, column: int, grid: Grid) -> bool:
    return 0 <= row < grid.shape[0] and 0 <= column < grid.shape[1]


# Operations on the grid: each returns a new grid ------------------------------------------------


def fill(grid: Grid, selected: Cells, colour: int) -> Grid:
    return np.where(selected, colour, grid)


def flood_fill(grid: Grid, selected: Cells, colour: int) -> Grid:
    """The 4-connected region of equal colour around the one selected cell."""
    if selected.sum() != 1:
        return grid
    (seed,) = map(tuple, np.argwhere(selected).tolist())
    old = grid[seed]
    if old == colour:
        return grid
    out = grid.copy()
    stack = [seed]
    while stack:
        row, column = stack.pop()
        if not _inside(row, column, out) or out[row, column] != old:
            continue
        out[row, column] = colour
        stack += [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return out


def _redraw(grid: Grid, selected: Cells, place: Callable[[int, int], tuple[int, int]]) -> Grid:
    """The object leaves its place, then each of its cells is drawn where `place` says."""
    object_cells = np.argwhere(selected & (grid != 0)).tolist()
    out = grid.copy()
    for row, column in object_cells:
        out[row, column] = 0
    for row, column in object_cells:
        new_row, new_column = place(row, column)
        if _inside(new_row, new_column, out):
            out[new_row, new_column] = grid[row, column]
    return out


def move(grid: Grid, selected: Cells, down: int, right: int) -> Grid:
    return _redraw(grid, selected, lambda row, column: (row + down, column + right))


def turn(grid: Grid, selected: Cells, operation: int) -> Grid:
    """Rotations, flips and transpositions of the object within the box around the selection."""
    top, left, bottom, right = bounding_box(selected)
    rows, columns = bottom - top + 1, right - left + 1

    def place(row: int, column: int) -> tuple[int, int]:
        i, j = TURNS[operation](row - top, column - left, rows, columns)
        return top + i, left + j

    return _redraw(grid, selected, place)


def copied(grid: Grid, selected: Cells) -> Grid:
    """What the clipboard holds after copying: the box, with 0 for cells that are not selected."""
    top, left, bottom, right = bounding_box(selected)
    return np.where(selected, grid, 0)[top : bottom + 1, left : right + 1]


def paste(grid: Grid, selected: Cells, clipboard: Grid, zeros_too: bool) -> Grid:
    """The clipboard drawn from the selection's top-left corner on."""
    top, left, _, _ = bounding_box(selected)
    out = grid.copy()
    for (i, j), colour in np.ndenumerate(clipboard):
        if _inside(top + i, left + j, out) and (zeros_too or colour != 0):
            out[top + i, left + j] = colour
    return out


def resize(grid: Grid, selection: Cells) -> Grid:
    """The area that reaches to the last row and column of a selection on the canvas."""
    _, _, bottom, right = bounding_box(selection)
    out = np.zeros((bottom + 1, right + 1), int)
    kept = grid[: bottom + 1, : right + 1]
    out[: kept.shape[0], : kept.shape[1]] = kept
    return out


def crop(grid: Grid, selected: Cells) -> Grid:
    top, left, bottom, right = bounding_box(selected)
    return grid[top : bottom + 1, left : right + 1].copy()


def apply(world: World, operation: int, selection: Cells) -> World:
    """Grid and clipboard after a valid operation."""
    grid = world.grid
    selected = cut_to_area(selection, grid)
    if operation == SUBMIT:
        return world
    if operation == COPY_INPUT:
        return replace(world, grid=world.input)
    if operation == UNDO:
        return replace(world, grid=world.before)
    if operation == RESIZE:
        return replace(world, grid=resize(grid, selection)) if selection.any() else world
    if operation == CLEAR and not selection.any():
        return replace(world, grid=np.zeros_like(grid))
    if not selected.any():
        return world
    if operation < 10:
        return replace(world, grid=fill(grid, selected, operation))
    if operation < 20:
        return replace(world, grid=flood_fill(grid, selected, operation - 10))
    if operation in MOVES:
        return replace(world, grid=move(grid, selected, *MOVES[operation]))
    if operation in TURNS:
        return replace(world, grid=turn(grid, selected, operation))
    if operation == COPY:
        return replace(world, clipboard=copied(grid, selected))
    if operation == CUT:
        return replace(world, clipboard=copied(grid, selected), grid=fill(grid, selected, 0))
    if operation == CLEAR:
        return replace(world, grid=fill(grid, selected, 0))
    if operation == CROP:
        return replace(world, grid=crop(grid, selected))
    if operation in (PASTE, PASTE_NONZERO):
        return replace(world, grid=paste(grid, selected, world.clipboard, operation == PASTE))
    raise ValueError(f"reference.arc: there is no operation {operation}; they are 0 to 40")


# Scores and the step ---------------------------------------------------------------------------


def similarity(grid: Grid, target: Grid) -> float:
    """Equal cells inside both areas over cells in the union of both areas."""
    height, width = np.minimum(grid.shape, target.shape)
    equal = int((grid[:height, :width] == target[:height, :width]).sum())
    union = grid.size + target.size - int(height) * int(width)
    return equal / union


def step(
    world: World, operation: int, selection: Cells | None, rules: EditRules
) -> tuple[World, float, Outcome]:
    """One action: the world after it, its reward, and the rest of what a step reports."""
    known = 0 <= operation < len(world.allowed) and bool(world.allowed[operation])
    new = world
    reward = rules.step_penalty
    if selection is None or not known:
        valid = False
        reward += rules.invalid_penalty
    else:
        valid = True
        new = apply(world, operation, selection)
        if operation != SUBMIT:
            new = replace(new, before=world.grid)

    old_score, score = similarity(world.grid, world.target), similarity(new.grid, new.target)
    if not rules.evaluation:
        reward += rules.similarity_weight * (score - old_score)
    if valid and operation == SUBMIT:
        correct = np.array_equal(new.grid, new.target)
        reward += rules.success_bonus if correct else rules.wrong_penalty
        new = replace(
            new,
            solved=new.solved or correct,
            trials=new.trials - 1 if new.trials > 0 else new.trials,
        )
    new = replace(new, steps=world.steps + 1)
    outcome = Outcome(
        similarity=score,
        improvement=score - old_score,
        operation_type=operation if valid else -1,
        step_count=new.steps,
        terminated=new.solved or new.trials == 0,
        truncated=new.steps >= rules.max_steps,
        solved=new.solved,
        size_correct=new.grid.shape == new.target.shape,
    )
    return new, reward, outcome
