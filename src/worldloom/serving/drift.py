"""Whether a plant still looks like the data its policy was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Drift:
    """Compares observations with the training data's mean, deviation and range.

    facts: the `drift` of a bundle's manifest; names: of the n signals.
    """

    def __init__(self, facts: Mapping[str, Any], names: Sequence[str]):
        self.names = list(names)
        mean, std = (np.asarray(facts[name], np.float64) for name in ("mean", "std"))
        # A signal that never moved in the data may still move in its last digits.
        reach = facts["deviations"] * np.maximum(std, 1e-6 * np.maximum(np.abs(mean), 1.0))
        self.low, self.high = mean - reach, mean + reach
        if facts.get("low") is not None and facts.get("high") is not None:
            low, high = (np.asarray(facts[name], np.float64) for name in ("low", "high"))
            beyond = facts["beyond"] * np.maximum(high - low, 1e-6 * np.maximum(np.abs(low), 1.0))
            self.low = np.maximum(self.low, low - beyond)
            self.high = np.minimum(self.high, high + beyond)

    def strange(self, obs: np.ndarray) -> np.ndarray:
        """Which signals (b, n) of observations (b, n) lie outside; what is not a number does."""
        return ~((obs >= self.low) & (obs <= self.high))
