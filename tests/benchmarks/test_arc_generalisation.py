"""The table of generalisation: what search finds, and what the rates count."""

import numpy as np
import pytest

from benchmarks import arc_generalisation as table
from benchmarks import arc_search
from worldloom.suites.arc.generators.drawing import generate


def test_rates_count_the_better_of_two_attempts():
    first, second = np.array([True, False, False, False]), np.array([True, True, False, False])
    row = table.rates(first, second, 30.0)
    assert (row["pass_at_1"], row["pass_at_2"]) == (0.25, 0.5)
    assert row["solved_per_cpu_minute"] == 4.0


def test_sets_are_joined_in_order_under_names_of_their_own():
    sets = {name: generate(("flip rows",), per_family=2, seed=1) for name in ("a", "b")}
    joined = table.join(sets)
    assert joined.task_set.tolist() == [0, 0, 1, 1]
    assert joined.tasks.ids[1:3] == ("a: flip-rows-1", "b: flip-rows-0")


def test_families_stand_in_a_table_without_search_and_with_it():
    rows = [{"families": {"swap": share}} for share in (0.25, 0.75)]
    sets = {"new": rows, "held-out": rows[:1], "mini-arc": []}
    raw = {"policy": sets, "policy with search": sets}
    assert table.family_table(raw)[1] == "    swap: 50%, 50%"
    assert len(table.family_table(raw)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("solve", [arc_search.solve, arc_search.solve_by_programs])
def test_search_finds_short_sequences_and_no_long_ones(solve):
    names = ("flip rows", "keep a colour", "crop to a colour", "mirror beside")
    tasks = generate(names, per_family=1, seed=4)
    solve(tasks[0], 1e-3, 10)  # compiles, which is not to count
    found = [solve(task, 4.0, 10) for task in tasks]
    for answers, tests in found[:3]:
        assert tests == [False, False, False, True]
        assert answers[0] == [True] * 4
    if solve is arc_search.solve:  # five edits; in the language of programs they may be fewer
        assert not any(all(answer) for answer in found[3][0])
