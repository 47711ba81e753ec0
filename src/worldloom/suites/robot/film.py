"""Films of a robot: a GIF always, an MP4 where there is an encoder.

Frames come from MuJoCo's renderer where EGL or OSMesa is present, and are drawn here where neither
is.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from worldloom.core.names import suggest
from worldloom.report.gif import save_gif
from worldloom.suites.robot.drawing import drawings
from worldloom.suites.robot.model import CONTROL_SECONDS, Robot, mujoco
from worldloom.suites.robot.shapes import moving_shapes

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

Look = Literal["auto", "mujoco", "drawing"]
SIZE = (640, 480)  # of the MP4; even numbers, as its encoder wants them
GIF_SIZE = (400, 300)
GIF_FPS = 12.5  # at most: every second frame of a film is enough for a GIF, and half of its size
_GRAPHICS = ("egl", "osmesa")
_PATIENCE = 60.0  # seconds until the first frame: a driver may hang


@dataclass(frozen=True)
class Film:
    """What was written: `mp4` is None where no encoder is at hand, and `notes` say so."""

    gif: Path
    mp4: Path | None
    drawn_by: str  # mujoco or drawing
    notes: tuple[str, ...] = ()


def film(
    robot: Robot,
    qpos: np.ndarray,
    path: str | Path,
    fps: float = 25.0,
    captions: str | Sequence[str] = "",
    look: Look = "auto",
) -> Film:
    """Films qpos (T, nq), 50 rows a second, into `path` with the endings .gif and .mp4.

    captions: a line for the whole film, or one for each row of qpos. look: `mujoco` renders,
    `drawing` draws from the side, `auto` renders where that works.
    """
    if look not in get_args(Look):
        raise ValueError(f"film: look={look!r}; {suggest(str(look), list(get_args(Look)))}")
    if not 0.0 < fps <= 1.0 / CONTROL_SECONDS:
        raise ValueError(f"film: fps={fps:g}; it must be above 0 and at most 50")
    lines = [captions] * len(qpos) if isinstance(captions, str) else list(captions)
    if len(lines) != len(qpos):
        raise ValueError(f"film: {len(lines)} captions for {len(qpos)} frames; give one for each")
    path = Path(path).with_suffix("")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = frame_rows(len(qpos), fps)
    notes: list[str] = []
    moving = moving_shapes(robot, qpos)  # checks qpos, whoever draws it
    with tempfile.TemporaryDirectory(prefix="worldloom-film-") as work:
        frames: Iterator[Picture] | None = None
        if look != "drawing":
            try:
                frames = rendered(robot, qpos[rows], SIZE, Path(work))
            except NoGraphics as why:
                if look == "mujoco":
                    raise ValueError(f"film: MuJoCo's renderer does not work here: {why}") from None
                notes.append(f"drawn without MuJoCo's renderer: {why}")
        drawn_by = "drawing" if frames is None else "mujoco"
        shown = drawings(moving, SIZE, rows) if frames is None else frames
        captioned = (_captioned(frame, lines[row]) for frame, row in zip(shown, rows, strict=True))
        gif, mp4, failure = _write(captioned, path, fps)
    notes += [failure] if failure else []
    return Film(gif, mp4, drawn_by, tuple(notes))


def _write(
    frames: Iterable["Picture"], path: Path, fps: float
) -> tuple[Path, Path | None, str | None]:
    """Both files in one pass: the large frames of a long film would not fit the memory."""
    from PIL import Image

    skip = max(1, round(fps / GIF_FPS))
    small: list[Picture] = []
    with Mp4(path.with_suffix(".mp4"), SIZE, fps) as large:
        for i, frame in enumerate(frames):
            large.add(frame)
            if i % skip == 0:
                small.append(frame.resize(GIF_SIZE, Image.Resampling.LANCZOS))
    # A GIF counts in hundredths of a second.
    gif = save_gif(small, path.with_suffix(".gif"), ms=round(100 * skip / fps) * 10)
    return gif, large.written, large.failure


def frame_rows(steps: int, fps: float) -> list[int]:
    """Which rows of a recording are shown, so that a second of the film is a second."""
    count = max(1, round(steps * CONTROL_SECONDS * fps))
    return [min(round(i / fps / CONTROL_SECONDS), steps - 1) for i in range(count)]


def _captioned(frame: "Picture", caption: str) -> "Picture":
    if not caption:
        return frame
    from PIL import ImageDraw, ImageFont

    font = ImageFont.load_default(0.042 * frame.height)
    ImageDraw.Draw(frame).text(
        (0.03 * frame.width, 0.05 * frame.height), caption, (44, 52, 66), font, anchor="lm"
    )
    return frame


# MuJoCo's renderer -----------------------------------------------------------------------------


class NoGraphics(RuntimeError):
    """MuJoCo cannot render on this machine; the message says why."""


def rendered(
    robot: Robot, qpos: np.ndarray, size: tuple[int, int], work: Path
) -> Iterator["Picture"]:
    """Pictures of qpos (F, nq) by MuJoCo; NoGraphics if there are none to be had."""
    engine = mujoco()
    engine.mj_saveModel(robot.model, str(work / "model.mjb"), None)
    np.save(work / "qpos.npy", np.asarray(qpos, np.float64))
    job = {"size": size, "base_body": robot.base_body, "base_height": robot.home_height}
    (work / "job.json").write_text(json.dumps(job))
    reasons = []
    for graphics in _GRAPHICS:
        stream = _stream(graphics, size, len(qpos), work)
        try:
            first = next(stream)
        except NoGraphics as why:
            reasons.append(f"{graphics}: {why}")
        else:
            return chain([first], stream)
    raise NoGraphics("; ".join(reasons))


def _stream(graphics: str, size: tuple[int, int], count: int, work: Path) -> Iterator["Picture"]:
    from PIL import Image

    width, height = size
    # -P: the neighbours of the script would shadow modules of the standard library.
    command = [sys.executable, "-P", str(Path(__file__).with_name("gl.py")), str(work)]
    environment = os.environ | {"MUJOCO_GL": graphics, "PYOPENGL_PLATFORM": graphics}
    with (
        open(work / "said.txt", "w+b") as said,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        assert process.stdout is not None
        late = threading.Timer(_PATIENCE, process.kill)
        late.start()
        try:
            for i in range(count):
                pixels = process.stdout.read(width * height * 3)
                late.cancel()
                if len(pixels) < width * height * 3:
                    process.wait()
                    said.seek(0)
                    lines = said.read().decode(errors="replace").strip().splitlines()
                    why = lines[-1][:120] if lines else f"it ended with {process.returncode}"
                    raise NoGraphics(f"no frame {i}, {why}")
                yield Image.frombytes("RGB", size, pixels)
        finally:
            late.cancel()
            process.kill()


# MP4 -------------------------------------------------------------------------------------------


def encoder() -> str | None:
    """The path of ffmpeg: the machine's, or the one that the package imageio-ffmpeg brings."""
    installed = shutil.which("ffmpeg")
    if installed is not None:
        return installed
    try:
        import imageio_ffmpeg
    except ImportError:
        return None
    try:
        return imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError:
        return None


