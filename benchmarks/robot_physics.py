"""The robot's physics alone, in every engine: the same robots, targets and number of steps."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.robot_stage import Setup, Stage

SWAY, SWAY_STEPS = 0.05, 40  # rad around the home pose, and steps of control in a period


def scene(name: str, batch: int, steps: int) -> tuple[Any, Any, np.ndarray]:
    """An engine, robots near the home pose as it has them (B, ...), and targets (steps, B, n)."""
    import jax

    from worldloom.suites.robot import starts
    from worldloom.suites.robot.engines import make_engine
    from worldloom.suites.robot.model import biped
    from worldloom.suites.robot.world import NUM_STARTS

    engine: Any = make_engine(name, biped())  # pyright: ignore[reportArgumentType]
    table = starts.around_home(engine, NUM_STARTS, seed=0).physics
    rows = np.arange(batch) % NUM_STARTS
    robot = engine.robot
    phase = np.random.default_rng(0).uniform(0.0, 1.0, (batch, robot.num_joints))
    time_ = np.arange(steps)[:, None, None] / SWAY_STEPS
    targets = robot.home_joints + SWAY * np.sin(2.0 * np.pi * (time_ + phase))
    targets = np.clip(targets, robot.lower, robot.upper).astype(np.float32)
    return engine, jax.tree.map(lambda x: np.asarray(x)[rows], table), targets


def fastest(ways: dict[str, Callable[[], Any]]) -> tuple[Callable[[], Any], dict[str, Any]]:
    """The fastest of several ways to do the same, each tried three times; facts about it."""
    from worldloom.training.timer import interleave

    seconds = {name: timing.median for name, timing in interleave(ways, repeats=3).items()}
    best = min(seconds, key=lambda name: seconds[name])
    return ways[best], {"way": best, "seconds_of_ways": seconds}


def open_loop_rollout(setup: Setup, stage: Stage) -> None:
    """`mujoco.rollout` on a pool of threads, as fast as it goes: arrays made before, no checks."""
    import mujoco
    from mujoco.rollout import Rollout

    batch, steps, threads = setup["batch"], setup["steps_in_block"], os.cpu_count() or 1
    engine, physics, targets = scene("numpy", batch, steps)
    model, substeps = engine.robot.model, engine.robot.substeps
    rows = engine.unpack(physics.full)
    moving = model.nq + model.nv
    begin = np.concatenate([np.zeros((batch, 1)), rows[:, :moving]], axis=1)  # time comes first
    warm = np.ascontiguousarray(rows[:, moving:])
    control = np.repeat(targets.astype(np.float64).swapaxes(0, 1), substeps, axis=1)
    parts = [np.ascontiguousarray(x) for x in np.split(control, steps, axis=1)]
    data = [mujoco.MjData(model) for _ in range(threads)]  # pyright: ignore[reportAttributeAccessIssue]
    pool = Rollout(nthread=threads)

    def recorded(count: int) -> tuple[np.ndarray, np.ndarray]:
        return np.empty((batch, count, 1 + moving)), np.empty((batch, count, model.nsensordata))

    models = [model] * batch

    def run(begin: np.ndarray, control: np.ndarray, states: np.ndarray, sensors: Any) -> np.ndarray:
        pool.rollout(
            models,
            data,
            begin,
            control,
            skip_checks=True,
            nstep=control.shape[1],
            initial_warmstart=warm,
            state=states,
            sensordata=sensors,
        )
        return states[:, -1]

    many, few = recorded(steps * substeps), recorded(substeps)

    def step_by_step() -> np.ndarray:
        state = begin
        for part in parts:
            state = np.ascontiguousarray(run(state, part, *few))
        return state

    block, facts = fastest(
        {
            "one call": lambda: run(begin, control, *many),
            "one call, states alone": lambda: run(begin, control, many[0], None),
            "a call for each step of control": step_by_step,
        }
    )
    stage.play(block, batch * steps, threads=threads, height=_height(block()[:, 1:]), **facts)


def open_loop_batch(setup: Setup, stage: Stage) -> None:
    """`mujoco.batch.Batch`, the pool of threads that our C engine calls too."""
    from mujoco.batch import Batch

    batch, steps, threads = setup["batch"], setup["steps_in_block"], os.cpu_count() or 1
    engine, physics, targets = scene("numpy", batch, steps)
    model, substeps = engine.robot.model, engine.robot.substeps
    rows = engine.unpack(physics.full)
    control = np.repeat(targets.astype(np.float64).swapaxes(0, 1), substeps, axis=1)
    robots = Batch(model, batch, nthread=threads)
    robots.bind("sensordata")

    def begin() -> None:
        robots.qpos[:], robots.qvel[:] = rows[:, : model.nq], rows[:, model.nq : -model.nv]
        robots.qacc_warmstart[:] = rows[:, -model.nv :]

    def one_call() -> np.ndarray:
        begin()
        robots.rollout(nstep=steps * substeps, control=control, record=["sensordata"])
        return robots.qpos

    def step_by_step() -> np.ndarray:
        begin()
        for target in targets:
            robots.ctrl[:] = target
            robots.step(nstep=substeps)
        return robots.qpos

    block, facts = fastest({"one call": one_call, "a call for each step of control": step_by_step})
    stage.play(block, batch * steps, threads=threads, height=_height(block()), **facts)


def numpy_loop(setup: Setup, stage: Stage) -> None:
    """`mj_step`, robot after robot."""
    engine, physics, targets = scene("numpy", setup["batch"], setup["steps_in_block"])
    force = np.zeros((setup["batch"], 2))

    def block() -> Any:
        state = physics
        for target in targets:
            state = engine.step(state, target, force, None)
        return state

    height = _height(block().reading.qpos)
    stage.play(block, setup["batch"] * len(targets), threads=1, height=height)


def engine_in_jit(name: str, setup: Setup, stage: Stage) -> None:
    """One of our engines in a compiled scan, the robots laid over all devices of the process."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from worldloom.core.compiling import quick_compile
    from worldloom.core.mesh import BATCH_AXIS, device_mesh
    from worldloom.training.timer import compiled

    engine, physics, targets = scene(name, setup["batch"], setup["steps_in_block"])

    def play(physics: Any, targets: Any) -> Any:
        force = jnp.zeros((targets.shape[1], 2), jnp.float32)

        def one(physics, target):
            return engine.step(physics, target, force, None), None

        return jax.lax.scan(one, physics, targets)[0]

    devices = setup["devices"] or 1
    if devices > 1:
        rows, second = PartitionSpec(BATCH_AXIS), PartitionSpec(None, BATCH_AXIS)
        play = jax.shard_map(
            play,
            mesh=device_mesh(devices),
            in_specs=(rows, second),
            out_specs=rows,
            check_vma=False,
        )
    args = jax.tree.map(jnp.asarray, (physics, targets))
    options = quick_compile() if name == "mjx" else None
    program, seconds = compiled(play, *args, compiler_options=options)

    def block() -> Any:
        return jax.block_until_ready(program(*args))

    stage.play(
        block,
        setup["batch"] * setup["steps_in_block"],
        devices=devices,
        threads=getattr(engine, "threads", None),
        compile_seconds=seconds,
        height=_height(np.asarray(block().reading.qpos)),
    )


def _height(qpos: np.ndarray) -> float:
    """Of the bases at the end, on average: the same for all who computed the same."""
    return float(qpos[:, 2].mean())
