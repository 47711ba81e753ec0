"""The tasks: the same numbers from numpy and from compiled JAX, and rules that hold."""

from types import SimpleNamespace
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core import draws
from worldloom.core.transforms import autoreset_batch
from worldloom.suites.robot import features, gait, rewards
from worldloom.suites.robot.loop import RobotLoop
from worldloom.suites.robot.task import TASKS, task_named
from worldloom.suites.robot.types import Physics
from worldloom.suites.robot.world import world

WORLDS = 4


@pytest.fixture(scope="module", params=list(TASKS))
def both(request):
    """A compiled world, and the same in a loop in numpy."""
    options = {"task": request.param, "randomise": 1.0, "noise": 1.0, "horizon": 30}
    if request.param == "joystick":
        options |= {"resample": 8}
    elif request.param != "walk":
        options |= {"push_pause": (2, 6)}
    compiled = world(physics="c", **options)
    return compiled, RobotLoop(compiled, WORLDS)


def test_both_libraries_and_engines_tell_the_same_story(both):
    env, loop = both
    random = np.random.default_rng(0)
    params = env.default_params()
    advance = jax.jit(env.advance)
    reset = random.random((WORLDS, env.num_draws[0]), np.float32)
    state, first = jax.jit(env.begin)(reset, params)
    slow, looped = loop.world.begin(reset, loop.params)
    np.testing.assert_allclose(first.obs.state, looped.obs.state, atol=1e-6)
    for _ in range(35):
        uniform = random.random((WORLDS, env.num_draws[1]), np.float32)
        action = random.uniform(-1.2, 1.2, (WORLDS, env.robot.num_joints)).astype(np.float32)
        state, fast = advance(state, action, uniform, params)
        slow, looped = loop.world.advance(slow, action, uniform, loop.params)
        full = env.engine.unpack(state.physics.full)
        np.testing.assert_allclose(
            full, loop.world.engine.unpack(slow.physics.full), rtol=1e-4, atol=1e-4
        )
        # Targets may differ in their last bit, and flailing robots make much of that.
        slow = slow.replace(physics=slow.physics.replace(full=np.asarray(state.physics.full)))
        for one, other in zip(jax.tree.leaves(fast), jax.tree.leaves(looped), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    assert np.asarray(looped.truncated | looped.terminated).all()


def test_keys_of_both_kinds_begin_the_same_episode(both):
    env, _ = both
    begun = [env.reset(make(4), env.params) for make in (jax.random.key, jax.random.PRNGKey)]
    jax.tree.map(np.testing.assert_array_equal, *begun)


def test_observations_are_laid_out_as_told(both):
    env, _ = both
    sizes = env.task.observation_size(env.robot)
    _, first = env.reset(jax.random.key(0), env.default_params())
    assert (first.obs.state.shape[0], first.obs.privileged_state.shape[0]) == sizes
    assert sum(n for _, n in env.task.layout(env.robot)) == sizes[0]


@pytest.fixture(scope="module")
def walk():
    return world(task="walk", physics="c", threads=1)


@pytest.fixture(scope="module")
def walking(walk):
    """Compiled reset and step of a few worlds that start anew by themselves."""
    worlds = autoreset_batch(walk, 3)
    return jax.jit(worlds.reset), jax.jit(worlds.step)


@pytest.mark.parametrize("value", [np.nan, 1e20])
def test_a_simulation_that_diverges_ends_its_episode_and_the_others_go_on(walk, walking, value):
    reset, step = walking
    params = walk.default_params()
    state, _ = reset(jax.random.key(0), params)
    full = np.asarray(state.physics.full).copy()
    full[1, 22] = np.array([value]).view(np.uint32)  # straight up, one world: 1e20 stays finite
    state = state.replace(physics=Physics(jnp.asarray(full), state.physics.reading))
    state, timestep = step(jax.random.key(1), state, jnp.zeros((3, 13)), params)
    np.testing.assert_array_equal(timestep.info.diverged, [False, True, False])
    np.testing.assert_array_equal(timestep.terminated, [False, True, False])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((timestep.obs, timestep.reward)))
    assert float(timestep.reward[1]) == 0.0
    np.testing.assert_array_equal(state.episode.step, [1, 0, 1])
    for _ in range(3):
        state, timestep = step(jax.random.key(2), state, jnp.zeros((3, 13)), params)
        assert not timestep.info.diverged.any()


