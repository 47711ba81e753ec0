"""Object actions: what can be selected in a grid, compared with a slow and obvious search."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.arc import make_config, pack_tasks, planes, selectors
from worldloom.suites.arc.environment import batch_step, start_at
from worldloom.suites.arc.selectors import COMPONENTS, FIRST, NAMED, count_selectors
from worldloom.suites.arc.tasks import Pair, Task
from worldloom.suites.arc.types import ObjectAction
from worldloom.suites.arc.world import make

SHAPE = (7, 6)


def regions(grid, colours):
    """Connected sets of cells of one colour, found one cell after the other."""
    left, found = {(r, c) for r, c in np.ndindex(grid.shape) if grid[r, c] in colours}, []
    while left:
        todo = [min(left)]
        region = set()
        while todo:
            cell = todo.pop()
            if cell not in left or (region and grid[cell] != grid[min(region)]):
                continue
            left.remove(cell)
            region.add(cell)
            r, c = cell
            todo += [(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
        found.append(region)
    return found


def as_mask(cells):
    mask = np.zeros(SHAPE, bool)
    for cell in cells:
        mask[cell] = True
    return mask


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(1)
    sizes = rng.integers(3, np.array(SHAPE) + 1, (40, 2))
    grids = np.where(rng.random((40, *SHAPE)) < 0.4, 0, rng.integers(0, 4, (40, *SHAPE)))
    for grid, (h, w) in zip(grids, sizes, strict=True):
        grid[h:], grid[:, w:] = 0, 0
    found = jax.jit(selectors.selectable)(jnp.asarray(grids), jnp.asarray(sizes))
    return grids, sizes, jax.device_get(found)


def test_components_are_connected_cells_of_a_colour_the_largest_first(cases):
    grids, sizes, found = cases
    for grid, (h, w), cells in zip(grids, sizes, found.cells, strict=True):
        parts = sorted(regions(grid[:h, :w], range(1, 10)), key=lambda p: (-len(p), min(p)))
        ours = cells[FIRST["component"] :][:COMPONENTS]
        for n in range(COMPONENTS):
            np.testing.assert_array_equal(ours[n], as_mask(parts[n] if n < len(parts) else ()))


def test_enclosed_cells_have_no_way_out(cases):
    grids, sizes, found = cases
    some = 0
    for grid, (h, w), cells in zip(grids, sizes, found.cells, strict=True):
        inside = [
            part
            for part in regions(grid[:h, :w], [0])
            if all(0 < r < h - 1 and 0 < c < w - 1 for r, c in part)
        ]
        expected = as_mask(set().union(*inside))
        np.testing.assert_array_equal(cells[FIRST["enclosed"]], expected)
        some += expected.any()
    assert some > 3


def test_boxes_and_bands_are_around_their_colour(cases):
    grids, sizes, found = cases
    for grid, (h, w), cells in zip(grids, sizes, found.cells, strict=True):
        for colour in range(10):
            rows, columns = np.nonzero(grid[:h, :w] == colour)
            box, band, column = np.zeros((3, *SHAPE), bool)
            if len(rows):
                box[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
                band[rows.min() : rows.max() + 1, :w] = True
                column[:h, columns.min() : columns.max() + 1] = True
            for kind, expected in (
                ("box of colour", box),
                ("rows of colour", band),
                ("columns of colour", column),
            ):
                np.testing.assert_array_equal(cells[FIRST[kind] + colour], expected)


def test_what_is_usable_is_there_and_is_no_other_again(cases):
    _, _, found = cases
    for cells, usable in zip(found.cells, found.usable, strict=True):
        kinds = [cell.tobytes() for cell in cells]
        for n in range(NAMED):
            assert usable[n] == (cells[n].any() and kinds[n] not in kinds[:n])


def test_an_object_action_does_what_its_cells_do_and_one_of_nothing_is_invalid():
    grid = np.zeros((4, 4), np.int8)
    grid[0, :2], grid[2, 2], grid[3, 3] = 3, 3, 7
    task = Task("t", (Pair(grid, grid),), ())
    rules = make_config(pack_tasks([task], (4, 4)), extended=True)
    states = start_at(jnp.zeros(3, jnp.int32), jax.random.split(jax.random.key(0), 3), rules)
    total = count_selectors((4, 4))
    actions = [
        5 * total + FIRST["component"],
        5 * total + FIRST["colour"] + 9,
        5 * total + NAMED + 5,
    ]
    new, _, _, _, info = batch_step(states, ObjectAction(jnp.array(actions)), rules)
    cells = np.asarray(planes.unpack(new.grid, (4, 4)))
    largest, point = grid.copy(), grid.copy()
    largest[0, :2], point[1, 1] = 5, 5
    np.testing.assert_array_equal(cells, [largest, grid, point])
    assert info.operation_type.tolist() == [5, -1, 5]


def test_a_world_of_object_actions_plays_numbers():
    grid = np.zeros((3, 3), np.int8)
    answer = grid.copy()
    answer[:] = 4
    task = Task("t", (Pair(grid, answer),), (Pair(grid, answer),))
    env = make([task], action="object")
    params, total = env.default_params(), count_selectors((3, 3))
    assert env.spec.action.n == 35 * total
    state, _ = env.reset(jax.random.key(0), params)
    state, after = env.step(jax.random.key(0), state, jnp.int32(4 * total), params)
    assert float(after.info.similarity) == 1.0
    state, after = env.step(jax.random.key(0), state, jnp.int32(34 * total), params)
    assert bool(after.info.solved)
