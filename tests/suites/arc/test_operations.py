"""Every operation on grids worked out by hand (`operations.txt`), and each way of being invalid."""

from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.arc import (
    NUM_EXTENDED_OPERATIONS,
    BoxAction,
    FlatAction,
    MaskAction,
    Pair,
    PointAction,
    Task,
    batch_step,
    make_config,
    pack_tasks,
    validate_action_jax,
)
from worldloom.suites.arc.actions import as_action
from worldloom.suites.arc.environment import start_at
from worldloom.suites.arc.operations import NAMES
from worldloom.suites.arc.planes import pack_numpy

CANVAS = (30, 30)
NOTHING = np.zeros((0, 0), int)


@dataclass(frozen=True)
class Case:
    name: str
    operation: int
    grid: np.ndarray
    select: np.ndarray  # bool, the canvas
    gives: np.ndarray
    clip: np.ndarray = field(default_factory=NOTHING.copy)
    clips: np.ndarray | None = None  # None: as before
    input: np.ndarray = field(default_factory=lambda: np.ones((1, 1), int))
    before: np.ndarray | None = None


def on_canvas(cells, dtype=int):
    """The cells at the top left of a canvas of zeros."""
    out = np.zeros(CANVAS, dtype)
    out[: cells.shape[0], : cells.shape[1]] = cells
    return out


def read_selection(rows):
    if rows == ["none"]:
        return np.zeros(CANVAS, bool)
    if rows == ["full"]:
        return np.ones(CANVAS, bool)
    return on_canvas(np.array([[mark == "#" for mark in row] for row in rows]), bool)


def read_case(name, operation, drawing):
    header, *lines = (line.split() for line in drawing.splitlines())
    columns = dict(zip(header, zip(*lines, strict=True), strict=True))
    rows = {key: [row for row in column if row != "-"] for key, column in columns.items()}
    select = read_selection(rows.pop("select"))
    grids = {key: np.array([[int(c) for c in row] for row in rows[key]]) for key in rows}
    return Case(name, operation, select=select, **({"gives": grids["grid"]} | grids))


def read_cases():
    cases = []
    text = (Path(__file__).parent / "operations.txt").read_text()
    for section in text.split("\n== ")[1:]:
        title, _, body = section.partition("\n")
        numbers = [int(word) for word in title.partition(":")[0].split(" to ")]
        for operation in range(numbers[0], numbers[-1] + 1):
            for i, drawing in enumerate(body.strip().split("\n\n")):
                drawing = drawing.replace("*", str(operation % 10))
                cases.append(read_case(f"{NAMES[operation]} {i}", operation, drawing))
    return cases


def serpentine():
    """One path of 465 cells: every other row, joined at alternate ends; the rest is 0."""
    grid = np.zeros(CANVAS, int)
    grid[::2] = 3
    grid[1::4, -1] = 3
    grid[3::4, 0] = 3
    return grid


def point(row, column):
    return on_canvas(np.zeros((0, 0)), bool) | (np.indices(CANVAS) == [[[row]], [[column]]]).all(0)


def large_cases():
    path = serpentine()
    assert (path == 3).sum() == 465
    flooded = np.where(path == 3, 7, path)
    for name, row, column in (("start", 0, 0), ("middle", 14, 15), ("end", 29, 29)):
        yield Case(f"serpentine from its {name}", 17, path, point(row, column), flooded)
    yield Case("what the serpentine leaves", 15, path, point(1, 0), np.where(
        np.indices(CANVAS)[0] == 1, np.where(path == 0, 5, path), path
    ))  # fmt: skip

    # 2x5 at the top left corner of the whole canvas, and at the bottom right where most is lost.
    block = np.arange(10).reshape(2, 5)  # its first cell is 0, and not part of the object
    for turns, operation in ((-1, 24), (1, 25)):
        grid, gives = np.zeros(CANVAS, int), np.zeros(CANVAS, int)
        grid[:2, :5] = block
        gives[:5, :2] = np.rot90(block, turns)
        select = grid > 0
        yield Case(f"{NAMES[operation]} 2x5 at a corner", operation, grid, select, gives)
        grid, gives = np.zeros(CANVAS, int), np.zeros(CANVAS, int)
        grid[-2:, -5:] = block + 1 - (block == 9)
        gives[-2:, -5:-3] = np.rot90(grid[-2:, -5:], turns)[:2]
        select = grid > 0
        yield Case(f"{NAMES[operation]} 2x5 at the far corner", operation, grid, select, gives)

    grid = np.array([[1, 2], [3, 4]])
    everything = np.ones(CANVAS, bool)
    yield Case("resize to the canvas", 33, grid, everything, on_canvas(grid))
    yield Case("resize to one cell", 33, on_canvas(grid) + 1, point(0, 0), np.array([[2]]))
    yield Case("resize beyond the area", 33, grid, point(2, 0), np.array([[1], [3], [0]]))


