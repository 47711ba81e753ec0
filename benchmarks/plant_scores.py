"""What offline learners reach on NeoRL-2's data: normalised scores, beside published ones."""

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

from benchmarks import halfcheetah
from worldloom import algos, suites
from worldloom.algos.mbpo import MBPO, MBPOConfig
from worldloom.algos.offline import OfflineAgent, Table, training_steps
from worldloom.core import draws, rollout
from worldloom.core.protocols import EnvSpec, PureEnv
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset
from worldloom.suites.plant import dmsd, pipeline, simglucose
from worldloom.suites.plant.controllers import Tuning, loops_of
from worldloom.suites.plant.datasets import episode_returns
from worldloom.training.loops.offline import OfflineLoop
from worldloom.training.machine import use_compilation_cache
from worldloom.training.trainer import Trainer

FOLDER = "WORLDLOOM_NEORL2"  # the environment variable that names the data's folder


class Task(NamedTuple):
    """A task of NeoRL-2 whose data are at hand."""

    file: str  # of the training data
    normalised: Callable[[float], float]  # its score of a mean return
    released: bool = True  # or made anew, so that nothing can be claimed against what is published


TASKS = {
    "dmsd": Task("DMSD-high-100000-train.npz", dmsd.normalised_score),
    "simglucose": Task("Simglucose-high-100000-train.npz", simglucose.normalised_score),
    "safetyhalfcheetah": Task(
        "SafetyHalfCheetah-high-100000-train.npz", halfcheetah.normalised_score
    ),
    # Its checksum is not that of the release, and its rows earn far less.
    "pipeline": Task("Pipeline-high-100000-train.npz", pipeline.normalised_score, released=False),
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
    "safetyhalfcheetah": {
        "bc": (70.2, 0.4), "cql": (71.2, 0.6), "edac": (53.1, 11.1), "mcq": (54.7, 4.3),
        "td3bc": (68.6, 0.4), "mopo": (23.7, 24.3), "combo": (66.2, 2.5), "rambo": (-422.0, 307.0),
        "mobile": (8.7, 3.9),
    },
}  # fmt: skip
# Algorithms whose numbers were set while scores on these very tasks were in view; those of the
# others are their papers'.
SET_IN_VIEW = {
    "rebrac": "penalties set with scores in view",
    "bc": "averaged weights, likewise",
    "mbpo": "method and numbers set with DMSD's scores in view",
    "mbpo-linear": "method and numbers set with Simglucose's scores in view",
}
# Algorithms by name that differ from a known one in options. The models of the first see the
# present; those of the second the past as well, its policy is a bias and gains, and its rollouts
# are long, for plants that hide what is under way and answer late.
_MODELS = {"hidden": (64, 64), "model_updates": 600, "num_members": 3}
_PAST = {"history": (5.0, 20.0, 60.0)}
_SLOW = {"interval": 10, "rollout_length": 48, "num_rollouts": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "mbpo": _MODELS,
    "mbpo-linear": _MODELS | _PAST | _SLOW | {"policy": "linear"},
}
ESTIMATE = "half an hour on two quiet cores, by an estimate"
GRID = 11  # levels of each actuator among which the best constant action is looked for,
ROUNDS = 5  # around the best of which it is looked for again: a dose of insulin is small
HELD_OUT_KEY = 7_000_005  # of the models that choose among algorithms; no policy learns in them
HELD_OUT_STARTS = 96  # logged episodes that they play again
COOLING = 0.1  # of all learning rates, in the last part of a run: the last policy is what counts
START_KEY = 9_000_001  # of the episodes in which policies are scored, the same for all


