"""Our side of the arc benchmark: random play in compiled worlds, and what it takes.

`python -m worldloom.bench.arc_worlds` serves blocks of play the way the peers do.
"""

import math
from functools import partial
from typing import Any

from worldloom.bench.arc_peers import serve

HORIZON = 100


def make_world(tasks: str, side: int | None) -> Any:
    """The world that is measured: one trial, 100 steps, all 35 operations."""
    from worldloom.envs.arc.load import load
    from worldloom.envs.arc.world import world

    if tasks.endswith(".json"):  # the very tasks that the peers are given
        import json

        from worldloom.envs.arc.tasks import read_task

        with open(tasks) as file:
            read = [read_task(str(i), task, tasks) for i, task in enumerate(json.load(file))]
        from worldloom.envs.arc.taskset import TaskSet

        found = TaskSet(tuple(read))
    else:
        found = load(tasks, max_size=side)
    shape = None if side is None else (side, side)
    return world(found.buffer(shape), action="box", max_steps=HORIZON, max_trials=1)


def random_play(
    env: Any, config: Any, key: Any, batch: int, steps: int, action: str, look: Any = None
) -> Any:
    """`steps` random actions in each of `batch` worlds that reset themselves.

    Consumes every reward and every cell of the int8 working grid that an agent would see. `look`
    is called back on the host in every step, for those who want to know what that costs.
    """
    import jax

    from worldloom.core import draws, rollout
    from worldloom.core.transforms import autoreset_batch
    from worldloom.envs.arc.episodes import random_boxes

    worlds = autoreset_batch(env, batch)
    reset_key, play_key = draws.split(key)

    def choose(world, memory, key):
        obs = world[1].obs
        boxes = random_boxes(key, obs.operation_mask, config.grid_shape)
        if action == "point":
            boxes = boxes.replace(r2=boxes.r1, c2=boxes.c1)
        return boxes, memory

    def step(world, action, key):
        seen = world[1].obs.grid.max()
        if look is not None:
            jax.debug.callback(look, seen)
        state, after = worlds.step(key, world[0], action, config)
        return (state, after), (seen, after.reward.sum())

    start = worlds.reset(reset_key, config)
    _, _, (seen, reward) = rollout.play_steps(choose, step, play_key, start, (), steps)
    return seen.max(), reward.sum()


def spread_play(env: Any, batch: int, steps: int, action: str) -> tuple[Any, int]:
    """`random_play` with the worlds laid over all devices: program(keys, config) and devices."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from worldloom.core.mesh import BATCH_AXIS, device_mesh

    devices = math.gcd(jax.device_count(), batch)
    if devices == 1:
        return jax.jit(
            lambda keys, config: random_play(env, config, keys[0], batch, steps, action)
        ), 1
    part = PartitionSpec(BATCH_AXIS)

    def shard(keys, config):
        seen, reward = random_play(env, config, keys[0], batch // devices, steps, action)
        return jnp.stack([seen.astype(jnp.float32), reward])[None]

    return jax.jit(
        jax.shard_map(
            shard,
            mesh=device_mesh(devices),
            in_specs=(part, PartitionSpec()),
            out_specs=part,
            check_vma=False,  # loops over chosen worlds differ in length between devices
        )
    ), devices


def ours(setup: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
    """A block of play, its steps, and facts about the program that plays it."""
    import time

    import jax

    env = make_world(setup["tasks"], setup["side"])
    config = env.default_params()
    program, devices = spread_play(env, setup["batch"], setup["steps"], setup["action"])
    all_keys = jax.random.split(jax.random.key(1), 4096 * devices).reshape(-1, devices)
    keys = iter(all_keys)
    start = time.perf_counter()
    compiled = program.lower(all_keys[0], config).compile()
    seconds = time.perf_counter() - start
    state = jax.eval_shape(partial(env.reset, params=config), jax.random.key(0))[0]
    facts = {
        "devices": devices,
        "compile_seconds": seconds,
        "bytes_per_world": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)),
        "scratch_mb": compiled.memory_analysis().temp_size_in_bytes / 2**20,
        "tasks_mb": sum(x.nbytes for x in jax.tree.leaves(config.tasks)) / 2**20,
    }
    steps = setup["batch"] * setup["steps"]
    return lambda: jax.block_until_ready(compiled(next(keys), config)), steps, facts


if __name__ == "__main__":
    serve({"ours": ours})
