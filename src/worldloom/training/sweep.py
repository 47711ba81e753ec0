"""Sweeps: a grid of settings, each point with several seeds, as few XLA programs as possible.

Runs that differ only in numbers (the algorithm's floating-point options, the world's params, the
seed) are one program: the numbers are its arguments, and one vmap runs them side by side. Runs
that differ in shapes or in code, or that call the host, follow each other.
"""

import hashlib
import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import algos
from worldloom.core import stack
from worldloom.core.files import write_json
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, PyTree
from worldloom.training.config import TrainConfig, make_config, merge, nest
from worldloom.training.console import phase
from worldloom.training.driver import EVALUATION_KEY, plan_of
from worldloom.training.evaluate import reference_rows, standard_error
from worldloom.training.folders import new_folder, world_label
from worldloom.training.loops import make_trainer
from worldloom.training.machine import machine, use_compilation_cache, versions
from worldloom.training.run import check_fit
from worldloom.training.suite import Problem, Suite
from worldloom.training.timer import compiled
from worldloom.training.trainer import Trainer

# Runs side by side in one call: bounds the memory that a sweep needs.
TOGETHER = 32

Grid = list[tuple[str, list[Any]]]


# Points ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One combination of a grid."""

    values: Mapping[str, Any]
    config: TrainConfig

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values.items())


def points(suite: Suite, given: Mapping[str, Any], grid: Grid) -> list[Point]:
    """Every combination of a grid, each once, checked as any configuration is.

    Options of an algorithm are for the runs that learn with it.
    """
    names = [name for name, _ in grid]
    chosen: dict[str, Point] = {}
    for combination in itertools.product(*(values for _, values in grid)):
        values = dict(zip(names, combination, strict=True))
        algo = values.get("algo") or given.get("algo") or suite.defaults(given["env"], None)["algo"]
        others = set(algos.names()) - {algos.get(algo).name}
        values = {n: v for n, v in values.items() if n.partition(".")[0] not in others}
        kept = {n: v for n, v in given.items() if n not in others}
        config = make_config(suite, merge(kept, nest(values)))
        chosen.setdefault(f"{config.fingerprint()} {config.steps}", Point(values, config))
    return list(chosen.values())


# One program for many runs ---------------------------------------------------------------------


def numbers_of(config: TrainConfig) -> dict[str, float]:
    """The algorithm's options that a program takes as arguments instead of holding them."""
    hyper = getattr(config.hyper, "hyper", config.hyper)
    values = {f.name: getattr(hyper, f.name) for f in fields(hyper)}
    return {name: value for name, value in values.items() if isinstance(value, float)}


def with_numbers(loop: Any, numbers: Mapping[str, Array], params: PyTree) -> Any:
    """The loop with other numbers, which may be traced.

    Settings check themselves with comparisons that a traced number cannot answer, so this sets
    fields of copies. Every value must have passed those checks before, in a `TrainConfig`.
    """
    config = loop.agent.config
    if hasattr(config, "hyper"):
        config = _unchecked(config, hyper=config.hyper.replace(**numbers))
    else:
        config = _unchecked(config, **numbers)
    changes = {"agent": _unchecked(loop.agent, config=config)}
    if hasattr(loop, "params"):
        changes["params"] = params
    return _unchecked(loop, **changes)


def _unchecked(frozen: Any, **changes: Any) -> Any:
    made = copy(frozen)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def static_settings(config: TrainConfig) -> str:
    """What a program holds of the settings: all but numbers, the seed and the world."""
    static = config.to_dict()
    for name in ("seed", "world"):
        del static[name]
    for name in numbers_of(config):
        static[config.algorithm.name].pop(name, None)
    return json.dumps(static, sort_keys=True)


def program_key(config: TrainConfig, env: PureEnv) -> str:
    """Equal for configurations whose runs differ in numbers alone.

    Whether an option of a world is a mere number, only its code can say: where two worlds lower
    to the same text with their params as arguments, it is.
    """
    spec = env.spec
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(env.default_params)
    state, _ = jax.eval_shape(env.reset, key, params)
    action = jax.eval_shape(spec.action.sample, key)
    if env.turn_based:
        action = jax.ShapeDtypeStruct((spec.num_agents, *action.shape), action.dtype)
    text = repr(spec) + jax.jit(env.reset).lower(key, params).as_text()
    text += jax.jit(env.step).lower(key, state, action, params).as_text()
    return static_settings(config) + hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """All runs of one program: R of them."""

    agents: list[PyTree]
    curves: np.ndarray  # (R, iterations): the training return, or the first loss
    finite: np.ndarray  # (R,)
    seconds: float
    compile_seconds: float


