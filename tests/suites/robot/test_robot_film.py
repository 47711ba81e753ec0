"""Films of the robot: it is drawn where it is, and no machine is too poor for a film."""

import stat
import subprocess

import numpy as np
import pytest

pytest.importorskip("mujoco")

import mujoco
from PIL import Image

from suites.robot.meshed import meshed_robot
from worldloom.suites.robot import film as robot_film
from worldloom.suites.robot.drawing import drawings, smooth
from worldloom.suites.robot.film import GIF_SIZE, SIZE, film
from worldloom.suites.robot.model import ASSETS, biped, load
from worldloom.suites.robot.shapes import Shape, moving_shapes, outline

BLUE, ORANGE = (41, 120, 181), (230, 115, 33)  # the robot's left and right
GREEN = (26, 191, 51)  # of meshes


@pytest.fixture(scope="module")
def robot():
    return biped()


@pytest.fixture(scope="module")
def swaying(robot):
    """qpos (30, nq): it lifts its arms and its left leg, and walks off."""
    random = np.random.default_rng(0)
    qpos = np.tile(robot.home, (30, 1))
    qpos[:, 0] = np.linspace(0.0, 0.4, 30)
    wave = np.sin(np.linspace(0.0, 3.0, 30))[:, None]
    qpos[:, robot.joint_qpos] += 0.4 * wave * random.uniform(-1, 1, robot.num_joints)
    return qpos


def close_to(image, color, within=40):
    """Where pixels (h, w) are of about this colour."""
    pixels = np.asarray(image.convert("RGB"), int)
    return np.abs(pixels - color).max(axis=-1) < within


# Shapes ----------------------------------------------------------------------------------------


def test_shapes_are_where_mujoco_has_its_geoms(robot, swaying):
    moving, data = moving_shapes(robot, swaying), mujoco.MjData(robot.model)
    data.qpos[:] = swaying[17]
    mujoco.mj_kinematics(robot.model, data)
    shown = [g for g in range(robot.model.ngeom) if robot.model.geom(g).name != "floor"]
    assert len(moving.shapes) == len(shown)
    np.testing.assert_allclose(moving.centres[17], data.geom_xpos[shown], atol=1e-9)
    turned = moving.rotations[17].reshape(-1, 9)
    np.testing.assert_allclose(turned, data.geom_xmat[shown], atol=1e-9)
    np.testing.assert_array_equal(moving.base, moving.positions[:, robot.base_body])


