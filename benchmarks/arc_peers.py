"""The peers of the arc benchmark, each driven in a process of the peers' environment.

This file is run by its path there and imports nothing of Worldloom. It is told what to set up in
one line of JSON on standard input, and plays one block of steps for each line after that, so that
the blocks of all sides can be taken in turn. Every line is answered with one line of JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

HORIZON = 100  # steps of an episode, as ours


def serve(players: dict[str, Callable[..., Any]]) -> None:
    """Sets up the player that the first line asks for, then plays a block for every line."""
    setup = json.loads(sys.stdin.readline())
    if setup["devices"]:
        flag = f" --xla_force_host_platform_device_count={setup['devices']}"
        os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flag
    answers, sys.stdout = sys.stdout, sys.stderr  # peers print as they please

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    start = time.perf_counter()
    block, steps, facts = players[setup["player"]](setup)
    block()
    package = "worldloom" if setup["player"] == "ours" else setup["player"]
    facts |= {"version": version(package), "setup_seconds": time.perf_counter() - start}
    answer(facts | {"steps": steps})
    for _ in sys.stdin:
        start = time.perf_counter()
        block()
        answer({"seconds": time.perf_counter() - start})


def read_tasks(setup: dict[str, Any]) -> list[dict[str, Any]]:
    with open(setup["tasks"]) as file:
        return json.load(file)


def jaxarc(setup: dict[str, Any]):
    """JaxARC's own way: its wrappers, vmap and a scan; over several devices by shard_map."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec
    from jaxarc.configs import JaxArcConfig
    from jaxarc.configs.dataset_config import DatasetConfig
    from jaxarc.configs.environment_config import EnvironmentConfig
    from jaxarc.configs.grid_initialization_config import GridInitializationConfig
    from jaxarc.envs.environment import Environment
    from jaxarc.types import JaxArcTask
    from jaxarc.wrappers import BboxActionWrapper
    from stoa import AddRNGKey, AutoResetWrapper

    tasks, side, counts = read_tasks(setup), setup["side"], {"train": 10, "test": 3}

    def grids(group, field):
        cells = np.full((len(tasks), counts[group], side, side), -1, np.int32)
        for t, task in enumerate(tasks):
            for p, pair in enumerate(task[group][: counts[group]]):
                grid = np.array(pair[field])
                cells[t, p, : grid.shape[0], : grid.shape[1]] = grid
        return jnp.asarray(cells), jnp.asarray(cells >= 0)

    def number(group):
        return jnp.asarray([len(task[group]) for task in tasks], jnp.int32)

    fields = []
    for group in ("train", "test"):
        fields += [*grids(group, "input"), *grids(group, "output"), number(group)]
    # The same buffer that its loader stacks, in seconds instead of minutes.
    buffer = jax.tree_util.tree_unflatten(
        jax.tree_util.tree_structure(JaxArcTask(*_one_task(jnp, side, counts))),
        [*fields, jnp.arange(len(tasks), dtype=jnp.int32)],
    )
    config = JaxArcConfig(
        environment=EnvironmentConfig(max_episode_steps=HORIZON),
        dataset=DatasetConfig(max_grid_height=side, max_grid_width=side),
        grid_initialization=GridInitializationConfig(
            demo_weight=1.0, permutation_weight=0.0, empty_weight=0.0, random_weight=0.0
        ),
    )
    env = AutoResetWrapper(AddRNGKey(BboxActionWrapper(Environment(config, buffer))))
    steps = setup["steps"]

    def play(key, batch):
        reset_key, play_key = jax.random.split(key)
        states, _ = jax.vmap(env.reset)(jax.random.split(reset_key, batch))

        def one(states, key):
            op_key, row_key, column_key = jax.random.split(key, 3)
            rows = jax.random.randint(row_key, (2, batch), 0, side)
            columns = jax.random.randint(column_key, (2, batch), 0, side)
            action = {
                "operation": jax.random.randint(op_key, (batch,), 0, 35),
                "r1": rows.min(0),
                "c1": columns.min(0),
                "r2": rows.max(0),
                "c2": columns.max(0),
            }
            if setup["action"] == "point":
                action |= {"r2": action["r1"], "c2": action["c1"]}
            states, timestep = jax.vmap(env.step)(states, action)
            seen = jnp.asarray(timestep.observation, jnp.int8).max()
            return states, (seen, timestep.reward.sum())

        _, (seen, reward) = jax.lax.scan(one, states, jax.random.split(play_key, steps))
        return seen.max()[None], reward.sum()[None]

    devices = setup["devices"] or 1
    mesh = Mesh(np.array(jax.devices()[:devices]), ("worlds",))
    spread = jax.jit(
        jax.shard_map(
            lambda keys: play(keys[0], setup["batch"] // devices),
            mesh=mesh,
            in_specs=PartitionSpec("worlds"),
            out_specs=PartitionSpec("worlds"),
            check_vma=False,
        )
        if devices > 1
        else lambda keys: play(keys[0], setup["batch"])
    )
    raw = jax.random.split(jax.random.PRNGKey(1), 10_000 * devices)  # it takes no typed keys
    keys = iter(raw.reshape(-1, devices, *raw.shape[1:]))
    start = time.perf_counter()
    program = spread.lower(next(keys)).compile()
    facts = {"compile_seconds": time.perf_counter() - start, "devices": devices}
    return (
        lambda: jax.block_until_ready(program(next(keys))),
        setup["batch"] * steps,
        facts,
    )


def _one_task(jnp, side, counts):
    for group in ("train", "test"):
        shape = (counts[group], side, side)
        yield from (jnp.zeros(shape, kind) for kind in ("int32", "bool", "int32", "bool"))
        yield 1
    yield jnp.int32(0)


def arcle(setup: dict[str, Any]):
    """ARCLE's O2ARC worlds: one in a loop, or several in Gymnasium's vector of them."""
    import gymnasium
    import numpy as np
    from arcle.envs import O2ARCv2Env
    from arcle.loaders import Loader

    class Tasks(Loader):  # reads `tasks`, below
        def get_path(self, **_):
            return [""]

        def parse(self, **_):
            def arrays(task, group, field):
                return [np.array(pair[field], np.int8) for pair in task[group]]

            return [
                (
                    arrays(t, "train", "input"),
                    arrays(t, "train", "output"),
                    arrays(t, "test", "input"),
                    arrays(t, "test", "output"),
                    {"id": str(i)},
                )
                for i, t in enumerate(tasks)
            ]

    tasks, side, point = read_tasks(setup), setup["side"], setup["action"] == "point"

    class Boxes(gymnasium.ActionWrapper):
        """ARCLE's own box wrapper does not work with Gymnasium 1."""

        def __init__(self, env):
            super().__init__(env)
            self.action_space = gymnasium.spaces.MultiDiscrete([35, side, side, side, side])

        def action(self, action):
            operation, r1, c1, r2, c2 = action
            selection = np.zeros((side, side), np.int8)
            selection[r1 : r2 + 1, c1 : c2 + 1] = 1
            return {"operation": operation, "selection": selection}

    def make():
        env = O2ARCv2Env(data_loader=loader, max_grid_size=(side, side), colors=10, max_trial=1)
        return gymnasium.wrappers.TimeLimit(Boxes(env), HORIZON)

    loader = Tasks()
    rng = np.random.default_rng(0)
    steps, count = setup["steps"], setup["batch"]

    def sample(n):
        rows = np.sort(rng.integers(0, side, (n, 2)))
        columns = np.sort(rng.integers(0, side, (n, 2)))
        if point:
            rows[:, 1], columns[:, 1] = rows[:, 0], columns[:, 0]
        operation = rng.integers(0, 35, n)
        return np.stack([operation, rows[:, 0], columns[:, 0], rows[:, 1], columns[:, 1]], 1)

    if count == 1:
        env = make()
        env.reset(seed=0)

        def block():
            seen = 0
            for _ in range(steps):
                obs, _, terminated, truncated, _ = env.step(sample(1)[0])
                seen = max(seen, int(obs["grid"].max()))
                if terminated or truncated:
                    env.reset()
            return seen
    else:
        kind = "AsyncVectorEnv" if setup.get("processes") else "SyncVectorEnv"
        envs = getattr(gymnasium.vector, kind)([make] * count)
        envs.reset(seed=0)

        def block():
            seen = 0
            for _ in range(steps // count):
                obs, *_ = envs.step(sample(count))
                seen = max(seen, int(obs["grid"].max()))
            return seen

    return block, steps // count * count, {}


if __name__ == "__main__":
    serve({"jaxarc": jaxarc, "arcle": arcle})
