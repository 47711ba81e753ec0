"""The suite of worlds that belong to no other: any world of one agent, of whoever's making."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worldloom import algos
from worldloom.training.suite import Suite, parts_of


@dataclass(frozen=True)
class PlainSettings:
    """What runs in such worlds take beyond the common settings."""

    dataset: str = ""  # an npz file of transitions, for offline algorithms (eval --record)


COMMON = {"steps": 500_000, "num_worlds": 16, "eval_episodes": 64}
# Settings that learn CartPole and Pendulum, by algorithm.
BY_ALGORITHM: dict[str, Mapping[str, Any]] = {
    "ppo": {
        "ppo": {
            "unroll_length": 128,
            "num_epochs": 10,
            "num_minibatches": 8,
            "learning_rate": 1e-3,
            "anneal_updates": 240,
            "final_learning_rate": 1e-4,
            "normalise_observations": True,
        }
    },
    "dqn": {
        "num_worlds": 10,
        "dqn": {
            "gamma": 0.99,
            "buffer_size": 50_000,
            "gradient_steps": 1,
            "loss": "squared",
            "target_rate": 0.005,
        },
    },
    "iqn": {
        "num_worlds": 10,
        "iqn": {
            "gamma": 0.99,
            "buffer_size": 50_000,
            "gradient_steps": 1,
            "num_quantiles": 8,
            "act_quantiles": 32,  # with 4 midpoints, falls rarer than one in eight are not seen
            "learning_rate": 5e-4,
            "target_rate": 0.02,
        },
    },
    "sac": {
        "steps": 60_000,
        "num_worlds": 4,
        "sac": {"learning_starts": 2_000, "buffer_size": 100_000},
    },
    "td3": {
        "steps": 60_000,
        "num_worlds": 4,
        "td3": {"learning_starts": 2_000, "buffer_size": 100_000},
    },
}


def defaults(env: str, algo: str | None) -> Mapping[str, Any]:
    """Settings that learn small control tasks."""
    if algo is None:
        return {"algo": "ppo"}
    if algos.get(algo).loop == "offline":
        return {"algo": algo, "steps": 20_000, "eval_episodes": 64, "chunk": 1}
    return {"algo": algo} | COMMON | dict(BY_ALGORITHM.get(algo, {}))


SUITE = Suite(
    name="plain",
    worlds={},
    settings=PlainSettings,
    defaults=defaults,
    **parts_of("worldloom.suites.plain", studio="studio:PlainSession"),
)
