"""Agents by name; an algorithm's file is imported when it is first asked for."""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from worldloom.core.names import suggest
from worldloom.core.protocols import Agent, EnvSpec

# name -> (module, its config class, one line for people); the module has `make(config, spec)`.
_ALGORITHMS: dict[str, tuple[str, str, str]] = {
    "iqn": ("worldloom.algos.iqn", "IQNConfig", "double IQN: learns the spread of returns"),
    "dqn": ("worldloom.algos.dqn", "DQNConfig", "double DQN: learns the mean of returns"),
    "qlearning": ("worldloom.algos.qlearning", "QLearningConfig", "a table over observations"),
    "random": ("worldloom.algos.random", "RandomConfig", "plays at random and learns nothing"),
}


class _Configs(Mapping[str, type]):
    """Config classes by the name of their algorithm, imported on access."""

    def __getitem__(self, name: str) -> type:
        if name not in _ALGORITHMS:
            raise KeyError(name)
        module, config, _ = _ALGORITHMS[name]
        return getattr(importlib.import_module(module), config)

    def __contains__(self, name: object) -> bool:
        return name in _ALGORITHMS

    def __iter__(self) -> Iterator[str]:
        return iter(_ALGORITHMS)

    def __len__(self) -> int:
        return len(_ALGORITHMS)


CONFIGS: Mapping[str, type] = _Configs()


def names() -> dict[str, str]:
    """Every known agent with its one-line description."""
    return {name: text for name, (_, _, text) in _ALGORITHMS.items()}


def config_class(name: str) -> type:
    """The config class of an agent; an unknown name is a ValueError with the nearest one."""
    if name not in CONFIGS:
        raise ValueError(f"there is no agent {name!r}; {suggest(name, CONFIGS)}")
    return CONFIGS[name]


def make(name: str, config: Any | None, spec: EnvSpec) -> Agent:
    """The agent `name` for a world of `spec`, with its default configuration if None."""
    wanted = config_class(name)
    if config is None:
        config = wanted()
    if not isinstance(config, wanted):
        raise ValueError(
            f"{name}: got a {type(config).__name__} as its configuration; "
            f"it takes a {wanted.__name__}"
        )
    return importlib.import_module(_ALGORITHMS[name][0]).make(config, spec)
