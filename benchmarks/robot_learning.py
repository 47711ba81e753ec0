"""The robot learns to walk and to stand: how well, how soon, and what a motion prior changes."""

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax

from worldloom.report.page import flat
from worldloom.suites.robot.evaluate import RobotEvaluation
from worldloom.suites.robot.problem import LADDER_KEY
from worldloom.suites.robot.suite import READY, STEPS_PER_UPDATE, STYLE_WEIGHT, SUITE
from worldloom.training.config import TrainConfig, make_config
from worldloom.training.driver import EVALUATION_KEY, Hook
from worldloom.training.run import Run, train

FALLS = 0.1  # of the episodes at most are survived where holding the home pose counts as falling
GOOD = 0.9  # of the episodes, as fast as was asked and without a fall
FINAL_RATE = 3e-5  # of learning, in the last update
# Steps of training for a minute of time: fewer than two cores do, so that the learning rate comes
# to its end before the time does.
STEPS_PER_MINUTE = 50 * STEPS_PER_UPDATE
EVALUATIONS = 6  # in the course of such a training
KEPT = ("good", "survived", "error", "mean", "gait_distance")
TINY: dict[str, Any] = {
    "num_worlds": 4,
    "chunk": 1,
    "eval_episodes": 2,
    "world": {"horizon": 120},
    "ppo": {"unroll_length": 4, "num_epochs": 1, "num_minibatches": 2, "hidden": (8,)},
}
# A walk without all that makes it ready for a robot, so that figures stay those of one task.
PLAIN = dict.fromkeys(READY) | {"push_force": None, "randomise": 0.0, "noise": 0.0}
TINY_STEPS = 16  # of an iteration
TINY_AMP = {"batch_size": 4, "replay_rows": 8, "replay_adds": 4, "hidden": (8,)}


def settings(name: str, tiny: bool = False, **changes: Any) -> TrainConfig:
    """The settings of `walk`, `walk_amp`, `stand` or `joystick`.

    They are the defaults of `worldloom train biped`, but for the learning rate, which falls in the
    course of the run: it then ends on a policy that is as good as any before it. Walks are without
    randomisation, noise and pushes.
    """
    given = {"env": "biped", "task": name.removesuffix("_amp")}
    given |= {"world": PLAIN} if given["task"] == "walk" else {}
    amp = {"weight": STYLE_WEIGHT if name == "walk_amp" else 0.0}
    if tiny:
        amp |= TINY_AMP if amp["weight"] else {}
        changes = {n: min(value, 2 * TINY_STEPS) for n, value in changes.items()}
        world = {"world": given.get("world", {}) | TINY["world"]}
        given |= TINY | {"steps": 2 * TINY_STEPS} | world
    config = make_config(SUITE, given | {"amp": amp} | changes)
    updates = -(-config.steps // (config.num_worlds * config.hyper.unroll_length))
    annealed = replace(config.hyper, anneal_updates=updates, final_learning_rate=FINAL_RATE)
    return replace(config, hyper=annealed)


def command(config: TrainConfig) -> str:
    """The command that trains with these settings."""
    task = config.settings.task
    usual = flat(make_config(SUITE, {"env": config.env, "task": task}).to_dict())
    usual |= {} if task == "walk" else {"task": "walk"}
    chosen = {n: value for n, value in flat(config.to_dict()).items() if value != usual[n]}
    flags = [f"--{name.replace('_', '-')} {_words(value)}" for name, value in chosen.items()]
    return " ".join([f"worldloom train {config.env}", *flags])


def _words(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class Curve(Hook):
    """Every evaluation, with the steps and the time it came after."""

    def __init__(self, note: Callable[[str], None]):
        self.rows: list[dict[str, Any]] = []
        self._note = note

    def on_evaluation(self, run: Run, evaluation: RobotEvaluation) -> None:
        scores = evaluation.to_dict()
        row = {"steps": run.steps, "seconds": run.train_seconds}
        self.rows.append(row | {name: scores[name] for name in KEPT})
        self._note(
            f"  {run.train_seconds:.0f} s: {scores['good']:.0%} good, {scores['survived']:.0%} "
            f"survived, error {scores['error']:.3f} m/s"
        )


class Deadline(Hook):
    """Ends a run as Ctrl-C does, after the chunk in which its minutes are over."""

    def __init__(self, minutes: float):
        self._seconds, self._end = 60.0 * minutes, float("inf")

    def on_start(self, run: Run) -> None:
        self._end = time.perf_counter() + self._seconds

    def on_iterations(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> None:
        late = time.perf_counter() > self._end and run.iteration < run.plan.total
        if late and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)


def learned_within(
    minutes: float, config: TrainConfig, folder: Path, note: Callable[[str], None]
) -> dict[str, Any]:
    """Trains for so many minutes at most, in a folder of its own."""
    run = train(SUITE, config, folder, report=False, hooks=[Curve(note), Deadline(minutes)])
    return {
        "run": str(folder),
        "command": command(config),
        "minutes_at_most": minutes,
        "steps": run.steps,
        "seconds": run.train_seconds,
        "out_of_time": run.interrupted,
    }


def steps_within(minutes: float) -> int:
    """Steps of training for so many minutes."""
    return max(1, round(minutes * STEPS_PER_MINUTE / STEPS_PER_UPDATE)) * STEPS_PER_UPDATE


def learn(
    name: str, minutes: float, note: Callable[[str], None], tiny: bool = False, **changes: Any
) -> dict[str, Any]:
    """Trains once, for `minutes` at the most, and tells how it went and where it ended."""
    config = settings(name, tiny, **changes)
    curve, start = Curve(note), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="worldloom-robot-") as folder:
        hooks = [curve, Deadline(minutes)]
        done = train(SUITE, config, Path(folder) / "run", report=False, hooks=hooks)
    seconds = time.perf_counter() - start
    final: Any = done.evaluation
    if done.interrupted or final is None:
        key = jax.random.key(EVALUATION_KEY + config.seed)
        final = done.evaluator(done.agents, key)
        curve.on_evaluation(done, final)
    result = {
        "command": command(config),
        "settings": config.to_dict(),
        "minutes_at_most": minutes,
        "out_of_time": done.interrupted,
        "curve": curve.rows,
        "seconds_to_good": seconds_to(curve.rows, GOOD),
        "final": final.to_dict(),
        "episodes": episodes(final),
        "timing": done.timing(),
        "seconds_in_all": seconds,
    }
    if config.settings.task != "walk":
        evaluator: Any = done.evaluator
        key = jax.random.key(LADDER_KEY + config.seed)
        rungs = final.rungs or evaluator.ladder(done.agents, key)
        result["ladder"] = [asdict(rung) for rung in rungs]
    return result


def episodes(evaluation: RobotEvaluation) -> list[dict[str, Any]]:
    """Each episode of an evaluation: what was asked, what it did."""
    forward = evaluation.command[:, 0], evaluation.speed[:, 0]
    columns = (*forward, evaluation.lengths, evaluation.fell)
    return [
        {"command": float(c), "speed": float(v), "steps": int(n), "fell": bool(f)}
        for c, v, n, f in zip(*columns, strict=True)
    ]


def seconds_to(rows: Sequence[Mapping[str, Any]], good: float) -> float | None:
    """Seconds of training until the first evaluation with so large a share of good episodes."""
    return next((row["seconds"] for row in rows if row["good"] >= good), None)


def taken_share(ladder: Sequence[Mapping[str, Any]]) -> float | None:
    """The best share of episodes survived on a rung where holding the home pose falls."""
    hard = [rung["survived"] for rung in ladder if rung["held"] <= FALLS]
    return max(hard, default=None)
