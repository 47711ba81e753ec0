"""Many runs at once: a grid of settings, each point with several seeds.

Runs that differ only in numbers (`LOOP_NUMBERS`, `AGENT_NUMBERS`, seeds, numbers of the world)
are one XLA program: the numbers are its arguments, and one vmap runs them side by side. Runs that
differ in shapes or in code are different programs, one after the other.
"""

import hashlib
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import stack
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import run_episode_batch
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.track.console import ProgressBar
from worldloom.track.folders import new_folder
from worldloom.track.machine import machine, use_compilation_cache, versions
from worldloom.track.sinks import write_json
from worldloom.train.build import build_env, build_loop
from worldloom.train.config import TrainConfig
from worldloom.train.online import Loop, alive
from worldloom.train.points import Grid, Point, parse_grid, points
from worldloom.train.runner import EVALUATION_KEY
from worldloom.train.trainers import evaluation_agent

__all__ = ["parse_grid", "run_together", "sweep"]

# Numbers of a loop and of an algorithm that a program takes as arguments.
LOOP_NUMBERS = ("epsilon", "epsilon_decay", "epsilon_min")
AGENT_NUMBERS = ("learning_rate", "gamma", "target_rate", "max_grad_norm")
# Runs side by side in one call: bounds the memory that a sweep needs.
TOGETHER = 32

# One program for many runs ----------------------------------------------------------------------


def numbers_of(config: TrainConfig, env: PureEnv) -> dict[str, PyTree]:
    """What a program takes as arguments instead of holding it: settings and the world's params."""
    found: dict[str, PyTree] = {name: getattr(config, name) for name in LOOP_NUMBERS}
    for name in AGENT_NUMBERS:
        if hasattr(config.agent, name):
            found[name] = getattr(config.agent, name)
    found = {name: jnp.float32(value) for name, value in found.items()}
    return found | {"world": env.default_params()}


def with_numbers(loop: Loop, numbers: Mapping[str, PyTree]) -> Loop:
    """The loop with other numbers, which may be traced.

    Settings check themselves with comparisons that a traced number cannot answer, so this sets
    fields of copies. Every value must have passed those checks before, in a `TrainConfig`.
    """
    settings = {n: v for n, v in numbers.items() if n in AGENT_NUMBERS}
    agent = _unchecked(loop.agent, config=_unchecked(loop.agent.config, **settings))
    ring = _unchecked(loop.ring, gamma=numbers["gamma"]) if "gamma" in numbers else loop.ring
    rates = {name: numbers[name] for name in LOOP_NUMBERS}
    return replace(loop, agent=agent, ring=ring, params=numbers["world"], **rates)


def _unchecked(frozen: Any, **changes: Any) -> Any:
    made = copy(frozen)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def program_key(config: TrainConfig, world: str) -> str:
    """Equal for configurations whose runs differ in numbers alone; `world` is `world_program`."""
    plain = config.to_dict()
    for name in (*LOOP_NUMBERS, "seed", "world"):
        del plain[name]
    for name in AGENT_NUMBERS:
        plain[config.algo].pop(name, None)
    return json.dumps(plain, sort_keys=True) + world


def world_program(env: PureEnv) -> str:
    """A hash of the world's code with its params as arguments.

    Whether an option of a world is a mere number, only its code can say: where two worlds lower
    to the same text, it is.
    """
    spec = env.spec
    key = jax.eval_shape(lambda: jax.random.key(0))
    params = jax.eval_shape(env.default_params)
    state, _ = jax.eval_shape(env.reset, key, params)
    action = jax.ShapeDtypeStruct((spec.num_agents,), jnp.int32)
    text = repr(spec) + jax.jit(env.reset).lower(key, params).as_text()
    text += jax.jit(env.step).lower(key, state, action, params).as_text()
    return hashlib.sha256(text.encode()).hexdigest()


def run_whole(
    loop: Loop, player: Any, epochs: int, episodes: int
) -> Callable[[Array, Mapping[str, PyTree]], tuple[PyTree, Array, Array, Array]]:
    """A function of (seed, numbers) that trains and evaluates, to be vmapped and compiled.

    It returns the agents' parameters, the greedy scores (episodes,), the training scores
    (epochs,) and whether all of it was finite. Seeds and keys are those of `runner.run`.
    """

    def whole(seed, numbers):
        own = with_numbers(loop, numbers)
        start = own.init(jax.random.key(seed))
        run, metrics = jax.lax.scan(lambda run, _: own.epoch(run), start, None, epochs)
        agents = run.learner.params
        key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + seed), epochs)
        scores = greedy_scores(own, player, agents, key, episodes)
        return agents, scores, metrics.score, metrics.finite.all()

    return whole


def greedy_scores(loop: Loop, player: Any, agents: PyTree, key: Key, episodes: int) -> Array:
    """(episodes,) what `train.evaluate.Evaluator` measures, for a world with traced numbers."""

    def act(params, obs, key):
        return player.act(params, obs, key, explore=0.0)[0]

    worlds = batch(loop.env, episodes)
    _, turns, _ = run_episode_batch(worlds, act, key, agents, loop.params, loop.horizon)
    return (turns.reward * alive(turns.terminated)[:, None, :]).sum(axis=(0, 1))


