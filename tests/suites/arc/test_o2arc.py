"""`rules="o2arc"`: objects and clipboard by hand, and a slice of the check with ARCLE."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import o2arc_check
from worldloom.suites.arc import MaskAction, Pair, Task, batch_step, make_config, pack_tasks
from worldloom.suites.arc.environment import start_at
from worldloom.suites.arc.o2arc import (
    CLOCKWISE,
    COPY_FROM_GRID,
    COPY_FROM_INPUT,
    COPY_INPUT,
    COUNTER_CLOCKWISE,
    DOWN,
    FLIP_COLUMNS,
    FLIP_ROWS,
    LEFT,
    NAMES,
    PASTE,
    RESET,
    RESIZE,
    RIGHT,
    SUBMIT,
    UP,
    selected_cells,
)
from worldloom.suites.arc.planes import unpack, unpack_plane

CANVAS = (8, 8)
NONE = ""

needs_arcle = pytest.mark.skipif(
    importlib.util.find_spec("arcle") is None,
    reason="the check compares with ARCLE, which is not installed (pip install arcle==0.2.6)",
)


def cells(drawing):
    """An array from rows of digits, split by spaces."""
    return np.array([[int(c) for c in row] for row in drawing.split()], np.int8)


def drawn(array):
    return " ".join("".join(str(c) for c in row) for row in np.asarray(array).tolist())


@jax.jit
def begin(config):
    return start_at(jnp.zeros(1, jnp.int32), jax.random.split(jax.random.key(0), 1), config)


@jax.jit
def selected_on_canvas(objects, size):
    return unpack_plane(selected_cells(objects, size), CANVAS)


@jax.jit
def colours(grid):
    return unpack(grid, CANVAS)


class World:
    """One world on a canvas of 8x8; selections are drawn as rows of # and ., from the top left."""

    def __init__(self, start, answer="0", **options):
        task = Task("drawn", (Pair(cells(start), cells(answer)),), ())
        buffer = pack_tasks([task], CANVAS)
        self.config = make_config(buffer, rules="o2arc", max_trials=-1, **options)
        self.state = begin(self.config)

    def do(self, operation, select=NONE):
        mask = np.zeros((1, *CANVAS), bool)
        for r, row in enumerate(select.split()):
            mask[0, r, : len(row)] = [c == "#" for c in row]
        action = MaskAction(jnp.array([operation]), jnp.asarray(mask))
        self.state, _, _, _, self.info = batch_step(self.state, action, self.config)
        return self

    def _cut(self, grid, size):
        height, width = np.asarray(size[0])
        full = np.asarray(colours(grid)[0])
        outside = full.copy()
        outside[:height, :width] = 0
        assert not outside.any(), "there is something outside of the area"
        return drawn(full[:height, :width])

    @property
    def grid(self):
        return self._cut(self.state.grid, self.state.size)

    @property
    def clipboard(self):
        return self._cut(self.state.clipboard, self.state.clipboard_size)

    @property
    def object(self):
        return self._cut(self.state.objects.object, self.state.objects.object_dim)

    @property
    def active(self):
        return bool(self.state.objects.active[0])

    @property
    def pos(self):
        return tuple(np.asarray(self.state.objects.object_pos[0]).tolist())

    @property
    def selected(self):
        height, width = np.asarray(self.state.size[0])
        selected = np.asarray(selected_on_canvas(self.state.objects, self.state.size))
        return drawn(selected[0, :height, :width].astype(int))


def test_there_are_as_many_names_as_operations():
    assert len(NAMES) == SUBMIT + 1 == World("1").config.num_operations
    assert (NAMES[RIGHT], NAMES[LEFT]) == ("move right", "move left")
    assert (NAMES[24], NAMES[25]) == ("rotate counter-clockwise", "rotate clockwise")


# Objects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "gives"),
    [
        (UP, "090 000 000"),
        (DOWN, "000 000 090"),
        (RIGHT, "000 009 000"),
        (LEFT, "000 900 000"),
    ],
)
def test_a_move_goes_one_cell_in_its_direction(operation, gives):
    assert World("000 090 000").do(operation, "... .#.").grid == gives


def test_chained_moves_leave_no_hole_in_what_they_pass_over():
    world = World("05670")
    assert world.do(RIGHT, ".#...").grid == "00570"
    assert world.do(RIGHT).grid == "00650"
    assert world.do(RIGHT).grid == "00675"
    # Selecting anew cuts out what is there: a hole.
    world = World("05670").do(RIGHT, ".#...").do(RIGHT, "..#..")
    assert world.grid == "00050"


def test_an_object_carries_its_shape_and_only_what_is_not_0_covers():
    world = World("1200 3044 5550").do(RIGHT, "##.. ##..")
    assert world.object == "12 30"
    assert world.grid == "0120 0344 5550"
    assert world.selected == "0110 0110 0000"


