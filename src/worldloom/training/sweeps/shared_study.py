"""A study that workers on any number of machines share, in a folder or in a database.

A trial of Optuna's is a point of the sweep, with its row of results as an attribute. What is
known beforehand (a grid, random points) goes by the number of the trial, so that it does not hang
on who asks. Points that a dead worker began are taken over from where they were last saved.
"""

import hashlib
import io
import json
import random
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.draws import is_key
from worldloom.core.files import plain, write_bytes
from worldloom.core.types import PyTree
from worldloom.training.folders import world_label
from worldloom.training.suite import Suite
from worldloom.training.sweeps.claims import Claims, lost_with
from worldloom.training.sweeps.search import Point, Range, Space, check_ends, make_point
from worldloom.training.sweeps.source import Saved, Search, Task, failed_row, known_points
from worldloom.training.sweeps.study import (
    check_method,
    distributions,
    import_optuna,
    make_sampler,
    outcome,
    settings_of,
)

PARTS = 10  # a point is saved after each of as many parts of its steps
GIVEN_UP = 3  # workers that a point may end one after the other
LOCK_SECONDS = 30  # until one who holds a folder's journal, and is silent, is taken for dead
# What a database says while others make its tables, or write.
_IN_THE_WAY = re.compile("already exists|locked|unique|duplicate", re.IGNORECASE)


def without_password(text: str) -> str:
    """A text with the URL of a database as it may be shown and stored."""
    text = re.sub(r"(\w://[^\s:/@]*):\S*@", r"\1:***@", text)
    return re.sub(r"([?&]password=)[^&\s]*", r"\1***", text)


def open_storage(optuna: Any, store: str) -> Any:
    """Optuna's storage for a database's URL, or for a folder."""
    if "://" in store:
        patient = {"connect_args": {"timeout": 60}} if store.startswith("sqlite") else {}
        for tries in range(1, 9):
            try:
                return optuna.storages.RDBStorage(store, engine_kwargs=patient)
            except Exception as error:
                reason = str(error).strip().splitlines()[0]
                if tries == 8 or not _IN_THE_WAY.search(reason):
                    said = f"--study {store}: it cannot be opened ({reason})"
                    raise ValueError(without_password(said)) from None
            # Not all of them at once again.
            time.sleep(0.05 * 2**tries * random.SystemRandom().random())
    Path(store).mkdir(parents=True, exist_ok=True)
    journal = optuna.storages.journal
    path = str(Path(store) / "journal.log")
    # Not the symbolic link that is Optuna's usual lock: the age of one whose path is relative, or
    # of another machine, cannot be told, and a worker that dies with it is waited for without end.
    lock = journal.JournalFileOpenLock(path, grace_period=LOCK_SECONDS)
    backend = journal.JournalFileBackend(path, lock_obj=lock)
    return optuna.storages.JournalStorage(backend)


