"""Figures of off-policy evaluation from rows of estimates and truths."""

import numpy as np
import pytest

from benchmarks import plant_ope
from worldloom import suites
from worldloom.algos.off_policy_evaluation import Estimate
from worldloom.suites.plant.controllers import without_memory
from worldloom.suites.plant.ope import combined, doubts


def row(plant, value, true, half=1.0, doubts=(), low=0.0):
    first = {"method": "all evidence", "value": value, "low": value - half, "high": value + half}
    sampled = {"method": "sampling", "value": -value, "low": low, "high": low}
    return {
        "plant": plant, "quality": "medium", "policy": str(value), "true_return": true,
        "estimates": [first, sampled], "doubts": list(doubts),
    }  # fmt: skip


def test_coverage_width_and_ranks_are_counted():
    rows = [row("a", 1, 1.5), row("a", 2, 2.5), row("a", 3, 9.0, doubts=["x"])]
    rows += [row("b", 1, 5.0, 8.0), row("b", 2, 4.0, 8.0), row("b", 3, 3.0, 8.0, low=None)]
    found = plant_ope.figures(rows)
    assert (found["pairs"], found["settled"]) == (6, 5)
    assert found["coverage_95"] == pytest.approx(5 / 6)
    assert found["settled_coverage_95"] == 1.0
    assert found["plants"] == {"a": pytest.approx(2 / 3), "b": 1.0}
    assert found["rank_correlation"] == pytest.approx(0.0)  # 1 in a, -1 in b
    spread = np.std([1.5, 2.5, 9.0]), np.std([5.0, 4.0, 3.0])
    assert found["relative_width"] == pytest.approx((2 / spread[0] + 16 / spread[1]) / 2)
    assert found["methods"]["sampling"]["intervals"] == 5  # one gave none
    assert found["methods"]["sampling"]["coverage_95"] == 0.0


def test_policies_of_the_benchmark_include_the_plants_own_loops():
    world = suites.make("water").base
    gain, bias = plant_ope.proportional(world, 1.0, 0.0, np.random.default_rng(0))
    obs = np.asarray([2.4, 3.1, 0.9, 1.05, 100.0, 2.0, 7.0], np.float32)
    expected = without_memory(world)(obs)
    np.testing.assert_allclose(np.clip(obs @ gain + bias, -1.0, 1.0), expected, atol=1e-5)


def test_an_interval_grows_with_all_that_is_not_chance():
    modelled, fitted = (
        Estimate(50.0, 48.0, 52.0, 100.0, "m"),
        Estimate(50.0, 45.0, 55.0, 100.0, "f"),
    )
    possible, known = (0.0, 85.0), (0.0, 0.0)
    alone = combined(modelled, fitted, 0.0, known, possible)
    assert (alone.low, alone.high) == (48.0, 52.0)
    # Errors that come from the same rows add up: they need not cancel.
    apart = combined(modelled, fitted._replace(value=40.0), 5.0, known, possible)
    assert (apart.low, apart.high) == pytest.approx((28.2, 71.8))
    lost = combined(modelled, fitted, 0.0, (30.0, 5.0), possible)
    assert (lost.low, lost.high) == (18.0, 57.0)
    unknown = combined(modelled, fitted, 0.0, (80.0, 80.0), possible)
    assert (unknown.low, unknown.high) == possible


def test_a_verdict_looks_at_everything():
    first = {"value": 50.0, "low": 49.0, "high": 51.0}
    summary = {
        "estimates": [first, first, first], "logged_return": 50.0, "fqe_drift": 0.01,
        "fqe_bias": 0.5, "support": {"strange": 0.0},
    }  # fmt: skip
    logged = np.asarray([45.0, 55.0])
    assert doubts(summary, logged) == []
    for change, words in (
        ({"fqe_drift": 0.2}, "still changed by 20%"),
        ({"fqe_bias": -9.0}, "wrong by -9 about the log itself"),
        ({"support": {"strange": 0.5}}, "50% of its steps"),
        ({"estimates": [first, first, first | {"value": 80.0}]}, "differ by 30"),
        ({"estimates": [first | {"high": 99.0}, first, first]}, "wider than 40% of"),
        ({"estimates": [first | {"value": 56.0}, first, first]}, "no logged episode earned that"),
    ):
        (found,) = doubts(summary | change, logged)
        assert words in found
