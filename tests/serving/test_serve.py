"""The HTTP service: who may ask, what is understood, and what is answered."""

import json
import socket
import threading
import time

import pytest

pytest.importorskip("fastapi")

from worldloom.cli.serve import command
from worldloom.serving.answers import BadField, read_action, read_body, read_observation
from worldloom.serving.audit import verify_log
from worldloom.serving.journal import Journal
from worldloom.serving.serve import ServeConfig, check, listen, same_policy

TOKEN = "a-token-for-the-tests"
HOME = {"valve": 50.0, "pump": 750.0}  # where the emergency action puts the actuators


@pytest.fixture(scope="module")
def server(served):
    return served()


@pytest.fixture
def client(server, client_of):
    made = client_of(server[0])
    yield made
    made.close()


# Answers -----------------------------------------------------------------------------------------


def test_an_action_comes_with_units_margins_and_its_record(client, server, bundle, usual):
    obs = usual(1)[0]
    status, answer = client.act("first", obs.tolist())
    assert status == 200
    wanted = bundle.act(obs, bundle.initial_memory())
    assert answer["normalised"] == wanted.action.tolist()
    valve, pump = wanted.action.tolist()
    assert answer["action"] == {
        "valve": pytest.approx(50.0 * (valve + 1.0)),
        "pump": pytest.approx(1000.0 + 500.0 * pump),
    }
    assert list(answer["margins"]) == bundle.rows
    assert answer["margins"]["barrier:first"] == float(wanted.report["margins_after"][-1])
    assert (answer["step"], answer["late"], answer["drift"]) == (0, False, [])
    journal = server[1].journal
    line = journal.path.read_text().splitlines()[answer["record"]["seq"]]
    assert json.loads(line)["hash"] == answer["record"]["hash"]
    assert client.act("first", obs.tolist())[1]["step"] == 1


def test_signals_may_be_named(client, usual):
    obs = [float(x) for x in usual(1)[0]]
    by_name = dict(zip(("flow", "level", "temperature"), obs[::-1], strict=True))
    assert client.act("n1", obs)[1]["action"] == client.act("n2", by_name)[1]["action"]


@pytest.mark.parametrize("failed", ["NaN", "null", "Infinity", "1e400", "1e39"])
def test_a_sensor_that_failed_gets_the_emergency_action(client, failed):
    plant = f"failed-{failed}"
    client.send("POST", "/reset", {"plant": plant, "previous": HOME})
    body = f'{{"plant": "{plant}", "observation": [0.1, {failed}, -5.0]}}'.encode()
    status, answer = client.send("POST", "/act", body)
    assert status == 200
    assert (answer["emergency"], answer["input_finite"]) == (True, False)
    assert answer["action"] == HOME
    assert answer["drift"] == ["level"]
    assert answer["margins"]["barrier:first"] is None


def test_override_and_reset(client, usual):
    obs = usual(1)[0].tolist()
    wanted = {"valve": 62.5, "pump": 750.0}  # as /act tells them, and as operators know them
    client.send("POST", "/reset", {"plant": "o", "previous": HOME})
    status, told = client.send("POST", "/override", {"plant": "o", "action": wanted})
    assert (status, told["overriding"], told["override"]) == (200, True, wanted)
    answer = client.act("o", obs)[1]
    assert (answer["action"], answer["normalised"]) == (wanted, [0.25, -0.5])
    assert client.send("POST", "/override", {"plant": "o", "action": None})[1]["override"] is None
    for _ in range(3):
        client.act("o", [None, None, None])
    assert client.act("o", obs)[1]["stopped"]
    status, told = client.send("POST", "/reset", {"plant": "o"})
    assert (status, told["stopped"]) == (200, False)
    assert not client.act("o", obs)[1]["emergency"]
    told = client.send("POST", "/reset", {"plant": "o", "previous": [75.0, 1250.0]})[1]
    assert (told["previous"], told["step"]) == ({"valve": 75.0, "pump": 1250.0}, 0)


def test_a_plant_nobody_introduced_is_not_moved(client, server, usual):
    before = server[1].journal.seq
    for path, more in (
        ("/act", {"observation": usual(1)[0].tolist()}),
        ("/reset", {}),
        ("/reset", {"previous": None}),
        ("/override", {"action": HOME}),
    ):
        status, told = client.send("POST", path, {"plant": "stranger"} | more)
        assert (status, len(told["detail"]) < 300) == (409, True)
        assert "say where its actuators are" in told["detail"]
    assert server[1].journal.seq == before


