"""Loading robots, ours and a user's own, and saying what is missing."""

import shutil
from dataclasses import replace
from unittest.mock import patch

import mujoco
import numpy as np
import pytest
import yaml

from worldloom.suites.robot.engines import LoopEngine
from worldloom.suites.robot.features import loads
from worldloom.suites.robot.model import ASSETS, biped, load
from worldloom.suites.robot.starts import SINK, around_home
from worldloom.suites.robot.task import JOYSTICK, STAND, WALK


@pytest.fixture(scope="module")
def robot():
    return biped()


def test_the_biped_is_what_its_file_says(robot):
    assert 3.8 < robot.mass < 4.3
    assert robot.home_height == pytest.approx(0.46, abs=0.005)
    assert robot.num_joints == 13
    assert robot.substeps == 5
    assert all(len(leg) == 5 for leg in robot.legs)
    assert robot.joints[robot.legs[1][0]] == "right_hip_roll"


def test_only_soles_touch_and_only_the_floor(robot):
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.home
    data.qpos[2] = 0.1  # sunk into the floor, all limbs crossed by it
    mujoco.mj_forward(robot.model, data)
    floor = robot.model.geom("floor").id
    assert data.ncon == 8
    pairs = {tuple(sorted(c.geom)) for c in data.contact}
    assert pairs == {tuple(sorted((floor, g))) for g in robot.foot_geoms}


def test_home_stands_still_on_flat_soles(robot):
    data = mujoco.MjData(robot.model)
    data.qpos[:], data.ctrl[:] = robot.home, robot.home_joints
    for _ in range(500):  # 2 s
        mujoco.mj_step(robot.model, data)
    assert data.qpos[2] == pytest.approx(robot.home_height, abs=0.02)
    assert abs(data.qpos[4:6]).max() < 0.05
    touch = loads(np, robot, data.sensordata)
    assert sum(touch) == pytest.approx(9.81 * robot.mass, rel=0.05)
    assert min(touch) > 0.3 * max(touch)


def test_left_and_right_mirror_each_other(robot):
    model = robot.model
    for left, right in zip(*robot.legs, strict=True):
        assert robot.joints[left].split("_", 1)[1] == robot.joints[right].split("_", 1)[1]
        if "roll" in robot.joints[left]:
            assert robot.lower[left] == -robot.upper[right]
        else:
            assert robot.lower[left] == robot.lower[right]
    np.testing.assert_allclose(
        model.body_mass[model.body("left_foot").id], model.body_mass[model.body("right_foot").id]
    )


# A user's own ----------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path):
    """A copy of the biped to break; returns (its MJCF, a function that edits the mapping)."""
    for name in ("biped.xml", "biped.yaml"):
        shutil.copy(ASSETS / name, tmp_path / name)
    path = tmp_path / "biped.yaml"

    def edit(change):
        names = yaml.safe_load(path.read_text())
        change(names)
        path.write_text(yaml.safe_dump(names))

    return tmp_path / "biped.xml", edit


def test_a_copy_of_the_files_is_the_same_robot(own, robot):
    copy = load(own[0])
    assert copy.joints == robot.joints
    np.testing.assert_array_equal(copy.home, robot.home)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n: n["sensors"].pop("gyro"), "the mapping names no gyro"),
        (
            lambda n: n["sensors"].update(gyro="gyr"),
            "no sensor 'gyr' for gyro; did you mean",
        ),
        (lambda n: n["sensors"].update(gyro="orientation"), "gives 4 numbers, gyro needs 3"),
        (lambda n: n.update(base="left_foot"), "has no free joint"),
        (lambda n: n.update(home="sitting"), "no keyframe 'sitting' for home"),
        (lambda n: n.update(feet=n["feet"][:1]), "two feet"),
        (lambda n: n["feet"][1].pop("touch"), "touch of the right foot"),
        (lambda n: n["feet"][0].update(body="left_shank"), "the left foot, has no geom that can"),
        (lambda n: n["legs"][1].append("root"), "no actuator moves joint 'root' of a leg"),
    ],
)
def test_what_is_missing_is_said(own, change, message):
    mjcf, edit = own
    edit(change)
    with pytest.raises(ValueError, match=message):
        load(mjcf)


def test_everything_that_is_missing_is_said_at_once(own):
    mjcf, edit = own
    edit(lambda n: n.update(base="body", home="rest"))
    with pytest.raises(ValueError, match=r"base.*home"):
        load(mjcf)