def test_cells_that_are_not_selected_stay_when_the_box_around_the_selection_moves():
    world = World("120 340 000").do(DOWN, "#. .#")
    assert world.object == "10 04"
    assert world.grid == "020 100 040"  # 1 goes over the 3 below it, and 4 leaves its cell


def test_what_was_pushed_over_the_edge_comes_back():
    world = World("120 340").do(LEFT, "##. ##.")
    assert world.grid == "200 400"
    assert world.do(LEFT).grid == "000 000"
    assert world.do(LEFT).grid == "000 000"
    assert world.pos == (0, -3)
    assert world.selected == "000 000"
    for _ in range(3):
        world.do(RIGHT)
    assert world.grid == "120 340"


def test_an_object_leaves_the_area_even_if_the_canvas_goes_on():
    world = World("12 34").do(DOWN, ".. ##")
    assert world.grid == "12 00"
    assert world.do(RIGHT).do(UP).grid == "12 03"


def test_a_selection_that_reaches_beyond_the_area_takes_empty_cells_along():
    world = World("12 34").do(FLIP_COLUMNS, "####")
    assert world.object == "0021"
    assert world.grid == "00 34"


def test_a_turn_is_about_the_centre():
    start = "00000 01230 00000 00000"
    assert World(start).do(COUNTER_CLOCKWISE, "..... .###.").grid == "00300 00200 00100 00000"
    assert World(start).do(CLOCKWISE, "..... .###.").grid == "00100 00200 00300 00000"


def test_turns_about_half_a_cell_are_rounded_in_turns():
    start = "000000 000000 012000 000000 000000 000000"
    select = "...... ...... .##..."
    world = World(start).do(COUNTER_CLOCKWISE, select)
    # One row and two columns: from (2, 1) to (2 + floor(-1/2), 1 + floor(1/2)).
    assert world.pos == (1, 1)
    assert int(world.state.objects.rotation_parity[0]) == 1
    assert world.grid == "000000 020000 010000 000000 000000 000000"
    assert world.do(COUNTER_CLOCKWISE).grid == "000000 000000 021000 000000 000000 000000"
    assert int(world.state.objects.rotation_parity[0]) == 0
    assert world.do(CLOCKWISE).do(COUNTER_CLOCKWISE).do(CLOCKWISE).do(CLOCKWISE).grid == start
    # A new selection begins anew.
    assert int(world.do(UP, "#").state.objects.rotation_parity[0]) == 0


def test_a_2x5_box_that_is_turned_at_a_corner_is_clipped_and_turned_back_whole():
    start = "123450 678900 000000 000000 000000"
    world = World(start).do(CLOCKWISE, "##### #####")
    assert world.object == "61 72 83 94 05"
    assert world.pos == (-2, 1)
    assert world.grid == "083000 094000 005000 000000 000000"
    assert world.do(COUNTER_CLOCKWISE).grid == start


@pytest.mark.parametrize(
    ("operation", "gives"), [(FLIP_COLUMNS, "0000 0321 0054"), (FLIP_ROWS, "0000 0450 0123")]
)
def test_flips_stay_in_the_box(operation, gives):
    world = World("0000 0123 0450").do(operation, ".... .### .###")
    assert world.grid == gives
    assert world.do(operation).grid == "0000 0123 0450"


def test_without_an_object_an_empty_selection_moves_nothing():
    world = World("12 34").do(DOWN)
    assert world.grid == "12 34"
    assert not world.active


@pytest.mark.parametrize(
    "operation",
    [3, 13, COPY_FROM_INPUT, COPY_FROM_GRID, PASTE, COPY_INPUT, RESET, RESIZE],
)
def test_every_other_operation_lets_go_of_the_object_even_if_it_does_nothing_else(operation):
    world = World("100 000").do(RIGHT, "#")
    assert world.active
    assert world.selected == "010 000"
    grid = world.do(operation).grid
    assert not world.active
    assert world.selected == "000 000"
    assert world.do(RIGHT).grid == grid


def test_a_submission_does_not_let_go_of_the_object():
    world = World("1000", answer="0010").do(RIGHT, "#").do(SUBMIT)
    assert not bool(world.info.solved[0])
    assert world.active
    assert world.do(RIGHT).grid == "0010"
    assert bool(world.do(SUBMIT).info.solved[0])


def test_an_invalid_action_leaves_object_and_grid_alone():
    allowed = [op for op in range(35) if op != 3]
    world = World("1000", operations=allowed).do(RIGHT, "#")
    before = world.state
    for operation in (3, 35, -1):
        world.do(operation, "####")
        assert int(world.info.operation_type[0]) == -1
        same = jax.tree.map(lambda a, b: bool((a == b).all()), before.objects, world.state.objects)
        assert all(jax.tree.leaves(same))
        assert world.grid == "0100"
    assert world.do(RIGHT).grid == "0010"


