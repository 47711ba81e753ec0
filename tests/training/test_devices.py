"""Several devices, and several processes, train the same run; another number may go on with it."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oracles import guess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores"),
]
SETTINGS = (
    "--num-worlds 4 --eval-episodes 4 --checkpoint-every 32 --ppo.unroll-length 8 "
    "--ppo.hidden 8 --no-report --json"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices")
    shutil.copy(guess.__file__, folder / "guess.py")
    return folder


def start(folder: Path, line: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "worldloom", "train", *line.split(), *SETTINGS.split()]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> dict:
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err[-2000:]
    return json.loads(out[out.index("{") :]) if "{" in out else {}


def rows(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{n: v for n, v in json.loads(x).items() if n != "seconds"} for x in lines]


@pytest.fixture(scope="module")
def on_two_devices(folder):
    result = finish(start(folder, "guess.py:make --steps 64 --devices 2 --out two"))
    return folder / result["run"]


def test_a_run_goes_on_with_another_number_of_devices(folder, on_two_devices):
    copied = shutil.copytree(on_two_devices, folder / "copied")
    for steps, devices in ((96, 1), (128, 2)):
        result = finish(start(folder, f"--resume copied --steps {steps} --devices {devices}"))
        assert result["steps"] == steps
    assert [row["iteration"] for row in rows(copied)] == [1, 2, 3, 4]
    assert json.loads((copied / "config.json").read_text())["config"]["devices"] == 2


HUNT = (
    "treasurehunt --algo ppo --world.num-agents 2 --world.horizon 8 --world.height 6 "
    "--world.width 6 --ppo.num-minibatches 2 --steps 64 --num-worlds 4 --ppo.hidden 8"
)
REACTOR = (
    "reactor --algo td3bc --world.horizon 20 --data-steps 400 --ope-updates 0 --steps 8 "
    "--td3bc.updates-per-iteration 4 --td3bc.hidden 8 --td3bc.batch-size 32"
)


@pytest.mark.parametrize("line", [HUNT, REACTOR], ids=["worlds", "batches"])
def test_processes_started_together_train_what_one_trains(tmp_path, line):
    runs = []
    line += f" --eval-episodes 4 --no-report --json --out {tmp_path}/runs"
    for processes in "12":
        command = [sys.executable, "-m", "worldloom", "train", *line.split()]
        done = subprocess.run(
            [*command, "--processes", processes],
            cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        result = json.loads(done.stdout[done.stdout.index("{") :])
        runs.append((rows(Path(result["run"])), result["score"]))
    alone, together = runs
    assert together[1] == pytest.approx(alone[1], rel=1e-5)
    assert len(alone[0]) == 2
    for ours, theirs in zip(alone[0], together[0], strict=True):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5, err_msg=name)
    assert len(list((tmp_path / "runs").iterdir())) == 2, "those that follow write nothing"


def test_two_processes_train_what_two_devices_train(folder, on_two_devices):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    line = f"guess.py:make --steps 64 --out both --coordinator localhost:{port} --num-processes 2"
    follower = start(folder, f"{line} --process-id 1")
    leader = start(folder, f"{line} --process-id 0")
    result = finish(leader)
    assert finish(follower) == {}, "only the leader speaks"
    (run,) = (folder / "both").iterdir()  # and writes
    assert folder / result["run"] == run
    assert rows(run) == rows(on_two_devices)