# The sweep --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """All runs of one program, stacked: R of them."""

    agents: PyTree  # leaves (R, A, ...)
    scores: np.ndarray  # (R, episodes)
    curves: np.ndarray  # (R, epochs)
    finite: np.ndarray  # (R,)
    seconds: float
    compile_seconds: float


def run_together(configs: Sequence[TrainConfig], seeds: Sequence[int], episodes: int) -> Outcome:
    """Runs configurations of one `program_key`, each with its seed, in one program."""
    first = configs[0]
    whole = run_whole(build_loop(first), evaluation_agent(first), first.epochs, episodes)
    numbers = stack.stack([numbers_of(c, build_env(c)) for c in configs])
    count = len(configs)
    calls = math.ceil(count / TOGETHER)
    size = math.ceil(count / calls)
    # Every call has the same shape, so that there is one program: the last runs fill the gap.
    order = jnp.minimum(jnp.arange(calls * size), count - 1).reshape(calls, size)
    arguments = [(jnp.asarray(seeds, jnp.uint32)[n], stack.index(numbers, n)) for n in order]
    start = time.perf_counter()
    program = jax.jit(jax.vmap(whole)).lower(*arguments[0]).compile()
    compiled = time.perf_counter()
    parts = [jax.device_get(program(*each)) for each in arguments]
    seconds = time.perf_counter() - compiled
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:count], *parts)
    return Outcome(*joined, seconds=seconds, compile_seconds=compiled - start)


def sweep(
    config: TrainConfig,
    grid: Grid,
    seeds: int,
    episodes: int,
    out: Path,
    command: str | None = None,
) -> tuple[list[dict[str, Any]], Path]:
    """Trains every point of a grid with `seeds` seeds; rows of results, and their JSON file.

    The file is written after each program, so that an interrupted sweep keeps what it has.
    """
    use_compilation_cache()
    if seeds < 1 or episodes < 1:
        raise ValueError(f"sweep: seeds={seeds}, episodes={episodes}; use at least 1 of each")
    found = points(config, grid)
    groups: dict[str, list[int]] = {}
    worlds: dict[str, str] = {}  # lowering a world takes a while: once for each set of options
    for n, point in enumerate(found):
        env = build_env(point.config)
        build_loop(point.config, env)  # whatever is wrong with a point is said before any runs
        options = repr(point.config.world)
        if options not in worlds:
            worlds[options] = world_program(env)
        groups.setdefault(program_key(point.config, worlds[options]), []).append(n)
    path = new_folder(out, f"sweep-{Path(config.env).stem}") / "sweep.json"
    path.parent.mkdir(parents=True)
    header = {
        "kind": "sweep",
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "config": config.to_dict(),
        "grid": [{"name": name, "values": values} for name, values in grid],
        "seeds": seeds,
        "episodes": episodes,
        "programs": len(groups),
        "versions": versions(),
        "machine": machine(),
    }
    rows: list[dict[str, Any] | None] = [None] * len(found)
    bar = ProgressBar(sum(point.config.epochs for point in found) * seeds)
    try:
        done = 0
        for program, members in enumerate(groups.values()):
            configs = [found[n].config for n in members for _ in range(seeds)]
            chosen = [c.seed + n % seeds for n, c in enumerate(configs)]
            outcome = run_together(configs, chosen, episodes)
            for place, n in enumerate(members):
                runs = slice(place * seeds, (place + 1) * seeds)
                rows[n] = _row(found[n], outcome, runs, chosen[runs], program)
            complete = [row for row in rows if row is not None]
            write_json(
                path, header | {"complete": len(complete) == len(found), "results": complete}
            )
            done += sum(c.epochs for c in configs)
            bar.update(done, f"program {program + 1} of {len(groups)}")
    finally:
        bar.close()
    return [row for row in rows if row is not None], path


def _row(
    point: Point, outcome: Outcome, runs: slice, seeds: Sequence[int], program: int
) -> dict[str, Any]:
    """One point's results; seconds are its share of its program's."""
    scores = outcome.scores[runs].mean(axis=1)
    share = len(scores) / len(outcome.scores)
    spread = scores.std(ddof=1) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
    return {
        "settings": point.label,
        "values": dict(point.values),
        "seeds": list(seeds),
        "scores": [round(float(score), 4) for score in scores],
        "mean": float(scores.mean()),
        "stderr": float(spread),
        "worst": float(scores.min()),
        "diverged": int((~outcome.finite[runs]).sum()),
        "curve": [round(float(x), 3) for x in outcome.curves[runs].mean(axis=0)],
        "seconds": round(outcome.seconds * share, 3),
        "compile_seconds": round(outcome.compile_seconds * share, 3),
        "program": program,
    }
