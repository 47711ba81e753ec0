"""The page of a sweep shows every point, and says what went wrong."""

import math
import re

import numpy as np
import pytest

from report.reading import at, charts, drawings
from worldloom.report.importance import by_optuna, explained, importances, rank_correlation
from worldloom.report.parallel import axis
from worldloom.report.populations import write_population
from worldloom.report.sweeps import rank, write_sweep


def row(settings, scores, **more):
    mean = sum(scores) / len(scores)
    return {
        "settings": settings, "scores": scores, "mean": mean, "stderr": 1.5, "worst": min(scores),
        "diverged": 0, "curve": [1.0, mean], "steps_per_iteration": 50, "seconds": 2.0,
        "program": 0,
    } | more  # fmt: skip


def sweep(*rows, complete=True):
    return {
        "kind": "sweep", "command": "worldloom sweep tag", "config": {"env": "tag"}, "seeds": 2,
        "complete": complete, "results": list(rows), "machine": {"cores": 2},
        "versions": {"jax": "1"},
    }  # fmt: skip


def test_every_point_is_on_the_page_with_its_score(tmp_path):
    rows = [row("iqn.gamma=0.5", [10.0, 14.0]), row("iqn.gamma=0.9", [20.0, 31.0])]
    page = write_sweep(sweep(*rows), tmp_path / "sweep.html").read_text()
    text = re.sub(r"<[^>]+>", " ", page)
    for said in ("iqn.gamma=0.5", "iqn.gamma=0.9", "25.5", "10, 14", "worldloom sweep tag"):
        assert said in text
    bars = drawings(page)["Score of each point"]
    said = [node.text for node in bars.iter() if node.tag.endswith("title")]
    assert "iqn.gamma=0.9 · mean of the seeds ± s.e.: 25.5 ± 1.5" in said
    assert "random play" not in text, "of a sweep without it"
    assert "diverged" not in text
    assert "stopped" not in text


def test_runs_that_diverged_and_sweeps_that_stopped_are_named_first(tmp_path):
    one = row("iqn.learning_rate=9", [1.0], stderr=None, diverged=1)
    page = write_sweep(sweep(one, complete=False), tmp_path / "sweep.html").read_text()
    assert "iqn.learning_rate=9: 1 runs diverged" in page
    assert "stopped before its end" in page


def test_curves_are_drawn_over_steps_best_points_first(tmp_path):
    # Scores may be negative, and a run that diverged has none.
    rows = [row(f"x={n}", [-float(n)]) for n in range(1, 10)] + [row("x=bad", [0.0], mean=None)]
    page = write_sweep(sweep(*rows), tmp_path / "sweep.html").read_text()
    (chart,) = charts(page).values()
    assert chart["x_label"] == "steps"
    assert chart["series"][0]["x"] == [50, 100]  # two iterations of 50 steps
    assert "The 7 best points." in page
    assert [line["name"] for line in chart["series"]] == [f"x={n}" for n in range(1, 8)]


def test_random_play_is_a_line_where_all_points_share_a_world_and_else_a_bar_of_each(tmp_path):
    def drawn(*means):
        rows = [
            row(f"x={n}", [float(n)], references={"random play": {"mean": mean, "stderr": 0.5}})
            for n, mean in enumerate(means)
        ]
        page = write_sweep(sweep(*rows), tmp_path / "sweep.html").read_text()
        return page, drawings(page)["Score of each point"]

    page, bars = drawn(3.0, 3.0)
    text = [node.text for node in bars.iter() if node.tag.endswith("text")]
    assert "random play 3" in text
    assert ">random play</th>" in page
    page, bars = drawn(3.0, 4.0)
    said = [node.text for node in bars.iter() if node.tag.endswith("title")]
    assert "x=1 · random play ± s.e.: 4 ± 0.5" in said


def test_curves_have_the_error_of_the_seeds(tmp_path):
    one = row("x=1", [1.0, 3.0], curve=[1.0, 2.0], curve_stderr=[0.5, None])
    page = write_sweep(sweep(one), tmp_path / "sweep.html").read_text()
    (chart,) = charts(page).values()
    assert at(chart, 50) == {"x=1": "1 ± 0.5"}
    assert at(chart, 100) == {"x=1": "2"}


def test_an_empty_sweep_still_has_a_page(tmp_path):
    assert "Sweep of tag" in write_sweep(sweep(complete=False), tmp_path / "s.html").read_text()


# Intervals, settings and importance ------------------------------------------------------------


def drawn(count=24, **more):
    """Points whose score is ten times the logarithm of the rate; the colour does nothing."""
    rng = np.random.default_rng(0)
    rates = 10 ** rng.uniform(-4, -1, count)
    return [
        row(f"rate={rate:.3g}", [30 + 10 * float(np.log10(rate))], iqm_low=1.0, iqm_high=2.0,
            iqm=30 + 10 * float(np.log10(rate)),
            values={"rate": float(rate), "colour": ("red", "blue", "green")[n % 3]}) | more
        for n, rate in enumerate(rates)
    ]  # fmt: skip


