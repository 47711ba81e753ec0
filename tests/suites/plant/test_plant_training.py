"""Learning to control a plant from logged data: runs, resuming, estimates, loading, bad input."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import worldloom
from worldloom.replay import dataset_files
from worldloom.safety import ControlState, initial_memory, safe_policy_execution
from worldloom.suites.plant.evaluate import Trajectories, outcome, read_trajectories
from worldloom.suites.plant.suite import SUITE
from worldloom.training.config import make_config
from worldloom.training.run import train

pytestmark = pytest.mark.usefixtures("compiled_once")

OPTIONS = {"updates_per_iteration": 10, "batch_size": 16, "hidden": (8, 8)}
TINY = {
    "env": "dmsd",
    "algo": "td3bc",
    "data_steps": 600,
    "steps": 40,
    "eval_every": 20,
    "eval_episodes": 3,
    "checkpoint_every": 20,
    "ope_updates": 20,
    "world": {"horizon": 20},
    "td3bc": OPTIONS,
}


def tiny(**changes):
    return make_config(SUITE, TINY | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(SUITE, tiny(), tmp_path_factory.mktemp("plant") / "run", report=False)


def test_a_run_keeps_what_it_learned_from_and_what_came_of_it(finished, read_rows):
    folder = finished.folder
    names = {
        "config.json",
        "data.npz",
        "constraints.yaml",
        "metrics.jsonl",
        "eval.jsonl",
        "ope.json",
        "trajectories.npz",
        "timing.json",
        "checkpoints",
    }
    assert names <= {path.name for path in folder.iterdir()}
    kept = json.loads((folder / "config.json").read_text())
    assert kept["data"]["digest"] == finished.problem.data().digest
    assert dataset_files.load(folder / "data.npz").digest == kept["data"]["digest"]
    assert make_config(SUITE, kept["config"]) == tiny()
    rows = read_rows(folder / "eval.jsonl")
    assert [row["steps"] for row in rows] == [20, 40]
    assert rows[-1]["mean"] == rows[-1]["filtered"]["return"] == finished.evaluation.mean


def test_defaults_are_those_of_offline_learning_and_of_online_learning():
    offline = make_config(SUITE, {"env": "reactor"})
    assert (offline.algo, offline.steps, offline.eval_every, offline.chunk) == (
        "iql",
        50_000,
        10_000,
        1,
    )
    assert (offline.hyper.batch_size, offline.hyper.updates_per_iteration) == (256, 1000)
    assert offline.hyper.hidden == (256, 256)
    for algo in ("ppo", "sac", "td3"):
        online = make_config(SUITE, {"env": "reactor", "algo": algo})
        assert (online.num_worlds, online.hyper.normalise_observations) == (64, True)


def test_off_policy_estimates_stand_beside_the_truth(finished):
    ope = json.loads((finished.folder / "ope.json").read_text())
    assert ope["true_return"] == pytest.approx(finished.evaluation.bare.discounted.mean())
    assert (ope["iteration"], ope["steps"]) == (4, 40)
    assert ope["fqe_drift"] > 0.0  # 20 updates are far too few
    assert ope["doubts"]
    methods = [estimate["method"] for estimate in ope["estimates"]]
    assert methods[:3] == ["all evidence", "learned models of the plant", "fitted Q evaluation"]
    assert "importance" in methods[3]  # scripted controllers say how likely their actions were
    for estimate in ope["estimates"][:3]:
        assert estimate["low"] <= estimate["value"] <= estimate["high"]
    assert ope["estimates"][3]["low"] is None  # of fewer than 80 effective episodes


def test_resuming_is_exact_to_the_bit(finished, tmp_path):
    folder = tmp_path / "halves"
    train(SUITE, tiny(steps=20, ope_updates=0), folder, report=False)
    assert not (folder / "ope.json").exists()
    resumed = train(SUITE, tiny(ope_updates=0), folder, resume=True, report=False)
    whole, halves = (jax.tree.leaves(run.trainer.state()) for run in (finished, resumed))
    for a, b in zip(whole, halves, strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_other_constraints_need_another_run(finished, tmp_path):
    """A run goes on with the file it keeps: a new one would be ignored in silence."""
    other = tiny(steps=50, constraints=str(tmp_path / "other.yaml"))
    with pytest.raises(ValueError, match=r"other settings \(constraints\)"):
        train(SUITE, other, finished.folder, resume=True)


def test_a_loaded_run_acts_as_the_trained_one(finished):
    loaded = worldloom.load(finished.folder)
    data = loaded.problem.data()
    obs = data.rows.obs[:5]
    action = loaded.act(obs)
    assert action.shape == (5, 2)
    policy = finished.trainer.loop.agent.policy(finished.trainer.run.learner, data)
    expected = policy.apply(policy.params, data.normalise(obs)).clip(-1.0, 1.0)
    np.testing.assert_array_equal(action, expected)
    again, same = (loaded.evaluate(episodes=2, seed=3).to_dict() for _ in range(2))
    assert again == same


def test_either_kind_of_key_evaluates_alike(finished):
    new, old = (
        finished.evaluator(finished.agents, key)
        for key in (jax.random.key(5), jax.random.PRNGKey(5))
    )
    np.testing.assert_array_equal(new.bare.returns, old.bare.returns)


def test_what_is_evaluated_filtered_is_what_the_filter_executes(finished):
    """Step by step, outside of the compiled evaluation."""
    kept = read_trajectories(finished.folder, "filtered")
    policy, constraints = finished.agents, finished.evaluator.constraints
    memory = initial_memory(constraints, jnp.zeros(2))
    execute = jax.jit(safe_policy_execution)
    for t in range(5):
        state = ControlState(jnp.asarray(kept.obs[t, 0]), memory)
        action, report = execute(policy, state, constraints, jax.random.key(0))
        np.testing.assert_allclose(action, kept.action[t, 0], atol=1e-5)
        assert bool(report.intervened) == bool(kept.intervened[t, 0])
        memory = report.memory


def test_scores_are_lines_for_people(finished):
    lines = finished.evaluation.lines()
    assert lines["return, bare"].endswith("(s.e.)")
    assert lines["limits, filtered"].startswith(("crossed: ", "never crossed"))
    assert "emergency actions" in lines["filter"]
    assert "as NeoRL-2 has it" in lines["normalised score"]


def test_steps_after_an_episodes_end_count_for_nothing():
    alive = np.array([[True, True], [True, False]])
    trajectories = Trajectories(
        alive=alive,
        reward=np.ones((2, 2)),
        margins=np.array([[[1.0], [2.0]], [[-1.0], [-9.0]]]),
        obs=np.zeros((2, 2, 1)),
        action=np.zeros((2, 2, 1)),
        intervened=np.array([[False, False], [True, True]]),
        emergency=np.zeros((2, 2), bool),
    )
    stats = outcome(trajectories, gamma=0.5)
    np.testing.assert_array_equal(stats.returns, [2.0, 1.0])
    np.testing.assert_array_equal(stats.discounted, [1.5, 1.0])
    np.testing.assert_array_equal(stats.lengths, [2, 1])
    assert stats.violated == pytest.approx([1 / 3])
    assert stats.worst == pytest.approx([-1.0])
    assert stats.interventions == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo": "iqk"}, "no algorithm 'iqk'"),
        ({"td3bc": {"alpa": 1.0}}, "alpa"),
        ({"td3bc": {"gamma": 2.0}}, "gamma=2"),
        ({"td3bc": {"alpha": "much"}}, "alpha='much'; it must be a number"),
        ({"td3bc": {"alpha": float("nan")}}, "alpha=nan"),
        ({"td3bc": {"hidden": ()}}, "hidden"),
        ({"hyper": {"alpha": 1.0}}, "'hyper' is now td3bc.NAME"),
        ({"judge_updates": 5}, "'judge_updates' is now ope_updates"),
        ({"steps": 0}, "steps=0; it must be at least 1"),
        ({"data_steps": 0}, "data_steps=0; it must be at least 1"),
        ({"data_seed": -1}, "seed=-1"),
        ({"dataset": "medum"}, "dataset='medum'; use expert, medium"),
    ],
)
def test_wrong_settings_are_one_clear_line(changes, words):
    with pytest.raises(ValueError, match=words) as caught:
        tiny(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [{"filter_training": True}, {"init_from": "runs/other"}])
def test_what_is_for_learning_online_is_refused_offline(given, tmp_path):
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} is for algorithms that learn in the plant"):
        train(SUITE, tiny(**given), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_algorithm_that_does_not_fit_is_refused_in_one_line(tmp_path):
    config = make_config(SUITE, {"env": "reactor", "algo": "dqn"})
    with pytest.raises(ValueError, match=r"dqn needs discrete actions.*; use .*iql.*ppo.*sac"):
        train(SUITE, config, tmp_path / "run")


def test_a_world_that_is_no_plant_is_refused(tmp_path):
    with pytest.raises(ValueError, match="tag is not a plant"):
        train(SUITE, tiny(env="tag", world={}), tmp_path / "run")


def test_data_of_another_plant_are_refused_and_nothing_is_written(finished, tmp_path):
    config = tiny(env="water", world={}, dataset=str(finished.folder / "data.npz"))
    with pytest.raises(ValueError, match="6 features and 2 actions are not those of water"):
        train(SUITE, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_broken_constraint_file_stops_before_anything_is_written(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("emergency: {force_1: 290 kPa, force_2: 0 N}\n")
    with pytest.raises(ValueError, match="kPa"):
        train(SUITE, tiny(constraints=str(file)), tmp_path / "run")
    with pytest.raises(ValueError, match=r"gone\.yaml: there is no such file"):
        train(SUITE, tiny(constraints=str(tmp_path / "gone.yaml")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_numbers_of_an_algorithm_are_those_asked_for():
    hyper = tiny(td3bc=OPTIONS | {"alpha": 7.0}).hyper
    assert hyper.hyper.alpha == 7.0
    assert hyper.hidden == (8, 8)
