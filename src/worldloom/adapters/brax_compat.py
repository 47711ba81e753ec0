"""What Brax 0.14.2 needs on newer versions of JAX, for as long as it is used and no longer.

Both functions are context managers that leave nothing behind, and that do nothing where nothing is
to be done; see docs/adr/0005-brax-on-new-jax.md.
"""

import io
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from types import CodeType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worldloom.core.types import PyTree

_NAME = "device_put_replicated"
_AXIS = "i"  # over which the trainers of Brax map
_lock = threading.Lock()
_users = 0  # how many are inside of `device_put_replicated` at this moment


@contextmanager
def quiet_import() -> Iterator[None]:
    """For importing Brax and MJX: jaxopt, which it imports, warns that it is no longer maintained.

    What MJX prints must not end up in a command's result; that it does without Warp is left out.
    """
    printed = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(printed):
        warnings.filterwarnings("ignore", "JAXopt is no longer maintained", DeprecationWarning)
        yield
    for line in printed.getvalue().splitlines():
        if not line.startswith(("Failed to import warp", "Failed to import mujoco_warp")):
            print(line, file=sys.stderr)


@contextmanager
def device_put_replicated(caller: ModuleType) -> Iterator[None]:
    """Lends `jax.device_put_replicated`, which JAX 0.10 removed, to a module of Brax.

    Nothing happens where JAX has the function, or where no code of `caller` names it. May be
    entered more than once, by several threads too: the last to leave takes it away.
    """
    global _users
    with _lock:
        lend = _users > 0 or not hasattr(jax, _NAME)
        if lend := lend and names(caller, _NAME):
            setattr(jax, _NAME, replicated)
            _users += 1
    try:
        yield
    finally:
        if lend:
            with _lock:
                _users -= 1
                if not _users:
                    delattr(jax, _NAME)


def replicated(tree: PyTree, devices: Sequence[Any]) -> PyTree:
    """A copy of every leaf on each device: leaves (devices, ...), one row on each.

    Compiled, over an axis of Brax's name: then JAX takes the result for one of Brax's own mapped
    programs. Arrays put there plainly would have each of these programs compiled a second time,
    when it is first given what it returned.
    """
    rows = NamedSharding(Mesh(np.array(devices), (_AXIS,)), PartitionSpec(_AXIS))
    count = len(devices)

    def copies(leaf: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(leaf), (count, *np.shape(leaf)))

    return jax.jit(lambda rows: rows, out_shardings=rows)(jax.tree.map(copies, tree))


def names(module: ModuleType, name: str) -> bool:
    """Whether a function of the module, or one within it, speaks of an attribute of this name."""
    functions = [
        f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__
    ]
    return any(_in_code(getattr(f, "__code__", None), name) for f in functions)


def _in_code(code: CodeType | None, name: str) -> bool:
    if code is None:
        return False
    inner = [part for part in code.co_consts if isinstance(part, CodeType)]
    return name in code.co_names or any(_in_code(part, name) for part in inner)
