"""What `train` takes as hooks: objects with occasions of their own, and plain functions."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from worldloom.core.names import shown
from worldloom.training.driver import Hook, curves
from worldloom.training.trackers.tracker import points

if TYPE_CHECKING:
    from worldloom.training.run import Run

# progress(steps, metrics), as Brax's `progress_fn`; True asks the run to stop.
Progress = Callable[[int, dict[str, Any]], object]
Hooks = Hook | Progress | Iterable[Hook | Progress]


def as_hooks(given: Hooks) -> list[Hook]:
    """Hooks of what a user gives: functions of (steps, metrics), `Hook`s, or one of them.

    Anything else is a ValueError in one line, before a run begins.
    """
    listed = [given] if callable(given) or isinstance(given, Hook) else given
    if not isinstance(listed, Iterable):
        raise ValueError(f"hooks={shown(given)}: give a list of functions of (steps, metrics)")
    return [hook if isinstance(hook, Hook) else FunctionHook(hook) for hook in listed]


class FunctionHook(Hook):
    """Calls function(steps, metrics) after each chunk, and stops the run where it returns True.

    metrics: those of the last iteration, as in metrics.jsonl, and of the newest evaluation, as
    `eval/mean` and the like. `eval/episode_reward` and `eval/episode_reward_std` are always there,
    for functions that were written for Brax: NaN before the first evaluation.
    """

    def __init__(self, function: Progress):
        name = getattr(function, "__name__", shown(function))
        if isinstance(function, type) and issubclass(function, Hook):
            raise ValueError(f"hooks: {name} is a class; give one of its objects, as in {name}()")
        if not callable(function):
            raise ValueError(f"hooks: {name} is no function of (steps, metrics), and no Hook")
        try:
            inspect.signature(function).bind(0, {})
        except TypeError:
            raise ValueError(f"hooks: {name} must take two arguments, (steps, metrics)") from None
        except ValueError:
            pass  # some built-in functions do not say what they take
        self._function = function
        self._row: dict[str, Any] = {}
        self._scores = {f"eval/episode_reward{end}": math.nan for end in ("", "_std")}

    def on_iterations(self, run: "Run", rows: Sequence[Mapping[str, Any]]) -> None:
        self._row = {name: np.asarray(value) for name, value in curves(rows[-1]).items()}

    def on_evaluation(self, run: "Run", evaluation: Any) -> None:
        scores = evaluation_metrics(evaluation)
        self._scores |= {name: value for name, value, _ in points({"eval": scores}, run.steps)}
        spread = scores.get("stderr", math.nan) * math.sqrt(scores.get("episodes", math.nan))
        names = ("eval/episode_reward", "eval/episode_reward_std")
        self._scores |= dict(zip(names, (float(evaluation.mean), spread), strict=True))

    def on_chunk(self, run: "Run") -> None:
        row = {name: value if value.ndim else value.item() for name, value in self._row.items()}
        answer = self._function(run.steps, row | self._scores)
        if isinstance(answer, bool | np.bool_) and answer:
            run.stop()


def evaluation_metrics(evaluation: Any) -> dict[str, Any]:
    """What an evaluation says in numbers; a list holds its episodes there, which are no curves."""
    metrics = getattr(evaluation, "metrics", evaluation.to_dict)()
    return {name: value for name, value in metrics.items() if not isinstance(value, list)}