def test_soles_of_any_shape_are_put_on_the_floor(own):
    """With boxes for soles, as long as they are wide and not as deep."""
    mjcf, _ = own
    text = mjcf.read_text()
    ball = '<geom type="sphere" size="0.012"'
    assert ball in text
    mjcf.write_text(text.replace(ball, '<geom type="box" size="0.02 0.015 0.012"'))
    starts = around_home(LoopEngine(load(mjcf)), 4, 0)
    height = starts.physics.reading.qpos[0, 2]
    assert height == pytest.approx(0.4626 - SINK, abs=2e-4)  # flat boxes, as deep as the spheres
    robot = load(mjcf)
    data = mujoco.MjData(robot.model)
    for qpos in starts.physics.reading.qpos[1:]:
        data.qpos[:] = qpos
        mujoco.mj_forward(robot.model, data)
        assert data.contact.dist.min() == pytest.approx(-SINK, abs=1e-6)


WAIST = '<position name="waist_yaw" joint="waist_yaw"/>'


def with_waist(mjcf, actuator):
    text = mjcf.read_text()
    assert WAIST in text
    mjcf.write_text(text.replace(WAIST, actuator))


def test_actuators_that_are_no_servos_are_refused(own):
    mjcf, _ = own
    with_waist(mjcf, '<velocity name="waist_yaw" joint="waist_yaw" ctrlrange="-1 1" kv="1"/>')
    with pytest.raises(ValueError, match="'waist_yaw' is not a position servo"):
        load(mjcf)


def test_a_torque_motor_needs_gains_and_is_a_servo_with_them(own, robot):
    mjcf, edit = own
    with_waist(mjcf, '<motor name="waist_yaw" joint="waist_yaw" ctrlrange="-2 2" gear="2.25"/>')
    with pytest.raises(ValueError, match=r"torque motor; give .*gains: \{waist_yaw: \[30, 1\]"):
        load(mjcf)
    edit(lambda n: n.update(gains={"waist_yaw": [28, 0.6]}))
    servo, plain = load(mjcf), mujoco.MjData(robot.model)
    assert (servo.lower[0], servo.upper[0]) == (-0.6, 0.6)
    data = mujoco.MjData(servo.model)  # 2 * 2.25 Nm: the biped's own servo
    for state in (data, plain):
        state.qpos[:] = robot.home
        state.ctrl[:] = robot.home_joints + 0.2
    for _ in range(100):
        mujoco.mj_step(servo.model, data)
        mujoco.mj_step(robot.model, plain)
    np.testing.assert_allclose(data.qpos, plain.qpos, atol=1e-9)


def test_the_rate_of_control_is_the_mappings(own):
    mjcf, edit = own
    edit(lambda n: n.update(control_hz=125))
    fast = load(mjcf)
    assert (fast.substeps, fast.control_hz) == (2, 125)
    rules = WALK.rules(fast, push_steps=7)
    assert int(rules.horizon) == 2500  # 20 s, as ever
    assert int(rules.push_steps) == 7
    edit(lambda n: n.update(control_hz=60))
    with pytest.raises(ValueError, match=r"0.004 s does not divide 0.0166667 s.*control_hz"):
        load(mjcf)
    edit(lambda n: n.update(control_hz="often"))
    with pytest.raises(ValueError, match="control_hz is 'often'"):
        load(mjcf)


def test_the_most_specific_action_scale_counts_and_none_may_be_idle(own):
    mjcf, edit = own
    scales = {"default": 0.2, "pitch": 0.3, "knee_pitch": 0.8, "left_knee_pitch": 0.7}
    edit(lambda n: n.update(action=scales))
    robot = load(mjcf)
    found = dict(zip(robot.joints, robot.action_scale, strict=True))
    assert found["waist_yaw"] == 0.2
    assert found["left_hip_pitch"] == 0.3
    assert found["right_knee_pitch"] == 0.8
    assert found["left_knee_pitch"] == 0.7
    edit(lambda n: n["action"].update(knee=0.5))
    with pytest.raises(ValueError, match=r"action names 'knee', which no joint .* ends in"):
        load(mjcf)


