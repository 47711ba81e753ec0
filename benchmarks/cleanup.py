"""Clean Up with 7 agents as SocialJax trains it: what selfish and shared rewards make of it.

PPO with one network for all agents (SocialJax's default, PARAMETER_SHARING), from rewards that are
each agent's own or the sum of all. Both are scored by the world's own rewards: welfare is the
return of all agents together, and the Gini coefficient says how it is spread. Actions are sampled,
as in SocialJax's evaluations. Its own figures (arXiv:2503.14576) have shared rewards far ahead in
welfare.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np

from benchmarks.ippo import CLEAN_UP
from worldloom.suites.grid.problem import make_problem, new_trainer
from worldloom.suites.grid.suite import SUITE
from worldloom.training import timer
from worldloom.training.config import TrainConfig, make_config

RATIO = "cleanup_shared_vs_selfish"
REWARDS = ("selfish", "shared")
START = {"start_pollution": 0.473}  # the share of SocialJax's river that is foul at first


@dataclass(frozen=True)
class CleanupSizes:
    """A budget that a CPU has; SocialJax gives a hundred million steps.

    What they have 390,000 gradient steps for must come from 8,000 here: a minibatch has 1,750 steps
    of one agent where theirs has 3,584, and a learning rate of twice theirs is kept where theirs
    falls to 0. Their CNN is a perceptron here. Passes over a rollout, discount, lambda, clipping,
    entropy, value cost and largest gradient are theirs; neither side shapes rewards.
    """

    steps: int = 1_000_000
    worlds: int = 16
    evaluations: int = 8
    episodes: int = 16
    seeds: int = 3
    world: dict[str, Any] = field(default_factory=lambda: CLEAN_UP | START)
    ppo: dict[str, Any] = field(
        default_factory=lambda: {
            "hidden": (32, 32),
            "learning_rate": 1e-3,
            "gamma": 0.99,
            "entropy_cost": 0.01,
            "num_minibatches": 64,
            "num_epochs": 2,
        }
    )


QUICK = CleanupSizes(
    steps=80,
    worlds=2,
    evaluations=2,
    episodes=2,
    seeds=1,
    world=CLEAN_UP | {"num_agents": 2, "horizon": 10},
    ppo={"hidden": (8,), "num_minibatches": 2, "num_epochs": 1},
)


def measure(
    sizes: CleanupSizes, raw: dict[str, Any], note: Callable[[str], None]
) -> dict[str, float | None]:
    """Welfare and Gini of every kind of rewards and seed, and the ratio of mean welfares."""
    raw |= {"sizes": asdict(sizes), "rows": []}
    for rewards in REWARDS:
        for seed in range(sizes.seeds):
            row = {"rewards": rewards, "seed": seed} | train(settings(sizes, rewards, seed), sizes)
            raw["rows"].append(row)
            note(
                f"  {rewards}, seed {seed}: welfare {row['welfare']:.1f} (random play "
                f"{row['random_play']:.1f}), {row['train_seconds']:.0f} s"
            )
    raw["welfare"] = welfare = {name: _mean(raw["rows"], name, "welfare") for name in REWARDS}
    raw["gini"] = {name: _mean(raw["rows"], name, "gini") for name in REWARDS}
    for name in REWARDS:
        gini = raw["gini"][name]
        said = "nobody got anything" if gini is None else f"Gini {gini:.2f}"
        note(f"  {name}: welfare {welfare[name]:.1f}, {said}")
    return {RATIO: timer.ratio(welfare["shared"], max(welfare["selfish"] or 0.0, 1.0))}


def settings(sizes: CleanupSizes, rewards: str, seed: int) -> TrainConfig:
    """A run with such rewards, one network for all agents."""
    world = sizes.world | {"rewards": rewards}
    given = {"env": "cleanup", "algo": "ppo", "world": world, "ppo": dict(sizes.ppo), "seed": seed}
    given |= {"num_worlds": sizes.worlds, "steps": sizes.steps, "share_parameters": True}
    return make_config(SUITE, given)


def train(config: TrainConfig, sizes: CleanupSizes) -> dict[str, Any]:
    """Trains to the end of the budget; the last evaluation, and those on the way."""
    problem, trainer = make_problem(config), new_trainer(config)
    evaluator = problem.make_evaluator(trainer, sizes.episodes)
    updates = max(1, config.steps // trainer.steps_per_iteration)
    curve, seconds = [], 0.0
    for part in np.array_split(np.arange(updates), min(sizes.evaluations, updates)):
        compiled, start = trainer.compile_seconds, time.perf_counter()
        trainer.advance(len(part))
        seconds += time.perf_counter() - start - (trainer.compile_seconds - compiled)
        key = jax.random.key(1000 + trainer.iteration)
        scores = evaluator(trainer.agents(), key, explore=1.0).to_dict()
        curve.append([trainer.iteration * trainer.steps_per_iteration, scores["mean"]])
    society = {name: scores.get(name) for name in ("gini", "sustainability", "peace")}
    return {
        "welfare": scores["mean"],
        "welfare_stderr": scores["stderr"],
        "random_play": evaluator(trainer.agents(), key, at_random=True).to_dict()["mean"],
        "agents": scores["agents"],
        **society,
        "curve": curve,
        "train_seconds": seconds,
        "compile_seconds": trainer.compile_seconds,
        "steps_per_second": updates * trainer.steps_per_iteration / seconds,
    }


def _mean(rows: list[dict[str, Any]], rewards: str, name: str) -> float | None:
    """Over seeds; None where it has no value for any."""
    values = [row[name] for row in rows if row["rewards"] == rewards and row[name] is not None]
    return float(np.mean(values)) if values else None
