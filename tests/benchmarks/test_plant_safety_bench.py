"""The safety filter's figures, in small."""

import numpy as np
import pytest

from benchmarks.plant_safety import PLANTS, attacks, closed_loop, filter_cost


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


@pytest.mark.nightly
@pytest.mark.slow
def test_attacks_count_cases_and_bound_the_rate():
    rows = attacks("linear", cases=2000)
    assert set(rows) >= {"bang_bang", "gradient", "nan_injector", "delayed", "worst_disturbance"}
    for row in rows.values():
        assert row["cases"] >= 2000
        assert row["violations"] == 0
        assert row["violation_rate_at_most"] == pytest.approx(3.0 / row["cases"], rel=0.01)


@pytest.mark.nightly
@pytest.mark.slow
def test_plants_in_closed_loop_are_in_the_middle_of_their_episodes():
    constraints, _, state = closed_loop(16, rows=2_000, updates=20)
    step = np.asarray(state.memory.step)
    assert len(set(step.tolist())) > 4
    assert ((step >= 0) & (step < 200)).all()
    # Where the filter left the actuators, and no longer where all of them began.
    assert len({*map(tuple, np.asarray(state.memory.previous).tolist())}) > 4
    assert np.isfinite(state.obs).all()
    assert state.obs.shape == (16, 5)
    assert constraints.horizon == 10
