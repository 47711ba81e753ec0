"""Worlds by name."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from worldloom.core.names import suggest
from worldloom.core.protocols import PureEnv

# name -> (module:function, one line for people); the function makes the environment.
_BUILT_IN: dict[str, tuple[str, str]] = {
    "treasurehunt": (
        "worldloom.envs.grid.treasurehunt:make",
        "five short-sighted agents share a field in which gems appear",
    ),
    "tag": (
        "worldloom.envs.grid.tag:make",
        "one agent is it and passes that on by walking into another",
    ),
    "cleanup": (
        "worldloom.envs.grid.cleanup:make",
        "apples grow only while somebody cleans the river, which pays nothing",
    ),
    "staghunt": (
        "worldloom.envs.grid.staghunt:make",
        "a hare feeds one hunter; a stag feeds all who hunt it, but takes two",
    ),
    "arc": (
        "worldloom.envs.arc.world:make",
        "edit a grid of colours until it is the answer that a task's examples suggest",
    ),
    "biped": (
        "worldloom.envs.robot.world:make",
        "a small robot on two legs learns to stand, to take pushes and to walk",
    ),
}
_REGISTERED: dict[str, tuple[Callable[..., PureEnv], str]] = {}


def names(suite: str | None = None) -> dict[str, str]:
    """Every known world with its one-line description, or those that come with one suite."""
    if suite is not None:
        within = f"worldloom.envs.{suite}."
        return {name: text for name, (at, text) in _BUILT_IN.items() if at.startswith(within)}
    known = {name: text for name, (_, text) in _BUILT_IN.items()}
    return known | {name: text for name, (_, text) in _REGISTERED.items()}


def register(name: str, maker: Callable[..., PureEnv], description: str = "") -> None:
    """Makes `make(name, **options)` call `maker(**options)`."""
    if name in names():
        raise ValueError(f"register: there is already a world named {name!r}; choose another name")
    _REGISTERED[name] = (maker, description)


def maker(name: str) -> Callable[..., PureEnv]:
    """The function that makes a world; a name that ends in .yaml or .yml is a file's path."""
    if name in _REGISTERED:
        return _REGISTERED[name][0]
    if name.lower().endswith((".yaml", ".yml")):
        load = importlib.import_module("worldloom.envs.grid.definition").load
        return functools.partial(load, name)
    if name not in _BUILT_IN:
        raise ValueError(f"there is no world {name!r}; {suggest(name, list(names()))}")
    module, function = _BUILT_IN[name][0].split(":")
    return getattr(importlib.import_module(module), function)


def make(name: str, **options: Any) -> PureEnv:
    """A world by name or YAML file, with options: ``make("treasurehunt", num_agents=3)``."""
    function = maker(name)
    known = option_names(function)
    for option in options:
        if known is not None and option not in known:
            raise ValueError(f"{name} has no option {option!r}; {suggest(option, sorted(known))}")
    return function(**options)


def option_names(function: Callable[..., Any]) -> set[str] | None:
    """Keyword options of a maker; None if it takes **options, of which only itself knows.

    Our own makers hand their **rules to the function `world` beside them, which names them, or
    checks them itself.
    """
    parameters = inspect.signature(function).parameters
    found = {n for n, p in parameters.items() if p.kind is not p.VAR_KEYWORD}
    if len(found) == len(parameters):
        return found
    world = getattr(inspect.getmodule(function), "world", None)
    if world is None or not function.__module__.startswith("worldloom."):
        return None
    rules = inspect.signature(world).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in rules):
        return None
    return found | {p.name for p in rules}
