"""Requests that are answered without a framework: the same answers, and no check is passed by."""

import asyncio
import dataclasses
import json
import socket
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from serving.controlled import run
from serving.test_serve_controller import Slow
from worldloom.serving.answers import outcome_answer
from worldloom.serving.audit import verify_log
from worldloom.serving.changes import read_outcome
from worldloom.serving.controller import Controller, Limits
from worldloom.serving.direct import Direct
from worldloom.serving.gate import GateRules
from worldloom.serving.journal import Journal
from worldloom.serving.plants import Refused, Turn
from worldloom.serving.replay import replay_log

TOKEN = "a-token-for-the-tests"
HOME = {"valve": 50.0, "pump": 750.0}
HEAD = (
    "POST /act HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {token}\r\n"
    "Content-Type: application/json\r\n{more}Content-Length: {length}\r\n\r\n"
)


def request(plant="a", observation=(0.1, 10.0, -5.0), more="", token=TOKEN, **fields):
    body = json.dumps(
        {"plant": plant, "observation": list(observation), "previous": HOME} | fields
    ).encode()
    return HEAD.format(token=token, more=more, length=len(body)).encode() + body


def answers_of(link, count=1):
    """Status and content of the next answers on a connection."""
    answers = []
    with link.makefile("rb") as file:
        for _ in range(count):
            status, length = int(file.readline().split()[1]), 0
            while (line := file.readline().lower()) not in (b"\r\n", b""):
                if line.startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = file.read(length)
            answers.append((status, json.loads(body) if body.startswith(b"{") else body))
    return answers


def answer_of(link):
    return answers_of(link)[0]


class Taken:
    """Counts the requests that a controller took without a framework."""

    def __init__(self, controller, monkeypatch):
        self.count, real = 0, controller.act_now

        def act_now(*args):
            taken = real(*args)
            self.count += taken
            return taken

        monkeypatch.setattr(controller, "act_now", act_now)


@pytest.fixture(scope="module")
def server(served, client_of):
    address, controller = served()
    client = client_of(address)
    for name in ("a", "b", "c", "d"):
        assert client.send("POST", "/reset", {"plant": name, "previous": HOME})[0] == 200
    client.close()
    return address, controller


@pytest.fixture
def taken(server, monkeypatch):
    return Taken(server[1], monkeypatch)


@pytest.fixture
def link(server):
    with socket.create_connection(server[0], timeout=600) as made:
        yield made


# What is plain -----------------------------------------------------------------------------------


@pytest.fixture
def direct(server):
    return Direct(server[1], GateRules(TOKEN, 2000))


def test_a_plain_request_is_read_and_accepted(direct):
    head, body = direct.read(request())
    assert head.accepted
    assert json.loads(body)["plant"] == "a"
    assert direct.read(request(more="Idempotency-Key: k\r\n"))[0].idempotency_key == "k"
    assert direct.read(request(more="Connection: keep-alive\r\nAccept: */*\r\n"))[0].accepted


@pytest.mark.parametrize(
    "data",
    [
        request(token="wrong"),
        request(more="Idempotency-Key: no spaces\r\n"),
        request().replace(b"application/json", b"text/plain"),
        request().replace(b"POST /act", b"POST /reset"),
        request(padding="x" * 2000),
        b"GET /policy HTTP/1.1\r\nHost: here\r\n\r\n",
    ],
    ids=["token", "key", "type", "path", "size", "method"],
)
def test_what_is_plain_but_no_action_is_left_to_others(direct, data):
    head, _ = direct.read(data)
    assert not head.accepted
    assert not direct.take((head, b""), print)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        request() + b" ",
        request() + request(),
        request()[10:],
        request(more="Content-Length: 3\r\n"),
        request(more="Transfer-Encoding: chunked\r\n"),
        request(more="Expect: 100-continue\r\n"),
        request(more="Connection: close\r\n"),
        request(more="Connection: upgrade\r\nUpgrade: websocket\r\n"),
        request(more="X: a\r\n b\r\n"),
        request(more="X:a\r\n"),
        request(more="X : a\r\n"),
        request(more="X: a\n"),
        request(more="X: a\x00\r\n"),
        request(more="X: \r\n"),
        request(more="X: " + "x" * 4000 + "\r\n"),
        request(more=f"authorization: Bearer {TOKEN}\r\n"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request().replace(b"POST /act", b"POST  /act"),
        request().replace(b"POST /act", b"POST /%61ct"),
        request().replace(b"Host: here\r\n", b""),
        request().replace(b"Content-Length: ", b"Content-Length: +"),
        request().replace(b"Content-Length: ", b"Content-Length: 0x"),
    ],
)
def test_what_two_parsers_could_read_in_two_ways_is_not_plain(direct, data):
    assert direct.read(data) is None


