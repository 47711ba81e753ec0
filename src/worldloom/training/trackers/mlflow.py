"""Runs in MLflow: settings, metrics, files, and registered models.

Unless told otherwise they go into `mlflow.db` beside the run folder, a sqlite file that needs no
server, and their files into `mlflow-artifacts`. MLFLOW_TRACKING_URI names another store,
MLFLOW_EXPERIMENT_NAME another experiment than the world's. The run folder keeps `mlflow.json`, by
which a resumed run finds its MLflow run again.
"""

import hashlib
import json
import logging
import os
import platform
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from worldloom.core.files import write_json
from worldloom.training.folders import world_label
from worldloom.training.trackers.tracker import Point, Tracker, flat, program, require

RUN_FILE = "mlflow.json"
STORE_FILE = "mlflow.db"
ARTIFACTS = "mlflow-artifacts"

# What MLflow takes in one call, in a value and in a name.
_BATCH = {"metrics": 1000, "params": 100, "tags": 100}
_VALUE, _NAME = 6000, 250
_LOADER = "worldloom.serving.mlflow_model"  # by name: it is of a layer above this one
# What a registered run needs to be loaded again, beside its checkpoint, whatever its suite.
_ABOUT_RUN = ("config.json", "world.yaml", "tasks.json", "data.npz", "constraints.yaml")


