"""`worldloom bench robot`: equal physics, equal passes, honest ratios, and what is written."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("mujoco")

from benchmarks import (
    figures,
    robot,
    robot_ground,
    robot_learning,
    robot_levels,
    robot_physics,
    robot_tracking,
)
from benchmarks.pages import robot as robot_bench
from benchmarks.robot_players import PLAYERS
from benchmarks.robot_stage import Process
from worldloom.cli.bench import AGAINST_PEERS
from worldloom.report import page as html
from worldloom.training.timer import Timing

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


@pytest.fixture
def brax_calls(monkeypatch):
    """What Brax's trainer was called with; its clock after each epoch is made up."""
    from worldloom.adapters import brax_ppo

    calls = []

    def train(environment, num_timesteps, progress_fn, **options):
        calls.append({"num_timesteps": num_timesteps, "environment": environment} | options)
        for step, wall in enumerate((50.0, 52.0, 55.0, 59.0)):
            progress_fn(step, {"training/walltime": np.float32(wall)})

    monkeypatch.setattr(brax_ppo, "train", train)
    return calls


def test_brax_is_given_the_same_passes_as_our_ppo(brax_calls):
    setup = {"player": "level2", "batch": 16, "devices": 2, "updates": 5} | PASSES
    ours = robot_levels.train_config(setup, level=4)
    PLAYERS["level2"](setup, FakeStage())
    (brax,) = brax_calls
    per_update = brax["batch_size"] * brax["num_minibatches"] * brax["unroll_length"]
    assert per_update == ours.num_worlds * ours.hyper.unroll_length == 32
    assert brax["num_timesteps"] == robot_levels.BRAX_BLOCKS * 5 * 32
    assert brax["num_evals"] == robot_levels.BRAX_BLOCKS + 1
    assert brax["num_updates_per_batch"] * brax["num_minibatches"] == 12
    assert (brax["num_envs"], brax["max_devices_per_host"], brax["run_evals"]) == (16, 2, False)
    assert not brax.get("log_training_metrics", False)
    assert ours.hyper.hidden == (8,)
    assert brax["environment"].backend == "c"


def test_brax_is_timed_by_its_own_clock_after_it_has_compiled(brax_calls):
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
    "rollout": 20.0,
    "batch": 30.0,
    "numpy": 8.0,
    "c_in_jit": 18.0,
    "mjx_in_jit": 3.0,
    "mjx_in_jit_on_all_cores": 4.0,
    "level1": 4.0,
    "level2": 5.0,
    "level3": 2.0,
    "level4": 7.0,
    "level4_on_all_cores": 10.0,
    "brax_mjx": 2.0,
    "brax_mjx_on_all_cores": 2.5,
}


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
    taken = robot_levels.first_step({"physics": "c", "batch": 4})
    assert taken["seconds"] == pytest.approx(taken["world"] + taken["reset"] + taken["step"])
    assert taken["step"] > 0.0


def test_an_unknown_section_is_an_error_with_the_nearest_name():
    assert "robot" in AGAINST_PEERS
    with pytest.raises(ValueError, match="physics"):
        robot.command(["--only", "physic"])


# Learning ----------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.slow
def test_a_run_that_is_out_of_time_is_evaluated_where_it_stopped():
    notes: list[str] = []
    steps = 2 * robot_learning.TINY_STEPS
    result = robot_learning.learn("stand", 0.0, notes.append, True, steps=steps, eval_every=steps)
    assert result["out_of_time"]
    assert result["timing"]["iterations"] == 1
    assert [row["steps"] for row in result["curve"]] == [robot_learning.TINY_STEPS]
    assert len(result["episodes"]) == result["settings"]["eval_episodes"] == 2
    assert result["final"]["survived"] == 1.0 - np.mean([one["fell"] for one in result["episodes"]])
    assert [rung["newtons"] for rung in result["ladder"]][:2] == [5.0, 6.0]
    assert len(notes) == 1


