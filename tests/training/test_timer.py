"""Timing on the host: what is counted, in which order, and what is left out."""

import jax.numpy as jnp
import pytest

from worldloom.training import timer


def test_warm_up_calls_are_made_but_not_counted():
    calls = []
    timing = timer.measure(calls.append, "work", repeats=3, warmup=2)
    assert len(calls) == 5
    assert len(timing.samples) == 3
    assert min(timing.samples) >= 0.0


def test_functions_take_turns_and_another_one_starts_each_round():
    order = []
    fns = {name: lambda name=name: order.append(name) for name in "abc"}
    timed = timer.interleave(fns, repeats=3, warmup=0)
    assert "".join(order) == "abcbcacab"
    assert {len(timing.samples) for timing in timed.values()} == {3}


def test_samples_belong_to_the_function_that_took_them(monkeypatch):
    cost, now = {"quick": 1.0, "slow": 10.0}, [0.0]

    def spend(name):
        now[0] += cost[name]

    monkeypatch.setattr(timer.time, "perf_counter", lambda: now[0])
    timed = timer.interleave({n: lambda n=n: spend(n) for n in cost}, repeats=4)
    assert timed["quick"].samples == (1.0,) * 4
    assert timed["slow"].median == 10.0


def test_the_median_ignores_one_slow_repeat():
    assert timer.Timing((1.0, 2.0, 99.0)).median == 2.0
    assert timer.Timing((1.0, 3.0)).per(2).samples == (0.5, 1.5)


@pytest.mark.parametrize("repeats", [0, -1])
def test_no_repeats_is_an_error(repeats):
    with pytest.raises(ValueError, match=f"repeats={repeats}"):
        timer.interleave({"a": lambda: None}, repeats=repeats)


def test_a_compiled_program_gives_the_results_of_its_function():
    program, seconds = timer.compiled(lambda x, y: x @ y, jnp.eye(2), jnp.ones((2, 2)))
    assert seconds > 0.0
    assert program(2 * jnp.eye(2), jnp.ones((2, 2))).tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("slow", "fast", "expected"),
    [(6.0, 2.0, 3.0), (None, 2.0, None), (6.0, None, None), (float("inf"), 2.0, None)],
)
def test_a_ratio_is_unknown_where_a_side_is_unknown_or_endless(slow, fast, expected):
    assert timer.ratio(slow, fast) == expected
