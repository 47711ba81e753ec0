"""A server in a process of its own: it ends in good order, and loses nothing when it does not."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("uvicorn")

from benchmarks import plant_serving
from worldloom.serving.audit import verify_log
from worldloom.serving.replay import replay_log
from worldloom.serving.segments import segments_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def quick(monkeypatch, compiled_once):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.fspath(compiled_once))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


@pytest.mark.parametrize("megabytes", ["64", "0.003"])
def test_a_server_that_is_killed_under_load_loses_no_answer(
    bundle_folder, bundle, tmp_path, megabytes
):
    log = tmp_path / "audit.jsonl"
    acknowledged = {}
    for _ in range(2):
        options = ["--fsync", "none", "--segment-mb", megabytes]  # of 3 kB: a few answers each
        with plant_serving.Server(bundle_folder, log, options) as server:
            found = plant_serving.load_and_kill(server, 8, 0.3)
        assert len(found.seconds) > 10
        acknowledged |= found.tally()["acknowledged"]
    # A tail as a power failure would leave it, on top of what the kill left.
    with segments_of(log)[-1].path.open("ab") as file:
        file.write(b'{"seq":99999,"until":1')
    with plant_serving.Server(bundle_folder, log) as server:
        load = plant_serving.load(server, connections=4, seconds=0.3)
        assert not load.errors
        acknowledged |= load.tally()["acknowledged"]
        assert server.stop() == 0
    assert "torn off by a crash" in server.noise.read_text()
    assert list(tmp_path.glob("audit.jsonl.torn-*"))
    assert verify_log(log).problem is None
    segments = segments_of(log)
    assert json.loads(segments[-1].path.read_text().splitlines()[-1])["kind"] == "stop"
    assert (len(segments) > 5) == (megabytes != "64")
    records = plant_serving.recorded(log)
    assert all(records[seq] == digest for seq, digest in acknowledged.items())
    replayed = replay_log(log, bundle)
    assert (replayed.starts, replayed.different) == (3, 0)
    assert replayed.answers >= len(acknowledged)


def test_clients_that_crowd_a_plant_kill_no_loop(bundle_folder):
    """Deadlines that pass while a plant's other clients have their turn once ended the server."""
    pytest.importorskip("uvloop")
    for deadline in (0.02, 0.01, 0.005, 0.002):  # until the machine is too slow for some
        found = plant_serving.wedged(bundle_folder, rounds=2, seconds=1.0, deadline=deadline)
        if found["late"] > 0:
            break
    assert found["answers"] > 100
    assert found["late"] > 0, "no deadline passed: this load proves nothing"
    assert (found["dead_loops"], found["unready"], found["unanswered"]) == (0, 0, 0)
    assert (found["errors"], found["exit_code"], found["log_sound"]) == ({}, 0, True)


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_a_server_that_cannot_answer_ends_with_a_message(bundle_folder, tmp_path, name):
    """A mistake of ours in a loop, again and again: whoever runs the server must hear of it."""
    if name == "uvloop":
        pytest.importorskip("uvloop")
    program = f"""
import sys, uvicorn
from worldloom.cli.serve import command
from worldloom.serving import serve
from worldloom.serving.controller import Controller

config = uvicorn.Config.__init__
uvicorn.Config.__init__ = lambda self, *a, **k: config(self, *a, **(k | dict(loop={name!r})))

async def broken(self):
    raise AttributeError("no such thing")

Controller._next_batch = broken
sys.exit(command([{str(bundle_folder)!r}, "--log", {str(tmp_path / "log")!r}, "--no-token",
                  "--port", "0"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("worldloom serve: the batch loop cannot be kept running: AttributeError")


def test_capacity_counts_what_was_answered(bundle_folder, tmp_path):
    found = plant_serving.capacity(
        bundle_folder, connections=4, seconds=0.5, fsync="none", folder=tmp_path
    )
    assert found["requests_per_second"] > 10
    assert found["closed_loop"]["errors"] == {}
    assert (found["log_complete"], found["log_sound"], found["exit_code"]) == (True, True, 0)
    assert 0.0 < found["p50_ms"] <= found["p99_ms"]
