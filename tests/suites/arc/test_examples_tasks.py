"""The tasks that the project ships: small, varied, and each true to its rule."""

from collections import deque

import numpy as np
import pytest

from worldloom.suites.arc.sources import EXAMPLES, load
from worldloom.suites.arc.tasks import mean_edits


def recolour(grid):
    return np.where(grid == 1, 2, grid)


def move_down(grid):
    assert not grid[-1].any(), "what moves must have room"
    return np.roll(grid, 1, axis=0)


def fall(grid):
    columns = [sorted(column, key=lambda colour: colour != 0) for column in grid.T.tolist()]
    return np.array(columns).T


def fill_enclosed(grid):
    """Walks in from the border; where one cannot come by sides is inside."""
    around = np.pad(grid, 1)
    reached, queue = {(0, 0)}, deque([(0, 0)])
    while queue:
        r, c = queue.popleft()
        for cell in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
            inside = 0 <= cell[0] < around.shape[0] and 0 <= cell[1] < around.shape[1]
            if inside and around[cell] == 0 and cell not in reached:
                reached.add(cell)
                queue.append(cell)
    filled = grid.copy()
    for r, c in zip(*np.nonzero(grid == 0), strict=True):
        if (r + 1, c + 1) not in reached:
            filled[r, c] = 4
    return filled


def crop_to_object(grid):
    rows, columns = np.nonzero(grid.any(1))[0], np.nonzero(grid.any(0))[0]
    return grid[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def connect(grid):
    joined = grid.copy()
    for colour in set(grid[grid > 0].tolist()):
        (r1, c1), (r2, c2) = np.argwhere(grid == colour)
        joined[r1 : r2 + 1, c1 : c2 + 1] = colour
    return joined


def draw_frame(grid):
    return np.pad(grid[1:-1, 1:-1], 1, constant_values=5)


def count_cells(grid):
    coloured = grid[grid > 0]
    assert len(set(coloured.tolist())) == 1
    return coloured[None]


RULES = {
    "connect": connect,
    "count-cells": count_cells,
    "crop-to-object": crop_to_object,
    "double-size": lambda grid: grid.repeat(2, axis=0).repeat(2, axis=1),
    "draw-frame": draw_frame,
    "fall": fall,
    "fill-enclosed": fill_enclosed,
    "flip-columns": np.fliplr,
    "mirror-beside": lambda grid: np.hstack([grid, np.fliplr(grid)]),
    "move-down": move_down,
    "recolour": recolour,
    "rotate-clockwise": lambda grid: np.rot90(grid, -1),
}


@pytest.fixture(scope="module")
def examples():
    return load("examples")


def test_there_are_a_dozen_under_the_names_of_their_files(examples):
    assert examples.ids == tuple(RULES)
    assert sorted(file.stem for file in EXAMPLES.iterdir()) == list(RULES)


@pytest.mark.parametrize("name", RULES)
def test_every_output_follows_from_its_input_by_the_rule(name, examples):
    task = examples[name]
    assert len(task.demos) == 3
    assert len(task.tests) == 1
    for pair in task.pairs:
        np.testing.assert_array_equal(pair.output, RULES[name](pair.input))
        assert not np.array_equal(pair.input, pair.output)


def test_no_test_input_is_shown_in_a_demonstration(examples):
    for task in examples:
        inputs = [(pair.input.shape, pair.input.tobytes()) for pair in task.pairs]
        assert len(set(inputs)) == len(inputs), task.name


def test_they_are_small_enough_for_a_small_canvas(examples):
    buffer = examples.buffer()
    assert buffer.grid_shape == (6, 6)
    assert buffer.words == 8
    assert buffer.grids.nbytes < 100_000


def test_they_are_varied(examples):
    statistics = examples.statistics()
    assert 0.3 < statistics.same_size < 0.8
    assert statistics.growing > 0
    assert all(share > 0 for share in statistics.colours[:9])
    few = [task.name for task in examples if mean_edits(task) <= 5]
    assert {"recolour", "fill-enclosed", "connect"} <= set(few)