CASES = [*read_cases(), *large_cases()]


def config_of(pairs, **options):
    task = Task("cases", tuple(Pair(*pair) for pair in pairs), ())
    return make_config(pack_tasks([task], CANVAS), extended=True, **options)


def worlds_of(cases):
    """One world for each case, whose target is what the case gives; and their configuration."""
    config = config_of([(case.input, case.gives) for case in cases])
    keys = jax.random.split(jax.random.key(0), len(cases))
    states = start_at(jnp.arange(len(cases)), keys, config)
    words = config.tasks.words

    def packed(grids):
        cells = pack_numpy(np.stack([on_canvas(grid) for grid in grids]), words)
        return jnp.asarray(cells), jnp.asarray([grid.shape for grid in grids], jnp.int32)

    grid, size = packed([case.grid for case in cases])
    clipboard, clipboard_size = packed([case.clip for case in cases])
    before = packed([case.grid if case.before is None else case.before for case in cases])
    states = states.replace(
        grid=grid, size=size, clipboard=clipboard, clipboard_size=clipboard_size, undo=before
    )
    return states, config


@pytest.fixture(scope="module")
def after():
    """The answer of one step in which every case is a world."""
    states, config = worlds_of(CASES)
    operation = jnp.asarray([case.operation for case in CASES], jnp.int32)
    selection = jnp.asarray(np.stack([case.select for case in CASES]))
    answer = batch_step(states, MaskAction(operation, selection), config)
    return jax.tree.map(np.asarray, answer)


@pytest.mark.parametrize("i", range(len(CASES)), ids=[case.name for case in CASES])
def test_operation(after, i):
    case = CASES[i]
    _, obs, _, _, info = after
    height, width = obs.size[i]
    assert (height, width) == case.gives.shape
    np.testing.assert_array_equal(obs.grid[i, :height, :width], case.gives)
    np.testing.assert_array_equal(obs.grid[i], on_canvas(case.gives))
    clipboard = case.clip if case.clips is None else case.clips
    assert tuple(obs.clipboard_size[i]) == clipboard.shape
    np.testing.assert_array_equal(obs.clipboard[i], on_canvas(clipboard))
    assert info.operation_type[i] == case.operation
    assert info.similarity[i] == 1
    assert info.size_correct[i]
    assert info.solved[i] == (case.operation == 34)


def test_every_operation_has_three_grids_an_empty_and_a_full_selection():
    for operation in range(NUM_EXTENDED_OPERATIONS):
        own = [case for case in CASES if case.operation == operation]
        assert len({(case.grid.shape, case.grid.tobytes()) for case in own}) >= 3
        assert any(not case.select.any() for case in own)
        assert any(case.select.all() for case in own)


def test_undoing_twice_brings_the_grid_back():
    """And a submission, or an action that is invalid, is nothing to go back on."""
    states, config = worlds_of(CASES)
    everything = jnp.ones((len(CASES), *CANVAS), bool)
    grids = []
    for number in (5, 34, 99, 39, 39):
        operation = jnp.full(len(CASES), number, jnp.int32)
        states, obs, *_ = batch_step(states, MaskAction(operation, everything), config)
        grids.append(np.asarray(obs.grid))
    for i, case in enumerate(CASES):
        np.testing.assert_array_equal(grids[-2][i], on_canvas(case.grid))
    np.testing.assert_array_equal(grids[-1], grids[0])


# Invalid actions -------------------------------------------------------------------------------

