"""Getting up: robots that begin on the ground, all of which they can feel, and what it pays."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("mujoco")

import worldloom
from worldloom.core.transforms import batch
from worldloom.serving import control_loop
from worldloom.suites.robot import rewards
from worldloom.suites.robot.evaluate import RobotEvaluator, push_ladder
from worldloom.suites.robot.export import export_policy
from worldloom.suites.robot.features import sensed
from worldloom.suites.robot.model import biped, mujoco
from worldloom.suites.robot.starts import around_home
from worldloom.suites.robot.task import TASKS
from worldloom.suites.robot.world import world


@pytest.fixture(scope="module")
def recover():
    return world(task="recover", physics="c", threads=1, horizon=100)


def facts_of(env, physics):
    return sensed(np, env.robot, jax.tree.map(np.asarray, physics.reading))


def test_robots_begin_at_rest_on_their_front_and_on_their_back(recover):
    starts = recover.params.starts
    reading = jax.tree.map(np.asarray, starts.physics.reading)
    assert np.abs(reading.qvel).max() < 0.5
    assert (reading.qpos[:, 2] < 0.5 * recover.robot.home_height).all()
    facts = facts_of(recover, starts.physics)
    assert (facts["gravity"][:, 2] > -0.7).all(), "none of them is upright"
    ahead = facts["gravity"][:, 0]  # down, where a robot on its front looks
    assert (ahead[0::2] > 0.5).mean() > 0.9
    assert (ahead[1::2] < -0.5).mean() > 0.9
    spread = reading.qpos[:, recover.robot.joint_qpos].std(0)
    assert (spread > 0.05).all(), "each in a pose of its own"
    again = world(task="recover", physics="c").params.starts
    jax.tree.map(np.testing.assert_array_equal, starts, again)


@pytest.mark.slow
def test_all_of_the_robot_touches_the_ground_and_none_of_it_sinks(recover):
    assert TASKS["recover"].lies
    worlds, params = batch(recover, 16), recover.params
    state, _ = worlds.reset(jax.random.key(0), params)
    step, random = jax.jit(worlds.step), np.random.default_rng(0)
    model, data = recover.robot.model, mujoco().MjData(recover.robot.model)
    sunk, touched = 0.0, set()
    for t in range(60):
        action = random.uniform(-1.0, 1.0, (16, 13)).astype(np.float32)
        state, after = step(jax.random.key(t), state, action, params)
        assert not after.terminated.any(), "no fall ends it"
        for qpos in np.asarray(state.physics.reading.qpos)[:: 1 if t % 20 == 0 else 16]:
            data.qpos[:] = qpos
            mujoco().mj_forward(model, data)
            sunk = min(sunk, data.contact.dist.min(initial=0.0))
            touched |= {model.geom(g).name for g in data.contact.geom.ravel()}
    assert sunk > -0.03
    assert {"floor", "pelvis", "left_forearm", "right_shank"} <= touched
    assert "left_foot" not in touched, "its soles do"


def test_the_biped_of_other_tasks_is_left_as_it_is():
    robot = biped()
    lying = robot.lying
    assert robot.lying is lying
    assert (robot.model.geom_conaffinity != 0).sum() == 8  # the corners of its soles
    assert (lying.model.geom_conaffinity != 0).sum() > 20
    np.testing.assert_array_equal(lying.foot_geoms, robot.foot_geoms)
    assert lying.lying.model.ngeom == robot.model.ngeom
    low, high = robot.home_joints - lying.action_scale, robot.home_joints + lying.action_scale
    assert (low <= robot.lower + 1e-9).all()
    assert (high >= robot.upper - 1e-9).all()


def test_getting_up_pays_from_the_ground_to_standing():
    down = np.array([0.0, 0.5, 0.9, 1.0, 1.0])  # 1: the head is up
    facts = SimpleNamespace(
        height=0.4626 * np.array([-0.9, -0.5, -0.1, 0.0, 0.0]),
        gravity=np.stack([np.sqrt(1 - down**2), 0 * down, -down], axis=-1),
        joints=np.array([[0.0], [0.0], [0.0], [1.0], [0.0]]),
    )
    rise, level, erect, rest = (
        getattr(rewards, name)(np, facts) for name in ("rise", "level", "erect", "rest")
    )
    np.testing.assert_allclose(rise, [0.1, 0.5, 0.9, 1.0, 1.0], atol=1e-6)
    np.testing.assert_allclose(level, [0.5, 0.75, 0.95, 1.0, 1.0], atol=1e-6)
    assert (np.diff(erect[:4]) > 0.0).all()
    assert erect[0] < 1e-3
    np.testing.assert_allclose(erect[3:], 1.0, atol=1e-6)
    np.testing.assert_allclose(rest[3:], [np.exp(-1.0), 1.0], atol=1e-6)
    assert rewards.level(np, SimpleNamespace(gravity=np.array([0.0, 0.0, 1.0]))) == 0.0


def test_an_evaluation_tells_who_stands_at_the_end_and_since_when(recover):
    still = lambda agents, obs, key, *, explore: jnp.zeros((8, 13))  # noqa: E731
    lying = RobotEvaluator(recover, still, 8)(None, jax.random.key(0))
    assert lying.to_dict()["recovered"] == 0.0
    assert lying.to_dict()["seconds_to_stand"] is None
    assert lying.lines()["gets up"] == "0 of 8, and stands at the end"
    standing = recover.with_starts(around_home(recover.engine, 8, 0))
    up = RobotEvaluator(standing, still, 8)(None, jax.random.key(0))
    assert up.to_dict()["recovered"] >= 0.75
    assert up.to_dict()["seconds_to_stand"] < 0.5
    assert "and stands at the end, after 0." in up.lines()["gets up"]
    walk = world(task="walk", physics="c", threads=1, horizon=4)
    other = RobotEvaluator(walk, still, 8)(None, jax.random.key(0))
    assert "recovered" not in other.to_dict()


def test_a_bundle_of_it_may_lie(recover, tmp_path):
    layers = [{"kernel": np.zeros((48, 13)), "bias": np.full(13, 0.4)}]
    folder = export_policy(tmp_path / "b", recover.robot, recover.task, layers, activation="elu")
    policy, files = control_loop.load(folder)
    assert policy.manifest["fall"] is None
    robot = control_loop.Simulation(policy.manifest, files["robot.xml"])
    robot.data.qpos[3:7] = [0.7071, 0.0, 0.7071, 0.0]
    summary = control_loop.run(robot, policy, 0.0, 1.0, realtime=False)
    assert summary.falls == 0
    assert not (summary.stopped or "").startswith("it fell")


def test_there_is_nobody_to_push_over():
    run = SimpleNamespace(
        suite=SimpleNamespace(name="robot"),
        folder="runs/x",
        problem=SimpleNamespace(env=SimpleNamespace(base=SimpleNamespace(task=TASKS["recover"]))),
    )
    with pytest.raises(ValueError, match="begins on the ground; there is nobody to push over"):
        push_ladder(run)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A short training: an hour and a half of lying about, in 128 worlds."""
    return worldloom.train(
        "biped",
        task="recover",
        num_worlds=128,
        steps=128 * 24 * 80,
        eval_every=0,
        eval_episodes=8,
        world={"horizon": 96},
        ppo={"hidden": (64, 64), "learning_rate": 1e-3, "num_minibatches": 4},
        out=tmp_path_factory.mktemp("runs") / "recover",
        report=False,
    )


