"""Returns to compare with: of random actions, of the plant's own loops, and of the oracle.

The table of the built-in plants, assets/references.json, is made by `worldloom bench plant --only
oracle` and `python -m benchmarks.plant_oracle`; reading it costs no planning. It holds for a plant
as it comes: one with other numbers, or of somebody's own, has no entry, and no share.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom.suites.plant.controllers import TUNED, TUNINGS, Tuning
from worldloom.suites.plant.plant import PlantWorld

TABLE = Path(__file__).parent / "assets" / "references.json"
CONTROLLERS = {
    "random": TUNINGS["random"],
    "pid_detuned": Tuning(0.5, 1e-3, False),
    "pid_tuned": TUNED,
}
SHOWN = {"random": "random actions", "pid_tuned": "its PID loops", "oracle": "oracle"}


def fingerprint(world: PlantWorld) -> str:
    """A hash of what decides the table's returns: a plant's name, actuators, loops and numbers.

    Not the bounds of its limits, which no reward depends on.
    """
    plant, params = world.plant, world.params
    numbers = jax.tree.leaves((params.physics, params.disturbance, params.drift, params.horizon))
    values = [np.asarray(x).round(6).tolist() for x in numbers]
    text = json.dumps([plant.name, repr(plant.action), repr(plant.loops), values])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _table() -> dict[str, dict[str, Any]]:
    return json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {}


def references(world: PlantWorld) -> dict[str, float] | None:
    """Mean returns of random actions, detuned and tuned loops, and the oracle; None if unknown."""
    entry = _table().get(world.plant.name)
    if entry is None or entry["settings"] != fingerprint(world):
        return None
    return {name: entry[name]["return"] for name in (*CONTROLLERS, "oracle")}
