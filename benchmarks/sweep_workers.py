"""Workers that share a study, one of which is killed while it holds a point."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from oracles import guess
from worldloom.core.files import read_json
from worldloom.training.sweeps.launch import worker_command
from worldloom.training.sweeps.shared_study import open_storage
from worldloom.training.sweeps.study import import_optuna

SETTINGS = (
    "guess.py:make --world.choices 2 --num-worlds 4 --eval-episodes 4 --ppo.hidden 8 "
    "--ppo.unroll-length 8 --ppo.num-minibatches 2 --ppo.num-epochs 1 --steps 40000 --chunk 50 "
    "--seeds 2 --batch 1 --lease 5"
)


def start(folder: Path, store: str, points: int) -> subprocess.Popen:
    """A worker on a study in `folder`."""
    rates = ["--ppo.learning-rate", f"1e-4..1e-2:log:{points}"]
    command = worker_command([*SETTINGS.split(), *rates, "--study", store])
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=os.environ)


def busy_workers(storage: Any) -> set[int]:
    """Processes that hold a point which is not finished."""
    optuna = import_optuna("the study")
    pids = set()
    for name in optuna.get_all_study_names(storage):
        if name.endswith("/claims"):
            continue
        trials = optuna.load_study(study_name=name, storage=storage).trials
        running = {trial.number for trial in trials if not trial.state.is_finished()}
        made = storage.get_all_trials(storage.get_study_id_from_name(f"{name}/claims"))
        held = (claim.user_attrs for claim in made if claim.user_attrs["point"] in running)
        pids |= {int(about["worker"].split()[1]) for about in held}
    return pids


def killed_worker(folder: Path, points: int, workers: int, seed: int) -> dict[str, Any]:
    """Lets one worker do a sweep, then several of which one is killed; how they compare.

    lost: points that are not finished exactly once. difference: the largest of a score.
    """
    optuna, patience = import_optuna("the study"), time.monotonic() + 400
    shutil.copy(Path(guess.__file__), folder / "guess.py")
    if start(folder, "single", points).wait():
        raise RuntimeError((folder / "log").read_text()[-2000:])
    started = [start(folder, "shared", points) for _ in range(workers)]
    processes = {process.pid: process for process in started}
    storage, victims = open_storage(optuna, str(folder / "shared")), set()
    try:
        while not victims:
            done = all(process.poll() is not None for process in started)
            if done or time.monotonic() > patience:
                raise RuntimeError("no worker was caught at work")
            time.sleep(0.05)
            names = optuna.get_all_study_names(storage)
            if len(names) > 1:
                victims = busy_workers(storage) & processes.keys()
        victim = random.Random(seed).choice(sorted(victims))
        processes[victim].kill()
        codes = {pid: process.wait() for pid, process in processes.items()}
    finally:
        for process in started:
            process.kill()
            process.wait()
    alone, shared = (read_json(folder / name / "sweep.json") for name in ("single", "shared"))
    (name,) = (name for name in names if not name.endswith("/claims"))
    trials = optuna.load_study(study_name=name, storage=storage).trials
    states = Counter(trial.state.name for trial in trials[:points])
    pairs = list(zip(alone["results"], shared["results"], strict=False))
    once = sum(one["values"] == other["values"] for one, other in pairs)
    apart = [np.abs(np.subtract(one["scores"], other["scores"])).max() for one, other in pairs]
    return {
        "points": points,
        "workers": workers,
        "killed": codes.pop(victim) == -signal.SIGKILL,
        "failed": sum(map(bool, codes.values())),
        "states": dict(states),
        "complete": shared["complete"],
        "lost": points - min(once, states["COMPLETE"], len(shared["results"])),
        "difference": float(max(apart, default=np.nan)),
    }
