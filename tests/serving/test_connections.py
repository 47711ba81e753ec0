"""Connections that do nothing, never finish, or are too many: they end, and others are answered."""

import contextlib
import json
import socket

import pytest

pytest.importorskip("fastapi")

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
