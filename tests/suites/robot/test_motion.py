"""The reference gait: computed, realised in the simulator, and seen as a policy is seen."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mujoco")
import mujoco

from worldloom.suites.robot import features as gait_features
from worldloom.suites.robot import gait, kinematics, motion
from worldloom.suites.robot.engines import CEngine, LoopEngine
from worldloom.suites.robot.model import biped
from worldloom.suites.robot.starts import lowest
from worldloom.suites.robot.types import Physics, Reading

SPEED = 0.25
SIZES = dict(zip(gait_features.SCALES, (10, 10, 3, 3, 1, 3, 2, 2), strict=True))


@pytest.fixture(scope="module")
def robot():
    return biped()


@pytest.fixture(scope="module")
def cycle(robot):
    return kinematics.synthesise(robot, SPEED)


@pytest.fixture(scope="module")
def walks(robot):
    """The library: the suite's own reference."""
    return motion.library(robot)


@pytest.fixture(scope="module")
def walk(walks):
    """Its part at one speed."""
    chosen = np.isclose(walks.speed, SPEED)
    return jax.tree.map(lambda x: x[chosen], walks)


@pytest.fixture(scope="module")
def see(robot):
    return jax.jit(lambda reading: gait_features.features(jnp, robot, reading))


def posed(robot, base, joints):
    """MuJoCo's own kinematics of a level robot."""
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.home
    data.qpos[:3], data.qpos[robot.joint_qpos] = base, joints
    mujoco.mj_kinematics(robot.model, data)
    mujoco.mj_comPos(robot.model, data)
    return data


# The plan --------------------------------------------------------------------------------------


def test_leg_angles_put_level_feet_where_they_are_asked(robot):
    random = np.random.default_rng(0)
    legs = kinematics.legs_of(robot)
    for _ in range(50):
        joints, ankles = robot.home_joints.copy(), []
        for leg in legs:
            offset = random.uniform([-0.15, -0.08, -0.36], [0.15, 0.08, -0.2])
            ankles.append(leg.hip + offset)
            joints[list(leg.joints)] = kinematics.leg_angles(leg, ankles[-1])
        data = posed(robot, [0, 0, 0], joints)
        feet = list(robot.foot_bodies)
        np.testing.assert_allclose(data.xpos[feet], ankles, atol=1e-6)
        np.testing.assert_allclose(data.xmat[feet], np.tile(np.eye(3).ravel(), (2, 1)), atol=1e-6)


def test_what_a_leg_does_not_reach_is_not_finite(robot):
    leg = kinematics.legs_of(robot)[0]
    assert not np.isfinite(kinematics.leg_angles(leg, leg.hip - [0.0, 0.0, 0.5])).all()


def test_planned_soles_stand_by_the_clock_and_swing_between(robot, cycle):
    count = len(cycle.base)
    way = np.arange(count) / count * gait.PERIOD * SPEED
    stands = gait.foot_phases(np, np.arange(count) / count) < gait.STANCE
    for side, (foot, leg) in enumerate(
        zip(robot.foot_bodies, kinematics.legs_of(robot), strict=True)
    ):
        place = np.stack(
            [
                posed(robot, cycle.base[i], cycle.joints[i]).xpos[foot] + leg.sole
                for i in range(count)
            ]
        )
        place[:, 0] += way
        standing = place[stands[:, side]]
        # The right foot stands at both ends of the table, a stride apart.
        ahead = (standing[:, 0] - standing[0, 0]) % (SPEED * gait.PERIOD)
        assert np.minimum(ahead, SPEED * gait.PERIOD - ahead).max() < 1e-3
        np.testing.assert_allclose(standing[:, 2], 0.0, atol=1e-4)
        assert place[:, 2].max() == pytest.approx(gait.SWING_HEIGHT, abs=1e-3)


def test_the_planned_mass_is_a_pendulum_over_its_support(robot, cycle):
    count = len(cycle.base)
    phase = np.arange(count) / count
    steps = kinematics.footsteps(kinematics.legs_of(robot), robot, SPEED, phase)
    poses = [posed(robot, *both) for both in zip(cycle.base, cycle.joints, strict=True)]
    mass = np.stack([data.subtree_com[robot.base_body][:2] for data in poses])
    height = posed(robot, robot.home[:3], robot.home_joints).subtree_com[robot.base_body][2]
    step = gait.PERIOD / count
    pull = (np.roll(mass, -1, 0) - 2 * mass + np.roll(mass, 1, 0)) / step**2
    support = mass - height / kinematics.GRAVITY * pull
    assert np.abs(support - steps.support).max() < 0.006
    # That point never leaves the sole it should be under: 28 mm to either side of the middle.
    alone = steps.load.max(1) == 1.0
    under = np.take_along_axis(steps.soles, steps.load.argmax(1)[:, None, None], 1)[:, 0, :2]
    assert np.abs(support - under)[alone].max() < 0.028


