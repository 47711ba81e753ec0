"""The tutorial's way: from a CSV file that nobody prepared to a policy that is served and audited.

As the page has it, names and units included, but for fewer rows and updates.
"""

import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import jax
import numpy as np
import pytest

import worldloom
from worldloom.cli.main import main
from worldloom.replay import dataset_files
from worldloom.suites.plant.studio import PlantSession

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[3] / "docs" / "plant-from-logs.md").read_text()
BLOCK = re.compile(r"^```(python|py|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ worldloom (.+?)$", re.MULTILINE)
ASKED = re.compile(r"^\$ curl .*?-d '(.*?)'$", re.MULTILINE | re.DOTALL)
SMALL = {
    "steps": 20,
    "eval_every": 0,
    "checkpoint_every": 0,
    "ope_updates": 20,
    "model_updates": 200,
    "iql": {"hidden": (8, 8), "batch_size": 16, "updates_per_iteration": 10},
}
FLAGS = (
    "--steps 20 --eval-every 0 --checkpoint-every 0 --ope-updates 20 --model-updates 200 "
    "--iql.hidden 8 8 --iql.batch-size 16 --iql.updates-per-iteration 10"
)


def blocks(kind):
    return [code for language, code in BLOCK.findall(PAGE) if language == kind]


def commands(name):
    return [line for line in COMMAND.findall(PAGE) if line.startswith(name)]


def call(line):
    words = [path for word in shlex.split(line) for path in (sorted(glob.glob(word)) or [word])]
    assert main(words) == 0, line


@pytest.fixture(scope="module")
def here(tmp_path_factory, compiled_once):
    """A folder with log.csv and rig.yaml, and a run that the command line has trained."""
    folder = tmp_path_factory.mktemp("rig")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "neorl2"
        patch.setenv("WORLDLOOM_NEORL2", os.environ.get("WORLDLOOM_NEORL2", str(beside)))
        (making,) = blocks("python")
        exec(making.replace("20_000", "1_500"), {})
        (described,) = blocks("yaml")
        (proposing,) = commands("data describe")
        call(proposing)
        assert "# guess" in Path("rig.yaml").read_text()
        Path("rig.yaml").write_text(described)
        (training,) = commands("train")
        call(f"{training} {FLAGS}")
        yield folder


@pytest.fixture
def run(here, monkeypatch):
    monkeypatch.chdir(here)
    return worldloom.load(glob.glob("runs/rig-iql-*")[0])


def test_a_run_holds_all_that_it_needs(run, here, tmp_path):
    about = json.loads((run.folder / "config.json").read_text())
    assert re.fullmatch(r"rig@[0-9a-f]{12}", about["config"]["env"])
    assert about["simulator"] is False
    names = {"world.yaml", "data.npz", "model.npz", "constraints.yaml", "ope.json", "report.html"}
    assert names <= {path.name for path in run.folder.iterdir()}
    assert not (run.folder / "trajectories.npz").exists()
    assert (run.folder / "world.yaml").read_text() == (here / "rig.yaml").read_text()
    moved = shutil.copytree(run.folder, tmp_path / "elsewhere")
    away = worldloom.load(moved)
    obs = np.asarray(run.problem.data().rows.obs[:5])
    np.testing.assert_array_equal(away.act(obs), run.act(obs))
    assert main(["train", "--resume", str(moved), "--steps", "30"]) == 0
    assert main(["report", str(moved)]) == 0
    (moved / "world.yaml").write_text((moved / "world.yaml").read_text() + "# mended\n")
    with pytest.raises(ValueError, match="the file was changed; put it back"):
        worldloom.load(moved)


def test_rows_are_in_the_descriptions_units(run):
    rows = dataset_files.load(run.folder / "data.npz").rows
    assert np.abs(rows.obs[:, :2]).max() < 2.5  # m, where the file has mm
    assert np.abs(rows.action).max() <= 1.0
    off = np.abs(rows.next_obs[:, :2] - rows.next_obs[:, 4:]) + 0.01
    np.testing.assert_allclose(rows.reward, -np.log(off).sum(1), rtol=1e-3, atol=1e-3)


def test_nothing_pretends_to_have_a_true_score(run):
    row = json.loads((run.folder / "eval.jsonl").read_text().splitlines()[-1])
    assert row["mean"] == row["estimate"]["low"] <= row["estimate"]["value"]
    assert {"bare", "filtered", "score"}.isdisjoint(row)
    assert "true_return" not in json.loads((run.folder / "ope.json").read_text())
    page = (run.folder / "report.html").read_text()
    assert "There is no simulator of this plant" in page
    assert "truth inside" not in page


def test_python_trains_what_the_command_line_does(run, here):
    again = worldloom.train(
        "rig.yaml", dataset="log.csv", algo="iql", out=here / "again", report=False, **SMALL
    )
    obs = np.asarray(run.problem.data().rows.obs[:50])
    np.testing.assert_array_equal(again.act(obs), run.act(obs))
    assert again.config.env == run.config.env


def test_what_only_a_simulator_has_is_refused_in_one_line(run, here, capsys):
    for ask in (
        lambda: worldloom.train("rig.yaml", dataset="log.csv", algo="ppo"),
        lambda: worldloom.train("rig.yaml", algo="iql"),
        lambda: PlantSession(run).reset(0),
    ):
        with pytest.raises(ValueError, match="is known from its log alone") as refusal:
            ask()
        assert "\n" not in str(refusal.value)
    assert main(["eval", str(run.folder), "--record", "x.npz"]) == 2
    assert "there is no simulator to play in" in capsys.readouterr().err
    assert not Path("x.npz").exists()


def asked_of(line, body):
    """The answer to a request of a server that the page starts by this line."""
    words = [sorted(glob.glob(word) or [word])[0] for word in shlex.split(line)]
    server = subprocess.Popen(
        [sys.executable, "-m", "worldloom", *words, "--port", "0", "--json", "--deadline", "120"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{url}/act", body.encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.loads(response.read())
    finally:
        server.terminate()
        assert server.wait(300) == 0
        server.stdout.close()


def test_a_policy_looks_on_takes_over_and_is_audited_and_the_truth_is_told(run, capfd):
    (exporting,), (looking_on, taking_over) = commands("export"), commands("serve")
    comparing, verifying = commands("audit")
    call(exporting)
    with_executed, without = ASKED.findall(PAGE)
    seen = asked_of(looking_on, with_executed)
    assert seen["action"] == pytest.approx({"force_1": 3.5, "force_2": -4.0}, abs=1e-5)
    assert set(seen["shadow"]["difference"]) == {"force_1", "force_2"}
    call(comparing)
    assert "1 answers in shadow mode" in capfd.readouterr().out
    answer = asked_of(taking_over, without)  # of a plant that it knows by now
    assert set(answer["action"]) == {"force_1", "force_2"}
    assert all(-30.0 <= force <= 30.0 for force in answer["action"].values())
    assert "barrier:right_1" in answer["margins"]
    call(verifying)
    call(f"audit replay {run.folder}/audit.jsonl {run.folder}/bundle")
    truth = blocks("py")[-1].replace("episodes=64", "episodes=2")
    exec(truth, {})
    assert "in truth" in capfd.readouterr().out
    assert jax.tree.leaves(run.evaluator.constraints.model)[0].shape[0] == 5  # members
