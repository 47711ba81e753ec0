"""Every cell of a grid is in its picture, once and in its colour; every step is in an episode's."""

import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from worldloom.report.colors import rgb
from worldloom.suites.arc import (
    BoxAction,
    FlatAction,
    MaskAction,
    Pair,
    PointAction,
    Task,
    batch_reset,
    create_batch_episode_runner,
    make_config,
)
from worldloom.suites.arc import draw as arc
from worldloom.suites.arc.draw import Shot, episode_picture, grid_lines, task_text
from worldloom.suites.arc.sheet import borders, cells
from worldloom.suites.arc.types import COLOR_NAMES, PALETTE

SVG = "{http://www.w3.org/2000/svg}"
MARGIN = 16


def colours(*rows):
    return np.array([list(map(int, row)) for row in rows], np.int8)


TASK = Task(
    "all <ten> & more",
    (
        Pair(colours("012", "345"), colours("6789")),
        Pair(colours("11", "11"), colours("1")),
    ),
    (Pair(colours("20", "02"), colours("222", "222", "220")),),
)


def mask(shape, *cells):
    out = np.zeros(shape, bool)
    for cell in cells:
        out[cell] = True
    return out


def drawn_grids(document):
    """The grids of an SVG as lists {colour: cells}, in order."""
    found = []
    for group in ET.fromstring(document).iter(f"{SVG}g"):
        if group.get("class") != "arc-grid":
            continue
        grid = {}
        for path in group.iter(f"{SVG}path"):
            if path.get("fill") != "none":
                squares = re.findall(r"M(\d+) (\d+)h1v1h-1z", path.get("d"))
                grid[path.get("fill")] = {(int(y), int(x)) for x, y in squares}
                assert len(grid[path.get("fill")]) == len(squares)
        found.append(grid)
    return found


def as_drawn(grid):
    return {
        PALETTE[color]: {tuple(cell) for cell in np.argwhere(grid == color).tolist()}
        for color in np.unique(grid)
    }


def texts(document):
    return [node.text for node in ET.fromstring(document).iter(f"{SVG}text")]


def task_svg(task, **options):
    return arc.task_picture(task, **options).svg(task.name)


def episode_svg(shots, **options):
    return episode_picture(shots, **options).svg("episode")


def pixel(image, x, y, scale=2):
    return image.getpixel((round((MARGIN + x) * scale), round((MARGIN + y) * scale)))


# Tasks and states --------------------------------------------------------------------------------


def test_a_task_shows_every_cell_of_every_pair_in_its_colour():
    document = task_svg(TASK)
    expected = [as_drawn(grid) for pair in TASK.pairs for grid in (pair.input, pair.output)]
    assert drawn_grids(document) == expected
    assert len({color for grid in expected for color in grid}) == 10
    assert "all <ten> & more" in texts(document)
    assert {"demonstration 1", "demonstration 2", "test 1", "2x3 to 1x4", "2x2 to 3x3"} <= set(
        texts(document)
    )


def test_without_answers_the_test_outputs_are_not_in_the_picture():
    shown = drawn_grids(task_svg(TASK, answers=False))
    assert shown[:4] == drawn_grids(task_svg(TASK))[:4]
    assert shown[4:] == [as_drawn(TASK.tests[0].input)]
    assert "3x3" not in task_svg(TASK, answers=False)


@pytest.mark.parametrize("side", [1, 3, 10, 30])
def test_pairs_of_any_size_stay_within_the_width_of_a_page(side):
    grid = np.arange(side * side).reshape(side, side) % 10
    document = ET.fromstring(task_svg(Task("t", (Pair(grid, grid),) * 3, ())))
    assert float(document.get("width")) <= 880 + 2 * MARGIN
    for group in document.iter(f"{SVG}g"):
        x, y, cell = map(float, re.findall(r"[\d.]+", group.get("transform")))
        assert x + side * cell <= float(document.get("width")) - MARGIN
        assert y + side * cell <= float(document.get("height")) - MARGIN


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_the_middle_of_every_cell_of_a_png_has_exactly_its_colour(scale):
    grid = np.arange(30).reshape(5, 6) % 10
    image = cells(grid, 12).png(scale)
    assert image.size == ((6 * 12 + 2 * MARGIN) * scale, (5 * 12 + 2 * MARGIN) * scale)
    for (row, column), color in np.ndenumerate(grid):
        seen = pixel(image, (column + 0.5) * 12, (row + 0.5) * 12, scale)
        assert seen == rgb(PALETTE[color])


def test_the_ten_colours_are_ten():
    assert len(set(PALETTE)) == len(set(COLOR_NAMES)) == 10
    assert PALETTE[0] == "#000000"


def test_a_selection_is_outlined_in_white_and_cells_keep_their_colour():
    grid = np.full((4, 4), 2, np.int8)
    image = cells(grid, 20, mask((30, 30), np.s_[1:3, 1:3])).png()
    for along in (30, 50):
        for edge in (20, 60):
            assert pixel(image, along, edge) == pixel(image, edge, along) == (255, 255, 255)
    assert pixel(image, 40, 30) != (255, 255, 255)  # no line inside of it
    assert pixel(image, 30, 30) == pixel(image, 70, 70) == rgb(PALETTE[2])


