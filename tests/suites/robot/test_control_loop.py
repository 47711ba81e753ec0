"""The control loop of a bundle: as the library plays its policy, and stopped by what is wrong."""

import json
import math
import re
import shutil
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mujoco")

from worldloom.cli.main import main
from worldloom.serving import control_loop
from worldloom.serving.control_loop import Pacer, Simulation, Track, clamp_command
from worldloom.suites.robot.export import export_policy
from worldloom.suites.robot.types import Physics, Reading, Starts
from worldloom.suites.robot.world import world

WALKED = 150  # steps: three seconds
COMMAND = 0.2


def layers(seed=0, size=48, gain=0.2, bias=0.0):
    """A network whose small answers depend on all that it sees, and leave the robot standing."""
    random = np.random.default_rng(seed)
    sizes = ((size, 32), (32, 13))
    made = [{"kernel": random.normal(0.0, a**-0.5, (a, b)), "bias": np.zeros(b)} for a, b in sizes]
    made[-1]["kernel"] *= gain
    made[-1]["bias"] += bias
    return jax.tree.map(lambda x: x.astype(np.float32), made)


@pytest.fixture(scope="module")
def walking():
    return world(task="walk", physics="c", command=(COMMAND, COMMAND), still=0.0)


@pytest.fixture(scope="module")
def bundle(walking, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed") / "bundle"
    return export_policy(folder, walking.robot, walking.task, layers(), activation="elu")


def simulation(bundle, kind=Simulation, **options):
    policy, files = control_loop.load(bundle)
    return kind(policy.manifest, files["robot.xml"], **options), policy


def watched(robot, policy, command=COMMAND, seconds=1.0):
    """The summary of a run, and the targets (T, n) of the policy, in its own order."""
    rows = []
    keep = lambda now, asked, targets: rows.append((now, targets.copy()))  # noqa: E731
    summary = control_loop.run(robot, policy, command, seconds, realtime=False, watch=keep)
    return summary, [now for now, _ in rows], np.array([targets for _, targets in rows])


# What it does ------------------------------------------------------------------------------------


class Kept(Simulation):
    """Keeps the state of every moment that was read."""

    def read(self):
        data = self.data
        arrays = (data.qpos, data.qvel, data.qacc_warmstart, data.sensordata)
        self.states = [*getattr(self, "states", []), [x.copy() for x in arrays]]
        return super().read()


def test_the_loop_asks_what_the_library_asks_over_a_walk(bundle, walking):
    """From the state in which the policy takes over, each in its own physics, step after step."""
    robot, policy = simulation(bundle, Kept)
    summary, _, targets = watched(robot, policy, seconds=WALKED * policy.seconds)
    assert (summary.stopped, len(targets), summary.limited) == (None, WALKED, 0.0)
    qpos, qvel, warmstart, sensors = (x[None] for x in robot.states[-WALKED])
    reading = Reading(*(x.astype(np.float32) for x in (qpos, qvel, sensors)))
    physics = Physics(walking.engine.pack(qpos, qvel, warmstart), reading)
    begun = walking.with_starts(Starts(physics, np.zeros(1, np.float32)))
    network = jax.tree.map(jnp.asarray, layers())

    def act(obs):
        x = jax.nn.elu(obs.state @ network[0]["kernel"] + network[0]["bias"])
        return x @ network[1]["kernel"] + network[1]["bias"]

    def one(carry, key):
        state, obs = carry
        action = act(obs)
        target = begun.drive(begun.params.rules, state, action)[1]
        state, after = begun.step_many(key[None], state, action, begun.params)
        return (state, after.obs), (target[0], after.terminated[0])

    @jax.jit
    def play(key):
        state, first = begun.reset_many(key[None], begun.params)
        return jax.lax.scan(one, (state, first.obs), jax.random.split(key, WALKED))[1]

    expected, fell = jax.device_get(play(jax.random.key(0)))
    assert not fell.any()
    moved = np.abs(expected - walking.robot.home_joints).max(0)
    assert (moved > 0.005).all(), "an idle policy proves nothing"
    np.testing.assert_allclose(targets, expected, atol=1e-6)


def test_numpy_and_onnx_ask_the_same(bundle, walking, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs worldloom[onnx]")
    with pytest.raises(ValueError, match=r"has no policy\.onnx; export it with"):
        control_loop.load(bundle, onnx=True)
    both = export_policy(
        tmp_path / "both", walking.robot, walking.task, layers(), activation="elu", onnx=True
    )
    policy, files = control_loop.load(both, onnx=True)
    robot = Simulation(policy.manifest, files["robot.xml"])
    summary, _, targets = watched(robot, policy)
    assert summary.stopped is None
    np.testing.assert_allclose(targets, watched(*simulation(bundle))[2], atol=1e-4)


class Shuffled(Simulation):
    """The same robot with its joints in another order."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.order = np.random.default_rng(1).permutation(len(self.joints))
        self.named, self.joints = self.joints, tuple(self.joints[i] for i in self.order)

    def configure(self, stiffness, damping, torque):
        back = np.argsort(self.order)
        super().configure(stiffness[back], damping[back], [torque[i] for i in back])

    def read(self):
        now = super().read()
        positions, velocities = now.positions[self.order], now.velocities[self.order]
        return now._replace(positions=positions, velocities=velocities)

    def write(self, targets):
        super().write(targets[np.argsort(self.order)])


def test_joints_are_matched_by_name(bundle):
    expected = watched(*simulation(bundle))
    robot, policy = simulation(bundle, Shuffled)
    assert robot.joints != policy.joints
    found = watched(robot, policy)
    assert found[0].distance == expected[0].distance
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize("latency", [0, 2])
def test_a_latency_holds_targets_back(bundle, latency):
    robot, _ = simulation(bundle, latency=latency)
    home = robot.data.qpos[7:].copy()
    reached = []
    for step in range(1, 5):
        robot.write(home + 0.01 * step)
        reached.append(robot.data.ctrl[0] - home[0])
    expected = [0.01, 0.02, 0.03, 0.04] if latency == 0 else [0.0, 0.0, 0.01, 0.02]
    np.testing.assert_allclose(reached, expected, atol=1e-12)


def test_a_robot_with_torque_motors_is_simulated_with_its_servos(walking, tmp_path):
    from worldloom.suites.robot.model import ASSETS, load

    waist = '<position name="waist_yaw" joint="waist_yaw"/>'
    motor = '<motor name="waist_yaw" joint="waist_yaw" ctrlrange="-2 2" gear="2.25"/>'
    text = (ASSETS / "biped.xml").read_text()
    assert waist in text
    (tmp_path / "own.xml").write_text(text.replace(waist, motor))
    mapping = (ASSETS / "biped.yaml").read_text() + "gains: {waist_yaw: [30, 1]}\n"
    (tmp_path / "own.yaml").write_text(mapping)
    own = load(tmp_path / "own.xml")
    folder = export_policy(tmp_path / "b", own, walking.task, layers(), activation="elu")
    robot, policy = simulation(folder)
    assert watched(robot, policy, seconds=0.1)[0].stopped is None
    again, _ = simulation(folder)
    servos = policy.manifest["servos"]
    again.configure(*(np.array(servos[x]) for x in ("stiffness", "damping")), servos["torque"])
    for name in ("gainprm", "biasprm", "biastype", "gear", "forcerange"):
        expected = getattr(own.model, f"actuator_{name}")
        np.testing.assert_array_equal(getattr(again.model, f"actuator_{name}"), expected)


def test_the_ramp_goes_from_the_first_pose_to_home_before_the_policy(bundle):
    robot, policy = simulation(bundle, seed=3)
    written, first = [], robot.read().positions
    write, robot.write = robot.write, lambda x: (written.append(x.copy()), write(x))[1]
    home, calls = np.array(policy.manifest["action"]["home"]), []
    step = policy.step
    policy.step = lambda *args, **more: (calls.append(len(written)), step(*args, **more))[1]
    control_loop.run(robot, policy, COMMAND, 0.1, realtime=False)
    ramp = round(control_loop.RAMP_SECONDS / policy.seconds)
    assert calls == list(range(ramp, ramp + 5))
    share = [np.abs(x - first).max() for x in written[:ramp]]
    assert share == sorted(share)
    assert share[0] < 1e-3 < share[-1]
    np.testing.assert_allclose(written[ramp - 1], home, atol=1e-12)


def test_targets_move_no_faster_than_the_bundle_says(walking, tmp_path):
    jump = layers(gain=0.0, bias=np.where(np.arange(13) == 1, 1.0, 0.0))  # an arm, at once
    folder = export_policy(tmp_path / "b", walking.robot, walking.task, jump, activation="elu")
    robot, policy = simulation(folder)
    summary, _, targets = watched(robot, policy)
    action = policy.manifest["action"]
    most = np.array(action["rate"]) * policy.seconds
    assert most[1] == pytest.approx(0.1)  # 0.2 rad to both sides in four steps
    home, scale = action["home"][1], action["scale"][1]
    np.testing.assert_allclose(targets[:3, 1] - home, [0.1, scale, scale], atol=1e-6)
    assert summary.limited == pytest.approx(1 / len(targets))


# Commands and what is walked ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "trained", "expected"),
    [
        (0.2, [[0.1, 0.35]], [0.2]),
        (5.0, [[0.1, 0.35]], [0.35]),
        (-1.0, [[0.1, 0.35]], [0.1]),
        (0.0, [[0.1, 0.35]], [0.0]),  # to stand
        ((0.3,), [[-0.2, 0.35], [-0.15, 0.15], [-0.5, 0.5]], [0.3, 0.0, 0.0]),
        ((-9.0, 9.0, -9.0), [[-0.2, 0.35], [-0.15, 0.15], [-0.5, 0.5]], [-0.2, 0.15, -0.5]),
        (1.0, [[0.0, 0.0]], [0.0]),
    ],
)
def test_commands_are_clamped_to_what_was_trained(given, trained, expected):
    assert clamp_command(given, trained).tolist() == expected


@pytest.mark.parametrize("given", [(0.1, 0.1), math.nan, math.inf, ((0.1,),)])
def test_commands_of_another_kind_are_refused(given):
    with pytest.raises(ValueError, match="this policy takes a forward speed, finite numbers"):
        clamp_command(given, [[0.1, 0.35]])


def tracked(command, speed, turn, seconds=12.0):
    """`Track.results` of a robot that goes forward at a speed while it turns."""
    track = Track(0.02, np.atleast_1d(command))
    x = y = yaw = 0.0
    for _ in range(round(seconds / 0.02)):
        track.add((x, y, yaw, 0.4))
        x, y = x + 0.02 * speed * math.cos(yaw), y + 0.02 * speed * math.sin(yaw)
        yaw = (yaw + 0.02 * turn + math.pi) % (2.0 * math.pi) - math.pi
    return track.results()


def test_what_is_walked_is_judged_by_where_it_leads():
    assert tracked(0.2, 0.2, 0.0) == pytest.approx((0.2 * 11.98, 0.0, 0.0), abs=1e-9)
    assert tracked(0.3, 0.2, 0.0)[1] == pytest.approx(0.1)
    circle = 2.0 * math.pi / 9.98  # once around from two seconds on
    assert tracked(0.2, 0.2, circle)[1] == pytest.approx(0.2, abs=1e-3), "circles lead nowhere"
    steered = tracked([0.2, 0.0, 0.5], 0.2, 0.5)
    assert steered[1:] == pytest.approx((0.0, 0.0), abs=1e-9)
    assert tracked([0.2, 0.1, 0.0], 0.2, 0.5)[1:] == pytest.approx((0.1, 0.5))
    assert tracked(0.2, 0.2, 0.0, seconds=1.0)[1:] == (None, None)
    assert Track(0.02, np.zeros(1)).results() == (None, None, None)


# What goes wrong ---------------------------------------------------------------------------------


class Broken(Simulation):
    """A robot of which something is wrong: `wrong(readings, step)` makes its readings."""

    wrong = staticmethod(lambda now, step: now)
    steps = stops = written_after = 0

    def read(self):
        self.steps += 1
        return self.wrong(super().read(), self.steps - 2)  # the first is before the ramp

    def write(self, targets):
        self.written_after += self.stops
        super().write(targets)

    def stop(self):
        self.stops += 1
        super().stop()


def turned(angle, axis, order="wxyz"):
    w, (x, y, z) = math.cos(angle / 2), np.array(axis) * math.sin(angle / 2)
    return [w, x, y, z] if order == "wxyz" else [x, y, z, w]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orientation_wxyz": turned(0.0, [0, 0, 1], "xyzw")}, "faces backwards.* x y z w"),
        ({"orientation_wxyz": turned(1.5, [0, 0, 1], "xyzw")}, "far from upright.* x y z w"),
        ({"orientation_wxyz": turned(0.6, [0, 1, 0])}, r"tilted by 0\.60 rad"),
        ({"orientation_wxyz": [0.0, 0.0, 0.0, 0.0]}, "no unit quaternion"),
        ({"orientation_wxyz": [1.0, 0.0, 0.0]}, "no unit quaternion"),
        ({"orientation_wxyz": [math.nan] * 4}, "no unit quaternion"),
        (
            {"positions": np.degrees(np.full(13, 0.2))},
            "right_hip_roll reads 11.5 rad.*look at units",
        ),
        ({"positions": np.full(13, math.nan)}, "reads nan rad"),
    ],
)
def test_a_robot_that_does_not_stand_is_not_started(bundle, change, message):
    robot, policy = simulation(bundle, Broken)
    robot.wrong = lambda now, step: now._replace(**change)
    written = robot.data.ctrl.copy()
    robot.configure = lambda *gains: pytest.fail("its servos were switched on")
    with pytest.raises(ValueError, match=message):
        control_loop.run(robot, policy, COMMAND, 1.0, realtime=False)
    np.testing.assert_array_equal(robot.data.ctrl, written)


@pytest.mark.parametrize("facing", [0.0, 1.5, -2.8])
def test_a_robot_may_face_wherever_it_likes(bundle, facing):
    robot, policy = simulation(bundle, Broken)
    robot.wrong = lambda now, step: now._replace(orientation_wxyz=turned(facing, [0, 0, 1]))
    assert control_loop.run(robot, policy, 0.0, 0.1, realtime=False).stopped is None


@pytest.mark.parametrize(
    ("change", "reason", "falls"),
    [
        ({"orientation_wxyz": turned(0.81, [1, 0, 0])}, r"it fell: tilted by 0\.81 rad", 1),
        ({"orientation_wxyz": [math.nan] * 4}, "orientation_wxyz is no rotation", 0),
        ({"gyro": [0.0, math.inf, 0.0]}, "gyro is not finite", 0),
        ({"velocities": np.full(13, math.nan)}, "joint_velocities is not finite", 0),
    ],
)
def test_a_robot_is_stopped_by_bad_readings(bundle, change, reason, falls):
    robot, policy = simulation(bundle, Broken)
    late = round(control_loop.RAMP_SECONDS / policy.seconds) + 10
    robot.wrong = lambda now, step: now._replace(**change) if step >= late else now
    summary = control_loop.run(robot, policy, COMMAND, 5.0, realtime=False)
    assert summary.falls == falls
    assert summary.seconds == pytest.approx(10 * policy.seconds)
    assert robot.stops >= 1
    assert robot.written_after == 0
    assert re.search(reason, summary.stopped)


def test_a_robot_that_sinks_has_fallen(bundle):
    robot, policy = simulation(bundle, Broken)
    robot.pose = lambda: (0.0, 0.0, 0.0, 0.1)
    summary = control_loop.run(robot, policy, COMMAND, 1.0, realtime=False)
    assert (summary.stopped, summary.falls) == ("it fell: its base is at 0.10 m", 1)


def test_a_joint_that_does_not_follow_is_found_by_the_ramp(bundle):
    robot, policy = simulation(bundle, Broken)
    late = round(control_loop.RAMP_SECONDS / policy.seconds) - 5

    def stuck(now, step):
        now.positions[5] += 0.5 * (step >= late)
        return now

    robot.wrong = stuck
    summary = control_loop.run(robot, policy, COMMAND, 1.0, realtime=False)
    assert summary.stopped.startswith(f"{robot.joints[5]} is +0.")
    assert "look at the sign" in summary.stopped
    assert (summary.seconds, robot.stops) == (0.0, 1)


def test_joints_that_are_not_the_policys_are_named(bundle):
    robot, policy = simulation(bundle)
    robot.joints = ("tail", *robot.joints[1:])
    with pytest.raises(ValueError, match="lacks waist_yaw; the policy does not know tail"):
        control_loop.run(robot, policy)
    robot.joints = (*policy.joints, policy.joints[0])
    with pytest.raises(ValueError, match="some are twice"):
        control_loop.run(robot, policy)


def test_the_watchdog_stops_a_robot_whose_loop_hangs(bundle):
    robot, policy = simulation(bundle, Broken)
    stopped = threading.Event()

    def hang(now, step):
        if step == 3:
            assert stopped.wait(60.0), "nobody stopped it"
        return now

    robot.wrong = hang
    stop, robot.stop = robot.stop, lambda: (stop(), stopped.set())
    summary = control_loop.run(robot, policy, COMMAND, 5.0)
    assert "watchdog" in summary.stopped
    assert summary.seconds == 0.0
    assert robot.written_after == 0


def test_an_error_of_the_robot_stops_it_and_is_told(bundle):
    robot, policy = simulation(bundle, Broken)

    def unplugged(now, step):
        if step == 5:
            raise OSError("the bus is gone")
        return now

    robot.wrong = unplugged
    with pytest.raises(OSError, match="the bus is gone"):
        control_loop.run(robot, policy, COMMAND, 1.0, realtime=False)
    assert robot.stops == 1


def test_a_late_step_is_counted_and_not_made_up_for():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(round(seconds, 6))
        now[0] += seconds

    pacer = Pacer(0.02, lambda: now[0], sleep)
    for busy in (0.005, 0.05, 0.02, 0.0):
        now[0] += busy
        pacer.wait()
    assert slept == [0.015, 0.0, 0.02]
    assert (pacer.missed, pacer.slowest) == (1, pytest.approx(0.05))
    assert now[0] == pytest.approx(0.02 + 0.05 + 0.02 + 0.02)


# The command, and the file by itself -------------------------------------------------------------


def test_deploy_runs_a_bundle_and_says_how_it_went(bundle, capsys):
    assert main(["deploy", str(bundle), "--sim", "--fast", "--seconds", "3"]) == 0
    out = capsys.readouterr().out
    assert "command 0" in out
    for line in ("falls              0", "distance", "off the command", "missed deadlines   0"):
        assert line in out
    asked = ["--command", "9", "--json", "--quiet", "--latency", "1"]
    assert main(["deploy", str(bundle), "--sim", "--fast", "--seconds", "2.5", *asked]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["command"] == [pytest.approx(0.35)]
    assert (told["falls"], told["stopped"]) == (0, None)
    assert told["tracking_error"] > 0.1, "this policy does not walk"


def test_a_simulation_waits_for_every_step_but_where_it_may_be_fast(bundle, monkeypatch):
    waits = []
    monkeypatch.setattr(Pacer, "wait", lambda pacer: waits.append(pacer._period))
    monkeypatch.setattr(control_loop, "PATIENCE", 10_000)  # of a machine that is busy
    for realtime, period in ((True, 0.02), (False, 0.0)):
        control_loop.simulate(bundle, seconds=0.1, realtime=realtime)
        assert waits == [period] * (round(control_loop.RAMP_SECONDS / 0.02) + 5)
        waits.clear()


def test_deploy_says_so_where_the_robot_falls(walking, tmp_path, capsys):
    lean = layers(gain=0.0, bias=np.where(np.arange(13) % 5 == 1, 1.0, -1.0))
    folder = export_policy(tmp_path / "b", walking.robot, walking.task, lean, activation="elu")
    assert main(["deploy", str(folder), "--sim", "--fast", "--json", "--quiet"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["falls"] == 1
    assert told["stopped"].startswith("it fell")
    assert told["seconds"] < 20.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "add --sim"),
        ("--sim --seconds 0", "seconds=0.0; it must be above 0"),
        ("--sim --seconds nan", "seconds=nan"),
        ("--sim --command 1 2", r"this policy takes a forward speed"),
        ("--sim --command nan", r"finite numbers"),
        ("--sim --latency -1", "latency=-1"),
        ("--sim --onnx", r"has no policy\.onnx"),
    ],
)
def test_bad_options_are_refused_in_a_line(bundle, options, message, capsys):
    assert main(["deploy", str(bundle), *options.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert re.search(message, said.err)


def test_bad_bundles_are_refused_in_a_line(bundle, tmp_path, capsys):
    broken = shutil.copytree(bundle, tmp_path / "broken")
    text = (broken / "robot.xml").read_text()
    (broken / "robot.xml").write_text(text.replace("0.4626", "9.4626"))
    poem = tmp_path / "poem"
    poem.mkdir()
    for folder, why in ((broken, "robot.xml is not the file"), (poem, "no manifest.json")):
        assert main(["deploy", str(folder), "--sim"]) == 2
        said = capsys.readouterr().err
        assert why in said
        assert said.count("\n") == 1


def test_a_robot_that_mujoco_does_not_read_is_refused(bundle):
    policy, _ = control_loop.load(bundle)
    xml = b'<mujoco><asset><mesh name="hull" file="hull.stl"/></asset></mujoco>'
    with pytest.raises(ValueError, match=r"does not read the bundle's robot\.xml .*meshes"):
        Simulation(policy.manifest, xml)


def test_the_file_runs_by_itself_where_neither_jax_nor_worldloom_is(bundle, tmp_path):
    moved = shutil.copytree(bundle, tmp_path / "moved")
    hidden = "import sys; sys.modules.update(dict.fromkeys(['jax', 'flax', 'worldloom'])); "
    run = "import runpy; runpy.run_path('control_loop.py', run_name='__main__')"
    command = [sys.executable, "-c", hidden + run, ".", "--sim", "--fast", "--seconds", "0.5"]
    out = subprocess.run(command, cwd=moved, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stderr) == (0, "")
    assert json.loads(out.stdout)["seconds"] == pytest.approx(0.5)
    out = subprocess.run(command[:4], cwd=moved, capture_output=True, text=True, check=False)
    assert (out.returncode, out.stdout) == (2, "")
    assert "the robot's joints are not the policy's: it lacks waist_yaw" in out.stderr