# The rest --------------------------------------------------------------------------------------


def test_colour_paints_the_selection_within_the_area():
    assert World("00 00").do(4, ".### .###").grid == "04 04"
    assert World("00 00").do(4).grid == "00 00"


def test_a_flood_needs_exactly_one_selected_cell_and_that_inside():
    assert World("110 010").do(17, "#").grid == "770 070"
    assert World("110 010").do(17, "##").grid == "110 010"
    assert World("110 010").do(17, "#...#").grid == "110 010"  # the second lies outside
    assert World("110 010").do(17, "....#").grid == "110 010"
    assert World("110 010").do(17).grid == "110 010"


def test_copies_are_from_the_input_or_from_the_grid():
    world = World("12 34").do(9, "##").do(COPY_FROM_INPUT, "## #.")
    assert world.clipboard == "12 30"
    assert world.do(COPY_FROM_GRID, ".# .#").clipboard == "9 4"


def test_a_copy_that_reaches_out_of_bounds_is_refused():
    world = World("12 34").do(COPY_FROM_GRID, "##")
    for select in ("###", "# # #", "....#"):
        assert world.do(COPY_FROM_GRID, select).clipboard == "12"
        assert world.do(COPY_FROM_INPUT, select).clipboard == "12"
    # The area counts, not the input.
    world.do(RESIZE, "### ###").do(5, "###")
    assert world.do(COPY_FROM_INPUT, "###").clipboard == "12"
    assert world.do(COPY_FROM_GRID, "###").clipboard == "555"


def test_a_paste_writes_the_whole_clipboard_and_stays_in_the_area():
    world = World("1023 4444 5555").do(COPY_FROM_GRID, "###")
    assert world.do(PASTE, ".... .#.. ...#").grid == "1023 4102 5555"
    assert world.do(PASTE, ".... .... ..##").grid == "1023 4102 5510"
    assert world.do(PASTE).grid == "1023 4102 5510"
    assert world.do(PASTE, ".... .... .... #").grid == "1023 4102 5510"


def test_pasting_nothing_changes_nothing():
    assert World("12").do(PASTE, "#").grid == "12"
    assert World("12").do(COPY_FROM_GRID).do(PASTE, "#").grid == "12"


def test_resize_takes_the_size_of_the_box_and_wipes():
    assert World("12 34").do(RESIZE, "... .### .#").grid == "000 000"
    assert World("123 456").do(RESIZE, "... ..# .... ..#").grid == "0 0 0"
    assert World("12 34").do(RESIZE).grid == "12 34"


def test_reset_wipes_and_copying_the_input_brings_size_and_cells_back():
    world = World("12 34").do(RESIZE, "###").do(6, "###")
    assert world.grid == "666"
    assert world.do(RESET).grid == "000"
    assert world.do(COPY_INPUT).grid == "12 34"


# ARCLE -----------------------------------------------------------------------------------------


@needs_arcle
def test_random_sequences_end_as_in_arcle(monkeypatch):
    batches = (((30, 30), "mask", 0.5), ((5, 5), "box", 0.5))
    report = o2arc_check.check_o2arc(240, seed=5, batches=batches, batch_size=120)
    assert report.differences == 0, report.first
    assert report.steps == 240 * 30
    assert report.unfinished == 0
    # It would be worth nothing if these did not occur.
    assert report.continued > 300
    assert report.correct_submissions > 5
    assert all(times > 10 for times in report.put_right.values())
    # And the check does see differences: here those that it otherwise puts right.
    monkeypatch.setattr(o2arc_check, "_put_right", lambda *_: None)
    report = o2arc_check.check_o2arc(120, seed=5, batches=batches, batch_size=120)
    assert report.differences > 100
    assert "ARCLE" in report.first


@needs_arcle
def test_an_object_that_is_moved_very_far_wraps_around_as_in_arcle():
    """Positions are int8 there: 128 rows up is 128 rows down, and turning makes use of sums."""
    steps, worlds = 300, 24
    rng = np.random.default_rng(0)
    direction = rng.integers(UP, COUNTER_CLOCKWISE, worlds)
    drift = rng.random((steps, worlds)) < 0.95
    operation = np.where(drift, direction, rng.integers(UP, COPY_FROM_INPUT, (steps, worlds)))
    operation[1::50] = rng.integers(UP, COUNTER_CLOCKWISE, worlds)
    selection = np.zeros((steps, worlds, 5, 5), bool)
    selection[0] = rng.random((worlds, 5, 5)) < 0.5
    pairs = [o2arc_check.random_pair(rng, (5, 5)) for _ in range(worlds)]
    script = o2arc_check.Script(pairs, operation.astype(np.int32), selection, None)
    report = o2arc_check.compare(script, (5, 5))
    assert report.differences == 0, report.first
    assert report.steps > 2 * 128 * 4  # some are cut short, where ARCLE itself gives up
