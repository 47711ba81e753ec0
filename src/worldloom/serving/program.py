"""Programs of a bundle: written by `jax.export`, read, compiled, called with numpy arrays."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.types import Array, PyTree

PLATFORMS = ("cpu", "cuda", "tpu")
Rows = dict[str, Any]  # of arrays with a leading axis
_WORDS = {"b": np.uint32, "u": np.uint32, "i": np.int32, "f": np.float32}  # by kind of number


def serialise(function: Callable[..., Rows], *row: PyTree) -> bytes:
    """The program of a function of rows like `row`, arrays or dicts of them, for any number."""
    from jax import export

    (batch,) = export.symbolic_shape("batch")
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape), x.dtype), row)
    # Accelerators multiply float32 in fewer digits unless they are told not to.
    with jax.default_matmul_precision("highest"):
        made = export.export(jax.jit(function), platforms=PLATFORMS)(*shapes)
    return bytes(made.serialize())


def pad(rows: PyTree, size: int) -> PyTree:
    """Arrays (b, ...) with copies of the first row behind them, (size, ...)."""
    return jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[:1], size - len(x), 0)]), rows)


def stack(rows: Sequence[PyTree]) -> PyTree:
    """Rows as arrays (b, ...)."""
    return jax.tree.map(lambda *x: np.stack(x), *rows)


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
        self.takes = jax.tree.unflatten(self._exported.in_tree, self._exported.in_avals)[0]
        self._in = Columns(self._exported.in_avals)
        self._out = Columns(self._exported.out_avals)
        self._compiled = jax.jit(self._packed)

    def __call__(self, *rows: PyTree) -> Rows:
        """What it computes of arrays (b, ...), as numpy arrays."""
        leaves, tree = jax.tree.flatten((rows, {}))
        if tree != self._exported.in_tree:
            raise ValueError(f"the program takes {self._exported.in_tree}, not {tree}")
        leaves = self._out.split(np.asarray(self._compiled(self._in.pack(leaves))))
        return jax.tree.unflatten(self._exported.out_tree, leaves)

    def _packed(self, words: Array) -> Array:
        args, _ = jax.tree.unflatten(self._exported.in_tree, self._in.split(words))
        return self._out.join(jax.tree.leaves(self._exported.call(*args)))


class Columns:
    """Arrays (b, ...) side by side in one array of 32-bit words (b, K).

    So one array goes to the device and one comes back, whatever the number of leaves. Numbers of
    fewer bits, and flags, have a word each.
    """

    def __init__(self, shapes: Sequence[Any]):
        self._kinds = [(shape.shape[1:], np.dtype(shape.dtype)) for shape in shapes]
        ends = np.cumsum([math.prod(shape) for shape, _ in self._kinds]).tolist()
        self._slices = [slice(*pair) for pair in pairwise([0, *ends])]

    def pack(self, leaves: Sequence[np.ndarray]) -> np.ndarray:
        """`join`, on the host; of the kinds that are expected and no others."""
        for leaf, (shape, dtype) in zip(leaves, self._kinds, strict=True):
            if leaf.shape != (len(leaves[0]), *shape) or leaf.dtype != dtype:
                given = f"{leaf.dtype}{list(leaf.shape)}"
                raise ValueError(f"the program takes rows of {dtype}{list(shape)}, not {given}")
        return self.join(leaves, np)

    def join(self, leaves: Sequence[Any], numpy: Any = jnp) -> Any:
        """Words (b, K) of arrays (b, ...) of numpy or of jax."""
        parts = []
        for leaf, (shape, dtype) in zip(leaves, self._kinds, strict=True):
            flat = leaf.reshape(leaf.shape[0], math.prod(shape)).astype(_WORDS[dtype.kind])
            parts.append(flat.view(np.uint32))
        return numpy.concatenate(parts, axis=1)

    def split(self, words: Any) -> list[Any]:
        """The arrays (b, ...) in words (b, K) of numpy or of jax."""
        read = {kind: words.view(word) for kind, word in _WORDS.items()}
        parts = []
        for (shape, dtype), columns in zip(self._kinds, self._slices, strict=True):
            part = read[dtype.kind][:, columns]
            part = part if part.dtype == dtype else part.astype(dtype)
            parts.append(part.reshape(words.shape[0], *shape))
        return parts
