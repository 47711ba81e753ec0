"""Films of a robot: a GIF always, an MP4 where there is an encoder.

Frames come from MuJoCo's renderer where EGL or OSMesa is present, and are drawn here where neither
is.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from worldloom.core.files import atomic_path
from worldloom.core.memory import blank, carried, without_memory
from worldloom.core.names import suggest
from worldloom.report.gif import save_gif
from worldloom.suites.robot.drawing import drawings
from worldloom.suites.robot.model import Robot, mujoco
from worldloom.suites.robot.recording import record_episodes
from worldloom.suites.robot.replay import write_replay
from worldloom.suites.robot.shapes import moving_shapes
from worldloom.suites.robot.world import RobotWorld
from worldloom.training.driver import Hook

if TYPE_CHECKING:
    from worldloom.training.run import Run

FILM, REPLAY = "robot.gif", "replay.html"
FILM_SECONDS = 10
EPISODES = 7  # that are played, of which replays show the median, the best and the worst
Look = Literal["auto", "mujoco", "drawing"]
SIZE = (640, 480)  # of the MP4; even numbers, as its encoder wants them
GIF_SIZE = (400, 300)
EVERY = 2  # steps of control to a frame: 25 frames a second
# Frames to one of the GIF, or more where it would be too large for a page.
GIF_EVERY, GIF_BYTES = 2, 1_200_000
_GRAPHICS = ("egl", "osmesa")


class Pictures(Hook):
    """robot.gif and replay.html at the end of a run."""

    phase = "filming"

    def on_end(self, run: "Run") -> None:
        # Who pressed Ctrl-C wants to leave.
        if not run.interrupted:
            film_run(run, run.folder / FILM, run.config.seed)


def film_run(run: "Run", path: str | Path, seed: int = 0) -> Path:
    """Writes a GIF of one greedy episode, an MP4 where there is an encoder, and replay.html.

    Of several episodes the film shows the median by return: neither luck nor bad luck.
    """
    shown, path = _shown_world(run.problem.env.base), Path(path)
    steps = round(FILM_SECONDS / shown.robot.control_seconds)
    seeds = [(seed + i) % 2**32 for i in range(EPISODES)]
    recordings = record_episodes(shown, player(run), seeds, steps)
    worst, *_, best = ranked = sorted(recordings, key=lambda recording: recording.total)
    median = ranked[EPISODES // 2]
    episodes = {"median": median, f"best of {EPISODES}": best, f"worst of {EPISODES}": worst}
    title = f"{shown.task.name}, step {run.steps:,}"
    write_replay(path.with_name(REPLAY), shown.robot, episodes, title=title)
    return film(shown.robot, median.qpos, path).gif


def player(run: "Run") -> Callable[[Any], Any]:
    """`run.act` for the observations of one episode after the other step, as `record_episodes`
    gives them: it remembers what its agent does."""
    size, last = run.config.memory_size, None

    def act(obs: Any) -> Any:
        nonlocal last
        last = run.act(blank(obs, size) if last is None else carried(obs, last))
        return without_memory(last)

    return act


def _shown_world(world: RobotWorld) -> RobotWorld:
    """The world to film: a walk in the middle of what is evaluated, and never standing still."""
    if not world.task.moves or world.task.directions > 1:
        return world
    middle = jnp.full(2, world.params.rules.command.mean(), jnp.float32)
    rules = world.params.rules.replace(command=middle, still=jnp.float32(0.0))
    return replace(world, params=world.params.replace(rules=rules))


@dataclass(frozen=True)
class Film:
    """What was written: `mp4` is None where it could not be made; `notes` say what went wrong."""

    gif: Path
    mp4: Path | None
    notes: tuple[str, ...] = ()


def film(robot: Robot, qpos: np.ndarray, path: str | Path, look: Look = "auto") -> Film:
    """Films qpos (T, nq), at its rate of control, into `path` with the endings .gif and .mp4.

    look: `mujoco` renders, `drawing` draws from the side, `auto` renders where that works.
    """
    from PIL import Image

    if look not in get_args(Look):
        raise ValueError(f"film: look={look!r}; {suggest(str(look), list(get_args(Look)))}")
    moving = moving_shapes(robot, qpos)  # checks qpos, whoever draws it
    path, (width, height) = Path(path), SIZE
    path.parent.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".film-", dir=path.parent) as work:
        raw = Path(work) / "frames.rgb"  # in a file: those of a long film do not fit the memory
        if look != "drawing":
            try:
                _render(robot, qpos[::EVERY], raw)
            except RuntimeError as why:
                if look == "mujoco":
                    raise ValueError(f"film: MuJoCo's renderer does not work here: {why}") from None
                notes.append(f"drawn without MuJoCo's renderer: {why}")
        if look == "drawing" or notes:
            pictures = drawings(moving, SIZE, range(0, len(qpos), EVERY))
            with raw.open("wb") as file:
                file.writelines(picture.tobytes() for picture in pictures)
        frames = np.memmap(raw, np.uint8, "r").reshape(-1, height, width, 3)
        small = [
            Image.fromarray(frame).resize(GIF_SIZE, Image.Resampling.LANCZOS)
            for frame in frames[::GIF_EVERY]
        ]
        period = round(1000 * robot.control_seconds * EVERY * GIF_EVERY)
        gif, mp4 = save_gif(small, path.with_suffix(".gif"), period), path.with_suffix(".mp4")
        while gif.stat().st_size > GIF_BYTES and len(small) > 1:
            small, period = small[::2], 2 * period
            save_gif(small, gif, period)
        try:
            _encode(raw, mp4, robot.control_seconds)
        except (RuntimeError, OSError) as why:
            notes.append(f"no MP4: {why}")
            mp4 = None
    return Film(gif, mp4, tuple(notes))


def _render(robot: Robot, qpos: np.ndarray, frames: Path) -> None:
    """Writes pictures of qpos (F, nq) by MuJoCo as rows of RGB; a RuntimeError where it cannot."""
    mujoco().mj_saveModel(robot.model, str(frames.with_name("model.mjb")), None)
    np.save(frames.with_name("qpos.npy"), np.asarray(qpos, np.float64))
    # -P: the neighbours of the script would shadow modules of the standard library.
    script = [sys.executable, "-P", str(Path(__file__).with_name("gl.py")), str(frames)]
    command = [*script, *map(str, (*SIZE, robot.base_body, robot.home_height))]
    reasons = []
    for graphics in _GRAPHICS:
        try:
            return _run(command, MUJOCO_GL=graphics, PYOPENGL_PLATFORM=graphics)
        except RuntimeError as why:
            reasons.append(f"{graphics}: {why}")
    raise RuntimeError("; ".join(reasons))


def _encode(frames: Path, path: Path, seconds: float) -> None:
    """Writes an MP4 that browsers play, whole or not at all."""
    ffmpeg = encoder()
    if ffmpeg is None:
        raise RuntimeError("there is no ffmpeg; install it, or pip install imageio-ffmpeg")
    size, rate = "x".join(map(str, SIZE)), 1.0 / (EVERY * seconds)
    given = shlex.split(f"-y -loglevel error -f rawvideo -pix_fmt rgb24 -s {size} -r {rate:g} -i")
    made = shlex.split("-an -c:v libx264 -crf 21 -pix_fmt yuv420p -movflags +faststart -f mp4")
    with atomic_path(path) as draft:
        _run([ffmpeg, *given, str(frames), *made, str(draft)])


def encoder() -> str | None:
    """The path of ffmpeg: the machine's, or the one that the package imageio-ffmpeg brings."""
    installed = shutil.which("ffmpeg")
    if installed is not None:
        return installed
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return None


def _run(command: Sequence[str], **environment: str) -> None:
    """Runs a program; a RuntimeError has its last words if it fails."""
    options: Any = {"stdin": subprocess.DEVNULL, "capture_output": True, "check": False}
    done = subprocess.run(command, env=os.environ | environment, **options)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise RuntimeError(lines[-1][:120] if lines else f"it ended with {done.returncode}")
