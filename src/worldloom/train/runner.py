"""One training run from folder to result: chunks of epochs, and host work between them.

A run folder holds config.json, metrics.jsonl, eval.jsonl, agents.csv, turns.csv, timing.json and
checkpoints/, and world.yaml if such a file describes its world. Pictures and pages are written by
hooks, which know more than training should.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from worldloom.track.checkpoint import Checkpoints
from worldloom.track.machine import machine, versions
from worldloom.track.sinks import CsvTable, JsonLines, read_json_lines, write_json, write_text
from worldloom.train.build import build_env
from worldloom.train.config import CADENCE, TrainConfig, from_dict
from worldloom.train.evaluate import Evaluation, Evaluator
from worldloom.train.online import EpochMetrics
from worldloom.train.trainers import Trainer, evaluation_agent, make_trainer

# Evaluation draws from keys of its own: training is the same with it and without it.
EVALUATION_KEY = 1_000_003
# A run's own copy of the file that describes its world.
WORLD_FILE = "world.yaml"


class Hook:
    """What may happen between chunks; override what you need."""

    def on_start(self, run: "Run") -> None: ...
    def on_epochs(self, run: "Run", rows: Sequence[Mapping[str, Any]]) -> None: ...
    def on_evaluation(self, run: "Run", evaluation: Evaluation) -> None: ...
    def on_record(self, run: "Run") -> None: ...
    def on_end(self, run: "Run") -> None: ...
    def close(self) -> None:
        """Called last, also when the run failed."""


@dataclass
class Run:
    """A run while it runs, as hooks see it, and after it, as `run` returns it."""

    config: TrainConfig
    folder: Path
    trainer: Trainer
    evaluator: Evaluator
    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    evaluation: Evaluation | None = None
    interrupted: bool = False

    @property
    def epoch(self) -> int:
        return self.trainer.epoch

    def timing(self) -> dict[str, Any]:
        env = self.evaluator.env
        steps = env.spec.num_agents * (env.spec.horizon or 0) * self.config.num_worlds
        rate = self.epoch / self.train_seconds if self.train_seconds else 0.0
        return {
            "mode": self.config.mode,
            "compile_seconds": round(self.trainer.compile_seconds, 3),
            "train_seconds": round(self.train_seconds, 3),
            "eval_seconds": round(self.eval_seconds, 3),
            "epochs": self.epoch,
            "epochs_per_second": round(rate, 3),
            "agent_steps_per_second": round(rate * steps, 1),
        }


def new_folder(root: Path, config: TrainConfig) -> Path:
    """An unused folder name that says what ran, in which mode and when."""
    env = Path(config.env).stem
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{env}-{config.algo}-{config.mode}-s{config.seed}-{stamp}"
    folder, n = root / name, 2
    while folder.exists():
        folder, n = root / f"{name}-{n}", n + 1
    return folder


def read_config(folder: Path) -> TrainConfig:
    """The settings of an existing run."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} is not a run folder: it has no config.json; name a folder under runs/"
        )
    try:
        config = from_dict(json.loads(path.read_text())["config"], str(path))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not hold the settings of a run ({type(error).__name__}: {error}); "
            "name another folder"
        ) from error
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
    if wanted.fingerprint() == kept.fingerprint():
        return wanted
    old, new = kept.to_dict(), wanted.to_dict()
    names = sorted((old.keys() | new.keys()) - set(CADENCE))
    differs = [name for name in names if old.get(name) != new.get(name)]
    raise ValueError(
        f"{folder} was trained with other settings ({', '.join(differs)}); "
        "resume it with its own, or start a new run"
    )


def open_checkpoints(folder: Path) -> Checkpoints:
    """The checkpoints of an existing run, of which there must be at least one."""
    checkpoints = None
    if (Path(folder) / "checkpoints").is_dir():
        checkpoints = Checkpoints(Path(folder) / "checkpoints")
        if checkpoints.latest is not None:
            return checkpoints
        checkpoints.close()
    raise ValueError(
        f"{folder} holds no complete checkpoint: it was stopped before its first one; "
        "train from the start"
    )


