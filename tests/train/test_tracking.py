"""A run that is tracked: the trackers know what its files know, and cannot harm it."""

import json
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.track.mlflow import register_model
from worldloom.track.trackers import Tracker
from worldloom.train import runner
from worldloom.train.evaluate import Evaluation
from worldloom.train.online import EpochMetrics
from worldloom.train.runner import Hook, run
from worldloom.train.tracking import Tracking, tracking_hooks


class Counter:
    """A trainer that only counts, so that nothing is compiled."""

    compile_seconds = 0.0

    def __init__(self):
        self.epoch = 0

    def advance(self, epochs):
        first, self.epoch = self.epoch, self.epoch + epochs
        one = np.arange(first, self.epoch, dtype=np.float32)
        each = np.stack([one, one + 0.5], axis=1)
        return EpochMetrics(
            score=one, reward=each, turn_reward=each[:, None], epsilon=one, loss=each,
            grad_norm=each, q_mean=each, finite=np.ones(epochs, bool),
        )  # fmt: skip

    def agents(self):
        return ()

    def state(self):
        return {"epoch": jnp.int32(self.epoch)}

    def load(self, state):
        self.epoch = int(state["epoch"])


@pytest.fixture
def counting(monkeypatch):
    """Runs that only count."""

    def evaluate(self, agents, key, explore=0.0):
        return Evaluation(np.array([1.0, 2.0]), np.ones((2, 2)), 0.0)

    monkeypatch.setattr(runner, "make_trainer", lambda config: Counter())
    monkeypatch.setattr(runner.Evaluator, "__call__", evaluate)


class Recorder(Tracker):
    """Keeps what it is told."""

    name = "recorder"

    def __init__(self):
        super().__init__()
        self.begun, self.points, self.ended, self.closed = [], [], [], False

    def start(self, settings, tags, step):
        self.begun.append((settings, tags, step))

    def log(self, points):
        self.points += points

    def finish(self, status, files):
        self.ended.append((status, [file.name for file in files]))

    def close(self):
        self.closed = True


class Broken(Tracker):
    name = "broken"

    def start(self, settings, tags, step):
        raise OSError("no route to host")


class Stop(Hook):
    """Ends a run after its first chunk, as Ctrl-C does or as an error does."""

    def __init__(self, error=None):
        self.error = error

    def on_epochs(self, run, rows):
        if self.error is not None:
            raise self.error
        signal.raise_signal(signal.SIGINT)


class Page(Hook):
    def on_end(self, run):
        (run.folder / "report.html").write_text("<p>")


@pytest.mark.usefixtures("counting")
def test_a_tracker_is_told_what_the_files_of_the_run_hold(tiny, tmp_path, read_rows):
    tracker = Recorder()
    run(tiny(), tmp_path / "run", hooks=[Tracking(tracker), Page()], command="worldloom train")
    ((settings, tags, step),) = tracker.begun
    assert settings == json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (tags["command"], step) == ("worldloom train", 0)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    for name in ("score", "loss", "seconds"):
        told = [(p.step, p.value) for p in tracker.points if p.name == name]
        assert told == [(row["epoch"], row[name]) for row in rows]
    told = [(p.step, p.value) for p in tracker.points if p.name == "rewards/1"]
    assert told == [(row["epoch"], row["rewards"][1]) for row in rows]
    evals = read_rows(tmp_path / "run" / "eval.jsonl")
    told = [(p.step, p.value) for p in tracker.points if p.name == "eval/mean"]
    assert told == [(row["epoch"], row["mean"]) for row in evals]
    assert not [p for p in tracker.points if p.name.startswith("eval/scores")]
    # The page is among them although its hook comes last.
    names = ["config.json", "eval.jsonl", "timing.json", "report.html"]
    assert tracker.ended == [("FINISHED", names)]
    assert tracker.closed


@pytest.mark.usefixtures("counting")
def test_a_broken_tracker_changes_nothing_about_the_run(tiny, tmp_path, read_rows, capfd):
    def scores(hooks, name):
        run(tiny(), tmp_path / name, hooks=hooks)
        rows = read_rows(tmp_path / name / "metrics.jsonl")
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    tracker = Broken()
    assert scores([Tracking(tracker)], "tracked") == scores([], "plain")
    assert tracker.failures == 1 + 3 + 3 + 1  # the beginning, chunks, evaluations, the end
    assert capfd.readouterr().err.splitlines() == [
        "tracking with broken: OSError: no route to host; "
        "training goes on, and further failures are only counted"
    ]