@pytest.mark.parametrize("value", [np.nan, 1e20])
def test_the_loop_ends_what_diverges_too(value):
    loop = RobotLoop(world(task="stand", physics="c"), 2)
    state, _ = loop.reset()
    full = state.physics.full.copy()
    full[1, 22] = np.array([value]).view(np.uint32)
    state = state.replace(physics=state.physics.replace(full=full))
    noise = loop.uniform(1, loop.world.num_draws[1])
    _, looped = loop.world.advance(state, np.zeros((2, 13), np.float32), noise, loop.params)
    np.testing.assert_array_equal(looped.info.diverged, [False, True])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((looped.obs, looped.reward)))


def test_actions_beyond_the_limits_and_nan_are_clipped(walk):
    rules, robot = walk.params.rules, walk.robot
    state, _ = walk.reset(jax.random.key(0), walk.params)
    wild = np.full(robot.num_joints, 7.0, np.float32)
    wild[0] = np.nan
    action, target, _ = walk.drive(rules, state, wild)
    assert action[0] == 0.0
    assert (action[1:] == 1.0).all()
    assert (target <= robot.upper.astype(np.float32)).all()


@pytest.fixture(scope="module")
def varied():
    """Worlds that differ, in numpy."""
    return RobotLoop(world(task="walk", physics="c", randomise=1.0), WORLDS).world


def delayed(world, actions, sensors):
    """The first state and the sensors' readings of a world with so many steps of latency."""
    uniform = np.full((WORLDS, world.num_draws[0]), 0.5, np.float32)
    state, _ = world.begin(uniform, world.params)
    delays = {"action_delay": actions, "sensor_delay": sensors}
    delays = {name: np.full(WORLDS, x, np.int32) for name, x in delays.items()}
    return state.replace(domain=state.domain.replace(**delays))


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_targets_arrive_as_many_steps_late_as_the_world_has_it(varied, delay):
    state = delayed(varied, delay, 0)
    robot, sizes = varied.robot, (0.1, 0.2, 0.3, 0.4)
    middle = np.full((WORLDS, varied.num_draws[1]), 0.5, np.float32)
    targets = []
    for size in sizes:
        action = np.full((WORLDS, robot.num_joints), size, np.float32)
        targets.append(varied.drive(varied.params.rules, state, action)[1][0])
        state, _ = varied.advance(state, action, middle, varied.params)
    late = [0.0] * delay + list(sizes)
    for target, size in zip(targets, late, strict=False):
        expected = np.clip(robot.home_joints + robot.action_scale * size, robot.lower, robot.upper)
        np.testing.assert_allclose(target, expected, atol=1e-6)


@pytest.mark.parametrize("delay", [1, 2])
def test_readings_are_seen_as_many_steps_late_as_the_world_has_it(varied, delay):
    middle = np.full((WORLDS, varied.num_draws[1]), 0.5, np.float32)
    still = np.zeros((WORLDS, varied.robot.num_joints), np.float32)
    size = 6 + 2 * varied.robot.num_joints
    seen = {}
    for late in (0, delay):
        state, seen[late] = delayed(varied, 0, late), []
        first = varied.look(state).state[:, :size]
        for _ in range(4):
            state, timestep = varied.advance(state, still, middle, varied.params)
            seen[late].append(timestep.obs.state[:, :size])
    np.testing.assert_array_equal(seen[delay], [*[first] * delay, *seen[0]][:4])


def test_all_that_is_randomised_reaches_the_physics_or_nothing_does(walk, varied):
    """Params that ask for it are without effect in a world that was made without, in all parts."""
    rules = jax.tree.map(np.asarray, walk.params.rules).replace(randomise=np.float32(1.0))
    loop = RobotLoop(walk, WORLDS)
    uniform = np.random.default_rng(0).random((WORLDS, walk.num_draws[0]), np.float32)
    asked = loop.world.begin(uniform, loop.params.replace(rules=rules))
    usual = loop.world.begin(uniform, loop.params)
    jax.tree.map(np.testing.assert_array_equal, asked, usual)
    domain = varied.begin(uniform, varied.params)[0].domain
    nominal = usual[0].domain
    for one, other in zip(jax.tree.leaves(domain), jax.tree.leaves(nominal), strict=True):
        assert one.shape == other.shape
    dynamics = zip(jax.tree.leaves(domain.dynamics), jax.tree.leaves(nominal.dynamics), strict=True)
    assert all((one != other).all() for one, other in dynamics)


@pytest.mark.parametrize("name", ["friction", "mass", "strength", "damping", "com", "offset"])
def test_each_difference_between_worlds_can_be_switched_off(varied, name):
    rules = varied.params.rules.replace(**{name: np.float32(0.0)})
    uniform = np.random.default_rng(0).random((WORLDS, varied.num_draws[0]), np.float32)
    domain = varied.begin(uniform, varied.params.replace(rules=rules))[0].domain
    values = vars(domain.dynamics) | {"offset": domain.offset}
    usual = 0.0 if name in ("com", "offset") else 1.0
    assert (values.pop(name) == usual).all()
    assert all((value != 1.0).all() for value in values.values())


