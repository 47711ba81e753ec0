"""The page of a run of the robot: of a small real one, of a long one made up, and of halves."""

import json
import shutil

import pytest

from worldloom import suites
from worldloom.suites.robot.film import Pictures
from worldloom.suites.robot.page import write_report
from worldloom.training import run as runs
from worldloom.training.config import make_config

STEPS = 12  # of an iteration


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
    """The folder of a walk of 300 iterations that learned, beside a motion prior; made up."""
    terms = {"alive": 0.5, "track": 2.0, "slip": 0.5}
    change(folder / "config.json", task="walk", steps=300 * STEPS)
    about = json.loads((folder / "config.json").read_text())
    about["config"]["amp"]["weight"] = 0.05
    about |= {"terms": terms, "task": "walk"}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / "ladder.json").unlink()
    rows = []
    for n in range(300):
        row = {
            "iteration": n + 1, "steps": STEPS * (n + 1), "episodes": 20, "seconds": 1.0 * n,
            "return": n / 3, "length": 60 + 3 * n, "fell": 1 - n / 300, "error": 0.5,
            "diverged": 0.05 if n < 2 else 0.0, "skipped": 0.0, "kl": 0.01, "clip_fraction": 0.1,
            "entropy": 5 - n / 50, "explained_variance": 0.9, "prior_style": n / 600,
            "prior_real_score": 0.9, "prior_fake_score": 0.2, "prior_real_accuracy": 0.97,
            "prior_fake_accuracy": 0.98, "prior_penalty": 0.01,
        }  # fmt: skip
        if n % 7 == 3:  # no episode ended in this update
            row |= {"return": None, "length": None, "fell": None, "error": None}
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evals = [
        {"iteration": n, "steps": STEPS * n, "seconds": 60.0 * n, "survived": n / 300,
         "good": n / 400, "error": 0.3 - n / 1500, "mean": n / 2, "stderr": 1.0, "episodes": 64,
         "length": 3.0 * n, "gait_distance": 0.25,
         "terms": {"alive": 1.0, "track": n / 300, "slip": -0.125}}
        for n in (100, 200, 300)
    ]  # fmt: skip
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    return folder


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
    for words in ("as fast as asked", "off the command", "discriminator", "amp.weight"):
        assert words not in page, words


def test_a_walk_is_judged_by_its_speed_and_the_prior_by_its_judge(walk):
    page = write_report(walk).read_text()
    for words in ("walk · level 4", "as fast as asked", "m/s off the command", "wanted 0.075",
                  "of 64 episodes at 0.15 to 0.3 m/s", "rad from the reference gait",
                  "Motion prior", "score by the discriminator", "amp.weight"):  # fmt: skip
        assert words in page, words
    assert "<h2>Pushes</h2>" not in page
    assert "stays up: 100\n" in page  # of the last evaluation, in per cent
    assert "as fast as asked: 75<" in page


def test_terms_are_told_in_reward_a_second_with_their_weights(walk):
    page = write_report(walk).read_text()
    assert "track: 2<" in page  # 1 of the term, at a weight of 2
    assert "alive: 0.5<" in page
    assert "slip: \N{MINUS SIGN}0.0625<" in page
    assert "track: 0.6667<" in page  # of the first evaluation, in the small chart


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


# In a browser --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_the_screen_and_loads_nothing(walk, browser, width):
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
    view.goto(write_report(walk).as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    charts = view.evaluate(
        """() => [...document.querySelectorAll('svg.wl-chart')]
            .map(svg => svg.getBoundingClientRect())
            .filter(box => box.width > 0).map(box => [box.left, box.right])"""
    )
    film = view.evaluate("document.querySelector('img').naturalWidth")
    view.get_by_text("Interactive replay in 3D").click()
    opened = view.url
    view.close()
    # What a driver says of its own speed is not the page's fault.
    assert [text for text in wrong if "GL Driver Message" not in text] == []
    # Learning, its six small ones, bars of the terms, three terms, four inside, four of the prior.
    assert len(charts) == 1 + 6 + 1 + 3 + 4 + 4
    assert all(left >= 0 and right <= width for left, right in charts)
    assert film > 100
    assert opened.endswith("/replay.html")
