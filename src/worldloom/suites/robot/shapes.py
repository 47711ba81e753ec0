"""A robot as simple shapes that move with its bodies: what drawings and pages are made of."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from worldloom.suites.robot.model import Robot, mujoco

VISIBLE_GROUPS = 3  # MuJoCo's viewer shows groups 0, 1 and 2


@dataclass(frozen=True, eq=False)
class Shape:
    """A convex shape fixed to a body.

    kind: sphere, capsule, cylinder, ellipsoid or box. size (3,): half axes; of a capsule and a
    cylinder the radius twice and half the length of the straight part, which runs along z.
    """

    kind: str
    size: np.ndarray
    color: tuple[float, float, float]  # 0 to 1
    body: int  # row among the poses
    position: np.ndarray  # (3,) in the body's frame
    quaternion: np.ndarray  # (4,) w x y z, in the body's frame


@dataclass(frozen=True, eq=False)
class MovingShapes:
    """The shapes of a robot, and the poses of its bodies in T frames."""

    shapes: tuple[Shape, ...]
    positions: np.ndarray  # (T, bodies, 3)
    quaternions: np.ndarray  # (T, bodies, 4)
    base: np.ndarray  # (T, 3) of the body that carries the robot
    height: float  # of that body at home

    def poses(self, frame: int) -> tuple[np.ndarray, np.ndarray]:
        """Centres (S, 3) and rotations (S, 3, 3) of the shapes in the world."""
        bodies = [shape.body for shape in self.shapes]
        turned = rotations(self.quaternions[frame, bodies])
        places = np.stack([shape.position for shape in self.shapes])
        inner = rotations(np.stack([shape.quaternion for shape in self.shapes]))
        centres = self.positions[frame, bodies] + np.einsum("sij,sj->si", turned, places)
        return centres, turned @ inner


def moving_shapes(robot: Robot, qpos: np.ndarray) -> MovingShapes:
    """The shapes of a robot along qpos (T, nq). Planes are left out: a floor is drawn apart."""
    engine, model = mujoco(), robot.model
    qpos = np.asarray(qpos, np.float64)
    if qpos.ndim != 2 or qpos.shape[1] != model.nq or not len(qpos):
        raise ValueError(
            f"{robot.name} is described by {model.nq} numbers a frame, got an array of shape "
            f"{qpos.shape}; give qpos (frames, {model.nq})"
        )
    shapes = tuple(_shape(engine, model, g) for g in range(model.ngeom) if _is_drawn(model, g))
    if not np.isfinite(qpos).all():
        first = int(np.flatnonzero(~np.isfinite(qpos).all(axis=1))[0])
        raise ValueError(f"qpos of frame {first} is not finite; cut the recording before it")
    data = engine.MjData(model)
    positions = np.empty((len(qpos), model.nbody, 3))
    quaternions = np.empty((len(qpos), model.nbody, 4))
    for t, row in enumerate(qpos):
        data.qpos[:] = row
        engine.mj_kinematics(model, data)
        positions[t], quaternions[t] = data.xpos, data.xquat
    return MovingShapes(
        shapes, positions, quaternions, positions[:, robot.base_body], robot.home_height
    )


def _is_drawn(model: Any, geom: int) -> bool:
    plane = int(mujoco().mjtGeom.mjGEOM_PLANE)
    shown = model.geom_group[geom] < VISIBLE_GROUPS and _rgba(model, geom)[3] > 0.0
    return bool(shown and model.geom_type[geom] != plane)


def _rgba(model: Any, geom: int) -> np.ndarray:
    material = model.geom_matid[geom]
    return model.mat_rgba[material] if material >= 0 else model.geom_rgba[geom]


def _shape(engine: Any, model: Any, geom: int) -> Shape:
    kinds = {
        int(engine.mjtGeom.mjGEOM_SPHERE): "sphere",
        int(engine.mjtGeom.mjGEOM_CAPSULE): "capsule",
        int(engine.mjtGeom.mjGEOM_CYLINDER): "cylinder",
        int(engine.mjtGeom.mjGEOM_ELLIPSOID): "ellipsoid",
        int(engine.mjtGeom.mjGEOM_BOX): "box",
    }
    kind = kinds.get(int(model.geom_type[geom]))
    size, position = model.geom_size[geom].copy(), model.geom_pos[geom].copy()
    quaternion = model.geom_quat[geom].copy()
    if kind is None:  # a mesh, a height field: the box around it
        kind, size = "box", model.geom_aabb[geom, 3:].copy()
        position = position + rotations(quaternion) @ model.geom_aabb[geom, :3]
    elif kind == "sphere":
        size[:] = size[0]
    elif kind in ("capsule", "cylinder"):
        size = size[[0, 0, 1]]
    red, green, blue = (float(x) for x in _rgba(model, geom)[:3])
    body = int(model.geom_bodyid[geom])
    return Shape(kind, size, (red, green, blue), body, position, quaternion)


def rotations(quaternion: np.ndarray) -> np.ndarray:
    """Matrices (..., 3, 3) of quaternions (..., 4), w x y z."""
    w, x, y, z = np.moveaxis(quaternion / np.linalg.norm(quaternion, axis=-1, keepdims=True), -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


_ANGLES = np.linspace(0.0, 2.0 * np.pi, 64, endpoint=False) + 1e-3  # no box has an edge just there
_AROUND = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=-1)  # (64, 2)


def outline(shape: Shape, rotation: np.ndarray, view: np.ndarray) -> np.ndarray:
    """The silhouette (64, 2) of a shape about its centre, seen along rows `view` (2, 3).

    Every shape here is convex: its outline is where it reaches furthest, in all directions.
    """
    axes = (view @ rotation) * shape.size  # (2, 3): the half axes on the paper
    if shape.kind == "box":
        return np.sign(_AROUND @ axes) @ axes.T
    if shape.kind in ("capsule", "cylinder"):
        ends = np.sign(_AROUND @ axes[:, 2:]) @ axes[:, 2:].T
        round_part = _AROUND * shape.size[0] if shape.kind == "capsule" else _ellipse(axes[:, :2])
        return ends + round_part
    return _ellipse(axes)


def _ellipse(axes: np.ndarray) -> np.ndarray:
    reach = _AROUND @ axes
    return reach @ axes.T / np.maximum(np.linalg.norm(reach, axis=1, keepdims=True), 1e-12)
