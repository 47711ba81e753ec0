"""Uneven ground: the same for all engines and libraries, and levels that follow from how far."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("mujoco")

from worldloom.core.memory import WithMemory, remember
from worldloom.core.transforms import as_pure, autoreset_batch
from worldloom.suites.robot import ground as grounds
from worldloom.suites.robot.drawing import drawings
from worldloom.suites.robot.engines import LoopEngine
from worldloom.suites.robot.evaluate import RobotEvaluator
from worldloom.suites.robot.features import sensed
from worldloom.suites.robot.gait_page import read_ground
from worldloom.suites.robot.ground import KINDS, LEVELS, make_ground, next_lane
from worldloom.suites.robot.loop import RobotLoop
from worldloom.suites.robot.model import ASSETS, biped, load, mujoco
from worldloom.suites.robot.recording import Recording
from worldloom.suites.robot.replay import EARTH, replay
from worldloom.suites.robot.shapes import ground_shape, moving_shapes
from worldloom.suites.robot.types import Lane, Reading
from worldloom.suites.robot.world import world

WORLDS = 4


@pytest.fixture(scope="module")
def uneven():
    """A compiled walk on all kinds of ground, and the same in a loop in numpy."""
    options = {"randomise": 1.0, "noise": 1.0, "levels": (0, LEVELS), "history": 3, "horizon": 12}
    compiled = world(task="walk", physics="c", threads=1, ground="mixed", **options)
    return compiled, RobotLoop(compiled, WORLDS)


# The field ---------------------------------------------------------------------------------------


def test_heights_are_those_that_the_engine_collides_with(uneven):
    robot = uneven[0].robot
    field, data = robot.ground, mujoco().MjData(robot.model)
    data.qpos[:] = robot.home
    data.qpos[2] = 50.0  # out of the way
    mujoco().mj_kinematics(robot.model, data)
    random, geom = np.random.default_rng(0), np.zeros(1, np.int32)
    places = np.array(field.corner) + random.uniform(0.001, 0.999, (300, 2)) * field.size
    down, every = np.array([0.0, 0.0, -1.0]), np.ones(6, np.uint8)
    hit = [
        2.0 - mujoco().mj_ray(robot.model, data, np.array([*p, 2.0]), down, every, 1, -1, geom)
        for p in places
    ]
    for xp in (np, jnp):
        ours = field.at(xp, field.heights, places.astype(np.float32))
        np.testing.assert_allclose(ours, hit, atol=2e-5)
    assert np.ptp(hit) > 0.1


def test_lanes_grow_harder_with_their_level_and_begin_flat():
    field = make_ground("mixed", seed=3)
    x = field.corner[0] + field.cell[0] * np.arange(field.heights.shape[1])
    assert len(field.starts) == 1 + len(KINDS) * LEVELS
    for kind in range(len(KINDS)):
        reach = []
        for level in range(LEVELS + 1):
            y = field.starts[field.lane(np, np.int32(level), np.int32(kind)), 1]
            row = round((y - field.corner[1]) / field.cell[1])
            heights = field.heights[row]
            assert (heights[np.abs(x) < grounds.PAD] == 0.0).all(), "a flat place to begin on"
            # Gaps grow wider, all else grows higher.
            low, high = heights.min(), heights.max()
            reach.append((heights < 0.0).sum() if KINDS[kind] == "gaps" else high - low)
        assert reach[0] == 0.0
        assert (np.diff(reach) > 0.0).all(), KINDS[kind]


def test_the_same_seed_is_the_same_ground_and_a_larger_robot_has_a_larger_one():
    one, again, other = (make_ground("rough", seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.heights, again.heights)
    assert (one.heights != other.heights).any()
    twice = make_ground("rough", 1, scale=2.0)
    np.testing.assert_allclose(twice.heights, 2.0 * one.heights, rtol=1e-6)
    assert twice.size == pytest.approx(tuple(2.0 * x for x in one.size))


def test_robots_begin_with_their_soles_on_the_ground_of_their_lane(uneven):
    env, _ = uneven
    uniform = np.random.default_rng(0).random((64, env.num_draws[0]), np.float32)
    state, _ = jax.jit(env.begin)(uniform, env.params)
    place, lane = state.physics.reading.qpos[:, :2], state.episode.lane
    middle = env.robot.ground.starts[env.robot.ground.lane(np, lane.level, lane.kind)]
    assert np.abs(place - middle).max() <= max(grounds.STRAY) + 1e-5
    assert len(set(np.asarray(lane.level).tolist())) == LEVELS + 1
    facts = sensed(np, env.robot, jax.tree.map(np.asarray, state.physics.reading))
    assert np.abs(facts["foot_height"].min(-1)).max() < 0.02
    assert np.abs(facts["height"]).max() < 0.05


def test_heights_are_told_above_the_ground_and_critics_see_what_lies_ahead(uneven):
    robot = uneven[0].robot
    field = robot.ground
    lane = field.lane(np, np.int32(LEVELS), np.int32(KINDS.index("slopes")))
    x, y = 1.1, field.starts[lane, 1]  # half way up
    there = np.array([x, y], np.float32)
    high = float(field.at(np, field.heights, there))
    qpos = robot.home.astype(np.float32)
    qpos[:3] += [x, y, high]
    sensors = np.zeros(robot.model.nsensordata, np.float32)
    sensors[robot.orientation] = [1.0, 0.0, 0.0, 0.0]
    for place in robot.foot_position:
        sensors[place] = [x, y, high + robot.home_foot_height]
    facts = sensed(np, robot, Reading(qpos, np.zeros(robot.model.nv, np.float32), sensors))
    assert high > 0.1
    assert abs(facts["height"]) < 0.01
    assert np.abs(facts["foot_height"]).max() < 0.01
    seen = field.scan(np, there, np.float32(0.0)) / grounds.SCAN_SCALE
    slope = np.tan(grounds.TILT * LEVELS)
    ahead = grounds.SCAN[:, 0] <= 0.15  # the slope ends before the rest
    np.testing.assert_allclose(seen[ahead], slope * grounds.SCAN[ahead, 0], atol=0.01)


# Engines -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_libraries_and_engines_tell_the_same_story_on_uneven_ground(uneven):
    env, loop = uneven
    random, advance, begin = np.random.default_rng(0), jax.jit(env.advance), jax.jit(env.begin)

    def close(fast, slow):
        for one, other in zip(jax.tree.leaves(fast), jax.tree.leaves(slow), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)

    uniform = random.random((WORLDS, env.num_draws[0]), np.float32)
    state, first = begin(uniform, env.params)
    slow, looped = loop.world.begin(uniform, loop.params)
    close(first, looped)
    for _ in range(12):
        uniform = random.random((WORLDS, env.num_draws[1]), np.float32)
        action = random.uniform(-1.2, 1.2, (WORLDS, env.robot.num_joints)).astype(np.float32)
        state, fast = advance(state, action, uniform, env.params)
        slow, looped = loop.world.advance(slow, action, uniform, loop.params)
        np.testing.assert_allclose(
            env.engine.unpack(state.physics.full),
            loop.world.engine.unpack(slow.physics.full),
            rtol=1e-4,
            atol=1e-4,
        )
        slow = slow.replace(physics=slow.physics.replace(full=np.asarray(state.physics.full)))
        close(fast, looped)
    assert np.asarray(looped.truncated | looped.terminated).all()
    uniform = random.random((WORLDS, env.num_draws[0]), np.float32)
    (again, _), (slow, _) = (
        begin(uniform, env.params, state),
        loop.world.begin(uniform, loop.params, slow),
    )
    close(again.episode.lane, slow.episode.lane)


def settled(engine, starts, rows, steps=25):
    """States (B, ...) of robots that hold their home pose for half a second, and what they feel."""
    physics = jax.tree.map(lambda x: jnp.asarray(x)[rows], starts.physics)
    home = np.tile(engine.robot.home_joints.astype(np.float32), (len(rows), 1))
    push = np.zeros((len(rows), 2), np.float32)
    if isinstance(engine, LoopEngine):
        physics = jax.tree.map(np.asarray, physics)
        for _ in range(steps):
            physics = engine.step(physics, home, push, None)
    else:
        step = jax.jit(lambda _, physics: engine.step(physics, home, push, None))
        physics = jax.lax.fori_loop(0, steps, step, physics)
    return engine.unpack(physics.full), np.asarray(physics.reading.sensors)


def rows_off_the_pad(env):
    """One start on each lane of level 3, moved on to where it is no longer flat."""
    count = len(env.params.starts.phase) // len(env.robot.ground.starts)
    lanes = [env.robot.ground.lane(np, np.int32(3), np.int32(kind)) for kind in range(len(KINDS))]
    return count * np.array(lanes)


def test_c_in_jit_is_the_plain_loop_to_the_bit_on_uneven_ground(uneven):
    env, _ = uneven
    starts, rows = moved_on(env, env.engine), np.arange(len(KINDS))
    fast, felt = settled(env.engine, starts, rows)
    slow, sensors = settled(LoopEngine(env.robot), starts, rows)
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_array_equal(felt, sensors)
    flat = world(task="walk", physics="c", threads=1)
    level, _ = settled(flat.engine, moved_on(env, flat.engine), rows)
    assert (np.abs(fast - level).max(1) > 1e-3).all(), "every kind is felt"


def moved_on(env, engine, by=1.0):
    """The first start of each lane of level 3, `by` m ahead, and as high as the ground is there."""
    field, rows = env.robot.ground, rows_off_the_pad(env)
    nq = env.robot.model.nq
    whole = env.engine.unpack(env.params.starts.physics.full)[rows]
    whole[:, 0] += by
    places = whole[:, None, :2] + [[-0.05, 0.05], [-0.05, -0.05], [0.08, 0.05], [0.08, -0.05]]
    whole[:, 2] += field.at(np, field.heights, places.astype(np.float32)).max(1)
    full = engine.pack(*np.split(whole, [nq, nq + env.robot.model.nv], axis=1))
    starts = jax.tree.map(lambda x: np.asarray(x)[rows], env.params.starts)
    return starts.replace(physics=starts.physics.replace(full=full))


@pytest.mark.slow
def test_mjx_stands_on_uneven_ground_where_c_does(uneven):
    """For half a second: where a sole touches several triangles, MJX counts four at most."""
    env, _ = uneven
    mjx = world(task="walk", physics="mjx", ground="mixed")
    rows, nq = np.arange(len(KINDS)), env.robot.model.nq
    ours, _ = settled(mjx.engine, moved_on(env, mjx.engine), rows)
    theirs, _ = settled(env.engine, moved_on(env, env.engine), rows)
    gap = np.abs(ours[:, :nq] - theirs[:, :nq]).max(1)
    assert gap.max() < 0.02, gap


# The curriculum ----------------------------------------------------------------------------------


def lane_of(level, kind, asked, walked):
    return Lane(np.int32(level), np.int32(kind), np.float32(asked), np.float32(walked))


UNIT = st.integers(0, 999).map(lambda x: np.float32(x / 1000))


@settings(max_examples=300, deadline=None)
@given(
    level=st.integers(0, LEVELS),
    kind=st.integers(0, len(KINDS) - 1),
    asked=st.floats(0.0, 8.0, width=32),
    share=st.floats(-1.0, 2.0, width=32),
    left=st.floats(0.0, 8.0, width=32),
    u=UNIT,
    drawn=st.integers(0, LEVELS),
    climb=st.integers(0, 1),
)
def test_who_gets_far_climbs_and_who_does_not_comes_down(
    uneven, level, kind, asked, share, left, u, drawn, climb
):
    rules = uneven[1].params.rules.replace(climb=np.int32(climb))
    before = lane_of(level, kind, asked, share * asked)
    new = next_lane(np, rules, before, np.float32(left), lane_of(drawn, 0, 0, 0), u, 1.0)
    assert 0 <= new.level <= LEVELS
    assert new.kind == kind
    assert new.level.dtype == np.int32
    assert (new.asked, new.walked) == (0.0, 0.0)
    way = np.float32(asked) + np.float32(left)
    got = before.walked / max(way, 1e-6)
    if not climb:
        assert new.level == drawn
    elif way < grounds.LEAST_WAY or grounds.DOWN <= got < grounds.UP:
        assert new.level == level
    elif got < grounds.DOWN:
        assert new.level == max(level - 1, 0)
    elif level < LEVELS:
        assert new.level == level + 1
    else:
        assert new.level >= 1  # anywhere but on the flat


@pytest.mark.slow
def test_worlds_keep_their_own_levels_from_episode_to_episode(uneven):
    """Inside of jit, with a memory beside: one that falls at once comes down, others stay."""
    env, _ = uneven
    rules = env.params.rules.replace(levels=jnp.array([2, 2], jnp.int32), horizon=jnp.int32(50))
    params = env.params.replace(rules=rules)
    for made in (as_pure(env), remember(env, 2)):
        worlds = autoreset_batch(made, WORLDS)
        state, timestep = jax.jit(worlds.reset)(jax.random.key(0), params)
        lane = base(state).episode.lane
        assert (lane.level == 2).all()
        # Two of them have come all their way, two have not moved; all are at the end of it.
        walked = jnp.array([10.0, 10.0, 0.0, 0.0])
        done = lane.replace(asked=jnp.full(WORLDS, 10.0), walked=walked)
        state = with_episode(state, lane=done, step=jnp.full(WORLDS, 49, jnp.int32))
        action = jnp.zeros((WORLDS, env.robot.num_joints))
        if isinstance(timestep.obs, WithMemory):
            action = WithMemory(action, jnp.zeros((WORLDS, 2)))
        state, after = jax.jit(worlds.step)(jax.random.key(1), state, action, params)
        assert np.asarray(after.truncated).all()
        now = base(state).episode
        np.testing.assert_array_equal(now.lane.level, [3, 3, 1, 1])
        np.testing.assert_array_equal(now.lane.kind, lane.kind)
        assert (now.step == 0).all()


def base(state):
    return getattr(state, "inner", state)


def with_episode(state, **changes):
    if hasattr(state, "inner"):
        return state.replace(inner=with_episode(state.inner, **changes))
    return state.replace(episode=state.episode.replace(**changes))


def test_an_episode_is_cut_short_at_the_edge_and_that_is_no_fall(uneven):
    env, _ = uneven
    field = env.robot.ground
    low = np.array(field.corner, np.float32)
    inside = low + 0.5 * np.array(field.size, np.float32)
    assert not field.left(np, inside)
    for place in (low + 0.1, low + np.array(field.size, np.float32) - 0.1):
        assert field.left(np, place)


# What is seen ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_policy_sees_its_last_steps_and_at_first_the_first_of_them(uneven):
    env, _ = uneven
    n, size = env.robot.num_joints, 6 + 3 * env.robot.num_joints
    params, key = env.params, jax.random.key(0)
    state, first = jax.jit(env.reset)(key, params)
    layout = dict(env.task.layout(env.robot))
    assert layout["history"] == 3 * size
    past = np.asarray(first.obs.state[-3 * size :]).reshape(3, size)
    np.testing.assert_array_equal(past, past[:1].repeat(3, 0))
    np.testing.assert_array_equal(past[0], first.obs.state[:size])
    step, seen = jax.jit(env.step), [past[0]] * 3
    for t in range(4):
        seen = [np.asarray(first.obs.state[:size]), *seen][:3] if t else seen
        state, first = step(key, state, jnp.full(n, 0.1 * t), params)
        shown = np.asarray(first.obs.state[-3 * size :]).reshape(3, size)
        np.testing.assert_array_equal(shown, np.stack(seen))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "stand", "ground": "rough"}, "walk or joystick"),
        ({"ground": "ruogh"}, "rough"),
        ({"levels": (0, 1)}, "ground"),
        ({"ground": "rough", "levels": (0, 9)}, "levels"),
        ({"history": 99}, "history"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(options, named):
    with pytest.raises(ValueError, match=named) as caught:
        world(physics="c", **options)
    assert "\n" not in str(caught.value)


def test_a_robot_without_a_floor_is_told_so(tmp_path):
    text = (ASSETS / "biped.xml").read_text()
    tilted = text.replace('<geom name="floor" ', '<geom name="floor" pos="0 0 -0.1" ')
    assert tilted != text
    (tmp_path / "own.xml").write_text(tilted)
    (tmp_path / "own.yaml").write_text((ASSETS / "biped.yaml").read_text())
    with pytest.raises(ValueError, match="0 level planes"):
        load(tmp_path / "own.xml").on_ground("rough")
    assert biped().ground is None


# Pictures ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recording(uneven):
    """A robot that is carried along a lane of level 5, without forces."""
    env, steps = uneven[0], 12
    field, joints = env.robot.ground, env.robot.num_joints
    lane = field.lane(np, np.int32(LEVELS), np.int32(KINDS.index("steps")))
    qpos = np.tile(env.robot.home, (steps, 1))
    qpos[:, :2] = field.starts[lane]
    qpos[:, 0] += np.linspace(0.0, 2.0, steps)
    qpos[:, 2] += field.at(np, field.mean, qpos[:, :2].astype(np.float32))
    zero = np.zeros(steps)
    return Recording(
        qpos=qpos,
        target=np.zeros((steps, joints)),
        terms=np.zeros((steps, 1)),
        velocity=zero,
        command=zero,
        contact=np.ones((steps, 2), bool),
        names=("alive",),
    )


def test_films_and_replays_show_the_ground_under_the_robot(uneven, recording):
    robot = uneven[0].robot
    moving = moving_shapes(robot, recording.qpos)
    level = moving_shapes(robot.flat, recording.qpos)
    assert len(moving.shapes) == len(level.shapes), "the ground is no part of the robot"
    uphill, plane = (
        np.asarray(next(drawings(some, (200, 150), [8]))).astype(int) for some in (moving, level)
    )
    assert (np.abs(uphill - plane).max(-1) > 20).mean() > 0.02
    shown = ground_shape(robot.ground, recording.qpos[:, :2], EARTH)
    assert shown.mesh is not None
    low, high = shown.mesh.vertices.min(0), shown.mesh.vertices.max(0)
    assert (low[:2] < recording.qpos[:, :2].min(0)).all()
    assert (high[:2] > recording.qpos[:, :2].max(0)).all()
    page = replay(robot, recording)
    assert '"uneven":true' in page
    assert '"uneven":false' in replay(robot.flat, recording)
    assert len(page) < 1_000_000


def test_reports_say_who_gets_over_which_level(tmp_path):
    rows = [
        {"level": 1, "kind": kind, "episodes": 4, "traversed": 3, "fell": 1, "way": 4.5}
        for kind in ("all", "rough")
    ]
    (tmp_path / "ground.json").write_text(json.dumps(rows))
    assert read_ground(tmp_path) == (rows, [])
    (tmp_path / "ground.json").write_text('[{"level": 1}]')
    found, wrong = read_ground(tmp_path)
    assert (found, len(wrong)) == ([], 1)
    assert "ground.json cannot be read" in wrong[0]


def test_traversals_are_counted_by_level_and_kind(uneven):
    env, _ = uneven

    def act(agents, obs, key, *, explore):
        return jnp.zeros((obs.state.shape[0], env.robot.num_joints))

    rows = RobotEvaluator(env, act, 8).traversals((), jax.random.key(0), levels=[2])
    whole, *parts = rows
    assert (whole.level, whole.kind, whole.episodes, whole.traversed) == (2, "all", 8, 0)
    assert sum(row.episodes for row in parts) == 8
    assert 0.0 <= whole.way < 0.5  # in a quarter of a second
