"""Recorded runs side by side: what they scored and how long they took."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.modes_work import same_work
from worldloom.suites.grid.problem import make_env
from worldloom.suites.grid.suite import SUITE
from worldloom.training.run import read_config
from worldloom.training.sinks import read_json_lines
from worldloom.training.timer import ratio

_TIMING = ("iterations", "steps", "train_seconds", "compile_seconds")


def compare_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each run folder; a ValueError if one is not a run, or if their work differs."""
    if len(folders) < 2:
        alone = (
            f"{folders[0]} alone cannot be compared" if folders else "there is no run to compare"
        )
        raise ValueError(f"{alone}; name two or more run folders")
    if len(set(folders)) < len(folders):
        raise ValueError("a run folder is named twice; name different runs")
    configs = {str(folder): read_config(folder, SUITE) for folder in folders}
    timings = {str(folder): _timing(folder) for folder in folders}
    # What counts is how far a run came, not how far it was meant to go.
    same_work({n: replace(c, steps=timings[n]["steps"]) for n, c in configs.items()})
    baseline = timings[str(folders[0])]["train_seconds"]
    rows = []
    for name, config in configs.items():
        timing = timings[name]
        evaluations = read_json_lines(Path(name) / "eval.jsonl")
        last = evaluations[-1] if evaluations else {}
        seconds = timing["train_seconds"]
        rows.append(
            {
                "run": name,
                "mode": config.settings.mode,
                "num_agents": make_env(config).spec.num_agents,
                "seed": config.seed,
                "steps": timing["steps"],
                "score": last.get("mean"),
                "score_stderr": last.get("stderr"),
                "train_seconds": seconds,
                "epochs_per_second": ratio(timing["iterations"], seconds),
                "speedup": ratio(baseline, seconds),
                "compile_seconds": timing["compile_seconds"],
            }
        )
    return rows


def _timing(folder: Path) -> dict[str, Any]:
    path = Path(folder) / "timing.json"
    try:
        timing = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in _TIMING if name not in timing]
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise ValueError(
            f"{folder} has no results yet: {path.name} cannot be read; let it train"
        ) from error
    if missing or not timing["iterations"]:
        raise ValueError(f"{path} holds no finished epochs; let the run train before comparing it")
    return timing
