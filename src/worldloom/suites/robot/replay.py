"""A page to watch a robot on: an interactive replay in 3D with plots, in one file."""

import base64
import json
import re
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.files import plain
from worldloom.report.colors import series_color
from worldloom.report.page import write
from worldloom.suites.robot.model import CONTROL_SECONDS, Robot
from worldloom.suites.robot.recording import Recording
from worldloom.suites.robot.shapes import MovingShapes, moving_shapes


def write_replay(
    path: str | Path, robot: Robot, recording: Recording, title: str = "", about: str = ""
) -> Path:
    """Writes the replay of a recording and returns its path; it needs nothing but a browser.

    about: a few words below the title, such as the run and the task.
    """
    return write(path, replay(robot, recording, title, about))


def replay(robot: Robot, recording: Recording, title: str = "", about: str = "") -> str:
    """The replay of a recording as an HTML document."""
    joints = robot.num_joints
    if recording.target.shape[1:] != (joints,):
        raise ValueError(
            f"replay: targets of shape {recording.target.shape} for {joints} joints of "
            f"{robot.name}; the recording is of another robot"
        )
    data = json.dumps(_data(robot, recording, about), separators=(",", ":"), allow_nan=False)
    here = files("worldloom.suites.robot")
    scripts = [here.joinpath(name).read_text(encoding="utf-8") for name in ("scene.js", "plots.js")]
    parts = {
        "title": escape(title or f"{robot.name}, a replay"),
        # Whatever a name contains, it cannot end the script that holds it.
        "data": data.replace("<", "\\u003c"),
        "scripts": "\n".join(scripts),
    }
    template = here.joinpath("replay.html").read_text(encoding="utf-8")
    # In one pass: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _data(robot: Robot, recording: Recording, about: str) -> dict[str, Any]:
    moving = moving_shapes(robot, recording.qpos)
    bodies, shapes = drawn_shapes(moving)
    tables = {
        "positions": moving.positions[:, bodies],
        "quaternions": moving.quaternions[:, bodies],
        "base": moving.base,
        "angles": recording.qpos[:, robot.joint_qpos],
        "targets": recording.target,
        "terms": recording.terms,
        "velocity": recording.velocity,
        "command": recording.command,
    }
    for name, table in tables.items():
        if not np.isfinite(table).all():
            raise ValueError(f"replay: {name} of the recording is not finite; cut it before that")
    return {
        "about": about,
        "steps": len(recording),
        "seconds": CONTROL_SECONDS,
        "height": robot.home_height,
        "bodies": len(bodies),
        "shapes": shapes,
        "joints": list(robot.joints),
        "names": list(recording.names),
        "palette": [series_color(i) for i in range(max(2, len(recording.names)))],
        "feet": _foot_colors(robot, moving),
        "fell": recording.fell,
        "diverged": recording.diverged,
        "contact": _packed(recording.contact, "u1"),
        **{name: _packed(table, "<f4") for name, table in tables.items()},
    }


def drawn_shapes(moving: MovingShapes) -> tuple[list[int], list[dict[str, Any]]]:
    """The bodies that are seen, and shapes as scene.js draws them: `body` counts among those."""
    bodies = sorted({shape.body for shape in moving.shapes})
    return bodies, [
        {name: _rounded(value) for name, value in asdict(shape).items()}
        | {"body": bodies.index(shape.body)}
        for shape in moving.shapes
    ]


def _packed(table: np.ndarray, dtype: str) -> str:
    return base64.b64encode(table.astype(dtype).tobytes()).decode()


def _rounded(value: Any) -> Any:
    return plain(np.round(value, 5)) if isinstance(value, tuple | np.ndarray) else value


def _foot_colors(robot: Robot, moving: MovingShapes) -> list[str]:
    """Of each foot's first shape, as #rrggbb; where there is none, one of the charts'."""
    colors = [series_color(i) for i in range(len(robot.foot_bodies))]
    for i, body in enumerate(robot.foot_bodies):
        shape = next((shape for shape in moving.shapes if shape.body == body), None)
        if shape is not None:
            colors[i] = "#" + bytes(shape.rgb).hex()
    return colors
