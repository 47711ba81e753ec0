"""Points that Optuna's samplers choose by what was tried before."""

import importlib
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

from worldloom.training.suite import Suite
from worldloom.training.sweeps.search import Range, Space, check_ends, make_point
from worldloom.training.sweeps.source import EVERY_POINT, Listed, Search, Task, failed_row

# Our name -> Optuna's, and what it is made with beside a seed. A worker sees what others are
# trying as if it had come out badly, so that not all of them try the same.
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tpe": ("TPESampler", {"constant_liar": True}),
    "cmaes": ("CmaEsSampler", {}),
    "gp": ("GPSampler", {}),
    "qmc": ("QMCSampler", {}),
}
METHODS = (EVERY_POINT, "random", *SAMPLERS)


def check_method(space: Space, search: Search) -> str:
    """How points are chosen; a ValueError where that is not known, or of nothing."""
    method = search.chosen_method(space)
    if method not in METHODS:
        raise ValueError(f"--search {method}: there are {', '.join(METHODS)}")
    if not space and method != EVERY_POINT:
        raise ValueError(f"--search {method}: name what to vary, with values or a range")
    return method


def import_optuna(what: str) -> Any:
    """The package; a ValueError that says how to install it where it is missing."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise ValueError(
            f"{what} needs Optuna: install worldloom[sweep]; --search random needs nothing"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def make_sampler(optuna: Any, method: str, seed: int) -> Any:
    """One of Optuna's samplers; a ValueError where a package of its own is missing."""
    name, options = SAMPLERS[method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return getattr(optuna.samplers, name)(seed=seed, **options)
        except ImportError as error:
            raise ValueError(f"--search {method}: {str(error).splitlines()[0]}") from None


def distributions(optuna: Any, space: Space) -> dict[str, Any]:
    """The space as Optuna describes it; of listed values their labels."""
    kinds = optuna.distributions
    described = {}
    for name, values in space:
        if not isinstance(values, Range):
            described[name] = kinds.CategoricalDistribution(list(map(_label, values)))
        elif values.whole:
            described[name] = kinds.IntDistribution(int(values.low), int(values.high), values.log)
        else:
            described[name] = kinds.FloatDistribution(values.low, values.high, values.log)
    return described


def _label(value: Any) -> Any:
    """What Optuna can store in the place of a value."""
    return value if isinstance(value, bool | int | float | str | None) else json.dumps(value)


def settings_of(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a point from what a trial of Optuna's holds."""
    values = {}
    for name, known in space:
        if name in params:
            listed = {} if isinstance(known, Range) else {_label(v): v for v in known}
            values[name] = listed.get(params[name], params[name])
    return values


class Sampled(Listed):
    """Points that a sampler chooses, some at a time, for one process."""

    def __init__(self, suite: Suite, given: Mapping[str, Any], space: Space, search: Search):
        super().__init__(())
        method, seed = check_method(space, search), int(given.get("seed", 0))
        check_ends(suite, given, space)
        optuna = import_optuna(f"--search {method}")
        sampler = make_sampler(optuna, method, seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._make = lambda values: make_point(suite, given, values)
        self._space, self._search = space, search
        self._described, self._trials = distributions(optuna, space), []

    def ask(self) -> list[Task]:
        tasks = []
        while len(tasks) < self._search.batch and len(self._trials) < self._search.points:
            trial = self._study.ask(self._described)
            self._trials.append(trial)
            values = settings_of(self._space, trial.params)
            try:
                tasks.append(Task(trial.number, self._make(values)))
            except ValueError as error:  # ends of ranges that fit alone, and not together
                self.fail(trial.number, values, str(error))
        return tasks

    def report(self, task: Task, rung: int, value: float) -> bool:
        self._trials[task.number].report(value, rung)
        return super().report(task, rung, value)

    def tell(self, task: Task, row: dict[str, Any]) -> None:
        super().tell(task, row)
        self._study.tell(task.number, **outcome(row))

    def fail(self, number: int, values: Mapping[str, Any], reason: str) -> None:
        row = failed_row(values, reason)
        self._rows[number] = row
        self._study.tell(number, **outcome(row))


def outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    """What Optuna is told of a finished point; one that was stopped has the value of its rung."""
    from optuna.trial import TrialState

    if row["iqm"] is None or not math.isfinite(row["iqm"]):
        return {"state": TrialState.FAIL}
    return {"state": TrialState.PRUNED} if "stopped_at" in row else {"values": row["iqm"]}
