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

import worldloom
from worldloom import suites
from worldloom.suites.robot import kinematics, motion, problem
from worldloom.suites.robot.evaluate import BINS, RobotEvaluator, push_ladder
from worldloom.suites.robot.features import features, profile
from worldloom.suites.robot.model import ASSETS, biped
from worldloom.suites.robot.world import world
from worldloom.training import run as runs
from worldloom.training.checkpoint import Checkpoints
from worldloom.training.config import make_config
from worldloom.training.loops import make_trainer
from worldloom.training.sinks import read_json_lines

SUITE = suites.suite("robot")
TINY = {"unroll_length": 3, "num_epochs": 2, "num_minibatches": 2, "hidden": (8,)}
STEPS = 4 * 3  # of an iteration
WORLD = {"horizon": 5, "randomise": 1.0, "noise": 1.0}
OFF_POLICY = {
    "hidden": (8,),
    "batch_size": 8,
    "buffer_size": 512,
    "learning_starts": 300,
    "unroll_length": 64,
}


def tiny(**changes):
    """Settings of a run of seconds."""
    settings = {
        "env": "biped",
        "task": "stand",
        "num_worlds": 4,
        "steps": 4 * STEPS,
        "chunk": 2,
        "eval_every": 0,
        "eval_episodes": 2,
        "checkpoint_every": 2 * STEPS,
        "world": WORLD,
    }
    if changes.get("algo", "ppo") == "ppo":
        settings["ppo"] = TINY
    return make_config(SUITE, settings | changes)


def trainer_of(config):
    return make_trainer(config, problem.make_problem(config))


def on_two_devices(code, *arguments):
    """`code` in a process of its own in which a processor is two devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def assert_resumes_to_the_bit(config, folder, chunk=2):
    """Two chunks at once are two chunks with a checkpoint between them."""
    trainer = trainer_of(config)
    trainer.advance(chunk)
    with closing(Checkpoints(folder)) as checkpoints:
        checkpoints.save(chunk, trainer.state())
        at_once = trainer.advance(chunk)
        expected = jax.tree.map(np.asarray, trainer.state().learner)
        trainer.load(checkpoints.restore(trainer.template()))
    assert trainer.iteration == chunk
    later = trainer.advance(chunk)
    for one, other in zip(
        jax.tree.leaves((expected, at_once)),
        jax.tree.leaves((trainer.state().learner, later)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    return later


@pytest.mark.parametrize("level", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_training_goes_on_to_the_bit(level, tmp_path):
    assert_resumes_to_the_bit(tiny(level=level), tmp_path)


def test_levels_of_uneven_ground_and_the_past_go_on_to_the_bit(tmp_path):
    ground = WORLD | {"ground": "mixed", "levels": (1, 3), "history": 2}
    later = assert_resumes_to_the_bit(tiny(task="joystick", world=ground), tmp_path)
    assert np.isfinite(later["level"]).any()


def test_level_four_goes_on_to_the_bit(finished):
    trainer, rows = finished.trainer, list(read_json_lines(finished.folder / "metrics.jsonl"))
    expected = jax.tree.leaves(jax.device_get(_without_keys(trainer.state())))
    with closing(Checkpoints(finished.folder / "checkpoints")) as checkpoints:
        trainer.load(checkpoints.restore(trainer.template(), 2))
    assert trainer.iteration == 2
    later = trainer.advance(2)
    for one, other in zip(expected, jax.tree.leaves(_without_keys(trainer.state())), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("loss", "entropy", "kl", "return"):
        np.testing.assert_array_equal(later[name], np.array([row[name] for row in rows[2:]], float))


def _without_keys(state):
    return state.replace(key=jax.random.key_data(state.key))


@pytest.mark.parametrize("algo", ["sac", pytest.param("td3", marks=pytest.mark.slow)])
def test_off_policy_algorithms_train_and_go_on_to_the_bit(algo, tmp_path):
    config = tiny(algo=algo, **{algo: OFF_POLICY})
    metrics = assert_resumes_to_the_bit(config, tmp_path, chunk=1)
    assert metrics["finite"].all()
    assert np.isfinite(metrics["critic_loss"]).all()
    assert metrics["length"] == 5.0


@pytest.mark.slow
def test_level_two_goes_on_from_what_brax_restores(tmp_path):
    config = tiny(level=2, steps=2 * STEPS)
    first = runs.train(SUITE, config, tmp_path / "run", report=False)
    kept = jax.tree.map(np.asarray, first.agents)
    loaded = worldloom.load(tmp_path / "run")
    for one, other in zip(jax.tree.leaves(kept), jax.tree.leaves(loaded.agents), strict=True):
        np.testing.assert_array_equal(one, other)
    more = replace(config, steps=4 * STEPS)
    resumed = runs.train(SUITE, more, tmp_path / "run", resume=True, report=False)
    assert (resumed.iteration, resumed.steps) == (4, 4 * STEPS)
    changed = jax.tree.map(
        lambda one, other: (one != np.asarray(other)).any(), kept, resumed.agents
    )
    assert any(jax.tree.leaves(changed))
    rows = list(read_json_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    assert all(np.isfinite(row["loss"]) for row in rows)
    # Of episodes of five steps none has ended after the first three, of each time Brax is called.
    assert [row["return"] is None for row in rows] == [True, False, True, False]
    for row in rows[1::2]:
        assert row["return"] > 0.0
        assert (row["length"], row["episodes"]) == (5.0, 2)  # of 12 steps
        assert (row["fell"], row["diverged"]) == (0.0, 0.0)


BRAX_ON_TWO_DEVICES = """
    import sys
    import jax
    import worldloom
    sys.path.insert(0, "tests/suites/robot")
    from test_robot_training import STEPS, SUITE, runs, tiny
    config = tiny(trainer="brax", devices=2, steps=2 * STEPS)
    run = runs.train(SUITE, config, sys.argv[1], report=False)
    assert (run.iteration, jax.device_count()) == (2, 2)
    assert worldloom.load(run.folder).evaluate().lengths.shape == (2,)