def test_scores_are_interquartile_means_with_their_interval(tmp_path):
    one = row("x=1", [10.0, 14.0], iqm=12.0, iqm_low=10.5, iqm_high=13.0, values={"x": 1})
    page = write_sweep(sweep(one), tmp_path / "sweep.html").read_text()
    said = [node.text for node in drawings(page)["Score of each point"].iter()]
    name = "interquartile mean of the seeds, 95 % interval"
    assert f"x=1 · {name}: 12 (10.5 to 13)" in said
    assert "10.5 to 13" in re.sub(r"<[^>]+>", " ", page)


def test_every_point_is_a_line_through_its_settings(tmp_path):
    rows = drawn(6)
    rows[2]["stopped_at"] = 100
    page = write_sweep(sweep(*rows), tmp_path / "sweep.html").read_text()
    chart = drawings(page)["Settings and scores"]
    lines = [node for node in chart.iter() if node.tag.endswith("polyline")]
    assert len(lines) == 6
    assert sum("stroke-dasharray" in line.attrib for line in lines) == 1
    # The best is drawn last, over all others, and ends highest.
    ends = [float(line.attrib["points"].split()[-1].split(",")[1]) for line in lines]
    assert ends == sorted(ends, reverse=True)
    assert {line.attrib["points"].count(",") for line in lines} == {3}  # rate, colour, score


def test_axes_are_numbers_or_places():
    log = axis("rate", [1e-4, 1e-3, 1e-2, 1e-1, 1.0], by_log=True)
    gaps = np.diff([log.y(10.0**n) for n in range(-4, 1)])
    assert np.allclose(gaps, gaps[0])
    few = axis("hidden", [64, 8, 8, 16])
    assert few.y(8) > few.y(16) > few.y(64), "small numbers are at the bottom"
    assert math.isnan(few.y(None))


def test_what_matters_is_told_from_what_does_not(tmp_path):
    rows = drawn()
    points, scores = [r["values"] for r in rows], [r["iqm"] for r in rows]
    first, second = importances(points, scores)
    assert (first.name, second.name) == ("rate", "colour")
    assert first.share > 0.8 > first.chance
    assert second.share <= second.chance < 0.5
    assert first.direction == pytest.approx(1.0)
    assert math.isnan(second.direction)
    page = write_sweep(sweep(*rows), tmp_path / "sweep.html").read_text()
    said = [node.text for node in drawings(page)["Importance of settings"].iter()]
    assert any(text and text.startswith("rate ↑ · share of the variance") for text in said)
    assert any(text and text.startswith("colour ? · share of the variance") for text in said)
    assert importances(points[:5], scores[:5]) == [], "of so few points nothing can be said"


def test_importance_is_that_of_an_analysis_of_variance_and_of_chance_nothing():
    stats = pytest.importorskip("scipy.stats", reason="scipy comes with other packages")
    rng = np.random.default_rng(1)
    values, noise = list("abcd") * 15, rng.normal(size=60)
    scores = noise + np.array([ord(v) - 97 for v in values])
    f = stats.f_oneway(*(scores[i::4] for i in range(4))).statistic
    epsilon = 3 * (f - 1) / (3 * f + 56)  # epsilon squared in terms of F
    assert explained(values, scores) == pytest.approx(epsilon)
    by_chance = [explained(values, rng.normal(size=60)) for _ in range(200)]
    assert np.mean(by_chance) < 0.03
    numbers = rng.integers(0, 5, 60).tolist()
    expected = stats.spearmanr(numbers, scores).statistic
    assert rank_correlation(numbers, scores) == pytest.approx(expected)


def test_optuna_agrees_on_what_matters():
    pytest.importorskip("optuna", reason="needs worldloom[sweep]")
    rows = drawn(60)
    found = by_optuna([r["values"] for r in rows], [r["iqm"] for r in rows])
    assert found["rate"] > 0.8


def test_the_best_is_one_that_was_not_stopped():
    rows = [{"iqm": 1.0}, {"iqm": 9.0, "stopped_at": 5}, {"iqm": None}, {"iqm": 2.0}]
    assert max(rows, key=rank) == {"iqm": 2.0}


MEMBERS = {
    "seed": 3, "score": 7.5, "numbers": {"learning_rate": 0.01},
    "scores": [[1.0, 2.0, None], [3.0, 5.0, 4.0]], "parents": [[0, 1, 1], [0, 1, 2]],
    "members": {"learning_rate": [[0.1, 0.01, 0.001], [0.1, 0.01, 0.012]]},
    "line": [1, 1], "schedule": {"learning_rate": [0.01, 0.01]},
}  # fmt: skip
POPULATION = {
    "kind": "population", "results": [MEMBERS], "members": 3, "steps_per_generation": 50,
    "iqm": 7.5,
}  # fmt: skip


def test_a_population_has_a_page(tmp_path):
    result = sweep(complete=True) | POPULATION
    page = write_population(result, tmp_path / "p.html").read_text()
    learning, rates = charts(page).values()
    assert at(learning, 50) == {"seed 3": "1.5 ± 0.5"}
    assert learning["series"][0]["high"] == [2.0, 5.0]
    assert rates["log"] == [False, True]
    assert "7.5" in re.sub(r"<[^>]+>", " ", page)
    empty = result | {"results": [], "complete": False}
    assert "--resume" in write_population(empty, tmp_path / "e.html").read_text()
