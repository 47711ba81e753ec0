"""A run folder on ARC, made up."""

import json

from worldloom.suites.arc import load
from worldloom.suites.arc.suite import SUITE
from worldloom.training.config import make_config

EACH = 4096  # steps of an iteration
TASKS = ("recolour", "fall", "<b>&amp")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_game_run(folder):
    """A run of 40 iterations in a game, three of whose five levels were solved."""
    config = make_config(SUITE, {"env": "glide", "algo": "pqn", "steps": 40 * EACH})
    score = {"mean": 0.6, "stderr": 0.0, "levels": 5, "levels_solved": 3.0, "efficiency": 0.3,
             "actions": 61.0, "level_actions": [3.0, 8.5, 12.0, None, None], "episodes": 1,
             "sampled_mean": 0.5, "sampled_stderr": 0.02, "sampled_efficiency": 0.2,
             "sampled_episodes": 16}  # fmt: skip
    explored = score | {"mean": 1.0, "levels_solved": 5.0, "level_actions": [9.0] * 5}
    about = {
        "format": 2, "suite": "arc", "steps_per_iteration": EACH, "config": config.to_dict(),
        "references": {"random play": score | {"mean": 0.2}, "graph exploration": explored},
    }  # fmt: skip
    (folder / "checkpoints" / "40").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(about))
    rows = [
        {"iteration": n + 1, "steps": EACH * (n + 1), "seconds": n + 1.0, "return": 0.05 * n,
         "loss": 1 / (n + 1)}
        for n in range(40)
    ]  # fmt: skip
    write_lines(folder / "metrics.jsonl", rows)
    evals = [{"iteration": n, "steps": EACH * n, "seconds": 1.0 * n} | score for n in (20, 40)]
    write_lines(folder / "eval.jsonl", evals)
    return folder


def make_run(folder):
    """A run of 40 iterations on the shipped examples, one of which was solved."""
    config = make_config(SUITE, {"env": "arc", "steps": 40 * EACH})
    references = {
        "random play": {"mean": 0.02, "demo_pairs": 0.02, "test_pairs": 0.0, "k": 0},
        "greedy editor": {"mean": 1.0, "demo_pairs": 1.0, "test_pairs": 0.75, "k": 0},
    }
    about = {
        "format": 2,
        "suite": "arc",
        "steps_per_iteration": EACH,
        "command": "worldloom train arc",
        "config": config.to_dict(),
        "references": references,
        "hash": "3f9a1c07",
        "versions": {"worldloom": "0.2.0"},
    }
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "tasks.json").write_text(load("examples").to_json())
    write_lines(
        folder / "metrics.jsonl",
        [
            {
                "iteration": n + 1,
                "steps": EACH * (n + 1),
                "solved": n / 40,
                "return": 0.1 * n,
                "length": 20 - n / 4,
                "entropy": 3 - n / 20,
                "kl": 0.01,
                "explained_variance": 0.5,
                "seconds": n + 1.0,
            }
            for n in range(40)
        ],
    )
    write_lines(
        folder / "eval.jsonl",
        [
            {
                "iteration": n,
                "steps": EACH * n,
                "seconds": 1.0 * n,
                "demo_pairs": n / 80,
                "demo_tasks": n / 160,
                "test_pairs": 0.0,
                "test_tasks": 0.0,
                "demo_pass_at_1": 0.3,
                "demo_pass_at_k": 0.6,
                "test_pass_at_1": 0.0,
                "test_pass_at_k": 0.1,
                "k": 4,
            }
            for n in (20, 40)
        ],
    )
    timing = {
        "train_seconds": 40.0,
        "compile_seconds": 9.0,
        "steps": 40 * EACH,
        "iterations": 40,
        "steps_per_second": 8192.0,
    }
    (folder / "timing.json").write_text(json.dumps(timing))
    names = "task,demos,demos_solved,demos_solved_in_k,tests,tests_solved,tests_solved_in_k"
    rows = [f"{names},solved,steps"]
    rows += [f"{name},3,{3 - n},3,1,0,1,{n == 0},4.5" for n, name in enumerate(TASKS)]
    (folder / "tasks.csv").write_text("\n".join(rows) + "\n")
    shots = [
        {"grid": [[1, 0], [0, 3]], "operation": 2, "cells": [[0, 0]], "valid": True},
        {"grid": [[2, 0], [0, 3]], "operation": 33, "cells": [[4, 5]], "valid": True},
        {"grid": [[2, 0], [0, 3]], "operation": 34, "cells": None, "valid": True},
        {"grid": [[2, 0], [0, 3]], "operation": None, "cells": None, "valid": True},
    ]
    episode = {
        "task": "recolour",
        "pair": "test 1",
        "solved": False,
        "shots": shots,
        "input": [[1, 0], [0, 3]],
        "target": [[2, 0], [0, 2]],
    }
    (folder / "episodes.json").write_text(json.dumps([episode] * 2))
    (folder / "checkpoints" / "40").mkdir(parents=True)
    return folder