def test_a_walk_too_fast_for_the_legs_is_refused(robot):
    with pytest.raises(ValueError, match=r"2 m/s takes strides of 1.44 m.*slower"):
        kinematics.synthesise(robot, 2.0)


def test_legs_of_another_build_are_refused(robot):
    with pytest.raises(ValueError, match="two legs of five joints"):
        kinematics.legs_of(replace(robot, legs=((), ())))
    (roll, hip, *left), right = robot.legs
    with pytest.raises(ValueError, match="do not hang straight down"):
        kinematics.legs_of(replace(robot, legs=((hip, roll, *left), right)))


# In the simulator ------------------------------------------------------------------------------


def test_realised_walks_make_their_speed_by_the_clock(robot, walks):
    assert np.unique(walks.speed).tolist() == [np.float32(speed) for speed in motion.SPEEDS]
    weight = robot.mass * kinematics.GRAVITY
    for speed in motion.SPEEDS:
        part = jax.tree.map(lambda x, speed=speed: x[np.isclose(walks.speed, speed)], walks)
        assert motion.faults(robot, part) == []
        qpos = part.reading.qpos
        way = qpos[-1, 0] - qpos[0, 0]
        assert way == pytest.approx(speed * 0.02 * (len(part) - 1), rel=0.05)
        stands = gait.foot_phases(np, part.phase) < gait.STANCE
        assert (part.contact == stands).mean() > 0.9
        assert motion.slipping(robot, part) < 0.03
        assert np.ptp(qpos[:, 2]) < 0.02
        assert abs(qpos[:, 2].mean() - robot.home_height) < 0.005
        pull = np.abs(part.harness[:, :3]).mean(0) / weight
        assert pull[2] == 0.0
        assert pull.max() < 0.05
        # The floor carries the robot: on average, all of its weight.
        carried = (
            part.reading.sensors[:, [foot[0].place.start for foot in robot.contacts]].sum(1).mean()
        )
        assert carried == pytest.approx(weight, rel=0.1)


def test_realised_feet_are_lifted_in_turn(robot, walk):
    feet = np.stack([walk.reading.sensors[:, place][:, 2] for place in robot.foot_position], 1)
    lift = feet - robot.home_foot_height
    swung = gait.swing_progress(np, walk.phase)
    middle = np.abs(swung - 0.5) < 0.1
    assert lift[middle].min() > 0.025
    assert (lift.min(1) < 0.01).all()  # never both in the air
    assert np.abs(lift - gait.swing_height(np, swung)).mean() < 0.005


def test_targets_ahead_of_the_load_bring_the_joints_where_they_were_planned(robot, cycle):
    bare = kinematics.Cycle(cycle.speed, cycle.base, cycle.joints, cycle.joints)

    def miss(plan):
        played = motion.realise(robot, plan, cycles=2)
        places = np.round(played.phase * len(plan.joints)).astype(int) % len(plan.joints)
        gap = played.reading.qpos[:, robot.joint_qpos] - plan.joints[places]
        return np.sqrt(np.square(gap).mean())

    assert miss(cycle) < 0.025
    assert miss(bare) > 2 * miss(cycle)


