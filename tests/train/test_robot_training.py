"""Runs of the robot: every level trains, resumes to the bit, and says what it cannot do."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import jax
import numpy as np
import pytest

from worldloom.algos.ppo import PPOConfig
from worldloom.track.sinks import read_json_lines
from worldloom.train import robot
from worldloom.train.robot_config import (
    RobotNetwork,
    RobotRules,
    RobotTrainConfig,
    for_robots,
    from_dict,
)

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


def learner_of(run):
    return jax.tree.map(np.asarray, run.trainer.state().learner)


@pytest.mark.parametrize("level", [1, 4, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_goes_on_to_the_bit(level, tmp_path, compiled_once):
    config = tiny(level=level)
    whole = robot.run(config, tmp_path / "whole")
    robot.run(replace(config, updates=2), tmp_path / "parts")
    resumed = robot.run(config, tmp_path / "parts", resume=True)
    assert resumed.epoch == whole.epoch == 4
    for one, other in zip(
        jax.tree.leaves(learner_of(whole)), jax.tree.leaves(learner_of(resumed)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    rows = list(read_json_lines(tmp_path / "parts" / "metrics.jsonl"))
    again = list(read_json_lines(tmp_path / "whole" / "metrics.jsonl"))
    assert [row["update"] for row in rows] == [0, 1, 2, 3]
    np.testing.assert_equal([row["loss"] for row in rows], [row["loss"] for row in again])


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
    assert [rung["newtons"] for rung in ladder][:2] == [5.0, 8.0]
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


def test_level_one_and_level_four_learn_alike_from_the_same_start(tmp_path):
    """Not the same luck, but the same algorithm on the same task: their first updates agree."""
    rules = RobotRules(horizon=20)
    ppo = replace(TINY, num_worlds=64, unroll_length=16, num_minibatches=4)
    losses = {}
    for level in (1, 4):
        config = tiny(level=level, ppo=ppo, world=rules, updates=3, chunk=3)
        robot.run(config, tmp_path / str(level))
        rows = list(read_json_lines(tmp_path / str(level) / "metrics.jsonl"))
        losses[level] = {name: rows[-1][name] for name in ("entropy", "value_loss", "return")}
    for name in losses[1]:
        assert losses[1][name] == pytest.approx(losses[4][name], rel=0.25), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "run"}, "no task 'run'"),
        ({"level": 5}, "level=5"),
        ({"level": 3, "physics": "c"}, "level 3 is trained with physics='mjx'"),
        ({"level": 1, "devices": 2}, "level 4"),
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
    assert not (tmp_path / "run").exists()


DEVICES = """
    import sys
    from dataclasses import replace
    from pathlib import Path
    from worldloom.train import robot
    from worldloom.train.robot_config import RobotRules
    sys.path.insert(0, "tests/train")
    from test_robot_training import TINY, tiny
    folder = Path(sys.argv[1])
    ppo = replace(TINY, num_worlds=64, unroll_length=10, num_minibatches=4)
    settings = {"ppo": ppo, "world": RobotRules(horizon=20)}
    robot.run(tiny(**settings, updates=4), folder / "one")
    robot.run(tiny(**settings, updates=2, devices=2), folder / "two")
    robot.run(tiny(**settings, updates=4), folder / "two", resume=True)
"""


@pytest.mark.slow
def test_two_devices_learn_as_one_and_one_goes_on_with_what_two_began(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEVICES), str(tmp_path)],
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = (list(read_json_lines(tmp_path / name / "metrics.jsonl")) for name in ("one", "two"))
    assert [row["update"] for row in two] == list(range(4))
    # Other luck in each world, the same algorithm: what they learn from 640 steps is alike.
    for name, tolerance in (("entropy", 0.01), ("value_loss", 0.4), ("return", 0.2)):
        for update in (1, 3):
            alike = pytest.approx(one[update][name], rel=tolerance)
            assert two[update][name] == alike, (name, update)
