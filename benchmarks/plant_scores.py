"""What offline learners reach: on NeoRL-2's released data, and on data of our own plants."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from worldloom import algos, suites
from worldloom.algos.offline import OfflineAgent, make_table
from worldloom.core import draws, rollout
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset, hold_out
from worldloom.suites.plant import dmsd, simglucose
from worldloom.suites.plant.datasets import DataQuality, episode_returns, make_data
from worldloom.suites.plant.evaluate import PlantEvaluator, unsafe_steps
from worldloom.suites.plant.safety import constraints_for
from worldloom.training.loops.offline import OfflineLoop
from worldloom.training.machine import use_compilation_cache
from worldloom.training.trainer import Trainer

FOLDER = "WORLDLOOM_NEORL2"  # the environment variable that names the data's folder
# environment -> (file of the released training data, how its benchmark normalises a return)
RELEASED: dict[str, tuple[str, Callable[[float], float]]] = {
    "dmsd": ("DMSD-high-100000-train.npz", dmsd.normalised_score),
    "simglucose": ("Simglucose-high-100000-train.npz", simglucose.normalised_score),
}
# Normalised scores as published with NeoRL-2 (arXiv 2503.19267, benchmark/tables/normscores.tex),
# mean and deviation of 3 seeds, the hyper-parameters of each chosen by its return in the simulator.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "dmsd": {
        "bc": (65.1, 1.6), "cql": (70.2, 1.1), "edac": (78.7, 2.3), "mcq": (77.8, 1.2),
        "td3bc": (60.0, 0.8), "mopo": (68.2, 0.7), "combo": (68.3, 0.2), "rambo": (76.2, 1.9),
        "mobile": (64.4, 0.8),
    },
    "simglucose": {
        "bc": (75.1, 0.7), "cql": (11.0, 3.4), "edac": (8.1, 0.3), "mcq": (29.6, 5.7),
        "td3bc": (74.2, 0.4), "mopo": (34.6, 28.1), "combo": (23.2, 2.5), "rambo": (10.8, 0.9),
        "mobile": (9.3, 0.2),
    },
}  # fmt: skip
BARS = {"dmsd": {"bc": 62.0, "best": 70.0}, "simglucose": {"bc": 73.0, "best": 75.0}}
HELD_OUT = 0.1  # of the episodes, by which it is decided when a clone has learned enough
COOLING = 0.1  # of all learning rates, in the last part of a run: the last policy is what counts
START_KEY = 9_000_001  # of the episodes in which policies are scored, the same for all


def released_folder() -> Path | None:
    """Where NeoRL-2's data are: in the folder that is named, or beside the checkout; or None."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "neorl2"
    folder = Path(os.environ.get(FOLDER) or beside)
    there = all((folder / file).is_file() for file, _ in RELEASED.values())
    return folder if there else None


# Learning ----------------------------------------------------------------------------------------


def with_sizes(name: str, hidden: Sequence[int]) -> OfflineAgent:
    """An algorithm with its usual numbers, whatever the data, and layers of these widths."""
    algorithm = algos.get(name)
    return algorithm.make(replace(algorithm.config(), hidden=tuple(hidden)))


def cooled(learner: PyTree, factor: float) -> PyTree:
    """A learner with all its learning rates multiplied by `factor`."""
    hyper = learner.hyper
    rates = [name for name in hyper.__dataclass_fields__ if name.endswith("_rate")]
    return learner.replace(
        hyper=hyper.replace(**{name: factor * getattr(hyper, name) for name in rates})
    )


class Scorer:
    """Plays whole episodes of a plant with a policy as it is: mean returns.

    Where a plant has few starts and no other chance they are all played, each once: then the mean
    is the expectation, and `episodes` is their number.
    """

    def __init__(self, env: PureEnv, episodes: int):
        plant = env.base.plant
        self.env = env
        if isinstance(plant, simglucose.Simglucose):
            self.episodes = 24 * len(plant.patients)
            self._play = jax.jit(partial(_returns, env, self.episodes, _every_person))
        else:
            self.episodes = episodes
            self._play = jax.jit(partial(_returns, env, episodes, _by_chance))

    def __call__(self, policy: PolicyState) -> float:
        returns = self._play(policy, jax.random.key(START_KEY), self.env.default_params())
        return float(np.asarray(returns, np.float64).mean())


