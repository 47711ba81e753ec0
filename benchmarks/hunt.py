"""Independent PPO on treasure hunt: how many seeds come to play it well, and in what time."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.score import Criterion, GreedyScore, median_seconds, time_to_score
from worldloom.suites.grid.suite import SUITE
from worldloom.training.config import make_config

RATIO = "ippo_treasurehunt_500_share"


@dataclass(frozen=True)
class HuntSizes:
    """The defaults of PPO on treasure hunt, to the end of their budget if it takes so long."""

    seeds: int = 5
    criterion: Criterion = field(default_factory=lambda: Criterion(every=20))
    given: dict[str, Any] = field(default_factory=dict)


QUICK = HuntSizes(
    seeds=1,
    criterion=Criterion(threshold=-1e9, every=1, episodes=2, max_epochs=2),
    given={
        "num_worlds": 2,
        "world": {"horizon": 10, "num_agents": 2},
        "ppo": {"hidden": (8,), "num_minibatches": 1, "num_epochs": 1},
    },
)


def measure(
    sizes: HuntSizes, raw: dict[str, Any], note: Callable[[str], None]
) -> dict[str, float | None]:
    """Seeds that reach the score, as a share of all."""
    given = {"env": "treasurehunt", "algo": "ppo"} | sizes.given
    raw |= {"criterion": asdict(sizes.criterion), "rows": []}
    score = None
    for seed in range(sizes.seeds):
        config = make_config(SUITE, given | {"seed": seed})
        raw["settings"] = config.to_dict()
        score = score or GreedyScore(config, sizes.criterion.episodes)
        reached = time_to_score(config, sizes.criterion, score)
        raw["rows"].append({"seed": seed} | reached.to_dict())
        best = max(mean for _, _, mean in reached.curve)
        note(f"  seed {seed}: best {best:.0f}, {reached.seconds or float('inf'):.1f} s")
    raw["median_seconds"] = median_seconds(raw["rows"])
    there = sum(row["seconds"] is not None for row in raw["rows"])
    return {RATIO: there / len(raw["rows"])}
