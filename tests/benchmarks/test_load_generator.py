"""The load generator: what it sends, when, and what it counts."""

import json
import socket
import threading

import numpy as np
import pytest

from benchmarks import plant_serving_compared
from benchmarks.load import Load, ask, drive, requests

HEAD = b"HTTP/1.1 %d Whatever\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def answering():
    """answering(statuses): the address of a server whose connections answer so, and then close."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def start(statuses):
            def serve():
                while True:
                    try:
                        link, _ = listener.accept()
                    except OSError:
                        return
                    threading.Thread(target=converse, args=[link], daemon=True).start()

            def converse(link):
                with link, link.makefile("rb") as file:
                    for status in statuses:
                        length = None
                        while (line := file.readline()) not in (b"\r\n", b""):
                            if line.startswith(b"Content-Length: "):
                                length = int(line[16:])
                        if length is None:
                            return
                        body = file.read(length)
                        answer = HEAD % (status, len(body)) + body
                        link.sendall(answer[:20])
                        link.sendall(answer[20:])  # it may come in pieces

            threading.Thread(target=serve, daemon=True).start()
            return "http://{}:{}".format(*listener.getsockname())

        yield start


def plants(url, count=2):
    rows = np.arange(count * 3 * 2.0).reshape(count, 3, 2)
    return [requests(url, "/act", None, {"plant": f"p{i}"}, rows[i]) for i in range(count)]


def test_every_plant_sends_its_observations_in_turn_over_its_own_connection(answering):
    url = answering([200] * 5)
    found = drive(url, plants(url), seconds=60.0)
    bodies = [json.loads(body) for body in found.bodies]
    of_second = [body["observation"] for body in bodies if body["plant"] == "p1"]
    assert of_second == [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0], [6.0, 7.0], [8.0, 9.0]]
    assert len(bodies) == len(found.seconds) == 10
    assert found.errors == {"connection lost": 2}
    assert found.rate == pytest.approx(10 / found.took)


def test_other_statuses_are_errors_and_no_answers(answering):
    url = answering([200, 503, 200])
    found = drive(url, plants(url, 1), seconds=60.0)
    assert len(found.bodies) == 2
    assert found.errors == {"status 503": 1, "connection lost": 1}


def test_a_rate_is_kept_and_the_count_is_bounded(answering):
    url = answering([200] * 1000)
    found = drive(url, plants(url), seconds=0.2, rate=50.0)
    assert len(found.seconds) == 10  # whatever the machine does meanwhile
    assert found.took >= 0.18
    assert len(drive(url, plants(url), seconds=60.0, most=6).seconds) in (6, 7)


def test_one_request_can_be_asked(answering):
    assert ask(answering([404]), "GET", "/") == (404, b"")


def test_answers_are_tallied():
    answer = {"record": {"seq": 3, "hash": "h"}, "late": False, "emergency": True}
    assert Load(bodies=[json.dumps(answer).encode()]).tally() == {
        "acknowledged": {3: "h"},
        "late": 0,
        "emergencies": 1,
    }


def test_without_the_peers_the_error_says_how_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setattr(plant_serving_compared, "PEERS", tmp_path)
    with pytest.raises(ValueError, match="make peers"):
        plant_serving_compared.Peer("mosec", tmp_path, tmp_path / "noise", [0.0])
