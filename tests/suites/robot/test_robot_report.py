"""The page of a run of the robot: of a small real one, of a long one made up, and of halves."""

import json
import shutil

import pytest

from report.reading import at, charts
from suites.robot.made_run import STEPS, make_walk
from worldloom import suites
from worldloom.suites.robot.film import Pictures
from worldloom.suites.robot.page import write_report
from worldloom.training import run as runs
from worldloom.training.config import make_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory, compiled_once):
    """A run of seconds, filmed. Look, do not touch."""
    suite = suites.suite("robot")
    settings = {
        "env": "biped",
        "task": "stand",
        "num_worlds": 4,
        "steps": 4 * STEPS,
        "chunk": 2,
        "eval_every": 2 * STEPS,
        "eval_episodes": 2,
        "checkpoint_every": 4 * STEPS,
        "ppo": {"unroll_length": 3, "num_epochs": 1, "num_minibatches": 2, "hidden": (8,)},
        "world": {"horizon": 5},
    }
    folder = tmp_path_factory.mktemp("runs") / "stand"
    return runs.train(suite, make_config(suite, settings), folder, command="worldloom train biped")


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the run to change."""
    return shutil.copytree(finished.folder, tmp_path / "run")


def change(path, **settings):
    about = json.loads(path.read_text())
    about["config"] |= settings
    path.write_text(json.dumps(about))


@pytest.fixture
def walk(folder):
    (folder / "ladder.json").unlink()
    return make_walk(folder)


# What it says --------------------------------------------------------------------------------


def test_a_run_leaves_a_page_with_its_film_and_its_pushes(finished):
    page = (finished.folder / "report.html").read_text()
    assert "not complete" not in page
    for words in ("ppo · stand · level 4 · C engine · seed 0", "data:image/gif;base64,",
                  'href="replay.html"', "stays up", "steps/s", "holds its home pose",
                  "5 N, 200 ms", "upright, weight 2", "entropy of the policy",
                  "worldloom train biped", "worldloom pushes ", "--gif"):  # fmt: skip
        assert words in page, words
    # What only a walk or a motion prior has.
    for words in ("goes where asked", "off the command", "discriminator", "amp.weight"):
        assert words not in page, words


def test_a_walk_is_judged_by_its_speed_and_the_prior_by_its_judge(walk):
    page = write_report(walk).read_text()
    for words in ("walk · level 4", "goes where asked", "m/s off the command",
                  "of 64 episodes: no fall, within 0.02 m/s", "rad from the reference gait",
                  "Motion prior", "score by the discriminator", "amp.weight"):  # fmt: skip
        assert words in page, words
    off = charts(page)["m/s off the command"]
    assert off["references"] == [["tolerance", 0.02], ["random play", 0.35]]
    assert "± 0.01" in at(off, 300 * STEPS)["mean speed of greedy episodes ± s.e."]
    assert "<h2>Pushes</h2>" not in page
    shares = charts(page)["% of greedy episodes"]
    # Of the last evaluation, in per cent: 64 episodes.
    said = at(shares, 300 * STEPS)
    assert said == {"stays up ± s.e.": "100 ± 0", "goes where asked ± s.e.": "75 ± 5.4"}
    assert shares["range"] == [0, 100]
    names = ("stays up", "goes where asked")
    assert shares["references"] == [[f"random play, {name}", 0.0] for name in names]
    assert "75 <small>% ± 5.4</small>" in page
    assert "random play: 0 ± 0 %" in page


def test_a_walk_of_an_earlier_version_is_shown_by_the_score_that_it_has(walk):
    for name in ("eval.jsonl", "config.json"):
        text = (walk / name).read_text()
        text = text.replace('"tracked"', '"good"').replace('"speed_error', '"error')
        (walk / name).write_text(text)
    page = write_report(walk).read_text()
    assert "as fast as asked" in page
    assert "goes where asked" not in page
    assert charts(page)["m/s off the command"]["references"][0] == ["tolerance", 0.075]


def test_the_gait_and_its_robustness_are_told_in_numbers(walk):
    page = write_report(walk).read_text()
    for words in ("The gait in numbers", "12.5", "least gap between the feet", "8.25", "14.3"):
        assert words in page, words
    assert "Robustness" not in page
    rows = [("none", 0, 1.0), ("latency", 1, 0.875), ("latency", 2, 0.25)]
    rows = [
        {"kind": k, "strength": s, "survived": u, "error": 0.01, "yaw": 0.1} for k, s, u in rows
    ]
    (walk / "robustness.json").write_text(json.dumps(rows))
    page = write_report(walk).read_text()
    chart = charts(page)["Latency"]
    assert [at(chart, x)["stays up"] for x in (0, 1, 2)] == ["100", "87.5", "25"]
    (walk / "robustness.json").write_text("[{}]")
    assert "robustness.json cannot be read" in write_report(walk).read_text()


def test_terms_are_told_in_reward_a_second_with_their_weights(walk):
    page = write_report(walk).read_text()
    assert "track: 2 ± 0.1<" in page  # 1 of the term, at a weight of 2
    assert "alive: 0.5 ± 0<" in page
    assert "slip: \N{MINUS SIGN}0.0625 ± 0.005<" in page
    small = charts(page)["track, weight 2"]
    assert at(small, 100 * STEPS) == {"track": "0.6667 ± 0.1"}  # of the first evaluation


def test_simulations_that_diverged_are_counted(walk):
    assert "2 training episodes ended because the simulation" in write_report(walk).read_text()


def test_the_strongest_push_is_the_one_that_nearly_all_survive(folder):
    rungs = [(5, 10, 1.0, 1.0), (10, 10, 0.95, 0.0), (9, 15, 0.9, 0.1), (12, 15, 0.8, 0.0)]
    names = ("newtons", "steps", "survived", "held")
    rows = [dict(zip(names, rung, strict=True)) for rung in rungs]
    (folder / "ladder.json").write_text(json.dumps(rows))
    page = write_report(folder).read_text()
    assert "9 <small>N</small>" in page  # for longer than the 10 N
    assert "for 300 ms, again and again; 10 % stay up if it only holds its pose" in page


def test_the_engine_of_level_one_is_a_loop(folder):
    change(folder / "config.json", level=1)
    assert "level 1 · MuJoCo in a loop" in write_report(folder).read_text()


# Halves --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("metrics.jsonl", "Nothing has been learned yet"),
        ("eval.jsonl", "It has not been evaluated yet"),
        ("robot.gif", "robot.gif makes one"),
        ("ladder.json", "The ladder of pushes has not been climbed"),
        ("timing.json", "There are no timing results"),
        ("replay.html", None),
    ],
)
def test_a_page_says_what_is_missing(folder, lost, said):
    (folder / lost).unlink()
    page = write_report(folder).read_text()
    assert ("This run is not complete" in page) == (said is not None)
    assert said is None or said in page


def test_a_run_cut_short_says_how_far_it_came(walk):
    lines = (walk / "metrics.jsonl").read_text().splitlines(keepends=True)
    (walk / "metrics.jsonl").write_text("".join(lines[:13]) + lines[13][:20])
    (walk / "eval.jsonl").write_text("")
    page = write_report(walk).read_text()
    assert f"{13 * STEPS} of {300 * STEPS:,} steps" in page
    assert "A line of metrics.jsonl could not be read" in page
    assert "m/s off the command when a training episode ends" in page


def test_a_folder_with_nothing_but_settings_has_a_page(folder):
    for path in folder.iterdir():
        if path.name != "config.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    page = write_report(folder).read_text()
    assert "Nothing has been learned yet" in page
    assert "makes one" not in page  # there is nothing to film
    assert "--resume" not in page


@pytest.mark.parametrize("broken", ["{", "3", '[{"newtons": 5}]', '[{"newtons": "many"}]'])
def test_a_broken_ladder_does_not_break_the_page(folder, broken):
    (folder / "ladder.json").write_text(broken)
    page = write_report(folder).read_text()
    assert "ladder.json cannot be read" in page
    assert "<h2>Pushes</h2>" not in page


def test_an_interrupted_run_is_reported_without_pictures(folder, finished, monkeypatch):
    for name in ("robot.gif", "replay.html", "report.html"):
        (folder / name).unlink()
    monkeypatch.setattr(finished, "folder", folder)
    monkeypatch.setattr(finished, "interrupted", True)
    Pictures().on_end(finished)
    assert finished.report().exists()
    assert not (folder / "robot.gif").exists()
