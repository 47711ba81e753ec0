"""Training the robot at each level, and with Brax, as blocks of equal work; its first step."""

import time
from typing import Any

import numpy as np

from benchmarks.robot_learning import PLAIN
from benchmarks.robot_stage import Setup, Stage


def train_config(setup: Setup, level: int) -> Any:
    """Settings of a level with the networks, unrolls and passes that all are measured with."""
    from worldloom.suites.robot.suite import SUITE
    from worldloom.training.config import make_config

    same = ("unroll_length", "num_epochs", "num_minibatches", "hidden")
    return make_config(
        SUITE,
        {
            "env": "biped",
            "world": PLAIN | {"ground": setup.get("ground", "none")},
            "amp": {"weight": 0.0},
            "level": level,
            "devices": setup["devices"] or 1,
            "num_worlds": setup["batch"],
            "chunk": setup["updates"],
            "ppo": {name: setup[name] for name in same},
        },
    )


def own_ppo(level: int, setup: Setup, stage: Stage) -> None:
    """Our PPO at a level: `updates` whole updates are a block."""
    from worldloom.suites.robot.problem import make_problem
    from worldloom.training.loops import make_trainer

    config = train_config(setup, level)
    start = time.perf_counter()
    trainer = make_trainer(config, make_problem(config))
    trainer.advance(1)
    first = time.perf_counter() - start
    stage.play(
        lambda: trainer.advance(setup["updates"]),
        setup["updates"] * trainer.steps_per_iteration,
        devices=config.devices,
        updates=setup["updates"],
        first_update_seconds=first,
        compile_seconds=trainer.compile_seconds,
    )


BRAX_BLOCKS = 1000  # more than anybody asks for: Brax must be told in advance


def brax_ppo(physics: str, setup: Setup, stage: Stage) -> None:
    """Brax's PPO, stopped between its epochs until it is its turn.

    It evaluates nothing and measures its epochs itself ("training/walltime"), without what it does
    between them. Compilation is in its first; the second must be free of it and does not count.
    """
    from worldloom.adapters import brax_ppo
    from worldloom.suites.robot.brax_env import BraxWildRobotWrapper
    from worldloom.suites.robot.brax_trainer import brax_options

    config = train_config(setup, level=4)
    steps = setup["updates"] * config.num_worlds * config.hyper.unroll_length
    walls: list[float] = [0.0]

    def epoch_is_over(_: int, metrics: Any) -> None:
        walls.append(float(metrics["training/walltime"]))
        seconds = walls[-1] - walls[-2]
        if len(walls) == 3:
            first = walls[1]
            stage.ready(
                steps,
                devices=config.devices,
                updates=setup["updates"],
                first_update_seconds=first,
                compile_seconds=first - seconds,
            )
        elif len(walls) > 3:
            stage.done(seconds)

    brax_ppo.train(
        BraxWildRobotWrapper({"physics": physics}),
        BRAX_BLOCKS * steps,
        **brax_options(config),
        num_evals=BRAX_BLOCKS + 1,
        run_evals=False,
        progress_fn=epoch_is_over,
    )


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
    from worldloom.suites.robot.world import world

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
