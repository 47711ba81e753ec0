"""Playing by hand: the page's server, and what it saves."""

import http.client
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import arc as reference
from worldloom.suites.arc import MaskAction, Pair, Task, batch_step
from worldloom.suites.arc.environment import start_at
from worldloom.suites.arc.game import GROUPS, Game, Refused, read_play
from worldloom.suites.arc.play import PlayServer, read_selection

pytestmark = pytest.mark.usefixtures("compiled_once")

FILL, FLOOD, SUBMIT = 0, 10, 34
DEMO = Pair(np.array([[1, 0], [0, 1]], np.int8), np.array([[2, 0], [0, 2]], np.int8))
INPUT = np.array([[1, 1, 0], [0, 1, 0]], np.int8)
TASK = Task("ones to/twos", (DEMO, DEMO), (Pair(INPUT, INPUT * 2),))


@pytest.fixture(scope="module")
def server(tmp_path_factory, compiled_once, serving):
    with serving(Game(TASK, tmp_path_factory.mktemp("plays"))) as server:
        yield server


@pytest.fixture
def call(server):
    """call(path, body=None): status and JSON; a GET without a body. Starts a fresh episode."""
    server.game.start(2)
    port = server.server_address[1]

    def send(path, body=None, *, method=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
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


def step(call, operation, *cells):
    body = {"operation": operation, "selection": [list(cell) for cell in cells] or None}
    return call("/api/step", body)


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


def test_every_operation_does_what_the_rules_say(call):
    rng = np.random.default_rng(0)
    world = reference.start(INPUT, INPUT, INPUT * 2, np.ones(41, bool), 3)
    rules = reference.EditRules(max_steps=1000)
    for operation in [*rng.permutation(np.delete(np.arange(41), SUBMIT)).repeat(2), SUBMIT]:
        box = np.zeros((3, 3), bool)
        (top, left), (bottom, right) = np.sort(rng.integers(3, size=(2, 2)), axis=0)
        box[top : bottom + 1, left : right + 1] = True
        point = np.arange(9).reshape(3, 3) == rng.integers(9)
        cells = (box, point, rng.random((3, 3)) < 0.5)[rng.integers(3)]
        status, seen = step(call, int(operation), *np.argwhere(cells).tolist())
        world, _, _ = reference.step(world, int(operation), cells, rules)
        assert status == 200
        assert seen["valid"]
        assert seen["grid"] == world.grid.tolist()
        assert seen["clipboard"] == world.clipboard.tolist()
        assert (seen["trials"], seen["step_count"]) == (world.trials, world.steps)


def test_a_selection_is_the_cells_it_names():
    assert not read_selection(None, (3, 4)).any()
    assert not read_selection([], (3, 4)).any()
    cells = [[0, 0], [2, 3]]
    assert np.argwhere(read_selection(cells, (3, 4))).tolist() == cells


def test_right_answers_solve_and_end_the_episode(call):
    status, seen = step(call, FLOOD + 2, (0, 0))
    assert (status, seen["grid"], seen["over"]) == (200, (INPUT * 2).tolist(), False)
    seen = step(call, SUBMIT)[1]
    assert (seen["solved"], seen["over"], seen["can_take_back"]) == (True, True, False)
    status, answer = step(call, FILL, (0, 0))
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
    grids = [step(call, FILL + n, *np.ndindex(1, n - 4))[1]["grid"] for n in (5, 6, 7)]
    assert call("/api/take-back", {})[1]["grid"] == grids[1]
    assert call("/api/take-back", {})[1]["grid"] == grids[0]
    step(call, SUBMIT)
    step(call, FILL, (0, 0))
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
    step(call, FILL + 2, (0, 0), (0, 1))
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
    (b'{"operation": 1, "selection": {}}', "null or a list of cells"),
    (b'{"operation": 1, "selection": 7}', "null or a list of cells"),
    (b'{"operation": 1, "selection": [7]}', "null or a list of cells"),
    (b'{"operation": 1, "selection": [[0, 0, 1]]}', "null or a list of cells"),
    (b'{"operation": 1, "selection": [[0, 1.5]]}', "null or a list of cells"),
    (b'{"operation": 1, "selection": [[0, true]]}', "null or a list of cells"),
    (b'{"operation": 1, "selection": [[1, 1], [0, 3]]}', "canvas of 3x3"),
    (b'{"operation": 1, "selection": [[-1, 0]]}', "canvas of 3x3"),
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
    step(call, FILL + 9, (1, 1))
    call("/api/take-back", {})
    step(call, FILL + 2, (0, 0), (1, 1))
    step(call, SUBMIT)
    step(call, FLOOD + 2, (0, 1))
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


def test_a_folder_that_cannot_be_written_is_told_and_the_game_goes_on(tmp_path, serving):
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
