"""Training the robot at each level, and with Brax, as blocks of equal work; its first step."""

import time
from dataclasses import replace
from typing import Any

import numpy as np

from worldloom.bench.robot_stage import Setup, Stage


def train_config(setup: Setup, level: int) -> Any:
    """Settings of a level with the networks, unrolls and passes that all are measured with."""
    from worldloom.train.robot_config import RobotNetwork, RobotTrainConfig, for_robots

    same = {name: setup[name] for name in ("unroll_length", "num_epochs", "num_minibatches")}
    return RobotTrainConfig(
        level=level,  # pyright: ignore[reportArgumentType]
        devices=setup["devices"] or 1,
        chunk=setup["updates"],
        network=RobotNetwork(hidden=tuple(setup["hidden"])),
        ppo=replace(for_robots(), num_worlds=setup["batch"], **same),
    )


def own_ppo(level: int, setup: Setup, stage: Stage) -> None:
    """Our PPO at a level: `updates` whole updates are a block."""
    from worldloom.train.robot import make_trainer, make_world

    config = train_config(setup, level)
    start = time.perf_counter()
    trainer = make_trainer(config, make_world(config))
    trainer.advance(1)
    first = time.perf_counter() - start
    stage.play(
        lambda: trainer.advance(setup["updates"]),
        setup["updates"] * config.steps_per_update,
        devices=config.devices, updates=setup["updates"], first_update_seconds=first,
        compile_seconds=trainer.compile_seconds,
    )  # fmt: skip


def brax_config(config: Any, updates: int, blocks: int) -> Any:
    """Brax's options for the same networks, unrolls and passes; a block is one of its epochs."""
    from worldloom.train import robot_brax_trainer

    made = robot_brax_trainer.brax_config(config)
    steps = blocks * updates * made.steps_per_update
    # Without its calls to the host: only playing and learning are to be timed.
    return replace(made, num_evals=blocks + 1, num_timesteps=steps, log_training_metrics=False)


BRAX_BLOCKS = 1000  # more than anybody asks for: Brax must be told in advance


def brax_ppo(physics: str, setup: Setup, stage: Stage) -> None:
    """Brax's PPO, stopped between its epochs until it is its turn.

    It evaluates nothing and measures its epochs itself ("training/walltime"), without what it does
    between them. Compilation is in its first; the second must be free of it and does not count.
    """
    from worldloom.envs.robot.world import world
    from worldloom.train.robot_brax import train_brax

    config = train_config(setup, level=4)
    brax = brax_config(config, setup["updates"], BRAX_BLOCKS)
    walls: list[float] = [0.0]

    def epoch_is_over(steps: int, row: dict[str, float]) -> None:
        walls.append(row["training/walltime"])
        seconds = walls[-1] - walls[-2]
        if len(walls) == 3:
            first = walls[1]
            stage.ready(
                setup["updates"] * brax.steps_per_update, devices=config.devices,
                updates=setup["updates"], first_update_seconds=first,
                compile_seconds=first - seconds,
            )  # fmt: skip
        elif len(walls) > 3:
            stage.done(seconds)

    made: Any = physics
    train_brax(world(physics=made), brax, progress=epoch_is_over)


# The first step ----------------------------------------------------------------------------------


def first_step(setup: Setup) -> dict[str, float]:
    """Seconds from nothing but an imported JAX to the first step of control of a batch of worlds.

    In all, and those of its parts: the world with its table of starts, reset, step.
    """
    marks = [time.perf_counter()]
    import jax
    import jax.numpy as jnp

    from worldloom.core.compiling import quick_compile
    from worldloom.core.transforms import batch
    from worldloom.envs.robot.world import world

    options = quick_compile() if setup["physics"] == "mjx" else None
    made = world(physics=setup["physics"])
    worlds = batch(made, setup["batch"])
    marks.append(time.perf_counter())
    key = jax.random.key(0)
    state, _ = jax.block_until_ready(jax.jit(worlds.reset)(key, made.params))
    marks.append(time.perf_counter())
    action = jnp.zeros((setup["batch"], made.robot.num_joints), jnp.float32)
    step = jax.jit(worlds.step, compiler_options=options)
    jax.block_until_ready(step(key, state, action, made.params))
    marks.append(time.perf_counter())
    parts = dict(zip(("world", "reset", "step"), np.diff(marks).tolist(), strict=True))
    return {"seconds": marks[-1] - marks[0]} | parts
