"""Compiled programs as training calls them: ahead of their first call, and timed apart."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import PyTree


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

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            start = time.perf_counter()
            self._compiled = self._jit.lower(*args).compile()
            self.compile_seconds = time.perf_counter() - start
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
        while count > 0:
            now = min(count, self._chunk)
            state, rows = self._run(state, np.int32(now), *shared)
            parts.append(jax.tree.map(partial(_first, now), rows))
            count -= now
        return state, jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _first(count: int, leaf: jax.Array) -> np.ndarray:
    return np.asarray(leaf)[:count]
