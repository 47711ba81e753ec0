"""Random ARC worlds and actions that make every rule matter: for comparing two sets of worlds.

Grids have few colours, targets are sometimes met, and selections are mostly small, often one
cell, and near the active area, so that operations seldom do nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from oracles import arc
from oracles.arc import Cells, Grid, World
from worldloom.suites.arc import BoxAction, FlatAction, MaskAction, Pair, PointAction, Task

Rng = np.random.Generator
Corners = tuple[int, int, int, int]

# Random worlds ---------------------------------------------------------------------------------


def _random_size(rng: Rng, canvas: tuple[int, int]) -> tuple[int, int]:
    """Mostly small, sometimes as large as the canvas."""
    height, width = canvas if rng.random() < 0.25 else np.minimum(canvas, 8)
    return int(rng.integers(1, height + 1)), int(rng.integers(1, width + 1))


def random_grid(rng: Rng, canvas: tuple[int, int]) -> Grid:
    """Few colours, so that regions are large and targets are sometimes met."""
    colours = rng.choice(10, size=rng.integers(1, 5))
    return rng.choice(colours, size=_random_size(rng, canvas))


def random_pair(rng: Rng, canvas: tuple[int, int]) -> Pair:
    """An input, and a target that is the same, differs in one cell, or is unrelated."""
    given = random_grid(rng, canvas)
    kind = rng.integers(3)
    answer = random_grid(rng, canvas) if kind == 0 else given.copy()
    if kind == 1:
        answer[rng.integers(given.shape[0]), rng.integers(given.shape[1])] = rng.integers(10)
    return Pair(given, answer)


def random_tasks(rng: Rng, canvas: tuple[int, int], count: int) -> list[Task]:
    """Tasks of two demonstrations and one test each, so that every buffer has the same shape."""

    def pairs(number: int) -> tuple[Pair, ...]:
        return tuple(random_pair(rng, canvas) for _ in range(number))

    return [Task(f"random {i}", pairs(2), pairs(1)) for i in range(count)]


# Random actions --------------------------------------------------------------------------------


def random_operation(rng: Rng, world: World) -> int:
    """Any operation, now and then one that does not exist; a met target is often submitted."""
    total = len(world.allowed)
    draw = rng.random()
    if draw < 0.03:
        return int(rng.choice([-7, -1, total, total + 5]))
    if draw < 0.3 and np.array_equal(world.grid, world.target):
        return arc.SUBMIT
    return int(rng.integers(total))


def random_box(rng: Rng, size: tuple[int, int], canvas: tuple[int, int]) -> Corners:
    """Ordered corners: one cell, a small box about the active area, all of it, or anywhere."""
    draw = rng.random()
    near = np.minimum(np.array(size) + 1, canvas)
    if draw < 0.4:  # one cell, seldom beside the area
        row, column = rng.integers(0, near if draw < 0.05 else size)
        return int(row), int(column), int(row), int(column)
    if draw < 0.85:
        first = rng.integers(0, near)
        last = np.minimum(first + rng.integers(0, 5, 2), np.array(canvas) - 1)
        return int(first[0]), int(first[1]), int(last[0]), int(last[1])
    if draw < 0.92:
        return 0, 0, size[0] - 1, size[1] - 1
    if draw < 0.95:
        return 0, 0, canvas[0] - 1, canvas[1] - 1
    rows = np.sort(rng.integers(0, canvas[0], 2))
    columns = np.sort(rng.integers(0, canvas[1], 2))
    return int(rows[0]), int(columns[0]), int(rows[1]), int(columns[1])


def random_invalid_box(rng: Rng, canvas: tuple[int, int]) -> Corners:
    """A box with corners out of order, below 0, or off the canvas."""
    height, width = canvas
    cases = [
        (1, 0, 0, width - 1), (0, 1, height - 1, 0), (-1, 0, 0, 0), (0, -3, 0, 0),
        (0, 0, height, 0), (0, 0, 0, width), (height, width, height, width), (0, 0, 99, 99),
    ]  # fmt: skip
    return cases[rng.integers(len(cases))]


def random_mask(rng: Rng, size: tuple[int, int], canvas: tuple[int, int]) -> Cells:
    """A box, a box with holes, nothing, or everything."""
    mask = np.zeros(canvas, bool)
    draw = rng.random()
    if draw < 0.07:
        return mask
    r1, c1, r2, c2 = random_box(rng, size, canvas)
    mask[r1 : r2 + 1, c1 : c2 + 1] = True
    if draw < 0.4:
        mask &= rng.random(canvas) < 0.6
    elif draw < 0.45:
        mask = rng.random(canvas) < 0.05
    return mask


@dataclass(frozen=True)
class Drawn:
    """One action in both worlds' terms."""

    operation: int
    selection: Cells | None
    numbers: tuple  # the fields of the compiled form, in its order


def draw_action(
    rng: Rng, form: str, world: World, canvas: tuple[int, int], operation: int | None = None
) -> Drawn:
    """A random action of the form for the world, of a random operation unless one is given."""
    if operation is None:
        operation = random_operation(rng, world)
    size: tuple[int, int] = world.grid.shape  # pyright: ignore[reportAssignmentType]
    if form == "mask":
        mask = random_mask(rng, size, canvas)
        return Drawn(*arc.from_mask(operation, mask), (operation, mask))
    bad = rng.random() < 0.04
    if form == "box":
        box = random_invalid_box(rng, canvas) if bad else random_box(rng, size, canvas)
        return Drawn(*arc.from_box(operation, *box, canvas), (operation, *box))
    row, column = map(int, rng.integers(0, canvas if rng.random() < 0.05 else size))
    if form == "flat":
        index = (operation * canvas[0] + row) * canvas[1] + column
        return Drawn(*arc.from_flat(index, canvas), (index,))
    if bad:
        outside = [(-1, 0), (0, -1), (canvas[0], 0), (0, canvas[1])]
        row, column = outside[rng.integers(len(outside))]
    return Drawn(*arc.from_point(operation, row, column, canvas), (operation, row, column))


FORM_CLASSES: dict[str, Callable] = {
    "mask": MaskAction, "box": BoxAction, "point": PointAction, "flat": FlatAction,
}  # fmt: skip


def compiled_action(form: str, drawn: Sequence[Drawn]):
    """The actions of B worlds as one pytree with a leading axis."""
    columns = zip(*(action.numbers for action in drawn), strict=True)
    return FORM_CLASSES[form](*(jnp.asarray(np.array(column)) for column in columns))
