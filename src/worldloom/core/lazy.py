"""Functions named by where they are, and imported when they are called or asked for."""

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def resolve(path: str) -> Any:
    """What "package.module:name" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def lazy(path: str) -> Callable[..., Any]:
    """A function that imports "package.module:name" when it is first called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return resolve(path)(*args, **kwargs)

    call.__name__, call.__doc__ = path.rpartition(":")[2], f"See `{path}`."
    return call


def load_file(path: Path) -> Any:
    """A Python file of the user's as a module, made once for as long as it stays the same."""
    return _load(path.resolve(), path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _load(path: Path, changed: int) -> Any:
    label = f"worldloom_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(label, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[label] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
