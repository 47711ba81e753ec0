"""Recorded runs side by side: what they scored and how long they took."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worldloom.bench.timer import ratio
from worldloom.bench.work import same_work
from worldloom.track.sinks import read_json_lines
from worldloom.train.build import build_env
from worldloom.train.runner import read_config


def compare_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """A row for each run folder; a ValueError if one is not a run, or if their work differs."""
    if len(folders) < 2:
        alone = (
            f"{folders[0]} alone cannot be compared" if folders else "there is no run to compare"
        )
        raise ValueError(f"{alone}; name two or more run folders")
    if len(set(folders)) < len(folders):
        raise ValueError("a run folder is named twice; name different runs")
    configs = {str(folder): read_config(folder) for folder in folders}
    timings = {str(folder): _timing(folder) for folder in folders}
    # What counts is how far a run came, not how far it was meant to go.
    same_work({n: replace(c, epochs=timings[n]["epochs"]) for n, c in configs.items()})
    rows = []
    for name, config in configs.items():
        timing = timings[name]
        evaluations = read_json_lines(Path(name) / "eval.jsonl")
        last = evaluations[-1] if evaluations else {}
        rows.append(
            {
                "run": name,
                "mode": config.mode,
                "num_agents": build_env(config).spec.num_agents,
                "seed": config.seed,
                "epochs": timing["epochs"],
                "score": last.get("mean"),
                "score_stderr": last.get("stderr"),
                "train_seconds": timing["train_seconds"],
                "epochs_per_second": timing["epochs_per_second"],
                "speedup": ratio(
                    timings[str(folders[0])]["train_seconds"], timing["train_seconds"]
                ),
                "compile_seconds": timing["compile_seconds"],
            }
        )
    return rows


def _timing(folder: Path) -> dict[str, Any]:
    path = Path(folder) / "timing.json"
    wanted = ("epochs", "train_seconds", "epochs_per_second", "compile_seconds")
    try:
        timing = json.loads(path.read_text())
        missing = [name for name in wanted if name not in timing]
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise ValueError(
            f"{folder} has no results yet: {path.name} cannot be read; let it train"
        ) from error
    if missing or not timing["epochs"]:
        raise ValueError(f"{path} holds no finished epochs; let the run train before comparing it")
    return timing
