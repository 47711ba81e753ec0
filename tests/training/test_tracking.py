"""A run that is tracked: the trackers know what its files know, and cannot harm it."""

import json
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from worldloom import suites
from worldloom.training.driver import Hook
from worldloom.training.run import train
from worldloom.training.trackers import tracker as trackers
from worldloom.training.trackers.mlflow import register_model
from worldloom.training.trackers.tracker import Tracker
from worldloom.training.tracking import Tracking, tracking_hooks


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

    def on_iterations(self, run, rows):
        if self.error is not None:
            raise self.error
        signal.raise_signal(signal.SIGINT)


class Page(Hook):
    def on_end(self, run):
        (run.folder / "report.html").write_text("<p>")


def points(tracker, name):
    return [(p.step, p.value) for p in tracker.points if p.name == name]


def test_a_tracker_is_told_what_the_files_of_the_run_hold(counting, tmp_path, read_rows):
    tracker, folder = Recorder(), tmp_path / "run"
    hooks = [Tracking(tracker), Page()]
    train(counting.suite, counting.config(), folder, hooks=hooks, command="worldloom train")
    ((settings, tags, step),) = tracker.begun
    about = json.loads((folder / "config.json").read_text())
    assert settings == about["config"]
    assert (tags["command"], tags["hash"], step) == ("worldloom train", about["hash"], 1)
    rows = read_rows(folder / "metrics.jsonl")
    for name in ("return", "seconds"):
        assert points(tracker, name) == [(row["steps"], row[name]) for row in rows]
    expected = [(row["steps"], row["agent_returns"][1]) for row in rows]
    assert points(tracker, "agent_returns/1") == expected
    evals = read_rows(folder / "eval.jsonl")
    assert points(tracker, "eval/mean") == [(row["steps"], row["mean"]) for row in evals]
    names = {p.name.partition("/")[0] for p in tracker.points}
    assert not {"turn_rewards", "steps"} & names
    assert not [p for p in tracker.points if p.name.startswith("eval/scores")]
    # The page is among them although its hook comes last.
    files = ["config.json", "eval.jsonl", "timing.json", "report.html"]
    assert tracker.ended == [("FINISHED", files)]
    assert tracker.closed


def test_a_broken_tracker_changes_nothing_about_the_run(counting, tmp_path, read_rows, capfd):
    def scores(hooks, name):
        train(counting.suite, counting.config(), tmp_path / name, hooks=hooks)
        rows = read_rows(tmp_path / name / "metrics.jsonl")
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    tracker = Broken()
    assert scores([Tracking(tracker)], "tracked") == scores([], "plain")
    assert tracker.failures == 1 + 3 + 3 + 1  # the beginning, chunks, evaluations, the end
    assert capfd.readouterr().err.splitlines() == [
        "tracking with broken: OSError: no route to host; "
        "training goes on, and further failures are only counted"
    ]


def test_how_a_run_ended_is_told(counting, tmp_path):
    killed, failed = Recorder(), Recorder()

    def run(name, *hooks):
        return train(counting.suite, counting.config(), tmp_path / name, hooks=hooks)

    assert run("killed", Stop(), Tracking(killed)).interrupted
    assert killed.ended[0][0] == "KILLED"
    with pytest.raises(RuntimeError, match="out of luck"):
        run("failed", Tracking(failed), Stop(RuntimeError("out of luck")))
    assert failed.ended[0][0] == "FAILED"
    assert failed.closed


def test_hooks_are_made_by_name_and_once_each(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    (hook,) = tracking_hooks(["tensorboard", "tensorboard"], tmp_path)
    hook.close()  # of a run that never started
    with pytest.raises(ValueError, match="no tracker 'neptune'; known: mlflow, tensorboard, wandb"):
        tracking_hooks(["neptune"], tmp_path)
    assert tracking_hooks([], tmp_path) == []


# Installing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tracker", "missing", "extra"),
    [
        ("mlflow", "mlflow", "track"),
        ("mlflow", "sqlalchemy", "track"),
        ("mlflow", "alembic", "track"),
        ("tensorboard", "tensorboard", "track"),
        ("wandb", "wandb", "wandb"),
    ],
)
def test_what_is_not_installed_is_told_in_one_line_with_the_remedy(
    tracker, missing, extra, tmp_path, monkeypatch
):
    find = trackers.find_spec
    monkeypatch.setattr(trackers, "find_spec", lambda n: None if n == missing else find(n))
    with pytest.raises(ImportError) as told:
        trackers.open_tracker(tracker, tmp_path)
    assert str(told.value) == (
        f"tracking with {tracker} needs {missing}, which is not installed; "
        f"pip install 'worldloom[{extra}]'"
    )


