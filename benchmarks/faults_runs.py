"""Faults that training runs must survive: kill -9 at random instants, and damaged checkpoints.

Both functions count what became of runs. Every chain must be exact, and no damage silently wrong.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import jax
import numpy as np

import worldloom
from worldloom.core.draws import is_key
from worldloom.core.types import PyTree
from worldloom.training.checkpoint import Checkpoints
from worldloom.training.sinks import read_json_lines

_GUESS = Path(__file__).resolve().parents[1] / "tests" / "oracles" / "guess.py"
_PPO = "--ppo.hidden 8 --ppo.num-epochs 1 --ppo.num-minibatches 2"
# A run of each suite that takes a blink once it is compiled; 40 iterations, a checkpoint after 2.
TINY = {
    "grid": f"tag --algo ppo --world.horizon 6 --world.num-agents 2 --num-worlds 4 {_PPO} "
    "--steps 960 --checkpoint-every 48",
    "plain": f"{_GUESS}:make --algo ppo --num-worlds 4 {_PPO} --ppo.unroll-length 8 "
    "--steps 1280 --checkpoint-every 64",
    "arc": f"arc --algo ppo --num-worlds 4 {_PPO} --ppo.unroll-length 6 --world.max-steps 5 "
    "--network.channels 4 --network.context 8 --steps 960 --checkpoint-every 48",
    "robot": f"biped --task stand --num-worlds 4 {_PPO} --ppo.unroll-length 3 --world.horizon 5 "
    "--steps 480 --checkpoint-every 24",
    "plant": "dmsd --algo td3bc --data-steps 600 --world.horizon 20 --td3bc.hidden 8 "
    "--td3bc.batch-size 16 --td3bc.updates-per-iteration 10 --ope-updates 20 "
    "--steps 400 --checkpoint-every 20",
}
_ITERATIONS = 40
_COMMON = "--chunk 2 --eval-every 0 --eval-episodes 2 --record-every 0 --no-report --quiet"


# Kills -----------------------------------------------------------------------------------------


def kill_chains(
    suites: Sequence[str], kills: int, rng: np.random.Generator, folder: Path
) -> dict[str, int]:
    """Kills a run of each suite at random instants, resumes it to its end, and compares.

    kills: of each chain. A chain is exact if its last state and its metrics are those of a run
    that nobody disturbed, to the bit. Folders of the runs are left in `folder`.
    """
    counts = {"kills": 0, "chains": 0, "exact": 0}
    for suite in suites:
        start = time.monotonic()
        whole = _run_to_end(suite, folder / suite / "whole")
        seconds = time.monotonic() - start
        killed = 0
        while True:
            process = _start(suite, folder / suite / "killed")
            if killed < kills and _kill(process, folder / suite / "killed", seconds, rng):
                killed += 1
                continue
            _check_end(process)
            if killed >= kills:
                break
            shutil.rmtree(folder / suite / "killed")  # it was done before it could be killed
        counts["kills"] += killed
        counts["chains"] += 1
        counts["exact"] += same_run(whole, _run_folder(folder / suite / "killed"))
    return counts


def same_run(a: Path, b: Path) -> bool:
    """Whether two runs came to the same state and the same metrics, to the bit."""

    def rows(folder: Path) -> list[dict[str, Any]]:
        found = read_json_lines(folder / "metrics.jsonl")
        return [{n: v for n, v in row.items() if n != "seconds"} for row in found]

    one, other = (worldloom.load(folder).trainer.state() for folder in (a, b))
    return _equal(one, other) and rows(a) == rows(b)


def _equal(a: PyTree, b: PyTree) -> bool:
    def words(leaf: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)

    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(words(x).tobytes() == words(y).tobytes() for x, y in pairs)


def _run_folder(out: Path) -> Path | None:
    """The run in `out`, if it has a checkpoint to go on from."""
    found = [step.parents[1] for step in out.glob("*/checkpoints/*") if step.name.isdigit()]
    return found[0] if found else None


def _start(suite: str, out: Path) -> subprocess.Popen:
    """Goes on with the run in `out`, or starts one."""
    run = _run_folder(out)
    if run is None:
        shutil.rmtree(out, ignore_errors=True)
    words = f"{TINY[suite]} {_COMMON} --out {out}" if run is None else f"--quiet --resume {run}"
    command = [sys.executable, "-m", "worldloom", "train", *words.split(), "--no-report"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _run_to_end(suite: str, out: Path) -> Path:
    _check_end(_start(suite, out))
    run = _run_folder(out)
    assert run is not None
    return run


def _check_end(process: subprocess.Popen) -> None:
    said = process.communicate(timeout=1200)[1]
    if process.returncode:
        raise RuntimeError(f"a run ended with {process.returncode}: {said[-2000:]}")


def _kill(process: subprocess.Popen, out: Path, seconds: float, rng: np.random.Generator) -> bool:
    """Kills a run at a random instant; False if it had ended before.

    Mostly while it trains, at a random row of its metrics, as starting takes longer than all else;
    one time in four, or if it has no row left to play, at any instant.
    """

    def played() -> int:
        return sum(len(read_json_lines(path)) for path in out.glob("*/metrics.jsonl"))

    at_a_row = rng.random() < 0.75 and (before := played()) < _ITERATIONS
    rows = int(rng.integers(before, _ITERATIONS)) + 1 if at_a_row else _ITERATIONS + 1
    limit = time.monotonic() + (1200.0 if at_a_row else float(rng.uniform(0, seconds)))
    while process.poll() is None and time.monotonic() < limit:
        if played() >= rows:
            time.sleep(float(rng.uniform(0, 0.1)))
            break
        time.sleep(0.005)
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


# Damage ----------------------------------------------------------------------------------------


def damage(folder: Path, flips: int, rng: np.random.Generator) -> dict[str, int]:
    """Damages a byte of a run's newest checkpoint, in a copy, and reads it; so `flips` times.

    Every other time it is the only checkpoint. unharmed: the true state came back all the same.
    """
    like = worldloom.load(folder).trainer.template()
    with closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        newest = checkpoints.latest
        steps = {int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdigit()}
        truth = {step: checkpoints.restore(like, step) for step in steps}
    counts = dict.fromkeys(("flips", "refused", "fell_back", "unharmed", "silent_wrong"), 0)
    with tempfile.TemporaryDirectory() as temporary:
        copies = [Path(temporary) / name for name in ("all", "alone")]
        shutil.copytree(folder / "checkpoints", copies[0])
        shutil.copytree(folder / "checkpoints" / str(newest), copies[1] / str(newest))
        for flip in range(flips):
            copy = copies[flip % 2]
            files = [p for p in sorted((copy / str(newest)).rglob("*")) if p.is_file()]
            path = files[rng.integers(len(files))]
            sound = path.read_bytes()
            if not sound:
                continue
            harmed = bytearray(sound)
            harmed[rng.integers(len(sound))] ^= int(rng.integers(1, 256))
            path.write_bytes(harmed)
            counts["flips"] += 1
            counts[_outcome(copy, like, truth, newest)] += 1
            path.write_bytes(sound)
    return counts


def _outcome(folder: Path, like: PyTree, truth: dict[int, PyTree], newest: int | None) -> str:
    said = StringIO()
    try:
        with redirect_stderr(said), closing(Checkpoints(folder)) as checkpoints:
            state = checkpoints.restore(like)
    except ValueError:
        return "refused"
    came_from = next((step for step, true in truth.items() if _equal(state, true)), None)
    if came_from == newest:
        return "unharmed"
    return (
        "fell_back" if came_from is not None and "is damaged" in said.getvalue() else "silent_wrong"
    )