def test_included_files_are_part_of_the_robot(own, robot, tmp_path):
    """In what its text and digest say, and so in bundles."""
    mjcf, _ = own
    text = mjcf.read_text()
    start, end = text.index("  <actuator>"), text.index("  <sensor>")
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "servos.xml").write_text(f"<mujocoinclude>{text[start:end]}</mujocoinclude>")
    outer = '<mujoco><include file="parts/servos.xml"/></mujoco>'
    (parts / "outer.xml").write_text(outer)
    include = '<include file="parts/outer.xml"/>'
    mjcf.write_text(text[:start] + include + text[end:])
    whole = load(mjcf)
    assert "<include" not in whole.xml
    again = mujoco.MjModel.from_xml_string(whole.xml)
    assert again.nu == robot.model.nu
    np.testing.assert_array_equal(again.actuator_ctrlrange, robot.model.actuator_ctrlrange)
    servos = (parts / "servos.xml").read_text()
    (parts / "servos.xml").write_text(
        servos.replace('joint="waist_yaw"', 'joint="waist_yaw" kp="9"')
    )
    assert load(mjcf).xml != whole.xml


@pytest.mark.parametrize(
    ("data", "least"), [("found", 0.4), ("found force", 0.3)], ids=["found", "force"]
)
def test_contact_sensors_tell_the_load_of_a_foot_too(own, robot, data, least):
    mjcf, edit = own
    touch = '<touch name="left_touch" site="left_sole"/>'
    text = mjcf.read_text()
    assert touch in text
    contact = '<contact name="left_touch" body1="left_foot" geom2="floor" num="1" '
    mjcf.write_text(text.replace(touch, f'{contact}reduce="netforce" data="{data}"/>'))
    changed = load(mjcf)
    model, sensors = changed.model, mujoco.MjData(changed.model)
    sensors.qpos[:], sensors.ctrl[:] = changed.home, changed.home_joints
    for _ in range(250):
        mujoco.mj_step(model, sensors)
    weight = 9.81 * robot.mass
    left, right = loads(np, changed, np.asarray(sensors.sensordata))
    assert least * weight < left < 0.7 * weight
    assert right > 0.3 * weight
    sensors.qpos[2] += 1.0
    mujoco.mj_forward(model, sensors)
    assert not loads(np, changed, np.asarray(sensors.sensordata)).any()
    edit(lambda n: n["feet"][0].update(touch=["right_touch", "orientation"]))
    with pytest.raises(ValueError, match="'orientation' is no touch sensor for the left foot"):
        load(mjcf)


def test_numbers_of_a_task_fit_the_size_of_the_robot(robot):
    """At a height of four times the biped's everything takes twice as long."""
    large = replace(
        robot, home=np.concatenate([robot.home[:2], 4 * robot.home[2:3], robot.home[3:]])
    )
    small, rules = STAND.rules(robot), STAND.rules(large)
    assert robot.length_scale == robot.weight_scale == robot.time_scale == 1.0
    np.testing.assert_allclose(rules.push_steps, 2 * small.push_steps)
    np.testing.assert_allclose(rules.push_force, small.push_force)  # it weighs the same
    np.testing.assert_allclose(WALK.rules(large).command, 2 * WALK.rules(robot).command)
    np.testing.assert_allclose(JOYSTICK.rules(large).turn, 0.5 * JOYSTICK.rules(robot).turn)
    np.testing.assert_allclose(WALK.rules(large, command=(0.1, 0.2)).command, [0.1, 0.2])
    with patch.dict(robot.__dict__, weight_scale=3.0):
        np.testing.assert_allclose(STAND.rules(robot).push_force, 3 * small.push_force)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ('timeconst="0.05"', "'waist_yaw' has a state of its own"),
        ('delay="0.008" nsample="2"', "actuators or sensors are delayed"),
    ],
)
def test_servos_that_remember_are_refused(own, memory, message):
    mjcf, _ = own
    text = mjcf.read_text()
    line = '<position name="waist_yaw" joint="waist_yaw"'
    assert line in text
    mjcf.write_text(text.replace(line, f"{line} {memory}"))
    with pytest.raises(ValueError, match=message):
        load(mjcf)


def test_a_base_that_is_not_the_first_to_move_is_refused(own):
    mjcf, _ = own
    ball = '<body name="ball"><freejoint/><geom type="sphere" size="0.02" mass="0.1"/></body>'
    text = mjcf.read_text().replace('<body name="pelvis"', f'{ball}<body name="pelvis"')
    mjcf.write_text(text.replace('qpos="0 0 0.4626', 'qpos="0 0 2 1 0 0 0  0 0 0.4626'))
    with pytest.raises(ValueError, match=r"free joint of body 'pelvis' is not the .* first joint"):
        load(mjcf)


