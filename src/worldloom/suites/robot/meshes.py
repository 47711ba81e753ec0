"""Triangle meshes of a robot: as MuJoCo compiled them, made coarser, and packed for a page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

FINEST = 2.0**-10  # of the largest mesh: the smallest cell in which vertices are merged
COARSEST = 0.5


@dataclass(frozen=True, eq=False)
class Mesh:
    """Triangles in the frame of the geom that shows them."""

    vertices: np.ndarray  # (V, 3) m
    triangles: np.ndarray  # (F, 3) places among the vertices, counterclockwise from outside

    @property
    def num_bytes(self) -> int:
        """Of a page that holds it, about."""
        wide = 2 if len(self.vertices) <= 2**16 else 4
        return (4 * (6 * len(self.vertices) + 3 * wide * len(self.triangles))) // 3 + 100

    @cached_property
    def hull(self) -> np.ndarray:
        """(P, 3) the vertices that reach furthest in one of a thousand directions."""
        z = np.linspace(-1.0, 1.0, 1000)
        turn = np.pi * (1.0 + np.sqrt(5.0)) * np.arange(1000)  # a spiral around the ball
        flat = np.sqrt(1.0 - z * z)
        directions = np.stack([flat * np.cos(turn), flat * np.sin(turn), z], axis=-1)
        few = np.array_split(directions, 100)  # at a time: large meshes fill the memory
        furthest = [(self.vertices @ some.T).argmax(0) for some in few]
        return self.vertices[np.unique(np.concatenate(furthest))]


def mesh_of(model: Any, number: int) -> Mesh:
    """Mesh `number` of a compiled model.

    MuJoCo moves the vertices of a mesh into the frame of its inertia, and the geoms that show it
    accordingly: position and quaternion of a geom, as compiled, put them where the file had them.
    """
    first, count = model.mesh_vertadr[number], model.mesh_vertnum[number]
    vertices = model.mesh_vert[first : first + count].astype(np.float64)
    first, count = model.mesh_faceadr[number], model.mesh_facenum[number]
    return Mesh(vertices, model.mesh_face[first : first + count].copy())


def coarser(mesh: Mesh, cell: float) -> Mesh:
    """The mesh with its vertices merged in cubes of side `cell`, m, without what falls flat."""
    places = np.floor((mesh.vertices - mesh.vertices.min(0)) / cell).astype(np.int64)
    _, where, counts = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    vertices = np.zeros((len(counts), 3))
    np.add.at(vertices, where.ravel(), mesh.vertices)
    faces = where.ravel()[mesh.triangles]
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    # The same three corners again, as from the two sides of a thin wall, are drawn once.
    _, kept = np.unique(np.sort(faces, axis=1), axis=0, return_index=True)
    used, faces = np.unique(faces[np.sort(kept)], return_inverse=True)
    return Mesh((vertices / counts[:, None])[used], faces.reshape(-1, 3))


def fitting(meshes: Sequence[Mesh], limit: int) -> list[Mesh] | None:
    """The meshes as fine as `limit` bytes of a page hold them; None if not even a coarse one fits.

    All are made coarser alike: what is merged is a length, the same on a hand and on a torso.
    """
    fitted, reach = list(meshes), max((np.ptp(m.vertices, axis=0).max() for m in meshes), default=0)
    cell = FINEST * float(reach)
    while sum(mesh.num_bytes for mesh in fitted) > max(limit, 0):
        if cell >= COARSEST * reach:
            return None
        fitted = [coarser(mesh, cell) for mesh in meshes]
        cell *= 2.0**0.5
    return fitted


def packed(mesh: Mesh) -> dict[str, Any]:
    """A mesh as scene.js reads it: vertices in 16 bits."""
    wide = len(mesh.vertices) > 2**16
    triangles = mesh.triangles.astype("<u4" if wide else "<u2")
    return {
        "vertices": quantised(mesh.vertices),
        "triangles": base64.b64encode(triangles.tobytes()).decode(),
        "wide": wide,
    }


def quantised(table: np.ndarray) -> dict[str, Any]:
    """Numbers in 16 bits each: multiples of `scale`, which is their largest / 32767."""
    scale = float(np.abs(table).max(initial=0.0)) / 32767 or 1.0
    steps = np.round(np.asarray(table, np.float64) / scale).astype("<i2")
    return {"scale": scale, "data": base64.b64encode(steps.tobytes()).decode()}