def released_folder() -> Path | None:
    """Where NeoRL-2's data are: in the folder that is named, or beside the checkout; or None."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "neorl2"
    folder = Path(os.environ.get(FOLDER) or beside)
    there = all((folder / task.file).is_file() for task in TASKS.values())
    return folder if there else None


# Learning ----------------------------------------------------------------------------------------


def with_sizes(name: str, hidden: Sequence[int], spec: EnvSpec | None = None) -> OfflineAgent:
    """An algorithm with its usual numbers, whatever the data, and layers of these widths."""
    algorithm = algos.get(name.partition("-")[0])
    options = VARIANTS.get(name, {"hidden": tuple(hidden)})
    return algorithm.make(replace(algorithm.config(), **options), spec)


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
        self.has_loops = bool(plant.loops)
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


class HeldOutModels:
    """What a policy earns in models that no algorithm knows: from the data alone.

    Logged episodes are played again from their starts to the time limit, disturbances included, in
    an ensemble that sees the past. What counts is MOPO's objective: the discounted return, as
    rewards are scaled for learning, less a deviation for each of the models' spread.
    """

    def __init__(self, data: Dataset, spec: EnvSpec, updates: int):
        assert spec.horizon is not None
        sizes = _MODELS | _PAST | {"model_updates": updates, "rollout_length": spec.horizon}
        agent = MBPO.make(MBPOConfig(**sizes), spec)
        table = agent.table(data)
        start, key = draws.split(jax.random.key(HELD_OUT_KEY))
        learner = jax.jit(lambda key: agent.init(key, table.obs_size, table.action_size))(start)
        learn = jax.jit(partial(training_steps, agent, updates=updates))
        models = learn(learner, table, key)[0].model.params
        hyper = agent.config.hyper

        def value(policy: PolicyState) -> Array:
            rows = table.take(jnp.asarray(data.starts[:HELD_OUT_STARTS]))
            play = partial(policy.apply, policy.params)
            reward, spread = agent.rollout(play, models, rows, key, hyper.gamma)
            return (reward - hyper.penalty * spread).sum(0).mean()

        self._value = jax.jit(value)

    def __call__(self, policy: PolicyState) -> float:
        return float(self._value(policy))


class Look(NamedTuple):
    """A learner on its way."""

    updates: int
    policy: PolicyState
    last: PolicyState  # of the last iterate, where an algorithm chooses among them
    seconds: float  # of learning so far
    compile_seconds: float


def learned(
    algorithm: OfflineAgent,
    data: Dataset,
    seed: int,
    updates: int,
    batch_size: int,
    looks: int = 1,
    table: Table | None = None,
) -> Iterator[Look]:
    """Learns for `updates`, and stops to be looked at so many times on the way.

    Where there are several parts, the last is learned at the rate of `COOLING`. A policy is good
    until the next look: learning goes on in its memory. table: of the data, if it is known.
    """
    each = max(updates // looks // algorithm.period, 1) * algorithm.period
    loop: Any = OfflineLoop(algorithm, batch_size, each)
    table = algorithm.table(data) if table is None else table
    trainer = Trainer(loop, (table,), seed=seed, chunk=1)
    seconds = 0.0
    for part in range(looks):
        if 0 < part == looks - 1:
            trainer.load(trainer.run.replace(learner=cooled(trainer.run.learner, COOLING)))
        start, compiled = time.perf_counter(), trainer.compile_seconds
        trainer.advance(1)
        compiling = trainer.compile_seconds
        seconds += time.perf_counter() - start - (compiling - compiled)
        learner, last_policy = trainer.run.learner, getattr(algorithm, "last_policy", None)
        policy = algorithm.policy(learner, data)
        last = policy if last_policy is None else last_policy(learner, data)
        yield Look(trainer.iteration * each, policy, last, seconds, compiling)


def constant(action: Any, size: int) -> PolicyState:
    """A policy that does the same whatever of `size` signals it sees."""
    return PolicyState(jnp.asarray(action, jnp.float32), jnp.zeros(size), jnp.ones(size), _same)


def _same(action: Array, obs: Array) -> Array:
    return jnp.broadcast_to(action, (*obs.shape[:-1], *action.shape))


def references(data: Dataset, scorer: Any) -> dict[str, tuple[float, str]]:
    """Returns of controllers that learn nothing, and how each was chosen.

    A score says little where one of them has it too: an agent that is worse than a constant has
    learned the wrong thing.
    """
    seen, size = data.rows.obs.shape[-1], data.rows.action.shape[-1]
    best, highest, tried, reach = np.zeros(size), -np.inf, 0, 1.0
    for _ in range(ROUNDS):
        levels = np.linspace(-reach, reach, GRID)
        # Of many actuators all at the same level: each by itself would be too many.
        columns = np.meshgrid(*[levels] * size) if size < 3 else [levels] * size
        grid = np.clip(best + np.stack(columns, -1).reshape(-1, size), -1.0, 1.0)
        values = [scorer(constant(action, seen)) for action in grid]
        if max(values) > highest:
            best, highest = grid[int(np.argmax(values))], max(values)
        tried, reach = tried + len(grid), 2.0 * reach / (GRID - 1)
    logged = {
        "logged mean action": data.rows.action.mean(0),
        "logged median action": jnp.median(data.rows.action, axis=0),
    }
    found = {
        name: (scorer(constant(action, seen)), "constant; from the data")
        for name, action in logged.items()
    } | {
        "best constant": (
            highest,
            f"{np.round(best, 3).tolist()}, of {tried}, by its score in the simulator",
        ),
    }
    if scorer.has_loops:
        found["control loops"] = (scorer.loops(), "textbook PID, tuned on the plant")
    return found


# NeoRL-2's data ----------------------------------------------------------------------------------


def scores(
    folder: Path,
    updates: Mapping[str, int],
    seeds: Sequence[int],
    *,
    episodes: int,
    cheetahs: int,
    looks: int,
    held_out_updates: int,
    hidden: Sequence[int] = (256, 256),
    batch_size: int = 256,
    note: Callable[[str], None] = print,
    save: Callable[[], None] = lambda: None,
    rows: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """A row for each dataset and algorithm of `updates`, with its curves; published ones beside.

    The rule is one for all tasks, and looks at the data alone: numbers of an algorithm are the
    same on all of them; what counts is the policy after the last update, or the iterate that an
    algorithm itself keeps, by the data; and `chosen` is the algorithm whose policies, all
    seeds', earn most in `HeldOutModels`. `rows` are filled as they come, and `save` is called after
    each. cheetahs: episodes of the half cheetah, which are played one by one.
    """
    use_compilation_cache()  # seeds share a program
    rows = [] if rows is None else rows
    for name, task in TASKS.items():
        data = dataset_files.load(folder / task.file)
        if name == halfcheetah.SPEC.name:
            reason = halfcheetah.why_not()
            if reason is not None:
                note(f"  {name} is left out: {reason}")
                continue
            spec, scorer = halfcheetah.SPEC, halfcheetah.Scorer(cheetahs)
        else:
            env = suites.make(name)
            spec, scorer = env.spec, Scorer(env, episodes)
        assert spec.horizon is not None
        common = {
            "dataset": name,
            "released": task.released,
            "data": task.normalised(float(np.mean(episode_returns(data)))),
            "episodes": scorer.episodes,
        }
        for title, (reached, how) in references(data, scorer).items():
            score = task.normalised(reached)
            rows.append(common | {"algo": title, "mean": score, "scores": [score], "how": how})
            note(f"  {name} {title}: {score:.1f} ({how})")
        save()
        held_out = HeldOutModels(data, spec, held_out_updates)
        for algo, count in updates.items():
            agent = with_sizes(algo, hidden, spec)
            table = agent.table(data)
            curves, final, taken, worth = [], [], [], []
            for seed in seeds if task.released else seeds[:1]:
                curve, look = [], None
                for look in learned(agent, data, seed, count, batch_size, looks, table):
                    curve.append((look.updates, task.normalised(scorer(look.policy))))
                assert look is not None
                curves.append(curve)
                kept = look.last is look.policy
                final.append(curve[-1][1] if kept else task.normalised(scorer(look.last)))
                taken.append((look.seconds, look.compile_seconds))
                worth.append(held_out(look.policy))
                note(
                    f"  {name} {algo} seed {seed}: {curve[-1][1]:.1f} (last iterate "
                    f"{final[-1]:.1f}), {worth[-1]:.4g} in models, {look.seconds:.0f} s"
                )
            kept = [curve[-1][1] for curve in curves]
            published = PUBLISHED.get(name, {}).get(algo, (None, None))
            rows.append(
                common
                | {
                    "algo": algo,
                    "mean": float(np.mean(kept)),
                    "std": float(np.std(kept)),
                    "scores": kept,
                    "last_mean": float(np.mean(final)),
                    "last_scores": final,
                    "seeds": list(seeds)[: len(curves)],
                    "how": SET_IN_VIEW.get(algo, "the paper's numbers"),
                    "model_return": float(np.mean(worth)),
                    "published": published[0],
                    "published_std": published[1],
                    "updates": curves[0][-1][0],
                    "seconds": float(np.mean([seconds for seconds, _ in taken])),
                    "compile_seconds": float(max(compiling for _, compiling in taken)),
                    "curves": curves,
                    "hyper": _plain(agent.config.hyper),
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
    """The row of a dataset that the data speak for: the highest return in `HeldOutModels`."""
    own = [row for row in rows if row["dataset"] == dataset and "model_return" in row]
    return max(own, key=lambda row: row["model_return"], default=None)