def test_latency_is_shared_between_actions_and_readings_within_its_range(varied):
    random = np.random.default_rng(0)
    uniform = random.random((400, varied.num_draws[0]), np.float32)
    for low, high in ((0, 2), (1, 1), (0, 0)):
        rules = varied.params.rules.replace(latency=np.array([low, high], np.int32))
        domain = varied.begin(uniform, varied.params.replace(rules=rules))[0].domain
        total = domain.action_delay + domain.sensor_delay
        assert set(total) == set(range(low, high + 1))
        assert domain.action_delay.min() >= 0
        assert domain.sensor_delay.min() >= 0
        if high:
            assert domain.action_delay.max() > 0
            assert domain.sensor_delay.max() > 0


def test_time_running_out_is_no_fall(walking, walk):
    env = world(task="stand", physics="c", horizon=3, push_force=(0.0, 0.0), threads=1)
    step = jax.jit(env.step)
    state, _ = env.reset(jax.random.key(0), env.params)
    for expected in (False, False, True):
        state, timestep = step(jax.random.key(1), state, jnp.zeros(13), env.params)
        assert bool(timestep.truncated) is expected
        assert not timestep.terminated


def test_terms_that_punish_are_never_positive_and_those_that_reward_within_one(walking, walk):
    reset, step = walking
    state, _ = reset(jax.random.key(0), walk.params)
    rows = []
    for i in range(40):
        action = draws.uniform(jax.random.key(i), (3, 13)) * 2 - 1
        state, timestep = step(jax.random.key(i), state, action, walk.params)
        rows.append(np.asarray(timestep.info.terms))
    terms = dict(zip(walk.task.terms, np.concatenate(rows).T, strict=True))
    for name in ("alive", "track", "approach", "straight", "upright", "height", "swing", "footing"):
        assert terms[name].min() >= 0.0, name
        assert terms[name].max() <= 1.0, name
    for name in ("steady", "slip", "smooth", "effort", "pose"):
        assert terms[name].max() <= 0.0, name


# Steering ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steered():
    """Worlds of the joystick, in numpy."""
    return RobotLoop(world(task="joystick", physics="c"), 600).world


def test_commands_of_a_joystick_fill_their_ranges_and_some_are_to_stand(steered):
    random, rules = np.random.default_rng(0), steered.params.rules
    uniform = random.random((600, steered.num_draws[0]), np.float32)
    state, first = steered.begin(uniform, steered.params)
    command = state.episode.command
    still = ~command.any(-1)
    assert 0.05 < still.mean() < 0.15
    for i, name in enumerate(("command", "sideways", "turn")):
        low, high = getattr(rules, name)
        moving = command[~still, i]
        assert low <= moving.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < moving.max() <= high
    at = dict(zip(*zip(*steered.task.layout(steered.robot), strict=True), strict=True))
    assert at["command"] == 3
    np.testing.assert_array_equal(first.obs.state[:, -5:-2], command)
    np.testing.assert_array_equal(first.obs.state[still, -2:], 0.0)  # no clock
    assert (np.abs(first.obs.state[~still, -2:]).max(-1) > 0.5).all()


def test_commands_change_within_an_episode_as_often_as_the_rules_say(steered):
    random = np.random.default_rng(0)
    rules = steered.params.rules
    still = np.zeros((600, 13), np.float32)
    for mean, share in ((10, 0.1), (0, 0.0)):
        params = steered.params.replace(rules=rules.replace(resample=np.int32(mean)))
        state, _ = steered.begin(random.random((600, steered.num_draws[0]), np.float32), params)
        driven = steered.drive(params.rules, state, still)
        uniform = random.random((600, steered.num_draws[1]), np.float32)
        after, step = steered.finish(params.rules, state, driven, np.zeros(600, bool), uniform)
        changed = (after.episode.command != state.episode.command).any(-1)
        assert abs(changed.mean() - share) <= 0.4 * share
        # Rewards are for what was asked for in that step; what is seen is asked for next.
        np.testing.assert_array_equal(step.info.command, state.episode.command[:, 0])
        np.testing.assert_array_equal(step.obs.state[:, -5:-2], after.episode.command)


