"""Sets of observations and actions: static, hashable, able to sample and to check."""

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

    def sample(self, key: Key) -> Array:
        return jax.random.randint(key, self.shape, 0, self.n, dtype=self.dtype)

    def contains(self, x: Array) -> Array:
        """() bool, also under jit; a wrong shape or kind of number is simply not contained."""
        x = jnp.asarray(x)
        if x.shape != self.shape or not jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(False)
        return jnp.all((x >= 0) & (x < self.n))


@dataclass(frozen=True)
class Box:
    """Arrays of one shape whose entries lie in [low, high]."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: str = "float32"

    def sample(self, key: Key) -> Array:
        if jnp.issubdtype(jnp.dtype(self.dtype), jnp.integer):
            draw = jax.random.randint(key, self.shape, int(self.low), int(self.high) + 1)
            return draw.astype(self.dtype)
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x: Array) -> Array:
        x = jnp.asarray(x)
        if x.shape != self.shape:
            return jnp.asarray(False)
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
