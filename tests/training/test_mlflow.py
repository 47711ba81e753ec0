"""What MLflow is told is read back from its store."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
pytest.importorskip("alembic", reason="alembic is not installed")

from worldloom.training.trackers.mlflow import Mlflow, register_model, tracking_uri

pytestmark = [
    pytest.mark.slow,  # MLflow takes seconds to import, and to make a store
    # MLflow 3.17 uses what SQLAlchemy 2.1 means to drop.
    pytest.mark.filterwarnings("ignore:.*noload.*:DeprecationWarning"),
]

SETTINGS = {"env": "treasurehunt", "steps": 6, "seed": 3, "iqn": {"hidden": 16, "sizes": [2, 3]}}


@pytest.fixture(autouse=True)
def no_store_chosen(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs with one store, because a new one takes seconds to make."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def folder(runs, request):
    folder = runs / request.node.name
    folder.mkdir()
    return folder


@pytest.fixture
def client(runs):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{runs / 'mlflow.db'}")


def begin(folder, settings=SETTINGS, step=0, **tags):
    tracker = Mlflow(folder)
    tracker.write({"settings": settings, "tags": tags, "step": step})
    return tracker


def chunk(first, count):
    return {"rows": [
        {"steps": first + n, "score": 10.0 * (first + n), "rewards": np.array([1.0, 2.0]),
         "note": "text", "gap": float("nan")}
        for n in range(count)
    ]}  # fmt: skip


def end(tracker, *files, status="FINISHED"):
    tracker.write({"status": status, "files": [str(file) for file in files]})
    tracker.close()
    assert tracker.failures == 0


def run_of(client, folder):
    return client.get_run(json.loads((folder / "mlflow.json").read_text())["run_id"])


def steps(client, run, name):
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]


def test_settings_metrics_and_files_are_found_in_the_store(folder, client, tmp_path):
    (folder / "config.json").write_text("{}")
    (folder / "report.html").write_text("<p>")
    tracker = begin(folder, command="worldloom train")
    tracker.write(chunk(0, 2))
    tracker.write(chunk(2, 1))
    tracker.write({"rows": [{"steps": 3, "eval": {"mean": 7.5}}]})
    end(tracker, folder / "config.json", folder / "report.html")
    run = run_of(client, folder)
    assert run.data.params == {
        "env": "treasurehunt", "steps": "6", "seed": "3", "iqn/hidden": "16",
        "iqn/sizes": "[2, 3]",
    }  # fmt: skip
    assert steps(client, run, "score") == [(0, 0.0), (1, 10.0), (2, 20.0)]
    assert steps(client, run, "rewards/1") == [(0, 2.0), (1, 2.0), (2, 2.0)]
    assert steps(client, run, "eval/mean") == [(3, 7.5)]
    assert set(run.data.metrics) == {"score", "rewards/0", "rewards/1", "eval/mean"}
    assert run.data.tags["command"] == "worldloom train"
    assert run.info.run_name == folder.name
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == "treasurehunt"
    found = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert found == ["config.json", "report.html"]
    kept = client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))
    assert Path(kept).read_text() == "<p>"
    assert (folder.parent / "mlflow-artifacts").is_dir(), "beside the runs, not where one stands"


def test_a_chunk_is_one_call_until_it_is_too_long_for_one(folder, monkeypatch):
    tracker = begin(folder)
    sent = []
    monkeypatch.setattr(
        tracker._client, "log_batch", lambda run_id, metrics: sent.append(len(metrics))
    )
    tracker.write(chunk(0, 100))  # three numbers a row
    assert sent == [300]
    tracker.write(chunk(0, 500))
    assert sent == [300, 1000, 500]
    end(tracker)


def test_a_resumed_run_goes_on_where_it_was_and_tells_no_step_twice(folder, client):
    tracker = begin(folder)
    tracker.write(chunk(0, 4))
    end(tracker, status="KILLED")
    first = run_of(client, folder)
    assert first.info.status == "KILLED"
    # The checkpoint was at 2: steps 2 and 3 come again.
    tracker = begin(folder, SETTINGS | {"steps": 9}, step=2)
    assert run_of(client, folder).info.status == "RUNNING"
    tracker.write(chunk(2, 2))
    tracker.write(chunk(4, 2))
    end(tracker)
    again = run_of(client, folder)
    assert again.info.run_id == first.info.run_id
    assert [step for step, _ in steps(client, again, "score")] == [0, 1, 2, 3, 4, 5]
    assert again.data.params["steps"] == "6"
    assert again.data.tags["resumed/steps"] == "9"
    assert again.info.status == "FINISHED"


def test_a_run_that_was_deleted_begins_anew(folder, client):
    end(begin(folder))
    first = run_of(client, folder)
    client.delete_run(first.info.run_id)
    end(begin(folder))
    assert run_of(client, folder).info.run_id != first.info.run_id


def test_names_that_mlflow_refuses_are_made_fit(folder, client):
    tracker = begin(folder, {"a%b": 1, "long" * 100: "x" * 7000})
    tracker.write({"rows": [{"steps": 0, "loss (é)": 1.0}]})
    end(tracker)
    run = run_of(client, folder)
    assert run.data.params["a_b"] == "1"
    assert sorted(map(len, run.data.params.values())) == [1, 6000]
    assert run.data.metrics == {"loss ___": 1.0}


def test_the_environment_names_store_and_experiment(folder, runs, client, monkeypatch, tmp_path):
    uri = f"sqlite:///{tmp_path / 'own.db'}"
    shutil.copy(runs / "mlflow.db", tmp_path / "own.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    monkeypatch.chdir(tmp_path)  # where MLflow puts the files of a store like this
    end(begin(folder))
    assert client.get_experiment_by_name("mine") is None
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert tracking_uri(folder) == uri, "a resumed run stays in its store"
    assert tracking_uri(runs / "other") == f"sqlite:///{runs / 'mlflow.db'}"


def test_a_password_is_not_kept_in_the_run_folder(folder, monkeypatch):
    from worldloom.training.trackers import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host:5000/mlflow")
    assert mlflow._kept_uri(folder) == "https://host:5000/mlflow"
    assert tracking_uri(folder) == "https://me:secret@host:5000/mlflow"


def test_a_store_that_fails_is_told_of_once_counted_and_tried_again(folder, monkeypatch, capsys):
    def full(folder):
        raise OSError("disk\nfull")

    tracker = Mlflow(folder)
    with monkeypatch.context() as broken:
        broken.setattr("worldloom.training.trackers.mlflow._connect", full)
        tracker.write({"settings": SETTINGS, "tags": {}, "step": 0})
        tracker.write(chunk(0, 2))
    assert tracker.failures == 2
    assert capsys.readouterr().err == (
        "tracking with mlflow: OSError: disk full; "
        "training goes on, and further failures are only counted\n"
    )
    tracker.write(chunk(2, 2))  # the disk has room again: the run begins, and this chunk is kept
    tracker.write({"status": "FINISHED", "files": []})
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri(folder))
    run = run_of(client, folder)
    assert run.data.params["seed"] == "3"
    assert [step for step, _ in steps(client, run, "score")] == [2, 3]
    assert tracker.failures == 2


def test_a_file_that_is_not_taken_leaves_no_run_that_seems_to_go_on(folder, client, capsys):
    tracker = begin(folder)
    tracker.write({"status": "FINISHED", "files": [str(folder / "missing.html")]})
    assert tracker.failures == 1
    assert "missing.html" in capsys.readouterr().err
    assert run_of(client, folder).info.status == "FINISHED"


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_note_of_the_mlflow_run_is_an_error_with_the_remedy(tmp_path, text):
    (tmp_path / "mlflow.json").write_text(text)
    with pytest.raises(ValueError, match=r"mlflow\.json names no MLflow run; delete it"):
        Mlflow(tmp_path)


# Models ------------------------------------------------------------------------------------------


def test_a_bundle_becomes_versions_of_a_registered_model(folder, client, tmp_path):
    end(begin(folder))
    bundle = tmp_path / "bundle"
    (bundle / "inner").mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    (bundle / "inner" / "policy.bin").write_bytes(b"\x00\x01")
    assert register_model(folder, "reactor", bundle, {"stage": "trial"}) == 1
    (bundle / "manifest.json").write_text('{"better": true}')
    assert register_model(folder, "reactor", bundle) == 2
    first, second = (client.get_model_version("reactor", n) for n in ("1", "2"))
    assert first.run_id == second.run_id == run_of(client, folder).info.run_id
    assert first.tags["stage"] == "trial"
    assert first.tags["sha256"] != second.tags["sha256"]
    from mlflow.artifacts import download_artifacts

    for version, text in ((first, "{}"), (second, '{"better": true}')):
        got = tmp_path / str(version.version)
        download_artifacts(artifact_uri=version.source, dst_path=str(got))
        (manifest,) = got.rglob("manifest.json")
        assert manifest.read_text() == text
        assert (manifest.parent / "inner" / "policy.bin").read_bytes() == b"\x00\x01"


def test_a_checkpoint_is_registered_with_all_that_loading_it_takes(folder, client):
    (folder / "checkpoints" / "3").mkdir(parents=True)
    about = ("config.json", "constraints.yaml", "data.npz", "tasks.json")  # of plants, of arc
    for name in (*about, "checkpoints/3/state", "report.html"):
        (folder / name).write_text('{"config": {}}')
    register_model(folder, "plants")
    place = client.get_model_version("plants", "1").source.split("/artifacts/")[1]
    files = client.list_artifacts(run_of(client, folder).info.run_id, place)
    found = {Path(file.path).name for file in files}
    assert found == {*about, "checkpoints", "MLmodel"}


def test_what_is_no_model_is_refused_with_the_remedy(folder, tmp_path):
    with pytest.raises(ValueError, match="holds no complete checkpoint; train it"):
        register_model(folder, "x")
    with pytest.raises(ValueError, match="holds no files to register; name the folder of a bundle"):
        register_model(folder, "x", tmp_path / "nothing")