def run(
    config: TrainConfig,
    folder: Path,
    *,
    resume: bool = False,
    hooks: Sequence[Hook] = (),
    command: str = "",
) -> Run:
    """Trains to `config.epochs`; with `resume` on from the newest checkpoint in `folder`.

    Ctrl-C ends it after the current chunk with a checkpoint; `interrupted` then says so.
    """
    folder = Path(folder)
    if resume:
        config = resumed(folder, config)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} already exists and is not empty; choose another, or resume it")
    trainer = make_trainer(config)  # also checks the settings, before anything is written
    evaluator = Evaluator(build_env(config), evaluation_agent(config), config.eval_episodes)
    this = Run(config, folder, trainer, evaluator)
    if resume:
        checkpoints = open_checkpoints(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        if (world := _world_text(config)) is not None:
            write_text(folder / WORLD_FILE, world)
        checkpoints = Checkpoints(folder / "checkpoints")
    try:
        if resume:
            trainer.load(checkpoints.restore(trainer.state()))
            if config.epochs < trainer.epoch:
                raise ValueError(
                    f"{folder} is at epoch {trainer.epoch} already; epochs={config.epochs} is "
                    "behind it, ask for more"
                )
            _set_clock(this)
        write_json(folder / "config.json", _header(this, command))
        with _sinks(folder, trainer.epoch) as sinks, _stop_on_signal() as stop:
            for hook in hooks:
                hook.on_start(this)
            _loop(this, sinks, checkpoints, hooks, stop)
        this.interrupted = this.epoch < config.epochs
        if this.evaluation is None and not this.interrupted:
            this.evaluation = _score(this)  # resumed after its last epoch: nothing was left to do
        for hook in hooks:
            hook.on_end(this)
    finally:
        for hook in hooks:
            hook.close()
        checkpoints.close()
    return this


def _set_clock(this: Run) -> None:
    """Seconds spent up to the checkpoint that was loaded, as the run's own files tell."""
    for row in read_json_lines(this.folder / "metrics.jsonl"):
        if row["epoch"] < this.epoch:
            this.train_seconds = row["seconds"]
    for row in read_json_lines(this.folder / "eval.jsonl"):
        if row["epoch"] <= this.epoch:
            this.eval_seconds += row["eval_seconds"]


def _header(this: Run, command: str) -> dict[str, Any]:
    config = this.config
    random = this.evaluator(this.trainer.agents(), jax.random.key(EVALUATION_KEY), explore=1.0)
    return {
        "worldloom": versions()["worldloom"],
        "command": command,
        "config": config.to_dict(),
        "hash": config.fingerprint(),
        "reference_scores": {"random play": random.mean},
        "versions": versions(),
        "machine": machine(),
    }


def _next_stop(epoch: int, config: TrainConfig) -> int:
    """The next epoch at which the host has something to do."""
    periods = (config.chunk, config.eval_every, config.checkpoint_every, config.record_period)
    return min([config.epochs, *((epoch // p + 1) * p for p in periods if p)])


def _loop(
    this: Run,
    sinks: dict[str, Any],
    checkpoints: Checkpoints,
    hooks: Sequence[Hook],
    stop: threading.Event,
) -> None:
    config, trainer = this.config, this.trainer
    while trainer.epoch < config.epochs and not stop.is_set():
        first = trainer.epoch
        compiled, start = trainer.compile_seconds, time.perf_counter()
        metrics = trainer.advance(_next_stop(first, config) - first)
        compiled = trainer.compile_seconds - compiled
        before = this.train_seconds
        this.train_seconds += time.perf_counter() - start - compiled
        rows = list(_rows(metrics, first, before, this.train_seconds))
        _write(sinks, metrics, rows)
        for hook in hooks:
            hook.on_epochs(this, rows)
        bad = [row["epoch"] for row, ok in zip(rows, metrics.finite, strict=True) if not ok]
        if bad:
            raise ValueError(
                f"epoch {bad[0]}: rewards or losses are no longer finite; lower the learning rate "
                f"or mend the world's values ({this.folder} keeps its last good checkpoint)"
            )
        epoch = trainer.epoch
        last = epoch >= config.epochs
        # Before the checkpoint: a run killed here evaluates again when it is resumed.
        if last or (config.eval_every and epoch % config.eval_every == 0):
            _evaluate(this, sinks, hooks)
        write_json(this.folder / "timing.json", this.timing())
        if last or epoch % config.checkpoint_every == 0:
            checkpoints.save(epoch, trainer.state())
        if config.record_period and epoch % config.record_period == 0:
            for hook in hooks:
                hook.on_record(this)
    if stop.is_set():
        write_json(this.folder / "timing.json", this.timing())
        checkpoints.save(trainer.epoch, trainer.state())


def _score(this: Run) -> Evaluation:
    key = jax.random.fold_in(jax.random.key(EVALUATION_KEY + this.config.seed), this.epoch)
    return this.evaluator(this.trainer.agents(), key)


def _evaluate(this: Run, sinks: dict[str, Any], hooks: Sequence[Hook]) -> None:
    this.evaluation = _score(this)
    this.eval_seconds += this.evaluation.seconds
    row = {
        "epoch": this.epoch,
        "seconds": round(this.train_seconds, 4),
        "eval_seconds": round(this.evaluation.seconds, 4),
    }
    sinks["eval"].write(row | this.evaluation.to_dict())
    for hook in hooks:
        hook.on_evaluation(this, this.evaluation)


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


def _write(sinks: dict[str, Any], metrics: EpochMetrics, rows: list[dict[str, Any]]) -> None:
    for n, row in enumerate(rows):
        sinks["metrics"].write(row)
        epoch = row["epoch"]
        for agent, reward in enumerate(metrics.reward[n]):
            learned = {
                name: getattr(metrics, name)[n][agent] for name in ("loss", "grad_norm", "q_mean")
            }
            sinks["agents"].write({"epoch": epoch, "agent": agent, "reward": reward} | learned)
        for turn, rewards in enumerate(metrics.turn_reward[n]):
            for agent, reward in enumerate(rewards):
                sinks["turns"].write(
                    {"epoch": epoch, "turn": turn, "agent": agent, "reward": reward}
                )
    sinks["agents"].flush()
    sinks["turns"].flush()


@contextmanager
def _sinks(folder: Path, epoch: int) -> Iterator[dict[str, Any]]:
    learned = ["loss", "grad_norm", "q_mean"]
    sinks = {
        "metrics": JsonLines(folder / "metrics.jsonl", epoch),
        "eval": JsonLines(folder / "eval.jsonl", epoch + 1),
        "agents": CsvTable(folder / "agents.csv", ["epoch", "agent", "reward", *learned], epoch),
        "turns": CsvTable(folder / "turns.csv", ["epoch", "turn", "agent", "reward"], epoch),
    }
    try:
        yield sinks
    finally:
        for sink in sinks.values():
            sink.close()


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """The first Ctrl-C asks for a clean end; a second one is the usual KeyboardInterrupt."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(signum, frame):
        stop.set()
        signal.signal(signal.SIGINT, previous)
        with suppress(RuntimeError):  # the signal came in the middle of another print
            print("\nstopping after this chunk; Ctrl-C again to stop at once", file=sys.stderr)

    previous = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