def test_a_connection_that_fails_costs_the_others_nothing(direct, server, monkeypatch, capsys):
    told = []
    monkeypatch.setattr(server[1], "act_now", lambda plant, obs, tell, key: told.append(tell))
    answers = []

    def broken(response):
        answers.append(response)
        raise OSError("gone")

    direct.take(direct.read(request()), broken)
    told[0](Refused(503, "no disk", 1.0))
    told[0]({"kind": "act"})  # a mistake of ours
    assert [answer.split(b"\r\n")[0] for answer in answers] == [
        b"HTTP/1.1 503 Service Unavailable",
        b"HTTP/1.1 500 Internal Server Error",
    ]
    assert b"retry-after: 1\r\n" in answers[0]
    assert "OSError: gone" in capsys.readouterr().err


# The same answers --------------------------------------------------------------------------------


def test_whole_or_in_pieces_a_request_gets_the_same_answer(server, taken, usual):
    answers = {}
    for name, cut in (("a", None), ("b", 30), ("c", -20)):
        with socket.create_connection(server[0], timeout=600) as link:
            for row in [*usual(5).tolist(), [0.0, None, 0.0], [3.0, 24.0, 1.0]]:
                data = request(name, row)
                link.sendall(data[:cut])
                if cut is not None:
                    threading.Event().wait(0.001)  # or both pieces come as one
                    link.sendall(data[cut:])
                status, answer = answer_of(link)
                assert status == 200
                del answer["record"], answer["plant"]
                answers.setdefault(name, []).append(answer)
    assert answers["a"] == answers["b"] == answers["c"]
    assert [list(x) for x in answers["a"]] == [list(x) for x in answers["b"]], "in another order"
    assert taken.count >= 7


numbers = st.floats(width=32) | st.floats(-10.0, 30.0, width=32)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5))
def test_answers_made_in_bulk_are_those_of_their_records(bundle, tmp_path_factory, rows):
    log = tmp_path_factory.mktemp("bulk") / "audit.jsonl"

    async def story(controller):
        futures = []
        for i, row in enumerate(rows):
            futures.append(asyncio.get_running_loop().create_future())
            obs = np.asarray(row, np.float32)
            assert controller.act_now(f"p{i}", obs, futures[-1].set_result)
        return await asyncio.gather(*futures)

    for outcome in run(bundle, log, story):
        said = json.loads(outcome["answer"], parse_constant=pytest.fail)
        assert said == outcome_answer(bundle, read_outcome(outcome))
    found = replay_log(log, bundle)
    assert (found.problem, found.replayed, found.different) == (None, len(rows), 0)


def test_requests_that_do_not_wait_are_answered_in_order(server, link, usual):
    data = [request("c", row) for row in usual(6).tolist()]
    link.sendall(data[0])
    link.sendall(data[1] + data[2])
    for one in data[3:]:
        link.sendall(one)
    steps = [answer["step"] for _, answer in answers_of(link, 6)]
    assert steps == list(range(steps[0], steps[0] + 6))


def test_a_body_that_is_late_or_in_many_pieces_is_still_read(link, usual):
    data = request("c", usual(1)[0].tolist())
    for pieces in ([data[:-20], data[-20:-10], data[-10:]], [data[:-1], b"", data[-1:]]):
        for piece in pieces:
            link.sendall(piece)
            threading.Event().wait(0.05)
        assert answer_of(link)[0] == 200


def test_a_request_within_another_one_is_not_seen(link, taken):
    """Bytes that follow half a head are part of it, whatever they look like."""
    link.sendall(b"POST /act HTTP/1.1\r\nHost: here\r\nX-Part: ")
    threading.Event().wait(0.05)
    link.sendall(request("d"))
    status, _ = answer_of(link)
    assert status in (400, 401)
    assert taken.count == 0


def test_a_name_that_is_there_twice_is_seen(link, taken):
    for twice in (b'"plant": "d", "plant": "d"', b'"pl\\u0061nt": "d", "plant": "d"'):
        body = b'{%b, "observation": [0, 0, 0]}' % twice
        link.sendall(HEAD.format(token=TOKEN, more="", length=len(body)).encode() + body)
        status, told = answer_of(link)
        assert (status, told["detail"][0]["message"]) == (422, "it is there more than once")
    assert taken.count == 0