def test_a_straight_walk_needs_the_pitch_joints_of_the_legs(robot):
    needed = {robot.joints[i] for i in np.flatnonzero(robot.sideways == 0.0)}
    joints = [f"{joint}_pitch" for joint in ("hip", "knee", "ankle")]
    assert needed == {f"{side}_{joint}" for side in ("left", "right") for joint in joints}
    assert robot.sideways.dtype == np.float32


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.pop("legs"),
        lambda n: n.update(legs=[leg[1:4] for leg in n["legs"]]),
        lambda n: n.update(legs=[["waist_yaw", *leg] for leg in n["legs"]]),
    ],
)
def test_what_a_walk_needs_does_not_hang_on_how_many_joints_legs_have(own, robot, change):
    mjcf, edit = own
    edit(change)
    np.testing.assert_array_equal(load(mjcf).sideways, robot.sideways)


def test_files_that_are_not_there_or_not_mjcf_are_named(tmp_path, own):
    with pytest.raises(ValueError, match=r"no MJCF file .*dog\.xml"):
        load(tmp_path / "dog.xml")
    (tmp_path / "dog.xml").write_text("<mujoco><leg/></mujoco>")
    with pytest.raises(ValueError, match=r"MuJoCo does not read .*dog\.xml"):
        load(tmp_path / "dog.xml")
    mjcf, _ = own
    mjcf.with_suffix(".yaml").unlink()
    with pytest.raises(ValueError, match=r"no mapping .*biped\.yaml"):
        load(mjcf)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '<geom name="pelvis" type="box"',
            '<geom name="pelvis" pos="nan 0 0" type="box"',
            "nan|fin",
        ),
        ('kp="28"', 'kp="1e300"', "is not finite, or too large"),
        ('timestep="0.004"', 'timestep="1e-12"', "does not divide|is not finite"),
        ('damping="0.1"', 'damping="inf"', "inf|finite"),
        ("<worldbody>", "<worldbody><", "MuJoCo does not read"),
        ('model="biped"', 'model="\u00e9\u00e9"', None),
    ],
)
def test_models_with_numbers_that_are_none_are_refused(own, old, new, message, capfd):
    mjcf, _ = own
    text = mjcf.read_text()
    assert old in text
    mjcf.write_text(text.replace(old, new, 1))
    if message is None:
        load(mjcf)
        return
    with pytest.raises(ValueError, match=message) as error:
        load(mjcf)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda n: n.update(legs=3),
        lambda n: n.update(legs=[3, 4]),
        lambda n: n.update(action={"default": float("nan")}),
        lambda n: n.update(action={"default": "wide"}),
        lambda n: n.update(action=[0.1]),
        lambda n: n.update(feet="ab"),
        lambda n: n.update(home={"a": 1}),
        lambda n: n["feet"][0].update(body=["left_foot"]),
    ],
)
def test_a_mapping_of_other_types_is_refused(own, change):
    mjcf, edit = own
    edit(change)
    with pytest.raises(ValueError, match="is no robot to train") as error:
        load(mjcf)
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize(
    "options",
    [
        {"horizon": -5},
        {"horizon": 2.5},
        {"horizon": 2**40},
        {"horizon": "long"},
        {"noise": float("nan")},
        {"randomise": -1},
        {"randomise": 3.0},
        {"push_force": float("inf")},
        {"push_force": (0.0, float("inf"))},
        {"push_force": (5.0, 1.0)},
        {"push_force": (1.0, 2.0, 3.0)},
        {"push_pause": (0, 10)},
        {"push_steps": 0},
        {"command": (0.3, 0.1)},
        {"latency": (0, 3)},
        {"latency": (0.0, 0.5)},
        {"friction": 0.9},
        {"resample": -1},
        {"command": "fast"},
        {"command": None},
        {"still": 1.5},
        {"alive": float("nan")},
        {"alive": 10**400},
    ],
)
def test_options_that_no_task_can_have_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"walk: {name}=.*; it must be ") as error:
        WALK.rules(**options)
    assert len(str(error.value)) <= 300
