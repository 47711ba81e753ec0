"""The page of a dataset: its figures are right, and a browser shows all of it."""

import numpy as np
import pytest

from suites.plant.made_run import make_dataset
from worldloom.replay.dataset_checks import check
from worldloom.report.plots import density, histogram
from worldloom.suites.plant.data_figures import contents, coverage, figures, violations
from worldloom.suites.plant.data_page import data_page
from worldloom.suites.plant.reactor import make


@pytest.fixture(scope="module")
def world():
    return make().base


@pytest.fixture(scope="module")
def dataset():
    return make_dataset()


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


def test_a_histogram_counts_every_value_once():
    drawn = histogram(np.asarray([0.0, 0.1, 0.1, 1.0, np.nan]), bins=10, title="x")
    counts = drawn["spec"]["series"][0]["y"][:-1]
    assert sorted(filter(None, counts)) == [1, 1, 2]
    assert drawn["summary"] == "x: 4 rows from 0 to 1, most from 0.1 to 0.2."
    for values in (np.full(5, 3.0), np.asarray([])):
        assert sum(histogram(values, title="x")["spec"]["series"][0]["y"][:-1]) == len(values)


def test_a_density_holds_the_cells_in_which_there_are_rows():
    rows = np.asarray([0.0, 0.0, 1.0])
    cells = density(rows, rows, x_label="a", y_label="b", bins=2)["spec"]["cells"]
    assert cells == [[0, 0.5, 0, 0.5, 2], [0.5, 1, 0.5, 1, 1]]


def test_the_page_escapes_names_and_tells_defects(found, dataset):
    html = data_page(found, check(dataset), "a.npz")
    assert "<b>walks" not in html
    assert "This dataset has defects" not in html
    broken = dataset.replace(starts=np.asarray([0, 0], np.int32))
    html = data_page(found, check(broken), "a.npz")
    assert "This dataset has defects" in html
    assert "an episode has no step: 1 times" in html
