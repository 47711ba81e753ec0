"""The run-time check of array shapes: what pyproject.toml names in `--jaxtyping-packages`."""

import inspect
from collections.abc import Callable
from typing import Any, get_args

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype, of the annotations that say a shape; basedpyright sees to the others.

    Those may not hold inside of JAX's transformations, which put what is no array into the fields
    of a struct and trace numbers.
    """
    shapes = {name: hint for name, hint in function.__annotations__.items() if is_shape(hint)}
    if not shapes:
        return function
    function.__annotations__ = shapes
    return _check(function)


def is_shape(hint: Any) -> bool:
    """Whether an annotation is one of jaxtyping's, or has one in it."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(is_shape(part) for part in get_args(hint))