@given(arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 6))))
def test_borders_lie_between_selected_cells_and_others_and_nowhere_else(selected):
    padded = np.pad(selected, 1)
    rows, columns = padded[1:] != padded[:-1], padded[:, 1:] != padded[:, :-1]
    drawn_rows, drawn_columns = np.zeros_like(rows, int), np.zeros_like(columns, int)
    for r0, c0, r1, c1 in borders(selected):
        if r0 == r1:
            drawn_rows[r0, c0 + 1 : c1 + 1] += 1
        else:
            drawn_columns[r0 + 1 : r1 + 1, c0] += 1
    np.testing.assert_array_equal(drawn_rows, rows)
    np.testing.assert_array_equal(drawn_columns, columns)


# Episodes ----------------------------------------------------------------------------------------


def box(top, left, bottom, right):
    """The cells (n, 2) of a box."""
    return np.argwhere(np.ones((bottom - top + 1, right - left + 1))) + np.array([top, left])


START, FILLED = colours("000", "000"), colours("330", "000")
SHOTS = [
    Shot(START, 3, box(0, 0, 0, 1)),
    Shot(FILLED, 99, None, valid=False),
    Shot(FILLED, 33, box(0, 0, 3, 4)),
    Shot(np.pad(FILLED, ((0, 2), (0, 2))), 34),
    Shot(np.pad(FILLED, ((0, 2), (0, 2)))),
]


def test_an_episode_shows_input_steps_by_name_answer_and_target():
    target = colours("9")
    document = episode_svg(SHOTS, input=START, target=target, solved=False, title="T")
    assert drawn_grids(document) == [as_drawn(g) for g in [*(s.grid for s in SHOTS), target]]
    assert texts(document) == [
        "T", "input", "fill green", "step 2", "operation 99 (invalid)", "step 3", "resize",
        "step 4", "submit", "answer", "not solved", "target",
    ]  # fmt: skip
    assert "solved" in texts(episode_svg(SHOTS, target=target, solved=True))


@pytest.mark.parametrize(
    ("operation", "edit", "o2arc"),
    [
        (3, "fill green", "colour green"),
        (13, "flood fill green", "flood fill green"),
        (22, "move left", "move right"),
        (24, "rotate clockwise", "rotate counter-clockwise"),
        (30, "cut", "paste"),
        (32, "copy input", "reset grid"),
        (36, "transpose", "operation 36"),
    ],
)
def test_an_operation_has_the_name_that_its_rules_give_it(operation, edit, o2arc):
    assert arc.operation_name(operation) == edit
    assert arc.operation_name(operation, "o2arc") == o2arc
    for rules, name in (("edit", edit), ("o2arc", o2arc)):
        document = episode_svg([Shot(START, operation), Shot(START)], rules=rules)
        assert name in texts(document)


def test_an_input_that_is_not_the_start_is_shown_by_itself():
    document = episode_svg(SHOTS, input=colours("8"))
    assert drawn_grids(document)[0] == as_drawn(colours("8"))
    assert texts(document)[:3] == ["input", "step 1", "fill green"]


def test_the_cells_of_every_step_are_outlined_within_the_grid_but_for_resize():
    document = ET.fromstring(episode_svg(SHOTS))
    outlines = [
        [path.get("d") for path in group if path.get("class") == "selected"]
        for group in document.iter(f"{SVG}g")
    ]
    assert [len(set(paths)) for paths in outlines] == [1, 0, 1, 0, 0]
    assert outlines[0][0] == "M0 0L2 0M0 1L2 1M0 0L0 1M2 0L2 1"
    assert "M0 4L5 4" in outlines[2][0]  # larger than the grid of 2x3
    beyond = episode_svg([Shot(START, 3, box(1, 2, 3, 8)), Shot(START)])
    assert 'd="M2 1L3 1M2 2L3 2M2 1L2 2M3 1L3 2"' in beyond


def test_of_a_long_episode_the_middle_is_left_out_and_counted():
    shots = [Shot(START, n % 10, box(0, 0, 0, 0)) for n in range(50)] + [Shot(FILLED)]
    seen = texts(episode_svg(shots, limit=10))
    steps = [int(text.split()[1]) for text in seen if text.startswith("step ")]
    assert steps == [1, 2, 3, 4, 5, 46, 47, 48, 49, 50]
    assert "… 40 more …" in seen
    whole = texts(episode_svg(shots[:10] + shots[-1:], limit=10))
    assert sum(text.startswith("step ") for text in whole) == 10


def test_an_episode_as_png_has_the_size_of_its_svg():
    document = ET.fromstring(episode_svg(SHOTS, target=START, solved=True, title="T"))
    image = episode_picture(SHOTS, target=START, solved=True, title="T").png(scale=3)
    sides = [float(document.get(side)) * 3 for side in ("width", "height")]
    assert np.abs(np.array(image.size) - sides).max() <= 1


