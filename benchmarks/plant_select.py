"""Which of several policies to ship: by off-policy estimates alone, and with a budget of episodes.

Six policies of each plant, loops and clones (`plant_ope.make_policies`), are estimated from logs,
then played many times. From those returns trials are drawn over and over: by a bandit whose priors
are the estimates' intervals, by sharing episodes out evenly, and none at all. What counts is the
regret of the policy that is chosen, as a share of what lies between the best and the worst.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import plant_ope
from worldloom import suites
from worldloom.algos.off_policy_evaluation import discounted_returns
from worldloom.algos.policy_selection import Candidate, Decision, beliefs, decide, ranked, try_out
from worldloom.suites.plant.datasets import make_data
from worldloom.suites.plant.select import candidate_of, logged_behaviour

SEED = plant_ope.SEED
BUDGETS = (4, 8, 16, 32, 64)  # episodes
HEADLINE = 16  # of these, in the figure that stands in the table


def section(sizes: Any, record: Any) -> None:
    """Logs of several plants and qualities: regrets by budget and by the way of choosing.

    Estimates are those of the section `ope`, which is measured here where it was not.
    """
    estimates = record.result["raw"].get("ope", {}).get("rows")
    sizing = {"updates": sizes.ope_updates, "data_steps": sizes.ope_rows}
    if not estimates:
        sizing_of_truth = sizing | {"episodes": sizes.ope_episodes}
        estimates = plant_ope.coverage(sizes.select_plants, note=record.note, **sizing_of_truth)
    raw: dict[str, Any] = {"seed": SEED, "simulations": sizes.select_simulations, "logs": []}
    record.result["raw"]["select"] = raw
    for plant in sizes.select_plants:
        pool = played(plant, sizes.ope_episodes, **sizing)
        own = [row for row in estimates if row["plant"] == plant]
        for quality in dict.fromkeys(row["quality"] for row in own):
            rows = {row["policy"]: row for row in own if row["quality"] == quality}
            candidates = [candidate_of(name, rows[name]) for name in pool]
            data = make_data(plant, quality, sizes.ope_rows, SEED)
            returns = np.asarray(discounted_returns(data, plant_ope.GAMMA))
            table = np.stack(list(pool.values()))
            log = study(candidates, returns, table, sizes.select_simulations)
            raw["logs"].append({"plant": plant, "quality": quality} | log)
            record.note(f"  {plant} {quality}: {log['recommended']}, {log['reason']}")
            record.save()
    raw |= figures(raw["logs"])
    record.result["ratios"]["select_regret_vs_uniform"] = raw["regret_vs_uniform"]
    record.result["ratios"]["select_sound_share"] = raw["sound_share"]


def played(plant: str, episodes: int, *, updates: int, data_steps: int) -> dict[str, np.ndarray]:
    """Discounted returns (episodes,) of the policies that the section `ope` judges."""
    env = suites.make(plant)
    policies = plant_ope.make_policies(env, plant, data_steps // 2, updates // 2, SEED)
    play = jax.jit(lambda policy, key: plant_ope.returns(env, policy, episodes, key))
    # Starts that differ: nobody can try two policies in the very same situation.
    keys = jax.random.split(jax.random.key(SEED), len(policies))
    pairs = zip(policies.items(), keys, strict=True)
    return {name: np.asarray(play(policy, key)) for (name, policy), key in pairs}


def study(
    candidates: Sequence[Candidate], returns: np.ndarray, pool: np.ndarray, simulations: int
) -> dict[str, Any]:
    """What is recommended from a log, and mean regrets (budgets,) of each way to spend episodes.

    returns (E,): of the log. pool (K, P): returns of episodes of each candidate, to draw from.
    """
    true, spread = pool.mean(1), float(returns.std())
    scale, logged = max(float(np.ptp(true)), 1e-9), logged_behaviour(returns)
    names = [c.name for c in candidates]

    def regret(choice: int) -> float:
        return float(true.max() - true[choice]) / scale

    rng, best = np.random.default_rng(SEED), names.index(ranked(candidates)[0].name)
    ways: dict[str, list[list[float]]] = {"bandit": [], "uniform": [], "uniform_with_priors": []}
    for n in range(simulations):
        drawn = pool[:, rng.integers(pool.shape[1], size=max(BUDGETS))]
        for row in drawn:
            rng.shuffle(row)
        each = [iter(row) for row in drawn]
        spent = try_out(
            candidates, lambda arm, each=each: float(next(each[arm])), max(BUDGETS), spread, n
        )
        # Whoever is first differs from one simulation to the next.
        order = (np.arange(max(BUDGETS)) + n) % len(candidates)
        even = [(int(arm), float(drawn[arm, i // len(candidates)])) for i, arm in enumerate(order)]
        means = [_tried_best(even[:b], len(candidates)) for b in BUDGETS]
        ways["uniform"].append([regret(arm) for arm in means])
        for way, trials in (("bandit", spent), ("uniform_with_priors", even)):
            chosen = [int(beliefs(candidates, trials[:b], spread)[0].argmax()) for b in BUDGETS]
            ways[way].append([regret(arm) for arm in chosen])
    decision: Decision = decide(candidates, logged)
    found = {way: np.mean(rows, axis=0).tolist() for way, rows in ways.items()}
    found |= {"lower_end": [regret(best)] * len(BUDGETS)}
    values = int(np.argmax([c.value for c in candidates]))
    found |= {"estimate": [regret(values)] * len(BUDGETS)}
    choice = None if decision.choice is None else names.index(decision.choice)
    return {
        "budgets": BUDGETS,
        "regret": found,
        "recommended": decision.choice,
        "reason": decision.reason,
        "logged": logged.value,
        "candidates": {
            c.name: {"value": c.value, "low": c.low, "high": c.high, "supported": c.supported,
                     "true": float(t)}
            for c, t in zip(candidates, true, strict=True)
        },
        "better_than_logged": None if choice is None else bool(true[choice] > logged.value),
        "some_better": bool(true.max() > logged.value),
    }  # fmt: skip


def _tried_best(trials: Sequence[tuple[int, float]], count: int) -> int:
    """The best mean of those that were tried."""
    arms, earned = np.asarray([arm for arm, _ in trials]), np.asarray([e for _, e in trials])
    tries = np.bincount(arms, minlength=count)
    means = np.bincount(arms, earned, minlength=count) / np.maximum(tries, 1)
    return int(np.where(tries > 0, means, -np.inf).argmax())


def figures(logs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean regrets over logs, and how many recommendations were better than the log."""
    ways = logs[0]["regret"]
    mean = {way: np.mean([log["regret"][way] for log in logs], axis=0).tolist() for way in ways}
    at = BUDGETS.index(HEADLINE)
    shipped = [log["better_than_logged"] for log in logs if log["recommended"] is not None]
    return {
        "regret": mean,
        "regret_vs_uniform": mean["bandit"][at] / max(mean["uniform"][at], 1e-9),
        "recommended": len(shipped),
        "sound_share": float(np.mean(shipped)) if shipped else None,
    }
