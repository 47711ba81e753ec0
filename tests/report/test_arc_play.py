"""Playing by hand: the page's server, what it saves, and the page itself in a real browser."""

import http.client
import json
import shutil
import threading
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.envs.arc import MaskAction, Pair, Task, batch_step
from worldloom.envs.arc.environment import start_at
from worldloom.envs.arc.load import load
from worldloom.reference import arc as reference
from worldloom.report.arc_game import GROUPS, Game, Refused, read_play
from worldloom.report.arc_play import PlayServer, read_selection

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
pytestmark = pytest.mark.usefixtures("compiled_once")

FILL, FLOOD, SUBMIT = 0, 10, 34
DEMO = Pair(np.array([[1, 0], [0, 1]], np.int8), np.array([[2, 0], [0, 2]], np.int8))
INPUT = np.array([[1, 1, 0], [0, 1, 0]], np.int8)
TASK = Task("ones to/twos", (DEMO, DEMO), (Pair(INPUT, INPUT * 2),))


@contextmanager
def serving(game):
    with PlayServer(game) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory, compiled_once):
    with serving(Game(TASK, tmp_path_factory.mktemp("plays"))) as server:
        yield server


@pytest.fixture
def call(server):
    """call(path, body=None): status and JSON; a GET without a body. Starts a fresh episode."""
    server.game.start(2)
    port = server.server_address[1]

    def send(path, body=None, *, method=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        method = method or ("GET" if body is None else "POST")
        connection.request(method, path, data, kind | (headers or {}))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, json.loads(content)

    return send


@jax.jit
def fresh(config):
    """A world on the test pair of TASK, in a batch of one."""
    return start_at(jnp.array([2]), jax.random.key(0)[None], config)


def step(call, operation, **selection):
    return call("/api/step", {"operation": operation, "selection": selection or None})


# The server --------------------------------------------------------------------------------------


def test_only_this_machine_is_served(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/"


def test_the_page_is_one_file_that_may_load_nothing(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("GET", "/")
    answer = connection.getresponse()
    page = answer.read().decode()
    connection.close()
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.getheader("Content-Security-Policy")
    assert "src=" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_the_task_comes_with_demonstrations_and_every_operation(call):
    status, task = call("/api/task")
    assert status == 200
    assert task["pairs"] == ["demonstration 1", "demonstration 2", "test 1"]
    assert task["demonstrations"][1]["output"] == DEMO.output.tolist()
    numbers = [op["id"] for group in task["groups"] for op in group["operations"]]
    assert sorted(numbers) == list(range(41))
    assert len(task["palette"]) == 10


def test_without_extended_operations_there_are_35(tmp_path):
    game = Game(TASK, tmp_path, extended=False)
    numbers = [op["id"] for group in game.about()["groups"] for op in group["operations"]]
    assert sorted(numbers) == list(range(35))
    assert sorted(i for group in GROUPS.values() for i in group) == list(range(41))


def test_every_operation_does_what_the_rules_say(call, server):
    rng = np.random.default_rng(0)
    world = reference.start(INPUT, INPUT, INPUT * 2, np.ones(41, bool), 3)
    rules = reference.EditRules(max_steps=1000)
    for operation in [*rng.permutation(np.delete(np.arange(41), SUBMIT)).repeat(2), SUBMIT]:
        corners = np.sort(rng.integers(3, size=(2, 2)), axis=0)
        some = np.argwhere(rng.random((3, 3)) < 0.5).tolist()
        point = rng.integers(3, size=2).tolist()
        choices = {"box": corners.ravel().tolist(), "point": point, "cells": some}
        kind = ("box", "point", "cells")[rng.integers(3)]
        status, seen = step(call, int(operation), **{kind: choices[kind]})
        cells = read_selection({kind: choices[kind]}, server.game.grid_shape)
        world, _, _ = reference.step(world, int(operation), cells, rules)
        assert status == 200
        assert seen["valid"]
        assert seen["grid"] == world.grid.tolist()
        assert seen["clipboard"] == world.clipboard.tolist()
        assert (seen["trials"], seen["step_count"]) == (world.trials, world.steps)


def test_a_point_a_box_and_cells_mean_what_they_say():
    shape = (3, 4)
    assert not read_selection(None, shape).any()
    assert np.argwhere(read_selection({"point": [2, 3]}, shape)).tolist() == [[2, 3]]
    assert read_selection({"box": [0, 1, 1, 3]}, shape).sum() == 6
    cells = [[0, 0], [2, 1]]
    assert np.argwhere(read_selection({"cells": cells}, shape)).tolist() == cells
    assert not read_selection({"cells": []}, shape).any()


def test_right_answers_solve_and_end_the_episode(call):
    status, seen = step(call, FLOOD + 2, point=[0, 0])
    assert (status, seen["grid"], seen["over"]) == (200, (INPUT * 2).tolist(), False)
    seen = step(call, SUBMIT)[1]
    assert (seen["solved"], seen["over"], seen["can_take_back"]) == (True, True, False)
    status, answer = step(call, FILL, point=[0, 0])
    assert status == 409
    assert answer["error"] == "the episode is over; start a new one"
    assert call("/api/take-back", {})[0] == 409
    fresh = call("/api/start", {})[1]
    assert (fresh["steps"], fresh["grid"], fresh["pair"]) == (0, INPUT.tolist(), 2)


def test_wrong_answers_use_up_the_trials(call):
    left = [step(call, SUBMIT)[1]["trials"] for _ in range(3)]
    assert left == [2, 1, 0]
    seen = call("/api/state")[1]
    assert (seen["over"], seen["solved"]) == (True, False)


def test_steps_are_taken_back_one_by_one_up_to_the_last_submission(call):
    grids = [step(call, FILL + n, box=[0, 0, 0, n - 5])[1]["grid"] for n in (5, 6, 7)]
    assert call("/api/take-back", {})[1]["grid"] == grids[1]
    assert call("/api/take-back", {})[1]["grid"] == grids[0]
    step(call, SUBMIT)
    step(call, FILL, point=[0, 0])
    seen = call("/api/take-back", {})[1]
    assert (seen["grid"], seen["trials"], seen["can_take_back"]) == (grids[0], 2, False)
    status, answer = call("/api/take-back", {})
    assert (status, answer["error"]) == (409, "there is nothing to take back")
    assert call("/api/state")[1]["steps"] == 2


def test_nothing_but_similarity_depends_on_the_answer(tmp_path):
    told = []
    for output in (INPUT * 2, INPUT + 7):
        game = Game(Task("t", (DEMO, DEMO), (Pair(INPUT, output),)), tmp_path)
        seen = [game.about(), game.view()]
        game.step(FILL + 2, np.ones(game.grid_shape, bool))
        told.append(([*seen, game.about(), game.view()], game.similarity()))
    assert told[0][0] == told[1][0]
    assert told[0][1] != told[1][1]


def test_similarity_is_told_when_asked_for(call):
    step(call, FILL + 2, box=[0, 0, 0, 1])
    assert call("/api/similarity") == (200, {"similarity": pytest.approx(5 / 6)})
    assert "similarity" not in call("/api/state")[1]


def test_a_demonstration_that_is_played_keeps_its_output_to_itself(call):
    assert call("/api/start", {"pair": 1})[1]["input"] == DEMO.input.tolist()
    outputs = [pair["output"] for pair in call("/api/task")[1]["demonstrations"]]
    assert outputs == [DEMO.output.tolist(), None]


BAD = [
    (b"{", "not JSON"),
    (b"\xff", "not JSON"),
    (b"[" * 60000, "not JSON"),
    (b"[]", "must be a JSON object"),
    (b"{}", "operation must be an integer"),
    (b'{"operation": true}', "operation must be an integer"),
    (b'{"operation": 41}', "no operation 41; they are 0 to 40"),
    (b'{"operation": -1}', "no operation -1"),
    (b'{"operation": 1, "selection": []}', "one of box, point and cells"),
    (b'{"operation": 1, "selection": {"circle": 1}}', "'circle' is not known"),
    (b'{"operation": 1, "selection": {"box": [0, 0, 1]}}', "lists of 4 integers"),
    (b'{"operation": 1, "selection": {"box": [1, 0, 0, 0]}}', "canvas of 3x3"),
    (b'{"operation": 1, "selection": {"point": [0, 3]}}', "canvas of 3x3"),
    (b'{"operation": 1, "selection": {"point": [0, 1.5]}}', "lists of 2 integers"),
    (b'{"operation": 1, "selection": {"cells": 7}}', "lists of 2 integers"),
]


@pytest.mark.parametrize(("body", "why"), BAD, ids=range(len(BAD)))
def test_malformed_requests_get_one_line_and_change_nothing(call, body, why):
    status, answer = call("/api/step", body)
    assert status == 400
    assert why in answer["error"]
    assert "\n" not in answer["error"]
    assert call("/api/state")[1]["steps"] == 0


def test_other_requests_are_refused(call):
    assert call("/nowhere") == (404, {"error": "there is no GET /nowhere"})
    assert call("/../arc_play.py")[0] == 404
    assert call("/api/step")[0] == 404
    assert call("/api/state", {})[0] == 404
    assert call("/api/start", {"pair": 3})[0] == 400
    assert call("/api/step", b"x" * 70_000)[0] == 413
    assert call("/api/step", {}, headers={"Content-Type": "text/plain"})[0] == 415
    assert call("/api/state", headers={"Host": "example.org"})[0] == 403
    assert call("/api/state", headers={"Host": "localhost:1"})[0] == 403
    assert call("/api/step", b"", headers={"Content-Length": "-5"})[0] == 411
    assert call("/api/state")[0] == 200


# The record --------------------------------------------------------------------------------------


def test_a_saved_episode_replays_to_the_same_rewards_and_observations(call, server):
    step(call, FILL + 9, point=[1, 1])
    call("/api/take-back", {})
    step(call, FILL + 2, cells=[[0, 0], [1, 1]])
    step(call, SUBMIT)
    step(call, FLOOD + 2, point=[0, 1])
    step(call, SUBMIT)
    status, answer = call("/api/save", {})
    assert status == 200
    arrays, about = read_play(answer["path"])
    assert about["task"] == "ones to/twos"
    assert (about["pair"], about["steps"], about["solved"]) == ("test 1", 4, True)
    assert arrays["action.operation"].tolist() == [2, SUBMIT, FLOOD + 2, SUBMIT]
    assert arrays["done"].tolist() == [False, False, False, True]
    assert arrays["observation.grid"].shape == (5, 3, 3)
    assert arrays["reward"][-1] == pytest.approx(about["success_bonus"] + about["step_penalty"])

    config = server.game.config
    state = fresh(config)
    for t in range(4):
        action = MaskAction(
            jnp.asarray(arrays["action.operation"][t : t + 1]),
            jnp.asarray(arrays["action.selection"][t : t + 1]),
        )
        state, obs, reward, done, _ = batch_step(state, action, config)
        np.testing.assert_array_equal(reward, arrays["reward"][t : t + 1])
        np.testing.assert_array_equal(done, arrays["done"][t : t + 1])
        for name in ("grid", "size", "clipboard", "trials", "step_count", "operation_mask"):
            expected = arrays[f"observation.{name}"][t + 1]
            np.testing.assert_array_equal(np.asarray(getattr(obs, name))[0], expected)
    assert [shot.operation for shot in server.game.shots()] == [2, SUBMIT, 12, SUBMIT, None]


def test_saving_twice_keeps_both_files_and_counts_what_is_unsaved(tmp_path):
    game = Game(TASK, tmp_path / "new" / "folder")
    with pytest.raises(Refused, match="no step to save"):
        game.save()
    game.step(FILL, np.zeros(game.grid_shape, bool))
    assert game.unsaved == 1
    paths = {game.save(), game.save()}
    assert len(paths) == 2
    assert game.unsaved == 0
    assert sorted((tmp_path / "new" / "folder").iterdir()) == sorted(paths)


def test_a_folder_that_cannot_be_written_is_told_and_the_game_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    with serving(Game(TASK, tmp_path / "file")) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
        kind = {"Content-Type": "application/json"}
        for path, body, expected in (
            ("/api/step", '{"operation": 0}', 200),
            ("/api/save", "{}", 500),
            ("/api/step", '{"operation": 0}', 200),
        ):
            connection.request("POST", path, body, kind)
            answer = connection.getresponse()
            content = json.loads(answer.read())
            assert answer.status == expected
            if expected == 500:
                assert str(tmp_path / "file") in content["error"]
        connection.close()


def test_a_file_that_is_no_play_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(2))
    with pytest.raises(ValueError, match="no saved play"):
        read_play(tmp_path / "other.npz")


def test_a_port_that_is_taken_is_told(server, tmp_path):
    port = server.server_address[1]
    with pytest.raises(OSError, match=f"port {port} cannot be used"):
        PlayServer(server.game, port)
    with pytest.raises(ValueError, match="no port 70000"):
        PlayServer(server.game, 70000)


# The browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("the browser tests need Debian's chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need the playwright package"
    )
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def play(browser, tmp_path):
    """play(task): its page and the game behind it; if watched, nothing may go wrong in it."""

    @contextmanager
    def visit(task, width=1280, height=860, watched=True):
        wrong = []
        game = Game(task, tmp_path / "plays")
        game.warm_up()
        with serving(game) as server:
            view = browser.new_page(viewport={"width": width, "height": height})
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
        assert [s.operation for s in game.shots()[:-1]] == [14, 28, 23, 21, 1, 31]


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
        view.route("**/api/*", lambda route: route.abort())
        view.keyboard.press("1")
        wait_for_status(view, "the server does not answer")


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
