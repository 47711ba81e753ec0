"""`python -m benchmarks.robot_players`: an engine or a trainer in a process of its own."""

import json
import sys
from collections.abc import Callable
from functools import partial

from benchmarks.robot_levels import brax_ppo, own_ppo
from benchmarks.robot_physics import (
    engine_in_jit,
    numpy_loop,
    open_loop_batch,
    open_loop_rollout,
)
from benchmarks.robot_stage import Setup, Stage

PLAYERS: dict[str, Callable[[Setup, Stage], None]] = {
    "rollout": open_loop_rollout,
    "batch": open_loop_batch,
    "numpy": numpy_loop,
    "c_in_jit": partial(engine_in_jit, "c"),
    "mjx_in_jit": partial(engine_in_jit, "mjx"),
    "level1": partial(own_ppo, 1),
    "level2": partial(brax_ppo, "c"),
    "level3": partial(own_ppo, 3),
    "level4": partial(own_ppo, 4),
    "brax_mjx": partial(brax_ppo, "mjx"),
}


def serve() -> None:
    """Plays what the first line asks for; `devices` splits the processor before JAX starts."""
    setup = json.loads(sys.stdin.readline())
    if setup["devices"]:
        from worldloom.core.mesh import split_processor

        split_processor(setup["devices"])
    PLAYERS[setup["player"]](setup, Stage())


if __name__ == "__main__":
    serve()
