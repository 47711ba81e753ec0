"""`worldloom select`: which trained policy logged data speak for, or none."""

import json
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest

import worldloom
from worldloom.algos.policy_selection import Decision, Selection
from worldloom.cli.main import main
from worldloom.suites.plant.select import LOGGED, MOST_OUTSIDE, candidate_of, logged_behaviour
from worldloom.suites.plant.select_page import write_selection

SUPPORT = {"outside": 0.06, "strange": 0.01}
SMALL = {
    "data_steps": 400, "steps": 6, "eval_every": 0, "eval_episodes": 2, "checkpoint_every": 0,
    "ope_updates": 0, "world": {"horizon": 10}, "report": False,
}  # fmt: skip
BC = {"updates_per_iteration": 3, "batch_size": 8, "hidden": (8,)}


def found(value, half, doubts=(), **support):
    first = {"method": "all evidence", "value": value, "low": value - half, "high": value + half}
    return {"estimates": [first], "support": SUPPORT | support, "doubts": list(doubts)}


def made_up(choice="td3bc <b>"):
    good = candidate_of("td3bc <b>", found(80.0, 5.0, ["x & y"]), run="runs/a b")
    far = candidate_of("iql", found(85.0, 30.0, ["wide"], outside=0.7), run="runs/c")
    return Selection(
        "reactor", (good, far), logged_behaviour(np.asarray([50.0, 54.0, 46.0, 50.0])),
        Decision(choice, "it is better"),
        {"data": {"name": "log", "rows": 1234}, "gamma": 0.99, "episodes": 0},
        ("mind the <gap>",),
    )  # fmt: skip


def test_the_log_is_a_candidate_with_an_interval_of_its_mean():
    returns = np.asarray([50.0, 54.0, 46.0, 50.0])
    logged = logged_behaviour(returns)
    half = 1.96 * np.std(returns, ddof=1) / 2.0
    assert (logged.name, logged.value) == (LOGGED, 50.0)
    assert logged.high - logged.value == pytest.approx(half)


def test_a_policy_is_supported_where_the_log_has_been():
    assert candidate_of("a", found(1.0, 1.0)).supported
    lost = candidate_of("a", found(1.0, 1.0, ["wide", "50% lead to where nobody has been"],
                                   strange=0.5))  # fmt: skip
    assert not lost.supported
    assert lost.doubts[0].endswith("nobody has been"), "what decides is said first"
    new = candidate_of("a", found(1.0, 1.0, outside=MOST_OUTSIDE + 0.1))
    assert not new.supported
    assert new.doubts[0] == "50% of what it wants in logged states was never tried"


def test_the_page_shows_every_interval_and_the_answer(tmp_path):
    html = write_selection(made_up(), tmp_path / "select.html").read_text()
    assert "Ship td3bc &lt;b&gt;" in html
    assert "It is better." in html
    assert "mind the &lt;gap&gt;" in html
    assert "worldloom export &#39;runs/a b&#39;" in html
    assert "70 %" in html
    drawn = [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.S)]
    assert len(drawn) == 2, "for a desk and for a phone"
    for drawing in drawn:
        titles = [g.find("{*}title").text for g in drawing.findall(".//{*}g[@class='interval']")]
        assert [title.split(":")[0] for title in titles] == [LOGGED, "td3bc <b>", "iql"]
    html = write_selection(made_up(None), tmp_path / "none.html").read_text()
    assert "Keep what you have" in html
    assert "worldloom export" not in html


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("select", "name one run folder or more"),
        ("select nowhere", "nowhere"),
        ("select nowhere --updates x", "--updates x: it must be a whole number"),
    ],
)
def test_what_cannot_be_selected_from_is_refused_in_a_line(line, message, capsys, tmp_path):
    assert main([*line.split(), *(["--out", str(tmp_path / "s.json")] if " " in line else [])]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_runs_of_other_suites_are_refused(finished_run, capsys):
    assert main(["select", str(finished_run)]) == 2
    assert "a run of the grid suite, whose policies cannot be judged" in capsys.readouterr().err


# Whole runs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled_once):
    root = tmp_path_factory.mktemp("runs")
    for name, seed in (("one", 0), ("two", 1)):
        worldloom.train("dmsd", algo="bc", seed=seed, bc=BC, out=root / name, **SMALL)
    online = {"num_worlds": 2, "td3": {"hidden": (8,), "batch_size": 4, "learning_starts": 4}}
    other = SMALL | {"steps": 40} | online
    worldloom.train("dmsd", algo="td3", out=root / "three", **other)
    return [root / name for name in ("one", "two", "three")]


@pytest.mark.slow
def test_runs_are_judged_by_their_own_log_and_the_answer_is_written(
    runs, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["select", *map(str, runs), "--updates", "3"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("next:")) <= 80
    assert {"one", "two", "three", "logged"} <= {line.split()[0] for line in lines if line.strip()}
    assert re.search(r"^recommended: (one|two|three|none, keep what you have)$", out, re.M)
    assert "2 of 3 learned from this very log" in " ".join(out.split())
    kept = json.loads((tmp_path / "select.json").read_text())
    assert {c["name"] for c in kept["candidates"]} == {"one", "two", "three"}
    assert kept["data"]["rows"] >= 400
    assert kept["reason"]
    lows = [c["low"] for c in kept["candidates"]]
    assert lows == sorted(lows, reverse=True)
    assert (tmp_path / "select.html").stat().st_size > 10_000
    (step,) = [line for line in lines if line.startswith("next: ")]
    assert (" export " in step) == (kept["recommended"] is not None)


@pytest.mark.slow
def test_trials_are_counted_and_the_same_every_time(runs):
    told = [
        worldloom.select(runs[:2], "random", updates=3, episodes=5, seed=3).to_dict()
        for _ in range(2)
    ]
    assert told[0] == told[1]
    tried = [len(c["trials"]) for c in told[0]["candidates"]]
    assert sum(tried) == 5
    assert told[0]["data"]["name"] == "dmsd-random"


@pytest.mark.slow
def test_what_does_not_belong_together_is_refused(runs, tmp_path, capsys):
    other = tmp_path / "other"
    worldloom.train("dmsd", algo="bc", bc=BC, out=other, **SMALL | {"world": {"horizon": 12}})
    elsewhere = shutil.copytree(runs[0], tmp_path / "a" / "one")
    for line, message in (
        ([runs[0], other], "are of different plants, or of one with different options"),
        ([runs[2]], "these runs learned in the plant; name the log to judge by"),
        ([runs[0], runs[0]], "is named twice"),
        ([runs[0], "--dataset", "log.csv"], "dataset=log.csv"),
        ([runs[0], "--episodes", "-1"], "episodes=-1; it must be 0 or more"),
        ([runs[0], "--out", "x.html"], "the result is a .json file"),
    ):
        assert main(["select", *map(str, line)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    names = [c.name for c in worldloom.select([runs[0], elsewhere], updates=3).candidates]
    assert {*names} == {str(runs[0]), str(elsewhere)}, "of one name, told apart by their paths"
