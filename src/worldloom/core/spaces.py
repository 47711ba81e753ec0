"""Sets of observations and actions: static, hashable, able to sample and to check."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from worldloom.core.types import Array, Key, PyTree


@dataclass(frozen=True)
class Discrete:
    """The integers 0 .. n-1."""

    n: int
    shape: tuple[int, ...] = ()
    dtype: str = "int32"

    def __post_init__(self):
        if self.n < 1:
            raise ValueError(f"Discrete: n={self.n}; it must be at least 1")

    def sample(self, key: Key) -> Array:
        return jax.random.randint(key, self.shape, 0, self.n, dtype=self.dtype)

    def contains(self, x: Array) -> Array:
        """() bool, also under jit; a wrong shape or kind of number is simply not contained."""
        x = jnp.asarray(x)
        if x.shape != self.shape or not jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(False)
        x = x.astype(jnp.int32)  # n may not fit the narrow type of x
        return jnp.all((x >= 0) & (x < self.n))


@dataclass(frozen=True)
class Box:
    """Arrays of one shape whose entries lie in [low, high]."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self):
        if not self.low <= self.high:
            raise ValueError(f"Box: low={self.low:g} is not below high={self.high:g}")

    @property
    def _of_integers(self) -> bool:
        return not jnp.issubdtype(jnp.dtype(self.dtype), jnp.inexact)

    def sample(self, key: Key) -> Array:
        if math.isinf(self.low) or math.isinf(self.high):
            raise ValueError(
                f"Box.sample: nothing is uniform on [{self.low:g}, {self.high:g}]; "
                "give the box finite bounds"
            )
        if self._of_integers:
            draw = jax.random.randint(key, self.shape, int(self.low), int(self.high) + 1)
            return draw.astype(self.dtype)
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x: Array) -> Array:
        """() bool, also under jit; a wrong shape or kind of number is simply not contained."""
        x = jnp.asarray(x)
        kind, wide = (jnp.integer, jnp.int32) if self._of_integers else (jnp.number, jnp.float32)
        kind = jnp.bool_ if self.dtype == "bool" else kind
        if x.shape != self.shape or not jnp.issubdtype(x.dtype, kind):
            return jnp.asarray(False)
        x = x.astype(wide)  # the bounds may not fit the narrow type of x
        return jnp.all((x >= self.low) & (x <= self.high))


@dataclass(frozen=True)
class Dict:
    """Named spaces side by side; hashable, so the names and spaces are a tuple of pairs."""

    items: tuple[tuple[str, "Space"], ...]

    def sample(self, key: Key) -> PyTree:
        keys = jax.random.split(key, len(self.items))
        return {name: space.sample(k) for (name, space), k in zip(self.items, keys, strict=True)}

    def contains(self, x: PyTree) -> Array:
        if not isinstance(x, dict) or set(x) != {name for name, _ in self.items}:
            return jnp.asarray(False)
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.items]))


Space = Discrete | Box | Dict


def brief(space: Space) -> str:
    """A space in a few characters: Discrete(4), Box(13,), Dict(grid, size)."""
    if isinstance(space, Dict):
        return f"Dict({', '.join(name for name, _ in space.items)})"
    if isinstance(space, Discrete) and not space.shape:
        return f"Discrete({space.n})"
    return f"{type(space).__name__}{space.shape}"
