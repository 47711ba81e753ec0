"""A run on ARC from tasks to folder: what it learns from, how it is scored, what it keeps."""

import csv
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import worldloom
from worldloom.cli.main import main
from worldloom.suites.arc import problem as arc
from worldloom.suites.arc.augmentation import with_copies
from worldloom.suites.arc.environment import NOWHERE
from worldloom.suites.arc.episodes import greedy_editor
from worldloom.suites.arc.evaluate import (
    ArcEvaluation,
    ArcEvaluator,
    honest,
    random_agent,
    references,
)
from worldloom.suites.arc.suite import SUITE
from worldloom.suites.arc.types import PointAction
from worldloom.training import run as runs
from worldloom.training.config import make_config
from worldloom.training.driver import Hook
from worldloom.training.loops import make_trainer

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """Three tasks of 3 x 3 cells: one coloured cell becomes another colour."""
    folder = tmp_path_factory.mktemp("toys")

    def pair(place, before, after):
        cells = np.zeros((2, 9), int)
        cells[:, place] = before, after
        grids = cells.reshape(2, 3, 3).tolist()
        return {"input": grids[0], "output": grids[1]}

    for name, before, after in (("one", 1, 2), ("three", 3, 1), ("two", 2, 0)):
        train = [pair(place, before, after) for place in (0, 4, 8)]
        test = [pair(place, before, after) for place in (2, 6)[: 1 + (name == "one")]]
        (folder / f"{name}.json").write_text(json.dumps({"train": train, "test": test}))
    return folder


SIZES = {
    "ppo": {"unroll_length": 6, "num_epochs": 2, "num_minibatches": 2},
    "pqn": {"unroll_length": 6, "num_epochs": 2, "num_minibatches": 2},
    "dqn": {"unroll_length": 6, "gradient_steps": 2, "batch_size": 16, "buffer_size": 96},
}


