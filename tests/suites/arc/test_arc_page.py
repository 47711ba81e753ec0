"""The page of a run on ARC, from files that are made up: nothing is trained here."""

import json

import numpy as np
import pytest

from report.reading import at, charts
from suites.arc.made_run import EACH, make_run
from worldloom.cli.report import write_page
from worldloom.suites.arc.evaluate import ArcEvaluation
from worldloom.suites.arc.page import write_report
from worldloom.suites.arc.problem import telling_pairs


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path)


def test_the_page_tells_of_scores_tasks_and_episodes(folder):
    page = write_page(folder).read_text()
    assert page.count("<h2>") == 7
    for words in (
        "12 tasks of examples",
        "random play, demonstrations: 2.",
        "demo pass@4",
        "recolour ✓",
        "recolour, test 1",
        "not solved",
        "resize",
        "&lt;b&gt;&amp;amp",
        f"--steps {80 * EACH}",
        "worldloom arc scores",
    ):
        assert words in page, words
    assert "<b>" not in page
    assert "not complete" not in page


def test_the_curve_of_training_is_the_share_of_solved_episodes(folder):
    curve = charts(write_page(folder).read_text())["Learning curve"]
    assert at(curve, 40 * EACH)["training episodes"] == "97.5"  # of the last iteration
    # Half of the nine demonstrations of three tasks.
    assert at(curve, 40 * EACH)["demonstrations, greedy ± s.e."] == "50 ± 17"
    assert curve["range"] == [0, 100]


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("metrics.jsonl", "Nothing has been learned yet"),
        ("eval.jsonl", "It has not been evaluated yet"),
        ("tasks.json", "does not hold the tasks of a run"),
        ("episodes.json", "There are no recorded episodes"),
    ],
)
def test_a_page_says_what_is_missing(folder, lost, said):
    (folder / lost).unlink()
    page = write_report(folder).read_text()
    assert "This run is not complete" in page
    assert said in page


def test_a_run_cut_short_says_how_far_it_came(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:13]) + lines[13][:20])
    page = write_report(folder).read_text()
    assert f"{13 * EACH:,} of {40 * EACH:,} steps" in page
    assert "A line of metrics.jsonl could not be read" in page


def test_broken_episodes_do_not_break_the_page(folder):
    (folder / "episodes.json").write_text('[{"task": 1}]')
    assert "episodes.json cannot be read" in write_report(folder).read_text()


def test_operations_of_a_run_have_the_names_of_its_rules(folder):
    path = folder / "config.json"
    about = json.loads(path.read_text())
    about["config"]["world"]["rules"] = "o2arc"
    path.write_text(json.dumps(about))
    page = write_report(folder).read_text()
    assert "colour red" in page
    assert "fill red" not in page


def test_episodes_are_chosen_from_all_kinds_of_pairs_and_many_tasks():
    task = np.repeat(np.arange(5), 4)
    tests = np.tile([False, False, False, True], 5)
    solved = np.isin(np.arange(20), [0, 1, 2, 3, 4, 7])
    found = ArcEvaluation(
        tuple("abcde"), task, tests, solved, np.ones(20, int), np.zeros((0, 20), bool), 0.0
    )
    chosen = telling_pairs(found)
    assert len(set(chosen.tolist())) == 8
    kinds = {(bool(tests[n]), bool(solved[n])) for n in chosen}
    assert len(kinds) == 4
    assert len(set(task[chosen].tolist())) >= 4
    assert len(telling_pairs(found, 100)) == 20
