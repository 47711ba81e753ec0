"""How well each plant can be controlled: random actions, its loops, and a planning oracle.

`python -m benchmarks.plant_oracle RESULT.json` writes what a full run measured to the table that
the library reads shares from (`worldloom.suites.plant.references`).
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import plant_mpc
from worldloom import suites
from worldloom.core import draws
from worldloom.core.files import read_json, write_json
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key
from worldloom.suites.plant import references
from worldloom.suites.plant.controllers import Tuning, loops_of
from worldloom.suites.plant.plant import play_episodes

SEED = 11


def measure(
    plants: Sequence[str],
    *,
    episodes: int,
    oracle_episodes: int,
    change: dict[str, Any] | None = None,
    note: Callable[[str], None] = print,
    save: Callable[[], None] = lambda: None,
    rows: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """By plant: mean returns with standard errors, and the hash of the plant they are of.

    change: of the oracle's settings.
    """
    rows = {} if rows is None else rows
    for plant in plants:
        env, start = suites.make(plant), time.perf_counter()
        found = {
            name: _figures(controller_returns(env, name, episodes, SEED))
            for name in references.CONTROLLERS
        }
        settings = dataclasses.replace(plant_mpc.settings_of(plant), **(change or {}))
        planned = plant_mpc.oracle_returns(env, oracle_episodes, SEED, settings)
        found["oracle"] = _figures(planned)
        about = {"settings": references.fingerprint(env.base), "oracle_settings": vars(settings)}
        rows[plant] = found | about | {"seconds": round(time.perf_counter() - start, 1)}
        means = ", ".join(f"{n} {row['return']:.4g}" for n, row in found.items())
        note(f"  {plant}: {means}, {rows[plant]['seconds']:.0f} s")
        save()
    return rows


def section(sizes: Any, record: Any) -> None:
    """The plants of a benchmark, and how far their own loops go."""
    rows = record.result["raw"]["oracle"] = {}
    measure(
        sizes.oracle_plants,
        episodes=sizes.oracle_references,
        oracle_episodes=sizes.oracle_episodes,
        change=sizes.oracle_change,
        note=record.note,
        save=record.save,
        rows=rows,
    )
    shares = [tuned_share(row) for row in rows.values()]
    record.result["ratios"]["pid_oracle_share"] = float(np.mean(shares))


def controller_returns(env: PureEnv, name: str, episodes: int, seed: int = 0) -> np.ndarray:
    """Returns (episodes,), undiscounted, under one of `references.CONTROLLERS`."""
    play = jax.jit(partial(_returns, env, references.CONTROLLERS[name], episodes))
    return np.asarray(play(jax.random.key(seed)), np.float64)


def _returns(env: PureEnv, tuning: Tuning, episodes: int, key: Key) -> Array:
    loops = loops_of(env.base)

    def init(_: Any) -> Any:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (episodes, *x.shape)), loops.init())

    def choose(obs: Array, memory: Any, key: Key) -> tuple[Any, Any]:
        act = jax.vmap(partial(loops.act, tuning))
        action, _, memory = act(draws.split(key, episodes), memory, obs)
        return (action,), memory

    def record(obs: Array, alive: Array, chosen: Any, after: Any) -> Array:
        return jnp.where(alive, after.reward, 0.0)

    keys = draws.split(key)
    params = env.default_params()
    reward = play_episodes(env, params, (keys[0], keys[1]), episodes, init, choose, record)
    return reward.sum(0)


def _figures(returns: np.ndarray) -> dict[str, float]:
    error = returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else 0.0
    return {"return": float(returns.mean()), "stderr": float(error), "episodes": len(returns)}


def tuned_share(row: dict[str, Any]) -> float:
    """Of the way from random actions to the oracle, what tuned loops go."""
    low, high = row["random"]["return"], row["oracle"]["return"]
    return (row["pid_tuned"]["return"] - low) / (high - low)


def main(path: str) -> None:
    """Writes the library's table; plants that were not measured keep their entries."""
    known = read_json(references.TABLE) if references.TABLE.is_file() else {}
    rows = read_json(Path(path))["raw"]["oracle"]
    kept = ("settings", *references.CONTROLLERS, "oracle")
    rounded = {
        plant: {name: _short(row[name]) for name in kept} for plant, row in (known | rows).items()
    }
    write_json(references.TABLE, dict(sorted(rounded.items())))
    print(f"written to {references.TABLE}")


def _short(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {n: float(f"{v:.6g}") if isinstance(v, float) else v for n, v in value.items()}


if __name__ == "__main__":
    main(sys.argv[1])
