"""Which policy to use, by intervals and by trials: known answers."""

import numpy as np
import pytest

from worldloom.algos.policy_selection import (
    Candidate,
    Z,
    after_trials,
    beliefs,
    decide,
    ranked,
    top_two,
    try_out,
)

LOGGED = Candidate("log", 50.0, 49.0, 51.0)


def candidate(name, value, half, **more):
    return Candidate(name, value, value - half, value + half, **more)


def test_the_one_is_recommended_whose_interval_lies_above_the_log():
    sure, hopeful = candidate("sure", 60.0, 5.0), candidate("hopeful", 80.0, 40.0)
    choice, reason = decide([hopeful, sure], LOGGED)
    assert choice == "sure"
    assert "55 to 65 against 50" in reason
    assert [c.name for c in ranked([hopeful, sure])] == ["sure", "hopeful"]


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        ([candidate("a", 55.0, 4.5)], "a looks better (55 against 50), but may be as low as 50.5"),
        ([candidate("a", 45.0, 1.0)], "no candidate is estimated above what was logged, 50"),
        (
            [candidate("far", 90.0, 5.0, supported=False, doubts=("nobody has been there", "x"))],
            "the data do not support far (90): nobody has been there",
        ),
        (
            [candidate("far", 90.0, 5.0, supported=False), candidate("a", 52.0, 9.0)],
            "a looks better (52 against 50)",
        ),
    ],
)
def test_none_is_an_answer_and_has_a_reason(candidates, words):
    choice, reason = decide(candidates, LOGGED)
    assert choice is None
    assert words in reason
    assert "\n" not in reason


def test_what_the_data_do_not_support_may_be_recommended_once_it_was_tried():
    far = candidate("far", 90.0, 30.0, supported=False)
    (tried,) = after_trials([far], [(0, 80.0)] * 20, spread=5.0)
    assert decide([far], LOGGED).choice is None
    choice, reason = decide([tried], LOGGED)
    assert choice == "far"
    assert "20 trials included" in reason


def test_beliefs_are_the_posterior_of_normal_numbers():
    """Against the posterior on a grid, where returns vary as much as the log's say."""
    prior = [candidate("a", 10.0, 2.0 * Z), candidate("b", 0.0, 1.0 * Z)]
    trials = [(0, 14.0), (0, 14.0), (1, 3.0)]
    mean, std = beliefs(prior, trials, spread=3.0)
    # Trials that vary by nothing pull the deviation down: 4 trials' worth of 3, one degree of 0.
    noise = np.sqrt(4 * 9.0 / 5)
    grid = np.linspace(-40.0, 60.0, 200_001)
    for arm, (m, s) in enumerate(((10.0, 2.0), (0.0, 1.0))):
        log = -0.5 * ((grid - m) / s) ** 2
        for tried, earned in trials:
            log = log - 0.5 * ((earned - grid) / noise) ** 2 * (tried == arm)
        weight = np.exp(log - log.max())
        weight /= weight.sum()
        assert mean[arm] == pytest.approx((weight * grid).sum(), abs=1e-3)
        exact = np.sqrt((weight * (grid - mean[arm]) ** 2).sum())
        assert std[arm] == pytest.approx(exact, abs=1e-3)


def test_who_was_not_tried_is_what_the_data_say():
    a, b = candidate("a", 1.0, 1.0), Candidate("b", 2.0, 0.0, 10.0)
    changed, same = after_trials([a, b], [(0, 3.0)], spread=1.0)
    assert same is b
    assert changed.trials == (3.0,)
    assert a.value < changed.value < 3.0
    assert changed.high - changed.low < a.high - a.low


def test_a_leader_has_a_challenger_who_is_another():
    rng = np.random.default_rng(0)
    first, second = top_two(np.asarray([0.0, 9.0, 5.0]), np.full(3, 1e-9), rng)
    assert (first, second) == (1, 2)
    pairs = {top_two(np.zeros(3), np.ones(3), rng) for _ in range(100)}
    assert len(pairs) == 6


def test_trials_go_to_those_who_may_be_the_best_and_find_it():
    means, rng = np.asarray([1.0, 5.0, 5.6, 0.0]), np.random.default_rng(3)
    prior = [candidate(str(m), 3.0, 6.0) for m in means]
    found, shares = 0, np.zeros(4)
    for seed in range(40):
        trials = try_out(prior, lambda arm: means[arm] + rng.normal(), 60, 1.0, seed)
        found += beliefs(prior, trials, 1.0)[0].argmax() == 2
        shares += np.bincount([arm for arm, _ in trials], minlength=4) / 40
    assert shares.sum() == 60
    assert shares[[1, 2]].min() > 3 * shares[[0, 3]].max()
    assert found > 30


def test_what_is_done_today_competes_without_being_tried():
    asked = []

    def play(arm):
        asked.append(arm)
        return 0.0

    trials = try_out([candidate("a", 0.0, 1.0)], play, 5, 1.0, logged=LOGGED)
    assert asked == [0] * 5
    assert trials == [(0, 0.0)] * 5
