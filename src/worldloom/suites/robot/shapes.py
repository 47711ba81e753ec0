"""A robot as shapes that move with its bodies: what drawings and pages are made of."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from worldloom.report.colors import RGB
from worldloom.suites.robot.ground import Ground
from worldloom.suites.robot.meshes import Mesh, mesh_of
from worldloom.suites.robot.model import Robot, mujoco

VISIBLE_GROUPS = 3  # MuJoCo's viewer shows groups 0, 1 and 2
_GREY = np.array([0.5, 0.5, 0.5, 1.0], np.float32)  # of geoms that no colour was given


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape fixed to a body.

    kind: sphere, capsule, cylinder, ellipsoid, box or mesh. size (3,): half axes; of a capsule and
    a cylinder the radius twice and half the length of the straight part, which runs along z; of a
    mesh those of the box around it.
    """

    kind: str
    size: np.ndarray
    color: tuple[float, float, float]  # 0 to 1
    body: int  # row among the poses
    position: np.ndarray  # (3,) in the body's frame
    quaternion: np.ndarray  # (4,) w x y z, in the body's frame
    mesh: Mesh | None = None

    @property
    def rgb(self) -> RGB:
        """The colour in 0 to 255."""
        red, green, blue = (round(255 * min(max(part, 0.0), 1.0)) for part in self.color)
        return red, green, blue


@dataclass(frozen=True, eq=False)
class MovingShapes:
    """The shapes of a robot, S of them, and where they and its bodies are in T frames."""

    shapes: tuple[Shape, ...]
    centres: np.ndarray  # (T, S, 3)
    rotations: np.ndarray  # (T, S, 3, 3)
    positions: np.ndarray  # (T, bodies, 3)
    quaternions: np.ndarray  # (T, bodies, 4)
    base: np.ndarray  # (T, 3) of the body that carries the robot
    height: float  # of that body at home
    ground: Ground | None = None  # None where it is flat


def moving_shapes(robot: Robot, qpos: np.ndarray) -> MovingShapes:
    """The shapes of a robot along qpos (T, nq). Planes are left out: a floor is drawn apart."""
    engine, model = mujoco(), robot.model
    qpos = np.asarray(qpos, np.float64)
    if qpos.ndim != 2 or qpos.shape[1] != model.nq or not len(qpos):
        raise ValueError(
            f"{robot.name} is described by {model.nq} numbers a frame, got an array of shape "
            f"{qpos.shape}; give qpos (frames, {model.nq})"
        )
    if not np.isfinite(qpos).all():
        first = int(np.flatnonzero(~np.isfinite(qpos).all(axis=1))[0])
        raise ValueError(f"qpos of frame {first} is not finite; cut the recording before it")
    # Uneven ground is no part of a robot; a height field of the model's own may be.
    plane, field = engine.mjtGeom.mjGEOM_PLANE, engine.mjtGeom.mjGEOM_HFIELD
    geoms = [
        geom
        for geom in range(model.ngeom)
        if model.geom_group[geom] < VISIBLE_GROUPS
        and model.geom_type[geom] != plane
        and (robot.ground is None or model.geom_type[geom] != field)
        and _rgba(model, geom)[3] > 0.0
    ]
    mesh = cache(partial(mesh_of, model))  # many geoms may show one mesh
    shapes = [_shape(engine, model, geom, mesh) for geom in geoms]
    data, rows = engine.MjData(model), []
    for row in qpos:
        data.qpos[:] = row
        engine.mj_kinematics(model, data)
        turned = data.geom_xmat[geoms].reshape(-1, 3, 3)
        offset = [data.xmat[shape.body].reshape(3, 3) @ shape.position for shape in shapes]
        centres = data.xpos[[shape.body for shape in shapes]] + offset
        rows.append([centres, turned, data.xpos.copy(), data.xquat.copy()])
    centres, turned, places, quaternions = (np.stack(x) for x in zip(*rows, strict=True))
    base = places[:, robot.base_body]
    return MovingShapes(
        tuple(shapes), centres, turned, places, quaternions, base, robot.home_height, robot.ground
    )


