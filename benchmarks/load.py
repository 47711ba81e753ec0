"""Requests over kept-alive connections, and what came back.

Bytes are made before the clock starts and read after it stops: a generator that shares its cores
with the server must cost little, and the same whatever it measures.
"""

import heapq
import json
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

SILENCE = 60.0  # seconds without any answer after which those who wait give up


@dataclass
class Load:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)  # of every answer
    bodies: list[bytes] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    took: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.took if self.took else 0.0

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the answers came."""
        return 1e3 * float(np.percentile(self.seconds, share)) if self.seconds else float("nan")

    def wrong(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    def tally(self) -> dict[str, Any]:
        """What answers of `worldloom serve` say.

        acknowledged: number of a record -> its hash; late: answers that are emergency actions
        because time ran out; emergencies: those for whatever reason.
        """
        answers = [json.loads(body) for body in self.bodies]
        return {
            "acknowledged": {a["record"]["seq"]: a["record"]["hash"] for a in answers},
            "late": sum(a["late"] for a in answers),
            "emergencies": sum(a["emergency"] for a in answers),
        }


def request(url: str, method: str, path: str, token: str | None, body: bytes = b"") -> bytes:
    """An HTTP request, whole."""
    head = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
    if token is not None:
        head += f"Authorization: Bearer {token}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def requests(
    url: str, path: str, token: str | None, about: Mapping[str, Any], observations: np.ndarray
) -> list[bytes]:
    """Requests that say `about` with one of the observations (k, n) each."""
    bodies = (json.dumps({**about, "observation": row}).encode() for row in observations.tolist())
    return [request(url, "POST", path, token, body) for body in bodies]


class Connection:
    """One kept-alive connection, its requests in turn, and what has come of an answer."""

    def __init__(self, url: str, requests: Sequence[bytes], number: int = 0):
        self.number = number
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port), SILENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.requests, self.sent, self.due, self._data = requests, 0, 0.0, b""

    def send(self) -> None:
        self.socket.sendall(self.requests[self.sent % len(self.requests)])
        self.sent += 1

    def receive(self) -> tuple[int, bytes] | None:
        """Status and body of an answer once all of it is there; OSError where it ends before."""
        part = self.socket.recv(65536)
        if not part:
            raise ConnectionError("the server closed the connection")
        self._data += part
        end = self._data.find(b"\r\n\r\n") + 4
        if end < 4:
            return None
        head = self._data[:end].lower()
        at = head.find(b"content-length:")
        size = int(head[at + 15 : head.index(b"\r", at)]) if at >= 0 else 0
        if len(self._data) < end + size:
            return None
        body, self._data = self._data[end : end + size], self._data[end + size :]
        return int(head[9:12]), body


def ask(
    url: str, method: str, path: str, token: str | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    """Status and body of the answer to one request."""
    connection = Connection(url, [request(url, method, path, token, body)])
    with connection.socket:
        connection.send()
        while True:
            answer = connection.receive()
            if answer is not None:
                return answer


def drive(
    url: str,
    plants: Sequence[Sequence[bytes]],
    *,
    seconds: float,
    rate: float | None = None,
    into: Load | None = None,
    most: int = 1_000_000,
) -> Load:
    """Sends the requests of every plant over a connection of its own; ends when the server does.

    rate: requests a second of all together, at times that do not wait for answers, from which
    latencies then count; None: each asks again as soon as it is answered. into: where what is seen
    is noted while it happens. most: answers, after which nobody asks again.
    """
    found = Load() if into is None else into
    clients = [Connection(url, requests, number) for number, requests in enumerate(plants)]
    clock, count = time.perf_counter, len(clients)
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        start = clock()
        end, waiting = start + seconds, 0

        def due(number: int) -> float:
            if rate is None:
                return clock()
            return start + (number + clients[number].sent * count) / rate

        def lost(client: Connection) -> None:
            found.wrong("connection lost")
            selector.unregister(client.socket)

        agenda = [(due(number), number) for number in range(count)]  # a heap: who asks next
        heapq.heapify(agenda)
        while agenda or waiting:
            while agenda and (agenda[0][0] <= clock()):
                when, number = heapq.heappop(agenda)
                if when < end and len(found.seconds) < most:
                    clients[number].due = when
                    try:
                        clients[number].send()
                        waiting += 1
                    except OSError:
                        lost(clients[number])
            if not (agenda or waiting):
                break
            pause = max(agenda[0][0] - clock(), 0.0) if agenda else SILENCE
            ready = selector.select(pause)
            if not ready and not agenda:
                found.wrong("no answer")
                break
            for key, _ in ready:
                client: Connection = key.data
                try:
                    answer = client.receive()
                except OSError:
                    waiting -= 1
                    lost(client)
                    continue
                if answer is None:
                    continue
                waiting -= 1
                if answer[0] == 200:
                    found.seconds.append(clock() - client.due)
                    found.bodies.append(answer[1])
                else:
                    found.wrong(f"status {answer[0]}")
                heapq.heappush(agenda, (due(client.number), client.number))
        found.took = clock() - start
    for client in clients:
        client.socket.close()
    return found
