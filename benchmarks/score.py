"""Training time until agents play well: the clock runs only while they train."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from benchmarks.processes import peak_memory_mb
from worldloom.suites.grid.problem import make_problem, new_trainer
from worldloom.suites.grid.suite import SUITE
from worldloom.training.config import TrainConfig, make_config
from worldloom.training.driver import EVALUATION_KEY
from worldloom.training.suite import Evaluator


@dataclass(frozen=True)
class Criterion:
    """Two consecutive greedy evaluations at or above `threshold`, `every` epochs apart."""

    threshold: float = 500.0
    every: int = 2
    episodes: int = 200
    max_epochs: int = 400


@dataclass(frozen=True)
class Reached:
    """`seconds` of training and `epochs` until the criterion held; both None if it never did."""

    seconds: float | None
    epochs: int | None
    trained_seconds: float
    trained_epochs: int
    compile_seconds: float
    curve: tuple[tuple[int, float, float], ...]  # epoch, seconds trained, mean score

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class GreedyScore:
    """Mean greedy score of a trainer's agents; compiled once, in the first call."""

    def __init__(self, config: TrainConfig, episodes: int):
        self._config, self._episodes = config, episodes
        self._evaluator: Evaluator | None = None

    def __call__(self, trainer: Any, seed: int) -> float:
        if self._evaluator is None:
            self._evaluator = make_problem(self._config).make_evaluator(trainer, self._episodes)
        key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), trainer.iteration)
        return self._evaluator(trainer.agents(), key).mean


def reach(
    trainer: Any,
    score: Callable[[], float],
    criterion: Criterion,
    clock: Callable[[], float] = time.perf_counter,
) -> Reached:
    """Trains in blocks of `criterion.every` epochs and scores between them, off the clock.

    Compiling is taken off the clock too. The time is that at the second good evaluation.
    """
    seconds, good, curve = 0.0, 0, []
    while trainer.iteration < criterion.max_epochs and good < 2:
        block = min(criterion.every, criterion.max_epochs - trainer.iteration)
        compiled, start = trainer.compile_seconds, clock()
        trainer.advance(block)
        seconds += clock() - start - (trainer.compile_seconds - compiled)
        mean = score()
        curve.append((trainer.iteration, seconds, mean))
        good = good + 1 if mean >= criterion.threshold else 0
    done = good >= 2
    return Reached(
        seconds=seconds if done else None,
        epochs=trainer.iteration if done else None,
        trained_seconds=seconds,
        trained_epochs=trainer.iteration,
        compile_seconds=trainer.compile_seconds,
        curve=tuple(curve),
    )


def time_to_score(
    config: TrainConfig, criterion: Criterion, score: GreedyScore | None = None
) -> Reached:
    """Trains `config` from the start until the criterion holds; `score` may be shared by seeds."""
    score = score or GreedyScore(config, criterion.episodes)
    trainer = new_trainer(config)
    return reach(trainer, lambda: score(trainer, config.seed), criterion)


def cold(argument: dict[str, Any]) -> dict[str, Any]:
    """`time_to_score` with everything on the clock but imports and evaluation.

    For a fresh process with an empty compilation cache: `seconds` then counts building the
    trainer, compiling and training.
    """
    config = make_config(SUITE, argument["config"])
    criterion = Criterion(**argument["criterion"])
    score = GreedyScore(config, criterion.episodes)
    start = time.perf_counter()
    trainer = new_trainer(config)
    built = time.perf_counter() - start
    reached = reach(trainer, lambda: score(trainer, config.seed), criterion)
    on_the_clock = None
    if reached.seconds is not None:
        on_the_clock = built + reached.compile_seconds + reached.seconds
    return reached.to_dict() | {
        "seconds": on_the_clock,
        "build_seconds": built,
        "peak_memory_mb": peak_memory_mb(),
    }


def median_seconds(rows: Sequence[dict[str, Any]]) -> float | None:
    """The median over seeds; a seed that never got there counts as endless. None without rows."""
    taken = [math.inf if row["seconds"] is None else row["seconds"] for row in rows]
    return statistics.median(taken) if taken else None
