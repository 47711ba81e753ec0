"""Industrial plants: physical units, limits with signed margins, disturbances of any strength.

What a plant of one's own is made of is here: `Signal`, `Limit`, `Loop` and `make_world`. Names are
imported when they are asked for, so that the suite's descriptor can be read without jax.
"""
# ruff: noqa: F403, F405  what is exported is listed once, in __all__

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldloom.suites.plant.plant import *
    from worldloom.suites.plant.types import *

__all__ = [
    "EnvironmentState",
    "Limit",
    "Loop",
    "Plant",
    "PlantInfo",
    "PlantParams",
    "PlantWorld",
    "SafetyMetrics",
    "Signal",
    "make_world",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "plant" if name in ("Plant", "PlantWorld", "make_world") else "types"
    return getattr(import_module(f"{__name__}.{home}"), name)