def test_a_server_needs_no_database_packages(tmp_path, monkeypatch):
    find = trackers.find_spec
    monkeypatch.setattr(trackers, "find_spec", lambda n: find(n) if n == "mlflow" else None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert trackers.open_tracker("mlflow", tmp_path).name == "mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(ImportError, match="sqlalchemy"):
        trackers.open_tracker("mlflow", tmp_path)


def test_nothing_is_imported_or_written_before_a_run_starts(tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from worldloom.training.trackers.tracker import open_tracker\n"
        "for name in ('mlflow', 'tensorboard', 'wandb'):\n"
        f"    open_tracker(name, Path({str(tmp_path)!r}))\n"
        "heavy = ('mlflow', 'tensorboard', 'wandb', 'google.protobuf', 'sqlalchemy', 'jax')\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert not list(tmp_path.iterdir())


def test_limits_and_off_policy_estimates_are_metrics_by_name(tmp_path):
    from worldloom.suites.plant.evaluate import Outcome, PlantEvaluation

    (tmp_path / "config.json").write_text('{"hash": 1, "command": 2, "versions": {"worldloom": 3}}')
    estimate = {"value": 5.0, "low": 4.0, "high": 6.0, "effective": 9.0, "method": "fqe"}
    told = {"estimates": [estimate], "logged_return": 3.0, "support": {"outside": 0.5}}
    (tmp_path / "ope.json").write_text(json.dumps(told))
    ones = np.ones(2)
    shares = np.array([0.25, 0.0])
    crossed = Outcome(ones, ones, ones, shares, np.array([-1.0, 2.0]), 0.0, 0.0, shares / 5)
    trajectories: Any = None
    limits = ("too hot", "dry")
    evaluation = PlantEvaluation(crossed, crossed, trajectories, trajectories, limits, 0, None, 1.0)
    config = SimpleNamespace(to_dict=dict)
    run: Any = SimpleNamespace(folder=tmp_path, steps=7, interrupted=False, config=config)
    hook = Tracking(Recorder())
    hook.on_start(run)
    hook.on_evaluation(run, evaluation)
    hook.on_end(run)
    hook.close()
    tracker: Any = hook.tracker
    assert tracker.failures == 0
    assert points(tracker, "eval/bare/violated/too hot") == [(7, 0.25)]
    assert points(tracker, "eval/bare/violated_stderr/too hot") == [(7, 0.05)]
    assert points(tracker, "eval/filtered/worst_margin/dry") == [(7, 2.0)]
    assert points(tracker, "ope/fqe/value") == [(7, 5.0)]
    assert points(tracker, "ope/logged_return") == [(7, 3.0)]
    assert points(tracker, "ope/support/outside") == [(7, 0.5)]


# With MLflow and TensorBoard themselves ----------------------------------------------------------

# MLflow 3.17 uses what SQLAlchemy 2.1 means to drop.
_NOLOAD = pytest.mark.filterwarnings("ignore:.*noload.*:DeprecationWarning")


def in_stores(test):
    """MLflow takes seconds to import, and to make a store."""
    return pytest.mark.slow(_NOLOAD(test))


@pytest.fixture(scope="module")
def tracked(tiny, tmp_path_factory, compiled_once):
    """The folder of a run of four iterations that was resumed for two more."""
    for package in ("mlflow", "alembic", "tensorboard"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        for steps, resume in ((80, False), (120, True)):
            hooks = tracking_hooks(["mlflow", "tensorboard"], folder)
            train(
                suites.suite("grid"),
                tiny(steps=steps),
                folder,
                resume=resume,
                report=False,
                hooks=hooks,
            )
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
        ("return", "metrics.jsonl", "return"), ("eval/mean", "eval.jsonl", "mean"),
    ):  # fmt: skip
        history = client.get_metric_history(found.info.run_id, name)
        expected = [(row["steps"], row[column]) for row in read_rows(tracked / file)]
        assert [(metric.step, metric.value) for metric in history] == expected
    assert found.data.params["iqn/hidden"] == "16"
    assert found.data.tags["resumed/steps"] == "120"
    assert found.info.status == "FINISHED"
    files = [file.path for file in client.list_artifacts(found.info.run_id)]
    assert files == ["config.json", "eval.jsonl", "timing.json"]


@in_stores
@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_the_command_that_shows_a_run_works_as_it_is_told(tracked, name):
    """A server would not end by itself: TensorBoard is asked for what it would show."""
    tracker = trackers.open_tracker(name, tracked)
    if name == "mlflow":
        assert tracker.look() == [], "no run was opened"
        tracker._run_id = json.loads((tracked / "mlflow.json").read_text())["run_id"]
    command = tracker.look() + ["--inspect"] * (name == "tensorboard")
    if "ui" in command:
        pytest.skip("the whole of mlflow is installed: its command is a server")
    done = subprocess.run(command, capture_output=True, text=True, cwd=tracked.parent)
    assert done.returncode == 0, done.stderr[-2000:]
    assert ("eval/mean" in done.stdout, "return" in done.stdout) == (True, True)


@in_stores
def test_a_resumed_run_is_whole_in_tensorboard(tracked, read_rows):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked)).Reload()
    for name, file, column in (
        ("return", "metrics.jsonl", "return"), ("eval/mean", "eval.jsonl", "mean"),
    ):  # fmt: skip
        expected = [(row["steps"], np.float32(row[column])) for row in read_rows(tracked / file)]
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected


@pytest.mark.filterwarnings("ignore::UserWarning")  # MLflow warns of its own type hints
@in_stores
def test_a_registered_run_can_be_loaded_from_what_mlflow_gives_back(tracked, tmp_path):
    import mlflow.pyfunc
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
        assert loaded.iteration == own.iteration == 6
        obs = np.zeros((2, *own.problem.env.spec.observation.shape), np.float32)
        model = mlflow.pyfunc.load_model(got)
        np.testing.assert_array_equal(model.predict(obs), own.act(obs))
        assert jax.tree.all(jax.tree.map(np.array_equal, loaded.agents, own.agents))
    assert json.loads((folder / "mlflow.json").read_text())["run_id"] == version.run_id
