"""A run from folder to result: what it writes, and that nothing is lost on the way."""

import csv
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import LOOPS, write_data

import worldloom
from oracles import guess
from worldloom import suites
from worldloom.training.config import make_config, read_header
from worldloom.training.run import load, read_config, run_folder, train

pytestmark = pytest.mark.usefixtures("compiled_once")
GRID = suites.suite("grid")


def assert_same_state(a: Path, b: Path) -> None:
    """The newest checkpoints of two runs are the same to the bit."""
    one, other = (worldloom.load(folder).trainer for folder in (a, b))
    assert one.iteration == other.iteration
    flat, _ = jax.tree_util.tree_flatten_with_path(one.state())
    for (path, x), y in zip(flat, jax.tree.leaves(other.state()), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y, jax.tree_util.keystr(path))


def timeless(rows: list[dict]) -> list[dict]:
    clocks = ("seconds", "eval_seconds")
    return [{n: v for n, v in row.items() if n not in clocks} for row in rows]


def read_csv(path: Path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def copied(finished_run, tmp_path):
    """The finished run in a folder that may be changed."""
    return Path(shutil.copytree(finished_run, tmp_path / "copied"))


# What is written ---------------------------------------------------------------------------------


def test_a_notebook_shows_the_report_of_a_run_or_its_scores(copied):
    run = worldloom.load(copied)
    report = html.escape(run.report().read_text())
    assert run._repr_html_().startswith(f'<iframe srcdoc="{report}"')
    (copied / "report.html").unlink()
    run.evaluation = run.evaluate(2)
    shown = run._repr_html_()
    assert shown.startswith(f"<pre>{html.escape(str(copied))}")
    assert all(html.escape(name) in shown for name in run.evaluation.lines())


def test_a_world_is_shown_in_one_line():
    shown = repr(worldloom.make("treasurehunt", num_agents=3))
    assert shown.startswith("treasurehunt(observation=Box(")
    assert shown.endswith("action=Discrete(4), num_agents=3, horizon=50)")
    assert "\n" not in shown


def test_a_run_folder_holds_what_happened(finished_run):
    found = {path.name for path in finished_run.iterdir()}
    assert found == {
        "config.json", "metrics.jsonl", "eval.jsonl", "turns.csv", "timing.json", "checkpoints",
        "report.html", "eval.gif", "training-000000060.gif", "training-000000120.gif",
    }  # fmt: skip
    assert {p.name for p in (finished_run / "checkpoints").iterdir()} == {"4", "6"}


def test_config_json_says_what_ran_and_where(finished_run, tiny):
    about = json.loads((finished_run / "config.json").read_text())
    assert set(about) == {
        "format", "suite", "command", "config", "hash", "steps_per_iteration",
        "references", "turn_order", "versions", "machine", "sha256",
    }  # fmt: skip
    assert (about["format"], about["suite"]) == (2, "grid")
    random = about["references"]["random play"]
    assert np.isfinite([random["mean"], random["stderr"]]).all()
    assert random["episodes"] == 4
    assert "scores" not in random, "single episodes"
    assert about["command"] == "worldloom train"
    assert about["hash"] == tiny().fingerprint()
    assert about["steps_per_iteration"] == 20
    assert {"python", "jax", "numpy", "worldloom"} <= set(about["versions"])
    assert about["machine"]["cores"] == os.cpu_count()
    assert read_config(finished_run, GRID) == tiny(record_every=60)


def test_metrics_have_a_row_for_each_iteration(finished_run, read_rows):
    rows = read_rows(finished_run / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["steps"] for row in rows] == [20, 40, 60, 80, 100, 120]
    assert [row["epsilon"] for row in rows] == pytest.approx([0.8**n for n in range(6)])
    seconds = [row["seconds"] for row in rows]
    assert sorted(seconds) == seconds
    for row in rows:
        assert row["return"] == pytest.approx(sum(row["agent_returns"]), abs=1e-4)
        assert row["loss"] == pytest.approx(np.mean(row["agent_loss"]), rel=1e-5)
        assert len(row["agent_returns"]) == 2
        assert row["grad_norm"] > 0
        assert np.isfinite(row["q_mean"])


def test_evaluations_come_when_they_are_due(finished_run, read_rows):
    rows = read_rows(finished_run / "eval.jsonl")
    assert [(row["iteration"], row["steps"]) for row in rows] == [(2, 40), (4, 80), (6, 120)]
    for row in rows:
        assert row["episodes"] == len(row["scores"]) == 4
        assert row["mean"] == pytest.approx(np.mean(row["scores"]), abs=1e-3)
        assert row["mean"] == pytest.approx(sum(row["agents"]), abs=1e-3)


@pytest.mark.slow
def test_python_goes_on_with_a_run_as_the_command_does(finished_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished_run, folder)
    before = worldloom.load(folder).steps
    run = worldloom.resume(folder, steps=before + 40, report=False)
    assert run.steps == before + 40
    with pytest.raises(ValueError, match="was trained with other settings"):
        worldloom.resume(folder, seed=5)


def test_metrics_can_be_a_data_frame(finished_run):
    pandas = pytest.importorskip("pandas")
    run = worldloom.load(finished_run)
    metrics, frame = run.metrics(), run.dataframe()
    assert isinstance(frame, pandas.DataFrame)
    np.testing.assert_array_equal(frame["return"], metrics["return"])
    np.testing.assert_array_equal(frame["agent_returns_1"], metrics["agent_returns"][:, 1])


def test_tables_add_up_to_the_metrics(finished_run, read_rows):
    metrics = read_rows(finished_run / "metrics.jsonl")
    turns = read_csv(finished_run / "turns.csv")
    assert list(turns[0]) == ["iteration", "turn", "agent", "reward"]
    assert len(turns) == 6 * 10 * 2
    paid = np.zeros((6, 2))
    for row in turns:
        paid[int(row["iteration"]) - 1, int(row["agent"])] += float(row["reward"])
    expected = [row["agent_returns"] for row in metrics]
    np.testing.assert_allclose(paid, expected, rtol=1e-4, atol=1e-4)


def test_timing_keeps_compiling_training_and_evaluation_apart(finished_run):
    timing = json.loads((finished_run / "timing.json").read_text())
    assert (timing["iterations"], timing["steps"]) == (6, 120)
    assert all(timing[name] > 0 for name in ("compile_seconds", "train_seconds", "eval_seconds"))
    rate = timing["steps"] / timing["train_seconds"]
    assert timing["steps_per_second"] == pytest.approx(rate, rel=0.05)


def test_films_show_the_training_and_the_trained(finished_run):
    from PIL import Image

    for name in ("training-000000060.gif", "training-000000120.gif", "eval.gif"):
        with Image.open(finished_run / name) as film:
            assert film.n_frames == 11, "ten turns and the end"
    page = (finished_run / "report.html").read_text()
    assert page.count("data:image/gif") >= 2


@pytest.mark.parametrize(
    ("env", "label"),
    [
        ("treasurehunt", "treasurehunt"),
        ("worlds/meadow.yaml", "meadow"),
        ("own/hunt.py:make", "hunt"),
        ("own/hunt.v2.py", "hunt.v2"),
        ("gymnax:CartPole-v1", "gymnax-CartPole-v1"),
    ],
)
def test_the_name_of_a_run_says_what_ran_and_is_never_taken(tiny, tmp_path, env, label):
    config = make_config(GRID, {"env": env, "seed": 7})
    first = run_folder(tmp_path, config)
    assert first.name.startswith(f"{label}-iqn-s7-")
    first.mkdir()
    assert not run_folder(tmp_path, config).exists()


# Resuming ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_two_parts(tiny, tmp_path_factory):
    """Three iterations, and three more in a second run; no pictures."""
    folder = tmp_path_factory.mktemp("runs") / "parts"
    train(GRID, tiny(steps=60), folder, report=False)
    between = json.loads((folder / "timing.json").read_text())
    result = train(GRID, tiny(), folder, resume=True, report=False)
    return folder, between, result


def test_a_resumed_run_ends_with_the_same_bits(in_two_parts, finished_run):
    assert_same_state(in_two_parts[0], finished_run)


def test_a_resumed_run_repeats_and_misses_no_row(in_two_parts, finished_run, read_rows):
    folder = in_two_parts[0]
    assert (folder / "turns.csv").read_text() == (finished_run / "turns.csv").read_text()
    rows = timeless(read_rows(folder / "metrics.jsonl"))
    assert rows == timeless(read_rows(finished_run / "metrics.jsonl"))
    scores = timeless(read_rows(folder / "eval.jsonl"))
    assert [row["iteration"] for row in scores] == [2, 3, 4, 6]  # 3 was the end of the first part
    del scores[1]
    assert scores == timeless(read_rows(finished_run / "eval.jsonl"))


def test_the_clock_goes_on_when_a_run_is_resumed(in_two_parts, read_rows):
    folder, between, result = in_two_parts
    seconds = [row["seconds"] for row in read_rows(folder / "metrics.jsonl")]
    assert sorted(seconds) == seconds
    assert result.train_seconds > between["train_seconds"]
    assert result.eval_seconds > between["eval_seconds"]
    assert json.loads((folder / "timing.json").read_text())["iterations"] == 6


LONG = ("turns, centralised critic", "turns, a team", "turns, one network for all")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in LOOPS]
)
def test_every_loop_resumes_to_the_bit(name, tmp_path, monkeypatch, read_rows):
    from worldloom.training.loops import make_trainer, off_policy

    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data.npz")
    suite, given = suites.suite(LOOPS[name][0]), LOOPS[name][1]
    if "gymnax" in given["env"]:
        pytest.importorskip("gymnax", reason="needs worldloom[gymnax]")
    monkeypatch.setattr(off_policy, "STEPS_PER_ITERATION", 32)
    given = given | {"chunk": 2, "eval_every": 0, "eval_episodes": 2, "record_every": 0}
    config = make_config(suite, given)
    each = make_trainer(config, suite.problem(config, None)).steps_per_iteration

    def settings(iterations):
        return make_config(suite, given | {"steps": iterations * each})

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(suite, settings(5), whole, report=False)
    train(suite, settings(3), parts, report=False)
    run = train(suite, settings(5), parts, resume=True, report=False)
    assert (run.iteration, run.steps) == (5, 5 * each)
    assert np.isfinite(run.evaluation.mean)
    assert_same_state(whole, parts)
    rows = timeless(read_rows(parts / "metrics.jsonl"))
    assert rows == timeless(read_rows(whole / "metrics.jsonl"))
    assert [row["steps"] for row in rows] == [n * each for n in range(1, 6)]


