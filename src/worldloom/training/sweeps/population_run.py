"""Populations on the host: from settings to members, generation by generation, with checkpoints.

Every seed is a population of its own. The member that did best in training is evaluated in fresh
episodes and written as a run like any other.
"""

import math
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import stack
from worldloom.core.files import plain, read_json, write_json
from worldloom.core.interrupts import stop_when_asked
from worldloom.core.types import PyTree
from worldloom.training.checkpoint import Checkpoints
from worldloom.training.config import make_config
from worldloom.training.console import phase
from worldloom.training.driver import EVALUATION_KEY, plan_of, write_stopped
from worldloom.training.evaluate import reference_rows, score_of
from worldloom.training.folders import locked
from worldloom.training.loops import make_trainer
from worldloom.training.machine import machine, use_compilation_cache, versions
from worldloom.training.run import Run, check_fit
from worldloom.training.suite import Suite
from worldloom.training.sweeps.intervals import interquartile_mean, stratified_bootstrap
from worldloom.training.sweeps.population import Generations, Population, lineage
from worldloom.training.sweeps.search import Range, Space, check_ends, make_point, random_points
from worldloom.training.sweeps.together import Members, numbers_of
from worldloom.training.trainer import Jitted, Repeated

SAVE_EVERY = 10.0  # seconds between checkpoints, which cost more than a generation of a small world


@dataclass(frozen=True)
class Breeding:
    """What a population takes beside the settings of its runs.

    every: steps of a member between two generations; 0: a twentieth of all. replaced: the share of
    members that copy another after each; 0 makes it a random search.
    """

    members: int = 16
    every: int = 0
    seeds: int = 5
    replaced: float = 0.25

    def __post_init__(self):
        for name, least in (("members", 2), ("seeds", 1), ("every", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"population: {name}={getattr(self, name)}; use {least} or more")


class PopulationRun:
    """Populations of one world and algorithm, one for each seed; `train` takes them to their end.

    space: ranges of the algorithm's numbers; without any, its learning rate by a factor of 10.
    """

    def __init__(self, suite: Suite, given: Mapping[str, Any], space: Space, breeding: Breeding):
        self.suite, self.given, self.breeding = suite, given, breeding
        self.config = config = make_config(suite, given)
        known, prefix = numbers_of(config), f"{config.algorithm.name}."
        if not space and "learning_rate" in known:
            rate = known["learning_rate"]
            space = [(f"{prefix}learning_rate", Range(rate / 10, rate * 10, log=True))]
        self.space, self.ranges = space, {}
        for name, values in space:
            number = name.removeprefix(prefix)
            if not isinstance(values, Range) or name == number or number not in known:
                raise ValueError(
                    f"--population: {name} cannot change while runs go on; give ranges of "
                    f"{', '.join(prefix + each for each in known) or 'another algorithm'}"
                )
            self.ranges[number] = (values.low, values.high)
        if config.algorithm.loop == "offline" or not space:
            raise ValueError(
                f"--population: {config.algo} has no numbers that change while it learns online"
            )
        check_ends(suite, given, space)
        self.problem = suite.problem(config, None)
        check_fit(config, self.problem)
        if not self.problem.pure or self.problem.make_trainer is not None or config.devices > 1:
            raise ValueError(f"--population: runs of {config.env} cannot be vmapped")
        self.trainer = make_trainer(config, self.problem)
        self._params = self.problem.env.default_params()
        total = plan_of(config, self.trainer.steps_per_iteration).total
        every = math.ceil(total / 20)
        if breeding.every:
            every = min(total, max(1, round(breeding.every / self.trainer.steps_per_iteration)))
        self.total, self.every = total, every  # iterations: of all, and of a generation
        self.generations = math.ceil(total / every)
        fixed = {n: v for n, v in known.items() if n not in self.ranges}
        members = Members(self.trainer.loop, differ=(True, False))
        self.program = Generations(members, breeding.members, fixed, self.ranges, breeding.replaced)
        self._init = Jitted(self.program.init)
        self._advance = Repeated(self.program.iterate, 1)

    @property
    def steps_per_generation(self) -> int:
        """Of each member; the last generation may have fewer."""
        return self.every * self.trainer.steps_per_iteration

    def start(self, seed: int) -> Population:
        """A population before its first generation: numbers drawn as a random search draws them."""
        points = random_points(self.suite, self.given, self.space, self.program.size, seed)
        drawn = [numbers_of(point.config) for point in points]
        numbers = {n: jnp.asarray([each[n] for each in drawn], jnp.float32) for n in self.ranges}
        return self._init(np.uint32(seed), numbers, self._params)

    def train(self, seed: int, folder: Path, stop: threading.Event) -> dict[str, Any]:
        """Trains one population, on from its newest checkpoint; what came of it.

        stop: ends it after the current generation, with a checkpoint and a KeyboardInterrupt.
        """
        with closing(Checkpoints(folder / f"population-s{seed}")) as checkpoints:
            shape = (self.generations, self.program.size)
            blank = {name: np.zeros(shape, np.float32) for name in ("score", *self.ranges)}
            rows: dict[str, np.ndarray] = {**blank, "parents": np.zeros(shape, np.int32)}
            population = self.start(seed)
            if checkpoints.latest is not None:
                population, rows = checkpoints.restore((population, rows))
                rows = {name: np.array(values) for name, values in rows.items()}
            saved = time.monotonic()
            for n in range(int(population.iteration), self.generations):
                note = f"generation {n + 1} of {self.generations}, seed {seed}"
                phase("training", done=n, total=self.generations, unit="generations", note=note)
                iterations = np.int32(min(self.every, self.total - n * self.every))
                population, row = self._advance(population, 1, iterations, self._params)
                for name in self.ranges:
                    rows[name][n] = row["numbers"][name][0]
                rows["score"][n], rows["parents"][n] = row["score"][0], row["parents"][0]
                stopped = stop.is_set()
                if stopped or n + 1 == self.generations or time.monotonic() - saved >= SAVE_EVERY:
                    checkpoints.save(n + 1, (population, rows))
                    saved = time.monotonic()
                if stopped:
                    raise KeyboardInterrupt
        return self._outcome(seed, folder, population, rows)

    def _outcome(
        self, seed: int, folder: Path, population: Population, rows: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """The best member in training, evaluated in fresh episodes, and how it came there."""
        last = rows["score"][-1]
        best = int(np.argmax(np.where(np.isnan(last), -np.inf, last)))
        home = int(np.flatnonzero(rows["parents"][-1] == best)[0])  # who goes on with that run
        numbers = {name: float(rows[name][-1][best]) for name in self.ranges}
        prefix = self.config.algorithm.name
        point = make_point(
            self.suite,
            {**self.given, "seed": seed},
            {f"{prefix}.{name}": value for name, value in numbers.items()},
        )
        evaluation, state = self.evaluate(seed, stack.index(population.runs, home))
        self._write_best(point.config, folder / f"best-s{seed}", state, evaluation)
        line = lineage(rows["parents"].tolist(), best)
        return {
            "seed": seed,
            "score": score_of(evaluation),
            "numbers": numbers,
            "scores": rows["score"].tolist(),
            "parents": rows["parents"].tolist(),
            "members": {name: rows[name].tolist() for name in self.ranges},
            "line": line,
            "schedule": {
                name: [float(rows[name][g][m]) for g, m in enumerate(line)] for name in self.ranges
            },
        }

    def evaluate(self, seed: int, state: PyTree) -> tuple[Any, PyTree]:
        """Fresh episodes of one run, without exploration."""
        phase("evaluating")
        evaluator = self.problem.make_evaluator(self.trainer, self.config.eval_episodes)
        key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), int(state.iteration))
        return evaluator(jax.device_get(self.trainer.loop.agents(state)), key), state

    def _write_best(self, config: Any, folder: Path, state: PyTree, evaluation: Any) -> None:
        if folder.exists():  # of a population that was resumed after its end
            return
        trainer = make_trainer(config, self.problem)
        trainer.load(state)
        run = Run(self.suite, config, folder, self.problem, trainer)
        run.evaluation = evaluation
        evaluator = self.problem.make_evaluator(trainer, config.eval_episodes)
        beside = reference_rows(self.problem.references(evaluator, run.agents))
        write_stopped(run, {}, beside)


