"""Scores of several seeds as one number and an interval: rliable's interquartile mean.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice": of few
seeds a mean hangs on outliers and a median on one run; the mean of the middle half does not.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

REPEATS = 2000
LEVEL = 0.95


def interquartile_mean(scores: Any) -> Any:
    """The mean of the middle half of the last axis; of fewer than four values, of all.

    NaN where any of them is.
    """
    values = np.sort(np.asarray(scores, float), axis=-1)
    cut = values.shape[-1] // 4
    middle = values[..., cut : values.shape[-1] - cut].mean(axis=-1)
    return np.where(np.isnan(values).any(axis=-1), np.nan, middle)[()]


def stratified_bootstrap(
    tasks: Sequence[Any], repeats: int = REPEATS, level: float = LEVEL, seed: int = 0
) -> tuple[float, float]:
    """The percentile interval of the interquartile mean of all scores.

    tasks: the scores of the seeds of each task, which are drawn again within their own task. NaN
    where there is but one score.
    """
    rng = np.random.default_rng(seed)
    strata = [np.asarray(task, float) for task in tasks]
    if sum(map(len, strata)) < 2:
        return np.nan, np.nan
    drawn = [task[rng.integers(len(task), size=(repeats, len(task)))] for task in strata]
    estimates = interquartile_mean(np.concatenate(drawn, axis=1))
    if not np.isfinite(estimates).all():
        return np.nan, np.nan
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(estimates, [tail, 100.0 - tail])
    return float(low), float(high)
