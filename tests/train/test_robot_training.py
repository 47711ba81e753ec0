"""Runs of the robot: every level trains, resumes to the bit, and says what it cannot do."""

import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from worldloom.algos.amp import AMPConfig
from worldloom.algos.ppo import PPOConfig
from worldloom.envs.robot import kinematics, motion
from worldloom.envs.robot.features import features, profile
from worldloom.envs.robot.model import ASSETS, biped
from worldloom.track.checkpoint import Checkpoints
from worldloom.track.sinks import read_json_lines, write_json
from worldloom.train import robot
from worldloom.train.robot_config import (
    RobotNetwork,
    RobotRules,
    RobotTrainConfig,
    for_robots,
    from_dict,
)
from worldloom.train.robot_evaluate import BINS

TINY = PPOConfig(
    num_worlds=4, unroll_length=3, num_epochs=2, num_minibatches=2, normalise_observations=True
)


def tiny(**changes):
    """Settings of a run of seconds."""
    settings = {
        "task": "stand", "updates": 4, "chunk": 2, "eval_every": 0, "eval_episodes": 2,
        "checkpoint_every": 2, "ppo": TINY, "network": RobotNetwork(hidden=(8,)),
        "world": RobotRules(horizon=5, randomise=1.0, noise=1.0),
    }  # fmt: skip
    return RobotTrainConfig(**(settings | changes))


def trainer_of(config):
    return robot.make_trainer(config, robot.make_world(config))


def on_two_devices(code, *arguments):
    """`code` in a process of its own in which a processor is two devices."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("level", [1, 4, pytest.param(3, marks=pytest.mark.slow)])
def test_training_goes_on_to_the_bit(level, tmp_path):
    trainer = trainer_of(tiny(level=level))
    trainer.advance(2)
    with closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(2, trainer.state())
        at_once = trainer.advance(2)
        expected = jax.tree.map(np.asarray, trainer.state().learner)
        trainer.load(checkpoints.restore(trainer.state()))
    assert trainer.epoch == 2
    later = trainer.advance(2)
    for one, other in zip(
        jax.tree.leaves((expected, at_once)),
        jax.tree.leaves((trainer.state().learner, later)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_level_two_goes_on_from_what_brax_restores(tmp_path):
    config = tiny(level=2, updates=2)
    first = robot.run(config, tmp_path / "run")
    kept = jax.tree.map(np.asarray, first.trainer.agents())
    loaded = robot.load_run(tmp_path / "run")
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(loaded.agents), strict=True):
        np.testing.assert_array_equal(one, other)
    resumed = robot.run(replace(config, updates=4), tmp_path / "run", resume=True)
    assert resumed.epoch == 4
    changed = jax.tree.map(
        lambda one, other: (one != np.asarray(other)).any(), kept, resumed.trainer.agents()
    )
    assert any(jax.tree.leaves(changed))
    rows = list(read_json_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [row["update"] for row in rows] == [0, 1, 2, 3]
    assert all(np.isfinite(row["loss"]) for row in rows)
    # Of episodes of five steps none has ended after the first three, of each time Brax is called.
    assert [row["return"] is None for row in rows] == [True, False, True, False]
    for row in rows[1::2]:
        assert row["return"] > 0.0
        assert (row["length"], row["episodes"]) == (5.0, 2)  # of 12 steps
        assert (row["fell"], row["diverged"]) == (0.0, 0.0)


BRAX_ON_TWO_DEVICES = """
    import sys
    from pathlib import Path
    import jax
    from worldloom.train import robot
    sys.path.insert(0, "tests/train")
    from test_robot_training import tiny
    config = tiny(trainer="brax", devices=2, updates=2, eval_every=0)
    run = robot.run(config, Path(sys.argv[1]))
    assert (run.epoch, jax.device_count()) == (2, 2)
    assert robot.load_run(run.folder).evaluate().steps.shape == (2,)
