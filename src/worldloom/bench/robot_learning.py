"""The robot learns to walk and to stand: how well, how soon, and what a motion prior changes."""

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from worldloom.algos.amp import AMPConfig
from worldloom.train.driver import EVALUATION_KEY, Hook
from worldloom.train.robot import LADDER_KEY, RobotRun, run
from worldloom.train.robot_config import RobotNetwork, RobotRules, RobotTrainConfig
from worldloom.train.robot_evaluate import RobotEvaluation

FALLS = 0.1  # of the episodes at most are survived where holding the home pose counts as falling
GOOD = 0.9  # of the episodes, as fast as was asked and without a fall
FINAL_RATE = 3e-5  # of learning, in the last update
KEPT = ("good", "survived", "error", "return", "gait_distance")


def settings(name: str, tiny: bool = False, **changes: Any) -> RobotTrainConfig:
    """The settings of `walk`, `walk_amp` or `stand`.

    They are the defaults of `worldloom train biped`, but for the learning rate, which falls in the
    course of the run: it then ends on a policy that is as good as any before it.
    """
    config = RobotTrainConfig(task="stand" if name == "stand" else "walk")
    if name == "walk_amp":
        config = replace(config, amp=AMPConfig())
    if tiny:
        ppo = replace(config.ppo, num_worlds=4, unroll_length=4, num_epochs=1, num_minibatches=2)
        amp = config.amp
        if amp.weight:
            amp = replace(amp, batch_size=4, replay_rows=8, replay_adds=4, hidden=(8,))
        config = replace(
            config, updates=2, chunk=1, eval_episodes=2, world=RobotRules(horizon=120),
            network=RobotNetwork(hidden=(8,)), ppo=ppo, amp=amp,
        )  # fmt: skip
        changes = {n: min(value, 2) for n, value in changes.items()}
    config = replace(config, **changes)
    ppo = replace(config.ppo, anneal_updates=config.updates, final_learning_rate=FINAL_RATE)
    return replace(config, ppo=ppo)


def command(config: RobotTrainConfig) -> str:
    """The command that trains with these settings, or with all but the tiny ones."""
    usual = RobotTrainConfig()
    wanted: dict[str, Any] = {"task": config.task}
    if config.amp.weight:
        wanted["amp.weight"] = config.amp.weight
    wanted |= {
        "updates": config.updates,
        "eval-every": config.eval_every,
        "ppo.anneal-updates": config.ppo.anneal_updates,
        "ppo.final-learning-rate": config.ppo.final_learning_rate,
    }
    kept = {"task": usual.task, "updates": usual.updates, "eval-every": usual.eval_every}
    told = [f"--{name} {x}" for name, x in wanted.items() if x != kept.get(name)]
    return " ".join(["worldloom train biped", f"--seed {config.seed}", *told])


class Curve(Hook):
    """Every evaluation, with the update, the steps and the time it came after."""

    def __init__(self, note: Callable[[str], None]):
        self.rows: list[dict[str, Any]] = []
        self._note = note

    def on_evaluation(self, run: RobotRun, evaluation: RobotEvaluation) -> None:
        told = evaluation.to_dict()
        row = {"update": run.epoch, "steps": run.steps, "seconds": run.train_seconds}
        self.rows.append(row | {name: told[name] for name in KEPT})
        self._note(
            f"  {run.train_seconds:.0f} s: {told['good']:.0%} good, {told['survived']:.0%} "
            f"survived, error {told['error']:.3f} m/s"
        )


class Deadline(Hook):
    """Ends a run as Ctrl-C does, after the chunk in which its minutes are over."""

    def __init__(self, minutes: float):
        self._seconds, self._end = 60.0 * minutes, float("inf")

    def on_start(self, run: RobotRun) -> None:
        self._end = time.perf_counter() + self._seconds

    def on_epochs(self, run: RobotRun, rows: Sequence[Mapping[str, Any]]) -> None:
        late = time.perf_counter() > self._end and run.epoch < run.config.plan.total
        if late and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGINT)


def learn(
    name: str, minutes: float, note: Callable[[str], None], tiny: bool = False, **changes: Any
) -> dict[str, Any]:
    """Trains once, for `minutes` at the most, and tells how it went and where it ended."""
    config = settings(name, tiny, **changes)
    curve, start = Curve(note), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="worldloom-robot-") as folder:
        done = run(config, Path(folder) / "run", hooks=[curve, Deadline(minutes)])
    seconds = time.perf_counter() - start
    agents = done.trainer.agents()
    final = done.evaluation
    if done.interrupted or final is None:
        key = jax.random.key(EVALUATION_KEY + config.seed)
        final = done.evaluator(agents, key)
        curve.on_evaluation(done, final)
    told = {
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
    if config.task != "walk":
        rungs = done.evaluator.ladder(agents, jax.random.key(LADDER_KEY + config.seed))
        told["ladder"] = [rung.to_dict() for rung in rungs]
    return told


def episodes(evaluation: RobotEvaluation) -> list[dict[str, Any]]:
    """Each episode of an evaluation: what was asked, what it did."""
    columns = (evaluation.command, evaluation.speed, evaluation.steps, evaluation.fell)
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
