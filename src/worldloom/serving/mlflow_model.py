"""Registered runs and bundles as models of MLflow: `pyfunc.load_model(uri).predict(obs)`."""

from pathlib import Path
from typing import Any

import numpy as np

import worldloom
from worldloom.core.files import read_json
from worldloom.serving.bundle import load_bundle, load_policy
from worldloom.serving.bundle_folder import PLANT_POLICY


def _load_pyfunc(path: str) -> "PolicyModel":
    """What MLflow calls, by this name, with the folder that `register_model` has made."""
    return PolicyModel(Path(path))


class PolicyModel:
    """Greedy actions for observations (B, ...), or for those (A, ...) of a world's A agents.

    A plant's bundle answers with its safety filter, each row as the first step of a plant whose
    actuators are where an emergency puts them: between two calls nothing is remembered. To control
    a plant, serve the bundle.
    """

    def __init__(self, folder: Path):
        manifest = folder / "manifest.json"
        if not manifest.is_file():
            self.act = worldloom.load(folder).act
        elif read_json(manifest).get("kind") == PLANT_POLICY:
            self._bundle = load_bundle(folder)
            self.act = self._first_step
        else:
            self.act = load_policy(folder).act

    def predict(self, model_input: np.ndarray, params: Any = None) -> np.ndarray:
        """Actions. MLflow may hand over a table of pandas: it is taken for rows of numbers."""
        to_numpy = getattr(model_input, "to_numpy", None)
        return np.asarray(self.act(to_numpy(np.float32) if to_numpy else model_input))

    def _first_step(self, obs: Any) -> np.ndarray:
        place = np.asarray(self._bundle.manifest["emergency"], np.float32)
        shape = (*np.shape(obs)[:-1], len(place))
        memory = self._bundle.initial_memory(np.broadcast_to(place, shape))
        return self._bundle.act(obs, memory).action