def test_walks_are_trained_in_the_model_as_it_is_and_the_prior_is_the_only_difference():
    from worldloom.suites.robot.suite import SUITE
    from worldloom.training.config import make_config

    plain, amp = robot_learning.settings("walk"), robot_learning.settings("walk_amp")
    usual = make_config(SUITE, {"env": "biped"})
    annealed = replace(usual.hyper, anneal_updates=400, final_learning_rate=3e-5)
    assert plain.world == {**usual.world, **robot_learning.PLAIN}
    assert plain.settings.amp.weight == 0.0
    assert replace(plain, world=usual.world, settings=usual.settings) == replace(
        usual, hyper=annealed
    )
    assert amp.settings.amp.weight > 0.0
    assert replace(amp, settings=plain.settings) == plain
    rate = "--ppo.anneal-updates 400 --ppo.final-learning-rate 3e-05"
    nominal = (
        "--world.randomise 0.0 --world.noise 0.0 --world.push-force None --world.apart None "
        "--world.smooth None --world.straight None"
    )
    assert robot_learning.command(plain) == (
        f"worldloom train biped {nominal} {rate} --amp.weight 0.0"
    )
    stand = robot_learning.settings("stand", steps=7 * 512 * 24, eval_every=3)
    assert robot_learning.command(stand) == (
        "worldloom train biped --steps 86016 --eval-every 3 --ppo.anneal-updates 7 "
        "--ppo.final-learning-rate 3e-05 --task stand"
    )
    assert "--amp.weight" not in robot_learning.command(amp), "it is the default"


def test_the_command_of_a_run_makes_its_settings():
    from worldloom.cli.settings import read_request

    for name in ("walk", "walk_amp", "stand", "joystick"):
        config = robot_learning.settings(name)
        _, _, env, *flags = robot_learning.command(config).split()
        assert read_request(env, flags).config == config


def test_pushes_count_where_a_robot_that_holds_its_pose_falls():
    ladder = [
        {"survived": 1.0, "held": 0.8},
        {"survived": 0.9, "held": 0.1},
        {"survived": 0.2, "held": 0.0},
    ]
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
        "timing": {"iterations": 400},
        "episodes": [{"command": 0.2, "speed": 0.21}],
    }
    ladder = [{"newtons": 16.0, "steps": 15, "survived": 0.75, "held": 0.0}]
    raw["learning"] = {"walk": walk, "stand": walk | {"ladder": ladder}}
    shown = [html.page("", [section]) for section in robot_bench.sections(raw)]
    physics, levels, brax, compile_, learning = shown
    assert "mujoco.rollout, open loop" in physics
    assert "Brax PPO" in levels
    assert "steps/s, 512 robots" in levels
    assert "Brax PPO over MJX" in brax
    assert "MuJoCo in C, cold" in compile_
    assert "holding the home pose" in learning
    assert "95" in learning
    assert robot_bench.sections({}) == []


# Tracking ----------------------------------------------------------------------------------------

RANGES = [[-0.2, 0.35], [-0.15, 0.15], [-0.5, 0.5]]


@pytest.fixture(scope="module")
def steered(tmp_path_factory):
    """The bundle of a joystick policy that stands where it is."""
    from worldloom.suites.robot.export import export_policy
    from worldloom.suites.robot.world import world

    env = world(task="joystick", physics="c", threads=1)
    layers = [{"kernel": np.zeros((50, 13)), "bias": np.zeros(13)}]
    folder = tmp_path_factory.mktemp("steered") / "bundle"
    return export_policy(folder, env.robot, env.task, layers, activation="elu")


def test_commands_are_the_ends_of_every_range_alone_and_in_pairs():
    asked = robot_tracking.commands(RANGES)
    assert asked.shape == (18, 3)
    assert len({tuple(row) for row in asked}) == 18
    assert sorted((asked != 0.0).sum(1)) == [1] * 6 + [2] * 12
    for column, ends in zip(asked.T, RANGES, strict=True):
        assert {*column} == {0.0, *ends}
        assert [(column == x).sum() for x in ends] == [5, 5]
    with pytest.raises(ValueError, match="steered in three directions: train one with --task"):
        robot_tracking.commands(RANGES[:1])