def test_what_was_answered_can_be_given_back_as_a_place(client, usual):
    """Physical units go round: no actuator is outside of its range by a rounding."""
    action = client.act("round", usual(1)[0].tolist())[1]["action"]
    told = client.send("POST", "/reset", {"plant": "round", "previous": action})[1]
    assert told["previous"] == pytest.approx(action)


def test_a_repeated_request_gets_the_same_answer(client, usual):
    obs = usual(1)[0].tolist()
    keys = ["8e03978e-40d5-43dd-bc93-6894a57f9324", '"8e03978e-40d5-43dd-bc93-6894a57f9324"']
    first, again = (client.act("twice", obs, headers={"Idempotency-Key": key}) for key in keys)
    assert first == again
    assert first[1]["step"] == 0
    status, told = client.act("twice", obs, headers={"Idempotency-Key": "no spaces"})
    assert (status, told["detail"][0]["field"]) == (422, "Idempotency-Key")


def test_health_and_readiness_tell_of_a_log_that_was_moved(served, client_of, tmp_path, usual):
    address, _ = served(log=tmp_path / "audit.jsonl")
    client = client_of(address)
    for path in ("/health", "/ready"):
        assert client.send("GET", path)[0] == 200
    (tmp_path / "audit.jsonl").rename(tmp_path / "moved")
    for path in ("/health", "/ready"):
        status, told = client.send("GET", path)
        assert (status, "audit.jsonl" in told["reason"]) == (503, True)
    assert client.act("a", usual(1)[0].tolist())[0] == 503
    assert "worldloom_ready 0.0" in client.send("GET", "/metrics")[1]
    (tmp_path / "moved").rename(tmp_path / "audit.jsonl")
    assert client.send("GET", "/ready")[0] == 200
    client.close()


def test_what_is_served_can_be_asked(client, bundle):
    status, told = client.send("GET", "/policy")
    assert (status, told["digest"]) == (200, bundle.digest)
    assert told["signals"] == bundle.manifest["signals"]
    assert client.send("GET", "/openapi.json")[1]["paths"].keys() >= {"/act", "/override"}


def test_metrics_are_prometheus_text(client, usual):
    client.act("metrics", usual(1)[0].tolist())
    status, text = client.send("GET", "/metrics")
    assert status == 200
    values = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    assert float(values['worldloom_requests_total{path="/act",status="200"}']) >= 1
    assert float(values["worldloom_ready"]) == 1
    assert (
        values['worldloom_act_seconds_bucket{le="+Inf"}'] == values["worldloom_act_seconds_count"]
    )


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_without_the_token_nothing_is_answered(server, client_of, token):
    stranger = client_of(server[0], token)
    for method, path in (("POST", "/act"), ("GET", "/metrics"), ("GET", "/policy"),
                         ("GET", "/openapi.json"), ("GET", "/docs")):  # fmt: skip
        status, told = stranger.send(method, path, b"{}" if method == "POST" else None)
        assert (status, told["detail"]) == (401, "a token is needed: Authorization: Bearer TOKEN")
    assert stranger.send("GET", "/health")[0] == 200
    assert stranger.send("GET", "/ready") == (200, {"ready": True, "reason": None})
    stranger.close()


def test_nobody_is_sent_elsewhere(client):
    """Starlette would redirect a path with a slash to the host that the request names."""
    for path in ("/act/", "//act"):
        headers = {"Host": "elsewhere.example"}
        assert client.send("POST", path, b"{}", headers)[0] == 404
        assert "location" not in client.headers


