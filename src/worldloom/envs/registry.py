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
    "pipeline": (
        "worldloom.envs.plant.pipeline:make",
        "a gate whose water arrives twenty steps later, at a flow that keeps changing",
    ),
    "dmsd": (
        "worldloom.envs.plant.dmsd:make",
        "two masses between springs and dampers, pushed to where they are wanted",
    ),
    "simglucose": (
        "worldloom.envs.plant.simglucose:make",
        "insulin for a patient with diabetes who eats and whose body answers late",
    ),
    "industrial-benchmark": (
        "worldloom.envs.plant.industrial_benchmark:make",
        "steer a machine between consumption and fatigue, with effects that come late",
    ),
    "reactor": (
        "worldloom.envs.plant.reactor:make",
        "a stirred tank whose reaction heats itself and runs away when cooled too late",
    ),
    "powergrid": (
        "worldloom.envs.plant.powergrid:make",
        "three areas that hold their frequency together while loads wander and jump",
    ),
    "hvac": (
        "worldloom.envs.plant.hvac:make",
        "four offices heated and cooled through weather, sun and people",
    ),
    "water": (
        "worldloom.envs.plant.water:make",
        "two tanks, a pump, a valve and chlorine for a town that must not run dry",
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


def suite_of(name: str) -> str | None:
    """The suite that a world came with: grid, arc, robot or plant; None for others."""
    return _BUILT_IN[name][0].split(".")[2] if name in _BUILT_IN else None


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
