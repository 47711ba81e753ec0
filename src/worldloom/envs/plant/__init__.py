"""Industrial plants: physical units, limits with signed margins, disturbances of any strength."""

from worldloom.envs.plant.plant import Plant, PlantWorld, make_world
from worldloom.envs.plant.types import (
    EnvironmentState,
    Limit,
    Loop,
    PlantInfo,
    PlantParams,
    SafetyMetrics,
    Signal,
)

__all__ = [
    "EnvironmentState", "Limit", "Loop", "Plant", "PlantInfo", "PlantParams", "PlantWorld",
    "SafetyMetrics", "Signal", "make_world",
]  # fmt: skip
