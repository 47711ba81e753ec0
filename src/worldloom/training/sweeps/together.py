"""Runs that differ in numbers alone, side by side in one program; others, one after the other.

Numbers are the algorithm's floating-point options, the world's params and the seed: they are
arguments of the program, and one vmap runs them all.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import stack
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, PyTree
from worldloom.training.config import TrainConfig
from worldloom.training.loops import make_trainer
from worldloom.training.suite import Problem
from worldloom.training.trainer import Jitted, Loop, Metrics, Repeated, Trainer

# Runs side by side in one call: bounds the memory that a sweep needs.
TOGETHER = 32


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
    """What a program holds of the settings: all but numbers, the seed and the world.

    Of an offline algorithm the world, too: what all runs of a program learn from was logged there.
    """
    static = config.to_dict()
    for name in ("seed",) if config.algorithm.loop == "offline" else ("seed", "world"):
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


def curve_name(metrics: Mapping[str, Any]) -> str:
    """The metric that shows how a run is getting on."""
    return "return" if "return" in metrics else next(n for n in metrics if n.endswith("loss"))


class Members:
    """`loop` for runs (R, ...) with numbers and params of their own, as pure functions.

    differ: whether numbers are (R,), and whether params are (R, ...); what is the same for all has
    no such axis, and costs as little as it would in a run alone. table: what all of them learn
    from, where they learn offline; else nothing.
    """

    def __init__(self, loop: Loop, differ: tuple[bool, bool] = (True, True)):
        self.loop = loop
        self._axes = tuple(0 if each else None for each in differ)

    def own(
        self, numbers: Mapping[str, Array], params: PyTree, table: PyTree = ()
    ) -> tuple[Any, tuple[PyTree, ...]]:
        """The loop of one run, and what it takes beside its state."""
        loop = with_numbers(self.loop, numbers, params)
        if hasattr(self.loop, "params"):
            return loop, ()
        return loop, (table if jax.tree.leaves(table) else params,)

    def init(
        self, seeds: Array, numbers: Mapping[str, Array], params: PyTree, table: PyTree = ()
    ) -> PyTree:
        given = list(zip((numbers, params), self._axes, strict=True))

        def one(each):
            seed, n = each
            own = [x if axis is None else stack.index(x, n) for x, axis in given]
            loop, shared = self.own(own[0], own[1], table)
            return loop.init(jax.random.key(seed), *shared)

        # One after the other: batched QR decompositions of orthogonal weights can hang on a CPU.
        return jax.lax.map(one, (seeds, jnp.arange(len(seeds))))

    def iterate(
        self, states: PyTree, numbers: Mapping[str, Array], params: PyTree, table: PyTree = ()
    ) -> tuple[PyTree, dict[str, Array]]:
        """One iteration of all; metrics (R,) or (R, agents), without tables."""

        def one(state, numbers, params):
            loop, shared = self.own(numbers, params, table)
            state, row = loop.iterate(state, *shared)
            return state, {name: x for name, x in row.items() if x.ndim <= 1}

        return jax.vmap(one, (0, *self._axes))(states, numbers, params)


class Program:
    """What runs of one `program_key` share: compiled once, for `size` of them in a call.

    differ: see `Members`.
    """

    def __init__(
        self,
        config: TrainConfig,
        trainer: Trainer,
        size: int,
        differ: tuple[bool, bool] = (True, True),
    ):
        self.members, self.size, self.differ = Members(trainer.loop, differ), size, differ
        self.table = trainer.shared[0] if config.algorithm.loop == "offline" else ()
        self.init = Jitted(self.members.init)
        self.iterations = Repeated(self.members.iterate, config.chunk)

    @property
    def compile_seconds(self) -> float:
        return self.init.compile_seconds + self.iterations.compile_seconds


def what_differs(configs: Sequence[TrainConfig], problems: Sequence[Problem]) -> tuple[bool, bool]:
    """Whether numbers differ between runs, and whether params of their worlds do."""
    numbers = [numbers_of(config) for config in configs]
    # Runs of one point have one problem: most of the comparing is of a thing with itself.
    several = list({id(problem): problem for problem in problems}.values())
    params = [jax.tree.leaves(problem.env.default_params()) for problem in several]
    differ = any(
        not np.array_equal(one, other)
        for each in params[1:]
        for one, other in zip(params[0], each, strict=True)
    )
    return any(each != numbers[0] for each in numbers), differ


def calls_of(count: int) -> tuple[int, int]:
    """In how many calls so many runs are made, and the size of each."""
    calls = math.ceil(count / TOGETHER)
    return calls, math.ceil(count / calls)


class Together:
    """Runs of one `program_key`, R of them, in as many calls of one program as they need.

    states: where they go on, instead of starting anew.
    """

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        problems: Sequence[Problem],
        seeds: Sequence[int],
        *,
        program: Program | None = None,
        states: Sequence[PyTree] | None = None,
    ):
        count = len(configs)
        if program is None:
            trainer, differ = make_trainer(configs[0], problems[0]), what_differs(configs, problems)
            program = Program(configs[0], trainer, calls_of(count)[1], differ)
        self._program, self._count = program, count
        numbers = [jax.tree.map(np.float32, numbers_of(config)) for config in configs]
        params = [problem.env.default_params() for problem in problems]
        # Every call has the same shape, so that there is one program: the last runs fill the gap.
        calls = math.ceil(count / program.size)
        order = np.minimum(np.arange(calls * program.size), count - 1).reshape(calls, -1)

        def stacked(trees: Sequence[PyTree], part: np.ndarray) -> PyTree:
            return stack.stack([trees[n] for n in part])

        def given(trees: Sequence[PyTree], part: np.ndarray, differ: bool) -> PyTree:
            return stacked(trees, part) if differ else trees[0]

        both = list(zip((numbers, params), program.differ, strict=True))
        self._shared = [(*(given(t, n, d) for t, d in both), program.table) for n in order]
        if states is not None:
            self._states = [stacked(states, part) for part in order]
            return
        chosen = jnp.asarray(seeds, jnp.uint32)
        parts = zip(order, self._shared, strict=True)
        self._states = [program.init(chosen[part], *shared) for part, shared in parts]

    def advance(self, iterations: int) -> Metrics:
        """Plays and learns; metrics (R, iterations, ...) on the host."""
        rows = []
        for n, shared in enumerate(self._shared):
            self._states[n], part = self._program.iterations(self._states[n], iterations, *shared)
            rows.append(jax.tree.map(lambda x: np.swapaxes(x, 0, 1), part))
        return self._joined(rows)

    def agents(self) -> list[PyTree]:
        """What each run is evaluated with."""
        agents = jax.jit(jax.vmap(self._program.members.loop.agents))
        return stack.unstack(self._joined([jax.device_get(agents(s)) for s in self._states]))

    def states(self) -> list[PyTree]:
        """Where each run is, as its own trainer would have it."""
        parts = [stack.unstack(state) for state in self._states]
        return [state for part in parts for state in part][: self._count]

    def _joined(self, parts: Sequence[PyTree]) -> PyTree:
        return jax.tree.map(lambda *x: np.concatenate(x)[: self._count], *parts)

    @property
    def compile_seconds(self) -> float:
        return self._program.compile_seconds


class InTurn:
    """Runs that cannot be vmapped, one after the other."""

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        problems: Sequence[Problem],
        seeds: Sequence[int],
        *,
        states: Sequence[PyTree] | None = None,
    ):
        runs = zip(configs, problems, seeds, strict=True)
        self._trainers = [make_trainer(replace(c, seed=s), problem) for c, problem, s in runs]
        for trainer, state in zip(self._trainers, states or (), strict=bool(states)):
            trainer.load(state)

    def advance(self, iterations: int) -> Metrics:
        """As `Together` has it."""
        rows = [trainer.advance(iterations) for trainer in self._trainers]
        kept = [{n: x for n, x in row.items() if x.ndim <= 2} for row in rows]
        return jax.tree.map(lambda *x: np.stack(x), *kept)

    def agents(self) -> list[PyTree]:
        return [trainer.agents() for trainer in self._trainers]

    def states(self) -> list[PyTree]:
        return [trainer.state() for trainer in self._trainers]

    @property
    def compile_seconds(self) -> float:
        return sum(trainer.compile_seconds for trainer in self._trainers)


def timed_advance(side: "Together | InTurn", iterations: int) -> tuple[Metrics, float, float]:
    """Metrics of `advance`, its seconds, and those of compiling, apart from them."""
    compiling, start = side.compile_seconds, time.perf_counter()
    rows = side.advance(iterations)
    compiling = side.compile_seconds - compiling
    return rows, time.perf_counter() - start - compiling, compiling
