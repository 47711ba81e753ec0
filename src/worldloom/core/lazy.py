"""Functions named by where they are, and imported when they are called or asked for."""

import importlib
from collections.abc import Callable
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
