"""A small plant with a policy and constraints, exported once for all tests of serving."""

import asyncio
import http.client
import json
import threading
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

TOKEN = "a-token-for-the-tests"
HOME = {"valve": 50.0, "pump": 750.0}  # where the emergency action puts the actuators
CONSTRAINT_TEXT = "# by the operator\nemergency: {valve: 50 %, pump: 750 rpm}\n"


@dataclass(frozen=True)
class SmallPlant:
    """Three signals, two actuators: x' = 0.9 x + B u, with a rate and a barrier."""

    policy: object
    constraints: object
    signals: dict
    statistics: dict


def small_policy(noise=0.0):
    from worldloom.nn.offline import deterministic, make_mlp
    from worldloom.nn.policy import PolicyState

    weights = make_mlp(jax.random.key(3), (3, 16, 16, 2))
    weights = jax.tree.map(lambda x: 2.0 * x, weights)  # so that actions differ
    mean, std = jnp.asarray([0.0, 10.0, -5.0]), jnp.asarray([1.0, 4.0, 2.0])
    return PolicyState(weights, mean, std, deterministic, noise)


def small_constraints(latch_after=3):
    from worldloom.safety import Barrier, make_constraints

    gains = jnp.asarray([[0.3, 0.1], [0.2, -0.4], [0.0, 0.5]])

    def model(obs, action):
        return 0.9 * obs + (gains * action).sum(axis=-1)

    return make_constraints(
        3, [0.0, -0.5], rate={0: 0.5},
        barriers=[Barrier("first", [-1.0, 0.0, 0.0], 2.0, gamma=0.5)], model=model,
        latch_after=latch_after, actuators=["valve", "pump"],
    )  # fmt: skip


@pytest.fixture(scope="session")
def small_plant():
    from worldloom.serving.export import observation_statistics

    seen = np.random.default_rng(0).normal([0.0, 10.0, -5.0], [1.0, 4.0, 2.0], (500, 3))
    signals = {
        "observation": [
            {"name": "temperature", "unit": "K", "low": -3.0, "high": 3.0},
            {"name": "level", "unit": "m", "low": -5.0, "high": 25.0},
            {"name": "flow", "unit": "L/min", "low": -12.0, "high": 2.0},
        ],
        "action": [
            {"name": "valve", "unit": "%", "low": 0.0, "high": 100.0},
            {"name": "pump", "unit": "rpm", "low": 500.0, "high": 1500.0},
        ],
    }
    return SmallPlant(small_policy(), small_constraints(), signals, observation_statistics(seen))


@pytest.fixture(scope="session")
def bundle_folder(small_plant, compiled_once, tmp_path_factory):
    """A bundle in a folder. Look, do not touch: copy it to change it."""
    from worldloom.serving.export import export_bundle

    return export_bundle(
        tmp_path_factory.mktemp("plant") / "bundle", small_plant.policy, small_plant.constraints,
        signals=small_plant.signals, statistics=small_plant.statistics,
        provenance={"algo": "none"}, constraint_text=CONSTRAINT_TEXT, batch_sizes=(1, 16),
        onnx=False,
    )  # fmt: skip


@pytest.fixture(scope="session")
def bundle(bundle_folder):
    from worldloom.serving.bundle import load_bundle

    loaded = load_bundle(bundle_folder)
    loaded.warm()
    return loaded


@pytest.fixture(scope="session")
def usual():
    """usual(count, seed=0): observations (count, 3) like those of the training data."""

    def draw(count, seed=0):
        luck = np.random.default_rng(seed)
        return luck.normal([0.0, 10.0, -5.0], [0.5, 2.0, 1.0], (count, 3)).astype(np.float32)

    return draw


