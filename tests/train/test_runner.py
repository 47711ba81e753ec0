"""A run from folder to result: what it writes, and that nothing is lost on the way."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.track.checkpoint import Checkpoints
from worldloom.train.build import build_loop
from worldloom.train.load import load_run
from worldloom.train.runner import new_folder, read_config, run

pytestmark = pytest.mark.usefixtures("compiled_once")


def final_state(folder: Path):
    """The newest checkpoint of a run, and its epoch."""
    like = jax.eval_shape(build_loop(read_config(folder)).init, jax.random.key(0))
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        return checkpoints.restore(like), checkpoints.latest
    finally:
        checkpoints.close()


def assert_same_state(a: Path, b: Path) -> None:
    (one, at), (other, also_at) = final_state(a), final_state(b)
    assert at == also_at
    flat, _ = jax.tree_util.tree_flatten_with_path(one)
    for (path, x), y in zip(flat, jax.tree.leaves(other), strict=True):
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


def test_a_run_folder_holds_what_happened(finished_run):
    found = {path.name for path in finished_run.iterdir()}
    assert found == {
        "config.json", "metrics.jsonl", "eval.jsonl", "agents.csv", "turns.csv", "timing.json",
        "checkpoints", "report.html", "eval.gif", "training-epoch-00003.gif",
        "training-epoch-00006.gif",
    }  # fmt: skip
    assert {p.name for p in (finished_run / "checkpoints").iterdir()} == {"4", "6"}


def test_config_json_says_what_ran_and_where(finished_run, tiny):
    about = json.loads((finished_run / "config.json").read_text())
    assert set(about) == {
        "worldloom", "command", "config", "hash", "reference_scores", "versions", "machine",
    }  # fmt: skip
    assert np.isfinite(about["reference_scores"]["random play"])
    assert about["command"] == "worldloom train"
    assert about["hash"] == tiny().fingerprint()
    assert {"python", "jax", "numpy", "worldloom"} <= set(about["versions"])
    assert about["machine"]["cores"] == os.cpu_count()
    assert read_config(finished_run) == tiny(record_period=3)


def test_metrics_have_a_row_for_each_epoch(finished_run, read_rows):
    rows = read_rows(finished_run / "metrics.jsonl")
    assert [row["epoch"] for row in rows] == list(range(6))
    assert [row["epsilon"] for row in rows] == pytest.approx([0.8**n for n in range(6)])
    seconds = [row["seconds"] for row in rows]
    assert sorted(seconds) == seconds
    for row in rows:
        assert row["score"] == pytest.approx(sum(row["rewards"]), abs=1e-4)
        assert row["loss"] == pytest.approx(np.mean(row["losses"]), rel=1e-5)
        assert len(row["rewards"]) == 2
        assert row["grad_norm"] > 0
        assert np.isfinite(row["q_mean"])


def test_evaluations_come_when_they_are_due(finished_run, read_rows):
    rows = read_rows(finished_run / "eval.jsonl")
    assert [row["epoch"] for row in rows] == [2, 4, 6]
    for row in rows:
        assert row["episodes"] == len(row["scores"]) == 4
        assert row["mean"] == pytest.approx(np.mean(row["scores"]))
        assert row["mean"] == pytest.approx(sum(row["agents"]), abs=1e-3)


def test_tables_add_up_to_the_metrics(finished_run, read_rows):
    metrics = read_rows(finished_run / "metrics.jsonl")
    agents = read_csv(finished_run / "agents.csv")
    turns = read_csv(finished_run / "turns.csv")
    assert list(agents[0]) == ["epoch", "agent", "reward", "loss", "grad_norm", "q_mean"]
    assert list(turns[0]) == ["epoch", "turn", "agent", "reward"]
    assert len(agents) == 6 * 2
    assert len(turns) == 6 * 10 * 2
    paid = np.zeros((6, 2))
    for row in turns:
        paid[int(row["epoch"]), int(row["agent"])] += float(row["reward"])
    rewards = [[row["rewards"] for row in metrics]]
    np.testing.assert_allclose(paid, rewards[0], rtol=1e-4, atol=1e-4)
    assert [float(row["reward"]) for row in agents] == pytest.approx(paid.ravel(), rel=1e-4)
    assert [float(r["loss"]) for r in agents[2:4]] == pytest.approx(metrics[1]["losses"])


def test_timing_keeps_compiling_training_and_evaluation_apart(finished_run):
    timing = json.loads((finished_run / "timing.json").read_text())
    assert timing["mode"] == "jax_fused"
    assert timing["epochs"] == 6
    assert all(timing[name] > 0 for name in ("compile_seconds", "train_seconds", "eval_seconds"))
    rate = timing["epochs"] / timing["train_seconds"]
    assert timing["epochs_per_second"] == pytest.approx(rate, rel=0.05)
    assert timing["agent_steps_per_second"] == pytest.approx(rate * 10 * 2 * 2, rel=0.05)


def test_films_show_the_training_and_the_trained(finished_run):
    from PIL import Image

    for name in ("training-epoch-00003.gif", "training-epoch-00006.gif", "eval.gif"):
        with Image.open(finished_run / name) as film:
            assert film.n_frames == 11, "ten turns and the end"
    page = (finished_run / "report.html").read_text()
    assert page.count("data:image/gif") >= 2


def test_training_films_show_the_epsilon_of_their_epoch(finished_run, tiny):
    from worldloom.report.hooks import epsilon_of

    class At:
        config = tiny()
        epoch = 3

    assert epsilon_of(At()) == pytest.approx(0.8**2)  # of epoch 2, the last one played


def test_the_name_of_a_run_says_what_ran_and_is_never_taken(tiny, tmp_path):
    first = new_folder(tmp_path, tiny(mode="jax_parallel", seed=7))
    assert first.name.startswith("treasurehunt-iqn-jax_parallel-s7-")
    first.mkdir()
    assert not new_folder(tmp_path, tiny(mode="jax_parallel", seed=7)).exists()


# Resuming ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_two_parts(tiny, tmp_path_factory):
    """Three epochs, and three more in a second run; no pictures."""
    folder = tmp_path_factory.mktemp("runs") / "parts"
    run(tiny(epochs=3), folder)
    between = json.loads((folder / "timing.json").read_text())
    result = run(tiny(epochs=6), folder, resume=True)
    return folder, between, result


def test_a_resumed_run_is_the_uninterrupted_run_to_the_bit(in_two_parts, finished_run):
    assert_same_state(in_two_parts[0], finished_run)


def test_a_resumed_run_repeats_and_misses_no_row(in_two_parts, finished_run, read_rows):
    folder = in_two_parts[0]
    for name in ("agents.csv", "turns.csv"):
        assert (folder / name).read_text() == (finished_run / name).read_text(), name
    rows = timeless(read_rows(folder / "metrics.jsonl"))
    assert rows == timeless(read_rows(finished_run / "metrics.jsonl"))
    scores = timeless(read_rows(folder / "eval.jsonl"))
    assert [row["epoch"] for row in scores] == [2, 3, 4, 6]  # 3 was the end of the first part
    del scores[1]
    assert scores == timeless(read_rows(finished_run / "eval.jsonl"))


def test_the_clock_goes_on_when_a_run_is_resumed(in_two_parts, read_rows):
    folder, between, result = in_two_parts
    seconds = [row["seconds"] for row in read_rows(folder / "metrics.jsonl")]
    assert sorted(seconds) == seconds
    assert result.train_seconds > between["train_seconds"]
    assert result.eval_seconds > between["eval_seconds"]
    assert json.loads((folder / "timing.json").read_text())["epochs"] == 6


def test_evaluation_and_pictures_do_not_disturb_training(tiny, finished_run, tmp_path):
    # The finished run evaluated three times and was filmed three times.
    quiet = tmp_path / "quiet"
    run(tiny(eval_every=0, checkpoint_every=6), quiet)
    assert_same_state(quiet, finished_run)


def test_a_finished_run_has_nothing_left_to_do(copied, tiny, contents):
    before = contents(copied)
    result = run(tiny(record_period=3), copied, resume=True)
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
        ({"seed": 1}, "was trained with other settings \\(seed\\)"),
        ({"algo": "dqn"}, "other settings \\(algo, dqn, iqn\\)"),
        ({"world": {"num_agents": 3}}, "other settings \\(world\\)"),
        ({"epochs": 4}, "is at epoch 6 already; epochs=4 is behind it"),
    ],
)
def test_a_run_is_resumed_with_its_own_settings_only(copied, tiny, changes, message, contents):
    before = contents(copied)
    with pytest.raises(ValueError, match=message):
        run(tiny(**changes), copied, resume=True)
    assert contents(copied) == before


def test_a_folder_with_something_in_it_is_not_overwritten(finished_run, tiny, contents):
    before = contents(finished_run)
    with pytest.raises(ValueError, match="already exists and is not empty; choose another, or res"):
        run(tiny(), finished_run)
    assert contents(finished_run) == before


def test_wrong_settings_leave_no_folder_behind(tiny, tmp_path):
    with pytest.raises(ValueError, match="memory_rows=5"):
        run(tiny(memory_rows=5), tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Ends before the end -----------------------------------------------------------------------------

COMMAND = (
    "--world height=6 width=6 num_agents=2 horizon=10 spawn_prob=0.1 --num-worlds 2 "
    "--updates-per-epoch 2 --memory-rows 33 --chunk 2 --eval-every 2 --eval-episodes 4 "
    "--checkpoint-every 2 --record-period 0 --epsilon-decay 0.2 --iqn.hidden 16 "
    "--iqn.num-quantiles 4 --iqn.act-quantiles 4 --iqn.batch-size 8 --no-report --epochs 100000"
)  # what `tiny` says, and far too long


def start_training(out: Path) -> tuple[subprocess.Popen, Path]:
    """A training in another process, once it has written some rows; and its folder."""
    code = "import sys; from worldloom.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "train", *COMMAND.split(), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
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


def test_a_killed_run_loses_at_most_what_followed_its_last_checkpoint(killed, tiny, tmp_path):
    folder = Path(shutil.copytree(killed, tmp_path / "copied"))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    played = sum(1 for line in lines if line.endswith("}"))
    _, kept = final_state(folder)
    assert played - kept <= 2 + 2  # a checkpoint period, and the chunk that was being played

    wanted = replace(tiny(), epochs=kept + 3)
    assert run(wanted, folder, resume=True).epoch == kept + 3
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(kept + 3))
    for name, each in (("agents.csv", 2), ("turns.csv", 20)):
        epochs = [int(row["epoch"]) for row in read_csv(folder / name)]
        assert epochs == [n for n in range(kept + 3) for _ in range(each)], name
    evaluated = [json.loads(x)["epoch"] for x in (folder / "eval.jsonl").read_text().splitlines()]
    assert evaluated == [*range(2, kept + 3, 2), kept + 3]


def test_another_process_plays_the_same_run(killed, finished_run, read_rows):
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    rows = timeless([json.loads(line) for line in lines[:6]])
    assert rows == timeless(read_rows(finished_run / "metrics.jsonl"))


def test_ctrl_c_ends_a_run_cleanly_and_says_how_to_go_on(tmp_path, tiny):
    process, folder = start_training(tmp_path)
    process.send_signal(signal.SIGINT)
    told, complained = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping after this chunk" in complained
    assert "Traceback" not in complained
    assert f"worldloom train --resume {folder}" in told
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    _, kept = final_state(folder)
    assert kept == len(rows), "nothing that was played is lost"
    assert run(replace(tiny(), epochs=kept + 2), folder, resume=True).epoch == kept + 2


# A run that is over ------------------------------------------------------------------------------


def test_a_loaded_run_acts_and_is_scored(finished_run):
    loaded = load_run(finished_run)
    assert loaded.epoch == 6
    _, first = jax.jit(loaded.env.reset)(jax.random.key(0), loaded.env.default_params())
    actions = loaded.act(first.obs)
    assert actions.shape == (2,)
    policy = loaded.policy()
    alone = [int(policy(i, first.obs[i : i + 1], jax.random.key(1))[0]) for i in range(2)]
    assert actions.tolist() == alone
    scored = loaded.evaluate(4, seed=5)
    assert scored.agent_scores.shape == (4, 2)
    with pytest.raises(ValueError, match="seed=-1"):
        loaded.evaluate(4, seed=-1)


def test_a_loaded_run_is_what_was_trained(finished_run):
    trained, _ = final_state(finished_run)
    for a, b in zip(
        jax.tree.leaves(load_run(finished_run).agents),
        jax.tree.leaves(trained.learner.params),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_a_torch_run_can_be_scored_but_not_resumed(tiny, tmp_path):
    pytest.importorskip("torch", reason="the PyTorch baseline needs torch")
    iqn = {"noisy": True, "legacy": True, "levels": "own", "act_levels": "random",
           "max_grad_norm": 1.0, "sync_epochs": 200}  # fmt: skip
    config = tiny({"legacy": True}, iqn, mode="torch_sequential", num_worlds=1,
                  updates_per_epoch=1, epochs=4)  # fmt: skip
    folder = tmp_path / "torch"
    result = run(config, folder)
    assert result.evaluation is not None
    loaded = load_run(folder)
    assert loaded.epoch == 4
    pairs = zip(*map(jax.tree.leaves, (loaded.agents, result.trainer.agents())), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    with pytest.raises(ValueError, match="a torch_sequential run cannot be resumed"):
        run(replace(config, epochs=6), folder, resume=True)
