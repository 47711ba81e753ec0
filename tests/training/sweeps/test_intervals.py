"""The interquartile mean and its interval are rliable's."""

import numpy as np
import pytest

from worldloom.training.sweeps.intervals import interquartile_mean, stratified_bootstrap


def test_the_middle_half_is_averaged_as_scipy_trims_it():
    stats = pytest.importorskip("scipy.stats", reason="scipy comes with other packages")
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 4, 5, 7, 8, 13):
        scores = rng.normal(size=(6, count)) ** 3
        expected = stats.trim_mean(scores, 0.25, axis=1)
        np.testing.assert_allclose(interquartile_mean(scores), expected)
    assert interquartile_mean([1.0, 2.0, 3.0, 1e9]) == 2.5, "an outlier does not count"
    assert np.isnan(interquartile_mean([1.0, np.nan, 2.0, 3.0, 4.0]))


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = 0
    for n in range(200):
        low, high = stratified_bootstrap([rng.normal(size=20)], repeats=300, seed=n)
        held += low <= 0.0 <= high
    assert 0.85 < held / 200 <= 1.0


def test_seeds_are_drawn_within_their_task():
    """Two tasks whose seeds agree: nothing is left to chance, however far the tasks are apart."""
    assert stratified_bootstrap([[0.0] * 4, [10.0] * 4]) == (5.0, 5.0)
    low, high = stratified_bootstrap([[0.0] * 4 + [10.0] * 4])
    assert low < 5.0 < high


def test_one_score_has_no_interval():
    assert np.isnan(stratified_bootstrap([[1.0]])).all()
    assert np.isnan(stratified_bootstrap([[1.0, np.nan, 2.0]])).all()
