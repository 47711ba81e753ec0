"""Connections that do nothing, never finish, or are too many: they end, and others are answered."""

import contextlib
import json
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")

from worldloom.serving.connections import ConnectionLimits, limited
from worldloom.serving.direct import Head

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def server(served):
    return served(connections={"connections": 20, "idle_seconds": 0.4, "request_seconds": 0.8})


def ended(link):
    """Whether the server closes a connection; what it says before is left aside."""
    with contextlib.suppress(ConnectionError):
        while link.recv(4096):
            pass
    return True


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: x\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\n",
        b"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",  # 401, and no body
    ],
    ids=["nothing", "half a head", "kept alive", "half a second head", "no body"],
)
def test_a_connection_that_goes_no_further_is_closed(server, start):
    with socket.create_connection(server[0], timeout=600) as link:
        link.sendall(start)
        assert ended(link)


def test_a_head_that_trickles_in_is_not_waited_for(server):
    with socket.create_connection(server[0], timeout=600) as link:
        link.sendall(b"GET /health HTTP/1.1\r\n")
        link.settimeout(0.05)
        for _ in range(400):
            try:
                link.sendall(b"X-Slow: 1\r\n")
                if not link.recv(1):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("it was never closed")


def test_a_head_without_an_end_is_not_kept(server):
    with socket.create_connection(server[0], timeout=600) as link:
        with contextlib.suppress(ConnectionError):
            link.sendall(b"GET /health HTTP/1.1\r\n")
            for _ in range(1000):
                link.sendall(b"X-Long: " + b"x" * 1000 + b"\r\n")
        assert ended(link)


def test_silent_connections_keep_nobody_out(served, client_of, usual):
    address, _ = served(connections={"connections": 20, "idle_seconds": 3600.0})
    client = client_of(address)
    obs = usual(1)[0].tolist()
    assert client.act("a", obs)[0] == 200
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(address, timeout=600))
        assert client.act("a", obs)[0] == 200, "who has asked already is closed last"
        newcomer = client_of(address)
        assert newcomer.act("b", obs)[0] == 200
        newcomer.close()
    client.close()


def test_of_two_tokens_or_two_keys_none_counts(server):
    body = json.dumps({"plant": "a", "observation": [0, 0, 0]}).encode()
    right = f"Authorization: Bearer {TOKEN}\r\n"
    for twice in (right * 2, f"{right}Authorization: Bearer wrong\r\n",
                  f"{right}Idempotency-Key: a\r\nIdempotency-Key: b\r\n"):  # fmt: skip
        head = f"POST /act HTTP/1.1\r\nHost: x\r\n{twice}Content-Type: application/json\r\n"
        with socket.create_connection(server[0], timeout=600) as link:
            link.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = ""
            while "is there more than once" not in answer:
                part = link.recv(4096).decode()
                assert part, answer
                answer += part
        assert " 400 " in answer.splitlines()[0]


# Without uvicorn ---------------------------------------------------------------------------------


class Base:
    """Stands in for uvicorn's protocol: notes what it is given."""

    def __init__(self, later):
        self.loop = SimpleNamespace(time=lambda: 0.0, call_later=later)
        self.flow, self.cycle = SimpleNamespace(write_paused=False), None
        self.connections, self.fed, self.closed = {self}, [], False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.fed.append(data)

    def shutdown(self):
        self.closed = True

    def _unset_keepalive_if_required(self):
        pass


class Transport:
    """Notes what is written, and whether it reads."""

    def __init__(self):
        self.written, self.reading, self.closing = [], True, False

    def write(self, data):
        self.written.append(data)

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True


class Plain:
    """Takes `N:BODY` with a body of N bytes for a plain request; `answer` answers the last one."""

    def read(self, data):
        head, colon, body = data.partition(b":")
        if not colon or len(body) > int(head):
            return None
        return Head(int(head), accepted=True), body

    def take(self, request, answer):
        self.answer = answer
        return request[1] != b"refused"


@pytest.fixture
def plain():
    """A protocol with a direct way, and what it would call later."""
    later = []
    way = Plain()
    made = limited(Base, ConnectionLimits(), way)(lambda _, run, *args: later.append((run, args)))
    made.connection_made(Transport())
    made.way, made.patience = way, later
    return made


def test_plain_requests_never_reach_the_parser(plain):
    for data in (b"3:abc", b"1:x"):
        plain.data_received(data)
        assert not plain.idle()
        plain.way.answer(b"answer to " + data)
        assert plain.idle()
    assert plain.fed == []
    assert plain.transport.written == [b"answer to 3:abc", b"answer to 1:x"]


def test_what_is_not_taken_goes_to_the_parser_and_the_next_may_be_taken(plain):
    plain.data_received(b"7:refused")
    assert plain.fed == [b"7:refused"]
    plain.data_received(b"1:x")
    assert plain.fed == [b"7:refused"]


@pytest.mark.parametrize("odd", [b"nothing plain", b"1:xy"])
def test_after_anything_else_all_is_the_parsers(plain, odd):
    for data in (odd, b"1:x"):
        plain.data_received(data)
    assert plain.fed == [odd, b"1:x"]


def test_a_part_that_comes_while_the_parser_is_busy_is_the_parsers_with_its_rest(plain):
    """Else the rest, in the middle of a body, could pass for a request."""
    plain.cycle = SimpleNamespace(response_complete=False)
    plain.data_received(b"7:abc")
    plain.cycle.response_complete = True
    plain.data_received(b"1:x")
    plain.data_received(b"1:x")
    assert plain.fed == [b"7:abc", b"1:x", b"1:x"]


def test_a_body_may_come_after_its_head_but_not_for_ever(plain):
    plain.data_received(b"3:")
    plain.data_received(b"abc")
    plain.way.answer(b"first")
    plain.data_received(b"3:a")
    run, args = plain.patience[-1]
    run(*args)  # it has waited long enough
    assert plain.fed == [b"3:a"]
    plain.data_received(b"bc")
    plain.data_received(b"1:x")
    assert plain.fed == [b"3:a", b"bc", b"1:x"]
    assert plain.transport.written == [b"first"]


def test_a_body_in_three_pieces_is_the_parsers(plain):
    for data in (b"3:", b"a", b"bc"):
        plain.data_received(data)
    assert plain.fed == [b"3:a", b"bc"]


def test_what_comes_before_the_answer_waits_for_it(plain):
    for data in (b"1:a", b"1:b", b"odd", b"1:c"):
        plain.data_received(data)
    assert (plain.fed, plain.transport.reading) == ([], False)
    plain.way.answer(b"a")
    plain.way.answer(b"b")
    assert plain.transport.written == [b"a", b"b"]
    assert (plain.fed, plain.transport.reading) == ([b"odd", b"1:c"], True)


def test_a_server_that_ends_answers_first(plain):
    plain.data_received(b"1:a")
    plain.shutdown()
    assert not plain.transport.closing
    plain.way.answer(b"a")
    assert (plain.transport.written, plain.transport.closing) == ([b"a"], True)


def test_who_has_gone_is_not_written_to(plain):
    plain.data_received(b"1:a")
    plain.transport.closing = True
    plain.way.answer(b"a")
    assert plain.transport.written == []
