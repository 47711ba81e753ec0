"""The worker of a sweep: trains points side by side, stop by stop, and sums up each of them.

Runs of one program (`together`) advance in one call. At the rungs of early stopping those that fall
behind are put down as runs that can be resumed.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom.core.types import PyTree
from worldloom.training.config import TrainConfig
from worldloom.training.console import phase
from worldloom.training.driver import EVALUATION_KEY, plan_of, write_stopped
from worldloom.training.evaluate import (
    RANDOM_PLAY,
    is_rivalry,
    reference_rows,
    score_of,
    standard_error,
)
from worldloom.training.loops import make_trainer
from worldloom.training.run import Run, check_fit
from worldloom.training.suite import Problem, Suite
from worldloom.training.sweeps import together
from worldloom.training.sweeps.intervals import interquartile_mean, stratified_bootstrap
from worldloom.training.sweeps.search import goes_on, rungs
from worldloom.training.sweeps.source import Saved, Search, Source, Task
from worldloom.training.sweeps.together import InTurn, Program, Together
from worldloom.training.trainer import Metrics, Trainer


@dataclass(frozen=True)
class _Parts:
    """What the runs of a point need; points of one `key` are one program."""

    problem: Problem
    trainer: Trainer
    evaluator: Any
    key: str

    @property
    def alone(self) -> bool:
        return self.key == ""


def _is_alone(config: TrainConfig, problem: Problem) -> bool:
    """Whether runs cannot be vmapped: they call the host, or train in a way of their own."""
    return not problem.pure or problem.make_trainer is not None or config.devices > 1


@dataclass
class _Training:
    """A point on its way: the metrics (S, iterations, ...) and scores (S,) of its runs."""

    task: Task
    parts: _Parts
    seeds: list[int]
    rows: Metrics = field(default_factory=dict)
    states: list[PyTree] | None = None
    iteration: int = 0
    agents: list[PyTree] = field(default_factory=list)
    scores: np.ndarray = field(default_factory=lambda: np.zeros(0))
    rivals: bool = False  # whether one agent wins what another loses
    seconds: float = 0.0
    compile_seconds: float = 0.0

    @property
    def config(self) -> TrainConfig:
        return self.task.point.config

    @property
    def total(self) -> int:
        return plan_of(self.config, self.parts.trainer.steps_per_iteration).total

    @property
    def saved(self) -> Saved:
        return Saved(self.iteration, self.states or [], self.rows, self.seconds)

    @property
    def value(self) -> float:
        """What points are compared by."""
        return float(interquartile_mean(self.scores))


class Worker:
    """Trains the points of a source, as many as can be at a time, and writes what comes of them."""

    def __init__(self, suite: Suite, search: Search, source: Source, command: str = ""):
        self._suite, self._search, self._source = suite, search, source
        self._command = command
        self._shared: dict[str, tuple[Problem, Trainer, Any]] = {}
        self._programs: dict[str, list[Program]] = {}
        self._references: dict[str, dict[str, Any]] = {}
        self.folder = Path()  # for runs that are given up

    def prepare(self, tasks: Sequence[Task]) -> list[_Training]:
        """What every point needs, of those that can be trained; the source is told of the others.

        Whatever is wrong with one of them is said before any runs.
        """
        prepared = []
        for task in tasks:
            try:
                prepared.append(self._prepared(task))
            except ValueError as error:
                self._source.fail(task.number, task.point.values, str(error))
        return prepared

    def _prepared(self, task: Task) -> _Training:
        config = task.point.config
        static = together.static_settings(config) + json.dumps(dict(config.world), sort_keys=True)
        if static not in self._shared:
            problem = self._suite.problem(config, None)
            check_fit(config, problem)
            trainer = make_trainer(config, problem)
            evaluator = problem.make_evaluator(trainer, config.eval_episodes)
            self._shared[static] = problem, trainer, evaluator
        shared = self._shared[static]
        key = "" if _is_alone(config, shared[0]) else together.program_key(config, shared[0].env)
        seeds = [config.seed + n for n in range(self._search.seeds)]
        point = _Training(task, _Parts(*shared, key=key), seeds)
        saved = self._source.load(task, (shared[1].template(),) * len(seeds))
        if saved is not None:
            point.iteration, point.states = saved.iteration, saved.states
            point.rows, point.seconds = saved.rows, saved.seconds
        return point

    @staticmethod
    def _program(point: _Training) -> str:
        """A name for the program of a point, by which all workers know it."""
        key = point.parts.key or f"point {point.task.number}"
        return hashlib.sha256(key.encode()).hexdigest()[:6]

    def batches(self, points: Sequence[_Training]) -> Iterator[list[_Training]]:
        """Points of one program that are at one place, as many as are trained at a time."""
        groups: dict[Any, list[_Training]] = {}
        for point in points:
            groups.setdefault((self._program(point), point.iteration), []).append(point)
        for group in groups.values():
            calls = math.ceil(len(group) / max(1, together.TOGETHER // self._search.seeds))
            size = math.ceil(len(group) / calls)
            for first in range(0, len(group), size):
                yield group[first : first + size]

    def train(self, points: list[_Training]) -> Iterator[tuple[Task, dict[str, Any]]]:
        """Trains a batch to its end, and gives the row of each point when it has come to its own.

        A point that is somebody else's now is left to them.
        """
        total, first = points[0].total, points[0].iteration
        halts = rungs(total, self._search.halving)
        stops = sorted({*halts, *self._source.stops(total), total})
        side = self._begin(points)
        for stop in (stop for stop in stops if stop > first):
            self._advance(side, points, stop)
            if stop in (*halts, total):
                self._score(side, points)
            if stop == total:
                for point in points:
                    yield point.task, self._row(point)
                return
            states = iter(side.states())
            for point in points:
                point.states = [next(states) for _ in point.seeds]
            own, behind = points, []
            if stop in halts:
                own, behind = self._judged(points, len(halts) - halts.index(stop))
            # After the verdict: whoever takes over what is saved here goes on from there.
            left = [p for p in own if p not in behind and self._source.save(p.task, p.saved)]
            for point in behind:
                self._put_down(point)
                yield point.task, self._row(point)
            if not left:
                return
            if len(left) < len(points):
                points, side = left, self._begin(left)

    def _judged(
        self, points: Sequence[_Training], place: int
    ) -> tuple[list[_Training], list[_Training]]:
        """The points that are still this worker's, and those of them that fall behind.

        place: which rung they are at, counted from above. Rungs go by steps, since an iteration
        may have more of them at one point than at another.
        """
        halving = self._search.halving
        rung = points[0].config.steps // halving**place
        own = [point for point in points if self._source.report(point.task, rung, point.value)]
        values = self._source.values(rung)
        return own, [point for point in own if not goes_on(point.value, values, halving)]

    def _begin(self, points: Sequence[_Training]) -> Together | InTurn:
        configs = [point.config for point in points for _ in point.seeds]
        problems = [point.parts.problem for point in points for _ in point.seeds]
        seeds = [seed for point in points for seed in point.seeds]
        given = [state for point in points for state in point.states or ()]
        for point in points:
            point.states = None  # the memory is needed twice otherwise
        states = given or None
        parts = points[0].parts
        if parts.alone:
            return InTurn(configs, problems, seeds, states=states)
        differ = together.what_differs(configs, problems)
        known = self._programs.setdefault(f"{differ} {parts.key}", [])
        size = together.calls_of(len(configs))[1]
        # One that is a little too large is better than another one to compile.
        fits = [program for program in known if size <= program.size < 2 * size]
        if not fits:
            fits = [Program(points[0].config, parts.trainer, size, differ)]
            known += fits
        program = min(fits, key=lambda program: program.size)
        return Together(configs, problems, seeds, program=program, states=states)

    def _advance(self, side: Together | InTurn, points: Sequence[_Training], stop: int) -> None:
        phase("training")
        rows, seconds, compiling = together.timed_advance(side, stop - points[0].iteration)
        for n, point in enumerate(points):
            count = len(point.seeds)
            own = {name: x[n * count : (n + 1) * count] for name, x in rows.items()}
            known = point.rows or {name: x[:, :0] for name, x in own.items()}
            point.rows = {name: np.concatenate([known[name], own[name]], 1) for name in own}
            point.iteration = stop
            point.seconds += seconds / len(points)
            point.compile_seconds += compiling / len(points)

    def _score(self, side: Together | InTurn, points: Sequence[_Training]) -> None:
        """What evaluations would say, drawn from the same keys as in `worldloom train`."""
        phase("evaluating")
        agents = iter(side.agents())
        for point in points:
            point.agents = [next(agents) for _ in point.seeds]
            runs = zip(point.agents, point.seeds, strict=True)
            found = [self.evaluate(point, *run) for run in runs]
            point.scores = np.array(list(map(score_of, found)))
            point.rivals = any(is_rivalry(evaluation) for evaluation in found)

    def evaluate(self, point: _Training, agents: PyTree, seed: int) -> Any:
        key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), point.iteration)
        return point.parts.evaluator(agents, key)

    def _put_down(self, point: _Training) -> None:
        """A run folder for each seed of a point that is given up."""
        for n, seed in enumerate(point.seeds):
            config = replace(point.config, seed=seed)
            trainer = make_trainer(config, point.parts.problem)
            trainer.load((point.states or [])[n])
            folder = self.folder / "stopped" / f"point-{point.task.number}-s{seed}"
            run = Run(self._suite, config, folder, point.parts.problem, trainer)
            run.train_seconds = point.seconds / len(point.seeds)
            run.evaluation = self.evaluate(point, point.agents[n], seed)
            metrics = {name: x[n] for name, x in point.rows.items() if name != "finite"}
            write_stopped(run, metrics, self._beside(point), self._command)

    def _beside(self, point: _Training) -> dict[str, Any]:
        """Scores of agents that learn nothing at this point, by name; played once in every task."""
        config = point.config
        learning = ("seed", "algo", "steps", "num_worlds", config.algorithm.name)
        task = {name: value for name, value in config.to_dict().items() if name not in learning}
        place = json.dumps(task, sort_keys=True)
        if place not in self._references:
            problem = point.parts.problem
            rows = reference_rows(problem.references(point.parts.evaluator, point.agents[0]))
            self._references[place] = rows
        return self._references[place]

    def _row(self, point: _Training) -> dict[str, Any]:
        """One point's results; seconds are its share of its program's."""
        scores, curves = point.scores, point.rows[together.curve_name(point.rows)]
        each = point.parts.trainer.steps_per_iteration
        low, high = stratified_bootstrap([scores])
        stopped = {"stopped_at": point.iteration * each} if point.iteration < point.total else {}
        kept = ("mean", "stderr")
        beside = {name: {n: row.get(n) for n in kept} for name, row in self._beside(point).items()}
        if point.rivals:
            beside = {RANDOM_PLAY: {"mean": 0.0, "stderr": None}}
        return {
            "settings": point.task.point.label,
            "values": dict(point.task.point.values),
            "scores": [round(float(score), 4) for score in scores],
            "mean": float(scores.mean()),
            "stderr": standard_error(scores),
            "iqm": point.value,
            "iqm_low": low,
            "iqm_high": high,
            "worst": float(scores.min()),
            "diverged": int((~point.rows["finite"].all(axis=1)).sum()),
            "curve": [round(float(x), 3) for x in curves.mean(axis=0)],
            "curve_stderr": [round(standard_error(x), 3) for x in curves.T],
            "steps_per_iteration": each,
            "seconds": round(point.seconds, 3),
            "compile_seconds": round(point.compile_seconds, 3),
            "seeds": point.seeds,
            "program": self._program(point),
            "references": beside,
            **stopped,
        }