def test_a_token_of_another_scheme_is_refused(client):
    assert client.send("GET", "/policy", headers={"Authorization": f"Basic {TOKEN}"})[0] == 401


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (b"{", "body", "it is not JSON"),
        (b"[" * 1500, "body", "it is not JSON"),
        (b"\xff", "body", "it is not JSON"),
        (b'\xef\xbb\xbf{"plant": "a", "observation": [0, 0, 0]}', "body", "BOM"),
        ('{"plant": "a", "observation": [0, 0, 0]}'.encode("utf-16"), "body", "not JSON in UTF-8"),
        ('{"plant": "a", "observation": [0, 0, 0]}'.encode("utf-16-le"), "body", "not JSON in UT"),
        (b'{"plant": "a", "plant": "b", "observation": [0, 0, 0]}', "plant", "more than once"),
        (b'{"plant": "a", "observation": {"level": 0, "level": 1}}', "level", "more than once"),
        ({"plant": "a", "observation": [0, 0, 0], "x" * 1000: 1}, "x" * 80, "no such field"),
        ([], "body", "not a JSON object"),
        ({"observation": [0, 0, 0]}, "plant", "missing"),
        ({"plant": "a"}, "observation", "missing"),
        ({"plant": "a", "observation": [0, 0, 0], "obs": 1}, "obs", "no such field"),
        ({"plant": "../a", "observation": [0, 0, 0]}, "plant", "an id is"),
        ({"plant": 'a"b', "observation": [0, 0, 0]}, "plant", "an id is"),
        ({"plant": "", "observation": [0, 0, 0]}, "plant", "an id is"),
        ({"plant": 7, "observation": [0, 0, 0]}, "plant", "an id is"),
        ({"plant": "a", "observation": [0, 0]}, "observation", "2 numbers; 3 are needed"),
        ({"plant": "a", "observation": "x"}, "observation", "a list of 3 numbers"),
        ({"plant": "a", "observation": [0, "x", 0]}, "observation.level", "not a number"),
        ({"plant": "a", "observation": [0, True, 0]}, "observation.level", "not a number"),
        ({"plant": "a", "observation": [0, [0], 0]}, "observation.level", "not a number"),
        ({"plant": "a", "observation": {"level": 0}}, "observation.temperature", "missing"),
        ({"plant": "a", "observation": {"levle": 0}}, "observation.levle", "level"),
    ],
)
def test_a_field_that_is_wrong_is_named(client, body, field, message):
    status, told = client.send("POST", "/act", body)
    assert status == 422
    assert told["detail"][0]["field"] == field
    assert message in told["detail"][0]["message"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/override", {"plant": "a"}, "action"),
        ("/override", {"plant": "a", "action": [100.1, 800.0]}, "action.valve"),
        ("/override", {"plant": "a", "action": [0.0, 0.5]}, "action.pump"),
        ("/override", {"plant": "a", "action": [0.0, float("nan")]}, "action.pump"),
        ("/override", {"plant": "a", "action": [0.0, None]}, "action.pump"),
        ("/reset", {"plant": "a", "previous": [0.0]}, "previous"),
        ("/reset", {"plant": "a", "previous": [-1.5, 800.0]}, "previous.valve"),
        ("/act", {"plant": "a", "observation": [0, 0, 0], "previous": [-1, 0]}, "previous.valve"),
    ],
)
def test_actions_that_are_no_actions_are_refused(client, path, body, field):
    status, told = client.send("POST", path, body)
    assert (status, told["detail"][0]["field"]) == (422, field)


def test_a_refused_request_leaves_no_trace_in_the_log(client, server):
    before = server[1].journal.seq
    assert client.act("a b", [0, 0, 0])[0] == 422
    assert client.send("GET", "/nowhere")[0] == 404
    assert client.send("GET", "/act")[0] == 405
    assert server[1].journal.seq == before


def test_a_body_that_is_too_large_is_not_read(client, server):
    large = {"plant": "a", "observation": [0.0] * 1000}
    assert client.send("POST", "/act", large) == (
        413, {"detail": "the body is larger than 2000 bytes"},
    )  # fmt: skip
    with socket.create_connection(server[0], timeout=600) as link:  # without saying how large
        head = f"POST /act HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        link.sendall(head.encode())
        for _ in range(3):
            link.sendall(b"320\r\n" + b" " * 800 + b"\r\n")
        assert b" 413 " in link.recv(4096).splitlines()[0]


def test_a_body_that_does_not_come_is_not_waited_for(server):
    with socket.create_connection(server[0], timeout=600) as link:
        head = f"POST /act HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
        link.sendall(head.encode())
        assert b" 408 " in link.recv(4096).splitlines()[0]


def test_only_json_is_taken(client):
    status, told = client.send("POST", "/act", b"{}", {"Content-Type": "text/plain"})
    assert (status, told["detail"]) == (415, "the body must be application/json")


def test_a_plant_that_asks_too_often_is_told_when_to_come_back(served, client_of, usual):
    address, _ = served(rate=1.0, burst=2)
    client = client_of(address)
    obs = usual(1)[0].tolist()
    assert [client.act("a", obs)[0] for _ in range(4)] == [200, 200, 429, 429]
    assert client.headers["retry-after"] == "1"  # whole seconds: HTTP knows no others
    assert client.act("b", obs)[0] == 200
    client.close()


