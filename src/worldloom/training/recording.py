"""Episodes as data: what trained agents or people did, written as a dataset and learned from."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import run_episode_batch, unroll
from worldloom.core.spaces import Box, Discrete
from worldloom.core.transforms import batch, observe_all
from worldloom.core.types import Array, Key, PyTree
from worldloom.nn.networks import Networks
from worldloom.replay import dataset_files
from worldloom.replay.dataset import Dataset, from_columns
from worldloom.training.run import check_no_memory


def record_episodes(run: Any, episodes: int, seed: int = 0, explore: float = 0.0) -> Dataset:
    """Whole episodes of a run's agents; of a world with several agents, those of each of them.

    Observations are what `Networks.encode` makes of them, discrete actions their numbers.
    """
    if run.config.algorithm.centralised:
        raise ValueError(f"{run.folder}: episodes of {run.config.algo} cannot be recorded yet")
    check_no_memory(run, "recorded as data")
    env, encode = run.problem.env, run.problem.networks.encode
    play = partial(_turns if env.turn_based else _steps, env, run.trainer.act, episodes, explore)
    columns, alive = jax.device_get(jax.jit(play)(run.agents, jax.random.key(seed)))
    flat = _encoded(columns, encode)
    kept = np.swapaxes(alive, 0, 1)  # (lanes, T): one episode after the other
    rows = {name: np.swapaxes(value, 0, 1)[kept] for name, value in flat.items()}
    # The last row of an episode that did not end was cut short.
    last = np.zeros_like(kept)
    last[np.arange(len(kept)), kept.sum(axis=1) - 1] = True
    rows["truncated"] = last[kept] & ~rows["terminated"]
    if rows["action"].ndim == 1:
        rows["action"] = rows["action"][:, None]
    about = {"env": run.config.env, "algo": run.config.algo, "steps": run.steps, "seed": seed}
    provenance = tuple((name, str(value)) for name, value in about.items())
    return from_columns(**rows, name=f"{run.config.env}-{run.config.algo}", provenance=provenance)


def _encoded(columns: dict[str, Any], encode: Callable[[PyTree], Array]) -> dict[str, np.ndarray]:
    """Observations (T, lanes, ...) as features (T, lanes, n)."""

    def features(obs: PyTree) -> np.ndarray:
        steps, lanes = jax.tree.leaves(obs)[0].shape[:2]
        rows = jax.tree.map(lambda x: x.reshape(steps * lanes, *x.shape[2:]), obs)
        return np.asarray(encode(rows)).reshape(steps, lanes, -1)

    return columns | {name: features(columns[name]) for name in ("obs", "next_obs")}


def _steps(env: PureEnv, act: Any, episodes: int, explore: float, agents: PyTree, key: Key) -> Any:
    worlds, params = batch(env, episodes), env.default_params()
    reset_key, play_key = draws.split(key)
    state, first = worlds.reset(reset_key, params)

    def choose(obs, key):
        return act(agents, obs, key, explore=explore)

    assert env.spec.horizon is not None
    horizon = env.spec.horizon
    _, _, (obs, action, after) = unroll(worlds, choose, play_key, state, first, params, horizon)
    ended = _ended_before(after.terminated | after.truncated)
    return _columns(obs, action, after.reward, after.obs, after.terminated), ~ended


def _turns(env: PureEnv, act: Any, episodes: int, explore: float, agents: PyTree, key: Key) -> Any:
    worlds, params = batch(env, episodes), env.default_params()

    def choose(agent, obs, key):
        return act(agent, obs, key, explore=explore), obs

    assert env.spec.horizon is not None
    state, turns, _ = run_episode_batch(worlds, choose, key, agents, params, env.spec.horizon)
    last = observe_all(worlds, state, params)
    next_obs = jax.tree.map(lambda x, end: jnp.concatenate([x[1:], end[None]]), turns.record, last)

    def for_agents(x: Array) -> Array:  # (T, W) to (T, A, W)
        return jnp.repeat(x[:, None], env.spec.num_agents, axis=1)

    ends = for_agents(turns.terminated)
    row = _columns(turns.record, turns.action, turns.reward, next_obs, ends)
    lanes = (row, for_agents(~_ended_before(turns.terminated)))
    return jax.tree.map(lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]), lanes)


def _columns(*columns: PyTree) -> dict[str, PyTree]:
    names = ("obs", "action", "reward", "next_obs", "terminated")
    return dict(zip(names, columns, strict=True))


def _ended_before(done: Array) -> Array:
    """(T, W): the world had ended before this step."""
    return jnp.cumsum(done, axis=0) - done > 0


def recorded_data(path: str, env: PureEnv, networks: Networks) -> Callable[[], Dataset] | None:
    """What offline algorithms learn from where a file is named; None without one."""
    if not path:
        return None

    def load() -> Dataset:
        space = env.spec.action
        is_choice = isinstance(space, Discrete)
        data = _load_choices(path, space.n) if is_choice else dataset_files.load(path)
        expected = (_features(env, networks), space.shape[0] if isinstance(space, Box) else 1)
        sizes = (data.rows.obs.shape[-1], data.rows.action.shape[-1])
        if sizes != expected:
            raise ValueError(
                f"{path}: rows of {sizes[0]} features and {sizes[1]} actions are not those of "
                f"{env.spec.name}, which has {expected[0]} and {expected[1]}"
            )
        return data

    return load


def _load_choices(path: str, num_actions: int) -> Dataset:
    """A dataset of discrete actions (N, 1), which are numbers of choices and not in [-1, 1]."""
    logged = dataset_files.read_npz(path)
    action = logged.columns["action"]
    if ((action < 0) | (action >= num_actions) | (action != np.floor(action))).any():
        raise ValueError(f"{path}: its actions are not whole numbers from 0 to {num_actions - 1}")
    within = logged.columns | {"action": action / num_actions}
    fatal = replace(logged, columns=within).check().fatal()
    if fatal is not None:
        raise ValueError(f"{path}: {fatal.message}")
    return from_columns(**logged.columns, name=logged.name, provenance=logged.provenance)


def _features(env: PureEnv, networks: Networks) -> int:
    """The size of an encoded observation."""

    def encoded(key: Key) -> Array:
        obs = env.reset(key, env.default_params())[1].obs
        one = jax.tree.map(lambda x: x[:1], obs)  # one agent's, in a batch of one
        return networks.encode(one if env.turn_based else jax.tree.map(lambda x: x[None], obs))

    return jax.eval_shape(encoded, jax.random.key(0)).shape[-1]
