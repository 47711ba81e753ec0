"""One training run from folder to result: chunks of epochs, and host work between them.

A run folder holds config.json, metrics.jsonl, eval.jsonl, agents.csv, turns.csv, timing.json and
checkpoints/, and world.yaml if such a file describes its world. Pictures and pages are written by
hooks, which know more than training should.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom.track.machine import use_compilation_cache
from worldloom.track.sinks import CsvTable, JsonLines
from worldloom.train.build import build_env
from worldloom.train.config import CADENCE, TrainConfig, from_dict
from worldloom.train.driver import (
    EVALUATION_KEY,
    Hook,
    check_empty,
    check_resumable,
    drive,
    open_checkpoints,
    read_settings,
    unused,
)
from worldloom.train.driver import Run as AnyRun
from worldloom.train.evaluate import Evaluation, Evaluator
from worldloom.train.online import EpochMetrics
from worldloom.train.trainers import Trainer, evaluation_agent, make_trainer

__all__ = [
    "EVALUATION_KEY", "Hook", "Run", "new_folder", "open_checkpoints", "read_config", "resumed",
    "run",
]  # fmt: skip

# A run's own copy of the file that describes its world.
WORLD_FILE = "world.yaml"


@dataclass
class Run(AnyRun):
    """A run of turns while it runs, as hooks see it, and after it, as `run` returns it."""

    config: TrainConfig
    folder: Path
    trainer: Trainer
    evaluator: Evaluator
    evaluation: Evaluation | None = None

    def timing(self) -> dict[str, Any]:
        env = self.evaluator.env
        steps = env.spec.num_agents * (env.spec.horizon or 0) * self.config.num_worlds
        rate = self.epoch / self.train_seconds if self.train_seconds else 0.0
        measured = {"mode": self.config.mode} | super().timing()
        return measured | {"agent_steps_per_second": round(rate * steps, 1)}


def new_folder(root: Path, config: TrainConfig) -> Path:
    """An unused folder name that says what ran, in which mode and when."""
    env = Path(config.env).stem
    return unused(root, f"{env}-{config.algo}-{config.mode}-s{config.seed}")


def read_config(folder: Path) -> TrainConfig:
    """The settings of an existing run."""
    config = read_settings(folder, from_dict)
    # The file that it was started with may have been edited since, or moved.
    own = Path(folder) / WORLD_FILE
    return replace(config, env=str(own)) if own.is_file() else config


def _world_text(config: TrainConfig) -> str | None:
    """What the file of the world says; None for a world with a name."""
    is_file = config.env.lower().endswith((".yaml", ".yml")) and Path(config.env).is_file()
    return Path(config.env).read_text(encoding="utf-8") if is_file else None


def resumed(folder: Path, wanted: TrainConfig) -> TrainConfig:
    """The settings to go on with: a ValueError unless only the cadence differs from the run's."""
    kept = read_config(folder)
    if _world_text(wanted) is not None and _world_text(wanted) == _world_text(kept):
        wanted = replace(wanted, env=kept.env)
    check_resumable(folder, kept, wanted, CADENCE)
    return wanted


def run(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    command: str = "",
) -> Run:
    """Trains to `config.epochs`; with `resume` on from the newest checkpoint in `folder`.

    Ctrl-C ends it after the current chunk with a checkpoint; `interrupted` then says so. Compiled
    programs are kept in JAX's persistent cache.
    """
    use_compilation_cache()
    folder = Path(folder)
    if resume:
        config = resumed(folder, config)
    else:
        check_empty(folder)
    trainer = make_trainer(config)  # also checks the settings, before anything is written
    evaluator = Evaluator(build_env(config), evaluation_agent(config), config.eval_episodes)
    this = Run(config, folder, trainer, evaluator)
    world = _world_text(config)

    def about() -> dict[str, Any]:
        random = evaluator(trainer.agents(), jax.random.key(EVALUATION_KEY), explore=1.0)
        return {"reference_scores": {"random play": random.mean}}

    return drive(
        this,
        EpochTables,
        about=about,
        files={} if world is None else {WORLD_FILE: world},
        resume=resume,
        hooks=hooks,
        command=command,
    )


def _rows(metrics: EpochMetrics, first: int, start: float, end: float) -> Iterator[dict[str, Any]]:
    """One row of metrics.jsonl for each epoch; seconds are spread evenly over a chunk."""
    count = len(metrics.score)
    for n in range(count):
        learned = {
            name: float(np.mean(getattr(metrics, name)[n]))
            for name in ("loss", "grad_norm", "q_mean")
        }
        yield {
            "epoch": first + n,
            "score": float(metrics.score[n]),
            "epsilon": float(metrics.epsilon[n]),
            **learned,
            "seconds": round(start + (end - start) * (n + 1) / count, 4),
            "rewards": metrics.reward[n],
            "losses": metrics.loss[n],
        }


class EpochTables:
    """metrics.jsonl with a row for each epoch, agents.csv and turns.csv with its parts."""

    def __init__(self, folder: Path, epoch: int):
        learned = ["loss", "grad_norm", "q_mean"]
        self._metrics = JsonLines(folder / "metrics.jsonl", epoch)
        self._agents = CsvTable(
            folder / "agents.csv", ["epoch", "agent", "reward", *learned], epoch
        )
        self._turns = CsvTable(folder / "turns.csv", ["epoch", "turn", "agent", "reward"], epoch)

    def write(
        self, metrics: EpochMetrics, first: int, start: float, end: float
    ) -> list[dict[str, Any]]:
        rows = list(_rows(metrics, first, start, end))
        for n, row in enumerate(rows):
            self._metrics.write(row)
            epoch = row["epoch"]
            for agent, reward in enumerate(metrics.reward[n]):
                learned = {
                    name: getattr(metrics, name)[n][agent]
                    for name in ("loss", "grad_norm", "q_mean")
                }
                self._agents.write({"epoch": epoch, "agent": agent, "reward": reward} | learned)
            for turn, rewards in enumerate(metrics.turn_reward[n]):
                for agent, reward in enumerate(rewards):
                    self._turns.write(
                        {"epoch": epoch, "turn": turn, "agent": agent, "reward": reward}
                    )
        self._agents.flush()
        self._turns.flush()
        return rows

    def close(self) -> None:
        for sink in (self._metrics, self._agents, self._turns):
            sink.close()
