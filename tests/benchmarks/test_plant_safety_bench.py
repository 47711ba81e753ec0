"""The safety filter's figures, in small."""

import pytest

from benchmarks.plant_safety import PLANTS, attacks, filter_cost


@pytest.mark.slow
@pytest.mark.parametrize("plant", ["linear", "reactor"])
def test_the_cost_is_that_of_box_rates_and_one_barrier(plant):
    found = filter_cost(plant, batch=16, repeats=2)
    assert [row.split(":")[0] for row in found["rows"]] == ["box", "box", "rate", "rate", "barrier"]
    assert found["overhead"] == pytest.approx(
        found["filtered_seconds"] / found["policy_seconds"] - 1.0
    )
    assert 0.0 < found["intervened"] <= 1.0


def test_what_a_bundle_holds_is_attacked_as_well():
    constraints, _ = PLANTS["shipped"]()
    kinds = set(constraints.kinds)
    assert kinds == {"box", "rate", "state", "barrier", "lookahead"}
    assert not all(constraints.hard)


@pytest.mark.slow
def test_attacks_count_cases_and_bound_the_rate():
    rows = attacks("linear", cases=2000)
    assert set(rows) >= {"bang_bang", "gradient", "nan_injector", "delayed", "worst_disturbance"}
    for row in rows.values():
        assert row["cases"] >= 2000
        assert row["violations"] == 0
        assert row["violation_rate_at_most"] == pytest.approx(3.0 / row["cases"], rel=0.01)