def curve_name(metrics: Mapping[str, Any]) -> str:
    """The metric that shows how a run is getting on."""
    return "return" if "return" in metrics else next(n for n in metrics if n.endswith("loss"))


def run_together(
    configs: Sequence[TrainConfig], problems: Sequence[Problem], seeds: Sequence[int]
) -> Outcome:
    """Runs configurations of one `program_key`, each with its seed, in one program."""
    trainer = make_trainer(configs[0], problems[0])
    iterations = plan_of(configs[0], trainer.steps_per_iteration).total
    loop, offline = trainer.loop, configs[0].algorithm.loop == "offline"

    def whole(seed: Array, numbers: Mapping[str, Array], params: PyTree, table: PyTree):
        own = with_numbers(loop, numbers, params)
        shared = () if hasattr(loop, "params") else (table if offline else params,)
        state = own.init(jax.random.key(seed), *shared)
        state, rows = jax.lax.scan(lambda s, _: own.iterate(s, *shared), state, None, iterations)
        return own.agents(state), rows[curve_name(rows)], rows["finite"].all()

    numbers = stack.stack([jax.tree.map(jnp.float32, numbers_of(config)) for config in configs])
    params = stack.stack([problem.env.default_params() for problem in problems])
    table = trainer.shared[0] if offline else ()
    count = len(configs)
    calls = math.ceil(count / TOGETHER)
    size = math.ceil(count / calls)
    # Every call has the same shape, so that there is one program: the last runs fill the gap.
    order = jnp.minimum(jnp.arange(calls * size), count - 1).reshape(calls, size)
    chosen = jnp.asarray(seeds, jnp.uint32)
    arguments = [(chosen[n], stack.index(numbers, n), stack.index(params, n), table) for n in order]
    program, compile_seconds = compiled(jax.vmap(whole, (0, 0, 0, None)), *arguments[0])
    phase("training")
    start = time.perf_counter()
    parts = [jax.device_get(program(*each)) for each in arguments]
    seconds = time.perf_counter() - start
    agents, curves, finite = jax.tree.map(lambda *x: np.concatenate(x)[:count], *parts)
    return Outcome(stack.unstack(agents), curves, finite, seconds, compile_seconds)


def run_in_turn(
    configs: Sequence[TrainConfig], problems: Sequence[Problem], seeds: Sequence[int]
) -> Outcome:
    """Runs configurations one after the other."""
    agents, curves, finite, seconds, compiling = [], [], [], 0.0, 0.0
    for config, problem, seed in zip(configs, problems, seeds, strict=True):
        trainer = make_trainer(replace(config, seed=seed), problem)
        total, start = plan_of(config, trainer.steps_per_iteration).total, time.perf_counter()
        rows = trainer.advance(total)
        compiling += trainer.compile_seconds
        seconds += time.perf_counter() - start - trainer.compile_seconds
        agents.append(trainer.agents())
        curves.append(rows[curve_name(rows)])
        finite.append(rows["finite"].all())
    return Outcome(agents, np.stack(curves), np.array(finite), seconds, compiling)


# The sweep -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planned:
    """A point of the grid with what its runs need; those of one `key` are one program."""

    point: Point
    problem: Problem
    trainer: Trainer
    evaluator: Any
    key: str

    @property
    def alone(self) -> bool:
        """Whether runs cannot be vmapped: they call the host, or train in a way of their own."""
        own_trainer = self.problem.make_trainer is not None
        return not self.problem.pure or own_trainer or self.point.config.devices > 1


def _plan(suite: Suite, chosen: Sequence[Point]) -> list[_Planned]:
    """What every point needs; whatever is wrong with one is said before any runs."""
    shared: dict[str, tuple[Problem, Trainer, Any]] = {}
    planned = []
    for number, point in enumerate(chosen):
        config = point.config
        static = static_settings(config) + json.dumps(dict(config.world), sort_keys=True)
        if static not in shared:
            problem = suite.problem(config, None)
            check_fit(config, problem)
            trainer = make_trainer(config, problem)
            evaluator = problem.make_evaluator(trainer, config.eval_episodes)
            shared[static] = problem, trainer, evaluator
        one = _Planned(point, *shared[static], key=f"point {number}")
        if not one.alone:
            one = replace(one, key=program_key(config, one.problem.env))
        planned.append(one)
    return planned