INVALID = {
    "a negative operation": MaskAction(-1, True),
    "an operation past the last": MaskAction(41, True),
    "an operation far past the last": MaskAction(2**31 - 1, True),
    "an operation that is masked out": MaskAction(7, True),
    "rows out of order": BoxAction(3, 2, 0, 1, 5),
    "columns out of order": BoxAction(3, 0, 2, 5, 1),
    "a row past the canvas": BoxAction(3, 0, 0, 30, 0),
    "a column past the canvas": BoxAction(3, 0, 0, 0, 30),
    "a row before the canvas": BoxAction(3, -1, 0, 0, 0),
    "a column before the canvas": BoxAction(3, 0, -1, 0, 0),
    "a box beside the canvas": BoxAction(3, 30, 30, 31, 31),
    "submitting with a box that is none": BoxAction(34, 1, 1, 0, 0),
    "a box with a masked operation": BoxAction(7, 0, 0, 1, 1),
    "a point below the canvas": PointAction(3, 30, 0),
    "a point right of the canvas": PointAction(3, 0, 30),
    "a point above the canvas": PointAction(3, -1, 0),
    "a point left of the canvas": PointAction(3, 0, -1),
    "a negative integer": FlatAction(-1),
    "an integer past the last": FlatAction(41 * 900),
    "the largest integer": FlatAction(2**31 - 1),
    "an integer of a masked operation": FlatAction(7 * 900),
}


def one_world(pair, **options):
    config = config_of([pair], operations=[o for o in range(41) if o != 7], **options)
    states = start_at(jnp.zeros(1, jnp.int32), jax.random.key(0)[None], config)
    return states, config


def batch_of_one(action):
    if isinstance(action, MaskAction):
        action = action.replace(selection=np.full(CANVAS, action.selection))
    return jax.tree.map(lambda x: jnp.asarray(x)[None], action)


def assert_nothing_happened(before, answer, config):
    states, _, reward, done, info = answer
    for name in ("grid", "size", "clipboard", "clipboard_size", "trials", "similarity", "solved"):
        np.testing.assert_array_equal(getattr(states, name), getattr(before, name), err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, states.undo, before.undo)
    assert states.step_count[0] == before.step_count[0] + 1
    assert info.operation_type[0] == -1
    assert info.similarity_improvement[0] == 0
    np.testing.assert_allclose(reward[0], config.step_penalty + config.invalid_penalty, rtol=1e-6)
    truncated = int(states.step_count[0]) >= config.max_steps
    assert (bool(info.terminated[0]), bool(info.truncated[0])) == (False, truncated)
    assert bool(done[0]) == truncated


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_action_changes_nothing_and_costs_a_step(name):
    states, config = one_world((np.array([[1, 2], [3, 4]]), np.array([[5, 5]])), max_steps=2)
    action = batch_of_one(INVALID[name])
    assert not validate_action_jax(action, states, config)[0]
    answer = batch_step(states, action, config)
    assert_nothing_happened(states, answer, config)
    again = batch_step(answer[0], action, config)  # and truncation applies as ever
    assert_nothing_happened(answer[0], again, config)
    assert again[3][0]


def test_a_world_of_another_buffer_is_left_alone():
    states, _ = one_world((np.array([[1, 2], [3, 4]]), np.array([[5, 5]])))
    _, other = one_world((np.array([[9]]), np.array([[1, 2], [3, 4]])))
    for operation in (3, 32, 34):  # the grid would be right there: no bonus for it
        answer = batch_step(states, batch_of_one(MaskAction(operation, True)), other)
        assert_nothing_happened(states, answer, other)


def test_the_last_operation_and_cell_are_valid():
    states, config = one_world((np.array([[1, 2], [3, 4]]), np.array([[5, 5]])))
    for action in (
        MaskAction(40, True), BoxAction(40, 29, 29, 29, 29), PointAction(40, 29, 29),
        FlatAction(41 * 900 - 1), FlatAction(0),
    ):  # fmt: skip
        assert validate_action_jax(batch_of_one(action), states, config)[0]


def test_a_bare_integer_is_a_flat_action():
    """Operation 4 on row 1, column 0."""
    states, config = one_world((np.array([[1, 2], [3, 4]]), np.array([[5, 5]])))
    action = as_action(jnp.asarray([4 * 900 + 30]))
    _, obs, _, _, info = batch_step(states, action, config)
    np.testing.assert_array_equal(obs.grid[0], on_canvas(np.array([[1, 2], [4, 4]])))
    assert info.operation_type[0] == 4
