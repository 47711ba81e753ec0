"""One session in two tabs of a browser: the later one takes it over, and nothing runs twice."""

import asyncio
import http.client
import json
import threading
from importlib.resources import files
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")

from worldloom.report.run_list import RunList
from worldloom.serving.serve import listen
from worldloom.serving.studio import MOVED, SESSIONS, Studio, make_server

TOKEN = "a-token-for-the-tests"


class Clock:
    """A world that counts: its own steps, and what a person did."""

    def __init__(self, env):
        self.ticks = self.moves = 0

    def describe(self):
        return {"period": 0.005}

    def reset(self, seed):
        self.ticks, self.moves = seed, 0
        return self.state()

    def act(self, message):
        self.moves += "move" in message
        self.ticks += "move" not in message
        return self.state()

    def state(self):
        return {"ticks": self.ticks, "moves": self.moves}


@pytest.fixture(scope="module")
def clocks(tmp_path_factory):
    """The address of a studio with a world that counts."""
    toy = {"toy": SimpleNamespace(studio=Clock)}
    none = files("worldloom.report")
    runs = RunList(tmp_path_factory.mktemp("runs"))
    worlds = {"clock": "counts"}
    studio = Studio(runs, toy, lambda _: worlds, dict, str, lambda _: none, none)
    listener = listen("127.0.0.1", 0)
    server = make_server(studio, TOKEN, listener)
    serve = server.serve(sockets=[listener])
    thread = threading.Thread(target=lambda: asyncio.run(serve), daemon=True)
    thread.start()
    yield listener.getsockname()[:2]
    server.should_exit = True
    thread.join(timeout=60)
    listener.close()


@pytest.fixture
def client(clocks, client_of):
    made = client_of(clocks)
    yield made
    made.close()


def begin(client, seed=0):
    status, opened = client.send(
        "POST", "/api/sessions", {"suite": "toy", "world": "clock", "seed": seed}
    )
    assert status == 200
    return f"/api/sessions/{opened['id']}", opened["tab"]


class Stream:
    """Events of a session, as a browser would hear them."""

    def __init__(self, address, path):
        self.link = http.client.HTTPConnection(*address, timeout=60)
        self.link.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        self.answer = self.link.getresponse()

    def event(self):
        """The next event: its name and what it holds; None at the end."""
        kind = "message"
        while line := self.answer.readline().decode():
            name, _, value = line.strip().partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                return kind, json.loads(value)
        return None

    def close(self):
        self.link.close()
        self.answer.close()


def test_the_tab_that_opens_a_session_later_takes_it_over(client):
    path, first = begin(client, seed=7)
    assert client.send("POST", f"{path}/act?tab={first}", {"move": 1})[1] == {
        "ticks": 7,
        "moves": 1,
    }
    status, joined = client.send("POST", f"{path}/join", {})
    assert (status, joined["state"]) == (200, {"ticks": 7, "moves": 1}), "it goes on as it was"
    assert joined["tab"] != first
    for what, body in (("act", {"move": 1}), ("reset", {"seed": 1})):
        status, answer = client.send("POST", f"{path}/{what}?tab={first}", body)
        assert (status, answer["detail"]) == (409, MOVED)
        assert client.send("POST", f"{path}/{what}", body)[0] == 409, "and who has no tab"
    state = client.send("POST", f"{path}/act?tab={joined['tab']}", {"move": 1})[1]
    assert state == {"ticks": 7, "moves": 2}, "the first tab has changed nothing"
    back = client.send("POST", f"{path}/join", {})[1]["tab"]
    assert client.send("POST", f"{path}/act?tab={joined['tab']}", {})[0] == 409
    assert client.send("POST", f"{path}/act?tab={back}", {})[0] == 200


def test_the_stream_of_the_first_tab_ends_and_says_why(clocks, client):
    path, first = begin(client)
    stream = Stream(clocks, f"{path}/stream?tab={first}")
    assert stream.event() == ("message", {"ticks": 1, "moves": 0})
    client.send("POST", f"{path}/join", {})
    while (event := stream.event())[0] == "message":
        pass
    assert event == ("moved", MOVED)
    assert stream.event() is None
    stream.close()
    late = Stream(clocks, f"{path}/stream?tab={first}")  # a tab that was hidden meanwhile
    assert late.event() == ("moved", MOVED)
    late.close()


def test_a_stream_that_is_opened_again_does_not_make_time_run_twice_as_fast(clocks, client):
    path, tab = begin(client)
    old = Stream(clocks, f"{path}/stream?tab={tab}")
    assert old.event()[0] == "message"
    new = Stream(clocks, f"{path}/stream?tab={tab}")
    ticks = [new.event()[1]["ticks"] for _ in range(3)]
    while (event := old.event()) and event[0] == "message":
        pass
    assert event == ("moved", MOVED), "the old one ends"
    more = [new.event()[1]["ticks"] for _ in range(20)]
    assert more == list(range(more[0], more[0] + 20)), "each step is seen by one"
    assert more[0] > ticks[-1]
    new.close()
    old.close()


def test_the_session_that_was_played_longest_ago_ends_for_another(clocks, client):
    opened = [begin(client) for _ in range(SESSIONS)]
    (first, tab), (second, other) = opened[:2]
    assert client.send("POST", f"{first}/act?tab={tab}", {})[0] == 200
    stream = Stream(clocks, f"{second}/stream?tab={other}")
    assert stream.event()[0] == "message"
    for _ in range(SESSIONS - 2):
        begin(client)
    assert client.send("POST", f"{first}/act?tab={tab}", {})[0] == 200
    assert stream.event()[0] == "message", "who looks on plays"
    status, answer = client.send("POST", f"{opened[2][0]}/act?tab={opened[2][1]}", {})
    assert (status, answer["detail"]) == (422, "this session has ended; start another")
    stream.close()
