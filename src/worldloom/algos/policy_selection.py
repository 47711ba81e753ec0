"""Policy selection: which of several policies to use, by intervals of returns and a few trials.

Estimates are given with nominal 95 % intervals (`off_policy_evaluation`). A policy is recommended
only if its whole interval lies above that of what is done today: "none" is an answer. With trials
allowed, intervals are priors of a Bayesian bandit (top-two Thompson sampling, Russo 2016), which
spends episodes on the candidates that may still be the best.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

Z = 1.96  # standard deviations, either way, that hold 95 % of a normal distribution
# Before anything is tried, returns of one episode spread as those of the log do: that counts as
# much as this many trials.
SPREAD_TRIALS = 4
DRAWS = 64  # of all means, to find a challenger among


@dataclass(frozen=True)
class Candidate:
    """A policy, or what is done today: its mean return, with both ends of a 95 % interval.

    supported: whether the data can speak about it. doubts: why not to go by the estimate, for
    people. trials: returns of the episodes in which it was tried. details: of the estimate.
    """

    name: str
    value: float
    low: float
    high: float
    supported: bool = True
    doubts: tuple[str, ...] = ()
    trials: tuple[float, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


class Decision(NamedTuple):
    """The candidate to use, None to go on as today, and why, in a line."""

    choice: str | None
    reason: str


@dataclass(frozen=True)
class Selection:
    """Candidates, the best lower end first, beside what is done today, and what to do."""

    env: str
    candidates: tuple[Candidate, ...]
    logged: Candidate
    decision: Decision
    about: dict[str, Any]  # the data, and how it was estimated
    notes: tuple[str, ...] = ()  # for people

    def to_dict(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "recommended": self.decision.choice,
            "reason": self.decision.reason,
            "candidates": [asdict(candidate) for candidate in self.candidates],
            "logged": asdict(self.logged),
            "notes": list(self.notes),
        } | self.about


def ranked(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """By the lower ends of their intervals: what is promised, not what is hoped for."""
    return tuple(sorted(candidates, key=lambda c: (-c.low, -c.value)))


def decide(candidates: Sequence[Candidate], logged: Candidate) -> Decision:
    """The candidate whose interval lies above the log's, the highest lower end; or none.

    What the data do not support is not recommended, unless it was tried.
    """
    today = f"{logged.value:.4g}"
    known = [c for c in ranked(candidates) if c.supported or c.trials]
    sure = [c for c in known if c.low > logged.high]
    if sure:
        best = sure[0]
        tried = f", {len(best.trials)} trials included," if best.trials else ""
        return Decision(
            best.name,
            f"its whole interval{tried} lies above what was logged: {best.low:.4g} to "
            f"{best.high:.4g} against {today}",
        )
    hopes = [c for c in candidates if c.value > logged.value]
    if not hopes:
        return Decision(None, f"no candidate is estimated above what was logged, {today}")
    best = max(hopes, key=lambda c: (c in known, c.value))
    if best not in known:
        why = best.doubts[0] if best.doubts else "nobody did what it does"
        return Decision(None, f"the data do not support {best.name} ({best.value:.4g}): {why}")
    return Decision(
        None,
        f"{best.name} looks better ({best.value:.4g} against {today}), but may be as low as "
        f"{best.low:.4g}",
    )


# Trials ----------------------------------------------------------------------------------------


Trial = tuple[int, float]  # the number of a candidate, and the return of an episode


def beliefs(
    candidates: Sequence[Candidate], trials: Sequence[Trial], spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations (K,) of what K candidates earn, after trials.

    Normal priors as wide as the intervals. An episode's return has one deviation, whoever earns
    it: that of the trials around their own means and, as long as there are few, `spread`.
    """
    value, low, high = np.asarray([(c.value, c.low, c.high) for c in candidates], float).T
    precision = 1.0 / np.square(np.maximum((high - low) / (2.0 * Z), 1e-9))
    arms = np.asarray([arm for arm, _ in trials], int)
    returns = np.asarray([earned for _, earned in trials], float)
    count = np.bincount(arms, minlength=len(value))
    total = np.bincount(arms, returns, minlength=len(value))
    off = returns - (total / np.maximum(count, 1))[arms]
    free = len(trials) - (count > 0).sum()
    noise = (SPREAD_TRIALS * spread**2 + np.square(off).sum()) / (SPREAD_TRIALS + free)
    noise = max(noise, 1e-12)
    after = precision + count / noise
    return (precision * value + total / noise) / after, 1.0 / np.sqrt(after)


def top_two(mean: np.ndarray, std: np.ndarray, rng: np.random.Generator) -> tuple[int, int]:
    """The leader of one draw of all means (K,), and the leader of the first draw that differs."""
    leaders = (mean + std * rng.normal(size=(DRAWS, len(mean)))).argmax(1)
    first = int(leaders[0])
    others = leaders[leaders != first]
    if len(others):
        return first, int(others[0])
    rest = np.where(np.arange(len(mean)) == first, -np.inf, mean)
    return first, int(rest.argmax())


def try_out(
    candidates: Sequence[Candidate],
    play: Callable[[int], float],
    budget: int,
    spread: float,
    seed: int = 0,
    logged: Candidate | None = None,
) -> list[Trial]:
    """`budget` episodes, each of the candidate that `play` is asked for by its number.

    spread: of the returns of the log's own episodes. logged: what is done today, which competes
    but needs no trial.
    """
    rng, trials = np.random.default_rng(seed), list[Trial]()
    known = [] if logged is None else [logged]
    for _ in range(budget):
        mean, std = beliefs([*candidates, *known], trials, spread)
        pair = top_two(mean, std, rng) if len(mean) > 1 else (0, 0)
        pair = pair if rng.uniform() < 0.5 else pair[::-1]
        arm = next(arm for arm in pair if arm < len(candidates))
        trials.append((arm, play(arm)))
    return trials


def after_trials(
    candidates: Sequence[Candidate], trials: Sequence[Trial], spread: float
) -> list[Candidate]:
    """The candidates with what was learned of them by trying."""
    mean, std = beliefs(candidates, trials, spread)
    return [
        replace(
            c,
            value=float(mean[i]),
            low=float(mean[i] - Z * std[i]),
            high=float(mean[i] + Z * std[i]),
            trials=tuple(earned for arm, earned in trials if arm == i),
        )
        if any(arm == i for arm, _ in trials)
        else c
        for i, c in enumerate(candidates)
    ]