def test_errors_are_shares_of_the_greatest_command_of_runs_without_a_fall():
    asked = robot_tracking.commands(RANGES)
    run = {"stopped": None, "tracking_error": 0.035, "yaw_error": 0.1}
    fell = {"stopped": "it fell", "tracking_error": None, "yaw_error": None}
    found = robot_tracking.scores(asked, [run] * 17 + [fell])
    assert found["falls"] == 1
    assert found["greatest"] == [0.35, 0.5]
    assert (found["speed_share"], found["yaw_share"]) == pytest.approx((0.1, 0.2))
    assert found["error_share"] == pytest.approx(0.15)
    assert robot_tracking.scores(asked, [fell] * 18)["error_share"] is None


def test_a_robot_that_stands_is_off_by_all_that_was_asked(steered, tmp_path):
    sizes = replace(robot.QUICK, tracked=steered)
    record = robot.run(sizes, ["tracking"], tmp_path / "r.json", "", True)
    assert record.result["errors"] == {}
    raw, ratios = record.result["raw"]["tracking"], record.result["ratios"]
    assert (len(raw["runs"]), raw["falls"], ratios["joystick_falls"]) == (18, 0, 0)
    asked = robot_tracking.commands(RANGES)
    speed = np.hypot(*asked[:, :2].T).mean() / 0.35
    yaw = np.abs(asked[:, 2]).mean() / 0.5
    assert raw["error_share"] == pytest.approx((speed + yaw) / 2.0, abs=0.02)
    assert ratios["joystick_error_share"] == pytest.approx(raw["error_share"] / 0.059)
    assert "0.059" in figures.MEANING["robot"]["joystick_error_share"]
    assert "Playground" in raw["peers_source"]
    (page,) = robot_bench.sections({"tracking": raw})
    shown = html.page("", [page])
    for words in ("Following commands", "Apollo", "+0.35 +0.15 +0.00", "not measured in this run"):
        assert words in shown


def test_a_policy_that_is_not_given_is_trained_first_and_one_that_is_not_there_refused(tmp_path):
    raw = {}
    robot_tracking.tracking(None, 0.5, raw, lambda text: None, seconds=2.5, tiny=True)
    assert raw["training"]["command"].startswith("worldloom train biped")
    assert "--task joystick" in raw["training"]["command"]
    assert raw["training"]["steps"] > 0
    assert len(raw["runs"]) == 18
    with pytest.raises(ValueError, match="there is no run or bundle"):
        robot.command(["--only", "tracking", "--run", str(tmp_path / "none")])
    with pytest.raises(ValueError, match=r"minutes=0\.0"):
        robot.command(["--only", "tracking", "--minutes", "0"])


@pytest.mark.slow
def test_walks_over_uneven_ground_are_counted_beside_those_of_a_flat_floor(tmp_path):
    raw = {}
    robot_ground.ground((None, None), 0.5, raw, lambda text: None, tiny=True)
    for name in ("uneven", "flat"):
        rows = raw[name]["traversals"]
        assert [row["level"] for row in rows if row["kind"] == "all"] == [1, 2, 3, 4, 5]
        assert all(row["episodes"] == 4 for row in rows if row["kind"] == "all")
        assert robot_ground.share(raw[name]) == 0.0  # in a third of a second
    assert "ground" in raw["uneven"]["training"]["command"]
    (page,) = robot_bench.sections({"ground": raw})
    assert "trained on a flat floor" in html.page("", [page])


def test_one_run_is_not_of_two_sections(tmp_path):
    with pytest.raises(ValueError, match="name one of them"):
        robot.command(["--run", str(tmp_path)])