def points_on(kind, size, random):
    """Points (N, 3) that fill the surface of a shape."""
    ball = random.normal(size=(20000, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    if kind == "box":
        return np.sign(ball) * size
    if kind == "capsule":
        return ball * size[0] + np.sign(ball[:, 2:]) * [0, 0, size[2]]
    if kind == "cylinder":
        ring = ball[:, :2] / np.linalg.norm(ball[:, :2], axis=1, keepdims=True)
        return np.concatenate([ring * size[0], np.sign(ball[:, 2:]) * size[2]], axis=1)
    return ball * size


@pytest.mark.parametrize("kind", ["box", "capsule", "cylinder", "ellipsoid", "sphere"])
def test_an_outline_reaches_exactly_as_far_as_its_shape(kind):
    random = np.random.default_rng(1)
    half = {"sphere": [0.1] * 3, "capsule": [0.03, 0.03, 0.1], "cylinder": [0.05, 0.05, 0.02]}
    size = np.array(half.get(kind, [0.03, 0.08, 0.05]))
    turned, _ = np.linalg.qr(random.normal(size=(3, 3)))
    view = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    shape = Shape(kind, size, (1.0, 0.0, 0.0), 0, np.zeros(3), np.array([1.0, 0, 0, 0]))
    edge = outline(shape, turned, view)
    points = points_on(kind, size, random) @ turned.T @ view.T
    angles = np.linspace(0, 2 * np.pi, 37)
    directions = np.stack([np.cos(angles), np.sin(angles)])
    np.testing.assert_allclose((edge @ directions).max(0), (points @ directions).max(0), rtol=6e-3)


def test_meshes_are_drawn_and_hidden_geoms_are_not(tmp_path, robot):
    xml = robot.xml.replace(
        '<geom name="visor"',
        '<geom name="hidden" type="sphere" size="0.1" group="3"/><geom name="visor"',
    )
    (tmp_path / "own.xml").write_text(xml)
    (tmp_path / "own.yaml").write_text((ASSETS / "biped.yaml").read_text())
    own = load(tmp_path / "own.xml")
    count = len(moving_shapes(robot, robot.home[None]).shapes)
    assert len(moving_shapes(own, own.home[None]).shapes) == count
    bracketed = meshed_robot(tmp_path)
    shapes = moving_shapes(bracketed, bracketed.home[None])
    assert [shape.kind for shape in shapes.shapes].count("mesh") == 2
    assert len(shapes.shapes) == count + 2
    moving = [moving_shapes(one, one.home[None]) for one in (bracketed, robot)]
    images = [next(drawings(some, (480, 360), [0])) for some in moving]
    drawn, plain = (close_to(image, GREEN, 80).sum() for image in images)
    assert drawn > plain + 100


# Drawings --------------------------------------------------------------------------------------


def test_a_drawing_shows_both_sides_in_their_colours_on_the_floor(robot, swaying):
    image = next(drawings(moving_shapes(robot, swaying), (480, 360), [15]))
    assert image.size == (480, 360)
    side = image.crop((0, 0, 350, 360))  # without the small view from the front
    near, far = close_to(side, ORANGE), close_to(side, BLUE, 80)
    assert near.sum() > far.sum() > 100, "seen from its right"
    front = image.crop((350, 0, 480, 360))
    left, right = close_to(front, BLUE, 70), close_to(front, ORANGE, 70)
    assert np.nonzero(left)[1].mean() > np.nonzero(right)[1].mean() + 5, "it faces us"


def test_soles_stand_on_the_line_of_the_floor(robot):
    image = next(drawings(moving_shapes(robot, robot.home[None]), (480, 360), [0]))
    foot = np.flatnonzero(close_to(image.crop((0, 0, 350, 360)), ORANGE).any(axis=1)).max()
    assert 0.84 * 360 < foot < 0.86 * 360


def test_the_camera_follows_and_the_ground_passes_by(robot, swaying):
    first, last = drawings(moving_shapes(robot, swaying), (480, 360), [0, 29])
    places = [
        np.nonzero(close_to(image.crop((0, 0, 350, 360)), ORANGE))[1] for image in (first, last)
    ]
    assert abs(places[0].mean() - places[1].mean()) < 40
    floors = [np.asarray(image)[int(0.88 * 360) :] for image in (first, last)]
    assert (floors[0] != floors[1]).any()


def test_a_camera_path_is_as_long_as_what_it_follows():
    for steps in (1, 2, 3, 80):
        assert smooth(np.arange(float(steps))).shape == (steps,)
    np.testing.assert_allclose(smooth(np.full(50, 2.5)), 2.5)


# Films -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(robot, swaying, tmp_path_factory):
    path = tmp_path_factory.mktemp("films") / "walk"
    return film(robot, swaying, path, look="drawing")


def test_a_gif_has_every_second_frame_of_the_film_and_moves(drawn):
    assert drawn.gif.name == "walk.gif"
    with Image.open(drawn.gif) as gif:
        assert (gif.n_frames, gif.size) == (8, GIF_SIZE)
        assert gif.info["duration"] == 80
        first = np.asarray(gif.convert("RGB"))
        gif.seek(7)
        assert (np.asarray(gif.convert("RGB")) != first).any()


def test_an_mp4_holds_all_frames(drawn):
    ffmpeg = robot_film.encoder()
    if ffmpeg is None:
        pytest.skip("this machine has no ffmpeg")
    assert drawn.mp4 is not None
    assert drawn.notes == ()
    command = [ffmpeg, "-loglevel", "error", "-i", str(drawn.mp4), "-f", "rawvideo"]
    out = subprocess.run([*command, "-pix_fmt", "rgb24", "-"], capture_output=True, check=True)
    frames = np.frombuffer(out.stdout, np.uint8).reshape(-1, SIZE[1], SIZE[0], 3)
    assert len(frames) == 15
    assert close_to(Image.fromarray(frames[0]), ORANGE).sum() > 500
    assert sorted(path.name for path in drawn.mp4.parent.iterdir()) == ["walk.gif", "walk.mp4"]


def test_mujoco_renders_where_it_can(robot, swaying, tmp_path):
    try:
        done = film(robot, swaying[:4], tmp_path / "rendered", look="mujoco")
    except ValueError as why:
        pytest.skip(str(why))
    assert not any("drawn" in note for note in done.notes)
    with Image.open(done.gif) as gif:
        assert close_to(gif, ORANGE, 60).sum() > 200


def test_without_graphics_it_is_drawn_and_says_why(robot, swaying, tmp_path, monkeypatch):
    monkeypatch.setattr(robot_film, "_GRAPHICS", ("nonsense",))
    done = film(robot, swaying[:2], tmp_path / "film")
    assert done.gif.is_file()
    assert "drawn without MuJoCo's renderer: nonsense: " in done.notes[0]
    with pytest.raises(ValueError, match="MuJoCo's renderer does not work here: nonsense"):
        film(robot, swaying[:2], tmp_path / "never", look="mujoco")
    assert not (tmp_path / "never.gif").exists()


def test_without_an_encoder_there_is_a_gif_and_a_note(robot, swaying, tmp_path, monkeypatch):
    monkeypatch.setattr(robot_film, "encoder", lambda: None)
    done = film(robot, swaying[:2], tmp_path / "film", look="drawing")
    assert done.mp4 is None
    assert "there is no ffmpeg" in done.notes[0]
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]


def test_an_encoder_that_fails_leaves_no_half_a_film(robot, swaying, tmp_path, monkeypatch):
    broken = tmp_path / "ffmpeg"
    broken.write_text("#!/bin/sh\necho no such codec >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    out = tmp_path / "out"
    for path, why in ((broken, "no such codec"), (tmp_path / "nothing", "No such file")):
        monkeypatch.setattr(robot_film, "encoder", lambda path=path: str(path))
        done = film(robot, swaying[:2], out / "film", look="drawing")
        assert done.mp4 is None
        assert why in done.notes[0]
        assert [file.name for file in out.iterdir()] == ["film.gif"]


def test_nonsense_is_refused(robot, swaying, tmp_path):
    path = tmp_path / "film"
    with pytest.raises(ValueError, match="look='draw'"):
        film(robot, swaying, path, look="draw")
    with pytest.raises(ValueError, match=r"described by 20 numbers a frame.*\(30, 3\)"):
        film(robot, swaying[:, :3], path, look="drawing")
    spoilt = swaying.copy()
    spoilt[4, 2] = np.nan
    with pytest.raises(ValueError, match="frame 4 is not finite"):
        film(robot, spoilt, path)
    assert list(tmp_path.iterdir()) == []
