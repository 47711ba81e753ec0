"""Learning to control a plant from logged data: runs, resuming, judgement, loading, bad input."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import worldloom
from worldloom.replay import dataset_files
from worldloom.safety import ControlState, initial_memory, safe_policy_execution
from worldloom.train import plant
from worldloom.train.plant_config import PlantTrainConfig, from_dict, load_data, make_algorithm
from worldloom.train.plant_evaluate import Course, outcome

pytestmark = pytest.mark.usefixtures("compiled_once")

TINY = PlantTrainConfig(
    env="reactor", algo="td3bc", dataset="medium", data_steps=600, epochs=4, updates_per_epoch=10,
    batch_size=16, hidden=(8, 8), eval_every=2, eval_episodes=3, checkpoint_every=2,
    judge_updates=20, world={"horizon": 20},
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plant") / "run"
    return plant.run(TINY, folder)


def test_a_run_keeps_what_it_learned_from_and_what_came_of_it(finished):
    folder = finished.folder
    names = {"config.json", "data.npz", "constraints.yaml", "metrics.jsonl", "eval.jsonl",
             "judgement.json", "course.npz", "timing.json", "checkpoints"}  # fmt: skip
    assert names <= {path.name for path in folder.iterdir()}
    kept = json.loads((folder / "config.json").read_text())
    assert kept["data"]["digest"] == finished.trainer.data.digest
    assert dataset_files.load(folder / "data.npz").digest == kept["data"]["digest"]
    assert from_dict(kept["config"]) == TINY
    rows = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [2, 4]


def test_off_policy_estimates_stand_beside_the_truth(finished):
    judged = json.loads((finished.folder / "judgement.json").read_text())
    assert judged["true_return"] == pytest.approx(finished.evaluation.bare.discounted.mean())
    assert judged["fqe_drift"] > 0.0  # 20 updates are far too few
    assert len(judged["estimates"]) == 2  # scripted controllers say how likely their actions were
    for estimate in judged["estimates"]:
        assert estimate["low"] <= estimate["value"] <= estimate["high"]


def test_resuming_is_exact_to_the_bit(finished, tmp_path):
    folder = tmp_path / "halves"
    plant.run(replace(TINY, epochs=2), folder)
    resumed = plant.run(TINY, folder, resume=True)
    whole, halves = (jax.tree.leaves(run.trainer.state()) for run in (finished, resumed))
    for a, b in zip(whole, halves, strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_other_constraints_need_another_run(finished, tmp_path):
    """A run goes on with the file it keeps: a new one would be ignored in silence."""
    other = replace(TINY, epochs=5, constraints=str(tmp_path / "other.yaml"))
    with pytest.raises(ValueError, match=r"other settings \(constraints\)"):
        plant.run(other, finished.folder, resume=True)


def test_a_loaded_run_acts_as_the_trained_one(finished):
    loaded = worldloom.load(finished.folder)
    obs = finished.trainer.data.rows.obs[:5]
    action = loaded.act(obs)
    assert action.shape == (5, 2)
    np.testing.assert_array_equal(
        action, finished.trainer.algorithm.policy(finished.trainer.run.learner, loaded.data).apply(
            finished.trainer.agents().params, loaded.data.normalise(obs)
        ).clip(-1.0, 1.0)
    )  # fmt: skip
    again, same = (loaded.evaluate(episodes=2, seed=3).to_dict() for _ in range(2))
    assert again == same


def test_what_is_evaluated_filtered_is_what_the_filter_executes(finished):
    """Step by step, outside of the compiled evaluation."""
    course = plant.read_course(finished.folder, "filtered")
    policy, constraints = finished.trainer.agents(), finished.evaluator.constraints
    memory = initial_memory(constraints, jnp.zeros(2))
    execute = jax.jit(safe_policy_execution)
    for t in range(5):
        state = ControlState(jnp.asarray(course.obs[t, 0]), memory)
        action, report = execute(policy, state, constraints, jax.random.key(0))
        np.testing.assert_allclose(action, course.action[t, 0], atol=1e-5)
        assert bool(report.intervened) == bool(course.intervened[t, 0])
        memory = report.memory


def test_steps_after_an_episodes_end_count_for_nothing():
    alive = np.array([[True, True], [True, False]])
    course = Course(
        alive=alive, reward=np.ones((2, 2)), margins=np.array([[[1.0], [2.0]], [[-1.0], [-9.0]]]),
        obs=np.zeros((2, 2, 1)), action=np.zeros((2, 2, 1)),
        intervened=np.array([[False, False], [True, True]]), emergency=np.zeros((2, 2), bool),
    )  # fmt: skip
    found = outcome(course, gamma=0.5)
    np.testing.assert_array_equal(found.returns, [2.0, 1.0])
    np.testing.assert_array_equal(found.discounted, [1.5, 1.0])
    np.testing.assert_array_equal(found.lengths, [2, 1])
    assert found.violated == pytest.approx([1 / 3])
    assert found.worst == pytest.approx([-1.0])
    assert found.interventions == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "reactr"}, "no plant 'reactr'; did you mean"),
        ({"algo": "iqk"}, "algo='iqk' is not known"),
        ({"hyper": {"alpa": 1.0}}, "td3bc has no number 'alpa'"),
        ({"hyper": {"gamma": 2.0}}, "gamma=2"),
        ({"hyper": {"alpha": "much"}}, "td3bc: alpha='much'; it must be a finite number"),
        ({"hyper": {"alpha": float("nan")}}, "td3bc: alpha=nan"),
        ({"epochs": 0}, "epochs=0; it must be at least 1"),
        ({"hidden": ()}, "hidden"),
    ],
)
def test_wrong_settings_are_one_clear_line(changes, words):
    with pytest.raises(ValueError, match=words) as caught:
        replace(TINY, **changes)
    assert "\n" not in str(caught.value)


def test_data_of_another_plant_are_refused_and_nothing_is_written(finished, tmp_path):
    data = replace(TINY, env="water", world={}, dataset=str(finished.folder / "data.npz"))
    with pytest.raises(ValueError, match="5 signals and 2 actuators are not those of water"):
        plant.run(data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"dataset='medum'; use expert, medium"):
        load_data(replace(TINY, dataset="medum"))


def test_a_broken_constraint_file_stops_before_anything_is_written(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text("emergency: {jacket_setpoint: 290 kPa, feed: 100 L/min}\n")
    with pytest.raises(ValueError, match="kPa"):
        plant.run(replace(TINY, constraints=str(file)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"gone\.yaml: there is no such file"):
        plant.run(replace(TINY, constraints=str(tmp_path / "gone.yaml")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_numbers_of_an_algorithm_are_those_asked_for():
    made = make_algorithm(replace(TINY, hyper={"alpha": 7.0}))
    assert made.config.hyper.alpha == 7.0
    assert made.config.hidden == (8, 8)
