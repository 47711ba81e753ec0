"""One robot, three engines: the same to the bit, or to what floating point allows."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.suites.robot.engines import CEngine, LoopEngine, MjxEngine
from worldloom.suites.robot.features import feet
from worldloom.suites.robot.loop import RobotLoop
from worldloom.suites.robot.model import biped
from worldloom.suites.robot.starts import around_home
from worldloom.suites.robot.types import Dynamics, Physics, Reading
from worldloom.suites.robot.world import is_valid, world

WORLDS, STEPS = 5, 50


@pytest.fixture(scope="module")
def robot():
    return biped()


def plan(robot, steps=STEPS, worlds=WORLDS, size=0.15):
    """Targets that sway about home, and a push in the middle, float32."""
    random = np.random.default_rng(3)
    rate = random.uniform(2.0, 8.0, (worlds, robot.num_joints))
    times = np.arange(steps)[:, None, None] * 0.02
    sway = size * np.sin(rate * times + random.uniform(0, 6, rate.shape))
    target = (robot.home_joints + sway).astype(np.float32)
    force = np.zeros((steps, worlds, 2), np.float32)
    force[10:15] = random.uniform(-3, 3, (worlds, 2))
    return target, force


def domains(robot, worlds=WORLDS):
    random = np.random.default_rng(5)

    def draw(width, *shape):
        return random.uniform(1 - width, 1 + width, (worlds, *shape)).astype(np.float32)

    return Dynamics(draw(0.4), draw(0.1), draw(0.1), draw(0.3), 0.1 * (draw(0.1, 3) - 1.0))


def play(engine, target, force, domain=None):
    """States float64 (T, B, nq + 2 nv) and sensors (T, B, ns) along the plan."""
    physics = jax.tree.map(lambda x: x[: target.shape[1]], around_home(engine, 8, 0).physics)
    if isinstance(engine, LoopEngine):
        states = []
        for t in range(len(target)):
            physics = engine.step(physics, target[t], force[t], domain)
            states.append((engine.unpack(physics.full), physics.reading.sensors))
        full, sensors = (np.stack(x) for x in zip(*states, strict=True))
        return full, sensors

    def one(physics, x):
        physics = engine.step(physics, *x, domain)
        return physics, (physics.full, physics.reading.sensors)

    run = jax.jit(lambda physics, x: jax.lax.scan(one, physics, x)[1])
    full, sensors = run(jax.tree.map(jnp.asarray, physics), (target, force))
    return engine.unpack(full), np.asarray(sensors)


@pytest.fixture(scope="module")
def truth(robot):
    return play(LoopEngine(robot), *plan(robot))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_c_in_jit_is_the_plain_loop_to_the_bit_at_any_thread_count(robot, truth, threads):
    full, sensors = play(CEngine(robot, threads), *plan(robot))
    np.testing.assert_array_equal(full, truth[0])
    np.testing.assert_array_equal(sensors, truth[1])


def test_worlds_that_differ_are_the_same_in_both_too(robot):
    target, force = plan(robot, steps=20)
    domain = domains(robot)
    slow, _ = play(LoopEngine(robot), target, force, domain)
    fast, _ = play(CEngine(robot, 2), target, force, domain)
    np.testing.assert_array_equal(fast, slow)
    nominal, _ = play(CEngine(robot, 2), target, force)
    assert np.abs(fast - nominal).max() > 1e-4  # the differences reached the engine


def test_friction_alone_changes_how_a_pushed_robot_moves(robot):
    """Of soles and floor: where two geoms touch, the engines take the larger friction."""
    target, force = plan(robot, steps=20)
    force[:] = [0.0, 6.0]
    ones = np.ones(WORLDS, np.float32)
    usual = Dynamics(ones, ones, ones, ones, np.zeros((WORLDS, 3), np.float32))
    nominal, _ = play(LoopEngine(robot), target, force)
    np.testing.assert_array_equal(play(LoopEngine(robot), target, force, usual)[0], nominal)
    slippery = usual.replace(friction=0.6 * ones)
    slow, _ = play(LoopEngine(robot), target, force, slippery)
    fast, _ = play(CEngine(robot, 2), target, force, slippery)
    np.testing.assert_array_equal(fast, slow)
    assert np.abs(fast - nominal).max() > 1e-3


def test_a_mapped_step_is_the_batched_one(robot, truth):
    engine = CEngine(robot, 2)
    target, force = plan(robot)
    physics = jax.tree.map(lambda x: x[:WORLDS], around_home(engine, 8, 0).physics)

    def one(physics, target, force):
        alone = jax.tree.map(lambda x: x[None], (physics, target, force))
        return jax.tree.map(lambda x: x[0], engine.step(*alone, None))

    moved = jax.jit(jax.vmap(one))(physics, target[0], force[0])
    np.testing.assert_array_equal(engine.unpack(moved.full), truth[0][0])


DEVICES = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import PartitionSpec as P
    from worldloom.core.mesh import BATCH_AXIS, device_mesh
    from worldloom.suites.robot.engines import CEngine
    from worldloom.suites.robot.model import biped
    from worldloom.suites.robot.starts import around_home
    robot = biped()
    engine = CEngine(robot)
    physics = jax.tree.map(jnp.asarray, around_home(engine, 600, 0).physics)
    target = jnp.tile(robot.home_joints.astype(np.float32), (600, 1))
    def step(physics, target):
        return engine.step(physics, target, target[:, :2] * 0, None)
    spread = jax.shard_map(
        step, mesh=device_mesh(2), in_specs=P(BATCH_AXIS), out_specs=P(BATCH_AXIS), check_vma=False
    )
    one, two = jax.jit(step)(physics, target), jax.jit(spread)(physics, target)
    np.testing.assert_array_equal(engine.unpack(one.full), engine.unpack(two.full))
"""


