"""How much a setting matters in a sweep: the share of the scores' variance that it explains alone.

The main effects of an analysis of variance, corrected for chance (epsilon squared, Kelley 1935):
a setting that does nothing comes to about 0, whatever its number of values. What settings do only
together is in nobody's share.
"""

import importlib
import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_POINTS = 6


@dataclass(frozen=True)
class Importance:
    """Of one setting: its share of the variance, and Spearman's rank correlation with the score.

    direction: NaN where values are no numbers. chance: the share that shuffled scores stay below in
    19 of 20 cases.
    """

    name: str
    share: float
    direction: float
    chance: float


def importances(points: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> list[Importance]:
    """Of every setting that varies, the largest share first; none where there are too few points.

    points: values by name, all of them finished and scored.
    """
    if len(points) < LEAST_POINTS:
        return []
    names = dict.fromkeys(name for point in points for name in point)
    found = []
    for name in names:
        has = [n for n, point in enumerate(points) if point.get(name) is not None]
        values = [points[n][name] for n in has]
        if len(has) >= LEAST_POINTS and len(set(map(str, values))) > 1:
            own = np.array([scores[n] for n in has], float)
            share, direction = explained(values, own), rank_correlation(values, own)
            found.append(Importance(name, share, direction, _by_chance(values, own)))
    return sorted(found, key=lambda each: -each.share)


def explained(values: Sequence[Any], scores: np.ndarray) -> float:
    """Epsilon squared of groups of values: each its own, or of many numbers some that follow."""
    groups = _groups(values)
    total = float(((scores - scores.mean()) ** 2).sum())
    kinds = np.unique(groups)
    within = sum(
        float(((scores[groups == k] - scores[groups == k].mean()) ** 2).sum()) for k in kinds
    )
    free = len(scores) - len(kinds)
    if total <= 0 or free < 1:
        return 0.0
    chance = (len(kinds) - 1) * within / free
    return float(np.clip((total - within - chance) / total, 0.0, 1.0))


def _by_chance(values: Sequence[Any], scores: np.ndarray, shuffles: int = 200) -> float:
    rng = np.random.default_rng(0)
    return float(
        np.percentile([explained(values, rng.permutation(scores)) for _ in range(shuffles)], 95)
    )


def _groups(values: Sequence[Any]) -> np.ndarray:
    texts = list(map(str, values))
    kinds = list(dict.fromkeys(texts))
    most = max(2, round(math.sqrt(len(values))))
    if len(kinds) <= most or not all(_is_number(value) for value in values):
        return np.array([kinds.index(text) for text in texts])
    ranks = np.argsort(np.argsort(np.array(values, float), kind="stable"), kind="stable")
    return ranks * most // len(values)


def rank_correlation(values: Sequence[Any], scores: np.ndarray) -> float:
    """Spearman's, of ranks that equals share; NaN where it is not defined."""
    if not all(_is_number(value) for value in values):
        return math.nan
    one, other = _ranks(np.array(values, float)), _ranks(scores)
    if not one.std() or not other.std():
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def by_optuna(points: Sequence[Mapping[str, Any]], scores: Sequence[float]) -> dict[str, float]:
    """What Optuna says (PED-ANOVA), where it is installed and all points have the same settings."""
    names = dict.fromkeys(name for point in points for name in point)
    alike = all(point.keys() == names.keys() for point in points)
    if len(points) < LEAST_POINTS or not alike or importlib.util.find_spec("optuna") is None:
        return {}
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    kinds, described = optuna.distributions, {}
    for name in names:
        values = [point[name] for point in points]
        if all(map(_is_number, values)) and min(values) < max(values):
            log = min(values) > 0 and max(values) > 30 * min(values)
            described[name] = kinds.FloatDistribution(min(values), max(values), log=log)
        else:
            described[name] = kinds.CategoricalDistribution(sorted({*map(str, values)}))
    study = optuna.create_study(direction="maximize")
    for point, score in zip(points, scores, strict=True):
        params = {
            name: float(point[name]) if hasattr(kind, "low") else str(point[name])
            for name, kind in described.items()
        }
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=described, value=float(score))
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))
        except (RuntimeError, ValueError, ZeroDivisionError):  # of too few points, or of equal ones
            return {}