def check_same(path: Path, result: Mapping[str, Any]) -> None:
    """Raises ValueError if a population was begun with other settings, as a file may have them."""
    kept, now = read_json(path), plain(result)
    names = [n for n in now["config"] if now["config"][n] != kept["config"].get(n)]
    names += [n for n in ("grid", "members", "steps_per_generation") if now[n] != kept[n]]
    if names:
        raise ValueError(
            f"{path.parent} was begun with other settings ({', '.join(names)}); put back the file "
            "of settings that it names, or begin another"
        )


def train_populations(
    run: PopulationRun, folder: Path, command: str = "", argv: tuple[str, ...] = ()
) -> tuple[dict[str, Any], Path]:
    """Trains the populations of all seeds, or goes on with them; the result and its JSON file."""
    use_compilation_cache()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        return _train_populations(run, folder, command, argv)


def _train_populations(
    run: PopulationRun, folder: Path, command: str, argv: tuple[str, ...]
) -> tuple[dict[str, Any], Path]:
    path = folder / "sweep.json"
    result: dict[str, Any] = {
        "kind": "population",
        "command": command,
        "argv": list(argv),
        "config": run.config.to_dict(),
        "grid": [{"name": name, "values": str(values)} for name, values in run.space],
        "members": run.program.size,
        "steps_per_generation": run.steps_per_generation,
        "seeds": run.breeding.seeds,
        "versions": versions(),
        "machine": machine(),
        "complete": False,
        "results": [],
    }
    if path.exists():
        check_same(path, result)
    write_json(path, result)
    with stop_when_asked(lambda: None) as stop:
        for n in range(run.breeding.seeds):
            result["results"].append(run.train(run.config.seed + n, folder, stop))
            scores = [row["score"] for row in result["results"]]
            low, high = stratified_bootstrap([scores])
            result |= {"iqm": float(interquartile_mean(scores)), "iqm_low": low, "iqm_high": high}
            result["complete"] = n + 1 == run.breeding.seeds
            write_json(path, result)
    return result, path
