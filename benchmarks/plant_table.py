"""What offline learners reach on data of our own plants, with and without the safety filter."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.plant_scores import START_KEY, Look, Scorer, constant, learned, with_sizes
from worldloom import suites
from worldloom.suites.plant.datasets import DataQuality, episode_returns, make_data
from worldloom.suites.plant.evaluate import PlantEvaluator, unsafe_steps
from worldloom.suites.plant.safety import constraints_for
from worldloom.training.machine import use_compilation_cache


def plant_table(
    plants: Sequence[str],
    qualities: Sequence[DataQuality],
    updates: Mapping[str, int],
    *,
    data_steps: int,
    episodes: int,
    seed: int = 0,
    hidden: Sequence[int] = (256, 256),
    batch_size: int = 256,
    note: Callable[[str], None] = print,
    save: Callable[[], None] = lambda: None,
    rows: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """A row for each plant, quality of data and algorithm: returns with and without the filter.

    `violated` is the share of steps in which some hard limit is crossed, of `violated_soft` any;
    see `unsafe_steps`. Beside what learns stand the logged mean action, always the same, and the
    plant's own loops.
    """
    use_compilation_cache()
    rows = [] if rows is None else rows
    for plant in plants:
        env = suites.make(plant)
        evaluator = PlantEvaluator(env, constraints_for(env.base), episodes, gamma=0.99)
        hard = np.asarray([limit.hard for limit in env.base.plant.limits], bool)
        loops = Scorer(env, episodes).loops() if env.base.plant.loops else None
        for quality in qualities:
            data = make_data(plant, quality, data_steps, seed)
            own = episode_returns(data)
            mean = constant(data.rows.action.mean(0), data.rows.obs.shape[-1])
            still = Look(0, mean, mean, 0.0, 0.0)
            for algo, count in {"mean action": 0, **updates}.items():
                look = still
                if count:
                    (look,) = learned(with_sizes(algo, hidden), data, seed, count, batch_size)
                scored = evaluator(look.policy, jax.random.key(START_KEY))
                row: dict[str, Any] = {
                    "plant": plant,
                    "quality": quality,
                    "algo": algo,
                    "data": float(own.mean()),
                    "data_std": float(own.std()),
                    "loops": loops,
                    "return": float(scored.bare.returns.mean()),
                    "filtered": float(scored.filtered.returns.mean()),
                    "interventions": scored.filtered.interventions,
                    "emergencies": scored.filtered.emergencies,
                    "spurious_trips": scored.spurious_trips,
                    "updates": look.updates,
                    "rows": data.size,
                    "episodes": episodes,
                    "seconds": look.seconds,
                    "compile_seconds": look.compile_seconds,
                }
                row |= violations(scored.bare_trajectories, hard, "bare")
                row |= violations(scored.filtered_trajectories, hard, "filtered")
                if scored.score is not None:
                    row["score"] = scored.score
                share = scored.oracle_share(scored.bare)
                if share is not None:
                    row["oracle_share"] = share
                rows.append(row)
                note(
                    f"  {plant} {quality} {algo}: {row['return']:.1f} bare, {row['filtered']:.1f} "
                    f"filtered (data {row['data']:.1f}); hard limits crossed in "
                    f"{row['violated_bare']:.2%} and {row['violated_filtered']:.2%} of steps"
                )
                save()
    return rows


def violations(trajectories: Any, hard: np.ndarray, way: str) -> dict[str, float]:
    """The shares of steps in which a hard limit, and in which any limit is crossed."""
    return {
        f"violated_{way}": float(unsafe_steps(trajectories, hard).mean()),
        f"violated_soft_{way}": float(unsafe_steps(trajectories, np.ones_like(hard)).mean()),
    }
