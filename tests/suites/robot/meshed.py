"""A robot of our own with meshes: the biped, on whose back and arms brackets are screwed."""

import numpy as np

from worldloom.suites.robot.model import ASSETS, biped, load

# An L, thick in z, in millimetres: neither convex nor centred, and no axis of it is an axis of its
# inertia.
_OUTLINE = np.array([[0, 0], [90, 0], [90, 25], [30, 25], [30, 70], [0, 70]], float)
VERTICES = np.concatenate([np.insert(_OUTLINE, 2, z, axis=1) for z in (0.0, 40.0)])
_TOP = [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)]
TRIANGLES = np.array(
    [(c, b, a) for a, b, c in _TOP]
    + [(6 + a, 6 + b, 6 + c) for a, b, c in _TOP]
    + [(i, (i + 1) % 6, 6 + (i + 1) % 6) for i in range(6)]
    + [(i, 6 + (i + 1) % 6, 6 + i) for i in range(6)]
)
POSITION, QUATERNION = np.array([-0.04, -0.05, 0.03]), np.array([0.8, 0.2, -0.4, 0.4])
GREEN = "0.1 0.75 0.2 1"


def write_obj(path, vertices, triangles):
    lines = [f"v {x} {y} {z}" for x, y, z in vertices]
    lines += [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in triangles]
    path.write_text("\n".join(lines) + "\n")


def meshed_robot(folder, vertices=VERTICES, triangles=TRIANGLES):
    """The biped with a mesh of millimetres on its torso, and the same on its left arm."""
    write_obj(folder / "bracket.obj", vertices, triangles)
    place = " ".join(map(str, POSITION)), " ".join(map(str, QUATERNION))
    geom = f'<geom type="mesh" mesh="bracket" mass="0.001" rgba="{GREEN}"'
    xml = biped().xml.replace(
        "<asset>", '<asset><mesh name="bracket" file="bracket.obj" scale="0.001 0.001 0.001"/>'
    )
    xml = xml.replace(
        '<geom name="visor"', f'{geom} pos="{place[0]}" quat="{place[1]}"/><geom name="visor"'
    )
    xml = xml.replace('<geom name="left_upper_arm"', f'{geom}/><geom name="left_upper_arm"')
    (folder / "meshed.xml").write_text(xml)
    (folder / "meshed.yaml").write_text((ASSETS / "biped.yaml").read_text())
    return load(folder / "meshed.xml")


def rotation(quaternion):
    """The matrix (3, 3) of a quaternion w x y z of any length, written out."""
    w, x, y, z = np.asarray(quaternion) / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def ball(rows):
    """A ball of radius 80 mm: vertices, and 2 * rows * rows triangles or a little less."""
    polar, around = np.meshgrid(np.linspace(0, np.pi, rows + 1), np.arange(rows) * 2 * np.pi / rows)
    polar, around = polar.T, around.T
    points = [np.sin(polar) * np.cos(around), np.sin(polar) * np.sin(around), np.cos(polar)]

    def at(r, c):
        return r * rows + c % rows

    corners = [(r, c) for r in range(rows) for c in range(rows)]
    triangles = [(at(r, c), at(r + 1, c), at(r + 1, c + 1)) for r, c in corners if r < rows - 1]
    triangles += [(at(r, c), at(r + 1, c + 1), at(r, c + 1)) for r, c in corners if r]
    return 80.0 * np.stack(points, axis=-1).reshape(-1, 3), np.array(triangles)
