"""The page of a run of a plant: a small real one, one made up, and halves."""

import json
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from report.reading import at, charts, drawings
from suites.plant.made_run import (
    PLANT,
    E,
    T,
    made_up_trajectories,
    make_run,
    outcome,
    write_trajectories,
)
from worldloom.suites.plant import episode as plant_episode
from worldloom.suites.plant.charts import PlantFacts
from worldloom.suites.plant.ope_page import Interval, interval_chart
from worldloom.suites.plant.page import write_report
from worldloom.suites.plant.suite import SUITE
from worldloom.suites.plant.types import Limit, Signal
from worldloom.training.config import make_config
from worldloom.training.run import train

MINUS = "\N{MINUS SIGN}"


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "reactor-iql")


def change(folder, name, **parts):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def marked(tree, name):
    return [node for node in tree.iter() if node.get("class") == name]


# A real run ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_run_has_everything_that_its_page_shows(tmp_path, compiled_once):
    config = make_config(
        SUITE,
        {
            "env": "dmsd",
            "algo": "bc",
            "data_steps": 64,
            "steps": 8,
            "eval_every": 4,
            "eval_episodes": 2,
            "checkpoint_every": 8,
            "ope_updates": 20,
            "world": {"horizon": 12},
            "bc": {"updates_per_iteration": 4, "batch_size": 8, "hidden": (8,)},
        },
    )
    run = train(SUITE, config, tmp_path / "run", command="worldloom train")
    page = (run.folder / "report.html").read_text()
    assert "not complete" not in page
    for words in (
        "dmsd",
        "bc · medium data · seed 0",
        "return, behind the filter",
        "return, logged data",
        "right 1: margin, m",
        "jerk 1: margin, N",
        "position 1, m",
        "force 1, N (actuator)",
        "fitted Q evaluation",
        "weighted importance sampling",
        "Does the policy leave the data?",
        "actor",
        "latch_after: 10",
        "quality",
        "right_1: {signal:",
        json.loads((run.folder / "config.json").read_text())["data"]["digest"],
        "worldloom data describe",
    ):
        assert words in page, words


# What it says --------------------------------------------------------------------------------


def test_the_headline_is_of_the_last_evaluation_and_of_the_log(folder):
    page = write_report(folder).read_text()
    assert "not complete" not in page
    for words in ("reactor</h1>", "iql · medium data · seed 3",
                  "130 <small>± 1.5</small>", "140 <small>± 1.5</small>",
                  "random play: 60 ± 1.5", "random play: 70 ± 1.5",
                  "12.5 <small>% of steps</small>", "in 2 % by the emergency action",
                  "normalised score</dt><dd>64<", "18.5<span", "of 2 episodes; the best 34",
                  "0 <small>% of steps</small>", "25 % without it"):  # fmt: skip
        assert words in page, words


def test_returns_are_drawn_over_updates_beside_the_data_s_own(folder):
    found = charts(write_report(folder).read_text())
    returns = found["Return in the plant"]
    assert returns["references"] == [
        ["logged data", 18.5],
        ["random play, behind the filter", 60.0],
        ["random play, bare", 70.0],
    ]
    assert returns["x_label"] == "updates"
    said = at(returns, 40_000)
    assert said == {"behind the filter ± s.e.": "130 ± 1.5", "bare policy ± s.e.": "140 ± 1.5"}
    assert at(found["Return in the plant over time"], 20.0) == said
    acts = found["% of steps in which the filter"]
    assert at(acts, 40_000) == {"acts": "12.5", "emergency action": "2"}
    beyond = found["% of steps beyond the limit crossed most"]
    assert at(beyond, 40_000) == {"behind the filter": "0", "bare policy": "25"}
    assert acts["range"] == beyond["range"] == [0, 100]


def test_limits_are_in_their_units_for_log_policy_and_filter(folder):
    page = write_report(folder).read_text()
    for words in ("temperature at most 375 K", "feed changes in a step by at most 10 L/min",
                  f"{MINUS}4.25 K", "runaway · logged data: 25 %", "runaway · bare: 25 % ± 2",
                  "runaway · filtered: 0 %"):  # fmt: skip
        assert words in page, words


