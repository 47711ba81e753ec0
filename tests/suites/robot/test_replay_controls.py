"""Meshes, forces, pushes, torques and the choice of an episode in a replay, in a real browser."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")

from suites.robot import meshed
from suites.robot.replay_page import DESK, PHONE, cursors, frame, legend, number, open_page, pixels
from worldloom.suites.robot import replay as replays
from worldloom.suites.robot.recording import record_episodes
from worldloom.suites.robot.replay import replay, write_replay
from worldloom.suites.robot.world import world

pytestmark = pytest.mark.slow

STEPS = 60
LOOK = (Path(__file__).parents[2] / "report" / "look.js").read_text()
FORCES = ("push", "torque", "force", "pressure")


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    return meshed.meshed_robot(tmp_path_factory.mktemp("meshed"))


@pytest.fixture(scope="module")
def episodes(robot):
    """Three of a robot that holds its pose and is pushed; the second is shorter."""
    pushed = world(
        task="stand", robot=robot, physics="c",
        push_force=(4.0, 6.0), push_pause=(12, 20), push_steps=8,
    )  # fmt: skip
    first, second, third = record_episodes(pushed, lambda obs: np.zeros((3, 13)), [0, 1, 2], STEPS)
    return {"median": first, "best of 3": rows(second, 40), "worst of 3": third}


def rows(recording, count):
    """The beginning of a recording."""
    tables = {field.name: getattr(recording, field.name) for field in fields(recording)}
    cut = {name: x[:count] for name, x in tables.items() if isinstance(x, np.ndarray)}
    return replace(recording, **cut)


def without_forces(recording):
    return replace(recording, **dict.fromkeys(FORCES))


@pytest.fixture(scope="module")
def page(robot, episodes, tmp_path_factory):
    return write_replay(tmp_path_factory.mktemp("replay") / "replay.html", robot, episodes)


@pytest.fixture(scope="module")
def open_view(browser, page):
    wrong = []
    yield open_page(browser, page, wrong), wrong
    assert wrong == []


@pytest.fixture
def view(open_view):
    view, wrong = open_view
    view.evaluate("() => document.activeElement.blur()")
    view.check("#forces")
    view.select_option("#episode", "0")
    view.evaluate("() => { look('corner'); seek(0); }")
    yield view
    assert wrong == []


def close_to(image, color, within=45):
    """How many pixels (h, w, 3) have the hue of a colour, in light or shadow."""
    ink = np.asarray(color) / np.linalg.norm(color)
    length = np.maximum(np.linalg.norm(image, axis=-1), 1e-9)
    near = np.linalg.norm(image / length[..., None] - ink, axis=-1) < within / 255
    return (near & (length > 70)).sum()


PUSH, FORCE, MESH = (160, 42, 134), (13, 138, 99), (26, 191, 51)


def pushed_frame(recording):
    return int(np.flatnonzero(recording.push.any(1))[2])


def still_frame(recording):
    return int(np.flatnonzero(~recording.push.any(1) & recording.contact.all(1))[0])


# What is in the page -----------------------------------------------------------------------------


def test_a_page_of_long_episodes_and_fine_meshes_stays_small(tmp_path, episodes):
    robot = meshed.meshed_robot(tmp_path, *meshed.ball(150))
    first = episodes["median"]
    tables = {field.name: getattr(first, field.name) for field in fields(first)}
    long = {n: np.tile(x, (9, *[1] * (x.ndim - 1)))
            for n, x in tables.items() if isinstance(x, np.ndarray)}  # fmt: skip
    many = {str(i): replace(first, **long) for i in range(12)}
    text = replay(robot, many)
    assert len(text.encode()) < 2_000_000
    assert " of 12 episodes are left out" in text
    assert '"kind":"mesh"' in text
    assert "Meshes are coarser than the robot's" in text
    # A film's three episodes of ten seconds leave room enough for meshes as fine as these.
    text = replay(robot, dict(list(many.items())[:3]))
    assert len(text.encode()) < 2_000_000
    assert "left out" not in text
    assert "coarser" not in text


def test_episodes_that_do_not_belong_together_are_refused(robot, episodes):
    first, second, _ = episodes.values()
    with pytest.raises(ValueError, match="'b' has other terms of the reward"):
        replay(robot, {"a": first, "b": replace(second, names=second.names[::-1])})
    with pytest.raises(ValueError, match="40 rows of force for 60 of qpos"):
        replay(robot, replace(first, force=second.force))
    with pytest.raises(ValueError, match="no episode"):
        replay(robot, {})


# Meshes ------------------------------------------------------------------------------------------


def test_the_browser_unpacks_the_mesh_that_mujoco_has(view, robot):
    surfaces = view.evaluate(
        """() => record.shapes.filter(shape => shape.kind === 'mesh').map(shape =>
            [[...shape.surface.points], [...shape.surface.triangles]])"""
    )
    assert len(surfaces) == 2
    for points, triangles in surfaces:
        points = np.array(points).reshape(-1, 3)
        np.testing.assert_allclose(points, robot.model.mesh_vert, atol=2e-6)
        np.testing.assert_array_equal(np.reshape(triangles, (-1, 3)), robot.model.mesh_face)


def test_normals_point_outwards_and_edges_stay_sharp(view):
    made = view.evaluate(
        """() => {
            const made = meshOf(record.shapes.find(shape => shape.kind === 'mesh'));
            return [made.points, made.normals, made.triangles].map(x => [...x]);
        }"""
    )
    points, normals = (np.reshape(x, (-1, 3, 3)) for x in made[:2])
    assert made[2] == list(range(60))
    a, b, c = points.transpose(1, 0, 2)
    flat = np.cross(b - a, c - a)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    # All edges of the bracket are right angles: each corner has the normal of its own face.
    np.testing.assert_allclose(normals, flat[:, None] + np.zeros((1, 3, 1)), atol=1e-4)


@pytest.mark.parametrize("hash", ["", "#plain"])
def test_a_mesh_is_seen_and_is_no_box(browser, robot, episodes, page, tmp_path, hash, monkeypatch):
    seen, wrong = [], []
    monkeypatch.setattr(replays, "MESH_BYTES", 0)
    boxes = write_replay(tmp_path / "boxes.html", robot, episodes)
    for path in (page, boxes):
        view = open_page(browser, path, wrong, hash=hash)
        view.uncheck("#forces")
        view.click("[data-view=side]")
        seen.append(close_to(pixels(view), MESH))
        note = view.inner_text("#note")
        view.close()
    assert wrong == []
    assert "drawn as boxes" in note
    assert 400 < seen[0] < (0.95 if hash else 0.85) * seen[1]  # drawn plainly, it is its hull


# Forces ------------------------------------------------------------------------------------------


def test_arrows_are_the_forces_of_the_frame(view, robot, episodes):
    recording = episodes["median"]
    t = pushed_frame(recording)
    view.locator("#scrub").fill(str(t))
    push, *feet = view.evaluate("() => arrowsNow()")
    along = np.subtract(push["to"], push["from"])
    height, weight = robot.home_height, robot.mass * 9.81
    size = np.linalg.norm(recording.push[t])
    np.testing.assert_allclose(along[:2], recording.push[t] * 2.0 * height / weight, atol=1e-4)
    assert along[2] == 0.0
    base = recording.qpos[t, :3]
    assert np.linalg.norm(push["to"] - base) < np.linalg.norm(push["from"] - base)
    assert view.inner_text("#pushing") == f"pushed by {size:.1f} N"
    assert len(feet) == recording.contact[t].sum() > 0
    for arrow, foot in zip(feet, np.flatnonzero(recording.contact[t]), strict=True):
        np.testing.assert_allclose(arrow["from"], recording.pressure[t, foot], atol=1e-4)
        reach = np.subtract(arrow["to"], arrow["from"])
        np.testing.assert_allclose(
            reach, recording.force[t, foot] * 0.8 * height / weight, atol=1e-3 * height
        )
    view.locator("#scrub").fill(str(still_frame(recording)))
    assert view.inner_text("#pushing") == ""
    assert len(view.evaluate("() => arrowsNow()")) == 2


@pytest.mark.parametrize("hash", ["", "#plain"])
def test_pushes_and_forces_are_seen_and_forces_can_be_hidden(browser, page, episodes, hash):
    wrong = []
    view = open_page(browser, page, wrong, hash=hash)
    recording = episodes["median"]
    view.click("[data-view=side]")
    view.locator("#scrub").fill(str(still_frame(recording)))
    image = pixels(view)
    assert close_to(image, PUSH) < 20
    assert close_to(image, FORCE, 20) > 150
    view.focus("#forces")
    view.keyboard.press("Space")
    assert not view.is_checked("#forces")
    assert view.locator("body").get_attribute("data-playing") == "no", "space is the box's own here"
    assert close_to(pixels(view), FORCE, 20) < 30
    view.locator("#scrub").fill(str(pushed_frame(recording)))
    view.click("[data-view=corner]")
    assert close_to(pixels(view), PUSH) > 80
    view.close()
    assert wrong == []


def test_pushes_are_shaded_in_every_plot_and_told(view, episodes):
    recording = episodes["median"]
    edges = np.diff(np.concatenate([[0], recording.push.any(1), [0]]).astype(int))
    count = (edges == 1).sum()
    assert view.locator("#speeds .pushed").count() == count > 0
    assert view.locator(".pushed").count() == 6 * count
    assert f"{count} push" in view.inner_text("#facts")


def test_loads_and_torques_follow_the_cursor(view, robot, episodes):
    recording = episodes["median"]
    names = [joint.replace("_", " ") for joint in robot.joints]
    for t in (7, 45):
        view.locator("#scrub").fill(str(t))
        loads = legend(view, "loads")
        for foot, name in enumerate(("left", "right")):
            size = np.linalg.norm(recording.force[t, foot])
            assert number(loads[name]) == pytest.approx(size, abs=0.51)
        shown = view.evaluate(
            """() => [...document.querySelectorAll('#torques button')].map(row => {
                const track = row.querySelector('.track').getBoundingClientRect();
                const bar = row.querySelector('.track i:not(.range)').getBoundingClientRect();
                const middle = track.left + track.width / 2;
                const side = bar.left + bar.width / 2 < middle ? -1 : 1;
                return [row.dataset.row, row.querySelector('output').textContent,
                    side * bar.width / (track.width / 2)];
            })"""
        )
        assert [row[0] for row in shown] == names
        values = [number(row[1]) for row in shown]
        np.testing.assert_allclose(values, recording.torque[t], atol=0.006)
        np.testing.assert_allclose([row[2] for row in shown], recording.torque[t] / 4.5, atol=0.02)


def test_a_joint_is_chosen_among_the_torques_by_key(view, robot, episodes):
    recording = episodes["median"]
    view.locator("#scrub").fill("30")
    row = view.locator("#torques button", has_text="right ankle pitch")
    row.focus()
    view.keyboard.press("Enter")
    assert view.locator("#joint option:checked").inner_text() == "right ankle pitch"
    assert row.get_attribute("aria-current") == "true"
    assert view.locator("#torques button[aria-current=true]").count() == 1
    joint = robot.joints.index("right_ankle_pitch")
    shown = legend(view, "torque")
    assert number(shown["torque"]) == pytest.approx(recording.torque[30, joint], abs=0.006)
    assert shown["limit"] == "4.50"
    view.select_option("#joint", label="left knee pitch")
    marked = view.locator("#torques button[aria-current=true]")
    assert marked.get_attribute("data-row") == "left knee pitch"


# Episodes ----------------------------------------------------------------------------------------


def test_an_episode_is_chosen_by_keys_and_everything_is_of_it(view, robot, episodes):
    names = view.locator("#episode option").all_inner_texts()
    assert names == [
        f"{name}: return {recording.total:.1f}".replace("-", "\u2212")
        for name, recording in episodes.items()
    ]
    view.locator("#scrub").fill("50")
    view.focus("#episode")
    view.keyboard.press("ArrowDown")
    recording = episodes["best of 3"]
    assert view.locator("#episode option:checked").inner_text() == names[1]
    assert frame(view) == 0
    assert view.inner_text("#clock") == "0.00 of 0.78 s"
    assert f"return {recording.total:.1f}" in view.inner_text("#facts")
    view.locator("#scrub").fill("39")
    assert cursors(view) == [pytest.approx(1.0)] * 6
    poses = view.evaluate("() => record.positions.length / record.bodies / 3")
    assert poses == 40
    assert number(legend(view, "loads")["left"]) == pytest.approx(
        np.linalg.norm(recording.force[39, 0]), abs=0.51
    )
    base = view.evaluate("() => basePlace(record, time)")
    np.testing.assert_allclose(base, recording.qpos[39, :3], atol=1e-4)
    view.focus("#episode")
    view.keyboard.press("ArrowUp")
    assert view.inner_text("#clock") == "0.00 of 1.18 s"


def test_recordings_without_forces_still_open(browser, robot, episodes, tmp_path):
    wrong = []
    path = write_replay(tmp_path / "old.html", robot, without_forces(episodes["median"]))
    view = open_page(browser, path, wrong)
    for hidden in ("#forces", "#episode", "#loads", "#torques", "#torque"):
        assert not view.is_visible(hidden)
    assert view.evaluate("() => arrowsNow()") == []
    view.locator("#scrub").fill("30")
    assert frame(view) == 30
    assert view.locator(".pushed").count() == 0
    view.select_option("#joint", label="waist yaw")
    assert set(legend(view, "joints")) == {"target", "angle"}
    view.close()
    assert wrong == []


# Pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_all_is_legible_and_within_any_screen(browser, page, episodes, viewport):
    wrong = []
    view = open_page(browser, page, wrong, viewport=viewport)
    view.locator("#scrub").fill(str(pushed_frame(episodes["median"])))
    for scheme in ("light", "dark"):
        view.emulate_media(color_scheme=scheme)
        seen = view.evaluate(LOOK)
        assert seen["outside"] == [], scheme
        assert seen["cut"] == [], scheme
        assert seen["faint"] == [], scheme
        assert seen["scroll"] <= viewport["width"]
    view.close()
    assert wrong == []


def test_every_control_is_reached_by_tab(view):
    view.evaluate("() => window.scrollTo(0, 0)")
    reached = set()
    for _ in range(60):
        view.keyboard.press("Tab")
        reached.add(
            view.evaluate(
                """() => { const node = document.activeElement;
                return node.id || node.dataset.view || node.dataset.row || node.dataset.line; }"""
            )
        )
    wanted = {"play", "scrub", "speed", "follow", "forces", "episode", "joint", "side", "front"}
    assert reached >= wanted | {"corner", "waist yaw", "right ankle roll", "total"}
