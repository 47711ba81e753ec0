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
from worldloom.replay.dataset import Dataset
from worldloom.suites.plant import dmsd, ope, simglucose
from worldloom.suites.plant.controllers import Tuning, loops_of
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
# Algorithms whose numbers were set while scores on these very tasks were in view; those of the
# others are their papers'.
SET_IN_VIEW = {"rebrac": "penalties set with scores in view", "bc": "averaged weights, likewise"}
GRID = 11  # levels of each actuator among which the best constant action is looked for
OPE_GAMMA = 0.99
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
            begin = _every_person
        else:
            self.episodes = episodes
            begin = _by_chance
        self._play = jax.jit(partial(_returns, env, self.episodes, begin, _by_policy))
        self._loops = jax.jit(partial(_returns, env, self.episodes, begin, _by_loops))

    def __call__(self, policy: PolicyState) -> float:
        return self._mean(self._play, policy)

    def loops(self) -> float:
        """The mean return of the plant's own control loops, as they are tuned, without noise."""
        return self._mean(self._loops, Tuning(1.0, 1e-6, False))

    def _mean(self, play: Callable[..., Array], control: PyTree) -> float:
        returns = play(control, jax.random.key(START_KEY), self.env.default_params())
        return float(np.asarray(returns, np.float64).mean())


def _by_policy(env: PureEnv, episodes: int, policy: PolicyState) -> tuple[Callable[..., Any], Any]:
    return lambda obs, memory, key: (policy_step(policy, obs), memory), ()


def _by_loops(env: PureEnv, episodes: int, tuning: Tuning) -> tuple[Callable[..., Any], Any]:
    loops = loops_of(env.base)

    def choose(obs: Array, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        keys = draws.split(key, episodes)
        action, _, memory = jax.vmap(loops.act, (None, 0, 0, 0))(tuning, keys, memory, obs)
        return action, memory

    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (episodes, *x.shape)), loops.init())
    return choose, start


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
    controller: Callable[..., tuple[Callable[..., Any], Any]],
    control: PyTree,
    key: Key,
    params: PyTree,
) -> Array:
    worlds = batch(env, episodes)
    start_key, play_key = draws.split(key)
    state, obs = begin(env, episodes, start_key, params)

    act, memory = controller(env, episodes, control)

    def choose(world: PyTree, memory: PyTree, key: Key) -> tuple[Array, PyTree]:
        return act(world[1], memory, key)

    def step(world: PyTree, action: Array, key: Key) -> tuple[PyTree, Array]:
        state, _, alive = world
        state, after = worlds.step(key, state, action, params)
        running = alive & ~(after.terminated | after.truncated)
        return (state, after.obs, running), jnp.where(alive, after.reward, 0.0)

    assert env.spec.horizon is not None
    world = (state, obs, jnp.ones(episodes, bool))
    rewards = rollout.play_steps(choose, step, play_key, world, memory, env.spec.horizon)[2]
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


def constant(action: Array, env: PureEnv) -> PolicyState:
    """A policy that does the same whatever it sees."""
    size = len(env.base.plant.observation)
    return PolicyState(jnp.asarray(action, jnp.float32), jnp.zeros(size), jnp.ones(size), _same)


def _same(action: Array, obs: Array) -> Array:
    return jnp.broadcast_to(action, (*obs.shape[:-1], *action.shape))


def references(env: PureEnv, data: Dataset, scorer: Scorer) -> dict[str, tuple[float, str]]:
    """Returns of controllers that learn nothing, and how each was chosen.

    A score says little where one of them has it too: an agent that is worse than a constant has
    learned the wrong thing.
    """
    size = data.rows.action.shape[-1]
    levels = np.linspace(-1.0, 1.0, GRID if size < 3 else 3)
    grid = np.stack(np.meshgrid(*[levels] * size), -1).reshape(-1, size)
    constants = [scorer(constant(action, env)) for action in grid]
    best = int(np.argmax(constants))
    found = {
        "logged mean action": (
            scorer(constant(data.rows.action.mean(0), env)),
            "constant; from the data",
        ),
        "best constant": (
            constants[best],
            f"{np.round(grid[best], 2).tolist()}, of {len(grid)}, by its score in the simulator",
        ),
    }
    if env.base.plant.loops:
        found["control loops"] = (scorer.loops(), "textbook PID, tuned on the plant")
    return found