def test_a_hard_limit_crossed_behind_the_filter_is_told_first(folder):
    assert "Mind this" not in write_report(folder).read_text()
    rows = [json.loads(line) for line in (folder / "eval.jsonl").read_text().splitlines()]
    rows[-1]["filtered"] = outcome(90.0, [0.004, 0.5], 0.3, 0.2)
    (folder / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(folder).read_text()
    assert "the hard limit runaway was still crossed in 0.4 % of the steps" in page
    assert "executed in 20 % of the steps" in page
    assert "hard limit feed shock" not in page  # it is soft


def test_estimates_stand_beside_the_truth(folder):
    page = write_report(folder).read_text()
    tree = drawings(page)["Estimates beside the truth"]
    said = [node[0].text for node in marked(tree, "interval")]
    assert said[0] == "fitted Q evaluation: 65, from 61 to 69"
    assert "in truth 66.5" in page
    assert "logged data 41" in page
    cells = re.findall(r"<td>(yes|no)</td></tr>", page)
    assert cells[:2] == ["yes", "no"]  # inside the one, outside the other
    assert "with noise of 0.1 on its actions" in page


def test_intervals_lie_where_their_numbers_say():
    rows = [Interval("a", 5.0, 0.0, 10.0), Interval("b", None, None, None)]
    text = interval_chart(rows, [("truth", 10.0, 1)], title="t", axis_label="x", width=400)
    tree = ElementTree.fromstring(text)
    interval = marked(tree, "interval")
    assert len(interval) == 1
    bar, *caps = [node for node in interval[0] if node.tag.endswith("line")]
    dot = next(node for node in interval[0] if node.tag.endswith("circle"))
    start, end = float(bar.get("x1")), float(bar.get("x2"))
    assert float(dot.get("cx")) == pytest.approx((start + end) / 2, abs=0.1)
    truth = next(node for node in marked(tree, "reference")[0])
    assert float(truth.get("x1")) == pytest.approx(end, abs=0.1)
    assert [float(cap.get("x1")) for cap in caps] == [start, end]
    assert "no estimate" in text


@pytest.mark.parametrize(
    ("outside", "verdict"),
    [(0.05, "stays where there are data"), (0.3, "with care"), (0.8, "Much of what it wants")],
)
def test_support_is_told_so_that_somebody_can_decide(folder, outside, verdict):
    change(folder, "ope.json", support={"outside": outside, "change": 0.3})
    page = write_report(folder).read_text()
    assert verdict in page
    assert f"In {100 * outside:g} % of logged situations" in page
    assert "by 15 % of an actuator" in page  # 0.3 of a range from -1 to 1
    assert sum(words in page for words in ("where there are data.", "with care", "Much of")) == 1


def test_estimates_of_an_earlier_evaluation_are_marked(folder):
    assert "gone on since" not in write_report(folder).read_text()
    change(folder, "ope.json", steps=20_000)
    assert (
        "These are of update 20,000; the run has gone on since" in write_report(folder).read_text()
    )


def test_the_verdict_names_every_doubt_and_never_contradicts_the_truth(folder):
    change(folder, "ope.json", doubts=[])
    page = write_report(folder).read_text()
    assert "The estimates are settled" in page
    assert "wrong all the same" not in page
    change(folder, "ope.json", true_return=26.9)  # outside of the first interval
    assert "They are wrong all the same" in write_report(folder).read_text()
    change(folder, "ope.json", doubts=["the estimators differ by 12", "values <still> changed"])
    page = write_report(folder).read_text()
    assert "not settled</b>: the estimators differ by 12; values &lt;still&gt; changed." in page
    assert "The estimates are settled" not in page


def test_an_estimate_of_few_episodes_is_shown_without_an_interval(folder):
    ope = json.loads((folder / "ope.json").read_text())
    ope["estimates"][1] |= {"low": None, "high": None}
    change(folder, "ope.json", estimates=ope["estimates"])
    page = write_report(folder).read_text()
    assert "per decision: 50, no interval" in page
    assert "episodes&#39; worth" in page or "episodes' worth" in page


# Episodes ------------------------------------------------------------------------------------


def test_the_episode_shown_is_the_one_in_which_the_filter_has_most_to_do(folder):
    bare, filtered = made_up_trajectories()
    assert plant_episode.busiest_episode(filtered) == 1
    page = write_report(folder).read_text()
    assert "in which the filter has most to do" in page
    # After 50 steps of a minute the bare plant is lost: its line ends, the filtered one goes on.
    margin = charts(page)["runaway: margin, K"]
    last = 375.0 - float(bare.obs[49, 1, 0])
    assert at(margin, 50.0)["bare"].startswith(f"{last:.4g}".replace("-", MINUS)[:4])
    assert "bare" not in at(margin, 60.0)
    assert at(margin, 60.0)["filtered"].startswith("5")


def test_without_interventions_it_is_the_one_closest_to_a_hard_limit(folder):
    bare, filtered = made_up_trajectories()
    never = np.zeros((T, E), bool)
    write_trajectories(folder, bare, filtered.replace(intervened=never, emergency=never))
    signals = [Signal(**entry) for entry in PLANT["observation"] + PLANT["action"]]
    limits = [Limit(**entry) for entry in PLANT["limits"]]
    facts = PlantFacts(signals[:2], signals[2:], limits, 60.0)
    assert plant_episode.closest_episode(bare, facts) == 1
    soft = replace(facts, limits=limits[1:])
    near = np.full((T, E, 1), 10.0)
    near[3, 2] = 1.0
    assert plant_episode.closest_episode(bare.replace(margins=near), soft) == 2
    assert "the filter never acts" in write_report(folder).read_text()


def test_time_ends_where_the_longest_episode_shown_ends(folder):
    bare, filtered = made_up_trajectories()
    filtered.alive[45:, 1] = False
    write_trajectories(folder, bare, filtered)
    found = charts(write_report(folder).read_text())

    def last(chart):
        return max(line["x"][-1] for line in chart["series"])

    assert last(found["runaway: margin, K"]) == 60.0  # of the other episodes, as a band
    assert last(found["temperature, K"]) <= 50.0


def test_what_the_filter_did_is_shaded_where_it_did_it(folder):
    chart = charts(write_report(folder).read_text())["runaway: margin, K"]
    assert [line["name"] for line in chart["series"]] == ["bare", "filtered"]
    assert [shade["name"] for shade in chart["shades"]] == ["filter acts", "emergency action"]
    assert [shade["spans"] for shade in chart["shades"]] == [[[20.0, 30.0]], [[40.0, 60.0]]]


def test_actuators_are_in_physical_units_and_dead_signals_are_left_out(folder):
    page = write_report(folder).read_text()
    found = charts(page)
    # Action 0 is the middle of 80 to 120.
    assert at(found["feed, L/min (actuator)"], 0.0) == {"bare": "100", "filtered": "100"}
    assert "patient weight, kg" not in found
    assert "1 more signal is not drawn: without a change in this episode." in page
    assert found["temperature, K"]["references"] == [["runaway", 375.0]]


def test_long_episodes_are_drawn_in_stretches_that_keep_the_smallest_margin():
    clock = plant_episode.Clock(10_000, 3600.0)
    assert len(clock.starts) <= plant_episode.POINTS
    assert clock.unit == "days"
    assert clock.edges[-1] == pytest.approx(10_000 / 24)
    values = np.ones(10_000)
    values[1234], values[5000:] = -5.0, np.nan
    shown = clock.reduce(np.fmin, values)
    assert np.nanmin(shown) == -5.0
    assert np.isnan(shown[-1])
    flags = np.zeros(10_000, bool)
    flags[9_999] = True
    assert clock.reduce(np.logical_or, flags).tolist() == [False] * (len(clock.starts) - 1) + [True]


@pytest.mark.parametrize(
    ("steps", "seconds", "unit"),
    [(100, 0.2, "s"), (200, 6.0, "min"), (480, 180.0, "h"), (2, 60.0, "s")],
)
def test_time_is_in_a_unit_that_fits_the_episode(steps, seconds, unit):
    assert plant_episode.Clock(steps, seconds).unit == unit


# Halves --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "said", "gone"),
    [
        ("metrics.jsonl", "Nothing has been learned yet", "Inside the learners"),
        ("eval.jsonl", "has not been evaluated yet", "Return in the plant"),
        ("ope.json", "ope.json is not there", "From the data alone"),
        ("trajectories.npz", "trajectories.npz is not there", "Margins over time"),
        ("constraints.yaml", "constraints.yaml is not there", "Constraints in force"),
        ("data.npz", "data.npz is not there", "Look into it"),
    ],
)
def test_a_page_says_what_is_missing_and_leaves_its_section_out(folder, lost, said, gone):
    assert f">{gone}<" in write_report(folder).read_text()
    (folder / lost).unlink()
    page = write_report(folder).read_text()
    assert "This run is not complete" in page
    assert said in page
    assert f">{gone}<" not in page


