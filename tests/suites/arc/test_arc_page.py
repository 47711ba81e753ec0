"""The page of a run on ARC, from files that are made up: nothing is trained here."""

import json
from pathlib import Path

import numpy as np
import pytest

from worldloom.cli.report import write_page
from worldloom.suites.arc import load
from worldloom.suites.arc.evaluate import ArcEvaluation
from worldloom.suites.arc.page import write_report
from worldloom.suites.arc.problem import telling_pairs
from worldloom.suites.arc.suite import SUITE
from worldloom.training.config import make_config

EACH = 4096  # steps of an iteration
TASKS = ("recolour", "fall", "<b>&amp")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path):
    """A run of 40 iterations on the shipped examples, one of which was solved."""
    config = make_config(SUITE, {"env": "arc", "steps": 40 * EACH})
    references = {
        "random play": {"demo_pairs": 0.02, "test_pairs": 0.0, "k": 0},
        "greedy editor": {"demo_pairs": 1.0, "test_pairs": 0.75, "k": 0},
    }
    about = {
        "format": 2,
        "suite": "arc",
        "steps_per_iteration": EACH,
        "command": "worldloom train arc",
        "config": config.to_dict(),
        "references": references,
        "hash": "3f9a1c07",
        "versions": {"worldloom": "0.2.0"},
    }
    (tmp_path / "config.json").write_text(json.dumps(about))
    (tmp_path / "tasks.json").write_text(load("examples").to_json())
    write_lines(
        tmp_path / "metrics.jsonl",
        [
            {
                "iteration": n + 1,
                "steps": EACH * (n + 1),
                "solved": n / 40,
                "return": 0.1 * n,
                "length": 20 - n / 4,
                "entropy": 3 - n / 20,
                "kl": 0.01,
                "explained_variance": 0.5,
                "seconds": n + 1.0,
            }
            for n in range(40)
        ],
    )
    write_lines(
        tmp_path / "eval.jsonl",
        [
            {
                "iteration": n,
                "steps": EACH * n,
                "seconds": 1.0 * n,
                "demo_pairs": n / 80,
                "demo_tasks": n / 160,
                "test_pairs": 0.0,
                "test_tasks": 0.0,
                "demo_pass_at_1": 0.3,
                "demo_pass_at_k": 0.6,
                "test_pass_at_1": 0.0,
                "test_pass_at_k": 0.1,
                "k": 4,
            }
            for n in (20, 40)
        ],
    )
    timing = {
        "train_seconds": 40.0,
        "compile_seconds": 9.0,
        "steps": 40 * EACH,
        "iterations": 40,
        "steps_per_second": 8192.0,
    }
    (tmp_path / "timing.json").write_text(json.dumps(timing))
    names = "task,demos,demos_solved,demos_solved_in_k,tests,tests_solved,tests_solved_in_k"
    rows = [f"{names},solved,steps"]
    rows += [f"{name},3,{3 - n},3,1,0,1,{n == 0},4.5" for n, name in enumerate(TASKS)]
    (tmp_path / "tasks.csv").write_text("\n".join(rows) + "\n")
    shots = [
        {"grid": [[1, 0], [0, 3]], "operation": 2, "cells": [[0, 0]], "valid": True},
        {"grid": [[2, 0], [0, 3]], "operation": 33, "cells": [[4, 5]], "valid": True},
        {"grid": [[2, 0], [0, 3]], "operation": 34, "cells": None, "valid": True},
        {"grid": [[2, 0], [0, 3]], "operation": None, "cells": None, "valid": True},
    ]
    episode = {
        "task": "recolour",
        "pair": "test 1",
        "solved": False,
        "shots": shots,
        "input": [[1, 0], [0, 3]],
        "target": [[2, 0], [0, 2]],
    }
    (tmp_path / "episodes.json").write_text(json.dumps([episode] * 2))
    (tmp_path / "checkpoints" / "40").mkdir(parents=True)
    return tmp_path


def test_the_page_tells_of_scores_tasks_and_episodes(folder):
    page = write_page(folder).read_text()
    assert page.count("<h2>") == 7
    for words in (
        "12 tasks of examples",
        "random play, demonstrations 2",
        "demo pass@4",
        "recolour<strong> ✓</strong>",
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
    page = write_page(folder).read_text()
    assert "training episodes: 97.5" in page  # of the last iteration


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


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_the_screen_and_loads_nothing(folder, browser, width):
    page: Path = write_report(folder)
    wrong = []
    view = browser.new_page(viewport={"width": width, "height": 800})
    view.on("console", lambda message: wrong.append(message.text))
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on(
        "request",
        lambda request: (
            None if request.url.startswith(("file:", "data:")) else wrong.append(request.url)
        ),
    )
    view.goto(page.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    boxes = view.evaluate(
        """() => [...document.querySelectorAll('svg.wl-chart')]
            .map(svg => svg.getBoundingClientRect())
            .filter(box => box.width > 0).map(box => [box.width, box.height])"""
    )
    view.close()
    assert wrong == []
    assert len(boxes) >= 7 + 2 + 2  # charts, pictures of the two known tasks, episodes
