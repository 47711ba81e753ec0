"""Meshes in pages: what is drawn is what the file of the mesh says, where the MJCF puts it."""

import base64
import json

import numpy as np
import pytest

pytest.importorskip("mujoco")

from suites.robot import meshed
from suites.robot.meshed import POSITION, QUATERNION, TRIANGLES, VERTICES, rotation
from worldloom.suites.robot import world
from worldloom.suites.robot.meshes import Mesh, coarser, fitting, packed
from worldloom.suites.robot.replay import drawn_scene
from worldloom.suites.robot.shapes import moving_shapes, outline
from worldloom.suites.robot.studio import RobotSession


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    return meshed.meshed_robot(tmp_path_factory.mktemp("meshed"))


@pytest.fixture(scope="module")
def moving(robot):
    return moving_shapes(robot, robot.home[None])


def unpacked(told):
    """What a page has of a mesh: vertices, triangles, and how coarse its numbers are."""
    steps = np.frombuffer(base64.b64decode(told["vertices"]["data"]), "<i2").reshape(-1, 3)
    kind = "<u4" if told["wide"] else "<u2"
    triangles = np.frombuffer(base64.b64decode(told["triangles"]), kind).reshape(-1, 3)
    return steps * told["vertices"]["scale"], triangles, told["vertices"]["scale"]


def facets(vertices, triangles):
    """Centres of triangles, and their normals, which are as long as they are large, (F, 6)."""
    a, b, c = (vertices[triangles[:, i]] for i in range(3))
    return np.concatenate([(a + b + c) / 3, np.cross(b - a, c - a)], axis=1)


@pytest.mark.parametrize(
    ("body", "position", "quaternion"),
    [("torso", POSITION, QUATERNION), ("left_arm", np.zeros(3), [1.0, 0.0, 0.0, 0.0])],
)
def test_a_mesh_is_in_the_frame_of_its_body_as_file_and_geom_say(
    robot, moving, body, position, quaternion
):
    scene = drawn_scene(moving)
    number = robot.model.body(body).id
    seen = sorted({shape.body for shape in moving.shapes})
    (shape,) = [s for s in scene["shapes"] if s["kind"] == "mesh" and seen[s["body"]] == number]
    vertices, triangles, scale = unpacked(scene["meshes"][shape["mesh"]])
    there = vertices @ rotation(shape["quaternion"]).T + shape["position"]
    wanted = facets(0.001 * VERTICES @ rotation(quaternion).T + position, TRIANGLES)
    found = facets(there, triangles)
    assert found.shape == wanted.shape == (20, 6)
    gaps = np.abs(found[:, None] - wanted).max(-1)
    # Half a step of 16 bits, and what positions and quaternions lose by five digits.
    assert gaps.min(0).max() < scale + 1e-5
    assert gaps.min(1).max() < scale + 1e-5
    assert scale < 4e-6


def test_numbers_in_the_page_are_those_of_mujoco_to_half_a_step(robot, moving):
    vertices, triangles, scale = unpacked(drawn_scene(moving)["meshes"][0])
    np.testing.assert_allclose(vertices, robot.model.mesh_vert, atol=0.501 * scale)
    np.testing.assert_array_equal(triangles, robot.model.mesh_face)


def test_two_geoms_share_one_mesh_in_the_page(moving):
    scene = drawn_scene(moving)
    assert [s["mesh"] for s in scene["shapes"] if s["kind"] == "mesh"] == [0, 0]
    assert len(scene["meshes"]) == 1
    assert scene["note"] == ""


def test_the_outline_of_a_mesh_reaches_as_far_as_its_vertices(moving):
    shape = next(shape for shape in moving.shapes if shape.mesh is not None)
    turned, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))
    view = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    angles = np.linspace(0, 2 * np.pi, 64, endpoint=False) + 1e-3
    directions = np.stack([np.cos(angles), np.sin(angles)])
    points = shape.mesh.vertices @ turned.T @ view.T
    edge = outline(shape, turned, view)
    np.testing.assert_allclose((edge @ directions).max(0), (points @ directions).max(0), atol=1e-9)


