"""Our side of the arc benchmark: random play in compiled worlds, and what it takes.

`python -m benchmarks.arc_worlds` serves blocks of play the way the peers do.
"""

import math
from functools import partial
from typing import Any

from benchmarks.arc_peers import serve

HORIZON = 100


def make_world(tasks: str, side: int | None) -> Any:
    """The world that is measured: one trial, 100 steps, all 35 operations."""
    from worldloom.suites.arc.sources import load
    from worldloom.suites.arc.world import world

    if tasks.endswith(".json"):  # the very tasks that the peers are given
        import json

        from worldloom.suites.arc.tasks import read_task

        with open(tasks) as file:
            read = [read_task(str(i), task, tasks) for i, task in enumerate(json.load(file))]
        from worldloom.suites.arc.tasks import TaskSet

        found = TaskSet(tuple(read))
    else:
        found = load(tasks, max_size=side)
    shape = None if side is None else (side, side)
    return world(found.buffer(shape), action="box", max_steps=HORIZON, max_trials=1)


def random_play(
    env: Any, states: Any, config: Any, key: Any, steps: int, action: str, look: Any = None
) -> Any:
    """`steps` random actions in each of the worlds, which reset themselves; their states after it.

    Consumes every reward and every cell of the int8 working grid that an agent would see. `look`
    is called back on the host in every step, for those who want to know what that costs.
    """
    import jax

    from worldloom.core import rollout
    from worldloom.core.transforms import autoreset_batch
    from worldloom.suites.arc.episodes import random_boxes

    worlds = autoreset_batch(env, states.pair.shape[0])

    def choose(state, memory, key):
        boxes = random_boxes(key, state.operation_mask, config.grid_shape)
        if action == "point":
            boxes = boxes.replace(r2=boxes.r1, c2=boxes.c1)
        return boxes, memory

    def step(state, action, key):
        state, after = worlds.step(key, state, action, config)
        seen = after.obs.grid.max()
        if look is not None:
            jax.debug.callback(look, seen)
        return state, (seen, after.reward.max())

    states, _, seen = rollout.play_steps(choose, step, key, states, (), steps)
    return states, seen


def spread_play(env: Any, batch: int, steps: int, action: str) -> tuple[Any, Any, int]:
    """`random_play` with the worlds laid over all devices, and what starts it.

    start(keys, config) -> states, play(keys, states, config) -> (states, what was seen), both
    with a key for each device; and the number of devices.
    """
    import jax
    from jax.sharding import PartitionSpec

    from worldloom.core.mesh import BATCH_AXIS
    from worldloom.core.transforms import autoreset_batch

    devices = math.gcd(jax.device_count(), batch)
    worlds = autoreset_batch(env, batch // devices)

    def start(keys, config):
        return worlds.reset(keys[0], config)[0]

    def play(keys, states, config):
        states, seen = random_play(env, states, config, keys[0], steps, action)
        return states, jax.tree.map(lambda x: x[None], seen)

    part, all_ = PartitionSpec(BATCH_AXIS), PartitionSpec()
    return (
        over_devices(start, devices, part, all_),
        over_devices(play, devices, part, part, all_),
        devices,
    )


def over_devices(function: Any, devices: int, *in_specs: Any) -> Any:
    """A function of a part of the worlds, compiled for all of them on so many devices."""
    import jax
    from jax.sharding import PartitionSpec

    from worldloom.core.mesh import BATCH_AXIS, device_mesh

    if devices == 1:
        return jax.jit(function)
    # check_vma: loops over chosen worlds differ in length between devices.
    return jax.jit(
        jax.shard_map(
            function,
            mesh=device_mesh(devices),
            in_specs=in_specs,
            out_specs=PartitionSpec(BATCH_AXIS),
            check_vma=False,
        )
    )


def ours(setup: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
    """A block of play, its steps, and facts about the programs that start and play it.

    Every block goes on where the one before it stopped.
    """
    import jax

    from worldloom.core.compiling import quick_compile
    from worldloom.training.timer import compiled

    # LLVM's later passes find nothing in loops over words of bits: a tenth less to compile.
    options = quick_compile(xla_backend_optimization_level=1)
    env = make_world(setup["tasks"], setup["side"])
    config = env.default_params()
    start, play, devices = spread_play(env, setup["batch"], setup["steps"], setup["action"])
    all_keys = jax.random.split(jax.random.key(1), 4096 * devices).reshape(-1, devices)
    keys = iter(all_keys[1:])
    started, start_seconds = compiled(start, all_keys[0], config, compiler_options=options)
    states = started(all_keys[0], config)
    played, seconds = compiled(play, all_keys[0], states, config, compiler_options=options)
    state = jax.eval_shape(partial(env.reset, params=config), jax.random.key(0))[0]
    facts = {
        "devices": devices,
        "compile_seconds": seconds,
        "compile_reset_seconds": start_seconds,
        "bytes_per_world": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)),
        "scratch_mb": played.memory_analysis().temp_size_in_bytes / 2**20,
        "tasks_mb": sum(x.nbytes for x in jax.tree.leaves(config.tasks)) / 2**20,
    }

    def block():
        nonlocal states
        states, seen = jax.block_until_ready(played(next(keys), states, config))
        return seen

    return block, setup["batch"] * setup["steps"], facts


if __name__ == "__main__":
    serve({"ours": ours})
