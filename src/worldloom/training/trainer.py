"""A loop and the state that it advances, in programs that are compiled and timed apart."""

import math
import time
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.draws import is_key
from worldloom.core.mesh import to_host
from worldloom.core.types import Array, Key, PyTree
from worldloom.training.console import phase

Metrics = dict[str, np.ndarray]


class Jitted:
    """A jitted function that compiles ahead of its first call and counts the seconds."""

    def __init__(
        self,
        function: Callable[..., Any],
        donate: tuple[int, ...] = (),
        compiler_options: dict[str, Any] | None = None,
    ):
        self._jit = jax.jit(function, donate_argnums=donate, compiler_options=compiler_options)
        self._compiled: Any = None
        self.compile_seconds = 0.0

    def nbytes(self, *args: Any) -> int:
        """The memory that its outputs take, found out without compiling or computing them."""
        leaves = jax.tree.leaves(self._jit.eval_shape(*args))
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            phase("compiling")
            start = time.perf_counter()
            self._compiled = self._jit.lower(*args).compile()
            self.compile_seconds = time.perf_counter() - start
            phase("training")
        return self._compiled(*args)


class Repeated:
    """`step(state, *shared) -> (state, row)`, again and again in one program.

    How often is an argument, so any number compiles once; at most `chunk` in one call. The state
    is donated, `shared` is not.
    """

    def __init__(
        self,
        step: Callable[..., tuple[PyTree, PyTree]],
        chunk: int,
        compiler_options: dict[str, Any] | None = None,
    ):
        # Traced once, though it is asked for its shapes first; inlined, it is no call of its own.
        self._step, self._chunk = jax.jit(step, inline=True), chunk
        self._run = Jitted(self._many, (0,), compiler_options)

    @property
    def compile_seconds(self) -> float:
        return self._run.compile_seconds

    def _many(self, state: PyTree, count: jax.Array, *shared: PyTree) -> tuple[PyTree, PyTree]:
        shapes = jax.eval_shape(self._step, state, *shared)[1]
        blank = jax.tree.map(lambda x: jnp.zeros((self._chunk, *x.shape), x.dtype), shapes)

        def one(i, carry):
            state, rows = carry
            state, row = self._step(state, *shared)
            return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), rows, row)

        return jax.lax.fori_loop(0, count, one, (state, blank))

    def __call__(self, state: PyTree, count: int, *shared: PyTree) -> tuple[PyTree, PyTree]:
        """The state after `count` steps, and their rows (count, ...) on the host."""
        parts = []
        for done in range(0, count, self._chunk):
            now = min(count - done, self._chunk)
            state, rows = self._run(state, np.int32(now), *shared)
            parts.append(jax.tree.map(lambda leaf, now=now: np.asarray(leaf)[:now], rows))
        return state, jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


class Loop(Protocol):
    """A training loop as pure functions of its state; `shared` are arguments of its program."""

    agent: Any

    @property
    def steps_per_iteration(self) -> int: ...
    def init(self, key: Key, *shared: PyTree) -> PyTree:
        """The state before the first iteration, of which `iteration` counts."""
        ...

    def iterate(self, state: PyTree, *shared: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """One iteration; of its metrics, `finite` says whether all that was learned is."""
        ...

    def agents(self, state: PyTree) -> PyTree:
        """What `act` needs of the state; of several agents, stacked."""
        return state.learner

    def act(self, agents: PyTree, obs: PyTree, key: Key, *, explore: Array | float) -> Array:
        """Actions (B, ...) for obs (B, ...); of one agent, where there are several."""
        return self.agent.act(agents, obs, key, explore=explore)[0]

    def place(self, tree: PyTree, what: str) -> PyTree:
        """A "state" or the "shared" arguments, laid on the loop's devices."""
        return tree


class Trainer:
    """A run in progress: `loop` in a compiled program, any number of iterations at a time.

    repeat: another way to execute iterations, called and timed as a `Repeated` is.
    """

    def __init__(
        self,
        loop: Loop,
        shared: tuple[PyTree, ...] = (),
        *,
        seed: int = 0,
        chunk: int = 10,
        compiler_options: dict[str, Any] | None = None,
        repeat: Any = None,
    ):
        self.loop, self.act = loop, loop.act
        self.shared = loop.place(shared, "shared")
        self.steps_per_iteration = loop.steps_per_iteration
        self._seed, self._unplaced = seed, shared
        self._iterations = repeat or Repeated(loop.iterate, chunk, compiler_options)
        self._init = Jitted(loop.init)
        self._state: PyTree = None

    @property
    def nbytes(self) -> int:
        """The memory that the loop's state takes."""
        return self._init.nbytes(jax.random.key(self._seed), *self._unplaced)

    @property
    def run(self) -> PyTree:
        """The loop's state; made from the seed when it is first asked for."""
        if self._state is None:
            self.load(self._init(jax.random.key(self._seed), *self._unplaced))
        return self._state

    @property
    def iteration(self) -> int:
        return int(self.run.iteration)

    @property
    def compile_seconds(self) -> float:
        return self._init.compile_seconds + self._iterations.compile_seconds

    def advance(self, iterations: int) -> Metrics:
        """Plays and learns; metrics (iterations, ...) on the host."""
        self._state, metrics = self._iterations(self.run, iterations, *self.shared)
        return metrics

    def agents(self) -> PyTree:
        """What is evaluated and exported."""
        # On the host: on several devices, whatever it is used in would be a program on all of them.
        agents = to_host(self.loop.agents(self.run))
        return jax.tree.map(lambda leaf: leaf if is_key(leaf) else np.asarray(leaf), agents)

    def template(self) -> PyTree:
        """The shapes of what a checkpoint holds."""
        return jax.eval_shape(self.loop.init, jax.random.key(0), *self._unplaced)

    def state(self) -> PyTree:
        """What a checkpoint holds."""
        return to_host(self.run)

    def load(self, state: PyTree) -> None:
        self._state = self.loop.place(state, "state")