class Mp4:
    """Writes an MP4 that browsers play, whole or not at all.

    Afterwards `written` is its path, or `failure` says why there is none.
    """

    def __init__(self, path: Path, size: tuple[int, int], fps: float):
        self.written: Path | None = None
        self.failure: str | None = None
        self._path = path
        self._draft = path.with_name(f".{path.stem}.{os.getpid()}.mp4")
        self._process: subprocess.Popen[bytes] | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the exit)
        ffmpeg = encoder()
        if ffmpeg is None:
            self.failure = "no MP4: there is no ffmpeg; install it, or pip install imageio-ffmpeg"
            return
        command = [
            ffmpeg,
            "-y",
            "-loglevel",
            "error",
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-s",
            f"{size[0]}x{size[1]}",
            "-r",
            f"{fps:g}",
            "-i",
            "-",
            "-an",
            "-c:v",
            "libx264",
            "-crf",
            "21",
            "-pix_fmt",
            "yuv420p",
            "-movflags",
            "+faststart",
            str(self._draft),
        ]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said
            )
        except OSError as error:
            self.failure = f"no MP4: {ffmpeg} does not run: {error.strerror}"

    def __enter__(self) -> "Mp4":
        return self

    def add(self, frame: "Picture") -> None:
        """One more frame; after a failure it is left out."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(BrokenPipeError):  # what went wrong is said at the end
                self._process.stdin.write(frame.convert("RGB").tobytes())

    def __exit__(self, kind: object, *rest: object) -> None:
        if self._process is not None:
            with suppress(BrokenPipeError):
                self._process.communicate()
            if self._process.returncode == 0 and kind is None:
                os.replace(self._draft, self._path)
                self.written = self._path
            else:
                self._said.seek(0)
                lines = self._said.read().decode(errors="replace").strip().splitlines()
                why = lines[-1][:120] if lines else f"it ended with {self._process.returncode}"
                self.failure = f"no MP4: ffmpeg failed: {why}"
        self._said.close()
        self._draft.unlink(missing_ok=True)
