"""The host's part of a run alone: its trainer only counts, so nothing is compiled."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.track.checkpoint import Checkpoints
from worldloom.train import driver, runner
from worldloom.train.evaluate import Evaluation
from worldloom.train.load import load_run
from worldloom.train.online import EpochMetrics
from worldloom.train.runner import Hook, read_config, run


class Counter:
    """A trainer that only counts its epochs; from `fails_at` on they are not finite."""

    compile_seconds = 0.0
    fails_at = 1000

    def __init__(self):
        self.epoch = 0

    def advance(self, epochs):
        first, self.epoch = self.epoch, self.epoch + epochs
        ones = np.ones((epochs, 2), np.float32)
        return EpochMetrics(
            score=ones.sum(axis=1), reward=ones, turn_reward=np.ones((epochs, 1, 2), np.float32),
            epsilon=ones[:, 0], loss=ones, grad_norm=ones, q_mean=ones,
            finite=np.arange(first, self.epoch) < self.fails_at,
        )  # fmt: skip

    def agents(self):
        return ()

    def state(self):
        return {"epoch": jnp.int32(self.epoch)}

    def load(self, state):
        self.epoch = int(state["epoch"])


@pytest.fixture
def counter(monkeypatch):
    """The class of trainers that `run` makes."""

    def evaluate(self, agents, key, explore=0.0):
        return Evaluation(np.array([1.0, 2.0]), np.ones((2, 2)), 0.0)

    monkeypatch.setattr(runner, "make_trainer", lambda config: Counter())
    monkeypatch.setattr(runner.Evaluator, "__call__", evaluate)
    return Counter


def newest(folder: Path) -> int | None:
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        return checkpoints.latest
    finally:
        checkpoints.close()


class Interrupt(Hook):
    """Presses Ctrl-C at one of the occasions of a hook."""

    def __init__(self, occasion: str):
        setattr(self, occasion, lambda *_: os.kill(os.getpid(), signal.SIGINT))


@pytest.mark.parametrize(
    ("occasion", "epoch"),
    [("on_start", 0), ("on_epochs", 2), ("on_evaluation", 2), ("on_record", 3)],
)
def test_ctrl_c_between_chunks_loses_nothing(counter, tiny, tmp_path, capsys, occasion, epoch):
    config, folder = tiny(checkpoint_every=100, record_period=3), tmp_path / "stopped"
    before = signal.getsignal(signal.SIGINT)
    result = run(config, folder, hooks=[Interrupt(occasion)])
    assert signal.getsignal(signal.SIGINT) is before
    assert "Ctrl-C again to stop at once" in capsys.readouterr().err
    assert result.interrupted
    assert result.epoch == epoch
    assert newest(folder) == epoch
    assert json.loads((folder / "timing.json").read_text())["epochs"] == epoch
    resumed = run(config, folder, resume=True)
    assert not resumed.interrupted
    assert resumed.epoch == 6
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["epoch"] for row in rows] == list(range(6))


def test_ctrl_c_while_random_play_is_scored_loses_nothing(counter, tiny, tmp_path, monkeypatch):
    score = runner.Evaluator.__call__

    def interrupted(self, agents, key, explore=0.0):
        os.kill(os.getpid(), signal.SIGINT)
        return score(self, agents, key, explore)

    folder = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr(runner.Evaluator, "__call__", interrupted)
        result = run(tiny(), folder)
    assert result.interrupted
    assert newest(folder) == 0
    assert run(tiny(), folder, resume=True).epoch == 6


def test_ctrl_c_in_a_process_that_follows_waits_for_what_the_leader_says(
    tiny, tmp_path, monkeypatch, capsys
):
    class Interrupted(Counter):
        def advance(self, epochs):
            if self.epoch == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return super().advance(epochs)

    told = iter([False, False, True])
    monkeypatch.setattr(driver, "leads", lambda: False)
    monkeypatch.setattr(driver, "agreed", lambda flag: next(told))
    before = signal.getsignal(signal.SIGINT)
    follower = driver.Run(tiny(), tmp_path / "run", Interrupted(), evaluator=None)
    driver.drive(follower, lambda *_: pytest.fail("a follower writes nothing"))
    assert (follower.epoch, follower.interrupted) == (4, True)
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == ""
    assert not follower.folder.exists()


def test_a_run_turns_the_compilation_cache_on(counter, tiny, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(runner, "use_compilation_cache", lambda: asked.append(True))
    run(tiny(), tmp_path / "run")
    assert asked == [True]


class Watch(Hook):
    """Notes what it is told."""

    def __init__(self):
        self.seen = []

    def on_start(self, run):
        self.seen.append("start")

    def on_epochs(self, run, rows):
        self.seen.append([row["epoch"] for row in rows])

    def on_evaluation(self, run, evaluation):
        self.seen.append(f"evaluation at {run.epoch}")

    def on_record(self, run):
        self.seen.append(f"record at {run.epoch}")

    def on_end(self, run):
        self.seen.append("end")

    def close(self):
        self.seen.append("close")


def test_hooks_are_told_what_happens_in_order(counter, tiny, tmp_path):
    watch = Watch()
    run(tiny(epochs=5, eval_every=4, record_period=2), tmp_path / "run", hooks=[watch])
    assert watch.seen == [
        "start", [0, 1], "record at 2", [2, 3], "evaluation at 4", "record at 4", [4],
        "evaluation at 5", "end", "close",
    ]  # fmt: skip


def test_a_run_that_diverges_stops_and_keeps_its_last_good_checkpoint(
    counter, tiny, tmp_path, monkeypatch
):
    monkeypatch.setattr(counter, "fails_at", 3)
    watch, folder = Watch(), tmp_path / "run"
    with pytest.raises(ValueError, match="epoch 3: rewards or losses are no longer finite; lower"):
        run(tiny(), folder, hooks=[watch])
    assert newest(folder) == 2
    assert watch.seen[-1] == "close"
    assert "end" not in watch.seen


def test_a_run_whose_hook_fails_closes_the_others_and_keeps_its_checkpoint(counter, tiny, tmp_path):
    class Fails(Hook):
        def on_end(self, run):
            raise RuntimeError("no picture")

    watch = Watch()
    with pytest.raises(RuntimeError, match="no picture"):
        run(tiny(), tmp_path / "run", hooks=[Fails(), watch])
    assert watch.seen[-1] == "close"
    assert newest(tmp_path / "run") == 6


WORLD = """
name: meadow
num_agents: 2
horizon: 10
map: |
  #####
  #...#
  #...#
  #####
