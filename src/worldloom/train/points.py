"""The points of a sweep: a grid of settings, read from what people type."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import yaml

from worldloom.core.names import suggest
from worldloom.train.config import Settings, TrainConfig

# Settings that would change nothing that a sweep measures.
IDLE = ("chunk", "eval_every", "eval_episodes", "record_period", "checkpoint_every", "tuned")

Grid = list[tuple[str, list[Any]]]


def parse_grid(texts: Sequence[str]) -> Grid:
    """(name, values) for texts like "iqn.learning_rate=1e-3,2e-3" or "world.num_agents=2,4".

    Names are those of the settings, `algorithm.option` for an option of an algorithm and
    `world.option` for one of the world.
    """
    known = _setting_kinds()
    grid: Grid = []
    for text in texts:
        name, equals, listed = text.partition("=")
        name = name.strip().replace("-", "_")
        words = [word.strip() for word in listed.split(",")]
        if not equals or not name or not all(words):
            raise ValueError(
                f"--grid {text}: write name=value,value,... such as iqn.learning_rate=1e-3,2e-3"
            )
        if name in ("mode", *IDLE):
            raise ValueError(
                f"--grid {text}: {name} changes how a run is executed or watched, not what it "
                "learns; vary another setting (to time modes: worldloom compare)"
            )
        if name not in known and not name.startswith("world."):
            raise ValueError(f"--grid {text}: no setting {name!r}; {suggest(name, known)}")
        values = [_value(text, word, known.get(name)) for word in words]
        if name in dict(grid) or len(set(values)) < len(values):
            raise ValueError(f"--grid {text}: {name} or one of its values is given twice")
        grid.append((name, values))
    return grid


def _setting_kinds() -> dict[str, type]:
    """Every setting that a grid may name, with the type of its values."""
    kinds: dict[str, type] = {}
    defaults = Settings()
    for outer in fields(Settings):
        value = getattr(defaults, outer.name)
        if is_dataclass(value):
            for inner in fields(value):
                kinds[f"{outer.name}.{inner.name}"] = type(getattr(value, inner.name))
        elif outer.name not in ("mode", *IDLE):
            kinds[outer.name] = type(value)
    return kinds


def _value(text: str, word: str, kind: type | None) -> Any:
    """One value of a grid; `kind` is None for options of a world, whose types are its own."""
    try:
        if kind is None:
            return _number(word) if _number(word) is not None else yaml.safe_load(word)
        if kind is bool:
            return {"true": True, "false": False}[word.lower()]
        if kind is tuple:
            return tuple(int(part) for part in word.split("x"))
        return kind(word)
    except (ValueError, KeyError) as error:
        wanted = {bool: "true or false", tuple: "whole numbers joined by x, such as 64x64"}
        name = "" if kind is None else wanted.get(kind, f"a value of type {kind.__name__}")
        raise ValueError(f"--grid {text}: {word!r} is not {name or 'a value'}") from error


def _number(word: str) -> int | float | None:
    # YAML reads 1e-3 as text; people mean a number.
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return None


@dataclass(frozen=True)
class Point:
    """One combination of a grid; `values` are those that have an effect."""

    values: Mapping[str, Any]
    config: TrainConfig

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.values.items())


def points(config: TrainConfig, grid: Grid) -> list[Point]:
    """Every combination of a grid, each once, checked as any configuration is."""
    if config.mode != "jax_fused":
        raise ValueError(f"sweep: mode={config.mode!r}; a sweep is one fused program: jax_fused")
    names = [name for name, _ in grid]
    found: dict[str, Point] = {}
    for combination in itertools.product(*(values for _, values in grid)):
        chosen = dict(zip(names, combination, strict=True))
        algo = chosen.get("algo", config.algo)
        values = {
            n: v for n, v in chosen.items() if "." not in n or n.split(".")[0] in (algo, "world")
        }
        made = _configured(config, values)
        found.setdefault(made.fingerprint() + str(made.epochs), Point(values, made))
    used = {name for point in found.values() for name in point.values}
    for name in names:
        if name not in used:
            algo = name.split(".")[0]
            raise ValueError(
                f"--grid {name}: no run uses {algo}, so it would change nothing; "
                f"add algo={algo} to the grid"
            )
    return list(found.values())


def _configured(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    outer = {n: v for n, v in values.items() if "." not in n}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if "." in name:
            owner, option = name.split(".", 1)
            nested.setdefault(owner, {})[option] = value
    for owner, options in nested.items():
        if owner == "world":
            outer["world"] = dict(config.world) | options
        else:
            outer[owner] = replace(getattr(config, owner), **options)
    return replace(config, **outer)