def test_evaluation_and_pictures_do_not_disturb_training(tiny, finished_run, tmp_path):
    # The finished run evaluated three times and was filmed three times.
    quiet = tmp_path / "quiet"
    train(GRID, tiny(eval_every=0, checkpoint_every=0), quiet, report=False)
    assert_same_state(quiet, finished_run)


def test_a_finished_run_has_nothing_left_to_do(copied, tiny, contents):
    before = contents(copied)
    result = train(GRID, tiny(record_every=60), copied, resume=True, report=False)
    after = contents(copied)
    assert not result.interrupted
    assert result.evaluation is not None
    score = json.loads((copied / "eval.jsonl").read_text().splitlines()[-1])["mean"]
    assert result.evaluation.mean == pytest.approx(score)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"config.json"}  # the command is now another


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"was trained with other settings \(seed\)"),
        ({"algo": "dqn"}, "learns with iqn; to use dqn, start a new run"),
        ({"world": {"num_agents": 3}}, r"other settings \(world\.num_agents\)"),
        ({"iqn": {"gamma": 0.5}}, r"other settings \(iqn\.gamma\)"),
        ({"mode": "jax_parallel"}, r"other settings \(mode\)"),
        ({"steps": 80}, "is at step 120 already; steps=80 is behind it"),
    ],
)
def test_a_run_is_resumed_with_its_own_settings_only(copied, tiny, changes, message, contents):
    before = contents(copied)
    with pytest.raises(ValueError, match=message):
        train(GRID, tiny(**changes), copied, resume=True)
    assert contents(copied) == before