class Mlflow(Tracker):
    """The MLflow run of the run in `folder`: made when it starts, found when it goes on."""

    name = "mlflow"

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = Path(folder)
        require(self.name, _packages(self.folder))
        self._client: Any = None
        self._run_id = ""
        self._resumed = False
        self._last_steps: dict[str, int] = {}  # of the metrics that the store has from before

    def start(self, settings: Mapping[str, Any], tags: Mapping[str, str], step: int) -> None:
        from mlflow.entities import Param, RunTag

        self._client = _connect(self.folder)
        run = _kept_run(self._client, self.folder)
        self._resumed = run is not None
        if run is None:
            world = world_label(str(settings.get("env") or "worldloom"))
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or world
            experiment = _experiment(self._client, name, self.folder)
            run = self._client.create_run(experiment, run_name=self.folder.name)
            kept = {"run_id": run.info.run_id, "tracking_uri": _kept_uri(self.folder)}
            write_json(self.folder / RUN_FILE, kept)
        self._run_id = run.info.run_id
        if self._resumed:
            self._client.update_run(self._run_id, status="RUNNING")
        params = {_named(k): str(v)[:_VALUE] for k, v in flat(settings).items()}
        there = run.data.params
        # A parameter is set once: what a resumed run has otherwise stands beside it.
        changed = {f"resumed/{k}": v for k, v in params.items() if there.get(k, v) != v}
        self._send("params", [Param(k, v) for k, v in params.items() if k not in there])
        self._send("tags", [RunTag(_named(k), v) for k, v in (dict(tags) | changed).items()])

    def log(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        named = [(_named(name), value, step) for name, value, step in points]
        new = [Metric(n, v, now, step) for n, v, step in named if step > self._last_step(n)]
        self._send("metrics", new)

    def finish(self, status: str, files: Sequence[Path]) -> None:
        try:
            for file in files:
                self._client.log_artifact(self._run_id, str(file))
        finally:  # a file that is not taken leaves no run that seems to go on for ever
            self._client.set_terminated(self._run_id, status)

    def look(self) -> list[str]:
        uri = tracking_uri(self.folder)
        if not self._run_id or "@" in uri:  # whose passwords are not for a terminal
            return []
        if any(found.name == "mlflow" for found in distributions(name="mlflow")):  # not skinny
            return [*program("mlflow"), "ui", "--backend-store-uri", uri]
        asked = ["runs", "describe", "--run-id", self._run_id]
        return ["env", f"MLFLOW_TRACKING_URI={uri}", *program("mlflow"), *asked]

    def _last_step(self, name: str) -> int:
        """The newest step of a metric in the store: a resumed run tells some of them again."""
        if not self._resumed:
            return -1
        if name not in self._last_steps:
            history = self._client.get_metric_history(self._run_id, name)
            self._last_steps[name] = max((metric.step for metric in history), default=-1)
        return self._last_steps[name]

    def _send(self, kind: str, values: Sequence[Any]) -> None:
        for n in range(0, len(values), _BATCH[kind]):
            self._client.log_batch(self._run_id, **{kind: values[n : n + _BATCH[kind]]})


# Registered models -------------------------------------------------------------------------------


def register_model(
    run: Path, name: str, model: Path | None = None, tags: Mapping[str, str] | None = None
) -> int:
    """Makes a version of the registered model `name`; its number.

    `mlflow.pyfunc.load_model(f"models:/{name}/{number}").predict(obs)` answers with its actions.

    Args:
        run: a run folder. It need not have been tracked while it trained.
        model: what is registered: a folder, such as an exported bundle. By default the run's newest
            checkpoint with its settings: what MLflow then downloads is a run folder for
            `worldloom.load`.
        tags: kept with the version, beside the sha256 of its files.
    """
    run = Path(run)
    require("mlflow", _packages(run))
    files = dict(_loadable(run) if model is None else _below(Path(model), Path(model)))
    digest = _digest(files)
    client = _connect(run)
    kept = _kept_run(client, run)
    if kept is None:
        _track_afterwards(run)
        kept = _kept_run(client, run)
    assert kept is not None
    place = f"models/{digest[:12]}"
    for inside, path in files.items():
        client.log_artifact(kept.info.run_id, str(path), Path(place, inside).parent.as_posix())
    with tempfile.TemporaryDirectory() as draft:
        about = _model(kept.info.run_id, Path(draft))
        client.log_artifact(kept.info.run_id, str(about), place)
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    version = client.create_model_version(
        name,
        source=f"{kept.info.artifact_uri}/{place}",
        run_id=kept.info.run_id,
        tags=dict(tags or {}) | {"sha256": digest},
    )
    return int(version.version)


def _model(run_id: str, folder: Path) -> Path:
    """The file that tells MLflow how to load what lies beside it."""
    from mlflow.models import Model

    model = Model(run_id=run_id)
    model.add_flavor(
        "python_function", loader_module=_LOADER, python_version=platform.python_version()
    )
    model.save(str(folder / "MLmodel"))
    return folder / "MLmodel"


def _track_afterwards(run: Path) -> None:
    """An MLflow run, with settings and without metrics, for one that was not tracked."""
    config = run / "config.json"
    if not config.is_file():
        raise ValueError(f"{run} is not a run folder: it has no config.json; name one under runs/")
    tracker = Mlflow(run)
    tracker.start(json.loads(config.read_text())["config"], {}, 0)
    tracker.finish("FINISHED", [config])


def _loadable(run: Path) -> Iterator[tuple[str, Path]]:
    """The files of a run folder without which it could not be loaded."""
    checkpoints = [path for path in (run / "checkpoints").glob("*") if path.name.isdigit()]
    if not checkpoints:
        raise ValueError(f"{run} holds no complete checkpoint; train it, or name another run")
    yield from ((name, run / name) for name in _ABOUT_RUN if (run / name).is_file())
    yield from _below(max(checkpoints, key=lambda path: int(path.name)), run)


def _below(folder: Path, base: Path) -> Iterator[tuple[str, Path]]:
    """The files in a folder, by their names as seen from `base`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise ValueError(f"{folder} holds no files to register; name the folder of a bundle")
    yield from ((path.relative_to(base).as_posix(), path) for path in files)


def _digest(files: Mapping[str, Path]) -> str:
    """A hash of names and contents."""
    total = hashlib.sha256()
    for name, path in sorted(files.items()):
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


# Stores ------------------------------------------------------------------------------------------


def tracking_uri(folder: Path) -> str:
    """The store of the run in `folder`: MLFLOW_TRACKING_URI, its own from before, or the default.

    A default of our own and not MLflow's, which is a file in whatever folder one happens to be in.
    """
    beside = Path(folder).absolute().parent / STORE_FILE
    return os.environ.get("MLFLOW_TRACKING_URI") or _kept_uri(folder) or f"sqlite:///{beside}"


def _kept(folder: Path) -> dict[str, Any]:
    """What a run folder keeps of its MLflow run; nothing if it was not tracked."""
    path = Path(folder) / RUN_FILE
    if not path.is_file():
        return {}
    try:
        kept = json.loads(path.read_text())
    except ValueError:
        kept = None
    if not isinstance(kept, dict) or not isinstance(kept.get("run_id"), str):
        raise ValueError(f"{path} names no MLflow run; delete it, and the run begins a new one")
    return kept


def _kept_uri(folder: Path) -> str | None:
    """The store to keep in the run folder, without passwords; None: the one beside it."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        return _kept(folder).get("tracking_uri")
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _packages(folder: Path) -> list[str]:
    """What must be installed: databases need more than servers do."""
    remote = tracking_uri(folder).startswith(("http://", "https://", "databricks"))
    return ["mlflow"] if remote else ["mlflow", "sqlalchemy", "alembic"]


def _connect(folder: Path) -> Any:
    """A client of the run's store; the first one imports MLflow, which takes seconds."""
    # Before the import. What is trained here is nobody's business unless the user wants it so.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    # By itself MLflow tries for minutes. The next chunk tries again anyway.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    from mlflow import MlflowClient

    # They tell of each table of a new store and of each retry, in the middle of a progress bar.
    for chatty in ("mlflow", "alembic", "urllib3.connectionpool"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=tracking_uri(folder))


def _kept_run(client: Any, folder: Path) -> Any:
    """The MLflow run of the run in `folder`; None if there is none in this store, or no more."""
    from mlflow.exceptions import MlflowException

    run_id = _kept(folder).get("run_id")
    if run_id is None:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


def _experiment(client: Any, name: str, folder: Path) -> str:
    """The id of an experiment, which is made if it is new."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        beside = _kept_uri(folder) is None
        place = (Path(folder).absolute().parent / ARTIFACTS).as_uri() if beside else None
        try:
            return client.create_experiment(name, artifact_location=place)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(
                name
            )  # made by a run that started with this one
    return experiment.experiment_id


def _named(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)[:_NAME]
