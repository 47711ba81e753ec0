"""Programs that take long to trace, kept from one process to the next.

JAX's compilation cache keeps what XLA makes of a program, not the program: MJX is Python that takes
seconds to run through before XLA is even asked. Where there is such a cache, the traced program is
kept beside what is compiled, as `jax.export` writes it.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
from jax import export

from worldloom.core.files import write_bytes
from worldloom.core.types import PyTree

FOLDER = "worldloom-traced"


def kept(function: Callable[..., PyTree], key: bytes, *args: PyTree) -> Callable[..., PyTree]:
    """`function` for arguments like `args`, read from the cache if it was traced before.

    key: all that the function depends on beside its arguments. What is returned cannot be mapped
    or differentiated. On several devices, and without a cache, it is the function itself.
    """
    cache = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if not cache or jax.device_count() > 1:
        return function
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    platform = jax.default_backend()
    context = f"{jax.__version__} {platform} {jax.config.jax_enable_x64} {shapes}"  # pyright: ignore[reportAttributeAccessIssue]
    name = hashlib.sha256(key + context.encode()).hexdigest()[:32]
    path = Path(cache) / FOLDER / name
    try:
        made = export.deserialize(bytearray(path.read_bytes()))
    except Exception:  # not there, or no longer understood
        structure = jax.tree.structure(shapes)

        def flat(*leaves: Any) -> PyTree:  # what is exported knows no structs of ours
            return function(*jax.tree.unflatten(structure, leaves))

        made = export.export(jax.jit(flat), platforms=[platform])(*jax.tree.leaves(shapes))
        with suppress(OSError):  # a cache that cannot be written to is no reason to stop
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, bytes(made.serialize()))
    # Called as it will be when it is read: XLA must find the same program in its own cache.
    return lambda *args: made.call(*jax.tree.leaves(args))


def digest(*parts: Any) -> bytes:
    """A hash of texts and bytes."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part if isinstance(part, bytes) else str(part).encode())
        sha256.update(b"\0")
    return sha256.digest()
