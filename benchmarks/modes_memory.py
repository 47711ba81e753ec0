"""How much memory training takes: growth of the resident size of a process that does only that."""

import importlib
import os
from pathlib import Path
from typing import Any

from benchmarks.processes import in_fresh_process, peak_memory_mb
from worldloom.suites.grid.suite import SUITE
from worldloom.training.config import TrainConfig, make_config

MEANING = (
    "growth of the resident size of a fresh process from after its imports to after two training "
    "epochs: weights, optimiser, replay memory, programs and scratch space. Compiled programs come "
    "from the compilation cache, so the compiler's own memory is not in it"
)


def training_memory(config: TrainConfig, cache: Path) -> dict[str, Any]:
    """`resident_mb` held by training, and `peak_mb` on the way, in a fresh process.

    What a process traced before can change a program's name in the cache, so that a fresh one may
    have to compile after all. Then it is asked again, and finds what it left itself.
    """
    for _ in range(2):
        known = _programs(cache)
        grown = in_fresh_process(
            "benchmarks.modes_memory:growth",
            config.to_dict(),
            cache,
            timeout=900.0,
        )
        if _programs(cache) == known:
            break
    return grown


def _programs(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("*-cache")}


def growth(settings: dict[str, Any]) -> dict[str, Any]:
    """Trains until every agent learned, two epochs more, and says what that held."""
    import jax

    from benchmarks.modes_work import fill_memory
    from worldloom.suites.grid.problem import new_trainer

    config = make_config(SUITE, settings)
    if config.settings.mode == "torch_sequential":
        importlib.import_module("worldloom.suites.grid.torch_iqn")
    jax.devices()
    before = resident_mb()
    trainer = new_trainer(config)
    fill_memory(trainer, config)
    trainer.advance(2)
    after = resident_mb()
    held = None if after is None or before is None else after - before
    peak = None if before is None else peak_memory_mb() - before
    return {"resident_mb": held, "peak_mb": peak}


def resident_mb() -> float | None:
    """The resident size of this process now; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