def sweep(
    suite: Suite,
    given: Mapping[str, Any],
    grid: Grid,
    seeds: int,
    out: Path,
    command: str = "",
) -> tuple[list[dict[str, Any]], Path]:
    """Trains every point of a grid with `seeds` seeds; rows of results, and their JSON file.

    The file is written after each program, so that an interrupted sweep keeps what it has.
    """
    use_compilation_cache()
    if seeds < 1:
        raise ValueError(f"sweep: seeds={seeds}; use at least 1")
    chosen = points(suite, given, grid)
    planned, programs = _plan(suite, chosen), {}
    for n, one in enumerate(planned):
        programs.setdefault(one.key, []).append(n)
    path = new_folder(out, f"sweep-{world_label(chosen[0].config.env)}") / "sweep.json"
    path.parent.mkdir(parents=True)
    header = {
        "kind": "sweep",
        "command": command,
        "config": chosen[0].config.to_dict(),
        "grid": [{"name": name, "values": values} for name, values in grid],
        "seeds": seeds,
        "programs": len(programs),
        "versions": versions(),
        "machine": machine(),
    }
    rows: dict[int, dict[str, Any]] = {}
    references: dict[str, dict[str, Any]] = {}
    done, total = 0, sum(point.config.steps for point in chosen) * seeds
    for number, members in enumerate(programs.values()):
        note = f"program {number + 1} of {len(programs)}"
        phase("training", done=done, total=total, unit="steps", note=note)
        runs = [planned[n] for n in members for _ in range(seeds)]
        configs = [one.point.config for one in runs]
        own_seeds = [config.seed + n % seeds for n, config in enumerate(configs)]
        work = run_in_turn if runs[0].alone else run_together
        outcome = work(configs, [one.problem for one in runs], own_seeds)
        phase("evaluating")
        scores = np.array(list(map(_score, runs, outcome.agents, own_seeds)))
        for place, n in enumerate(members):
            part = slice(place * seeds, (place + 1) * seeds)
            beside = _references(planned[n], outcome.agents[part.start], references)
            about = {"seeds": own_seeds[part], "program": number, "references": beside}
            rows[n] = _row(planned[n], outcome, scores, part) | about
        results = [rows[n] for n in sorted(rows)]
        complete = len(results) == len(chosen)
        write_json(path, header | {"complete": complete, "results": results})
        done += sum(config.steps for config in configs)
    return [rows[n] for n in sorted(rows)], path


def _score(run: _Planned, agents: PyTree, seed: int) -> float:
    """What the run's evaluation would say, drawn from the same keys as in `worldloom train`."""
    iterations = plan_of(run.point.config, run.trainer.steps_per_iteration).total
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), iterations)
    return run.evaluator(agents, key).mean


def _references(run: _Planned, agents: PyTree, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means of agents that learn nothing at this point, by name; played once in every task."""
    config = run.point.config
    learning = ("seed", "algo", "steps", "num_worlds", config.algorithm.name)
    task = {name: value for name, value in config.to_dict().items() if name not in learning}
    place = json.dumps(task, sort_keys=True)
    if place not in known:
        rows = reference_rows(run.problem.references(run.evaluator, agents))
        kept = ("mean", "stderr")
        known[place] = {name: {n: row.get(n) for n in kept} for name, row in rows.items()}
    return known[place]


def _row(planned: _Planned, outcome: Outcome, scores: np.ndarray, runs: slice) -> dict[str, Any]:
    """One point's results; seconds are its share of its program's."""
    own = scores[runs]
    share = len(own) / len(scores)
    return {
        "settings": planned.point.label,
        "values": dict(planned.point.values),
        "scores": [round(float(score), 4) for score in own],
        "mean": float(own.mean()),
        "stderr": standard_error(own),
        "worst": float(own.min()),
        "diverged": int((~outcome.finite[runs]).sum()),
        "curve": [round(float(x), 3) for x in outcome.curves[runs].mean(axis=0)],
        "curve_stderr": [round(standard_error(x), 3) for x in outcome.curves[runs].T],
        "steps_per_iteration": planned.trainer.steps_per_iteration,
        "seconds": round(outcome.seconds * share, 3),
        "compile_seconds": round(outcome.compile_seconds * share, 3),
    }