@pytest.fixture(scope="module")
def small(toys):
    """small(**changes): settings that compile in seconds and train in a blink."""

    def make(world=None, algo="ppo", **changes):
        settings = {
            "env": "arc",
            "algo": algo,
            "tasks": toys,
            "num_worlds": 8,
            "steps": 288,
            "chunk": 2,
            "eval_every": 96,
            "checkpoint_every": 96,
            "attempts": 2,
            "world": {"max_steps": 5, "operations": (0, 1, 2, 34)} | (world or {}),
            "network": {"channels": 4, "context": 8},
            algo: SIZES.get(algo, {}),
        }
        return make_config(SUITE, settings | changes)

    return make


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    """A run folder with everything in it, and the run. Look, do not touch."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, runs.train(SUITE, small(), folder, command="worldloom train arc")


@pytest.fixture
def copied(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / "copied"))


def leaves(state):
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    for path, leaf in flat:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        yield jax.tree_util.keystr(path), np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_same_state(one, other):
    for (path, x), (_, y) in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(x, y, path)


# What is written ---------------------------------------------------------------------------------


def test_a_run_folder_holds_what_happened(finished, read_rows):
    folder, run = finished
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "tasks.json",
        "metrics.jsonl",
        "eval.jsonl",
        "tasks.csv",
        "timing.json",
        "episodes.json",
        "report.html",
        "checkpoints",
    }
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == list(range(1, 7))
    assert [row["steps"] for row in rows] == [48 * n for n in range(1, 7)]
    assert {"solved", "return", "length", "similarity", "entropy", "kl", "seconds"} <= set(rows[0])
    scores = read_rows(folder / "eval.jsonl")
    assert [(row["iteration"], row["steps"]) for row in scores] == [(2, 96), (4, 192), (6, 288)]
    assert all(row["mean"] == row["demo_pairs"] for row in scores)
    timing = json.loads((folder / "timing.json").read_text())
    assert timing["steps"] == run.steps == 288
    assert timing["steps_per_second"] == pytest.approx(288 / timing["train_seconds"], rel=0.05)
    about = json.loads((folder / "config.json").read_text())
    assert set(about["references"]) == {"random play", "greedy editor"}
    assert runs.read_config(folder, SUITE) == run.config


def test_the_table_of_tasks_adds_up_to_the_rates(finished, read_rows):
    folder, _ = finished
    with (folder / "tasks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows] == ["one", "three", "two"]
    assert [int(row["demos"]) for row in rows] == [3, 3, 3]
    assert [int(row["tests"]) for row in rows] == [2, 1, 1]
    rates = read_rows(folder / "eval.jsonl")[-1]
    for group, total in (("demos", 9), ("tests", 4)):
        solved = sum(int(row[f"{group}_solved"]) for row in rows)
        assert solved / total == pytest.approx(rates[f"{group[:-1]}_pairs"], abs=1e-4)


def test_episodes_lead_from_the_input_to_an_answer(finished):
    folder, run = finished
    for episode in json.loads((folder / "episodes.json").read_text()):
        task = run.evaluator.tasks[episode["task"]]
        kind, number = episode["pair"].split()
        pair = (task.tests if kind == "test" else task.demos)[int(number) - 1]
        assert episode["input"] == pair.input.tolist() == episode["shots"][0]["grid"]
        assert episode["target"] == pair.output.tolist()
        last = episode["shots"][-1]
        assert last["operation"] is None
        if episode["solved"]:
            assert last["grid"] == episode["target"]


def test_the_page_shows_curves_tasks_and_episodes(finished):
    page = (finished[0] / "report.html").read_text()
    for title in ("Learning", "Scores", "Task by task", "Episodes", "Do it again"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("first demonstration of") == 3
    assert "random play" in page
    assert "not complete" not in page


# Compiling and resuming --------------------------------------------------------------------------


def test_any_number_of_iterations_is_one_program(small, finished):
    config, traced = small(), []
    problem = arc.make_problem(config)
    counted = replace(problem, outcomes=lambda info: traced.append(1) or arc.outcomes(info))
    trainer = make_trainer(config, counted)
    assert len(trainer.advance(1)["finite"]) == 1
    assert len(trainer.advance(5)["finite"]) == 5
    assert len(traced) == 1
    assert_same_state(trainer.state(), finished[1].trainer.state())


class Interrupt(Hook):
    """Presses Ctrl-C after the first chunk."""

    def on_iterations(self, run, rows):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def in_two_parts(small, tmp_path_factory):
    """Ended by Ctrl-C after two updates, and taken to the end in a second run that looks less."""
    folder = tmp_path_factory.mktemp("runs") / "parts"
    settings = {"report": False, "hooks": [Interrupt()]}
    first = runs.train(SUITE, small(checkpoint_every=0), folder, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arc, "load_tasks", lambda settings: pytest.fail("the run has its own tasks"))
        config = small(eval_every=0, attempts=0)
        second = runs.train(SUITE, config, folder, resume=True, report=False)
    return folder, first, second


def test_ctrl_c_ends_a_run_after_the_chunk(in_two_parts):
    _, first, second = in_two_parts
    assert first.interrupted
    assert not second.interrupted
    assert second.train_seconds > first.train_seconds
    assert not (first.folder / "episodes.json").exists()


def test_a_resumed_run_is_the_uninterrupted_run_to_the_bit(in_two_parts, finished, read_rows):
    folder, _, second = in_two_parts
    assert_same_state(second.trainer.state(), finished[1].trainer.state())
    rows, others = (read_rows(f / "metrics.jsonl") for f in (folder, finished[0]))
    assert [row | {"seconds": 0} for row in rows] == [row | {"seconds": 0} for row in others]
    assert [row["iteration"] for row in read_rows(folder / "eval.jsonl")] == [2, 6]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["dqn", "pqn"])
def test_a_value_based_run_resumes_to_the_bit(algo, small, tmp_path):
    config = small(algo=algo, eval_every=0)
    settings = {"report": False}
    each = make_trainer(config, arc.make_problem(config)).steps_per_iteration
    config = replace(config, steps=4 * each)
    whole = runs.train(SUITE, config, tmp_path / "whole", **settings)
    first = runs.train(SUITE, replace(config, steps=2 * each), tmp_path / "parts", **settings)
    assert first.iteration == 2
    second = runs.train(SUITE, config, tmp_path / "parts", resume=True, **settings)
    assert_same_state(second.trainer.state(), whole.trainer.state())
    again = worldloom.load(tmp_path / "parts").evaluate()
    assert again.solved.shape == (13,)
    assert again.attempts.shape == (2, 13)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "other settings \\(seed\\)"),
        ({"world": {"max_steps": 9}}, "other settings \\(world.max_steps\\)"),
        ({"steps": 192}, "is at step 288 already; steps=192 is behind it"),
        ({"algo": "random"}, "learns with ppo; to use random, start a new run"),
    ],
)
def test_a_run_is_resumed_with_its_own_settings_only(copied, small, changes, message, contents):
    before = contents(copied)
    with pytest.raises(ValueError, match=message):
        runs.train(SUITE, small(**changes), copied, resume=True)
    assert contents(copied) == before


# What is trained on ------------------------------------------------------------------------------


def test_training_never_starts_from_a_test_pair(small):
    config = small(copies=3)
    env = arc.make_problem(config).env
    rules = env.default_params()
    assert rules.tasks.num_tasks == 4 * 3
    state, _ = jax.jit(jax.vmap(env.reset, (0, None)))(
        jax.random.split(jax.random.key(0), 2000), rules
    )
    task = np.asarray(rules.tasks.task)[state.pair]
    place = np.asarray(state.pair) - np.asarray(rules.tasks.demos_start)[task]
    assert set(place.tolist()) == {0, 1, 2}
    assert set(task.tolist()) == set(range(12)), "copies are trained on too"


def test_copies_follow_the_tasks_themselves(small):
    config = small()
    plain = arc.packed(arc.load_tasks(config.settings))
    more = with_copies(plain, 2, jax.random.key(1))
    count = plain.num_pairs
    np.testing.assert_array_equal(more.grids[:count], plain.grids)
    np.testing.assert_array_equal(more.task[count:] % 3, np.tile(plain.task, 2))
    for start, size in (("demos_start", "demos_count"), ("tests_start", "tests_count")):
        for task in range(9):
            first, pairs = int(getattr(more, start)[task]), int(getattr(more, size)[task])
            assert np.all(more.task[first : first + pairs] == task)
    assert int(more.identity) != int(plain.identity)


# How it is scored --------------------------------------------------------------------------------


def knowing(states, known, key, config, explore):
    """An agent that mends and submits the pairs it knows (P,), and only submits the others."""
    best, _ = greedy_editor(config)(states, (), key)
    sure = known[states.pair]
    return PointAction(
        jnp.where(sure, best.operation, 34),
        jnp.where(sure, best.row, 0),
        jnp.where(sure, best.column, 0),
    )


def tasks_and_rules(config):
    tasks = arc.load_tasks(config.settings)
    return tasks, arc.make_world(config, arc.packed(tasks)).default_params()


@pytest.fixture(scope="module")
def scored(small):
    """scored(known): the evaluation of an agent that knows these of the 13 pairs.

    In order: `one` has demonstrations 0-2 and tests 3-4, `three` 5-7 and 8, `two` 9-11 and 12.
    """
    evaluator = ArcEvaluator(*tasks_and_rules(small()), knowing)

    def evaluate(known) -> ArcEvaluation:
        return evaluator(np.isin(np.arange(13), known), jax.random.key(0))

    return evaluate


def test_demonstrations_and_test_pairs_are_scored_apart(scored):
    rates = scored([0, 1, 2, 5, 12]).to_dict()
    assert rates["demo_pairs"] == pytest.approx(4 / 9, abs=1e-4)
    assert rates["demo_tasks"] == pytest.approx(1 / 3, abs=1e-4)  # `one` alone is whole
    assert rates["test_pairs"] == pytest.approx(1 / 4, abs=1e-4)
    assert rates["test_tasks"] == pytest.approx(1 / 3, abs=1e-4)  # `two` has but one test
    assert scored([3]).to_dict()["test_tasks"] == 0.0  # `one` has two


def test_every_pair_is_played_once_and_only_submissions_count(scored):
    result = scored([0, 2, 4, 8])
    assert np.flatnonzero(result.solved).tolist() == [0, 2, 4, 8]
    assert result.steps.tolist() == [2 if n in (0, 2, 4, 8) else 3 for n in range(13)]


def test_pass_at_k_asks_for_one_success_in_k_attempts():
    attempts = np.array([[1, 0, 0, 0], [0, 1, 0, 0]], bool)
    found = ArcEvaluation(
        ("a", "b"),
        np.array([0, 0, 1, 1]),
        np.array([False, False, False, True]),
        np.zeros(4, bool),
        np.ones(4, int),
        attempts,
        0.0,
    )
    rates = found.rates("demo")
    assert rates["pass_at_1"] == pytest.approx(2 / 6)
    assert rates["pass_at_k"] == pytest.approx(2 / 3)
    assert rates["tasks_pass_at_k"] == pytest.approx(1 / 2)
    assert rates["pairs"] == rates["tasks"] == 0.0
    assert found.rates("test")["pass_at_k"] == 0.0


def test_a_task_without_test_pairs_has_no_share_in_their_rate():
    found = ArcEvaluation(
        ("a", "b"),
        np.array([0, 1, 1]),
        np.array([False, False, True]),
        np.ones(3, bool),
        np.ones(3, int),
        np.zeros((0, 3), bool),
        0.0,
    )
    assert found.rates("test") == {"pairs": 1.0, "tasks": 1.0}
    assert np.isnan(found.solved_tasks("test")).tolist() == [True, False]


@pytest.mark.parametrize("start", ["input", "curriculum", "target_blank", "blank"])
def test_evaluation_starts_where_nothing_tells_of_the_answer(small, start):
    rules = ArcEvaluator(*tasks_and_rules(small(world={"start": start})), knowing).rules
    assert rules.evaluation
    assert rules.start == ("blank" if start == "blank" else "input")
    assert honest(rules) == rules or honest(rules).start == rules.start


def test_batches_smaller_than_the_tasks_score_the_same(small, monkeypatch):
    monkeypatch.setattr("worldloom.suites.arc.evaluate._LARGEST_BATCH", 5 * 9 * 35)
    parts = ArcEvaluator(*tasks_and_rules(small()), knowing)
    assert parts.batch == 5
    solved = parts(np.arange(13) % 3 == 0, jax.random.key(0)).solved
    assert np.flatnonzero(solved).tolist() == [0, 3, 6, 9, 12]


# A run that is over ------------------------------------------------------------------------------


def test_a_loaded_run_scores_as_it_did(finished):
    folder, run = finished
    loaded = worldloom.load(folder)
    assert (loaded.iteration, loaded.steps) == (6, 288)
    again = loaded.evaluator(loaded.agents, jax.random.key(5), attempts=0)
    assert again.solved.tolist() == run.evaluation.solved.tolist()
    obs = run.trainer.state().timestep.obs
    greedy, drawn = loaded.act(obs), loaded.act(obs, jax.random.PRNGKey(3))
    assert greedy.shape == drawn.shape == (8,)
    assert greedy.tolist() != drawn.tolist()
    with pytest.raises(ValueError, match="attempts=-1"):
        loaded.evaluator(loaded.agents, jax.random.key(5), attempts=-1)


@pytest.mark.slow
def test_random_play_is_a_run_like_any_other(toys, tmp_path, read_rows):
    run = worldloom.train(
        "arc",
        algo="random",
        tasks=str(toys),
        attempts=2,
        out=tmp_path / "random",
        report=False,
        world={"max_steps": 5, "operations": (0, 1, 2, 34)},
    )
    assert [row["steps"] for row in read_rows(tmp_path / "random" / "eval.jsonl")] == [run.steps]
    assert run.evaluation.attempts.shape == (2, 13)


def test_the_references_are_random_play_and_an_editor_that_knows(finished):
    known = json.loads((finished[0] / "config.json").read_text())["references"]
    assert known["greedy editor"]["demo_tasks"] == known["greedy editor"]["test_tasks"] == 1.0
    assert known["random play"]["demo_pairs"] < 0.5


def test_under_other_rules_the_editor_is_no_reference(small):
    config = small(world={"rules": "o2arc"})
    known = references(ArcEvaluator(*tasks_and_rules(config), random_agent))
    assert list(known) == ["random play"]
    assert 0.0 <= known["random play"].mean < 0.5
    assert NOWHERE["o2arc"] == (31, 32, 34)


def test_predictions_are_the_grids_at_the_end_of_two_episodes(small):
    tasks, rules = tasks_and_rules(small())
    evaluator = ArcEvaluator(tasks, rules, knowing)
    known = np.isin(np.arange(13), [4, 12])  # the second test of `one`, and that of `two`
    found = evaluator.predictions(known, jax.random.key(0))
    assert {name: len(answers) for name, answers in found.items()} == {
        "one": 2,
        "three": 1,
        "two": 1,
    }
    expected = {"one": [False, True], "three": [False], "two": [True]}
    for name, sure in expected.items():
        for pair, mended, attempts in zip(tasks[name].tests, sure, found[name], strict=True):
            assert len(attempts) == 2
            for grid in attempts:
                np.testing.assert_array_equal(grid, pair.output if mended else pair.input)


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*command: str) -> tuple[int, str, str]:
        code = main(list(command))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_commands_score_and_report(call, copied):
    code, out, err = call("arc", "scores", str(copied), "--attempts", "0", "--json")
    assert code == 0, err
    assert [row["task"] for row in json.loads(out)["tasks"]] == ["one", "three", "two"]
    (copied / "report.html").unlink()
    assert call("report", str(copied))[0] == 0
    assert (copied / "report.html").exists()


def test_the_command_writes_a_submission_once(call, copied, tmp_path):
    path = tmp_path / "out" / "submission.json"
    asked = ("arc", "submit", str(copied), str(path))
    code, out, err = call(*asked)
    assert code == 0, err
    assert "submission.json" in out
    written = json.loads(path.read_text())
    assert {name: len(answers) for name, answers in written.items()} == {
        "one": 2,
        "three": 1,
        "two": 1,
    }
    for attempt in ("attempt_1", "attempt_2"):
        assert np.shape(written["one"][0][attempt]) == (3, 3)
    before = path.read_bytes()
    code, out, err = call(*asked)
    assert (code, out) == (2, "")
    assert "exists, and is not replaced" in err
    assert len(err.splitlines()) == 1
    assert path.read_bytes() == before


def test_the_command_goes_on_with_a_run(call, copied):
    code, out, err = call("train", "--resume", str(copied), "--steps", "384", "--json")
    assert code == 0, err
    assert json.loads(out)["iterations"] == 8


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train arc --tasks mini-ark", "there is no task set or folder 'mini-ark'"),
        ("train arc --algo pro", "pro"),
        ("train arc --algo greedy", "greedy is not trained: the editor reads the answers"),
        ("train arc --algo qlearning", "needs observations of one array"),
        ("train arc --ids recolor", "did you mean 'recolour'?"),
        ("train arc --subset huge", "there is no subset 'huge'"),
        ("train arc --steps 0", "steps=0; it must be at least 1"),
        ("train arc --copies -1", "copies=-1; it must be 0 or more"),
        ("train arc --network.channels 0", "network: channels=0; it must be at least 1"),
        ("train arc --world.operations 0 1", "allow no submission"),
        ("train arc --world.operations 99 34", "there is no operation 99"),
        ("train arc --world.max-steps 0", "max_steps=0"),
        ("train arc --ppo.num-minibatches 7", "num_minibatches=7 does not divide"),
        ("train arc --ppo.normalise-observations", "the colours of a grid are names"),
        ("train arc --resume nowhere", "nowhere is not a run folder"),
        ("train arc --seed -1", "seed=-1"),
        ("arc scores nowhere", "nowhere is not a run folder"),
        ("arc submit nowhere out.json", "nowhere is not a run folder"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing_behind(call, command, message, tmp_path):
    code, out, err = call(*command.split())
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert not (tmp_path / "runs").exists()


def test_settings_survive_their_file(small):
    config = small(ids=("one",), copies=2, steps=1000)
    plain = json.loads(json.dumps(config.to_dict()))
    assert make_config(SUITE, plain) == config
    with pytest.raises(ValueError, match="no setting 'learning'"):
        make_config(SUITE, plain | {"learning": 1})


def test_how_often_a_pair_is_tried_may_change_on_resume(small):
    assert small(attempts=1).fingerprint() == small(attempts=3).fingerprint()
    assert small(copies=1).fingerprint() != small(copies=2).fingerprint()
