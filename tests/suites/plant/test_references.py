"""The table of returns to compare with: of which plants it speaks, and what is made of it."""

import json

import numpy as np
import pytest

from benchmarks.plant_oracle import controller_returns
from worldloom import suites
from worldloom.suites.plant import references as table
from worldloom.suites.plant.evaluate import Outcome, PlantEvaluation
from worldloom.suites.plant.suite import SUITE

MEASURED = json.loads(table.TABLE.read_text())


@pytest.mark.parametrize("plant", MEASURED)
def test_every_entry_is_of_the_plant_as_it_comes_and_the_oracle_is_the_best(plant):
    assert plant in SUITE.worlds
    known = table.references(suites.make(plant).base)
    assert known is not None, "its numbers have changed: run worldloom bench plant --only oracle"
    assert known["oracle"] == max(known.values())
    assert known["random"] < min(known["pid_tuned"], known["oracle"])


def test_other_numbers_are_another_plant_and_other_bounds_are_not():
    assert table.references(suites.make("dmsd").base) is not None
    assert table.references(suites.make("dmsd", right_1=1.5).base) is not None
    for change in ({"disturbance": 0.5}, {"horizon": 50}, {"stiffness": 3.0}):
        assert table.references(suites.make("dmsd", **change).base) is None


def test_the_table_is_of_the_plants_as_they_are_now():
    """Random actions still earn what the table says: equations change without their numbers."""
    row = MEASURED["dmsd"]["random"]
    found = controller_returns(suites.make("dmsd"), "random", 256, seed=1)
    error = np.hypot(found.std() / 16.0, row["stderr"])
    assert abs(found.mean() - row["return"]) < 4.0 * error


def outcome(value):
    limits = np.zeros(1)
    return Outcome(np.full(4, value), np.zeros(4), np.zeros(4), limits, limits, 0.0, 0.0, limits)


def test_a_score_is_a_share_of_the_way_from_random_to_the_oracle():
    known = {"random": -10.0, "pid_detuned": 0.0, "pid_tuned": 5.0, "oracle": 10.0}
    nothing: list = [None, None, ("limit",), 0, None, 1.0]
    scored = PlantEvaluation(outcome(5.0), outcome(0.0), *nothing, references=known)
    row = scored.to_dict()
    assert (row["bare"]["oracle_share"], row["filtered"]["oracle_share"]) == (0.75, 0.5)
    assert scored.lines()["oracle share"].startswith("75.0% bare, 50.0% filtered")
    unknown = PlantEvaluation(outcome(5.0), outcome(0.0), *nothing)
    assert "oracle_share" not in unknown.to_dict()["bare"]
    assert "oracle share" not in unknown.lines()
