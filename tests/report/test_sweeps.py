"""The page of a sweep shows every point, and says what went wrong."""

import re

from report.reading import at, charts, drawings
from worldloom.report.sweeps import write_sweep


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