def test_the_same_seed_gives_the_same_motion(robot, cycle):
    one, two, other = (motion.realise(robot, cycle, seed=s, cycles=1) for s in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert not np.array_equal(one.reading.qpos, other.reading.qpos)


def test_a_motion_that_is_no_walk_says_why(robot, walk):
    still = walk.replace(reading=walk.reading.replace(qpos=np.zeros_like(walk.reading.qpos)))
    assert any("moves at 0.00 m/s" in fault for fault in motion.faults(robot, still))
    lost = walk.replace(reading=jax.tree.map(lambda x: x * np.nan, walk.reading))
    assert any("moves at nan m/s" in fault for fault in motion.faults(robot, lost))
    hung = walk.replace(harness=walk.harness + 10.0)
    assert any("harness pulls with" in fault for fault in motion.faults(robot, hung))
    astray = walk.replace(phase=(walk.phase + 0.4) % 1.0)
    assert any("by the clock" in fault for fault in motion.faults(robot, astray))


# Files -----------------------------------------------------------------------------------------


def test_a_saved_motion_comes_back(robot, walk, tmp_path):
    motion.save(tmp_path / "walk.npz", robot, walk)
    jax.tree.map(np.testing.assert_array_equal, motion.load(tmp_path / "walk.npz", robot), walk)


def test_a_motion_that_cannot_be_written_leaves_the_one_before(robot, walk, tmp_path, monkeypatch):
    path = tmp_path / "walk.npz"
    motion.save(path, robot, walk)
    before = path.read_bytes()

    def full_disk(file, **arrays):
        file.write(b"PK")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="no space"):
        motion.save(path, robot, walk)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a["qpos"].__setitem__((3, 9), np.nan), "qpos is not all finite"),
        (lambda a: a.update(qvel=a["qvel"][::2]), "qvel has the shape"),
        (lambda a: a.update(target=a["target"][:, :5]), "target has the shape"),
        (lambda a: a["qpos"].__imul__([1] * 7 + [57.3] * 13), "angles are in radians"),
        (lambda a: a["qpos"].__setitem__((slice(None), 3), 2.0), "no unit quaternion"),
        (lambda a: a["phase"].__iadd__(1.5), "phase is not within"),
        (lambda a: a.update({n: x[:1] for n, x in a.items() if x.ndim}), "fewer than two"),
    ],
)
def test_a_motion_that_cannot_be_is_refused(robot, walk, tmp_path, change, message):
    path = tmp_path / "walk.npz"
    motion.save(path, robot, walk)
    arrays = dict(np.load(path))
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=rf"walk.npz is no reference motion: .*{message}"):
        motion.load(path, robot)


def test_a_motion_of_another_robot_is_refused(robot, walk, tmp_path):
    motion.save(tmp_path / "walk.npz", robot, walk)
    other = replace(robot, joints=("tail", *robot.joints[1:]))
    with pytest.raises(ValueError, match="reference motion of another robot"):
        motion.load(tmp_path / "walk.npz", other)


@pytest.mark.parametrize("content", [b"", b"not a zip", None])
def test_what_is_no_motion_is_refused(robot, content, tmp_path):
    path = tmp_path / "walk.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"walk\.npz"):
        motion.load(path, robot)
    np.savez(path, qpos=np.zeros(3))
    with pytest.raises(ValueError, match=r"walk\.npz is no reference motion"):
        motion.load(path, robot)


# Starts ----------------------------------------------------------------------------------------


def test_starts_are_moments_of_the_motion_with_their_clock(robot, walk):
    engine = LoopEngine(robot)
    starts = motion.starts_from(engine, walk, 40, seed=1)
    assert starts.phase.shape == (40,)
    assert starts.phase.dtype == np.float32
    reading = starts.physics.reading
    data = mujoco.MjData(robot.model)
    for i in range(40):
        same = np.flatnonzero(walk.phase == starts.phase[i])
        gaps = np.abs(walk.reading.qvel[same] - reading.qvel[i]).max(1)
        assert gaps.min() < 1e-6
        origin = same[gaps.argmin()]
        bent = np.abs(reading.qpos[i, 7:] - walk.reading.qpos[origin, 7:])
        assert 0.0 < bent.max() < 6 * motion.STRAY
        data.qpos[:] = reading.qpos[i]
        mujoco.mj_kinematics(robot.model, data)
        assert abs(lowest(robot, data)) < 2e-4


# Features --------------------------------------------------------------------------------------


def test_compiled_features_are_those_of_numpy(robot, walks, see):
    plain = gait_features.features(np, robot, walks.reading)
    assert plain.dtype == np.float32
    assert plain.shape == (len(walks), sum(SIZES.values()))
    np.testing.assert_allclose(see(walks.reading), plain, atol=1e-5)


def test_a_policy_through_the_c_engine_is_seen_as_the_motion_is(robot, cycle, monkeypatch):
    """From each recorded state the C engine in jit takes the step that was recorded next."""
    for name in ("HOLD", "DAMP", "RIGHT", "CALM", "WARM_UP"):  # a first cycle without a harness
        monkeypatch.setattr(motion, name, 0)
    free = motion.realise(robot, cycle, cycles=1)
    before, after = (
        jax.tree.map(lambda x, i=i: x[i], free) for i in (slice(0, -1), slice(1, None))
    )
    rows = before.reading
    numbers = [np.asarray(x, np.float64) for x in (rows.qpos, rows.qvel, np.zeros_like(rows.qvel))]
    engine = CEngine(robot, threads=2)

    @jax.jit
    def step_and_see(physics, target):
        physics = engine.step(physics, target, jnp.zeros((len(target), 2)), None)
        return physics.reading, gait_features.features(jnp, robot, physics.reading)

    physics = jax.tree.map(jnp.asarray, Physics(engine.pack(*numbers), rows))
    reading, values = step_and_see(physics, after.target)
    np.testing.assert_allclose(values, gait_features.features(np, robot, reading), atol=1e-5)
    # Joints, sensors, units and timing mean the same on both sides. (The record is rounded to
    # float32 and has no warm start: hence not quite the same.)
    np.testing.assert_allclose(values, gait_features.features(np, robot, after.reading), atol=5e-5)


