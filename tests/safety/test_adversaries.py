"""Adversaries in closed loop with the filter, 100,000 cases and more each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safety_plants import learned, many_rows, mixed_rows, one_row, start

from benchmarks import plant_adversaries as adversaries
from benchmarks.plant_adversaries import ADVERSARIES, attack, violation_bound
from worldloom.safety import emergency_action, make_constraints
from worldloom.safety.constraints import TOLERANCE
from worldloom.safety.filter import FLAGS

CASES = 100_000
WRONGS = ("violations", "unbounded", "altered", "unfinished", "broken")


EMERGENCY = jnp.uint8(1 << FLAGS.index("emergency"))
FAST, SLOW = ("gradient", "nan_injector"), pytest.mark.slow


@pytest.mark.parametrize(
    ("make", "name", "cases"),
    [(one_row, name, CASES) for name in FAST]
    + [pytest.param(one_row, n, CASES, marks=SLOW) for n in ADVERSARIES if n not in FAST]
    # The curved plant with many rows takes 30 times as long.
    + [
        pytest.param(many_rows, "nan_injector", CASES // 5, marks=SLOW),
        pytest.param(many_rows, "bang_bang", CASES // 5, marks=pytest.mark.nightly),
        pytest.param(many_rows, "worst_disturbance", CASES // 5, marks=pytest.mark.nightly),
    ]
    + [
        pytest.param(learned, "worst_disturbance", CASES, marks=SLOW),
        pytest.param(mixed_rows, "bang_bang", CASES, marks=SLOW),
    ],
)
def test_no_adversary_gets_anything_past_the_filter(make, name, cases):
    found = attack(ADVERSARIES[name], make(), start, jax.random.key(3), cases, batch=2048)
    assert found.cases >= cases
    assert {wrong: int(getattr(found, wrong)) for wrong in WRONGS} == dict.fromkeys(WRONGS, 0)
    assert found.worst >= -TOLERANCE
    assert found.interventions > 0.2 * found.cases  # it was tried hard
    assert found.emergencies < 0.9 * found.cases  # and the filter did not just give up
    assert violation_bound(int(found.violations), int(found.cases)) < 2e-4


@pytest.mark.slow
def test_without_the_filter_the_adversaries_succeed(monkeypatch):
    real = adversaries.filter_action

    def careless(proposed, state, constraints):
        _, report = real(proposed, state, constraints)
        executed = report.memory.replace(previous=jnp.where(jnp.isfinite(proposed), proposed, 0.0))
        return proposed, report.replace(flags=report.flags & ~EMERGENCY, memory=executed)

    monkeypatch.setattr(adversaries, "filter_action", careless)
    for name in ("nan_injector", "worst_disturbance"):
        found = attack(ADVERSARIES[name], one_row(), start, jax.random.key(3), 2000, batch=200)
        assert found.violations > 0.1 * found.cases
        assert found.unbounded > 0.05 * found.cases
    assert found.broken > 0


def test_a_filter_that_always_stops_is_found_out(monkeypatch):
    """It violates nothing, and keeps safe actions from the plant."""
    real = adversaries.filter_action

    def timid(proposed, state, constraints):
        _, report = real(proposed, state, constraints)
        action = emergency_action(state, constraints)
        stopped = report.memory.replace(previous=action)
        return action, report.replace(flags=report.flags | EMERGENCY, memory=stopped)

    monkeypatch.setattr(adversaries, "filter_action", timid)
    found = attack(ADVERSARIES["uniform"], one_row(), start, jax.random.key(3), 1500, batch=150)
    assert found.violations == 0
    assert found.altered > 0.01 * found.cases


def test_an_attack_on_a_box_alone_is_one():
    box = make_constraints(3, [0.0, 0.0], low=-0.5, high=0.5)
    found = attack(ADVERSARIES["gradient"], box, start, jax.random.key(3), 1000, batch=100)
    assert found.interventions > 0.5 * found.cases
    assert {wrong: int(getattr(found, wrong)) for wrong in WRONGS} == dict.fromkeys(WRONGS, 0)


def test_a_disturbance_that_the_barrier_does_not_know_of_breaks_its_promise(monkeypatch):
    """The counter of broken promises counts: the plant is pushed by ten times what is allowed."""
    real = adversaries._push
    monkeypatch.setattr(adversaries, "_push", lambda obs, c: 10.0 * real(obs, c))
    worst = ADVERSARIES["worst_disturbance"]
    found = attack(worst, one_row(), start, jax.random.key(3), 4000, batch=400)
    assert found.broken > 0
    assert found.violations == 0  # the actions were right by what was known


def test_the_same_key_gives_the_same_counts():
    first, again = (
        attack(ADVERSARIES["bang_bang"], one_row(), start, jax.random.key(5), 2000, batch=100)
        for _ in range(2)
    )
    assert [int(x) for x in (first.interventions, first.emergencies)] == [
        int(x) for x in (again.interventions, again.emergencies)
    ]


@pytest.mark.parametrize(
    ("violations", "cases", "low", "high"),
    [
        (0, 1_000_000, 2.99e-6, 3.00e-6),  # the rule of three
        (0, 100, 0.0291, 0.0300),
        (10, 1000, 0.0150, 0.0175),
        (1000, 1000, 0.999, 1.0),
    ],
)  # fmt: skip
def test_the_bound_on_the_rate_of_violations(violations, cases, low, high):
    assert low <= violation_bound(violations, cases) <= high


def test_the_bound_covers_the_true_rate_as_often_as_it_says():
    luck = np.random.default_rng(0)
    seen = luck.binomial(2000, 0.01, size=4000)
    covered = np.mean([violation_bound(int(k), 2000) >= 0.01 for k in seen])
    assert 0.93 <= covered <= 0.98


@pytest.mark.parametrize(("violations", "cases"), [(-1, 10), (11, 10), (0, 0)])
def test_impossible_counts_are_refused(violations, cases):
    with pytest.raises(ValueError, match="violations in"):
        violation_bound(violations, cases)