"""


@pytest.mark.slow
def test_level_four_trains_with_brax_on_two_devices_too(tmp_path):
    done = on_two_devices(BRAX_ON_TWO_DEVICES, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    rows = list(read_json_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [row["length"] for row in rows] == [None, 5.0]
    assert np.isfinite([row["loss"] for row in rows]).all()


def test_level_two_refuses_what_brax_does_not_have():
    config = tiny(level=2, ppo=replace(TINY, anneal_updates=5))
    with pytest.raises(ValueError, match="anneal_updates=5 is an option that Brax's PPO"):
        trainer_of(config)


def test_level_one_starts_where_the_other_levels_do():
    config = tiny(level=1, task="walk", world=RobotRules(horizon=5, starts="reference"))
    env = robot.make_world(config)
    trainer = robot.make_trainer(config, env)
    table = np.asarray(env.params.starts.physics.reading.qpos)
    begun = trainer.run.worlds[0].physics.reading.qpos
    assert all((table == row).all(-1).any() for row in begun)


@pytest.mark.slow
def test_level_three_never_leaves_its_program():
    trainer = trainer_of(tiny(level=3))
    traced = jax.make_jaxpr(trainer.loop.update)(trainer.run, trainer.params)
    assert "callback" not in str(traced)
    trainer = trainer_of(tiny(level=4, physics="c"))
    assert "pure_callback" in str(
        jax.make_jaxpr(trainer.loop.update)(trainer.run, trainer.params)
    )  # so the word above is the right one to look for


MAIN = "import sys; from worldloom.cli import main; sys.exit(main())"


@pytest.mark.slow
def test_two_processes_are_one_run(tmp_path):
    """Each with a device of its own, over gloo: one folder, one checkpoint, and it can go on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = [
        "--task", "walk", "--updates", "2", "--chunk", "1", "--checkpoint-every", "1",
        "--eval-every", "0", "--eval-episodes", "2", "--ppo.num-worlds", "8",
        "--ppo.unroll-length", "4", "--ppo.num-epochs", "1", "--ppo.num-minibatches", "2",
        "--network.hidden", "8", "--world.horizon", "6", "--no-report", "--out", str(tmp_path),
    ]  # fmt: skip
    joined = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id"]
    start = [sys.executable, "-c", MAIN, "train", "biped", *settings, *joined]
    both = [
        subprocess.Popen([*start, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(2)
    ]
    told = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    (folder,) = tmp_path.iterdir()
    assert [row["update"] for row in read_json_lines(folder / "metrics.jsonl")] == [0, 1]
    kept = json.loads((folder / "config.json").read_text())["config"]
    assert kept["devices"] == 2
    trainer = trainer_of(replace(robot.read_config(folder), devices=1))
    with closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        trainer.load(checkpoints.restore(trainer.state()))
    assert trainer.epoch == 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "stand"
    return robot.run(tiny(), folder)


def test_a_run_leaves_what_is_needed_to_read_it(finished):
    folder = finished.folder
    kept = json.loads((folder / "config.json").read_text())
    assert from_dict(kept["config"]) == finished.config
    assert kept["engine"] == "CEngine"
    row = list(read_json_lines(folder / "metrics.jsonl"))[-1]
    assert {"return", "length", "fell", "error", "diverged", "kl"} <= set(row)
    told = list(read_json_lines(folder / "eval.jsonl"))[-1]
    assert {"survived", "good", "error", "return", "terms"} <= set(told)
    assert set(told["terms"]) == set(finished.evaluator.world.task.terms)
    ladder = json.loads((folder / "ladder.json").read_text())
    assert [rung["newtons"] for rung in ladder][:2] == [5.0, 6.0]
    assert all(0.0 <= rung["held"] <= 1.0 for rung in ladder)


def test_a_run_that_is_over_can_be_loaded_and_asked(finished):
    loaded = robot.load_run(finished.folder)
    assert loaded.update == 4
    _, first = loaded.world.reset(jax.random.key(0), loaded.world.params)
    action = loaded.act(jax.tree.map(lambda x: x[None], first.obs))
    assert action.shape == (1, 13)
    again = loaded.evaluate(seed=3)
    assert again.steps.shape == (2,)


def test_other_settings_do_not_resume_a_run(finished):
    with pytest.raises(ValueError, match="seed"):
        robot.run(tiny(seed=1), finished.folder, resume=True)


# A user's own files ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of a user's robot, whose legs are not built as the computed gait has them."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(ASSETS / "biped.xml", folder / "own.xml")
    names = yaml.safe_load((ASSETS / "biped.yaml").read_text())
    names["legs"] = [[pitch, roll, *rest] for roll, pitch, *rest in names["legs"]]
    (folder / "own.yaml").write_text(yaml.safe_dump(names))
    settings = {"updates": 1, "chunk": 1, "checkpoint_every": 1, "world": RobotRules(horizon=5)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = tiny(level=1, task="walk", robot="own.xml", **settings)
        return robot.run(config, folder / "run")


def test_a_robot_without_a_computed_gait_may_learn_to_walk(own):
    (told,) = read_json_lines(own.folder / "eval.jsonl")
    assert told["gait_distance"] is None
    with pytest.raises(ValueError, match=r"do not hang straight down.*\(--motion\)"):
        robot.make_prior(replace(own.config, level=4, amp=AMPConfig()), own.evaluator.world)
    with pytest.raises(ValueError, match=r"do not hang straight down.*\(--motion\)"):
        robot.make_world(replace(own.config, world=RobotRules(starts="reference")))


@pytest.mark.parametrize("suffix", [".xml", ".yaml"])
def test_a_run_does_not_go_on_with_a_robot_that_was_edited(own, suffix, contents):
    file = Path(own.config.robot).with_suffix(suffix)  # whole, though it was typed as own.xml
    kept, before = file.read_text(), contents(own.folder)
    file.write_text(kept.replace("0.8", "0.7"))
    try:
        why = r"run was trained with another robot: .*own\.xml or its mapping has changed since"
        with pytest.raises(ValueError, match=why):
            robot.load_run(own.folder)
        with pytest.raises(ValueError, match=why):
            robot.run(replace(own.config, updates=2), own.folder, resume=True)
    finally:
        file.write_text(kept)
    assert contents(own.folder) == before
    assert robot.load_run(own.folder).update == 1


@pytest.fixture
def recorded(own, tmp_path):
    """Settings that name a motion of the user's robot, and the motion."""
    played = motion.realise(biped(), kinematics.cpg(biped(), 0.25), cycles=1)
    motion.save(tmp_path / "walk.npz", own.evaluator.world.robot, played)
    return replace(own.config, level=4, motion=str(tmp_path / "walk.npz")), played


def test_a_motion_from_a_file_is_the_reference_of_everything(own, recorded):
    config, played = recorded
    env = robot.make_world(replace(config, world=RobotRules(starts="reference")))
    assert set(np.asarray(env.params.starts.phase)) <= set(played.phase)
    prior = robot.make_prior(replace(config, amp=AMPConfig()), env)
    np.testing.assert_array_equal(prior.reference, features(np, env.robot, played.reading))
    evaluator = robot.LoadedRobotRun(config, env, None, 0)._evaluator(2)
    expected = profile(env.robot, played.reading, played.phase, BINS)
    np.testing.assert_array_equal(evaluator._reference, expected)


def test_a_run_does_not_go_on_with_another_motion(own, recorded, tmp_path):
    config, played = recorded
    env = own.evaluator.world
    write_json(tmp_path / "config.json", {"files": robot._digests(config, env)})
    robot._check_files(tmp_path, config, env)
    motion.save(config.motion, env.robot, played.replace(phase=1.0 - played.phase))
    robot.reference_gait.cache_clear()  # as in another process
    with pytest.raises(ValueError, match=r"another motion: .*walk\.npz has changed since"):
        robot._check_files(tmp_path, config, env)


def test_a_motion_of_another_robot_ends_a_run_before_anything_is_written(recorded, tmp_path):
    config, played = recorded
    other = replace(biped(), joints=("tail", *biped().joints[1:]))
    motion.save(config.motion, other, played)
    with pytest.raises(ValueError, match=r"walk\.npz is the reference motion of another robot"):
        robot.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Levels, settings, devices -----------------------------------------------------------------------


def test_level_one_and_level_four_learn_alike_from_the_same_start():
    """Not the same luck, but the same algorithm on the same task: their first updates agree."""
    ppo = replace(TINY, num_worlds=64, unroll_length=16, num_minibatches=4)
    told = {}
    for level in (1, 4):
        trainer = trainer_of(tiny(level=level, ppo=ppo, world=RobotRules(horizon=20)))
        metrics = trainer.advance(3)
        told[level] = (
            metrics.learned.entropy, metrics.learned.value_loss, metrics.episode_return[1:]
        )  # fmt: skip
    for one, other in zip(told[1], told[4], strict=True):
        np.testing.assert_allclose(one, other, rtol=0.25)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "run"}, "no task 'run'"),
        ({"level": 5}, "level=5"),
        ({"level": 3, "physics": "c"}, "level 3 is trained with physics='mjx'"),
        ({"level": 1, "devices": 2}, "level 4"),
        ({"level": 1, "trainer": "brax"}, "level 1 is trained with our own PPO; trainer='brax'"),
        ({"level": 2, "trainer": "own"}, "level 2 is Brax's PPO; use level 4 for trainer='own'"),
        ({"trainer": "braks"}, "trainer='braks'; did you mean 'brax'"),
        (
            {"task": "walk", "trainer": "brax", "amp": AMPConfig()},
            "Brax's PPO has no motion priors; leave amp.weight at 0",
        ),
        ({"devices": 0}, "devices=0"),
        ({"physics": "numpy"}, "level 1"),
        ({"network": RobotNetwork(activation="gelu2")}, "gelu2"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_more_devices_than_there_are_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="ask for 1 to"):
        robot.run(tiny(devices=64, ppo=for_robots()), tmp_path / "run")
    with pytest.raises(ValueError, match="devices=64; this process has"):
        robot.run(tiny(devices=64, trainer="brax"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


DEVICES = """
    import sys
    from dataclasses import replace
    import jax
    import numpy as np
    from worldloom.train.robot_config import RobotRules
    sys.path.insert(0, "tests/train")
    from test_robot_training import TINY, tiny, trainer_of
    ppo = replace(TINY, num_worlds=64, unroll_length=10, num_minibatches=4)
    config = tiny(ppo=ppo, world=RobotRules(horizon=20))
    one, two = trainer_of(config), trainer_of(replace(config, devices=2))
    # What is evaluated must not tie whoever uses it to both devices.
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(two.agents()))
    alone = [one.advance(2), one.advance(2)]
    together = [two.advance(2)]
    one.load(jax.device_put(two.state(), jax.devices()[0]))  # goes on, on fewer devices
    together.append(one.advance(2))
    assert one.epoch == 4
    for ours, theirs in zip(alone, together, strict=True):
        # Other luck in each world, the same algorithm: what they learn from 640 steps is alike.
        np.testing.assert_allclose(ours.learned.entropy, theirs.learned.entropy, rtol=0.01)
        np.testing.assert_allclose(ours.learned.value_loss, theirs.learned.value_loss, rtol=0.4)
        np.testing.assert_allclose(
            np.nanmean(ours.episode_return), np.nanmean(theirs.episode_return), rtol=0.2
        )
"""


@pytest.mark.slow
def test_two_devices_learn_as_one_and_one_goes_on_with_what_two_began():
    done = on_two_devices(DEVICES)
    assert done.returncode == 0, done.stderr
