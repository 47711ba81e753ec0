"""Walks over uneven ground: who gets 5 m ahead, and what the ground costs.

Policies are judged on ground of another seed than that which any was trained on. Beside the one
that was trained on uneven ground stands one that was trained on a flat floor, on the same lanes.
"""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import jax

import worldloom
from benchmarks.robot_learning import (
    EVALUATIONS,
    FINAL_RATE,
    TINY,
    TINY_STEPS,
    learned_within,
    steps_within,
)
from worldloom.core.memory import carried, without_memory
from worldloom.suites.robot.evaluate import RobotEvaluator
from worldloom.suites.robot.ground import JUDGED_LEVEL, LEVELS
from worldloom.suites.robot.robustness import Traversed
from worldloom.suites.robot.suite import SUITE
from worldloom.suites.robot.world import world
from worldloom.training.config import TrainConfig, make_config
from worldloom.training.run import Run

EPISODES = 64
UNSEEN = 1000  # added to a seed: the ground that policies are judged on
KIND = "mixed"


def config(ground: str, tiny: bool, minutes: float) -> TrainConfig:
    """The defaults of `worldloom train biped`, on this ground, with a learning rate that falls."""
    given: dict[str, Any] = {"env": "biped", "world": {"ground": ground}}
    if tiny:
        given |= TINY | {"world": TINY["world"] | given["world"], "amp": {"weight": 0.0}}
    steps = 2 * TINY_STEPS if tiny else steps_within(minutes)
    every = -(-steps // EVALUATIONS)
    usual = make_config(SUITE, given | {"steps": steps, "eval_every": every})
    updates = -(-usual.steps // (usual.num_worlds * usual.hyper.unroll_length))
    ppo = given.get("ppo", {}) | {"anneal_updates": updates, "final_learning_rate": FINAL_RATE}
    return make_config(SUITE, given | {"steps": steps, "eval_every": every, "ppo": ppo})


def traversals(run: Run, episodes: int, horizon: int | None = None) -> tuple[Traversed, ...]:
    """How the policy of a run gets over uneven ground that it has not seen, level by level."""
    made, config = run.problem.env.base, run.config
    if not made.task.moves:
        raise ValueError(f"{run.folder} is a run of {made.task.name}, which goes nowhere")
    rules: dict[str, Any] = {"command": tuple(made.params.rules.command.tolist())}
    other = world(
        task=config.settings.task,
        robot=config.settings.robot,
        physics="c",
        ground=KIND,
        seed=config.seed + UNSEEN,
        history=made.task.history,
        horizon=horizon or int(made.params.rules.horizon),
        **rules,
    )
    # A critic that has learned on a flat floor was never shown the ground, which comes last.
    shown = made.task.observation_size(made.robot)[1]

    def act(agents: Any, obs: Any, key: Any, *, explore: float) -> Any:
        seen = without_memory(obs)
        seen = seen.replace(privileged_state=seen.privileged_state[..., :shown])
        return run.trainer.act(agents, carried(seen, obs), key, explore=explore)

    evaluator = RobotEvaluator(other, act, episodes, memory_size=config.memory_size)
    return evaluator.traversals(run.agents, jax.random.key(config.seed))


def ground(
    given: tuple[Path | None, Path | None],
    minutes: float,
    raw: dict[str, Any],
    note: Callable[[str], None],
    tiny: bool = False,
) -> dict[str, Any]:
    """Both policies on the same levels; runs that are not given are trained first.

    given: a run that was trained on uneven ground, and one that was trained on a flat floor.
    """
    raw |= {
        "unit": f"episodes of {EPISODES} that get 5 m ahead, straight on at the highest speed, on "
        "ground of another seed than in training, in the model as it is",
        "level": JUDGED_LEVEL,
        "levels": LEVELS,
        "kind": KIND,
    }
    with tempfile.TemporaryDirectory(prefix="worldloom-ground-") as temporary:
        for name, kind, folder in zip(("uneven", "flat"), (KIND, "none"), given, strict=True):
            part = raw.setdefault(name, {})
            if folder is None:
                stamp = f"bench-ground-{name}-{datetime.now():%Y%m%d-%H%M%S}"
                folder = (Path(temporary) if tiny else Path("runs")) / stamp
                part["training"] = learned_within(
                    minutes, config(kind, tiny, minutes), folder, note
                )
            run = worldloom.load(folder)
            rows = traversals(run, 4 if tiny else EPISODES, 20 if tiny else None)
            part |= {"policy": str(folder), "steps": run.steps}
            part["traversals"] = [asdict(row) for row in rows]
            for row in rows:
                if row.kind == "all":
                    note(f"  trained on {name} ground, {': '.join(row.line())}")
    return raw


def share(part: dict[str, Any]) -> float:
    """The share of traversals on the level that is judged, of all kinds."""
    (row,) = [
        row for row in part["traversals"] if (row["level"], row["kind"]) == (JUDGED_LEVEL, "all")
    ]
    return row["traversed"] / row["episodes"]
