"""What Weights & Biases is told is read back from its files, and by its own reader."""

import fcntl
import json
import os
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from functools import cache

import pytest

pytest.importorskip("wandb", reason="wandb is not installed")

from worldloom.training.trackers.wandb import Wandb

pytestmark = pytest.mark.slow  # W&B takes seconds to import, and starts a process of its own

SETTINGS = {"env": "my/hunt.py:make", "steps": 6, "iqn": {"hidden": 16, "sizes": [2, 3]}}


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch, tmp_path):
    for name in ("MODE", "PROJECT", "DIR", "RUN_ID", "NAME", "API_KEY", "BASE_URL"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "runs" / "a [strange] name"
    folder.mkdir(parents=True)
    return folder


def begin(folder, step=1, settings=SETTINGS):
    tracker = Wandb(folder)
    tracker.write({"settings": settings, "tags": {"hash": "abc"}, "step": step})
    return tracker


def chunk(first, count):
    return {
        "rows": [
            {"steps": first + n, "loss": 10.0 * (first + n), "note": "text"} for n in range(count)
        ]
    }


def end(tracker, *files, status="FINISHED"):
    tracker.write({"status": status, "files": [str(file) for file in files]})
    tracker.close()
    assert tracker.failures == 0


def sessions(folder):
    return sorted((folder / "wandb").glob("offline-run-*"))


@cache
def records(session):
    """The records of a session, as W&B's own reader prints them."""
    line = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(session)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return [json.loads(text) for text in done.stdout.splitlines()]


def of(session, kind):
    return [record[kind] for record in records(session) if record["type"] == kind]


def history(session, name):
    rows = [row["item"] for row in of(session, "history")]
    return [(row["_step"], row[name]) for row in rows if name in row]


def test_settings_metrics_and_files_are_read_back_and_nothing_is_said(folder, capfd):
    (folder / "report.html").write_text("<p>")
    tracker = begin(folder)
    tracker.write(chunk(1, 2))
    tracker.write(chunk(3, 1))
    tracker.write({"rows": [{"steps": 3, "eval": {"mean": 7.5}, "agents": [1.0, 2.0]}]})
    end(tracker, folder / "report.html")
    assert capfd.readouterr() == ("", ""), "a progress bar is there"
    (session,) = sessions(folder)
    assert history(session, "loss") == [(1, 10), (2, 20), (3, 30)]
    assert history(session, "eval/mean") == [(3, 7.5)]
    assert history(session, "agents/1") == [(3, 2)]
    assert history(session, "note") == []
    (run,) = of(session, "run")
    config = run["config"]["update"]
    assert config["iqn"] == {"hidden": 16, "sizes": [2, 3]}
    assert config["run"] == {"hash": "abc"}
    assert (run["project"], run["display_name"]) == ("hunt", folder.name)
    (last,) = of(session, "exit")
    assert last.get("exit_code", 0) == 0  # beside it, how long a slow machine took
    assert (session / "files" / "report.html").read_text() == "<p>"
    assert not (session / "files" / "report.html").is_symlink(), "the run may be moved"


def test_a_resumed_run_goes_on_as_the_same_one_and_tells_no_step_twice(folder):
    tracker = begin(folder)
    tracker.write(chunk(1, 4))
    end(tracker, status="KILLED")
    tracker = begin(folder, step=3, settings=SETTINGS | {"steps": 12})
    tracker.write(chunk(3, 4))  # from the last checkpoint
    tracker.write({"rows": [{"steps": 4, "eval": {"mean": 1.0}}]})  # which was not told before
    end(tracker)
    first, second = sessions(folder)
    assert history(first, "loss") == [(1, 10), (2, 20), (3, 30), (4, 40)]
    assert history(second, "loss") == [(5, 50), (6, 60)]
    (one,), (other,) = of(first, "run"), of(second, "run")
    assert (
        one["run_id"]
        == other["run_id"]
        == json.loads((folder / "wandb.json").read_text())["run_id"]
    )
    assert (other["resume"], other["config"]["update"]["steps"]) == (True, 12)
    (last,) = of(first, "exit")
    assert last["exit_code"] == 255


def test_a_file_that_names_no_run_is_told_in_one_line(folder, capfd):
    (folder / "wandb.json").write_text("{}")
    tracker = begin(folder)
    assert tracker.failures == 1
    said = capfd.readouterr().err
    assert "wandb.json names no run of W&B; delete it, and the run begins a new one" in said
    assert said.count("\n") == 1


def test_what_the_user_sets_is_respected(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    end(begin(folder))
    (session,) = (tmp_path / "elsewhere" / "wandb").glob("offline-run-*")
    assert of(session, "run")[0]["project"] == "mine"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    other = folder.with_name("other")
    other.mkdir()
    tracker = begin(other)
    tracker.write(chunk(1, 2))
    end(tracker)
    assert tracker.look() == []
    assert not (other / "wandb").exists()


def test_a_run_of_the_caller_is_left_alone(folder, tmp_path):
    import wandb

    own = wandb.init(
        mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True, console="off")
    )
    end(begin(folder))
    assert wandb.run is own
    own.log({"x": 1})
    own.finish()


def test_the_command_that_shows_a_run_works_as_it_is_told(folder):
    """In a terminal, which it fills; q leaves it."""
    import pty

    tracker = begin(folder)
    tracker.write(chunk(1, 20))
    end(tracker)
    command = tracker.look()
    assert command[-2:] == ["leet", str(sessions(folder)[0])]
    inside, terminal = pty.openpty()
    size = b"\x28\x00\x78\x00\x00\x00\x00\x00"  # 40 rows of 120 columns
    fcntl.ioctl(inside, termios.TIOCSWINSZ, size)
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, close_fds=True,
        env=os.environ | {"TERM": "xterm-256color"}, start_new_session=True,
    ) as viewer:  # fmt: skip
        os.close(terminal)
        seen = b""
        while b"loss" not in seen:
            seen += os.read(inside, 4096)  # an OSError once the viewer has ended
        os.write(inside, b"q")
        reader = threading.Thread(target=drain, args=(inside,), daemon=True)
        reader.start()
        assert viewer.wait(60) == 0


def drain(file):
    with suppress(OSError):
        while os.read(file, 4096):
            pass
