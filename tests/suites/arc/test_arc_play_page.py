"""Playing by hand in a real browser: what is clicked is done, told and saved."""

from contextlib import contextmanager

import numpy as np
import pytest

from worldloom.suites.arc import Pair, Task
from worldloom.suites.arc.game import Game, read_play
from worldloom.suites.arc.sources import load

pytestmark = [pytest.mark.usefixtures("compiled_once"), pytest.mark.slow]

DEMO = Pair(np.array([[1, 0], [0, 1]], np.int8), np.array([[2, 0], [0, 2]], np.int8))
INPUT = np.array([[1, 1, 0], [0, 1, 0]], np.int8)
TASK = Task("ones to/twos", (DEMO, DEMO), (Pair(INPUT, INPUT * 2),))


@pytest.fixture
def play(browser, tmp_path, serving):
    """play(task): its page and the game behind it; if watched, nothing may go wrong in it."""

    @contextmanager
    def visit(task, width=1280, height=860, watched=True):
        wrong = []
        game = Game(task, tmp_path / "plays")
        game.warm_up()
        with serving(game) as server:
            view = browser.new_page(viewport={"width": width, "height": height})
            view.set_default_timeout(120_000)  # ms: a busy machine is slow
            view.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
            view.on("pageerror", lambda error: wrong.append(str(error)))
            view.on(
                "request",
                lambda request: (
                    None
                    if request.url.startswith((server.url, "data:"))
                    else wrong.append(f"loads {request.url}")
                ),
            )
            view.goto(server.url)
            view.wait_for_selector("body[data-ready]")
            yield view, game
            view.close()
        assert not watched or wrong == []

    return visit


def cell(view, row, column):
    return view.locator(f'#work [data-cell="{row},{column}"]')


def drag(view, start, end):
    from_box, to_box = cell(view, *start).bounding_box(), cell(view, *end).bounding_box()
    view.mouse.move(from_box["x"] + 5, from_box["y"] + 5)
    view.mouse.down()
    view.mouse.move(to_box["x"] + 5, to_box["y"] + 5, steps=5)
    view.mouse.up()


def grid_on_page(view):
    rows = view.evaluate(
        """() => [...document.querySelectorAll('#work [data-color]')].map(node =>
            [...node.dataset.cell.split(',').map(Number), +node.dataset.color])"""
    )
    grid = np.zeros((max(r for r, _, _ in rows) + 1, max(c for _, c, _ in rows) + 1), int)
    for r, c, color in rows:
        grid[r, c] = color
    return grid


def wait_for_status(view, text):
    view.wait_for_function(
        "text => document.getElementById('status').textContent.includes(text)", arg=text
    )


def test_an_example_is_solved_by_clicking_and_saved(play):
    task = load("examples")["recolour"]
    pair = task.tests[0]
    with play(task) as (view, _):
        np.testing.assert_array_equal(grid_on_page(view), pair.input)
        view.click("#submit")
        wait_for_status(view, "Trials left: 2")
        for row, column in np.argwhere(pair.input != pair.output).tolist():
            cell(view, row, column).click()
            color = int(pair.output[row, column])
            view.click(f'[data-operation="{color}"]')
            wait_for_status(view, "1 cell changed")
            view.wait_for_function(
                "([cell, color]) => document.querySelector(`#work [data-cell='${cell}']`)"
                ".dataset.color === color",
                arg=[f"{row},{column}", str(color)],
            )
        np.testing.assert_array_equal(grid_on_page(view), pair.output)
        view.keyboard.press("Enter")  # the board has the focus again after a click on a button
        wait_for_status(view, "Right!")
        assert view.locator("#banner.won").is_visible()
        assert view.locator('[data-operation="3"]').is_disabled()
        view.click("#save")
        wait_for_status(view, "Saved to ")
        path = view.text_content("#status").removeprefix("Saved to ")
        arrays, about = read_play(path)
        assert about["solved"]
        assert arrays["terminated"].tolist()[-1] is True
        view.click("#again")
        wait_for_status(view, "A new episode")
        np.testing.assert_array_equal(grid_on_page(view), pair.input)


