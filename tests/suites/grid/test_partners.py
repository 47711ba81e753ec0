"""Cross-play: the agents of one run beside those of others."""

import json
import shutil

import jax
import numpy as np
import pytest

import worldloom
from worldloom.cli.main import main
from worldloom.suites.grid.partners import cross_play

pytestmark = pytest.mark.usefixtures("compiled_once")

SMALL = {
    "world": {"height": 5, "width": 5, "num_agents": 3, "horizon": 6},
    "steps": 12, "num_worlds": 2, "eval_every": 0, "record_every": 0, "eval_episodes": 8,
    "report": False,
}  # fmt: skip
PQN = {"algo": "pqn", "pqn": {"hidden": (8,), "num_minibatches": 1}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of three runs: two alike but for seed and rewards, one with critics that see all."""
    folder = tmp_path_factory.mktemp("runs")
    shared = {"world": SMALL["world"] | {"rewards": "shared"}}
    mappo = {"algo": "mappo", "mappo": {"hidden": (8,), "num_minibatches": 1}}
    for name, more in (("a", PQN), ("b", PQN | shared | {"seed": 1}), ("c", mappo)):
        worldloom.train("tag", out=folder / name, **SMALL | more)
    return folder


@pytest.mark.slow
def test_every_run_plays_beside_every_other_and_random_ones(runs):
    loaded = [worldloom.load(runs / name) for name in "abc"]
    found = cross_play(loaded, episodes=8, seed=3)
    assert found.mean.shape == (3, 4)
    assert found.partners == ("a", "b", "c", "random play")
    assert np.isfinite(found.mean).all()
    key = jax.random.key(3)
    for i, run in enumerate(loaded):  # with itself: as it is evaluated
        own = run.evaluate(8, seed=3).agent_scores[:, :2].mean()
        assert found.mean[i, i] == pytest.approx(own, abs=1e-5)
        random = run._evaluator(8).agent_returns(run.agents, key, 2)[:, :2].mean()
        assert found.mean[i, 3] == pytest.approx(random, abs=1e-5)
    assert len({round(float(x), 4) for x in found.mean.ravel()}) > 6, "partners matter"


def test_the_command_prints_and_keeps_the_matrix(runs, capsys):
    assert main(["eval", str(runs / "a"), "--partners", str(runs), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    kept = json.loads((runs / "a" / "crossplay.json").read_text())
    assert printed["mean"] == kept["mean"]
    assert kept["runs"] == ["a", "b", "c"]
    assert "Beside others" in worldloom.load(runs / "a").report().read_text()


def test_partners_of_another_world_are_refused(runs, tmp_path, capsys):
    world = SMALL["world"] | {"it_cost": 0.5}
    worldloom.train("tag", out=tmp_path / "other", **SMALL | PQN | {"world": world})
    assert main(["eval", str(runs / "a"), "--partners", str(tmp_path)]) == 2
    assert "was trained in another world" in capsys.readouterr().err
    assert main(["eval", str(runs / "a"), "--partners", str(tmp_path / "other")]) == 2
    assert "was trained in another world" in capsys.readouterr().err
    for name in ("b", "other"):  # among others, those of other worlds and suites are left out
        shutil.copytree((runs if name == "b" else tmp_path) / name, tmp_path / "both" / name)
    (tmp_path / "both/robot").mkdir()
    about = {"suite": "robot", "config": {"env": "biped", "task": "stand"}}
    (tmp_path / "both/robot/config.json").write_text(json.dumps(about))
    assert main(["eval", str(runs / "a"), "--partners", str(tmp_path / "both"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == ["a", "b"]
    (tmp_path / "empty").mkdir()
    assert main(["eval", str(runs / "a"), "--partners", str(tmp_path / "empty")]) == 2
    assert "holds no other run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_partner_that_remembers_plays_beside_one_that_does_not(runs, tmp_path):
    """With itself as it is evaluated: memories of either are its own."""
    gru = {"hidden": (8,), "num_minibatches": 1, "memory": "gru", "memory_units": 4}
    worldloom.train("tag", out=tmp_path / "d", **SMALL | {"algo": "mappo", "mappo": gru})
    loaded = [worldloom.load(folder) for folder in (tmp_path / "d", runs / "a")]
    found = cross_play(loaded, episodes=8, seed=3)
    for i, run in enumerate(loaded):
        own = run.evaluate(8, seed=3).agent_scores[:, :2].mean()
        assert found.mean[i, i] == pytest.approx(own, abs=1e-5)


def test_mixtures_run_from_all_of_the_one_to_all_of_the_other(runs):
    one, other = (worldloom.load(runs / name) for name in "ab")
    found = cross_play([one, other], episodes=8, seed=3)
    assert found.mixed.keys() == {"b", "random play"}
    mixed = found.mixed["b"]
    assert mixed["own"].shape == mixed["theirs"].shape == (3,)
    assert mixed["own"][-1] == pytest.approx(one.evaluate(8, seed=3).agent_scores.mean(), abs=1e-5)
    assert mixed["theirs"][0] == pytest.approx(
        other.evaluate(8, seed=3).agent_scores.mean(), abs=1e-5
    )
    lone = cross_play([one, other], episodes=8, seed=3).to_dict()
    assert json.loads(json.dumps(lone))["mixed"]["b"]["own"] == mixed["own"].tolist()