def test_features_do_not_know_where_the_robot_is_or_faces(robot, walk):
    reading = jax.tree.map(lambda x: x[:20], walk.reading)
    angle = 2.0
    turn = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
    spin = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = jax.tree.map(np.array, reading)
    moved.qpos[:, :2] += 5.0
    moved.qvel[:, :2] = reading.qvel[:, :2] @ spin.T
    for i in range(20):
        for array, place in ((moved.qpos, slice(3, 7)), (moved.sensors, robot.orientation)):
            turned = np.empty(4)
            mujoco.mju_mulQuat(turned, turn, array[i, place].astype(np.float64))
            array[i, place] = turned
    there = gait_features.features(np, robot, moved)
    np.testing.assert_allclose(there, gait_features.features(np, robot, reading), atol=1e-4)


def test_features_are_read_from_the_named_places(robot):
    qpos = robot.home.astype(np.float32).copy()
    sensors = np.zeros(robot.model.nsensordata, np.float32)
    sensors[robot.orientation] = [1, 0, 0, 0]
    for place in robot.foot_position:
        sensors[place] = [0, 0, robot.home_foot_height]
    reading = Reading(qpos, np.zeros(robot.model.nv, np.float32), sensors)

    def part(reading, name):
        ends = np.cumsum([0, *SIZES.values()])
        index = list(SIZES).index(name)
        both = gait_features.features(np, robot, reading)[ends[index] : ends[index + 1]]
        return both * gait_features.SCALES[name]

    quiet = {name: part(reading, name) for name in SIZES}
    np.testing.assert_allclose(quiet.pop("gravity"), [0, 0, -1], atol=1e-6)
    for name, values in quiet.items():
        np.testing.assert_allclose(values, 0.0, atol=1e-6, err_msg=name)
    knee = robot.legs[1][2]  # of the right leg: the eighth of the ten
    qpos[robot.joint_qpos[knee]] += 0.3
    np.testing.assert_allclose(part(reading, "joints"), 0.3 * (np.arange(10) == 7), atol=1e-6)
    sensors[robot.contacts[1][0].place] = 1e3
    np.testing.assert_allclose(part(reading, "contact"), [0.0, 1.0], atol=0.01)
    qpos[2] += 0.1
    np.testing.assert_allclose(part(reading, "height"), [0.1], atol=1e-6)


# Distance --------------------------------------------------------------------------------------


def test_a_gait_is_at_no_distance_from_itself_and_far_from_another(robot, walk, cycle):
    def distance(other):
        return gait_features.gait_distance(
            *(gait_features.profile(robot, gait.reading, gait.phase) for gait in (walk, other))
        )

    assert distance(walk) == 0.0
    again = motion.realise(robot, cycle, seed=11)
    rows = np.random.default_rng(0).choice(len(again), len(again))
    resampled = jax.tree.map(lambda x: x[rows], again)
    other = walk.replace(phase=(walk.phase + 0.2) % 1.0)
    assert distance(resampled) < 0.03
    assert distance(other) > 3 * distance(resampled)
    # A shift of one joint by 0.1 rad is 0.1 / sqrt(10) over ten joints.
    bent = walk.reading.qpos.copy()
    bent[:, robot.joint_qpos[robot.legs[0][2]]] += 0.1
    bent = walk.replace(reading=walk.reading.replace(qpos=bent))
    assert distance(bent) == pytest.approx(0.1 / np.sqrt(10), rel=1e-3)


def test_gaits_that_share_no_phase_cannot_be_compared(robot, walk):
    early, late = walk.phase < 0.3, walk.phase > 0.6
    parts = (jax.tree.map(lambda x, i=i: x[i], walk) for i in (early, late))
    profiles = [gait_features.profile(robot, part.reading, part.phase) for part in parts]
    with pytest.raises(ValueError, match="no phase"):
        gait_features.gait_distance(*profiles)