def test_boxes_masks_keys_and_undo(play):
    with play(TASK) as (view, game):
        drag(view, (0, 0), (1, 1))
        assert view.text_content("#where") == "grid 2x3, selected 4 cells in 2x2"
        cell(view, 0, 2).click(modifiers=["Control"])
        cell(view, 0, 0).click(modifiers=["Control"])
        assert view.text_content("#where") == "grid 2x3, selected 4 cells in 2x3"
        view.keyboard.press("7")
        wait_for_status(view, "fill orange: 4 cells changed")
        assert grid_on_page(view).tolist() == [[1, 7, 7], [7, 7, 0]]
        view.keyboard.press("Control+z")
        wait_for_status(view, "Taken back")
        np.testing.assert_array_equal(grid_on_page(view), INPUT)
        assert view.locator("#undo").is_disabled()
        cell(view, 0, 0).click()
        view.keyboard.press("Shift+Digit4")
        wait_for_status(view, "flood fill yellow: 3 cells changed")
        drag(view, (0, 0), (0, 1))
        view.keyboard.press("c")
        wait_for_status(view, "1x2 in the clipboard")
        view.keyboard.press("d")  # the selection moves along
        wait_for_status(view, "move right")
        assert grid_on_page(view).tolist() == [[0, 4, 4], [0, 4, 0]]
        view.keyboard.press("s")
        wait_for_status(view, "move down")
        assert grid_on_page(view).tolist() == [[0, 0, 0], [0, 4, 4]]
        view.keyboard.press("Escape")
        view.keyboard.press("1")
        wait_for_status(view, "select cells first")
        view.keyboard.press("Control+a")
        view.keyboard.press("Delete")
        wait_for_status(view, "clear")
        assert not grid_on_page(view).any()
        arrays, _ = read_play(game.save())
        assert arrays["action.operation"].tolist() == [14, 28, 23, 21, 1, 31]


def test_arrows_select_and_the_grid_is_resized(play):
    with play(TASK) as (view, _):
        view.keyboard.press("ArrowRight")
        view.keyboard.press("ArrowRight")
        view.keyboard.press("Shift+ArrowDown")
        assert view.text_content("#where") == "grid 2x3, selected 2 cells in 2x1"
        view.keyboard.press("5")
        wait_for_status(view, "2 cells changed")
        assert grid_on_page(view).tolist() == [[1, 5, 0], [0, 5, 0]]
        view.fill("#rows", "3")
        view.fill("#columns", "2")
        view.click("#resize-go")
        wait_for_status(view, "the grid is now 3x2")
        assert grid_on_page(view).tolist() == [[1, 5], [0, 5], [0, 0]]
        view.fill("#rows", "99")
        view.click("#resize-go")
        wait_for_status(view, "1x1 to 3x3")
        view.check("#canvas")
        assert view.locator("#work rect").count() == 9
        assert view.locator("#work rect.outside").count() == 3
        cell(view, 1, 2).click()
        view.click('[data-operation="3"]')
        wait_for_status(view, "fill green: nothing changed")


def test_similarity_is_shown_only_when_asked_for(play):
    with play(TASK) as (view, _):
        assert not view.locator("#near").is_visible()
        view.check("#ask")
        view.wait_for_function("() => document.querySelector('#near b').textContent === '50.0 %'")
        assert view.locator("#near").is_visible()
        view.uncheck("#ask")
        view.wait_for_function("() => document.querySelector('#near').hidden")


def test_another_pair_can_be_played_without_seeing_its_output(play):
    with play(TASK) as (view, _):
        assert view.locator("#shown .pair").count() == 2
        view.select_option("#pair", "0")
        wait_for_status(view, "demonstration 1")
        assert view.locator("#shown .pair").count() == 1
        np.testing.assert_array_equal(grid_on_page(view), DEMO.input)


def test_a_server_that_is_gone_is_told(play):
    with play(TASK, watched=False) as (view, _):
        view.context.set_offline(True)
        view.keyboard.press("1")
        wait_for_status(view, "the server does not answer")
        assert np.array_equal(grid_on_page(view), INPUT)  # and nothing is shown as done


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (900, 900), (360, 740)])
def test_the_page_fits_its_screen(play, width, height):
    with play(load("examples")["count-cells"], width, height) as (view, _):
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        board = view.locator("#work").bounding_box()
        assert board["x"] >= 0
        assert board["x"] + board["width"] <= width
        assert cell(view, 0, 0).bounding_box()["width"] >= 24
        if width >= 1280:  # everything one needs is on the screen
            for button in ("#submit", "#undo", "#save", "#resize-go"):
                box = view.locator(button).bounding_box()
                assert box["y"] + box["height"] <= height
