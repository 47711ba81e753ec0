"""How closely a steered robot follows its commands: 18 runs of its control loop on C MuJoCo.

Each run has one command from beginning to end: the ends of the trained range in one of its three
directions (forward, to the left, yaw), or in two at once.
"""

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

import worldloom
from benchmarks.robot_learning import EVALUATIONS, learned_within, settings, steps_within
from worldloom.serving import control_loop
from worldloom.training.config import TrainConfig

SECONDS = 20.0
# Mean error over the greatest command of policies that MuJoCo Playground ships, none of which fell.
PEERS = {"Apollo": 0.059, "Booster T1": 0.073, "Berkeley Humanoid": 0.103, "Unitree G1": 0.199}
SOURCE = (
    "ONNX policies shipped with MuJoCo Playground 0.2.0, run by the project's owner in C MuJoCo "
    "with commands to 1 m/s, mean error of all directions; not measured in this run"
)
SHARE = (
    "mean of two shares: the distance of mean speeds from the command over the greatest speed that "
    "is asked for, and the gap of the mean yaw rate over the greatest yaw rate; speeds count from "
    "2 s on, in the frame of the heading, of runs without a fall"
)


def commands(trained: Sequence[Sequence[float]]) -> np.ndarray:
    """(18, 3): the ends of each direction's range, alone and in pairs."""
    if len(trained) != 3:
        raise ValueError(
            "tracking is for a policy that is steered in three directions: train one with "
            "--task joystick"
        )
    ends = np.asarray(trained, np.float64)
    signs = [s for s in itertools.product((0, 1, -1), repeat=3) if 1 <= np.count_nonzero(s) <= 2]
    return np.array(
        [[{0: 0.0, 1: ends[d, 1], -1: ends[d, 0]}[s] for d, s in enumerate(row)] for row in signs]
    )


def follow(
    bundle: Path, seconds: float = SECONDS, note: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Runs the loop of a bundle with each of the commands, and sums up."""
    policy, files = control_loop.load(bundle)
    asked = commands(policy.manifest["trained"]["command"])
    runs = []
    for seed, one in enumerate(asked):
        robot = control_loop.Simulation(policy.manifest, files["robot.xml"], seed=seed)
        summary = control_loop.run(robot, policy, one, seconds, realtime=False)
        runs.append(asdict(summary))
        off = "fell" if summary.stopped else f"{summary.tracking_error:.3f} m/s"
        note(f"  {' '.join(f'{x:+.2f}' for x in one)}: {off}")
    return {"seconds": seconds, "runs": runs} | scores(asked, runs)


def scores(asked: np.ndarray, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Falls, and the mean errors of runs without one, over the greatest command: see `SHARE`."""
    up = [run for run in runs if not run["stopped"]]
    fastest, quickest = np.abs(asked[:, :2]).max(), np.abs(asked[:, 2]).max()
    result: dict[str, Any] = {"falls": len(runs) - len(up), "greatest": [fastest, quickest]}
    if not up:
        return result | {"speed_error": None, "yaw_error": None, "error_share": None}
    speed, yaw = (
        float(np.mean([run[name] for run in up])) for name in ("tracking_error", "yaw_error")
    )
    shares = {"speed_share": speed / fastest, "yaw_share": yaw / quickest}
    mean = sum(shares.values()) / 2.0
    return result | {"speed_error": speed, "yaw_error": yaw, **shares, "error_share": mean}


def config(minutes: float, tiny: bool) -> TrainConfig:
    """Of a joystick policy that is trained for so many minutes."""
    steps = steps_within(minutes)
    return settings("joystick", tiny, steps=steps, eval_every=-(-steps // EVALUATIONS))


def tracking(
    given: Path | None,
    minutes: float,
    raw: dict[str, Any],
    note: Callable[[str], None],
    seconds: float = SECONDS,
    tiny: bool = False,
) -> dict[str, Any]:
    """Follows the commands by the policy of a run or a bundle, or by one that is trained first."""
    raw |= {"unit": SHARE, "peers": PEERS, "peers_source": SOURCE}
    with tempfile.TemporaryDirectory(prefix="worldloom-tracking-") as temporary:
        if given is None:
            name = f"bench-joystick-{datetime.now():%Y%m%d-%H%M%S}"
            folder = (Path(temporary) if tiny else Path("runs")) / name
            raw["training"] = learned_within(minutes, config(minutes, tiny), folder, note)
        else:
            folder = given
        raw["policy"] = str(folder)
        if not (folder / "manifest.json").is_file():
            folder = worldloom.load(folder).export(Path(temporary) / "bundle", onnx=False)
        raw |= follow(folder, seconds, note)
    return raw