def _by_chance(env: PureEnv, episodes: int, key: Key, params: PyTree) -> tuple[PyTree, Array]:
    state, first = batch(env, episodes).reset(key, params)
    return state, first.obs


def _every_person(env: PureEnv, episodes: int, key: Key, params: PyTree) -> tuple[PyTree, Array]:
    """Each patient at each full hour."""
    plant, number = env.base.plant, jnp.arange(episodes)
    x = jax.vmap(plant.begin, (0, 0, None))(number // 24, number % 24, params)
    state = _by_chance(env, episodes, key, params)[0].replace(x=x)
    return state, jax.vmap(plant.observe, (0, None))(x, params)


def _returns(
    env: PureEnv,
    episodes: int,
    begin: Callable[..., tuple[PyTree, Array]],
    policy: PolicyState,
    key: Key,
    params: PyTree,
) -> Array:
    worlds = batch(env, episodes)
    start_key, play_key = draws.split(key)
    state, obs = begin(env, episodes, start_key, params)

    def choose(world: PyTree, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        return policy_step(policy, world[1]), memory

    def step(world: PyTree, action: Array, key: Key) -> tuple[PyTree, Array]:
        state, _, alive = world
        state, after = worlds.step(key, state, action, params)
        running = alive & ~(after.terminated | after.truncated)
        return (state, after.obs, running), jnp.where(alive, after.reward, 0.0)

    assert env.spec.horizon is not None
    world = (state, obs, jnp.ones(episodes, bool))
    rewards = rollout.play_steps(choose, step, play_key, world, (), env.spec.horizon)[2]
    return rewards.sum(0)


class Look(NamedTuple):
    """A learner on its way."""

    updates: int
    policy: PolicyState
    seconds: float  # of learning so far
    compile_seconds: float


def learned(
    algorithm: OfflineAgent, data: Dataset, seed: int, updates: int, batch_size: int, looks: int = 1
) -> Iterator[Look]:
    """Learns for `updates`, and stops to be looked at so many times on the way.

    Where there are several parts, the last is learned at the rate of `COOLING`. A policy is good
    until the next look: learning goes on in its memory.
    """
    each = max(updates // looks // algorithm.period, 1) * algorithm.period
    loop: Any = OfflineLoop(algorithm, batch_size, each)
    trainer = Trainer(loop, (make_table(data, centre=True),), seed=seed, chunk=1)
    seconds = 0.0
    for part in range(looks):
        if 0 < part == looks - 1:
            trainer.load(trainer.run.replace(learner=cooled(trainer.run.learner, COOLING)))
        start, compiled = time.perf_counter(), trainer.compile_seconds
        trainer.advance(1)
        compiling = trainer.compile_seconds
        seconds += time.perf_counter() - start - (compiling - compiled)
        policy = algorithm.policy(trainer.run.learner, data)
        yield Look(trainer.iteration * each, policy, seconds, compiling)


def cloning_errors(policy: PolicyState, data: Dataset) -> np.ndarray:
    """Mean squared distances (E,) between a policy's actions and those of each episode."""
    missed = jnp.square(policy_step(policy, data.rows.obs) - data.rows.action).mean(-1)
    starts = np.asarray(data.starts)
    lengths = np.diff(np.append(starts, data.size))
    return np.add.reduceat(np.asarray(missed, np.float64), starts) / lengths


def first_as_good(errors: np.ndarray) -> int:
    """The first look whose error is within one standard error of the least; errors (looks, E).

    The rule of one standard error (Breiman et al. 1984): among models that are about as good, the
    one that has learned least by heart.
    """
    means = errors.mean(-1)
    least = int(np.argmin(means))
    tolerance = errors[least].std(ddof=1) / np.sqrt(errors.shape[-1])
    return int(np.argmax(means <= means[least] + tolerance))


# NeoRL-2's data ----------------------------------------------------------------------------------


def scores(
    folder: Path,
    updates: Mapping[str, int],
    seeds: Sequence[int],
    *,
    episodes: int,
    looks: int,
    hidden: Sequence[int] = (256, 256),
    batch_size: int = 256,
    note: Callable[[str], None] = print,
    save: Callable[[], None] = lambda: None,
    rows: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """A row for each dataset and algorithm of `updates`, with its curves; published ones beside.

    The numbers of an algorithm are the same on all data, and what counts is the policy after the
    last update; of clones, the `first_as_good` on episodes that they did not learn from. `rows`
    are filled as they come, and `save` is called after each.
    """
    use_compilation_cache()  # seeds share a program
    rows = [] if rows is None else rows
    for name, (file, normalised) in RELEASED.items():
        env, data = suites.make(name), dataset_files.load(folder / file)
        scorer = Scorer(env, episodes)
        own = float(np.mean(episode_returns(data)))
        for algo, count in updates.items():
            curves, taken, chosen = [], [], []
            for seed in seeds:
                clones = algo == "bc"
                kept, held = hold_out(data, HELD_OUT) if clones else (data, None)
                curve, errors, last = [], [], None
                for look in learned(with_sizes(algo, hidden), kept, seed, count, batch_size, looks):
                    curve.append((look.updates, normalised(scorer(look.policy))))
                    if held is not None:
                        errors.append(cloning_errors(look.policy, held))
                    last = look
                assert last is not None
                curves.append(curve)
                taken.append((last.seconds, last.compile_seconds))
                chosen.append(curve[first_as_good(np.stack(errors)) if errors else -1])
                note(
                    f"  {name} {algo} seed {seed}: {chosen[-1][1]:.1f} "
                    f"after {chosen[-1][0]:,} updates, {last.seconds:.0f} s"
                )
            final = [score for _, score in chosen]
            published = PUBLISHED[name].get(algo, (None, None))
            rows.append(
                {
                    "dataset": name,
                    "algo": algo,
                    "mean": float(np.mean(final)),
                    "std": float(np.std(final)),
                    "scores": final,
                    "seeds": list(seeds),
                    "published": published[0],
                    "published_std": published[1],
                    "data": normalised(own),
                    "updates": curves[0][-1][0],
                    "chosen_updates": [updates for updates, _ in chosen],
                    "episodes": scorer.episodes,
                    "seconds": float(np.mean([seconds for seconds, _ in taken])),
                    "compile_seconds": float(max(compiling for _, compiling in taken)),
                    "curves": curves,
                    "hyper": _plain(with_sizes(algo, hidden).config.hyper),
                }
            )
            save()
    return rows


def _plain(hyper: Any) -> dict[str, float]:
    return {name: float(getattr(hyper, name)) for name in hyper.__dataclass_fields__}


def best(rows: Sequence[Mapping[str, Any]], dataset: str) -> Mapping[str, Any] | None:
    """The row of a dataset with the highest mean."""
    own = [row for row in rows if row["dataset"] == dataset]
    return max(own, key=lambda row: row["mean"], default=None)


# Our plants --------------------------------------------------------------------------------------


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
    see `unsafe_steps`.
    """
    use_compilation_cache()
    rows = [] if rows is None else rows
    for plant in plants:
        env = suites.make(plant)
        evaluator = PlantEvaluator(env, constraints_for(env.base), episodes, gamma=0.99)
        hard = np.asarray([limit.hard for limit in env.base.plant.limits], bool)
        for quality in qualities:
            data = make_data(plant, quality, data_steps, seed)
            own = episode_returns(data)
            for algo, count in updates.items():
                (look,) = learned(with_sizes(algo, hidden), data, seed, count, batch_size)
                scored = evaluator(look.policy, jax.random.key(START_KEY))
                row: dict[str, Any] = {
                    "plant": plant,
                    "quality": quality,
                    "algo": algo,
                    "data": float(own.mean()),
                    "data_std": float(own.std()),
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
