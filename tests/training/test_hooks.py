"""Plain functions and `Hook`s between chunks: what they are given, and how they end a run."""

import inspect
import math
import re

import numpy as np
import pytest

import worldloom
from worldloom.training.driver import Hook
from worldloom.training.run import load, train


def test_a_function_is_called_after_each_chunk_with_steps_and_metrics(counting, tmp_path):
    calls = []
    config = counting.config(steps=50, eval_every=40)
    train(counting.suite, config, tmp_path / "run", hooks=[lambda *given: calls.append(given)])
    assert [steps for steps, _ in calls] == [20, 40, 50], "once a chunk, evaluated or not"
    first, second, third = (metrics for _, metrics in calls)
    assert (first["return"], first["iteration"], third["return"]) == (1.0, 2, 4.0)
    assert type(first["return"]) is float
    np.testing.assert_array_equal(first["agent_returns"], [1.0, 1.5])
    assert "turn_rewards" not in first
    assert math.isnan(first["eval/episode_reward"])
    assert (second["eval/mean"], second["eval/episode_reward"]) == (1.5, 1.5)


def test_a_progress_function_of_brax_works_as_it_is(counting, tmp_path):
    class Score(counting.score):
        def to_dict(self):
            return {"mean": self.mean, "stderr": 0.5, "episodes": 16, "scores": [1.0, 2.0]}

    counting.score = Score
    xs, ys, errors = [], [], []

    def progress(num_steps, metrics):
        xs.append(num_steps)
        ys.append(metrics["eval/episode_reward"])
        errors.append(metrics["eval/episode_reward_std"])

    train(counting.suite, counting.config(), tmp_path / "run", hooks=progress)
    assert (xs, ys, errors) == ([20, 40, 60], [1.5] * 3, [2.0] * 3)


@pytest.mark.parametrize("answer", [True, np.bool_(True)])
def test_a_function_that_returns_true_ends_the_run_with_a_checkpoint(counting, tmp_path, answer):
    config, folder = counting.config(checkpoint_every=0), tmp_path / "run"
    stopped = train(counting.suite, config, folder, hooks=[lambda steps, _: answer])
    assert (stopped.interrupted, stopped.steps) == (True, 20)
    assert load(counting.suite, folder).steps == 20
    again = train(counting.suite, config, folder, resume=True, hooks=[lambda steps, _: steps == 40])
    assert (again.interrupted, again.steps) == (True, 40)


@pytest.mark.parametrize("answer", [None, False, 1, "yes", [3]])
def test_no_other_answer_ends_it(counting, tmp_path, answer):
    done = train(counting.suite, counting.config(), tmp_path / "run", hooks=[lambda *_: answer])
    assert (done.interrupted, done.steps) == (False, 60)


def test_a_hook_may_ask_for_the_end_at_any_occasion(counting, tmp_path):
    class Enough(Hook):
        def on_evaluation(self, run, evaluation):
            run.stop()

    config = counting.config(eval_every=40)
    assert train(counting.suite, config, tmp_path / "run", hooks=[Enough()]).steps == 40


@pytest.mark.parametrize("occasion", ["on_iterations", "on_evaluation", "on_record", "on_chunk"])
def test_what_a_hook_raises_ends_the_run_as_ctrl_c_does_and_is_raised(
    counting, tmp_path, read_rows, occasion
):
    told = []

    def fail(*_):
        told.append(occasion)
        raise RuntimeError("no more ink")

    hook, folder = Hook(), tmp_path / "run"
    setattr(hook, occasion, fail)
    config = counting.config(checkpoint_every=0, record_every=20)
    with pytest.raises(RuntimeError, match="no more ink") as raised:
        train(counting.suite, config, folder, hooks=[hook])
    assert told == [occasion], "and not once more"
    assert raised.value.__notes__ == [f"{folder} keeps its checkpoint of step 20: resume it"]
    assert load(counting.suite, folder).steps == 20
    assert train(counting.suite, config, folder, resume=True).steps == 60
    assert [row["steps"] for row in read_rows(folder / "metrics.jsonl")] == [*range(10, 61, 10)]
    assert [row["steps"] for row in read_rows(folder / "eval.jsonl")] == [20, 40, 60]


def test_the_others_are_told_to_the_end_of_the_chunk_and_closed(counting, tmp_path):
    told = []

    class Other(Hook):
        def on_chunk(self, run):
            told.append(run.steps)

        def close(self):
            told.append("closed")

    def fail(steps, metrics):
        raise KeyError("missing")

    with pytest.raises(KeyError):
        train(counting.suite, counting.config(), tmp_path / "run", hooks=[fail, Other()])
    assert told == [20, "closed"]


class Best(Hook):
    pass


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ([Best], "hooks: Best is a class; give one of its objects, as in Best()"),
        ([lambda metrics: None], "must take two arguments, (steps, metrics)"),
        (["wandb"], "hooks: 'wandb' is no function of (steps, metrics), and no Hook"),
        (3, "hooks=3: give a list of functions of (steps, metrics)"),
    ],
    ids=["a class", "one argument", "a text", "a number"],
)
def test_what_is_no_hook_is_refused_before_anything_is_written(counting, tmp_path, hooks, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(counting.suite, counting.config(), tmp_path / "run", hooks=hooks)
    assert not (tmp_path / "run").exists()


def test_the_public_functions_take_hooks():
    for function in (worldloom.train, worldloom.resume):
        assert "hooks" in inspect.signature(function).parameters