@pytest.mark.usefixtures("counting")
def test_how_a_run_ended_is_told(tiny, tmp_path):
    killed, failed = Recorder(), Recorder()
    assert run(tiny(), tmp_path / "killed", hooks=[Stop(), Tracking(killed)]).interrupted
    assert killed.ended[0][0] == "KILLED"
    with pytest.raises(RuntimeError, match="out of luck"):
        run(
            tiny(), tmp_path / "failed", hooks=[Tracking(failed), Stop(RuntimeError("out of luck"))]
        )
    assert failed.ended[0][0] == "FAILED"
    assert failed.closed


def test_hooks_are_made_by_name_and_once_each(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (hook,) = tracking_hooks(["tensorboard", "tensorboard"], tmp_path)
    hook.close()  # of a run that never started
    with pytest.raises(ValueError, match="no tracker 'wandb'; known: mlflow, tensorboard"):
        tracking_hooks(["wandb"], tmp_path)
    assert tracking_hooks([], tmp_path) == []


# With MLflow and TensorBoard themselves ----------------------------------------------------------

# MLflow 3.17 uses what SQLAlchemy 2.1 means to drop.
in_stores = pytest.mark.filterwarnings("ignore:.*noload.*:DeprecationWarning")


@pytest.fixture(scope="module")
def tracked(tiny, tmp_path_factory, compiled_once):
    """The folder of a run of four epochs that was resumed for two more."""
    for package in ("mlflow", "alembic", "tensorboard"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        for epochs, resume in ((4, False), (6, True)):
            hooks = tracking_hooks(["mlflow", "tensorboard"], folder)
            run(tiny(epochs=epochs), folder, resume=resume, hooks=hooks)
            assert [hook.tracker.failures for hook in hooks] == [0, 0]
        yield folder


def store(folder):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")


@in_stores
def test_a_resumed_run_is_one_run_in_mlflow_and_whole(tracked, read_rows):
    client = store(tracked)
    experiment = client.get_experiment_by_name("treasurehunt")
    (found,) = client.search_runs([experiment.experiment_id])
    for name, file, column in (
        ("score", "metrics.jsonl", "score"), ("eval/mean", "eval.jsonl", "mean"),
    ):  # fmt: skip
        history = client.get_metric_history(found.info.run_id, name)
        expected = [(row["epoch"], row[column]) for row in read_rows(tracked / file)]
        assert [(metric.step, metric.value) for metric in history] == expected
    assert found.data.params["iqn/hidden"] == "16"
    assert found.data.tags["resumed/epochs"] == "6"
    assert found.info.status == "FINISHED"
    files = [file.path for file in client.list_artifacts(found.info.run_id)]
    assert files == ["config.json", "eval.jsonl", "timing.json"]


@in_stores
def test_a_resumed_run_is_whole_in_tensorboard(tracked, read_rows):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked)).Reload()
    for name, file, column in (
        ("score", "metrics.jsonl", "score"), ("eval/mean", "eval.jsonl", "mean"),
    ):  # fmt: skip
        expected = [(row["epoch"], np.float32(row[column])) for row in read_rows(tracked / file)]
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected


@in_stores
def test_a_registered_run_can_be_loaded_from_what_mlflow_gives_back(tracked, tmp_path):
    from mlflow.artifacts import download_artifacts

    import worldloom

    # Of a run that was tracked, and of a copy that was not.
    shutil.copytree(tracked, tracked.parent / "untracked")
    (tracked.parent / "untracked" / "mlflow.json").unlink()
    own = worldloom.load(str(tracked))
    for number, folder in enumerate((tracked, tracked.parent / "untracked"), start=1):
        assert register_model(folder, "hunters") == number
        version = store(tracked).get_model_version("hunters", str(number))
        assert store(tracked).get_run(version.run_id).data.params["env"] == "treasurehunt"
        got = download_artifacts(artifact_uri=version.source, dst_path=str(tmp_path / str(number)))
        loaded = worldloom.load(got)
        assert loaded.epoch == own.epoch == 6
        assert jax.tree.all(jax.tree.map(np.array_equal, loaded.agents, own.agents))
    assert json.loads((folder / "mlflow.json").read_text())["run_id"] == version.run_id