"""


@pytest.mark.slow
def test_level_four_trains_with_brax_on_two_devices_too(tmp_path):
    done = on_two_devices(BRAX_ON_TWO_DEVICES, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    rows = list(read_json_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [row["length"] for row in rows] == [None, 5.0]
    assert np.isfinite([row["loss"] for row in rows]).all()


def test_level_two_refuses_what_brax_does_not_have():
    config = tiny(level=2, ppo=TINY | {"anneal_updates": 5})
    with pytest.raises(ValueError, match="anneal_updates=5 is an option that Brax's PPO"):
        trainer_of(config)


def test_a_call_of_brax_lasts_until_there_is_something_to_keep(tmp_path):
    """Each of its calls compiles: `chunk` is not for it."""
    config = tiny(level=2, steps=400 * STEPS, checkpoint_every=100 * STEPS)
    run = runs._open(SUITE, config, tmp_path, existing=False)
    assert run.plan.next_stop(0) == 100


def test_level_one_starts_where_the_other_levels_do():
    config = tiny(level=1, task="walk", world={"horizon": 5, "starts": "reference"})
    made = problem.make_problem(config)
    trainer = make_trainer(config, made)
    table = np.asarray(made.env.base.params.starts.physics.reading.qpos)
    begun = trainer.run.worlds.inner.physics.reading.qpos
    assert all((table == row).all(-1).any() for row in begun)


@pytest.mark.slow
def test_level_three_never_leaves_its_program():
    trainer = trainer_of(tiny(level=3))
    traced = jax.make_jaxpr(trainer.loop.iterate)(trainer.run, *trainer.shared)
    assert "callback" not in str(traced)
    assert problem.make_problem(tiny(level=3)).pure
    trainer = trainer_of(tiny(level=4, physics="c"))
    assert "pure_callback" in str(
        jax.make_jaxpr(trainer.loop.iterate)(trainer.run, *trainer.shared)
    )  # so the word above is the right one to look for
    assert not problem.make_problem(tiny(level=4, physics="c")).pure


@pytest.mark.slow
def test_two_processes_are_one_run(tmp_path):
    """Each with a device of its own, over gloo: one folder, one checkpoint, and it can go on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = (
        f"--task walk --steps {2 * 32} --chunk 1 --checkpoint-every 32 --eval-every 0 "
        "--eval-episodes 2 --num-worlds 8 --ppo.unroll-length 4 --ppo.num-epochs 1 "
        "--ppo.num-minibatches 2 --ppo.hidden 8 --world.horizon 6 --no-report"
    )
    joined = ["--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id"]
    start = [sys.executable, "-m", "worldloom", "train", "biped", *settings.split()]
    start += ["--out", str(tmp_path), *joined]
    both = [
        subprocess.Popen([*start, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(2)
    ]
    said = [process.communicate(timeout=1200) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    (folder,) = tmp_path.iterdir()
    assert [row["iteration"] for row in read_json_lines(folder / "metrics.jsonl")] == [1, 2]
    kept = json.loads((folder / "config.json").read_text())["config"]
    assert kept["devices"] == 2
    assert worldloom.load(folder).iteration == 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "stand"
    return runs.train(SUITE, tiny(), folder, report=False)


def test_a_run_leaves_what_is_needed_to_read_it(finished):
    folder = finished.folder
    kept = json.loads((folder / "config.json").read_text())
    assert make_config(SUITE, kept["config"]) == finished.config
    assert (kept["engine"], kept["task"]) == ("CEngine", "stand")
    row = list(read_json_lines(folder / "metrics.jsonl"))[-1]
    assert {"return", "length", "fell", "error", "diverged", "kl"} <= set(row)
    scores = list(read_json_lines(folder / "eval.jsonl"))[-1]
    assert {"survived", "tracked", "speed_error", "good", "gait", "mean", "terms"} <= set(scores)
    assert set(scores["terms"]) == set(finished.evaluator.world.task.terms)
    ladder = json.loads((folder / "ladder.json").read_text())
    assert [rung["newtons"] for rung in ladder][:2] == [5.0, 6.0]
    assert all(0.0 <= rung["held"] <= 1.0 for rung in ladder)
    lines = finished.evaluation.lines()
    assert lines["stays up"] == "2 of 2 episodes to the end"
    assert lines["pushed by 5 N for 200 ms"] == "100% stay up; 100% if it only holds its pose"
    assert "goes where asked" not in lines  # nobody asked


def test_a_run_that_is_over_can_be_loaded_and_asked(finished):
    loaded = worldloom.load(finished.folder)
    assert (loaded.iteration, loaded.steps) == (4, 4 * STEPS)
    env = loaded.problem.env
    _, first = env.reset(jax.random.key(0), env.default_params())
    obs = jax.tree.map(lambda x: x[None], first.obs)
    action = loaded.act(obs)
    assert action.shape == (1, 13)
    np.testing.assert_array_equal(action, finished.act(obs))
    # Keys of both kinds draw the same action, which is not the mode.
    drawn = [loaded.act(obs, make(1)) for make in (jax.random.key, jax.random.PRNGKey)]
    np.testing.assert_array_equal(*drawn)
    assert (drawn[0] != action).all()
    assert loaded.evaluate(seed=3).lengths.shape == (2,)
    assert [rung.newtons for rung in push_ladder(loaded, 1)][:2] == [5.0, 6.0]


def test_what_is_no_robot_is_not_pushed(finished):
    other = replace(finished, suite=suites.suite("grid"))
    with pytest.raises(ValueError, match="is a run of biped, which is no robot to push"):
        push_ladder(other)


def test_other_settings_do_not_resume_a_run(finished):
    with pytest.raises(ValueError, match="seed"):
        runs.train(SUITE, tiny(seed=1), finished.folder, resume=True)


# A user's own files ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of a user's robot, whose legs are not built as the computed gait has them."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(ASSETS / "biped.xml", folder / "own.xml")
    names = yaml.safe_load((ASSETS / "biped.yaml").read_text())
    names["legs"] = [[pitch, roll, *rest] for roll, pitch, *rest in names["legs"]]
    (folder / "own.yaml").write_text(yaml.safe_dump(names))
    settings = {"steps": STEPS, "chunk": 1, "checkpoint_every": STEPS, "world": {"horizon": 5}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = tiny(level=1, task="walk", robot="own.xml", **settings)
        return runs.train(SUITE, config, folder / "run", report=False)


def changed(config, **settings):
    """The same settings but for some of the suite's own."""
    return replace(config, settings=replace(config.settings, **settings))


def test_a_robot_without_a_computed_gait_may_learn_to_walk(own):
    (scores,) = read_json_lines(own.folder / "eval.jsonl")
    assert scores["gait_distance"] is None
    amp = replace(own.config.settings.amp, weight=0.1)
    with pytest.raises(ValueError, match=r"do not hang straight down.*\(--motion\)"):
        problem.make_problem(changed(own.config, level=4, amp=amp))
    with pytest.raises(ValueError, match=r"do not hang straight down.*\(--motion\)"):
        problem.make_env(replace(own.config, world={"starts": "reference"}))


@pytest.mark.parametrize("suffix", [".xml", ".yaml"])
def test_a_run_does_not_go_on_with_a_robot_that_was_edited(own, suffix, contents):
    file = Path(own.config.settings.robot).with_suffix(suffix)  # whole, though typed as own.xml
    kept, before = file.read_text(), contents(own.folder)
    file.write_text(kept.replace("0.8", "0.7"))
    try:
        why = r"trained with another robot: .*own\.xml or its mapping has changed since"
        with pytest.raises(ValueError, match=why):
            worldloom.load(own.folder)
        more = replace(own.config, steps=2 * STEPS)
        with pytest.raises(ValueError, match=why):
            runs.train(SUITE, more, own.folder, resume=True)
    finally:
        file.write_text(kept)
    assert contents(own.folder) == before
    assert worldloom.load(own.folder).iteration == 1


@pytest.fixture
def recorded(own, tmp_path):
    """Settings that name a motion of the user's robot, and the motion."""
    played = motion.realise(biped(), kinematics.synthesise(biped(), 0.25), cycles=1)
    motion.save(tmp_path / "walk.npz", own.problem.env.base.robot, played)
    return changed(own.config, level=4, motion=str(tmp_path / "walk.npz")), played


def test_a_motion_from_a_file_is_the_reference_of_everything(recorded):
    config, played = recorded
    config = replace(config, world={"starts": "reference"})
    config = changed(config, amp=replace(config.settings.amp, weight=0.1))
    made = problem.make_problem(config)
    env = made.env.base
    assert set(np.asarray(env.params.starts.phase)) <= set(played.phase)
    np.testing.assert_array_equal(made.prior.reference, features(np, env.robot, played.reading))
    evaluator = made.make_evaluator(make_trainer(config, made), 2)
    expected = profile(env.robot, played.reading, played.phase, BINS)
    np.testing.assert_array_equal(evaluator._reference, expected)


def test_a_run_does_not_go_on_with_another_motion(recorded):
    config, played = recorded
    before = problem.make_problem(config)
    header = before.about(None)
    before.check_resume(header)
    motion.save(
        config.settings.motion, before.env.base.robot, played.replace(phase=1 - played.phase)
    )
    now = problem.make_problem(config)
    with pytest.raises(ValueError, match=r"another motion: .*walk\.npz has changed since"):
        now.check_resume(header)


def test_a_motion_of_another_robot_ends_a_run_before_anything_is_written(recorded, tmp_path):
    config, played = recorded
    other = replace(biped(), joints=("tail", *biped().joints[1:]))
    motion.save(config.settings.motion, other, played)
    with pytest.raises(ValueError, match=r"walk\.npz is the reference motion of another robot"):
        runs.train(SUITE, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# A user's own worlds -----------------------------------------------------------------------------


def _register(name, make):
    if name not in suites.names():
        worldloom.register(name, make, suite="robot")


def _my_robot(height: float = 0.3, **options):
    """The biped, paid more for its height."""
    return world(task="stand", physics="c", height=height, horizon=5, **options)


def test_a_registered_robot_trains_reports_and_loads(tmp_path):
    _register("my-robot", _my_robot)
    run = worldloom.train(
        "my-robot",
        world={"height": 2.0},
        level=1,
        num_worlds=4,
        steps=2 * STEPS,
        eval_episodes=2,
        ppo=TINY,
        report=False,
        out=tmp_path / "run",
    )
    weights = run.problem.env.base.params.rules.weights
    assert float(weights[run.problem.env.base.task.terms.index("height")]) == 2.0
    assert run.suite.name == "robot"
    page = run.report().read_text()
    assert "my-robot" in page
    assert "stand · level 1 · MuJoCo in a loop" in page
    assert worldloom.load(run.folder).config.world == {"height": 2.0}
    assert json.loads((run.folder / "config.json").read_text())["files"].keys() == {"robot"}


def test_a_registered_robot_has_options_of_its_own():
    _register("my-robot", _my_robot)
    with pytest.raises(ValueError, match="stand has no option 'hight'"):
        problem.make_env(make_config(SUITE, {"env": "my-robot", "world": {"hight": 1.0}}))
    with pytest.raises(ValueError, match="physics='mjx'"):
        problem.make_env(make_config(SUITE, {"env": "my-robot", "level": 3}))


def test_a_registered_world_that_is_no_robot_is_refused():
    _register("no-robot", lambda: suites.make("treasurehunt"))
    with pytest.raises(ValueError, match=r"no-robot: a world of the robot suite is a .*RobotWorld"):
        problem.make_env(make_config(SUITE, {"env": "no-robot"}))


# Levels, settings, devices -----------------------------------------------------------------------


@pytest.mark.slow
def test_level_one_and_level_four_learn_alike_from_the_same_start():
    """Not the same noise, but the same algorithm on the same task: their first updates agree."""
    ppo = TINY | {"unroll_length": 16, "num_minibatches": 4}
    learned = {}
    for level in (1, 4):
        config = tiny(level=level, num_worlds=64, ppo=ppo, world={"horizon": 20})
        metrics = trainer_of(config).advance(3)
        learned[level] = (metrics["entropy"], metrics["value_loss"], metrics["return"][1:])
    for one, other in zip(learned[1], learned[4], strict=True):
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
        ({"trainer": "braks"}, "trainer='braks' is not known; did you mean 'brax'"),
        (
            {"task": "walk", "trainer": "brax", "amp": {"weight": 0.1}},
            "Brax's PPO has no motion priors; leave amp.weight at 0",
        ),
        ({"task": "walk", "algo": "sac", "amp": {"weight": 0.1}}, "sac is none; use --algo ppo"),
        ({"algo": "sac", "level": 1}, "sac at level 1, which is PPO in a loop over MuJoCo"),
        ({"algo": "td3", "trainer": "brax"}, "td3 at level 4, which is Brax's PPO"),
        ({"devices": 0}, "devices=0"),
        ({"physics": "numpy"}, "level 1"),
        ({"ppo": {"activation": "gelu2"}}, "gelu2"),
        ({"world": {"horizon": 0}}, "horizon=0; it must be a whole number from 1 to"),
        ({"world": {"command": 0.2}}, r"command=\(0.2,\); it must be the least and the most"),
        ({"world": {"starts": "hoem"}}, "starts='hoem' is not known; did you mean 'home'"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        problem.check(tiny(**changes))


def test_an_algorithm_that_does_not_fit_is_refused_with_those_that_do(tmp_path):
    config = make_config(SUITE, {"env": "biped", "algo": "dqn"})
    with pytest.raises(ValueError, match=r"dqn needs discrete actions.*use ppo, .*sac.*td3"):
        runs.train(SUITE, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_defaults_are_those_that_learn_to_walk():
    config = make_config(SUITE, {"env": "biped"})
    update = config.num_worlds * config.hyper.unroll_length
    assert (config.algo, config.num_worlds, config.steps) == ("ppo", 512, 400 * update)
    assert (config.eval_every, config.checkpoint_every) == (100 * update, 100 * update)
    assert (config.hyper.hidden, config.hyper.activation) == ((128, 128), "elu")
    assert config.settings.amp.weight == 0.05
    sac = make_config(SUITE, {"env": "biped", "algo": "sac"})
    assert sac.settings.amp.weight == 0.0
    assert sac.hyper.normalise_observations
    assert sac.hyper.hidden == (128, 128)


def test_more_devices_than_there_are_is_an_error_before_anything_is_written(tmp_path):
    many = {"devices": 64, "num_worlds": 512}
    with pytest.raises(ValueError, match="ask for 1 to"):
        runs.train(SUITE, tiny(**many), tmp_path / "run")
    with pytest.raises(ValueError, match="devices=64; this process has"):
        runs.train(SUITE, tiny(**many, trainer="brax"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


DEVICES = """
    import sys
    from dataclasses import replace
    import jax
    import numpy as np
    sys.path.insert(0, "tests/suites/robot")
    from test_robot_training import TINY, tiny, trainer_of
    ppo = TINY | {"unroll_length": 10, "num_minibatches": 4}
    config = tiny(num_worlds=64, ppo=ppo, world={"horizon": 20})
    one, two = trainer_of(config), trainer_of(replace(config, devices=2))
    # What is evaluated must not tie whoever uses it to both devices.
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(two.agents()))
    alone = [one.advance(2), one.advance(2)]
    together = [two.advance(2)]
    one.load(jax.device_put(two.state(), jax.devices()[0]))  # goes on, on fewer devices
    together.append(one.advance(2))
    assert one.iteration == 4
    for ours, theirs in zip(alone, together, strict=True):
        for name in ("entropy", "value_loss", "return"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, err_msg=name)
"""


@pytest.mark.slow
def test_two_devices_learn_as_one_and_one_goes_on_with_what_two_began():
    done = on_two_devices(DEVICES)
    assert done.returncode == 0, done.stderr


READY = {
    "randomise": 1.0, "noise": 1.0, "push_force": (0.0, 8.0),
    "apart": 1.0, "straight": 1.5, "smooth": 0.08,
}  # fmt: skip
NOMINAL = dict.fromkeys(READY) | {"randomise": 0.0, "noise": 0.0}


@pytest.mark.parametrize(
    ("given", "weight", "world"),
    [
        ({}, 0.05, READY),
        ({"task": "walk", "level": 4, "trainer": "own"}, 0.05, READY),
        ({"level": 1}, 0.0, READY),
        ({"level": 2}, 0.0, READY),
        ({"trainer": "brax"}, 0.0, READY),
        ({"algo": "td3"}, 0.0, READY),
        ({"robot": str(ASSETS / "biped.xml")}, 0.0, READY | {"push_force": None}),
        ({"task": "stand"}, 0.0, NOMINAL),
        ({"task": "joystick"}, 0.0, NOMINAL),
        ({"amp": {"weight": 0.0}, "world": {"noise": 0.5, "apart": 2.0}}, 0.0,
         READY | {"noise": 0.5, "apart": 2.0}),
    ],
)  # fmt: skip
def test_a_walk_is_made_ready_for_a_robot_but_for_what_is_asked_otherwise(given, weight, world):
    config = make_config(SUITE, {"env": "biped"} | given)
    assert config.settings.amp.weight == weight
    assert {name: config.world[name] for name in world} == world
    assert make_config(SUITE, config.to_dict()) == config, "as a run goes on"
    problem.check(config)


def test_the_default_walk_has_latency_pushes_and_feet_that_keep_apart():
    env = problem.make_env(make_config(SUITE, {"env": "biped", "world": {"horizon": 5}})).base
    rules, weights = (
        env.params.rules,
        dict(zip(env.task.terms, env.params.rules.weights, strict=True)),
    )
    assert env.randomised
    assert rules.latency.tolist() == [0, 2]
    assert rules.push_force.tolist() == [0.0, 8.0]
    chosen = [float(weights[name]) for name in ("apart", "straight", "smooth")]
    assert chosen == pytest.approx([1.0, 1.5, 0.08])


def test_walks_are_judged_without_the_pushes_of_their_training():
    """Pushed so that all fall, if it were done."""
    made = world(
        task="walk", physics="c", threads=1, horizon=60, still=1.0,
        push_force=(300.0, 300.0), push_pause=(5, 6),
    )  # fmt: skip
    hold = lambda agents, obs, key, *, explore: jax.numpy.zeros((4, 13))  # noqa: E731
    evaluator = RobotEvaluator(made, hold, 4)
    assert not evaluator(None, jax.random.key(0)).fell.any()
    pushed = evaluator._push(None, jax.random.key(0), made.params, False)
    assert (np.asarray(pushed["alive"]) == 0.0).all()