def test_a_signal_without_an_end_to_its_range_is_shown(folder):
    """JSON has no infinity: such an end is null in config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["plant"]["observation"][0]["high"] = None
    path.write_text(json.dumps(config))
    assert "temperature, K" in charts(write_report(folder).read_text())


@pytest.mark.parametrize("name", ["ope.json", "trajectories.npz", "data.npz"])
@pytest.mark.parametrize("content", ["", "{", "[3]"])
def test_broken_files_do_not_break_the_page(folder, name, content):
    (folder / name).write_text(content)
    assert f"{name} cannot be read" in write_report(folder).read_text()


@pytest.mark.parametrize("estimates", [[], None, 3, [3], [{"method": "fqe", "value": "many"}]])
def test_odd_estimates_do_not_break_the_page(folder, estimates):
    change(folder, "ope.json", estimates=estimates, support=None)
    assert "Return in the plant" in write_report(folder).read_text()


def test_a_run_that_asked_for_no_estimate_is_complete(folder):
    (folder / "ope.json").unlink()
    about = json.loads((folder / "config.json").read_text())
    change(folder, "config.json", config=about["config"] | {"ope_updates": 0})
    page = write_report(folder).read_text()
    assert "No off-policy estimate was asked for (ope_updates is 0)" in page
    assert "not complete" not in page


def test_a_run_cut_short_says_how_far_it_came(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:13]) + lines[13][:20])
    page = write_report(folder).read_text()
    assert "13,000 of 40,000 updates" in page
    assert "A line of metrics.jsonl could not be read" in page


def test_a_folder_with_nothing_but_settings_has_a_page(folder):
    for path in folder.iterdir():
        if path.name != "config.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    about = json.loads((folder / "config.json").read_text())
    for name in ("plant", "data", "constraints"):
        del about[name]
    (folder / "config.json").write_text(json.dumps(about))
    page = write_report(folder).read_text()
    assert "Nothing has been learned yet" in page
    assert "--resume" not in page


def test_what_a_file_says_is_shown_and_not_obeyed(folder):
    page = write_report(folder).read_text()
    assert "# &lt;now&gt;" in page
    assert "<now>" not in page
