"""The run-time check of array shapes: what pyproject.toml names in `--jaxtyping-packages`."""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Any, Union, get_args, get_origin

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray

_check = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype, of the annotations that say a shape; basedpyright sees to the others.

    Those may not hold inside of JAX's transformations, which put what is no array into the fields
    of a struct and trace numbers.
    """
    hints = function.__annotations__
    shapes = {name: of_any_array(hint) for name, hint in hints.items() if is_shape(hint)}
    if not shapes:
        return function
    function.__annotations__ = shapes
    return _check(function)


def of_any_array(hint: Any) -> Any:
    """The same shape of JAX's arrays and numpy's: what is read from a file is numpy's."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return hint.dtype[Any, hint.dim_str]
    parts = tuple(map(of_any_array, get_args(hint)))
    if not parts:
        return hint
    if get_origin(hint) in (Union, UnionType):
        return Union[parts]  # noqa: UP007  `|` takes no tuple
    return get_origin(hint)[parts]


def is_shape(hint: Any) -> bool:
    """Whether an annotation is one of jaxtyping's, or has one in it."""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(is_shape(part) for part in get_args(hint))