def study_name(given: Mapping[str, Any], space: Space, search: Search) -> str:
    """A name that only sweeps of the same settings have."""
    about = {n: v for n, v in asdict(search).items() if n != "batch"}
    listed = [(name, str(v) if isinstance(v, Range) else v) for name, v in space]
    text = json.dumps([plain(given), plain(listed), about], sort_keys=True, default=str)
    return f"{world_label(given['env'])}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Shared:
    """Points of a study that others may train at the same time; see `Source`.

    lease: seconds without a sign of life after which a worker's points are another's.
    """

    keeps = True

    def __init__(
        self,
        suite: Suite,
        given: Mapping[str, Any],
        space: Space,
        search: Search,
        store: str,
        out: Path,
        lease: float = 60.0,
    ):
        optuna = import_optuna("--study")
        method = check_method(space, search)
        self._known = known_points(suite, given, space, search)
        if self._known is None:
            check_ends(suite, given, space)
        self._make = lambda values: make_point(suite, given, values)
        self._space, self._search, self._lease = space, search, lease
        self.count = search.points if self._known is None else len(self._known)
        name, storage = study_name(given, space, search), open_storage(optuna, store)
        others = [one for one in optuna.get_all_study_names(storage) if not one.startswith(name)]
        in_folder = "://" not in store
        if in_folder and others:
            raise ValueError(
                f"--study {store} holds a sweep with other settings ({others[0]}); "
                "start it with the same, or name another folder"
            )
        self.folder = Path(store) if in_folder else Path(out) / name
        seed = int.from_bytes(hashlib.sha256(str(time.time_ns()).encode()).digest()[:4], "big")
        sampler = (
            make_sampler(optuna, method, seed)
            if self._known is None
            else _by_number(optuna, self._known)
        )
        self._optuna, self._storage = optuna, storage
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            sampler=sampler,
            load_if_exists=True,
        )
        self._id = storage.get_study_id_from_name(name)
        self._described = distributions(optuna, space)
        self._claims = Claims(optuna, storage, name, lease)

    def __enter__(self) -> "Shared":
        self._claims.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._claims.__exit__(kind, *error)

    # Points --------------------------------------------------------------------------------------

    def _trials(self) -> list[Any]:
        """Those that are points; workers that asked at the same time may have asked for more."""
        return self._storage.get_all_trials(self._id, deepcopy=False)[: self.count]

    def ask(self) -> list[Task]:
        while True:
            trials = self._trials()
            finished = sum(trial.state.is_finished() for trial in trials)
            if finished == self.count:
                return []
            tasks = self._orphans(trials) or self._new(len(trials), self._search.batch)
            if tasks:
                return tasks
            time.sleep(min(1.0, self._lease / 8))  # others train what is left

    def _orphans(self, trials: list[Any]) -> list[Task]:
        """Points that somebody began who shows no life any more.

        One that may be what ended those who had it is trained alone, and then given up.
        """
        begun = [trial.number for trial in trials if not trial.state.is_finished()]
        tasks: list[Task] = []
        for number, claim in self._claims.open(begun).items():
            lost = lost_with(claim)
            alone = lost == GIVEN_UP - 1
            if (alone and tasks) or not self._claims.take(number, claim):
                continue
            if lost >= GIVEN_UP:
                self.fail(number, self._values(number), f"it ended {lost} workers one by one")
                continue
            tasks += self._task(number)
            if alone or len(tasks) == self._search.batch:
                break
        return tasks

    def _new(self, known: int, count: int) -> list[Task]:
        tasks = []
        for _ in range(min(count, self.count - known)):
            number = self._study.ask(self._described).number
            if number >= self.count:  # others asked at the same time
                self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
                break
            if self._claims.take(number):
                tasks += self._task(number)
        return tasks

    def _task(self, number: int) -> list[Task]:
        """A point that this worker has claimed; none if its settings do not fit together."""
        if self._known is not None:
            return [Task(number, self._known[number])]
        # What a worker that died while it asked left open is chosen now.
        trial = self._optuna.trial.Trial(self._study, self._trial_id(number))
        for name, kind in self._described.items():
            if hasattr(kind, "choices"):
                trial.suggest_categorical(name, kind.choices)
            else:
                whole = isinstance(kind, self._optuna.distributions.IntDistribution)
                suggest = trial.suggest_int if whole else trial.suggest_float
                suggest(name, kind.low, kind.high, log=kind.log)
        values = settings_of(self._space, trial.params)
        try:
            return [Task(number, self._make(values))]
        except ValueError as error:
            self.fail(number, values, str(error))
            return []

    def _values(self, number: int) -> Mapping[str, Any]:
        if self._known is not None:
            return self._known[number].values
        return settings_of(self._space, self._storage.get_trial(self._trial_id(number)).params)

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    # Results -------------------------------------------------------------------------------------

    def report(self, task: Task, rung: int, value: float) -> bool:
        if not self._claims.holds(task.number):
            return False
        with suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            self._storage.set_trial_intermediate_value(self._trial_id(task.number), rung, value)
            return True
        return False

    def values(self, rung: int) -> list[float]:
        seen = (trial.intermediate_values for trial in self._trials())
        return [values[rung] for values in seen if rung in values]

    def tell(self, task: Task, row: dict[str, Any]) -> None:
        """Finishes a point, unless somebody else has: the storage finishes none twice."""
        self._finish(task.number, row)

    def fail(self, number: int, values: Mapping[str, Any], reason: str) -> None:
        self._finish(number, failed_row(values, reason))

    def _finish(self, number: int, row: dict[str, Any]) -> None:
        if not self._claims.holds(number):
            return
        with suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(self._trial_id(number), "row", plain(row))
            self._study.tell(number, **outcome(row), skip_if_finished=True)
        self._claims.release(number)
        self._file(number).unlink(missing_ok=True)

    def rows(self) -> list[dict[str, Any]]:
        done = (trial for trial in self._trials() if trial.state.is_finished())
        return [trial.user_attrs["row"] for trial in done if "row" in trial.user_attrs]

    # How far points are --------------------------------------------------------------------------

    def stops(self, total: int) -> list[int]:
        return [total * part // PARTS for part in range(1, PARTS) if total * part // PARTS]

    def _file(self, number: int) -> Path:
        return self.folder / "points" / f"{number:05d}.npz"

    def save(self, task: Task, saved: Saved) -> bool:
        if not self._claims.holds(task.number):
            return False
        path = self._file(task.number)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, _pack(saved))
        self._claims.excuse(task.number)
        return True

    def load(self, task: Task, template: PyTree) -> Saved | None:
        with suppress(OSError, ValueError, KeyError, BadZipFile):  # damaged: from the start, then
            return _unpack(self._file(task.number).read_bytes(), template)
        return None


def _by_number(optuna: Any, points: list[Point]) -> Any:
    """A sampler whose trials are known beforehand, by their numbers."""

    class ByNumber(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study, trial):
            return {}

        def sample_relative(self, study, trial, search_space):
            return {}

        def sample_independent(self, study, trial, param_name, param_distribution):
            values = points[trial.number].values if trial.number < len(points) else {}
            kind = param_distribution
            first = kind.choices[0] if hasattr(kind, "choices") else kind.low
            value = values.get(param_name, first)
            return json.dumps(value) if isinstance(value, list | tuple) else value

    return ByNumber()


def _pack(saved: Saved) -> bytes:
    leaves = jax.tree.leaves(saved.states)
    words = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves]
    arrays = {f"state {n}": np.asarray(leaf) for n, leaf in enumerate(words)}
    arrays |= {f"row {name}": np.asarray(values) for name, values in saved.rows.items()}
    file = io.BytesIO()
    about = {"iteration": np.int64(saved.iteration), "seconds": np.float64(saved.seconds)}
    np.savez(file, **about, **arrays)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def _unpack(content: bytes, template: PyTree) -> Saved:
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    shapes, structure = jax.tree.flatten(template)
    leaves = []
    for n, shape in enumerate(shapes):
        leaf = jnp.asarray(arrays[f"state {n}"])
        leaf = jax.random.wrap_key_data(leaf) if is_key(shape) else leaf
        if (leaf.shape, leaf.dtype) != (shape.shape, shape.dtype):
            raise ValueError(f"state {n} is of another configuration")
        leaves.append(leaf)
    rows = {name[4:]: values for name, values in arrays.items() if name.startswith("row ")}
    states = list(jax.tree.unflatten(structure, leaves))
    return Saved(int(arrays["iteration"]), states, rows, float(arrays["seconds"]))
