"""A page to watch a robot on: an interactive replay in 3D with plots, in one file."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.files import plain
from worldloom.report.colors import series_color
from worldloom.report.page import write
from worldloom.suites.robot.forces import torque_limits
from worldloom.suites.robot.kinematics import GRAVITY
from worldloom.suites.robot.meshes import fitting, packed, quantised
from worldloom.suites.robot.model import Robot
from worldloom.suites.robot.recording import Recording
from worldloom.suites.robot.shapes import MovingShapes, boxed, ground_shape, moving_shapes

PAGE_BYTES = 2_000_000  # of a page: for more, meshes are made coarser and episodes left out
OWN_BYTES = 80_000  # of them for scripts and text
MESH_BYTES = 1_000_000  # at most for meshes

EARTH = (196, 190, 178)  # the colour of uneven ground

SCENE_SCRIPTS = ("triangles.js", "scene.js")  # that draw a robot, here and in the studio

Episodes = Recording | Mapping[str, Recording]


def write_replay(
    path: str | Path, robot: Robot, episodes: Episodes, title: str = "", about: str = ""
) -> Path:
    """Writes the replay of recordings and returns its path; it needs nothing but a browser.

    episodes: one, or several by the names under which the page offers them, the first shown first.
    about: a few words below the title, such as the run and the task.
    """
    return write(path, replay(robot, episodes, title, about))


def replay(robot: Robot, episodes: Episodes, title: str = "", about: str = "") -> str:
    """The replay of recordings as an HTML document."""
    named = {"": episodes} if isinstance(episodes, Recording) else dict(episodes)
    if not named:
        raise ValueError("replay: there is no episode to show")
    data = _data(robot, named, about)
    here = files("worldloom.suites.robot")
    names = (*SCENE_SCRIPTS, "plots.js", "replay.js")
    scripts = [here.joinpath(name).read_text(encoding="utf-8") for name in names]
    parts = {
        "title": escape(title or f"{robot.name}, a replay"),
        # Whatever a name contains, it cannot end the script that holds it.
        "data": _json(data).replace("<", "\\u003c"),
        "scripts": "\n".join(scripts),
    }
    template = here.joinpath("replay.html").read_text(encoding="utf-8")
    # In one pass: what is put in is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _data(robot: Robot, named: dict[str, Recording], about: str) -> dict[str, Any]:
    """All that the page knows; most of it are poses, forces and meshes in base64."""
    first = next(iter(named.values()))
    moving = [moving_shapes(robot, recording.qpos) for recording in named.values()]
    bodies = seen_bodies(moving[0])
    if robot.ground is not None:
        bodies = sorted({0, *bodies})
    episodes = [
        _episode(robot, name, recording, shapes, bodies, first.names)
        for (name, recording), shapes in zip(named.items(), moving, strict=True)
    ]
    scenery = moving[0]
    if robot.ground is not None:
        around = [ground_shape(robot.ground, shapes.base, EARTH) for shapes in moving]
        scenery = replace(scenery, shapes=(*scenery.shapes, *around))
    sizes = np.cumsum([len(_json(episode)) for episode in episodes])
    room = PAGE_BYTES - OWN_BYTES
    count = max(1, int((sizes <= room).sum()))
    scene = drawn_scene(scenery, min(MESH_BYTES, room - int(sizes[count - 1])))
    left_out = f"{len(named) - count} of {len(named)} episodes are left out: the page is full."
    return scene | {
        "about": about,
        "uneven": robot.ground is not None,
        "notes": [*filter(None, [scene["note"]]), *([left_out] if count < len(named) else [])],
        "seconds": robot.control_seconds,
        "weight": robot.mass * GRAVITY,
        "joints": list(robot.joints),
        "limits": [float(x) if np.isfinite(x) else None for x in torque_limits(robot)],
        "names": list(first.names),
        "palette": [series_color(i) for i in range(max(2, len(first.names)))],
        "feet": _foot_colors(robot, moving[0]),
        "episodes": episodes[:count],
    }


def _episode(
    robot: Robot,
    name: str,
    recording: Recording,
    moving: MovingShapes,
    bodies: list[int],
    names: tuple[str, ...],
) -> dict[str, Any]:
    """One recording: what is plotted to the bit, what is drawn or only looked at in 16 bits."""
    joints, steps = robot.num_joints, len(recording)
    if recording.target.shape[1:] != (joints,):
        raise ValueError(
            f"replay: targets of shape {recording.target.shape} for {joints} joints of "
            f"{robot.name}; the recording is of another robot"
        )
    if recording.names != names:
        raise ValueError(f"replay: {name!r} has other terms of the reward than the first episode")
    exact = {
        "angles": recording.qpos[:, robot.joint_qpos],
        "targets": recording.target,
        "terms": recording.terms,
        "velocity": recording.velocity,
        "command": recording.command,
    }
    drawn = {
        "positions": moving.positions[:, bodies],
        "quaternions": moving.quaternions[:, bodies],
        "base": moving.base,
        "push": recording.push,
        "torque": recording.torque,
        "force": recording.force,
        "pressure": recording.pressure,
    }
    drawn = {name: table for name, table in drawn.items() if table is not None}
    for what, table in (exact | drawn).items():
        if len(table) != steps:
            raise ValueError(f"replay: {len(table)} rows of {what} for {steps} of qpos")
        if not np.isfinite(table).all():
            raise ValueError(f"replay: {what} of the recording is not finite; cut it before that")
    return {
        "name": name,
        "steps": steps,
        "total": recording.total,
        "fell": recording.fell,
        "diverged": recording.diverged,
        "contact": _packed(recording.contact, "u1"),
        **{what: _packed(table, "<f4") for what, table in exact.items()},
        **{what: quantised(table) for what, table in drawn.items()},
    }


def seen_bodies(moving: MovingShapes) -> list[int]:
    """The bodies that have shapes."""
    return sorted({shape.body for shape in moving.shapes})


def drawn_scene(moving: MovingShapes, limit: int = MESH_BYTES) -> dict[str, Any]:
    """Shapes and meshes as scene.js draws them, in `limit` bytes for the meshes.

    `body` of a shape counts among those that are seen. A note says what meshes have lost.
    """
    seen = seen_bodies(moving)
    unique = list({id(s.mesh): s.mesh for s in moving.shapes if s.mesh is not None}.values())
    meshes, note = fitting(unique, limit), ""
    before, after = (sum(len(m.triangles) for m in some or ()) for some in (unique, meshes))
    if meshes is None:
        note = f"Meshes are drawn as boxes: {before:,} triangles are too many for a page."
    elif after < before:
        note = f"Meshes are coarser than the robot's: {after:,} of {before:,} triangles."
    shapes = []
    for shape in moving.shapes:
        place = next((i for i, mesh in enumerate(unique) if mesh is shape.mesh), None)
        if place is not None and not (meshes and len(meshes[place].triangles)):
            shape, place = boxed(shape), None
        told = {name: _rounded(value) for name, value in vars(shape).items() if name != "mesh"}
        told |= {"body": seen.index(shape.body)} | ({} if place is None else {"mesh": place})
        shapes.append(told)
    return {
        "height": moving.height,
        "bodies": len(seen),
        "shapes": shapes,
        "meshes": [packed(mesh) for mesh in meshes or ()],
        "note": note,
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


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
