"""`worldloom bench robot`: equal physics, equal passes, honest ratios, and what is written."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mujoco")

from worldloom.bench import figures, robot, robot_learning, robot_levels, robot_physics
from worldloom.bench.robot_players import PLAYERS
from worldloom.bench.robot_stage import Process
from worldloom.bench.suites import SUITES
from worldloom.bench.timer import Timing
from worldloom.report import robot_bench

PASSES = {"hidden": (8,), "unroll_length": 2, "num_epochs": 3, "num_minibatches": 4}


class FakeStage:
    """Keeps what a player says, and plays a block."""

    def __init__(self):
        self.said, self.seconds = {}, []

    def ready(self, steps, **facts):
        self.said = {"steps": steps, **facts}

    def done(self, seconds=None):
        self.seconds.append(seconds)

    def play(self, block, steps, **facts):
        block()
        self.ready(steps, **facts)


# Physics -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def physics_facts():
    setup = {"batch": 3, "steps_in_block": 4, "devices": None}
    said = {}
    for name in ("rollout", "batch", "numpy", "c_in_jit"):
        stage = FakeStage()
        PLAYERS[name](setup | {"player": name}, stage)
        said[name] = stage.said
    return said


def test_all_engines_do_the_same_work(physics_facts):
    assert {facts["steps"] for facts in physics_facts.values()} == {12}
    heights = [facts["height"] for facts in physics_facts.values()]
    np.testing.assert_allclose(heights, heights[0], rtol=0, atol=1e-7)
    assert physics_facts["numpy"]["height"] == physics_facts["c_in_jit"]["height"]


def test_rollout_is_called_the_way_that_is_fastest(physics_facts):
    facts = physics_facts["rollout"]
    assert len(facts["seconds_of_ways"]) == 3
    assert facts["way"] == min(facts["seconds_of_ways"], key=facts["seconds_of_ways"].get)


def test_robots_sway_each_in_its_own_way_within_their_limits():
    engine, physics, targets = robot_physics.scene("numpy", 600, 5)
    body = engine.robot
    assert targets.shape == (5, 600, body.num_joints)
    assert (targets >= body.lower - 1e-6).all()
    assert (targets <= body.upper + 1e-6).all()
    assert np.abs(targets - body.home_joints).max() <= robot_physics.SWAY + 1e-6
    assert np.ptp(targets[0], axis=0).min() > 0.0
    # More robots than starts: the table is used again from its first row.
    np.testing.assert_array_equal(physics.full[512:], physics.full[:88])


def test_a_player_in_its_own_process_says_how_busy_it_was():
    with Process(player="numpy", batch=2, steps_in_block=20, devices=None) as player:
        assert player.steps == 40
        assert player.device_use is None
        assert player.play() > 0.0
        assert 0.0 < player.device_use < 1.5  # a loop on one thread


# Training ----------------------------------------------------------------------------------------


def test_brax_is_given_the_same_passes_as_our_ppo():
    setup = {"batch": 16, "devices": 2, "updates": 5} | PASSES
    ours = robot_levels.train_config(setup, level=4)
    brax = robot_levels.brax_config(ours, updates=5, blocks=7)
    assert brax.steps_per_update == ours.steps_per_update == 32
    assert brax.total_steps == brax.num_timesteps == 7 * 5 * 32
    assert brax.num_updates_per_batch * brax.num_minibatches == 12
    assert (brax.policy_hidden, brax.value_hidden) == ((8,), (8,))
    assert (brax.num_envs, brax.devices, brax.run_evals) == (16, 2, False)
    assert not brax.log_training_metrics


def test_brax_is_timed_by_its_own_clock_after_it_has_compiled(monkeypatch):
    from worldloom.train import robot_brax

    def train(world, config, progress):
        for step, wall in enumerate((50.0, 52.0, 55.0, 59.0)):
            progress(step, {"training/walltime": wall})

    monkeypatch.setattr(robot_brax, "train_brax", train)
    stage = FakeStage()
    setup = {"player": "level2", "batch": 4, "devices": None, "updates": 2} | PASSES
    PLAYERS["level2"](setup, stage)
    assert stage.said["steps"] == 2 * 4 * 2
    assert stage.said["compile_seconds"] == 48.0  # the first epoch less the second
    assert stage.seconds == [3.0, 4.0]


def test_level_1_plays_whole_updates():
    stage = FakeStage()
    setup = {"player": "level1", "batch": 4, "devices": None, "updates": 2} | PASSES
    PLAYERS["level1"](setup, stage)
    assert (stage.said["steps"], stage.said["updates"]) == (16, 2)
    assert stage.said["first_update_seconds"] > stage.said["compile_seconds"] > 0.0


# Ratios ------------------------------------------------------------------------------------------

RATES = {
    "rollout": 20.0, "batch": 30.0, "numpy": 8.0, "c_in_jit": 18.0, "mjx_in_jit": 3.0,
    "mjx_in_jit_on_all_cores": 4.0, "level1": 4.0, "level2": 5.0, "level3": 2.0, "level4": 7.0,
    "level4_on_all_cores": 10.0, "brax_mjx": 2.0, "brax_mjx_on_all_cores": 2.5,
}  # fmt: skip


@pytest.fixture
def fake_players(monkeypatch):
    class Fake:
        device_use = 1.25

        def __init__(self, **setup):
            self.facts = {"devices": setup["devices"] or 1}

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(robot, "Process", Fake)
    monkeypatch.setattr(robot, "_cores", lambda: 2)
    monkeypatch.setattr(
        robot, "take_turns", lambda ready, _: {name: Timing((1 / RATES[name],)) for name in ready}
    )


def test_ratios_compare_with_the_best_of_each(fake_players, tmp_path):
    out = tmp_path / "robot.json"
    sizes = replace(robot.QUICK, batch=512, levels=((16, 1, 1), (512, 1, 1)))
    record = robot.run(sizes, ["physics", "levels", "brax"], out, "worldloom bench robot", True)
    written = json.loads(out.read_text())
    ratios = written["ratios"]
    assert record.result["complete"]
    assert set(ratios) == set(figures.MEANING["robot"])
    assert ratios["c_in_jit_vs_rollout"] == pytest.approx(0.9)
    assert ratios["c_in_jit_vs_mjx_512"] == pytest.approx(4.5)
    assert ratios["ppo_level4_vs_level1"] == pytest.approx(2.5)
    assert ratios["ppo_vs_brax_mjx"] == pytest.approx(4.0)
    assert ratios["walk_good_share"] is None
    assert {"mujoco", "mujoco-mjx", "brax"} <= set(written["versions"])


def test_the_level_table_shows_slower_levels_as_they_are(fake_players, tmp_path, capsys):
    sizes = replace(robot.QUICK, batch=512, levels=((16, 1, 1), (512, 1, 1)))
    record = robot.run(sizes, ["levels"], tmp_path / "robot.json", "", True)
    rows = record.result["raw"]["levels"]["table"]
    assert [row["level"] for row in rows] == [1, 2, 3, 4]
    rates = [row["steps_per_second"]["512"] for row in rows]
    assert rates == pytest.approx([4.0, 5.0, 2.0, 10.0])
    assert [row["devices"]["512"] for row in rows] == [1, 1, 1, 2]
    assert rows[2]["device_use"] == 1.25
    robot.print_levels(record.result["raw"]["levels"])
    assert "512" in capsys.readouterr().out


def test_the_first_step_is_timed_in_fresh_processes_with_a_cache_of_their_own(
    monkeypatch, tmp_path
):
    calls = []

    def fresh(function, setup, cache):
        calls.append((setup["physics"], cache))
        return {"seconds": float(len(calls)), "world": 0.5, "reset": 0.5, "step": 1.0}

    monkeypatch.setattr(robot, "in_fresh_process", fresh)
    sizes = replace(robot.QUICK, compile_repeats=2)
    record = robot.run(sizes, ["compile"], tmp_path / "robot.json", "", True)
    raw = record.result["raw"]["compile"]
    assert [physics for physics, _ in calls] == ["mjx", "c", "mjx"] * 2
    folders = [cache for _, cache in calls]
    assert folders[0] == folders[2] != folders[3] == folders[5]
    assert raw["seconds"]["mjx_cached"]["samples"] == [3.0, 6.0]


def test_the_first_step_is_the_sum_of_its_parts():
    told = robot_levels.first_step({"physics": "c", "batch": 4})
    assert told["seconds"] == pytest.approx(told["world"] + told["reset"] + told["step"])
    assert told["step"] > 0.0


def test_an_unknown_section_is_an_error_with_the_nearest_name():
    assert SUITES["robot"][0] == "worldloom.bench.robot"
    with pytest.raises(ValueError, match="physics"):
        robot.command(["--only", "physic"])


# Learning ----------------------------------------------------------------------------------------


def test_a_run_that_is_out_of_time_is_evaluated_where_it_stopped():
    notes: list[str] = []
    told = robot_learning.learn("stand", 0.0, notes.append, tiny=True, updates=2, eval_every=2)
    assert told["out_of_time"]
    assert told["timing"]["updates"] == 1
    assert [row["update"] for row in told["curve"]] == [1]
    assert len(told["episodes"]) == told["settings"]["eval_episodes"] == 2
    assert told["final"]["survived"] == 1.0 - np.mean([one["fell"] for one in told["episodes"]])
    assert [rung["newtons"] for rung in told["ladder"]][:2] == [5.0, 6.0]
    assert len(notes) == 1


def test_walks_are_trained_with_the_defaults_and_the_prior_is_the_only_difference():
    from worldloom.train.robot_config import RobotTrainConfig

    plain, amp = robot_learning.settings("walk"), robot_learning.settings("walk_amp")
    usual = RobotTrainConfig()
    annealed = replace(usual.ppo, anneal_updates=usual.updates, final_learning_rate=3e-5)
    assert plain == replace(usual, ppo=annealed)
    assert amp.amp.weight > 0.0
    assert replace(amp, amp=plain.amp) == plain
    rate = "--ppo.anneal-updates 400 --ppo.final-learning-rate 3e-05"
    assert robot_learning.command(plain) == f"worldloom train biped --seed 0 {rate}"
    stand = robot_learning.settings("stand", updates=7, eval_every=3)
    assert robot_learning.command(stand).endswith(
        "--seed 0 --task stand --updates 7 --eval-every 3 --ppo.anneal-updates 7 "
        "--ppo.final-learning-rate 3e-05"
    )
    assert f"--amp.weight {amp.amp.weight} " in robot_learning.command(amp)


def test_pushes_count_where_a_robot_that_holds_its_pose_falls():
    ladder = [
        {"survived": 1.0, "held": 0.8}, {"survived": 0.9, "held": 0.1},
        {"survived": 0.2, "held": 0.0},
    ]  # fmt: skip
    assert robot_learning.taken_share(ladder) == 0.9
    assert robot_learning.taken_share(ladder[:1]) is None


def test_the_time_to_walk_is_that_of_the_first_good_evaluation():
    rows = [{"good": 0.5, "seconds": 10.0}, {"good": 0.9, "seconds": 20.0}]
    assert robot_learning.seconds_to(rows, 0.9) == 20.0
    assert robot_learning.seconds_to(rows, 0.95) is None


# The page ----------------------------------------------------------------------------------------


def test_the_page_shows_what_was_measured_and_nothing_else(fake_players, tmp_path):
    sizes = replace(robot.QUICK, batch=512, levels=((16, 1, 1), (512, 1, 1)))
    record = robot.run(sizes, ["physics", "levels", "brax"], tmp_path / "r.json", "", True)
    raw = record.result["raw"]
    raw["compile"] = {"seconds": {"c": {"median": 3.5}}, "bars": {"c": 8.0}, "batch": 512}
    walk = {
        "curve": [{"seconds": 60.0, "good": 0.25, "survived": 0.5}],
        "final": {"good": 0.95, "survived": 1.0, "error": 0.02, "gait_distance": 0.1},
        "timing": {"updates": 400}, "episodes": [{"command": 0.2, "speed": 0.21}],
    }  # fmt: skip
    ladder = [{"newtons": 16.0, "steps": 15, "survived": 0.75, "held": 0.0}]
    raw["learning"] = {"walk": walk, "stand": walk | {"ladder": ladder}}
    physics, levels, brax, compile_, learning = robot_bench.sections(raw)
    assert "mujoco.rollout, open loop" in physics
    assert "Brax PPO" in levels
    assert "steps/s, 512 robots" in levels
    assert "Brax PPO over MJX" in brax
    assert "MuJoCo in C, cold" in compile_
    assert "holding the home pose" in learning
    assert "95" in learning
    assert robot_bench.sections({}) == []
