"""Our side of the plant benchmark's speeds, and the processes that take turns at them.

`python -m benchmarks.plant_speed` makes blocks of updates or of steps when it is told to.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import plant_arithmetic, plant_peers
from benchmarks.arc_peers import serve
from benchmarks.players import Player, take_turns
from worldloom.training.timer import Timing

PEERS = Path(".venv-peers-torch")
OBS_SIZE, ACTION_SIZE = 17, 6
ALGORITHMS = ("td3bc", "iql", "cql")

Setup = dict[str, Any]
Block = tuple[Callable[[], Any], int, dict[str, Any]]


# Processes ---------------------------------------------------------------------------------------


def ours(part: str, **setup: Any) -> Player:
    """One of `PARTS` in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.plant_speed"]
    return Player(argv, {"player": "ours", "part": part, "devices": None} | setup)


def d3rlpy(**setup: Any) -> Player:
    """d3rlpy in the environment that `make peers` sets up for it."""
    python = PEERS / "bin/python"
    if not python.exists():
        raise ValueError(f"{python} is not there: `make peers` sets up what is measured against")
    return Player([str(python), plant_peers.__file__], {"player": "d3rlpy"} | setup)


def timed(
    makers: Mapping[str, Callable[[], Player]], repeats: int, note: Callable[[str], None]
) -> tuple[dict[str, Timing], dict[str, dict[str, Any]]]:
    """Seconds a piece of work of each player, blocks taken in turn; and facts about each."""
    with ExitStack() as stack:
        ready: dict[str, Player] = {}
        for name, make in makers.items():
            ready[name] = stack.enter_context(make())
            note(f"  {name}: ready")
        taken = take_turns(ready, repeats)
    for name, timing in taken.items():
        note(f"  {name}: {1.0 / timing.median:,.1f} a second")
    return taken, {name: player.facts for name, player in ready.items()}


# Updates -----------------------------------------------------------------------------------------


def made_algorithm(name: str, hidden: tuple[int, ...], samples: int) -> Any:
    """An algorithm with its usual numbers and these sizes."""
    from worldloom import algos

    algorithm = algos.get(name)
    sizes = {"num_samples": samples} if name == "cql" else {}
    return algorithm.make(algorithm.config(hidden=tuple(hidden), **sizes))


def learn(setup: Setup) -> Block:
    """A block of updates in one call of a compiled program, for one learner or several seeds.

    Rows are drawn inside, means of all metrics come back to the host.
    """
    import jax

    from worldloom.algos.offline import make_table
    from worldloom.replay.dataset import from_columns
    from worldloom.training.loops.offline import OfflineLoop
    from worldloom.training.trainer import Trainer

    columns = plant_peers.random_data(setup["rows"], setup["obs_size"], setup["action_size"])
    algorithm = made_algorithm(setup["algo"], setup["hidden"], setup["samples"])
    loop: Any = OfflineLoop(algorithm, setup["batch"], setup["updates"])
    seeds, table = setup["seeds"], make_table(from_columns(**columns))
    trainer = Trainer(loop, (table,), chunk=1)
    if seeds > 1:
        keys = jax.vmap(jax.random.key)(jax.numpy.arange(seeds))
        trainer.load(jax.jit(loop.init_many)(keys, table))
    trainer.advance(1)
    facts = {
        "compile_seconds": trainer.compile_seconds,
        "seeds": seeds,
        "updates_a_call": setup["updates"],
    }
    return lambda: trainer.advance(1), setup["updates"] * seeds, facts


# Steps -------------------------------------------------------------------------------------------


def steps(setup: Setup) -> Block:
    """Steps of many plants in one compiled scan, with actions that are given.

    Plants start anew when an episode ends; all that is seen is summed, rewards and margins too, so
    that none of it can be left out. With several devices the plants are shared out among them.
    """
    import math

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from worldloom import suites
    from worldloom.core import draws
    from worldloom.core.mesh import BATCH_AXIS, device_mesh
    from worldloom.core.transforms import autoreset_batch
    from worldloom.training.timer import compiled

    env = suites.make("dmsd")
    params = env.default_params()
    devices = math.gcd(jax.device_count(), setup["batch"])
    each = setup["batch"] // devices
    # A start for every plant in one go: they all end in the same step.
    worlds = autoreset_batch(env, each, chunk=each)

    def start(keys):
        return worlds.reset(keys[0], params)[0]

    def play(keys, states, actions):
        def one(carry, action):
            states, key, seen = carry
            key, step_key = draws.split(key)
            states, after = worlds.step(step_key, states, action, params)
            margins = after.info.safety.margins
            return (states, key, seen + after.obs.sum() + after.reward.sum() + margins.sum()), None

        carry = (states, keys[0], jnp.float32(0.0))
        (states, key, seen), _ = jax.lax.scan(one, carry, actions)
        return states, key[None], seen[None]

    keys = jax.random.split(jax.random.key(0), devices)
    actions = jnp.asarray(given_actions(setup["steps_each"], setup["batch"]))
    begin, go = start, play
    if devices > 1:
        mesh = device_mesh(devices)
        part, rows = PartitionSpec(BATCH_AXIS), PartitionSpec(None, BATCH_AXIS)
        spread: dict[str, Any] = {"mesh": mesh, "out_specs": part, "check_vma": False}
        begin = jax.shard_map(start, in_specs=(part,), **spread)
        go = jax.shard_map(play, in_specs=(part, part, rows), **spread)
        keys = jax.device_put(keys, NamedSharding(mesh, part))
        actions = jax.device_put(actions, NamedSharding(mesh, rows))
    states = jax.jit(begin)(keys)
    played, seconds = compiled(go, keys, states, actions)

    def block() -> float:
        nonlocal states, keys
        states, keys, seen = played(keys, states, actions)
        return float(np.asarray(seen).sum())

    return (
        block,
        setup["batch"] * setup["steps_each"],
        {"devices": devices, "compile_seconds": seconds},
    )


def loop(setup: Setup) -> Block:
    """Steps of one plant after the other in numpy, with the first of the same actions."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # where the oracles are
    from oracles.plant import DmsdLoop

    count = setup["steps_each"]
    actions = given_actions(count, setup["batch"])[:, 0]
    plant = DmsdLoop()

    def block() -> float:
        seen = 0.0
        for action in actions:
            told = plant.step(action)
            obs = plant.reset() if told.truncated else told.obs
            seen += float(obs.sum()) + told.reward + float(told.margins.sum())
        return seen

    return block, count, {}


def given_actions(steps: int, batch: int) -> Any:
    """Actions (steps, batch, 2) in [-1, 1]; a plant of the same number gets the same."""
    import numpy as np

    rng = np.random.default_rng(1)
    # One plant after the other, so that its actions do not depend on how many there are.
    drawn = rng.uniform(-1.0, 1.0, (batch, steps, 2))
    return np.ascontiguousarray(drawn.swapaxes(0, 1), np.float32)


PARTS: dict[str, Callable[[Setup], Block]] = {
    "learn": learn,
    "multiply": plant_arithmetic.multiply,
    "steps": steps,
    "loop": loop,
}


if __name__ == "__main__":
    serve({"ours": lambda setup: PARTS[setup["part"]](setup)})
