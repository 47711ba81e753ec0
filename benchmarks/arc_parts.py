"""What design choices of the arc worlds are worth, each measured by taking it away."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.arc_worlds import make_world, random_play
from worldloom.core import rollout
from worldloom.suites.arc import operations
from worldloom.suites.arc.actions import decode
from worldloom.suites.arc.environment import (
    batch_reset,
    batch_step,
    batch_step_donating,
    reset_worlds,
    step_worlds,
)
from worldloom.suites.arc.episodes import random_boxes
from worldloom.suites.arc.operations import Canvas
from worldloom.suites.arc.types import NUM_OPERATIONS
from worldloom.training.timer import compiled, interleave

STEPS = 50  # in a block of edits
PLAY_STEPS = 1000  # in a block of play: a short one after another program finds its caches cold


def recompilations(batch: int) -> int:
    """How often `batch_step` is traced again while actions, states and rewards change."""
    config = make_world("arc-agi-1", 30).default_params()
    traces = 0

    def counted(state, action, config):
        nonlocal traces
        traces += 1
        return step_worlds(state, action, config)

    step = jax.jit(counted)
    keys = jax.random.split(jax.random.key(0), batch)
    state, _ = batch_reset(keys, config)
    for i in range(5):
        action = random_boxes(jax.random.key(i), state.operation_mask, config.grid_shape)
        state, *_ = step(state, action, config.replace(step_penalty=-0.01 * i))
    return traces - 1


def compile_seconds(batch: int) -> dict[str, float]:
    """How long the functions for users take to trace and compile, cold."""
    config = make_world("arc-agi-1", 30).default_params()
    keys = jax.random.split(jax.random.key(0), batch)
    start, reset_seconds = compiled(reset_worlds, keys, config)
    state, _ = start(keys, config)
    action = random_boxes(keys[0], state.operation_mask, config.grid_shape)
    return {
        "batch_reset": reset_seconds,
        "batch_step": compiled(step_worlds, state, action, config)[1],
    }


def switch_step(state, action, config):
    """The grids after one operation, by a switch over operations under vmap: all are computed."""
    tasks = config.tasks
    operation, selection = decode(action, tasks.grid_shape, tasks.words)

    def one(canvas, operation, plane, box, valid, pair):
        many = jax.tree.map(lambda x: x[None], (canvas, plane, box, valid, pair))

        def branch(number):
            def run(many):
                canvas, plane, box, valid, pair = many
                chosen = selection._replace(plane=plane, box=type(selection.box)(*box), valid=valid)
                number_ = jnp.full(pair.shape, number, jnp.int32)
                return operations.edit(Canvas(*canvas), number_, chosen, pair, tasks)

            return run

        kinds = [branch(number) for number in range(NUM_OPERATIONS)]
        new = jax.lax.switch(operation, kinds, many)
        return jax.tree.map(lambda x: x[0], new)

    canvas = Canvas(state.grid, state.size, state.clipboard, state.clipboard_size)
    return jax.vmap(one)(
        canvas, operation, selection.plane, selection.box, selection.valid, state.pair
    )


def _grids(state, action, config):
    tasks = config.tasks
    operation, selection = decode(action, tasks.grid_shape, tasks.words)
    canvas = Canvas(state.grid, state.size, state.clipboard, state.clipboard_size)
    return operations.edit(canvas, operation, selection, state.pair, tasks)


def _repeat(step: Callable, state: Any, key: Any, config: Any) -> Any:
    """`STEPS` random operations by `step`, which gives new canvases."""

    def choose(state, memory, key):
        return random_boxes(key, state.operation_mask, config.grid_shape), memory

    def edit(state, action, _):
        return state.replace(**step(state, action, config)._asdict()), ()

    return rollout.play_steps(choose, edit, key, state, (), STEPS)[0].grid


def ablation(batch: int, repeats: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Steps per second with and without: one formulation, no callback, donated states."""
    env = make_world("arc-agi-1", 30)
    config = env.default_params()
    state, _ = batch_reset(jax.random.split(jax.random.key(0), batch), config)
    key = jax.random.key(1)
    programs, seconds = {}, {}

    def play(state, key, config, look):
        return random_play(env, state, config, key, PLAY_STEPS, "box", look)

    for name, function, args in (
        ("one_formulation", partial(_repeat, _grids), (state, key, config)),
        ("switch", partial(_repeat, switch_step), (state, key, config)),
        ("no_callback", partial(play, look=None), (state, key, config)),
        ("callback_per_step", partial(play, look=np.asarray), (state, key, config)),
    ):
        program, seconds[name] = compiled(function, *args)
        programs[name] = partial(program, *args)
        note(f"  {name}: compiled in {seconds[name]:.1f} s")
    action = random_boxes(key, state.operation_mask, config.grid_shape)

    def host_loop(step):
        own = jax.tree.map(jnp.copy, state)
        for _ in range(PLAY_STEPS):
            own, *_ = step(own, action, config)
        return own

    programs["host_loop"] = partial(host_loop, batch_step)
    programs["host_loop_donating"] = partial(host_loop, batch_step_donating)
    for name in ("host_loop", "host_loop_donating"):
        jax.block_until_ready(programs[name]())  # compiles
    # A callback may still be on its way when the results are there.
    played = programs["callback_per_step"]
    programs["callback_per_step"] = lambda: (jax.block_until_ready(played()), jax.effects_barrier())
    timed = interleave(programs, repeats)
    return {
        "batch": batch,
        "steps_per_second": {
            name: batch
            * (STEPS if name in ("one_formulation", "switch") else PLAY_STEPS)
            / timing.median
            for name, timing in timed.items()
        },
        "compile_seconds": seconds,
    }
