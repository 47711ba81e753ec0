"""A loop and the state that it advances: what the chunk driver drives."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.mesh import to_host
from worldloom.core.types import Array, Key, PyTree
from worldloom.training.programs import Jitted, Repeated

Metrics = dict[str, np.ndarray]


class Loop(Protocol):
    """A training loop as pure functions of its state; `shared` are arguments of its program."""

    @property
    def steps_per_iteration(self) -> int: ...
    def init(self, key: Key, *shared: PyTree) -> PyTree:
        """The state before the first iteration, of which `iteration` counts."""
        ...

    def iterate(self, state: PyTree, *shared: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """One iteration; of its metrics, `finite` says whether all that was learned is."""
        ...

    def agents(self, state: PyTree) -> PyTree:
        """What `act` needs of the state."""
        ...

    def act(self, agents: PyTree, obs: PyTree, key: Key, *, explore: Array | float) -> Array:
        """Actions (B, ...) for obs (B, ...); of one agent, where there are several."""
        ...

    def place(self, tree: PyTree, what: str) -> PyTree:
        """A "state" or the "shared" arguments, laid on the loop's devices."""
        ...


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
        self.loop = loop
        self.shared = loop.place(shared, "shared")
        self._seed, self._unplaced = seed, shared
        self._iterations = repeat or Repeated(loop.iterate, chunk, compiler_options)
        self._init = Jitted(loop.init)
        self._state: PyTree = None

    @property
    def run(self) -> PyTree:
        """The loop's state; made from the seed when it is first asked for."""
        if self._state is None:
            state = self._init(jax.random.key(self._seed), *self._unplaced)
            self._state = self.loop.place(state, "state")
        return self._state

    @property
    def iteration(self) -> int:
        return int(self.run.iteration)

    @property
    def steps_per_iteration(self) -> int:
        return self.loop.steps_per_iteration

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
        return jax.tree.map(_host, to_host(self.loop.agents(self.run)))

    @property
    def act(self) -> Callable[..., Array]:
        return self.loop.act

    def template(self) -> PyTree:
        """The shapes of what a checkpoint holds."""
        return jax.eval_shape(self.loop.init, jax.random.key(0), *self._unplaced)

    def state(self) -> PyTree:
        """What a checkpoint holds."""
        return to_host(self.run)

    def load(self, state: PyTree) -> None:
        self._state = self.loop.place(state, "state")


def _host(leaf: Any) -> Any:
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return leaf if is_key else np.asarray(leaf)