def test_hundreds_of_robots_on_two_devices_move_as_on_one():
    """With more than 100 KiB for each callback, which once had them wait for each other."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEVICES)],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_six_solver_iterations_are_as_good_as_a_hundred(robot):
    """What biped.xml asks of the solver, against MuJoCo's default, on a swaying stance."""
    strict = LoopEngine(robot)
    strict.model.opt.iterations, strict.model.opt.ls_iterations = 100, 50
    strict.model.opt.tolerance = 1e-10
    target, force = plan(robot)
    quick, _ = play(LoopEngine(robot), target, force)
    exact, _ = play(strict, target, force)
    nq = robot.model.nq
    assert robot.model.opt.iterations == 6
    assert np.abs(quick[..., :nq] - exact[..., :nq]).max() < 1e-6


def test_a_traced_step_is_not_read_back_for_another_base(robot):
    other = replace(robot, base_body=robot.foot_bodies[0])
    identity = MjxEngine(robot)._identity
    assert MjxEngine(replace(robot))._identity == identity
    assert MjxEngine(other)._identity != identity


@pytest.fixture(scope="module")
def mjx(robot):
    """As `truth`, from MJX in float32."""
    return play(MjxEngine(robot), *plan(robot))


@pytest.mark.slow
def test_mjx_stays_with_c_for_a_second_of_stance_in_float32(robot, truth, mjx):
    nq, touch = robot.model.nq, [foot[0].place.start for foot in robot.contacts]
    assert np.abs(mjx[0][..., :nq] - truth[0][..., :nq]).max() < 1e-5
    gap = np.abs(mjx[1] - truth[1])
    assert np.delete(gap, touch, axis=-1).max() < 1e-3  # rad/s, of a quaternion, m
    assert gap[..., touch].max() < 0.02  # N, of up to 190: contacts are stiff


@pytest.mark.slow
def test_mjx_and_c_lead_to_the_same_observations_rewards_and_ends(robot, truth, mjx):
    """What the task makes of each engine's readings, at the same moments of the same worlds."""
    env = RobotLoop(world(task="walk", physics="c", randomise=1.0, noise=1.0), WORLDS).world
    random, rules = np.random.default_rng(0), env.params.rules
    lead, (nq, nv) = (STEPS - 1, WORLDS), (robot.model.nq, robot.model.nv)
    phase, *noise = (
        random.random((*lead, *size), np.float32)
        for size in ((), *((count,) for count in env.num_draws))
    )
    action = random.uniform(-1.0, 1.0, (*lead, robot.num_joints)).astype(np.float32)
    start, _ = env.begin(noise[0], env.params)

    def judged(full, sensors):
        qpos, qvel, _ = np.split(full.astype(np.float32), [nq, nq + nv], axis=-1)
        reading = Reading(qpos, qvel, sensors)
        before, after = (
            jax.tree.map(lambda x, i=i: x[i], reading) for i in (slice(0, -1), slice(1, None))
        )
        episode = start.episode.replace(phase=phase, feet=feet(np, robot, before))
        state = start.replace(episode=episode, physics=Physics(None, after))
        driven = env.drive(rules, state, action)
        return env.finish(rules, state, driven, ~is_valid(np, after), noise[1])[1]

    ours, theirs = judged(*truth), judged(*mjx)
    np.testing.assert_allclose(theirs.obs.state, ours.obs.state, atol=2e-4)
    np.testing.assert_allclose(theirs.obs.privileged_state, ours.obs.privileged_state, atol=2e-4)
    np.testing.assert_allclose(theirs.reward, ours.reward, atol=2e-5)
    np.testing.assert_array_equal(theirs.terminated, ours.terminated)
    np.testing.assert_array_equal(theirs.truncated, ours.truncated)
    assert 0.0 < ours.terminated.mean() < 1.0  # some fall, some stand


X64 = """
    import sys
    import jax
    jax.config.update("jax_enable_x64", True)
    import numpy as np
    from worldloom.suites.robot.engines import LoopEngine, MjxEngine
    from worldloom.suites.robot.model import biped
    sys.path.insert(0, "tests/suites/robot")
    from test_engines import domains, plan, play
    robot = biped()
    target, force = plan(robot)
    domain = domains(robot)
    mjx, felt = play(MjxEngine(robot), target, force, domain)
    loop, sensors = play(LoopEngine(robot), target, force, domain)
    nq = robot.model.nq
    print(np.abs(mjx[..., :nq] - loop[..., :nq]).max(), np.abs(felt - sensors).max())
"""


@pytest.mark.slow
def test_mjx_in_float64_is_c_to_nine_places(tmp_path):
    """In a process of its own: x64 is a switch for the whole of one."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(X64)],
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()  # what MJX prints when it is imported is elsewhere
    states, sensors = map(float, line.split())
    assert states < 1e-9
    assert sensors < 5e-5  # which are told in float32: 200 N on a foot to 8e-6
