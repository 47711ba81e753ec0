"""Execution modes side by side on equal work, for one number of agents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.modes_memory import training_memory
from benchmarks.modes_parts import (
    EpochInputs,
    Part,
    jax_parts,
    record_epoch,
    torch_parts,
)
from benchmarks.modes_work import (
    ACTING,
    changed,
    fill_memory,
    same_work,
    training_epochs,
    why_not_torch,
)
from benchmarks.processes import cache_at
from worldloom.core.checks import check_fields
from worldloom.suites.grid.problem import new_trainer
from worldloom.suites.grid.suite import MODES, Mode
from worldloom.training.config import TrainConfig
from worldloom.training.timer import Timing, interleave, ratio
from worldloom.training.trainer import Trainer

EXPLORATION = 0.632  # the original's mean chance of a random action over its 1000 epochs


@dataclass(frozen=True)
class Plan:
    """How a comparison is measured."""

    epochs: int = 4  # in one timed block
    repeats: int = 5
    memory: bool = True

    def __post_init__(self):
        check_fields("compare", self, at_least={"epochs": 1, "repeats": 1})


def equal_work(
    base: TrainConfig, modes: Sequence[Mode], num_agents: int, *, midpoints: bool
) -> dict[str, TrainConfig]:
    """One configuration for each mode, checked to be the same work.

    With `midpoints` the JAX modes act with as many stratified levels as they learn with, where
    the original draws 256 at random; the baseline acts as it always does.
    """
    world = dict(base.world) | {"num_agents": num_agents}
    exploration = {"epsilon": EXPLORATION, "epsilon_decay": 0.0, "epsilon_min": 0.0}
    levels = {"act_levels": "midpoints", "act_quantiles": base.hyper.num_quantiles}
    configs: dict[str, TrainConfig] = {}
    for mode in modes:
        acts_at_random = base.hyper.act_levels == "random"
        acting = levels if midpoints and acts_at_random and mode != "torch_sequential" else {}
        config = replace(base, world=world, seed=0)
        configs[mode] = changed(config, hyper=exploration | acting, mode=mode)
    same_work(configs, allowed=ACTING if midpoints else ())
    return configs


def possible_modes(
    base: TrainConfig, asked: Sequence[Mode] | None
) -> tuple[list[Mode], dict[str, str]]:
    """The modes that can do the work, and why others cannot.

    A baseline that is asked for by name and would play another task is an error; one that is not
    installed, or was only part of "all modes", is left out with a reason.
    """
    modes: list[Mode] = [mode for mode in MODES if asked is None or mode in asked]
    reason = why_not_torch(base) if "torch_sequential" in modes else None
    if reason is None:
        return modes, {}
    if asked is not None and "not installed" not in reason:
        raise ValueError(f"torch_sequential cannot do the same work: {reason}")
    modes.remove("torch_sequential")
    return modes, {"torch_sequential": reason}


def compare_modes(
    configs: dict[str, TrainConfig], plan: Plan, cache: Path, note: Callable[[str], None]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A row of figures for each mode, and the samples behind them.

    Every mode compiles into a folder of its own within `cache`: modes share small programs, and
    the second one would find those of the first.
    """
    trainers: dict[str, Any] = {}
    for mode, config in configs.items():
        with cache_at(cache / mode):
            trainers[mode] = new_trainer(replace(config, chunk=plan.epochs))
            filled = fill_memory(trainers[mode], config)
        compile_seconds = trainers[mode].compile_seconds
        note(f"  {mode}: compiled in {compile_seconds:.1f} s, learns after {filled} epochs")
    blocks = {mode: training_epochs(trainer, plan.epochs) for mode, trainer in trainers.items()}
    timed = {
        mode: {"epoch": timing.per(plan.epochs)}
        for mode, timing in interleave(blocks, plan.repeats).items()
    }
    note("  timing the parts of an epoch")
    _time_parts(configs, trainers, timed, plan.repeats)
    memory = {}
    for mode, config in configs.items() if plan.memory else ():
        note(f"  {mode}: memory in a fresh process")
        memory[mode] = training_memory(replace(config, chunk=plan.epochs), cache / mode)
    rows = [
        _row(mode, configs[mode], trainers[mode], timed, memory.get(mode, {})) for mode in configs
    ]
    samples = {
        mode: {part: list(timing.samples) for part, timing in parts.items()}
        for mode, parts in timed.items()
    }
    return rows, samples


def _time_parts(
    configs: dict[str, TrainConfig],
    trainers: dict[str, Any],
    timed: dict[str, dict[str, Timing]],
    repeats: int,
) -> None:
    by_mode: dict[str, dict[str, Part]] = {}
    inputs: EpochInputs | None = None  # one for all JAX modes: their loops and keys are the same
    for mode, trainer in trainers.items():
        if isinstance(trainer, Trainer):
            loop: Any = trainer.loop
            inputs = inputs or record_epoch(loop, trainer.run)
            by_mode[mode] = jax_parts(inputs, configs[mode].settings.mode)
        else:
            by_mode[mode] = torch_parts(configs[mode])
    for part in next(iter(by_mode.values())):
        same_part: dict[str, Part] = {mode: parts[part] for mode, parts in by_mode.items()}
        for mode, timing in interleave(same_part, repeats).items():
            timed[mode][part] = timing


def _row(
    mode: str,
    config: TrainConfig,
    trainer: Any,
    timed: dict[str, dict[str, Timing]],
    memory: dict[str, Any],
) -> dict[str, Any]:
    baseline = next(iter(timed.values()))["epoch"].median  # modes are in the order of MODES
    epoch = timed[mode]["epoch"].median
    milliseconds = {f"{part}_ms": timing.median * 1e3 for part, timing in timed[mode].items()}
    return {
        "mode": mode,
        "num_agents": config.world["num_agents"],
        "epochs_per_second": 1.0 / epoch,
        "speedup": ratio(baseline, epoch),
        **milliseconds,
        "compile_seconds": trainer.compile_seconds,
        "memory_mb": memory.get("resident_mb"),
        "peak_memory_mb": memory.get("peak_mb"),
    }


def quick(config: TrainConfig) -> TrainConfig:
    """The same task and algorithm in sizes that take seconds, to see that everything works."""
    sizes = {
        "hidden": 16,
        "batch_size": 8,
        "num_quantiles": 4,
        "act_quantiles": min(config.hyper.act_quantiles, 8),
        "buffer_size": 64 * config.num_worlds,
    }
    world = dict(config.world) | {"horizon": 10}
    return changed(replace(config, world=world), hyper=sizes)