def test_an_idempotency_key_is_carried_out_once(link, taken, usual):
    data = request("d", usual(1)[0].tolist(), more="Idempotency-Key: once\r\n")
    answers = []
    for _ in range(2):
        link.sendall(data)
        answers.append(answer_of(link))
    assert answers[0] == answers[1]
    assert taken.count == 1
    link.sendall(request("d", [1.0, 1.0, 1.0], more="Idempotency-Key: once\r\n"))
    assert answer_of(link)[0] == 409


# Whatever happens --------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    return tmp_path / "audit.jsonl"


def test_a_plant_that_is_not_known_free_or_within_its_rate_is_left(bundle, log, usual):
    async def story(controller):
        obs, told = usual(1)[0], asyncio.get_running_loop().create_future()
        assert not controller.act_now("stranger", obs, told.set_result)
        assert controller.act_now("a", obs, told.set_result)
        assert not controller.act_now("a", obs, told.set_result), "its turn is taken"
        behind = asyncio.create_task(controller.act("a", obs))
        assert (await told)["kind"] == "act"
        assert (await behind)["content"]["memory"]["step"] == 1
        assert not controller.act_now("a", obs, print), "it asks too often"
        with pytest.raises(Refused, match="more than"):
            await controller.act("a", obs)

    run(bundle, log, story, rate=0.001, burst=3)  # one was for its introduction


def test_out_of_time_it_is_the_emergency_action(bundle, log, usual):
    slow = Slow(bundle.control)

    async def story(controller):
        told = asyncio.get_running_loop().create_future()
        assert controller.act_now("a", usual(1)[0], told.set_result)
        outcome = await told
        slow.let()
        return outcome, await controller.act("a", usual(1)[0])

    outcome, after = run(dataclasses.replace(bundle, control=slow), log, story, deadline=0.05)
    assert (outcome["kind"], outcome["content"]["reason"]) == ("emergency", "deadline")
    assert after["content"]["memory"]["emergencies"] == 1
    assert replay_log(log, bundle).different == 0


def test_without_a_record_nothing_is_answered(bundle, log, usual, monkeypatch):
    async def story(controller):
        def full(data):
            raise OSError(28, "No space left on device")

        told = asyncio.get_running_loop().create_future()
        with monkeypatch.context() as patch:
            patch.setattr(controller.journal, "_write", full)
            assert controller.act_now("a", usual(1)[0], told.set_result)
            refusal = await told
        assert (refusal.status, refusal.headers) == (503, {"retry-after": "1"})
        return await controller.act("a", usual(1)[0])

    assert run(bundle, log, story)["content"]["memory"]["step"] == 0
    assert verify_log(log).problem is None


def test_closing_waits_for_what_was_asked(bundle, log, usual):
    async def story():
        controller = Controller(bundle, Journal(log, "none"), Limits(deadline=5.0))
        await controller.open()
        controller.plants.find("a", 0.0).known = True
        told = []
        assert controller.act_now("a", usual(1)[0], told.append)
        await controller.close()
        assert not controller.act_now("a", usual(1)[0], told.append)
        return told

    (outcome,) = asyncio.run(story())
    assert outcome["kind"] == "act"


def test_a_failure_of_the_server_is_told_at_once(bundle, log, usual):
    slow = Slow(bundle.control)

    async def story(controller):
        told = []
        assert controller.act_now("a", usual(1)[0], told.append)
        await slow.busy()
        controller._fail("it is over")
        assert [(error.status, str(error)) for error in told] == [(503, "it is over")]
        slow.let()
        return told

    assert len(run(dataclasses.replace(bundle, control=slow), log, story)) == 1


def test_turns_are_taken_in_order_and_passed_over_who_has_left():
    async def story():
        turn, order = Turn(), []

        async def wait(name):
            async with turn:
                order.append(name)

        assert turn.take()
        assert not turn.take()
        tasks = [asyncio.create_task(wait(name)) for name in "abc"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        turn.leave()
        tasks[1].cancel()  # its turn has come, and it leaves it
        await asyncio.gather(*tasks, return_exceptions=True)
        assert turn.take()
        return order

    assert asyncio.run(story()) == ["c"]