def test_the_deadline_answers_over_http(served, client_of, usual, bundle):
    address, controller = served(deadline=1e-6)
    client = client_of(address)
    status, answer = client.act("a", usual(1)[0].tolist())
    assert status == 200
    assert (answer["late"], answer["emergency"], answer["reason"]) == (True, True, "deadline")
    assert answer["normalised"] == bundle.initial_memory()["fallback"].tolist()
    client.close()
    lines = controller.journal.path.read_text().splitlines()
    assert "emergency" in {json.loads(line)["kind"] for line in lines}


def test_without_a_token_only_this_machine_by_its_name_is_answered(served, client_of, usual):
    address, _ = served(token=None)
    client = client_of(address, None)
    assert client.act("a", usual(1)[0].tolist())[0] == 200
    status, told = client.send("GET", "/policy", headers={"Host": "evil.example"})
    assert (status, told["detail"]) == (403, "host 'evil.example' is not this machine")
    for host, wanted in (("localhost", 200), ("[::1]:80", 200), ("127.0.0.2:80", 200),
                         ("127.0.0.1.evil.example", 403), ("", 403)):  # fmt: skip
        assert client.send("GET", "/policy", headers={"Host": host})[0] == wanted, host
    client.close()


def test_many_clients_at_once_get_answers_that_are_all_on_record(server, client_of, usual):
    obs = usual(40)
    answers = []

    def ask(number):
        client = client_of(server[0])
        for row in obs:
            answers.append(client.act(f"many-{number}", row.tolist()))
        client.close()

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.perf_counter() - start < 20
    assert {status for status, _ in answers} == {200}
    log = server[1].journal.path
    records = {row["seq"]: row for row in map(json.loads, log.read_text().splitlines())}
    for _, answer in answers:
        record = records[answer["record"]["seq"]]
        assert (record["plant"], record["action"]) == (answer["plant"], answer["normalised"])
    assert len({answer["record"]["seq"] for _, answer in answers}) == 240
    assert verify_log(log).problem is None


# Settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "clients need a token: name a file with --token-file"),
        (["--no-token", "--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines"),
        (["--token-file", "nowhere"], "--token-file nowhere cannot be read"),
        (["--token-file", "nowhere", "--no-token"], "exclude each other"),
        (["--no-token", "--deadline", "0"], "deadline=0.0; it must be positive"),
        (["--no-token", "--segment-mb", "0"], "segment_mb=0.0; it must be positive"),
        (["--no-token", "--body-bytes", "0"], "body_bytes=0; it must be at least 1"),
        (["--no-token", "--port", "99999"], "--port 99999: ports are numbers from 0"),
        (["--no-token", "--port", "-1"], "--port -1: ports are numbers from 0"),
        (["--no-token", "--forget-after", "0"], "forget_after=0.0; it must be positive"),
        (["--no-token", "--connections", "0"], "connections=0; it must be at least 1"),
        (["--no-token", "--idle", "nan"], "idle_seconds=nan; it must be a finite number"),
        (["--no-token", "--connections", "1000000000000"], "fewer connections"),
        (["--no-token"], "is no bundle of a policy"),
    ],
)
def test_a_server_that_should_not_start_does_not(tmp_path, monkeypatch, options, message):
    monkeypatch.delenv("WORLDLOOM_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        command(["bundle", *options])
    assert not list(tmp_path.iterdir())


def test_a_log_of_another_policy_is_not_gone_on_with(bundle, tmp_path):
    journal = Journal(tmp_path / "log", "none")
    same_policy(journal, bundle)  # it is new
    journal.append([("start", {"policy": "1" * 64})])
    journal.close()
    journal = Journal(tmp_path / "log", "none")
    with pytest.raises(ValueError, match="is the log of policy 111111111111"):
        same_policy(journal, bundle)
    journal.close()


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(ValueError, match="cannot be listened on"):
        listen(*server[0])


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6_answers_both_kinds():
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()


def test_a_token_that_can_be_guessed_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the token has 5 characters; use at least 16"):
        check(ServeConfig(tmp_path, tmp_path / "log", token="short"))


def test_numbers_are_read_as_they_are():
    signals = [{"name": n, "unit": "m", "low": -1.0, "high": 1.0} for n in "ab"]
    assert read_observation([1, 2.5], signals).tolist() == [1.0, 2.5]
    assert read_observation([10**400, -(10**400)], signals).tolist() == [
        float("inf"),
        -float("inf"),
    ]
    assert read_action("action", {"b": 1, "a": -1}, signals).tolist() == [-1.0, 1.0]
    with pytest.raises(BadField, match="c: there is no such field"):
        read_body(b'{"c": 1}', ["a"])
