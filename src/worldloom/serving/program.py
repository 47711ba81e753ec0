"""Programs of a bundle, compiled for fixed numbers of rows and called with numpy arrays."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array, PyTree
from worldloom.serving.artifact import Rows


class Program:
    """A program of a bundle, compiled once for every number of rows that it is called with."""

    def __init__(self, name: str, serialised: bytes):
        from jax import export

        try:
            self._exported = export.deserialize(bytearray(serialised))
        except Exception as error:  # whatever the reader of a foreign format finds wrong
            raise ValueError(
                f"{name} cannot be read by jax {jax.__version__} ({error}); export the policy again"
            ) from None
        self._in = Columns(self._exported.in_avals)
        self._out = Columns(self._exported.out_avals)
        self._compiled: dict[int, Any] = {}

    def __call__(self, *rows: PyTree) -> Rows:
        """What it computes of arrays (b, ...), as numpy arrays."""
        leaves, tree = jax.tree.flatten((rows, {}))
        if tree != self._exported.in_tree:
            raise ValueError(f"the program takes {self._exported.in_tree}, not {tree}")
        words = self._in.pack(leaves)
        program = self._compiled.get(len(words))
        if program is None:
            program = jax.jit(self._packed).lower(words).compile()
            self._compiled[len(words)] = program
        leaves = self._out.unpack(np.asarray(program(words)))
        return jax.tree.unflatten(self._exported.out_tree, leaves)

    def _packed(self, words: Array) -> Array:
        args, _ = jax.tree.unflatten(self._exported.in_tree, self._in.split(words))
        return self._out.join(jax.tree.leaves(self._exported.call(*args)))


class Columns:
    """Arrays (b, ...) side by side in one array of 32-bit words (b, K).

    So one array goes to the device and one comes back, whatever the number of leaves.
    """

    def __init__(self, shapes: Sequence[Any]):
        self._kinds = [(shape.shape[1:], np.dtype(shape.dtype)) for shape in shapes]
        sizes = [math.prod(shape) for shape, _ in self._kinds]
        self._ends = np.cumsum(sizes).tolist()
        self._starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]

    def pack(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """Words (b, K), on the host; of the kinds that are expected and no others."""
        words = np.empty((len(leaves[0]), self._ends[-1]), np.uint32)
        for leaf, (shape, dtype), start, end in self._columns(leaves):
            if leaf.shape[1:] != shape or leaf.dtype != dtype or len(leaf) != len(words):
                raise ValueError(f"the program takes rows of {dtype}{list(shape)}, not {leaf!r}")
            flat = np.ascontiguousarray(leaf).reshape(len(leaf), end - start)
            words[:, start:end] = flat if dtype.kind == "b" else flat.view(np.uint32)
        return words

    def unpack(self, words: np.ndarray) -> list[np.ndarray]:
        """The arrays in words (b, K), on the host."""
        parts = []
        for (shape, dtype), start, end in zip(self._kinds, self._starts, self._ends, strict=True):
            part = np.ascontiguousarray(words[:, start:end])
            part = part != 0 if dtype.kind == "b" else part.view(dtype)
            parts.append(part.reshape(len(words), *shape))
        return parts

    def join(self, leaves: Sequence[Array]) -> Array:
        """What `pack` does, in a program."""
        parts = []
        for leaf, (_, dtype), start, end in self._columns(leaves):
            flat = leaf.reshape(leaf.shape[0], end - start)
            flat = (
                flat.astype(jnp.uint32)
                if dtype.kind == "b"
                else jax.lax.bitcast_convert_type(flat, jnp.uint32)
            )
            parts.append(flat)
        return jnp.concatenate(parts, axis=1)

    def split(self, words: Array) -> list[Array]:
        """What `unpack` does, in a program."""
        parts = []
        for (shape, dtype), start, end in zip(self._kinds, self._starts, self._ends, strict=True):
            part = words[:, start:end].reshape(words.shape[0], *shape)
            part = part != 0 if dtype.kind == "b" else jax.lax.bitcast_convert_type(part, dtype)
            parts.append(part)
        return parts

    def _columns(self, leaves: Sequence[Any]) -> Iterator[tuple[Any, Any, int, int]]:
        return zip(leaves, self._kinds, self._starts, self._ends, strict=True)