def test_pictures_refuse_what_they_cannot_draw():
    with pytest.raises(ValueError, match="colours 0 to 9"):
        cells(np.full((2, 2), 10), 5)
    with pytest.raises(ValueError, match="colours 0 to 9"):
        cells(np.zeros(4, int), 5)
    with pytest.raises(ValueError, match="no shot"):
        episode_svg([])
    with pytest.raises(ValueError, match="scale=0"):
        cells(START, 5).png(scale=0)


# Recorded trajectories ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (BoxAction(3, 1, 0, 2, 1), [[1, 0], [1, 1], [2, 0], [2, 1]]),
        (BoxAction(3, 2, 0, 1, 1), None),
        (BoxAction(3, 0, 0, 4, 0), None),
        (PointAction(3, 2, 1), [[2, 1]]),
        (PointAction(3, -1, 1), None),
        (FlatAction(3 * 16 + 2 * 4 + 1), [[2, 1]]),
        (3 * 16 + 2 * 4 + 1, [[2, 1]]),
        (MaskAction(3, mask((4, 4), (0, 3), (2, 0))), [[0, 3], [2, 0]]),
        (PointAction(34, 2, 1), None),  # a submission points at nothing
    ],
)
def test_the_cells_of_an_action_of_any_form(action, expected):
    config = make_config([Task("t", (Pair(np.zeros((4, 4), np.int8), colours("5")),), ())])
    actions = jax.tree.map(lambda x: jnp.asarray(x)[None], action)
    states, first = batch_reset(jax.random.split(jax.random.key(0), 1), config)
    play = create_batch_episode_runner(lambda states, memory, key: (actions, memory), 1)
    _, _, steps = play(states, config, jax.random.key(1))
    shot, _ = arc.shots_of(first, steps)
    assert (None if shot.cells is None else shot.cells.tolist()) == expected
    assert shot.valid == (expected is not None or shot.operation == 34)


def test_an_episode_is_read_from_a_trajectory_up_to_its_end():
    task = Task("t", (Pair(colours("00", "00"), colours("50", "00")),), ())
    config = make_config([task])
    steps = jnp.array([5, 99, 34, 1])  # fill grey, nothing, submit, and one that comes too late

    def agent(states, number, key):
        where = jnp.zeros_like(states.pair)
        return PointAction(jnp.full_like(where, steps[number]), where, where), number + 1

    states, first = batch_reset(jax.random.split(jax.random.key(0), 2), config)
    play = create_batch_episode_runner(agent, len(steps))
    _, _, trajectory = play(states, config, jax.random.key(1), jnp.int32(0))
    shots = arc.shots_of(first, trajectory, 1)
    assert [shot.operation for shot in shots] == [5, 99, 34, None]
    assert [shot.valid for shot in shots] == [True, False, True, True]
    answer = task.demos[0].output
    for shot, grid in zip(shots, [task.demos[0].input, answer, answer, answer], strict=True):
        np.testing.assert_array_equal(shot.grid, grid)
    assert [shot.cells is None for shot in shots] == [False, False, True, True]
    assert shots[0].cells.tolist() == [[0, 0]]


# The terminal ------------------------------------------------------------------------------------


def test_a_terminal_without_colour_shows_digits_side_by_side():
    lines = task_text(TASK, color=False).plain.splitlines()
    assert lines[0] == TASK.name
    assert lines[2:5] == ["demonstration 1", "0 1 2  ->  6 7 8 9", "3 4 5      "]
    assert lines[-4:] == ["test 1", "2 0      2 2 2", "0 2  ->  2 2 2", "         2 2 0"]


def test_a_terminal_with_colour_shows_a_block_of_its_colour_for_every_cell():
    lines = grid_lines(TASK.demos[0].input)
    assert [line.plain for line in lines] == ["·     ", "      "]
    shown = [str(span.style) for line in lines for span in line.spans]
    assert shown == [f"#555555 on {PALETTE[c]}" for c in TASK.demos[0].input.ravel()]


def test_a_narrow_terminal_shows_two_cells_in_a_character():
    grid = np.arange(15).reshape(3, 5) % 10
    task = Task("t", (Pair(grid, grid),), ())
    assert "▀" not in task_text(task, width=26).plain
    narrow = task_text(task, width=25)
    assert narrow.plain.count("▀") == 2 * 5 * 2
    assert max(map(len, narrow.plain.splitlines())) == 2 * 5 + len("  ->  ")
    compact = grid_lines(grid, compact=True)
    assert str(compact[0].spans[1].style) == f"{PALETTE[1]} on {PALETTE[6]}"
    assert str(compact[-1].spans[-1].style) == PALETTE[4]  # nothing is under the last row


def test_a_terminal_hides_answers_too():
    lines = task_text(TASK, color=False, answers=False).plain.splitlines()
    assert lines[-3:] == ["test 1", "2 0  ->  ?", "0 2      "]