@pytest.mark.slow
def test_robots_learn_to_get_up_higher(learned):
    """By the mean reward of a step, in the iterations in which episodes end."""
    rows = learned.metrics()
    rewards_ = np.array(rows["return"], float) / np.array(rows["length"], float)
    rewards_ = rewards_[np.isfinite(rewards_)]
    assert len(rewards_) == 20
    assert rewards_[-3:].mean() > 1.1 * rewards_[:3].mean()
    assert not (learned.folder / "ladder.json").exists()
    assert "gets up" in learned.evaluation.lines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"level": 1, "ppo": {"unroll_length": 3, "num_minibatches": 2, "hidden": (8,)}},
        pytest.param(
            {"level": 3, "ppo": {"unroll_length": 3, "num_minibatches": 2, "hidden": (8,)}},
            marks=pytest.mark.nightly,
        ),
        {"algo": "sac", "sac": {"hidden": (8,), "batch_size": 8, "learning_starts": 8}},
        {"algo": "td3", "td3": {"hidden": (8,), "batch_size": 8, "learning_starts": 8}},
    ],
    ids=["loop", "mjx", "sac", "td3"],
)
def test_every_level_and_algorithm_trains_it(settings, tmp_path):
    run = worldloom.train(
        "biped",
        task="recover",
        num_worlds=4,
        steps=48,
        eval_every=0,
        eval_episodes=2,
        world={"horizon": 8, "randomise": 1.0, "noise": 1.0},
        out=tmp_path / "run",
        report=False,
        **settings,
    )
    assert run.steps >= 48
    assert run.evaluation.to_dict()["recovered"] == 0.0, "nobody gets up in a sixth of a second"
    assert run.evaluation.lengths.tolist() == [8, 8]
    assert np.isfinite(run.evaluation.returns).all()
