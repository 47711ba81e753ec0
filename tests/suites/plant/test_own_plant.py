"""A registered plant is trained, evaluated, swept, described, reported and exported like ours."""

import json

import numpy as np
import pytest

import worldloom
from suites.plant import own_plant
from suites.plant.own_plant import make
from worldloom import suites
from worldloom.serving.bundle import load_bundle
from worldloom.suites.plant import data_command
from worldloom.suites.plant.suite import SUITE
from worldloom.training.sweeps.source import Search
from worldloom.training.sweeps.sweep import Place, sweep

pytestmark = pytest.mark.usefixtures("compiled_once")

TINY = {
    "algo": "bc",
    "data_steps": 200,
    "steps": 20,
    "eval_every": 10,
    "eval_episodes": 2,
    "checkpoint_every": 10,
    "ope_updates": 10,
    "world": {"horizon": 10, "area": 8.0},
    "bc": {"updates_per_iteration": 10, "batch_size": 8, "hidden": (8,)},
}


@pytest.fixture(scope="module", autouse=True)
def _registered():
    worldloom.register("mine", make, suite="plant", description="a tank of my own")
    yield
    suites._REGISTERED.pop("mine")


@pytest.fixture(scope="module")
def trained(_registered, tmp_path_factory):
    return worldloom.train("mine", out=tmp_path_factory.mktemp("mine") / "run", **TINY)


def test_it_trains_from_what_its_own_loops_log(trained):
    assert suites.suite_of("mine").name == "plant"
    about = json.loads((trained.folder / "config.json").read_text())
    assert about["data"]["provenance"]["env"] == "mine"
    assert [limit["name"] for limit in about["plant"]["limits"]] == ["overflow", "dry"]
    assert trained.problem.env.default_params().physics.area == 8.0
    assert trained.evaluation.bare.lengths.max() <= 10
    assert json.loads((trained.folder / "ope.json").read_text())["estimates"]


def test_a_file_with_a_plant_in_it_is_a_plant():
    assert suites.suite_of(f"{own_plant.__file__}:make").name == "plant"


def test_its_report_names_its_signals_and_limits(trained):
    page = (trained.folder / "report.html").read_text()
    for words in ("mine</h1>", "overflow: margin, m", "pump, m3/h (actuator)", "From the data"):
        assert words in page, words
    assert "not complete" not in page


def test_it_is_loaded_evaluated_and_exported(trained, tmp_path):
    loaded = worldloom.load(trained.folder)
    again = loaded.evaluate(2, seed=1).to_dict()
    assert again == trained.evaluate(2, seed=1).to_dict()
    folder = loaded.export(tmp_path / "bundle", onnx=False)
    bundle = load_bundle(folder)
    obs = np.float32([2.0, 5.0])
    answer = bundle.act(obs, bundle.initial_memory())
    np.testing.assert_allclose(answer.proposed, loaded.act(obs[None])[0], atol=1e-6)
    assert [signal["name"] for signal in bundle.observation] == ["level", "demand"]
    with pytest.raises(ValueError, match="holds a bundle already; force=True"):
        loaded.export(tmp_path / "bundle", onnx=False)


def test_it_is_swept(tmp_path):
    grid = [("bc.learning_rate", [1e-3, 1e-4])]
    rows, _ = sweep(SUITE, {"env": "mine", **TINY}, grid, Search(seeds=2), Place(tmp_path))
    assert [len(row["scores"]) for row in rows] == [2, 2]
    assert all(np.isfinite(row["mean"]) for row in rows)


def test_its_data_are_made_checked_and_described(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["make", "mine", "--steps", "50", "--out", "a.npz", "--json", "--world", "horizon=10"]
    assert data_command.command(argv) == 0
    assert json.loads(capsys.readouterr().out)["rows"] >= 50
    assert data_command.command(["check", "a.npz", "--env", "mine"]) == 0
    assert data_command.command(["describe", "a.npz"]) == 0
    assert "level [m]" in (tmp_path / "a.html").read_text()


def test_data_that_name_a_file_of_code_do_not_run_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data_command.command(["make", "mine", "--steps", "10", "--out", "a.npz"])
    (tmp_path / "evil.py").write_text("raise SystemExit('run!')")
    with np.load("a.npz") as stored:
        arrays = dict(stored)
    arrays["provenance"] = np.asarray(json.dumps([["env", "evil.py:make"], ["options", "{}"]]))
    np.savez("b.npz", **arrays)
    assert data_command.command(["describe", "b.npz"]) == 0
    assert "obs[0]" in (tmp_path / "b.html").read_text()
