"""How fast worlds turn without learning, and how fast equal epochs of training go."""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import worldloom
from benchmarks.modes_memory import training_memory
from benchmarks.modes_timing import equal_work
from benchmarks.modes_work import changed, fill_memory, training_epochs
from benchmarks.processes import cache_at, in_fresh_process
from worldloom.core import draws
from worldloom.core.mesh import BATCH_AXIS, device_mesh
from worldloom.core.protocols import PureEnv
from worldloom.core.rollout import run_episode_batch
from worldloom.core.spaces import Discrete
from worldloom.core.transforms import batch
from worldloom.core.types import Array, Key
from worldloom.suites.grid.object_world import ObjectTreasureHunt
from worldloom.suites.grid.problem import new_trainer
from worldloom.suites.grid.suite import MODES
from worldloom.training.config import TrainConfig
from worldloom.training.timer import Timing, compiled, interleave, ratio


@dataclass(frozen=True)
class WorldSizes:
    """1,024 compiled worlds for an episode, against one of objects for some episodes."""

    worlds: int = 1024
    object_episodes: int = 6  # in one block: 1,500 agent steps, about 0.6 s
    repeats: int = 7


def world_steps(sizes: WorldSizes, cache: Path, raw: dict[str, Any]) -> float | None:
    """Agent steps per second of random play, over those of the object loop.

    Both sides reset every episode, choose uniform actions that hang on all that is seen, and sum
    every reward. Our worlds are laid over all cores, one device each: a process of its own.
    """
    argument = asdict(sizes)
    measured = in_fresh_process(
        "benchmarks.throughput:measure_worlds", argument, cache, devices=os.cpu_count()
    )
    raw |= measured
    rates = measured["steps_per_second"]
    return ratio(rates["compiled"], rates["objects"])


def measure_worlds(argument: dict[str, Any]) -> dict[str, Any]:
    """Random play on one device, on all of them, and in the object loop, in turn."""
    sizes = WorldSizes(**argument)
    env = worldloom.make("treasurehunt")
    keys = iter(jax.random.split(jax.random.key(1), 10_000))
    one, compile_seconds = compiled(partial(random_play, env, sizes.worlds), jax.random.key(0))
    devices = math.gcd(jax.device_count(), sizes.worlds)
    mesh = device_mesh(devices)
    spread = jax.jit(
        jax.shard_map(
            lambda keys: jnp.stack(random_play(env, sizes.worlds // devices, keys[0]))[None],
            mesh=mesh,
            in_specs=PartitionSpec(BATCH_AXIS),
            out_specs=PartitionSpec(BATCH_AXIS),
        )
    )
    objects = ObjectTreasureHunt(legacy=False, tuned=False, rng=np.random.default_rng(0))
    turns = env.spec.horizon or 50
    timed = interleave(
        {
            "compiled": lambda: spread(jax.random.split(next(keys), devices)),
            "compiled_on_one_device": lambda: one(next(keys)),
            "objects": lambda: object_play(objects, sizes.object_episodes, turns),
        },
        sizes.repeats,
    )
    episode = env.spec.num_agents * turns
    blocks = {name: sizes.worlds for name in timed} | {"objects": sizes.object_episodes}
    steps = {name: episode * count for name, count in blocks.items()}
    return {
        "unit": "agent steps per second, observations and rewards consumed on both sides",
        "worlds": sizes.worlds,
        "devices": devices,
        "agents": env.spec.num_agents,
        "turns": turns,
        "compile_seconds": compile_seconds,
        "steps_per_second": {n: steps[n] / timing.median for n, timing in timed.items()},
        "steps_in_a_block": steps,
        "seconds": {name: timing.to_dict() for name, timing in timed.items()},
    }


def random_play(env: PureEnv, worlds: int, key: Key) -> tuple[Array, Array]:
    """One episode of `worlds` worlds with random agents: sums of actions and of rewards."""
    assert isinstance(env.spec.action, Discrete)
    choices = env.spec.action.n

    # The choice hangs on all that was seen, as a policy's would, and is uniform all the same.
    def act(_, obs, key):
        total = obs.sum(axis=tuple(range(1, obs.ndim)), dtype=jnp.int32)
        return (draws.integers(key, (obs.shape[0],), choices) + total) % choices, ()

    agents = jnp.zeros(env.spec.num_agents)  # random agents are nothing but their number
    params, turns = env.default_params(), env.spec.horizon or 0
    _, played, _ = run_episode_batch(batch(env, worlds), act, key, agents, params, turns)
    return played.action.sum().astype(jnp.float32), played.reward.sum()


def object_play(world: ObjectTreasureHunt, episodes: int, turns: int) -> tuple[int, float]:
    """The same of one world of objects, for some episodes."""
    chosen, paid = 0, 0.0

    def act(_: int, obs: np.ndarray) -> int:
        nonlocal chosen
        action = (int(world.rng.integers(4)) + int(obs.sum())) % 4
        chosen += action
        return action

    for _ in range(episodes):
        world.reset()
        for _ in range(turns):
            paid += sum(world.take_turn(act))
    return chosen, paid


@dataclass(frozen=True)
class EpochSizes:
    """Blocks of epochs of every mode, taken in turn."""

    agents: int = 5
    epochs: int = 6
    repeats: int = 5
    memory: bool = True


def same_arithmetic(base: TrainConfig, agents: int) -> TrainConfig:
    """The original's training arithmetic in fused mode, acting with midpoints."""
    return equal_work(base, ["jax_fused"], agents, midpoints=True)["jax_fused"]


def epochs_per_second(
    base: TrainConfig, sizes: EpochSizes, cache: Path, raw: dict[str, Any], note: Callable
) -> float | None:
    """Training epochs per second of `jax_fused` over those of `torch_sequential`, as it is."""
    base = replace(base, chunk=sizes.epochs)
    configs = equal_work(base, MODES, sizes.agents, midpoints=True)
    configs["torch_tuned"] = changed(configs["torch_sequential"], tuned=True)
    trainers: dict[str, Any] = {}
    for name, config in configs.items():
        with cache_at(cache / name):  # modes share small programs: each compiles its own
            trainers[name] = new_trainer(config)
            fill_memory(trainers[name], config)
        note(f"  {name}: ready, compiled in {trainers[name].compile_seconds:.1f} s")
    blocks = {name: training_epochs(trainer, sizes.epochs) for name, trainer in trainers.items()}
    timed = interleave(blocks, sizes.repeats)
    each: dict[str, Timing] = {name: timing.per(sizes.epochs) for name, timing in timed.items()}
    iqn = configs["jax_fused"].hyper
    raw |= {
        "work": {
            "agents": sizes.agents,
            "worlds": 1,
            "updates_per_epoch": iqn.gradient_steps,
            "epsilon": iqn.epsilon,
            "hidden": iqn.hidden,
            "batch_size": iqn.batch_size,
            "num_quantiles": iqn.num_quantiles,
            "acting": f"{iqn.act_quantiles} midpoints in JAX, {base.hyper.act_quantiles} random "
            "levels in PyTorch",
        },
        "epochs_per_second": {name: 1.0 / timing.median for name, timing in each.items()},
        "seconds_per_epoch": {name: timing.to_dict() for name, timing in each.items()},
        "compile_seconds": {name: trainer.compile_seconds for name, trainer in trainers.items()},
    }
    if sizes.memory:
        names = ("torch_sequential", "jax_fused")
        raw["memory"] = {name: training_memory(configs[name], cache / name) for name in names}
    return ratio(each["torch_sequential"].median, each["jax_fused"].median)
