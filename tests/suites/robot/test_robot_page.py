"""The replay of a robot in a real browser: it plays, it can be scrubbed, and its plots keep up."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mujoco")

from suites.robot.replay_page import (
    DESK,
    PHONE,
    blue,
    cursors,
    frame,
    legend,
    number,
    open_page,
    orange,
    pixels,
)
from worldloom.suites.robot.model import biped
from worldloom.suites.robot.recording import record_episode
from worldloom.suites.robot.replay import replay, write_replay
from worldloom.suites.robot.shapes import moving_shapes
from worldloom.suites.robot.world import world

STEPS = 60


@pytest.fixture(scope="module")
def robot():
    return biped()


@pytest.fixture(scope="module")
def recording(robot):
    """A robot that sways in its place, with arms and waist, and is asked to walk."""
    swaying = world(task="walk", robot=robot, physics="c", command=(0.2, 0.2), still=0.0)
    moved = np.array([not robot.joints[i].endswith(("pitch", "roll")) for i in range(13)])
    moved |= np.array(["shoulder" in joint for joint in robot.joints])
    times = iter(range(STEPS))

    def act(obs):
        return 0.8 * np.sin(0.3 * next(times) + np.arange(13))[None] * moved

    recorded = record_episode(swaying, act, seed=0, steps=STEPS)
    contact = recorded.contact.copy()
    contact[20:30, 0] = contact[40:50, 1] = False  # as if it had stepped
    return replace(recorded, contact=contact)


@pytest.fixture(scope="module")
def page(robot, recording, tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "replay.html"
    return write_replay(path, robot, recording, "Swaying <b>&", about="task walk")


@pytest.fixture
def visit(browser, page):
    """visit(...) opens the page; at the end nothing may have gone wrong."""
    opened, wrong = [], []

    def visit(**options):
        opened.append(open_page(browser, page, wrong, **options))
        return opened[-1]

    yield visit
    for view in opened:
        view.close()
    assert wrong == []


@pytest.fixture(scope="module")
def open_view(browser, page):
    wrong = []
    yield open_page(browser, page, wrong), wrong
    assert wrong == []


@pytest.fixture
def view(open_view):
    """One page on a desk for many tests, at its start."""
    view, wrong = open_view
    view.mouse.move(5, 5)
    view.evaluate(
        """() => {
            document.activeElement.blur();
            document.getElementById('follow').checked = true;
            play(false);
            look('corner');
            seek(0);
        }"""
    )
    view.wait_for_function("() => !stale")
    yield view
    assert wrong == []


# What is in the page ---------------------------------------------------------------------------


def test_the_recording_is_in_the_page_to_the_bit(robot, recording, page):
    text = page.read_text()
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert match is not None
    data = json.loads(match[1])
    (episode,) = data["episodes"]
    assert episode["steps"] == STEPS
    assert data["joints"] == list(robot.joints)

    def unpacked(name):
        return np.frombuffer(base64.b64decode(episode[name]), "<f4").reshape(STEPS, -1)

    def scaled(name, table):
        steps = np.frombuffer(base64.b64decode(episode[name]["data"]), "<i2")
        scale = episode[name]["scale"]
        assert scale == pytest.approx(np.abs(table).max() / 32767) or not table.any()
        np.testing.assert_allclose(steps * scale, table.ravel(), atol=0.51 * scale)

    np.testing.assert_array_equal(unpacked("targets"), recording.target)
    np.testing.assert_array_equal(unpacked("terms"), recording.terms)
    np.testing.assert_array_equal(unpacked("angles"), recording.qpos[:, robot.joint_qpos])
    for name in ("push", "torque", "force", "pressure"):
        scaled(name, getattr(recording, name))
    assert data["limits"] == [4.5] * 13
    assert data["feet"] == ["#2978b5", "#e57321"]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert len(text) < 150_000


def test_names_cannot_break_out_of_the_page(robot, recording):
    evil = "</script><script>alert(1)</script>{{data}}"
    text = replay(robot, replace(recording, names=(evil, *recording.names[1:])), evil, evil)
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    assert "&lt;/script&gt;" in text


def test_a_recording_of_another_robot_is_refused(robot, recording):
    with pytest.raises(ValueError, match="is of another robot"):
        replay(robot, replace(recording, target=recording.target[:, :5]))
    with pytest.raises(ValueError, match="described by 20 numbers"):
        replay(robot, replace(recording, qpos=recording.qpos[:, :9]))
    spoilt = recording.terms.copy()
    spoilt[3, 0] = np.inf
    with pytest.raises(ValueError, match="terms of the recording is not finite"):
        replay(robot, replace(recording, terms=spoilt))


# Seeing it -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shapes_are_where_they_are_in_python(view, robot, recording):
    moving = moving_shapes(robot, recording.qpos)
    for t in (0, 33):
        poses = view.evaluate(f"() => shapePoses(record, {t} * record.seconds + 1e-9)")
        np.testing.assert_allclose([pose["place"] for pose in poses], moving.centres[t], atol=2e-5)
        columns = np.array([pose["turned"] for pose in poses]).reshape(-1, 3, 3)
        np.testing.assert_allclose(columns.transpose(0, 2, 1), moving.rotations[t], atol=2e-4)
    between = view.evaluate("() => shapePoses(record, 20.5 * record.seconds)[0].place")
    middle = moving.centres[20:22, 0].mean(0)
    np.testing.assert_allclose(between, middle, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("hash", ["", "#plain"])
def test_the_robot_is_seen_from_the_side_and_from_the_front(visit, hash):
    view = visit(hash=hash)
    assert view.locator("body").get_attribute("data-drawing") == ("canvas" if hash else "webgl")
    view.click("[data-view=side]")
    side = pixels(view)
    assert orange(side)[0] > 3 * blue(side)[0], "its right is near"
    view.click("[data-view=front]")
    front = pixels(view)
    assert min(orange(front)[0], blue(front)[0]) > 800
    assert blue(front)[1] > orange(front)[1] + 20, "it faces us"


@pytest.mark.slow
def test_without_webgl_it_is_drawn_plainly(visit):
    missing = """HTMLCanvasElement.prototype.getContext = (old => function (kind, ...more) {
        return kind === 'webgl2' ? null : old.call(this, kind, ...more);
    })(HTMLCanvasElement.prototype.getContext)"""
    view = visit(init=missing)
    assert view.locator("body").get_attribute("data-drawing") == "canvas"
    assert "no WebGL" in view.inner_text("#note")
    assert orange(pixels(view))[0] > 800
    view.click("#play")
    view.wait_for_function("() => +document.body.dataset.frame > 3")


@pytest.mark.slow
def test_a_graphics_card_that_goes_away_is_replaced_by_a_drawing(visit):
    view = visit()
    view.evaluate(
        "() => canvas.getContext('webgl2').getExtension('WEBGL_lose_context').loseContext()"
    )
    view.wait_for_selector("body[data-drawing=canvas]")
    assert orange(pixels(view))[0] > 800


@pytest.mark.slow
def test_dragging_turns_and_the_wheel_zooms(view):
    box = view.locator("#stage canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = view.evaluate("() => ({...camera})")
    near = orange(pixels(view))[0]
    view.mouse.move(x, y)
    view.mouse.down()
    view.mouse.move(x + 100, y + 40, steps=4)
    view.mouse.up()
    view.mouse.move(x - 50, y)
    after = view.evaluate("() => ({...camera})")
    assert after["azimuth"] == pytest.approx(before["azimuth"] - 0.8)
    assert after["elevation"] == pytest.approx(before["elevation"] + 0.24)
    view.mouse.wheel(0, 200)
    view.wait_for_function(f"() => camera.distance > {1.2 * before['distance']}")
    view.dblclick("#stage canvas")
    view.mouse.wheel(0, 600)
    view.wait_for_function(f"() => camera.distance > {1.2 * before['distance']}")
    assert orange(pixels(view))[0] < 0.8 * near


@pytest.mark.slow
def test_the_camera_stays_behind_unless_it_follows(view, recording):
    start = view.evaluate("() => camera.target")
    view.uncheck("#follow")
    view.keyboard.press("End")
    view.wait_for_function("() => !stale")
    assert view.evaluate("() => camera.target") == start
    view.check("#follow")
    view.wait_for_function("() => !stale")
    target = view.evaluate("() => camera.target")
    assert target != start
    assert target[0] == pytest.approx(recording.qpos[-25:, 0].mean(), abs=0.02)


# Time ------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(visit):
    """A page whose time passes only as a test lets it: no machine is too busy for it."""
    return visit(stopped=True, hash="#plain")


@pytest.mark.slow
def test_play_runs_pause_stops_and_the_end_is_the_end(stopped):
    view = stopped
    assert frame(view) == 0
    view.click("#play")
    assert view.inner_text("#play").endswith("pause")
    view.clock.run_for(300)
    held = frame(view)
    assert 13 <= held <= 15
    view.click("#play")
    assert view.inner_text("#play").endswith("play")
    view.clock.run_for(2000)
    assert frame(view) == held
    view.select_option("#speed", "2")
    view.click("#play")
    view.clock.run_for(1000)
    assert view.locator("body").get_attribute("data-playing") == "no"
    assert frame(view) == STEPS - 1
    assert cursors(view) == [pytest.approx(1.0)] * 6
    view.click("#play")  # from the start again
    view.clock.run_for(100)
    assert 5 <= frame(view) <= 10


@pytest.mark.slow
def test_slow_motion_is_slow(stopped):
    for speed, passed in (("1", 0.4), ("0.25", 0.1), ("0.1", 0.04)):
        stopped.evaluate("() => seek(0)")
        stopped.select_option("#speed", speed)
        stopped.click("#play")
        stopped.clock.run_for(400)
        stopped.click("#play")
        assert stopped.evaluate("() => time") == pytest.approx(passed, abs=0.04 * float(speed))


@pytest.mark.slow
def test_scrubbing_moves_robot_plots_and_clock(view):
    first = pixels(view)
    view.locator("#scrub").fill("30")
    assert frame(view) == 30
    assert cursors(view) == [pytest.approx(30 / (STEPS - 1), abs=1e-3)] * 6
    assert view.inner_text("#clock") == "0.60 of 1.18 s"
    assert (np.abs(pixels(view) - first).max(axis=-1) > 30).sum() > 200


@pytest.mark.slow
def test_keys_play_and_step(stopped):
    view = stopped
    view.keyboard.press("ArrowRight")
    view.keyboard.press("ArrowRight")
    view.keyboard.press("ArrowLeft")
    assert frame(view) == 1
    view.keyboard.press("Shift+ArrowRight")
    assert frame(view) == 26
    view.keyboard.press("End")
    assert frame(view) == STEPS - 1
    view.keyboard.press("Home")
    view.keyboard.press("Space")
    view.clock.run_for(100)
    assert frame(view) >= 2
    view.keyboard.press("Space")
    assert view.locator("body").get_attribute("data-playing") == "no"
    view.focus("#play")
    view.keyboard.press("Space")  # the button's own business, once
    assert view.locator("body").get_attribute("data-playing") == "yes"
    view.keyboard.press("ArrowRight")
    view.focus("#scrub")
    before = frame(view)
    view.keyboard.press("ArrowRight")
    assert frame(view) == before + 1


# Plots -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_values_at_the_cursor_are_those_of_the_recording(view, robot, recording):
    view.locator("#scrub").fill("45")
    speeds = legend(view, "speeds")
    assert number(speeds["now"]) == pytest.approx(recording.velocity[45], abs=0.006)
    assert number(speeds["command"]) == 0.2
    average = recording.velocity[21:46].mean()
    assert number(speeds["over half a second"]) == pytest.approx(average, abs=0.006)
    assert legend(view, "feet") == {"left": "down", "right": "up"}
    terms = legend(view, "terms")
    assert list(terms) == [*recording.names, "total"]
    for name, value in zip(recording.names, recording.terms[45], strict=True):
        assert number(terms[name]) == pytest.approx(value, abs=0.006)


@pytest.mark.slow
def test_a_joint_can_be_chosen(view, robot, recording):
    assert view.locator("#joint option:checked").inner_text() == "left knee pitch"
    before = view.get_attribute("#joints path[data-line=angle]", "d")
    view.select_option("#joint", label="waist yaw")
    assert view.get_attribute("#joints path[data-line=angle]", "d") != before
    view.locator("#scrub").fill("15")
    shown = legend(view, "joints")
    assert number(shown["angle"]) == pytest.approx(
        recording.qpos[15, robot.joint_qpos[0]], abs=0.006
    )
    assert number(shown["target"]) == pytest.approx(recording.target[15, 0], abs=0.006)


@pytest.mark.slow
def test_a_line_is_drawn_through_all_values(view, recording):
    path = view.get_attribute('#speeds path[data-line="now"]', "d")
    points = np.array([[float(x) for x in point.split()] for point in re.split("[ML]", path)[1:]])
    assert len(points) == STEPS
    assert (np.diff(points[:, 0]) > 0).all()
    # Up is less on a screen: the heights are the values, turned over and scaled.
    fit = np.polyfit(recording.velocity, points[:, 1], 1)
    assert fit[0] < 0
    np.testing.assert_allclose(np.polyval(fit, recording.velocity), points[:, 1], atol=0.2)


@pytest.mark.slow
def test_contacts_are_bars_with_gaps_where_a_foot_was_up(view, recording):
    count = view.locator('#feet rect[data-line="left"]').count()
    down = np.concatenate([[False], recording.contact[:, 0], [False]])
    assert count == (np.diff(down.astype(int)) == 1).sum() > 1


@pytest.mark.slow
def test_hovering_tells_the_values_there_and_a_click_goes_there(view, recording):
    box = view.locator("#speeds svg").bounding_box()
    inner = box["width"] - 46 - 10
    x, y = box["x"] + 46 + inner * 20 / (STEPS - 1), box["y"] + 40
    view.mouse.move(x, y)
    tip = view.inner_text("#speeds .tip.on")
    assert "0.40 s" in tip
    assert number(tip.split("now")[1].split()[0]) == pytest.approx(
        recording.velocity[20], abs=0.006
    )
    assert frame(view) == 0, "looking is not going"
    view.mouse.down()
    assert frame(view) == 20
    view.mouse.move(x + inner * 10 / (STEPS - 1), y)
    view.mouse.up()
    assert frame(view) == 30
    view.mouse.move(5, 5)
    assert view.locator(".tip.on").count() == 0


@pytest.mark.slow
def test_terms_can_be_hidden_and_the_total_shown(view, recording):
    assert view.locator('#terms path[data-line="total"]').count() == 0
    view.click('#terms button[data-line="total"]')
    assert view.locator('#terms path[data-line="total"]').count() == 1
    total = number(legend(view, "terms")["total"])
    assert total == pytest.approx(recording.terms[0].sum(), abs=0.006)
    view.click('#terms button[data-line="alive"]')
    assert view.locator('#terms path[data-line="alive"]').count() == 0
    assert view.get_attribute('#terms button[data-line="alive"]', "aria-pressed") == "false"
    for name in ("total", "alive"):
        view.click(f'#terms button[data-line="{name}"]')  # as it was


# Pages -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("viewport", "scheme"), [(DESK, "dark"), (PHONE, "light")], ids=["dark desk", "light phone"]
)
def test_everything_fits_the_screen(visit, viewport, scheme):
    view = visit(viewport=viewport, color_scheme=scheme)
    assert view.inner_text("h1") == "Swaying <b>&"
    assert view.evaluate("() => document.documentElement.scrollWidth") <= viewport["width"]
    sizes = view.evaluate(
        "() => [...document.querySelectorAll('figure svg')].map(svg => svg.clientWidth)"
    )
    assert len(sizes) == 6
    assert min(sizes) > 0.7 * min(viewport["width"], 1040)
    corner = pixels(view)[-8:, :8].mean()
    assert (corner < 100) == (scheme == "dark"), "the stage is of the page's theme"


@pytest.mark.slow
def test_plots_are_drawn_anew_for_another_width(visit):
    view = visit()
    view.locator("#scrub").fill("59")
    view.set_viewport_size(PHONE)
    view.wait_for_function("() => document.querySelector('#speeds svg').clientWidth < 390")
    assert cursors(view) == [pytest.approx(1.0)] * 6


@pytest.mark.slow
def test_a_fall_is_told(robot, recording, browser, tmp_path):
    view = browser.new_page(viewport=DESK)
    for changes, text in (({"fell": True}, "fell after"), ({"diverged": True}, "diverged after")):
        path = write_replay(tmp_path / "end.html", robot, replace(recording, **changes))
        view.goto(path.as_uri())
        assert text in view.inner_text("#facts .warn")
    assert view.inner_text("h1") == "biped, a replay"
    view.close()