class Client:
    """Requests over one kept-alive connection."""

    def __init__(self, address, token=TOKEN):
        self._address, self.token = address, token
        self._link = http.client.HTTPConnection(*address, timeout=600)

    def send(self, method, path, body=None, headers=None):
        """Status, and the answer as JSON (or text where it is none)."""
        given = {"Content-Type": "application/json"} if method == "POST" else {}
        if self.token is not None:
            given["Authorization"] = f"Bearer {self.token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self._link.request(method, path, body, given | (headers or {}))
        answer = self._link.getresponse()
        content, self.headers = answer.read(), answer.headers
        if answer.getheader("connection") == "close":
            self._link.close()
        kind = answer.getheader("content-type", "")
        return answer.status, json.loads(content) if "json" in kind else content.decode()

    def act(self, plant, observation, previous=HOME, headers=None):
        body = {"plant": plant, "observation": observation, "previous": previous}
        return self.send("POST", "/act", body, headers)

    def close(self):
        self._link.close()


@pytest.fixture(scope="session")
def client_of():
    """client_of(address): a `Client`."""
    return Client


@pytest.fixture(scope="module")
def served(bundle, tmp_path_factory):
    """served(**changes): the address and controller of a server in a thread of this process."""
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    from worldloom.serving.connections import ConnectionLimits
    from worldloom.serving.controller import Controller, Limits
    from worldloom.serving.direct import Direct
    from worldloom.serving.gate import GateRules
    from worldloom.serving.journal import Journal
    from worldloom.serving.serve import settings
    from worldloom.serving.server_app import make_app

    running = []

    def start(
        log=None,
        token=TOKEN,
        body_bytes=2000,
        fsync="none",
        connections=None,
        shadow=False,
        **limits,
    ):
        path = log or tmp_path_factory.mktemp("served") / "audit.jsonl"
        allowed = Limits(**({"deadline": 5.0} | limits))
        controller = Controller(bundle, Journal(path, fsync), allowed, shadow)
        rules = GateRules(token, body_bytes, body_seconds=0.5)
        app = make_app(controller, rules)
        allowed = ConnectionLimits(**(connections or {}))
        way = Direct(controller, rules)
        server = uvicorn.Server(settings(app, allowed, way, port=0, log_level="error"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        running.append((server, thread))
        return server.servers[0].sockets[0].getsockname()[:2], controller

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(timeout=600)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def studio_runs(tmp_path_factory):
    """A folder with runs of every state; `live` is for a test to go on with."""
    from suites.grid.made_run import make_run

    folder = tmp_path_factory.mktemp("studio")
    make_run(folder / "hunt", iterations=40)
    make_run(folder / "sweep" / "seed=1", iterations=30, films=False, seed=1)
    make_run(folder / "live", iterations=10, films=False)
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"format": 2, "conf')
    (folder / "points").mkdir()
    (folder / "points" / "sweep.json").write_text('{"results": [{"mean": 9e9}], "complete": true}')
    (folder / "points" / "sweep.html").write_text("<title>of points</title>")
    (folder / "hunt" / "report.html").write_text("<title>of hunt</title>")
    (folder / "hunt" / "secret.txt").write_text("not for others")
    (folder / "hunt" / "linked.html").symlink_to(folder / "broken" / "config.json")
    return folder


@pytest.fixture
def training(studio_runs):
    """The run `live` while a process, this one, trains in it."""
    from worldloom.training.folders import locked

    with locked(studio_runs / "live"):
        yield studio_runs / "live"


@pytest.fixture(scope="module")
def studio(studio_runs):
    """The address of a studio with these runs, in a thread of this process, and its server."""
    pytest.importorskip("fastapi")
    from worldloom.cli.studio import make_studio
    from worldloom.serving.serve import listen
    from worldloom.serving.studio import make_server

    listener = listen("127.0.0.1", 0)
    server = make_server(make_studio(studio_runs), TOKEN, listener)
    ends = {"sockets": [listener]}
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(**ends)), daemon=True)
    thread.start()
    yield listener.getsockname()[:2], server
    server.should_exit = True
    thread.join(timeout=15)
    listener.close()
    assert not thread.is_alive()