def test_the_studio_draws_meshes_and_the_forces_on_the_feet(robot, moving):
    session = RobotSession(world.make(task="stand", robot=robot, physics="c"))
    about = session.describe()
    scene = drawn_scene(moving)
    assert about["meshes"] == scene["meshes"]
    assert about["shapes"] == scene["shapes"]
    assert about["weight"] == pytest.approx(9.81 * robot.mass)
    assert session.reset(0)["feet"] == []
    states = [session.act({}) for _ in range(40)]
    carried = sum(foot["force"][2] for state in states[20:] for foot in state["feet"]) / 20
    assert carried == pytest.approx(9.81 * robot.mass, rel=0.1)
    json.dumps(states, allow_nan=False)


# Too large for a page --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ball():
    vertices, triangles = meshed.ball(60)
    return Mesh(0.001 * vertices, triangles)


@pytest.mark.parametrize("cell", [0.004, 0.03])
def test_a_coarser_mesh_is_the_same_body_with_fewer_triangles(ball, cell):
    coarse = coarser(ball, cell)
    assert 20 < len(coarse.triangles) < len(ball.triangles)
    reach = np.linalg.norm(coarse.vertices, axis=1)
    assert reach.max() <= 0.08 + 1e-9
    assert reach.min() > 0.08 - cell
    a, b, c = coarse.triangles.T
    assert not ((a == b) | (b == c) | (c == a)).any()
    assert len(np.unique(np.sort(coarse.triangles, axis=1), axis=0)) == len(coarse.triangles)
    assert np.unique(coarse.triangles).tolist() == list(range(len(coarse.vertices)))
    centres, normals = np.split(facets(coarse.vertices, coarse.triangles), 2, axis=1)
    assert ((centres * normals).sum(1) > 0).mean() > 0.9, "still seen from outside"


def test_places_of_many_vertices_are_packed_in_more_bits():
    random = np.random.default_rng(0)
    mesh = Mesh(random.normal(size=(70_000, 3)), random.integers(0, 70_000, (1000, 3)))
    vertices, triangles, scale = unpacked(packed(mesh))
    np.testing.assert_array_equal(triangles, mesh.triangles)
    np.testing.assert_allclose(vertices, mesh.vertices, atol=0.501 * scale)
    assert len(json.dumps(packed(mesh))) <= mesh.num_bytes


def test_meshes_are_made_coarser_only_as_far_as_they_must(ball):
    whole = ball.num_bytes
    assert fitting([ball], whole)[0] is ball
    small = fitting([ball, ball], whole // 2)
    sizes = [len(json.dumps(packed(mesh))) for mesh in small]
    assert 0.1 * whole < sum(sizes) <= whole // 2
    assert len(json.dumps(packed(ball))) <= whole
    assert fitting([ball], 150) is None
    assert fitting([], 0) == []


def test_a_page_says_how_coarse_its_meshes_are_or_that_they_are_boxes(tmp_path):
    robot = meshed.meshed_robot(tmp_path, *meshed.ball(40))
    moving = moving_shapes(robot, robot.home[None])
    coarse = drawn_scene(moving, 10_000)
    assert coarse["note"].startswith("Meshes are coarser than the robot's: ")
    assert len(json.dumps(coarse["meshes"])) <= 10_000
    boxes = drawn_scene(moving, 100)
    assert boxes["note"] == ("Meshes are drawn as boxes: 3,120 triangles are too many for a page.")
    assert boxes["meshes"] == []
    before = [shape for shape in drawn_scene(moving)["shapes"] if shape["kind"] == "mesh"]
    after = [s for s in boxes["shapes"] if s["color"] == before[0]["color"]]
    assert [shape["kind"] for shape in after] == ["box", "box"]
    np.testing.assert_allclose(after[0]["size"], 0.08, rtol=0.01)
    np.testing.assert_allclose(after[0]["position"], POSITION, atol=1e-3)
