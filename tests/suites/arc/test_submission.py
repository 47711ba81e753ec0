"""Submission files: the form that competitions take, whole or not at all."""

import json
import os

import numpy as np
import pytest

from worldloom.suites.arc.sources import load
from worldloom.suites.arc.submission import write_submission


@pytest.fixture
def file(tmp_path):
    return tmp_path / "out" / "submission.json"


@pytest.fixture(scope="module")
def two():
    return load("examples", tasks=["recolour", "fall"])


def answers(tasks):
    return {task.name: [[pair.output] for pair in task.tests] for task in tasks}


def test_the_file_has_two_attempts_for_every_test_input(file, two):
    wrong = np.zeros((2, 3), np.int8)
    predictions = answers(two) | {"fall": [[wrong, two["fall"].tests[0].output]]}
    assert write_submission(file, predictions, two) == file
    right = {task.name: task.tests[0].output.tolist() for task in two}
    assert json.loads(file.read_text()) == {
        "recolour": [{"attempt_1": right["recolour"], "attempt_2": right["recolour"]}],
        "fall": [{"attempt_1": wrong.tolist(), "attempt_2": right["fall"]}],
    }


def test_attempts_may_be_named_and_grids_may_be_lists(file):
    predictions = {
        "a": [{"attempt_2": [[1]], "attempt_1": [[2]]}, ([[3, 4]],)],
        "b": [{"attempt_1": np.array([[5]])}],
    }
    write_submission(file, predictions)
    assert json.loads(file.read_text()) == {
        "a": [
            {"attempt_1": [[2]], "attempt_2": [[1]]},
            {"attempt_1": [[3, 4]], "attempt_2": [[3, 4]]},
        ],
        "b": [{"attempt_1": [[5]], "attempt_2": [[5]]}],
    }


def test_what_was_written_can_be_written_again(file, tmp_path, two):
    write_submission(file, answers(two), two)
    again = write_submission(tmp_path / "again.json", json.loads(file.read_text()), two)
    assert again.read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ({}, "there is no prediction to write"),
        ({"a": []}, "task a: give a list with the attempts"),
        ({"a": "no"}, "task a: give a list with the attempts"),
        ({"a": [5]}, "task a, test 0: give a list of one or two grids, not int"),
        ({"a": [[[[1]]] * 3]}, "task a, test 0: 3 attempts; one or two are allowed"),
        ({"a": [[]]}, "task a, test 0: 0 attempts"),
        ({"a": [{"attempt_3": [[1]]}]}, "task a, test 0: the attempts are attempt_1 and attempt_2"),
        ({"a": [{"attempt_2": [[1]]}]}, r"attempt_1 and attempt_2, not \['attempt_2'\]"),
        ({"a": [[[[1]]], [[[1, 2], [3]]]]}, "task a, test 1, attempt_1, row 1: 1 cells"),
        ({"a": [[[[1]], [[0, 11]]]]}, r"task a, test 0, attempt_2, cell \(0, 1\): 11 is no colour"),
        ({"a": [[np.array([[0.5]])]]}, r"attempt_1, cell \(0, 0\): 0.5 is no colour"),
        ({"a": [[np.zeros((31, 1), int)]]}, "the grid is 31x1; a side is at most 30"),
    ],
)
def test_wrong_predictions_are_refused_and_nothing_is_written(predictions, message, file):
    with pytest.raises(ValueError, match=message):
        write_submission(file, predictions)
    assert not file.parent.exists()


def test_every_task_must_be_answered_and_no_other(file, two):
    good = answers(two)
    with pytest.raises(ValueError, match="no prediction for task 'fall'"):
        write_submission(file, {"recolour": good["recolour"]}, two)
    with pytest.raises(ValueError, match="no task 'recolor'; did you mean 'recolour'"):
        write_submission(file, good | {"recolor": good["recolour"]}, two)
    with pytest.raises(ValueError, match="task fall has 1 test inputs, and 2 are answered"):
        write_submission(file, good | {"fall": good["fall"] * 2}, two)


def test_an_existing_file_stays_unless_asked(file, two):
    write_submission(file, {"a": [[[[1]]]]})
    with pytest.raises(FileExistsError, match=r"submission\.json: .* use overwrite=True"):
        write_submission(file, answers(two))
    assert list(json.loads(file.read_text())) == ["a"]
    write_submission(file, answers(two), overwrite=True)
    assert list(json.loads(file.read_text())) == ["recolour", "fall"]


def test_a_failed_write_leaves_the_old_file_and_no_other(file, monkeypatch):
    write_submission(file, {"a": [[[[1]]]]})

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_submission(file, {"b": [[[[2]]]]}, overwrite=True)
    assert list(json.loads(file.read_text())) == ["a"]
    assert os.listdir(file.parent) == [file.name]
