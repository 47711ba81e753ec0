"""Datasets that scripted controllers log from a plant."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from worldloom import suites
from worldloom.core import draws
from worldloom.core.checks import check_seed
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key, PyTree, TimeStep
from worldloom.replay.dataset import Dataset, from_columns
from worldloom.suites.plant.controllers import QUALITIES, TUNINGS, Tuning, loops_of
from worldloom.suites.plant.plant import Plant, make_world, plant_of, play_episodes
from worldloom.suites.plant.suite import DATA_QUALITIES, DataQuality
from worldloom.training.machine import versions

# The share of episodes that are played by controllers of each of QUALITIES.
SHARES: dict[DataQuality, tuple[float, ...]] = {
    "expert": (1.0, 0.0, 0.0),
    "medium": (0.0, 1.0, 0.0),
    "random": (0.0, 0.0, 1.0),
    "mixed": (0.1, 0.4, 0.5),
}
# Episodes that are played side by side. It does not depend on how many are asked for, so that a
# larger dataset of the same seed begins with the rows of a smaller one.
EPISODES = 64


def make_data(env: str, quality: DataQuality, steps: int, seed: int = 0, **options: Any) -> Dataset:
    """Whole episodes of a plant, by name and with its options; see `log_data`."""
    return log_data(suites.make(env, **options), quality, steps, seed, env=env, options=options)


def log_data(
    plant: PureEnv,
    quality: DataQuality,
    steps: int,
    seed: int = 0,
    *,
    env: str = "",
    options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Whole episodes of a plant, of `steps` rows or a little more, under a controller of `quality`.

    In mixed data each episode has a controller of its own quality, in the shares of `SHARES`. The
    same arguments give the same data. env and options: for the provenance.
    """
    env = env or plant.spec.name
    if quality not in DATA_QUALITIES:
        raise ValueError(f"quality={quality!r}; use one of {', '.join(DATA_QUALITIES)}")
    if steps < 1:
        raise ValueError(f"data of {env}: steps={steps}; ask for at least 1")
    check_seed(seed)
    params = plant.default_params()
    play = _player(plant_of(plant, env).plant, int(params.horizon))
    shares = np.asarray(SHARES[quality], np.float32)
    rounds, rows = [], 0
    while rows < steps:
        key = jax.random.fold_in(jax.random.key(seed), len(rounds))
        columns = jax.device_get(play(params, key, shares))
        # The rows that were played, episode after episode.
        ordered = {name: np.swapaxes(value, 0, 1) for name, value in columns.items()}
        played = ordered.pop("played")
        rounds.append({name: value[played] for name, value in ordered.items()})
        rows += len(rounds[-1]["reward"])
    columns = {name: np.concatenate([part[name] for part in rounds]) for name in rounds[0]}
    # The episode that holds the last row asked for is kept to its end.
    over = np.flatnonzero(columns["terminated"] | columns["truncated"])
    rows = int(over[np.searchsorted(over, steps - 1)]) + 1
    columns = {name: value[:rows] for name, value in columns.items()}
    if columns["cost"].shape[1] == 0:  # a plant without limits
        del columns["cost"]
    provenance = {
        "env": env,
        "quality": quality,
        "seed": seed,
        "steps": steps,
        "options": json.dumps(dict(options or {}), sort_keys=True),
        "version": versions()["worldloom"],
    }
    return from_columns(
        **columns,
        name=f"{env}-{quality}",
        provenance=tuple((name, str(value)) for name, value in provenance.items()),
    )


def episode_returns(data: Dataset) -> NDArray[np.float64]:
    """The sum of rewards of every episode (E,)."""
    return np.add.reduceat(np.asarray(data.rows.reward, np.float64), np.asarray(data.starts))


@lru_cache(maxsize=16)
def _player(plant: Plant, horizon: int) -> Callable[[PyTree, Key, Any], dict[str, Array]]:
    """The compiled loop of a plant: one for all its numbers, all qualities and any round."""
    return jax.jit(partial(_episodes, make_world(plant, horizon=horizon)))


def _episodes(env: PureEnv, params: PyTree, key: Key, shares: Array) -> dict[str, Array]:
    """Columns (T, EPISODES, ...) of as many episodes, and which of their rows were played.

    shares (3,): of controllers of each of QUALITIES.
    """
    start_key, tuning_key, play_key = draws.split(key, 3)
    tuning = _tunings(env.base.plant, tuning_key, shares)
    loops = loops_of(env.base)

    def init(_: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (EPISODES, *x.shape)), loops.init())

    def choose(obs: Array, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        keys = draws.split(key, EPISODES)
        action, log_prob, memory = jax.vmap(loops.act)(tuning, keys, memory, obs)
        return (action, log_prob), memory

    def record(obs: Array, alive: Array, chosen: Any, after: TimeStep) -> dict[str, Array]:
        return {
            "obs": obs,
            "action": chosen[0],
            "reward": after.reward,
            "next_obs": after.obs,
            "terminated": after.terminated,
            "truncated": after.truncated,
            "cost": after.info.safety.cost,
            "log_prob": chosen[1],
            "played": alive,
        }

    return play_episodes(env, params, (start_key, play_key), EPISODES, init, choose, record)


def _tunings(plant: Plant, key: Key, shares: Array) -> Tuning:
    """One for each episode, (EPISODES,)."""
    known = TUNINGS | {"medium": getattr(plant, "medium_tuning", TUNINGS["medium"])}
    uniform = draws.uniform(key, (EPISODES,))
    which = jnp.searchsorted(jnp.cumsum(shares)[:-1], uniform, side="right")
    tunings = [known[quality] for quality in QUALITIES]
    return jax.tree.map(lambda *values: jnp.asarray(values)[which], *tunings)