# NeoRL-2's data ----------------------------------------------------------------------------------


def scores(
    folder: Path,
    updates: Mapping[str, int],
    seeds: Sequence[int],
    *,
    episodes: int,
    looks: int,
    ope_updates: int,
    hidden: Sequence[int] = (256, 256),
    batch_size: int = 256,
    note: Callable[[str], None] = print,
    save: Callable[[], None] = lambda: None,
    rows: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """A row for each dataset and algorithm of `updates`, with its curves; published ones beside.

    The rule is one for all tasks, and looks at the data alone: numbers of an algorithm are the
    same on all of them, what counts is the policy after the last update, and `chosen` is the
    algorithm whose off-policy interval has the highest lower end. `rows` are filled as they come,
    and `save` is called after each.
    """
    use_compilation_cache()  # seeds share a program
    rows = [] if rows is None else rows
    for name, (file, normalised) in RELEASED.items():
        env, data = suites.make(name), dataset_files.load(folder / file)
        scorer, horizon = Scorer(env, episodes), int(env.default_params().horizon)
        own = normalised(float(np.mean(episode_returns(data))))
        common = {"dataset": name, "data": own, "episodes": scorer.episodes}
        for title, (reached, how) in references(env, data, scorer).items():
            score = normalised(reached)
            rows.append(common | {"algo": title, "mean": score, "scores": [score], "how": how})
            note(f"  {name} {title}: {score:.1f} ({how})")
        save()
        log = ope.learn(data, OPE_GAMMA, horizon, ope_updates, jax.random.key(0))
        for algo, count in updates.items():
            curves, taken, lows = [], [], []
            for seed in seeds:
                curve, last = [], None
                for look in learned(with_sizes(algo, hidden), data, seed, count, batch_size, looks):
                    curve.append((look.updates, normalised(scorer(look.policy))))
                    last = look
                assert last is not None
                curves.append(curve)
                taken.append((last.seconds, last.compile_seconds))
                estimate = ope.evaluate(log, last.policy, jax.random.key(seed))["estimates"][0]
                lows.append(estimate["low"])
                note(f"  {name} {algo} seed {seed}: {curve[-1][1]:.1f}, {last.seconds:.0f} s")
            final = [curve[-1][1] for curve in curves]
            published = PUBLISHED[name].get(algo, (None, None))
            rows.append(
                common
                | {
                    "algo": algo,
                    "mean": float(np.mean(final)),
                    "std": float(np.std(final)),
                    "scores": final,
                    "seeds": list(seeds),
                    "how": SET_IN_VIEW.get(algo, "the paper's numbers"),
                    "ope_low": float(np.mean(lows)),
                    "published": published[0],
                    "published_std": published[1],
                    "updates": curves[0][-1][0],
                    "seconds": float(np.mean([seconds for seconds, _ in taken])),
                    "compile_seconds": float(max(compiling for _, compiling in taken)),
                    "curves": curves,
                    "hyper": _plain(with_sizes(algo, hidden).config.hyper),
                }
            )
            save()
        choice = chosen(rows, name)
        if choice is not None:
            choice["how"] += "; chosen from the data alone"
    return rows


def _plain(hyper: Any) -> dict[str, float]:
    return {name: float(getattr(hyper, name)) for name in hyper.__dataclass_fields__}


def chosen(rows: Sequence[dict[str, Any]], dataset: str) -> dict[str, Any] | None:
    """The row of a dataset that the data speak for: the highest lower end of its interval."""
    own = [row for row in rows if row["dataset"] == dataset and "ope_low" in row]
    return max(own, key=lambda row: row["ope_low"], default=None)


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
            still = Look(0, constant(data.rows.action.mean(0), env), 0.0, 0.0)
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
