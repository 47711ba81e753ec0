"""The page of a dataset: its figures are right, and a browser shows all of it."""

import numpy as np
import pytest

from worldloom.replay.dataset import from_columns
from worldloom.replay.dataset_checks import check
from worldloom.report.plots import density, histogram
from worldloom.suites.plant.data_figures import contents, coverage, figures, violations
from worldloom.suites.plant.data_page import data_page, write_page
from worldloom.suites.plant.reactor import make

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1200, "height": 900}


@pytest.fixture(scope="module")
def world():
    return make().base


@pytest.fixture(scope="module")
def dataset():
    """Twelve episodes of 50 steps around the reactor's working point."""
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(size=(12, 51, 5)), 1) * [0.02, 1.5, 1.0, 0.5, 0.01]
    states = (walks + np.asarray([0.5, 350.0, 300.0, 350.0, 0.5])).astype(np.float32)
    last = np.tile(np.arange(50) == 49, 12)
    action = np.clip(rng.normal(0, 0.4, (600, 2)), -1, 1)
    return from_columns(
        states[:, :-1].reshape(-1, 5), action, rng.normal(1, 1, 600),
        states[:, 1:].reshape(-1, 5), np.zeros(600, bool), last, name="<b>walks & co",
        provenance=(("env", "reactor"), ("quality", "medium"), ("seed", "0")),
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(dataset, world):
    return contents(dataset, world)


def test_returns_and_ends_are_counted(found, dataset):
    told = figures(found)
    sums = np.asarray(dataset.rows.reward, float).reshape(12, 50).sum(1)
    assert told["return"]["mean"] == pytest.approx(sums.mean())
    assert told["return"]["max"] == pytest.approx(sums.max())
    assert (told["episodes"], told["truncated"], told["terminated"]) == (12, 12, 0)
    assert told["steps"]["min"] == told["steps"]["max"] == 50


def test_violations_without_logged_costs_are_those_of_the_plant(found, dataset):
    hot = np.asarray(dataset.rows.next_obs[:, 1]) - 375.0
    move = np.abs(np.diff(np.asarray(dataset.rows.action[:, 0]).reshape(12, 50), axis=1)) * 20 - 10
    runaway, quench, shock = violations(found)
    assert runaway["rows"] == (hot > 0).sum()
    assert runaway["worst"] == pytest.approx(max(hot.max(), 0), rel=1e-4)
    assert quench["limit"] == "quench"
    assert shock["rows"] == pytest.approx((move > 0).sum(), abs=1)  # a change of just the bound
    assert shock["rows"] > 10


def test_coverage_is_the_part_of_a_range_that_was_seen():
    assert coverage(np.linspace(0, 1, 1000), 0, 1) == 1.0
    assert coverage(np.linspace(0, 0.4999, 1000), 0, 1) == 0.5
    assert coverage(np.zeros(10), 0, 0) == 1.0
    rare = np.concatenate([np.zeros(99_999), [1.0]])
    assert coverage(rare, 0, 1) == 1 / 20


def test_a_histogram_draws_every_value_once():
    drawn = histogram(np.asarray([0.0, 0.1, 0.1, 1.0, np.nan]), bins=10, title="x")
    assert drawn.count('class="bar"') == 3
    assert "2 rows (50.0%)" in drawn
    assert "<svg" in histogram(np.full(5, 3.0))
    assert "<svg" in histogram(np.asarray([]))


def test_a_density_draws_the_cells_that_hold_rows():
    drawn = density(
        np.asarray([0.0, 0.0, 1.0]), np.asarray([0.0, 0.0, 1.0]), x_label="a", y_label="b"
    )
    assert drawn.count("of rows</title>") == 2
    assert "66.67% of rows" in drawn


def test_the_page_escapes_names_and_tells_defects(found, dataset):
    html = data_page(found, check(dataset), "a.npz")
    assert "<b>walks" not in html
    assert "This dataset has defects" not in html
    broken = dataset.replace(starts=np.asarray([0, 0], np.int32))
    html = data_page(found, check(broken), "a.npz")
    assert "This dataset has defects" in html
    assert "an episode has no step: 1 times" in html


# In a browser ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(found, tmp_path_factory):
    return write_page(tmp_path_factory.mktemp("data") / "page.html", found, None, "data/a.npz")


@pytest.mark.slow
@pytest.mark.parametrize("viewport", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_is_whole_on_any_screen(browser, page, viewport):
    wrong = []
    view = browser.new_page(viewport=viewport)
    view.on("console", lambda message: wrong.append(message.text))
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on("request", lambda r: r.url.startswith(("data:", "file:")) or wrong.append(r.url))
    view.goto(page.as_uri())
    assert view.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    boxes = view.evaluate(
        """() => [...document.querySelectorAll('svg.wl-chart')]
            .map(svg => svg.getBoundingClientRect()).filter(box => box.width > 0)
            .map(box => [box.left, box.right, box.height])"""
    )
    view.close()
    assert wrong == []
    assert len(boxes) >= 18
    assert all(
        left >= 0 and right <= viewport["width"] and height > 80 for left, right, height in boxes
    )
