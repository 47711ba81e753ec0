"""Datasets that scripted controllers log from a plant."""

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from worldloom.core import draws, rollout
from worldloom.core.names import suggest
from worldloom.core.protocols import PureEnv
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key, PyTree
from worldloom.envs import registry
from worldloom.envs.plant import Plant, make_world
from worldloom.envs.plant.controllers import QUALITIES, TUNINGS, Tuning, loops_of
from worldloom.replay.dataset import Dataset, from_columns
from worldloom.track.machine import versions

DataQuality = Literal["expert", "medium", "mixed", "random"]
DATA_QUALITIES: tuple[DataQuality, ...] = get_args(DataQuality)
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


def make_data(
    env_name: str, quality: DataQuality, steps: int, seed: int = 0, **options: Any
) -> Dataset:
    """Whole episodes of a plant, of `steps` rows or a little more, under a controller of `quality`.

    In mixed data each episode has a controller of its own quality, in the shares of `SHARES`.
    `options` are the plant's own. The same arguments give the same data.
    """
    plants = registry.names("plant")
    if env_name not in plants:
        raise ValueError(f"there is no plant {env_name!r}; {suggest(env_name, plants)}")
    if quality not in DATA_QUALITIES:
        raise ValueError(f"quality={quality!r}; use one of {', '.join(DATA_QUALITIES)}")
    if steps < 1:
        raise ValueError(f"data of {env_name}: steps={steps}; ask for at least 1")
    if not 0 <= seed < 2**32:
        raise ValueError(f"data of {env_name}: seed={seed}; it must be from 0 to 2**32 - 1")
    env = registry.make(env_name, **options)
    play = _player(env.base.plant, int(env.default_params().horizon))
    shares = np.asarray(SHARES[quality], np.float32)
    rounds, rows = [], 0
    while rows < steps:
        key = jax.random.fold_in(jax.random.key(seed), len(rounds))
        rounds.append(_played(jax.device_get(play(env.default_params(), key, shares))))
        rows += len(rounds[-1]["reward"])
    columns = {name: np.concatenate([part[name] for part in rounds]) for name in rounds[0]}
    # The episode that holds the last row asked for is kept to its end.
    over = np.flatnonzero(columns["terminated"] | columns["truncated"])
    rows = int(over[np.searchsorted(over, steps - 1)]) + 1
    columns = {name: value[:rows] for name, value in columns.items()}
    if columns["cost"].shape[1] == 0:  # a plant without limits
        del columns["cost"]
    facts = {
        "env": env_name, "quality": quality, "seed": seed, "steps": steps,
        "options": json.dumps(options, sort_keys=True), "version": versions()["worldloom"],
    }  # fmt: skip
    return from_columns(
        **columns, name=f"{env_name}-{quality}",
        provenance=tuple((name, str(value)) for name, value in facts.items()),
    )  # fmt: skip


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
    worlds = batch(env, EPISODES)
    tuning = _tunings(tuning_key, shares)
    init, act = loops_of(env.base)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (EPISODES, *x.shape)), init())
    state, first = worlds.reset(start_key, params)

    def choose(world: PyTree, memory: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        keys = draws.split(key, EPISODES)
        action, log_prob, memory = jax.vmap(act)(tuning, keys, memory, world[1])
        return (action, log_prob), memory

    def step(world: PyTree, chosen: PyTree, key: Key) -> tuple[PyTree, dict[str, Array]]:
        (state, obs, running), (action, log_prob) = world, chosen
        state, after = worlds.step(key, state, action, params)
        row = {
            "obs": obs, "action": action, "reward": after.reward, "next_obs": after.obs,
            "terminated": after.terminated, "truncated": after.truncated,
            "cost": after.info.safety.cost, "log_prob": log_prob, "played": running,
        }  # fmt: skip
        return (state, after.obs, running & ~(after.terminated | after.truncated)), row

    world = (state, first.obs, jnp.ones(EPISODES, bool))
    horizon = int(env.default_params().horizon)
    return rollout.play_steps(choose, step, play_key, world, memory, horizon)[2]


def _tunings(key: Key, shares: Array) -> Tuning:
    """One for each episode, (EPISODES,)."""
    luck = draws.uniform(key, (EPISODES,))
    which = jnp.searchsorted(jnp.cumsum(shares)[:-1], luck, side="right")
    tunings = [TUNINGS[quality] for quality in QUALITIES]
    return jax.tree.map(lambda *values: jnp.asarray(values)[which], *tunings)


def _played(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The rows that were played, episode after episode."""
    ordered = {name: np.swapaxes(value, 0, 1) for name, value in columns.items()}
    played = ordered.pop("played")
    return {name: value[played] for name, value in ordered.items()}