def test_what_is_newer_than_a_run_is_as_its_algorithm_has_it_by_itself(copied):
    """Not as the suite has it now: the run began without it."""
    path = copied / "config.json"
    header = json.loads(path.read_text())
    del header["sha256"]  # else the run would say that it was changed
    header["config"] |= {"env": "gymnax:CartPole-v1", "algo": "dqn", "dqn": {"gamma": 0.5}}
    path.write_text(json.dumps(header))
    kept = read_header(copied)["config"]["dqn"]
    assert (kept["gamma"], kept["loss"], kept["epsilon_steps"]) == (0.5, "huber", 0)


def test_a_folder_with_something_in_it_is_not_overwritten(finished_run, tiny, contents):
    before = contents(finished_run)
    with pytest.raises(ValueError, match="already exists and is not empty; choose another, or res"):
        train(GRID, tiny(), finished_run)
    assert contents(finished_run) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iqn": {"buffer_size": 5}}, "buffer_size=5 cannot hold"),
        ({"world": {"num_agents": 99}}, "num_agents=99 does not fit"),
        ({"algo": "sac"}, "sac needs continuous actions, .* are discrete; use .*iqn"),
        ({"algo": "iql"}, "iql needs continuous actions"),
        (
            {"algo": "bc"},
            r"bc learns from logged data, and none are named .*; use dqn, iqn",
        ),
    ],
)
def test_what_cannot_be_trained_leaves_no_folder_behind(tiny, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(GRID, tiny(**changes), tmp_path / "new")
    assert not (tmp_path / "new").exists()


# A run that is over ------------------------------------------------------------------------------


def test_a_loaded_run_acts_and_is_scored(finished_run):
    run = worldloom.load(finished_run)
    assert (run.iteration, run.steps) == (6, 120)
    env = run.problem.env
    _, first = jax.jit(env.reset)(jax.random.key(0), env.default_params())
    actions = run.act(first.obs)
    assert actions.shape == (2,)
    key = jax.random.key(1)
    for agent in range(2):
        params = jax.tree.map(lambda x, agent=agent: x[agent], run.agents)
        alone = run.trainer.act(params, first.obs[agent : agent + 1], key, explore=0.0)
        assert int(actions[agent]) == int(alone[0])
    scored = run.evaluate(4, seed=5)
    assert scored.agent_scores.shape == (4, 2)
    assert worldloom.evaluate(finished_run, 4, seed=5).mean == scored.mean
    for wrong, message in (({"seed": -1}, "seed=-1"), ({"episodes": 0}, "episodes=0; evaluate at")):
        with pytest.raises(ValueError, match=message):
            run.evaluate(**wrong)


@pytest.mark.parametrize(
    ("env", "world"), [("treasurehunt", {"horizon": 10}), (f"{guess.__file__}:make", {})]
)
def test_exploration_falls_with_the_steps_of_every_loop(tmp_path, env, world):
    options = {"epsilon_steps": 4096, "hidden": (8,), "batch_size": 4, "gradient_steps": 1}
    run = worldloom.train(
        env, algo="dqn", steps=3000, num_worlds=16, eval_episodes=1, world=world, dqn=options,
        report=False, out=tmp_path / "run",
    )  # fmt: skip
    metrics = run.metrics()
    explored = metrics["epsilon" if "epsilon" in metrics else "explore"]
    assert explored[0] > explored[-1] > 0.05
    assert run.exploration == pytest.approx(explored[-1], rel=1e-5)
    per_iteration = run.steps / run.iteration
    fall = (explored[0] - explored[-1]) / (len(explored) - 1)
    assert fall == pytest.approx(0.95 * per_iteration / 4096, rel=1e-3)


def test_a_key_of_either_kind_makes_agents_explore_as_much_as_in_training(finished_run):
    run = worldloom.load(finished_run)
    assert run.exploration == pytest.approx(0.8**5)  # of the last iteration that was played
    obs = np.zeros((2, *run.problem.env.spec.observation.shape), np.int8)
    greedy = run.act(obs).tolist()
    drawn = [run.act(obs, jax.random.key(n)).tolist() for n in range(40)]
    assert drawn == [run.act(obs, jax.random.PRNGKey(n)).tolist() for n in range(40)]
    same = np.mean([a == b for draw in drawn for a, b in zip(draw, greedy, strict=True)])
    assert 0.55 < same < 0.95  # 1 - epsilon + epsilon / actions is 0.75


def test_a_loaded_run_is_what_was_trained(in_two_parts):
    folder, _, trained = in_two_parts
    loaded = load(GRID, folder)
    for a, b in zip(jax.tree.leaves(loaded.agents), jax.tree.leaves(trained.agents), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.config == trained.config
    assert loaded.metrics().keys() == trained.metrics().keys()
    same = ("train_seconds", "eval_seconds", "iterations", "steps", "steps_per_second")
    for name in same:
        assert loaded.timing()[name] == pytest.approx(trained.timing()[name], rel=0.01, abs=1e-3), (
            name
        )


# Ends before the end -----------------------------------------------------------------------------

COMMAND = (
    "treasurehunt --world.height 6 --world.width 6 --world.num-agents 2 --world.horizon 10 "
    "--world.spawn-prob 0.1 --num-worlds 2 --chunk 2 --eval-every 40 --eval-episodes 4 "
    "--checkpoint-every 40 --record-every 0 --iqn.hidden 16 --iqn.num-quantiles 4 "
    "--iqn.act-quantiles 4 --iqn.batch-size 8 --iqn.gradient-steps 2 --iqn.buffer-size 66 "
    "--iqn.epsilon-decay 0.2 --no-report --steps 2e6"
)  # what `tiny` says, and far too long


def start_training(out: Path) -> tuple[subprocess.Popen, Path]:
    """A training in another process, once it has written some rows; and its folder."""
    command = [sys.executable, "-m", "worldloom", "train", *COMMAND.split(), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < limit:
        found = list(out.glob("*/metrics.jsonl"))
        if found and found[0].read_text().count("\n") >= 12:
            return process, found[0].parent
        time.sleep(0.01)
    process.kill()
    raise AssertionError(f"the training wrote nothing: {process.communicate()[1][-2000:]}")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run ended by kill -9, as it was left."""
    process, folder = start_training(tmp_path_factory.mktemp("killed"))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return folder


@pytest.mark.slow
def test_a_killed_run_loses_at_most_what_followed_its_last_checkpoint(killed, tiny, tmp_path):
    folder = Path(shutil.copytree(killed, tmp_path / "copied"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    played = sum(1 for line in lines if line.endswith("}"))
    kept = load(GRID, folder).iteration
    assert played - kept <= 2 + 2  # a checkpoint period, and the chunk that was being played

    end = kept + 3
    assert train(GRID, tiny(steps=20 * end), folder, resume=True, report=False).iteration == end
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(1, end + 1))
    played = [int(row["iteration"]) for row in read_csv(folder / "turns.csv")]
    assert played == [n for n in range(1, end + 1) for _ in range(20)]
    evals = (folder / "eval.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in evals] == [*range(2, end, 2), end]


@pytest.mark.slow
def test_another_process_plays_the_same_run(killed, finished_run, read_rows):
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    rows = timeless([json.loads(line) for line in lines[:6]])
    assert rows == timeless(read_rows(finished_run / "metrics.jsonl"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_a_run_cleanly_and_say_how_to_go_on(tmp_path, tiny, number):
    process, folder = start_training(tmp_path)
    second = [sys.executable, "-m", "worldloom", "train", "--resume", str(folder)]
    refused = subprocess.run(second, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"is being trained by process {process.pid};" in refused.stderr
    assert refused.stderr.count("\n") == 1
    process.send_signal(number)
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 130
    assert "stopping after this chunk" in err
    assert "Traceback" not in err
    assert f"worldloom train --resume {folder}" in out
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = load(GRID, folder).iteration
    assert kept == len(rows), "nothing that was played is lost"
    steps = 20 * (kept + 2)
    assert train(GRID, tiny(steps=steps), folder, resume=True, report=False).steps == steps


@pytest.mark.slow
def test_a_signal_is_heard_while_modules_are_imported(tmp_path):
    """Also by packages that take any error for one that is missing; at once, and without noise."""
    slow = """
try:
    print("importing", flush=True)
    import time
    time.sleep(3000)
except BaseException:
    pass
"""
    (tmp_path / "slow_world.py").write_text(slow + "make = None\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-m", "worldloom", "train", "slow_world.py:make"]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        assert process.communicate(timeout=1200)[1] == "worldloom train: stopped at once\n"
        assert process.returncode == 130


@pytest.mark.slow
def test_a_full_disk_is_one_line(finished_run, tmp_path):
    """A limit on the size of files stands in for it: some checkpoints fit, and some metrics."""
    kept = [finished_run / "config.json", *(finished_run / "checkpoints").rglob("*")]
    most = max(path.stat().st_size for path in kept if path.is_file()) + 1000
    limited = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); "
        "from worldloom.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", limited, "train", *COMMAND.split(), "--out", str(tmp_path)]
    no_programs = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1000"}  # they would not fit
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=1200, env=os.environ | no_programs
    )
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert len(ended.stderr) < 300 + 2 * len(str(tmp_path))
    assert "File too large" in ended.stderr, ended.stderr
    (folder,) = tmp_path.iterdir()
    (told,) = re.findall(r"keeps its checkpoint of step ([\d,]+): make room", ended.stderr)
    assert load(GRID, folder).steps == int(told.replace(",", ""))