def test_the_clock_of_a_gait_is_controlled_by_the_command():
    commands = np.array([[0, 0, 0], [0, 0, 0.3], [0.2, 0, 0], [0, -0.2, 0], [0.4, 0, 0], [9, 0, 0]])
    phase = np.full(len(commands), 0.95)
    later = gait.advance(np, phase, 0.1 * gait.PERIOD, commands, 0.2)
    np.testing.assert_allclose(later, [0.95, 0.05, 0.06, 0.06, 0.07, 0.07], atol=1e-6)
    np.testing.assert_allclose(gait.advance(np, phase, 0.072, commands, 0.0)[1:], 0.05, atol=1e-6)


def test_going_straight_is_neither_sideways_nor_turning_now_or_on_average():
    facts = SimpleNamespace(
        velocity=np.array([[0.3, 0.0], [0.3, 0.2], [0.3, 0.0], [0.3, 0.0]]),
        turning=np.array([[9.0, 9.0, 0.0], [0, 0, 0], [0, 0, 1.0], [0, 0, 0.0]]),
        speed=np.array([[0.3, 0.0, 0.0], [0, 0, 0], [0, 0, 0], [0, 0, -0.2]]),
    )
    expected = [1.0, *[np.exp(-1.0)] * 3]
    np.testing.assert_allclose(rewards.straight(np, facts), expected, rtol=1e-6)


def test_feet_that_come_near_each_other_are_punished(walk):
    apart = rewards.apart(np, SimpleNamespace(feet_apart=np.array([1.2, 0.9, 0.75, 0.6, 0.1])))
    np.testing.assert_allclose(apart, [0.0, 0.0, -0.5, -1.0, -1.0], atol=1e-6)
    state, _ = walk.reset(jax.random.key(0), walk.params)
    parts = features.sensed(np, walk.robot, jax.tree.map(np.asarray, state.physics.reading))
    assert parts["feet_apart"] == pytest.approx(walk.robot.home_foot_distance, rel=0.15)
    assert walk.robot.home_foot_distance == pytest.approx(0.11, abs=1e-3)


def test_a_larger_robot_is_paid_as_the_biped_is(walk):
    """Of the same shape, four times as high and half as fast in its joints."""
    state, _ = walk.reset(jax.random.key(3), walk.params)
    facts = walk._facts(state.episode, state.physics.reading, state.episode.action, None)
    with patch.dict(walk.robot.__dict__, length_scale=4.0, time_scale=2.0):
        large = facts._replace(
            command=facts.command * np.array([2.0, 2.0, 0.5]),
            speed=facts.speed * np.array([2.0, 2.0, 0.5]),
            velocity=2.0 * facts.velocity,
            height=4.0 * facts.height,
            turning=0.5 * facts.turning,
            joint_speeds=0.5 * facts.joint_speeds,
            foot_height=4.0 * facts.foot_height,
            foot_velocity=2.0 * facts.foot_velocity,
        )
        scaled = walk._scaled(large)
    for one, other in zip(scaled, facts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_an_unknown_task_option_or_engine_is_named():
    with pytest.raises(ValueError, match="no task 'wlak'; did you mean 'walk'"):
        task_named("wlak")
    with pytest.raises(ValueError, match="walk has no option 'horizn'; did you mean 'horizon'"):
        world(task="walk", horizn=3)
    with pytest.raises(ValueError, match="no physics='mjc'"):
        world(physics="mjc")
    with pytest.raises(ValueError, match="threads=0"):
        world(physics="c", threads=0)


# The pieces ------------------------------------------------------------------------------------


def test_feet_take_turns_and_share_the_ground():
    phase = np.linspace(0, 1, 200, endpoint=False)
    progress = gait.swing_progress(np, phase)
    swings = progress > 0
    assert not (swings[:, 0] & swings[:, 1]).any()
    assert swings.mean() == pytest.approx(1 - gait.STANCE, abs=0.01)
    assert gait.swing_height(np, progress).max() == pytest.approx(gait.SWING_HEIGHT, rel=0.01)


def test_vectors_turn_as_mujoco_turns_them():
    import mujoco

    random = np.random.default_rng(0)
    for _ in range(20):
        quaternion = random.normal(size=4)
        quaternion /= np.linalg.norm(quaternion)
        vector, back = random.normal(size=3), np.zeros(4)
        mujoco.mju_negQuat(back, quaternion)
        expected = np.zeros(3)
        mujoco.mju_rotVecQuat(expected, vector, back)
        np.testing.assert_allclose(features.into_frame(np, quaternion, vector), expected)


def test_yaw_is_the_angle_about_the_vertical():
    for angle in (-3.0, -0.5, 0.0, 1.2, 3.1):
        quaternion = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
        assert features.yaw(np, quaternion) == pytest.approx(angle)