kinds:
  Empty: {glyph: ".", color: [0, 0, 0], becomes: {Berry: 0.1}}
  Wall: {glyph: "#", color: [88, 92, 108], value: -1, passable: false}
  Berry: {glyph: "o", color: [214, 60, 90], value: 1}
  Agent: {glyph: "A", color: [64, 120, 220], passable: false}
"""


def test_a_run_keeps_the_file_of_its_world(counter, tiny, tmp_path):
    path, folder = tmp_path / "meadow.yaml", tmp_path / "run"
    path.write_text(WORLD)
    config = replace(tiny(epochs=2), env=str(path), world={})
    run(config, folder)
    assert run(replace(config, epochs=4), folder, resume=True).epoch == 4

    # Edited after the start: the run goes on in the world it knows, and in no other.
    path.write_text(WORLD.replace("value: 1}", "value: 5}"))
    kept = read_config(folder)
    assert Path(kept.env) == folder / "world.yaml"
    assert (folder / "world.yaml").read_text() == WORLD
    assert run(replace(kept, epochs=6), folder, resume=True).epoch == 6
    with pytest.raises(ValueError, match="was trained with other settings \\(env\\)"):
        run(replace(config, epochs=8), folder, resume=True)


def test_a_half_written_checkpoint_is_ignored(counter, tiny, tmp_path):
    folder = tmp_path / "run"
    run(tiny(), folder)
    half = folder / "checkpoints" / "8.orbax-checkpoint-tmp-1234"
    (half / "default").mkdir(parents=True)
    (half / "default" / "_METADATA").write_text("{")
    assert newest(folder) == 6
    result = run(tiny(epochs=8), folder, resume=True)
    assert result.epoch == newest(folder) == 8


def test_a_run_killed_before_its_first_checkpoint_says_so(counter, tiny, tmp_path, contents):
    folder = tmp_path / "run"
    run(tiny(), folder)
    shutil.rmtree(folder / "checkpoints")
    before = contents(folder)
    with pytest.raises(ValueError, match="holds no complete checkpoint: it was stopped before"):
        run(tiny(epochs=9), folder, resume=True)
    (folder / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="holds no complete checkpoint: it was stopped before"):
        load_run(folder)
    assert contents(folder) == before


def test_the_next_stop_is_whatever_comes_first(counter, tiny, tmp_path):
    config = tiny(epochs=50, chunk=10, eval_every=20, checkpoint_every=7, record_period=0)
    watch = Watch()
    run(config, tmp_path / "run", hooks=[watch])
    stops = [rows[-1] + 1 for rows in watch.seen if isinstance(rows, list)]
    assert stops == [7, 10, 14, 20, 21, 28, 30, 35, 40, 42, 49, 50]