def ground_shape(
    ground: Ground, path: np.ndarray, color: RGB, reach: float = 0.8, every: int = 1
) -> Shape:
    """The ground around a path (T, 2 or 3), up to `reach` m of the biped's size to each side.

    every: of the corners along x, which are finer than those along y, that one is kept.
    """
    rows, columns = ground.heights.shape
    ends = [np.asarray(path)[:, :2].min(0), np.asarray(path)[:, :2].max(0)]
    wider = ground.scale * reach * np.array([[-1.0], [1.0]])
    low, high = (np.array(ends) + wider - ground.corner) / ground.cell
    (first, start), (last, end) = np.floor(low).astype(int), np.ceil(high).astype(int)
    across = np.arange(max(first, 0), min(last, columns - 1) + 1, every)
    along = np.arange(max(start, 0), min(end, rows - 1) + 1)
    x, y = np.meshgrid(across, along)
    vertices = np.stack(
        [
            ground.corner[0] + ground.cell[0] * x,
            ground.corner[1] + ground.cell[1] * y,
            ground.heights[y, x],
        ],
        axis=-1,
    ).reshape(-1, 3)
    corner = (np.arange(len(along) - 1)[:, None] * len(across) + np.arange(len(across) - 1)).ravel()
    far = corner + len(across) + 1
    triangles = [(corner, corner + 1, far), (corner, far, corner + len(across))]
    mesh = Mesh(vertices, np.concatenate([np.stack(some, axis=-1) for some in triangles]))
    red, green, blue = (part / 255 for part in color)
    size = np.ptp(vertices, axis=0) / 2.0
    still = np.array([1.0, 0.0, 0.0, 0.0])
    return Shape("mesh", size, (red, green, blue), 0, np.zeros(3), still, mesh)


def _rgba(model: Any, geom: int) -> np.ndarray:
    """As MuJoCo's viewer has it: the geom's own, unless it has none but a material."""
    material, own = model.geom_matid[geom], model.geom_rgba[geom]
    return model.mat_rgba[material] if material >= 0 and (own == _GREY).all() else own


def _shape(engine: Any, model: Any, geom: int, mesh_of: Callable[[int], Mesh]) -> Shape:
    kind = engine.mjtGeom(int(model.geom_type[geom])).name.removeprefix("mjGEOM_").lower()
    size, position = model.geom_size[geom].copy(), model.geom_pos[geom].copy()
    quaternion, mesh = model.geom_quat[geom].copy(), None
    if kind == "sphere":
        size[:] = size[0]
    elif kind in ("capsule", "cylinder"):
        size = size[[0, 0, 1]]
    elif kind in ("mesh", "sdf") and model.mesh_facenum[model.geom_dataid[geom]] > 0:
        mesh = mesh_of(int(model.geom_dataid[geom]))
        kind, size = "mesh", model.geom_aabb[geom, 3:].copy()
    elif kind not in ("ellipsoid", "box"):  # a height field: the box around it
        kind, size, offset = "box", model.geom_aabb[geom, 3:].copy(), np.empty(3)
        engine.mju_rotVecQuat(offset, model.geom_aabb[geom, :3], quaternion)
        position += offset
    red, green, blue = map(float, _rgba(model, geom)[:3])
    body = int(model.geom_bodyid[geom])
    return Shape(kind, size, (red, green, blue), body, position, quaternion, mesh)


def boxed(shape: Shape) -> Shape:
    """The box around a mesh."""
    if shape.mesh is None:
        return shape
    low, high = shape.mesh.vertices.min(0), shape.mesh.vertices.max(0)
    offset = np.empty(3)
    mujoco().mju_rotVecQuat(offset, (low + high) / 2, shape.quaternion)
    return replace(
        shape, kind="box", size=(high - low) / 2, position=shape.position + offset, mesh=None
    )


_ANGLES = np.linspace(0.0, 2.0 * np.pi, 64, endpoint=False) + 1e-3  # no box has an edge just there
_AROUND = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=-1)  # (64, 2)


def outline(shape: Shape, rotation: np.ndarray, view: np.ndarray) -> np.ndarray:
    """The silhouette (64, 2) of a shape about its centre, seen along rows `view` (2, 3).

    It is where a shape reaches furthest, in all directions: of a mesh, its convex hull.
    """
    if shape.mesh is not None:
        points = shape.mesh.hull @ (view @ rotation).T
        return points[(points @ _AROUND.T).argmax(0)]
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
