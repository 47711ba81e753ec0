"""The study of how to choose among policies: known answers, and what is written."""

import json

import numpy as np
import pytest

from benchmarks import plant, plant_oracle, plant_select
from benchmarks.pages import plant as plant_page
from worldloom.algos.policy_selection import Candidate
from worldloom.core.files import read_json
from worldloom.report import page

NAMES = ("bad", "fair", "good")


def candidates(values, half):
    return [Candidate(n, v, v - half, v + half) for n, v in zip(NAMES, values, strict=True)]


def pool(*means, noise=0.1):
    rng = np.random.default_rng(0)
    return np.asarray(means)[:, None] + noise * rng.normal(size=(len(means), 200))


def test_regret_is_a_share_of_what_lies_between_best_and_worst():
    found = plant_select.study(
        candidates([0.0, 9.0, 5.0], 1.0), np.asarray([2.0, 3.0, 4.0]), pool(0.0, 6.0, 8.0), 3
    )
    assert found["regret"]["estimate"] == pytest.approx([0.25] * 5, abs=0.01)
    assert found["regret"]["lower_end"] == found["regret"]["estimate"]
    assert found["regret"]["uniform"] == pytest.approx([0.0] * 5)
    assert found["recommended"] == "fair"
    assert found["better_than_logged"]
    assert found["some_better"]


def test_a_bandit_with_wide_priors_unlearns_a_wrong_estimate():
    found = plant_select.study(
        candidates([0.0, 9.0, 5.0], 20.0), np.full(3, 50.0), pool(0.0, 6.0, 8.0), 5
    )
    assert found["regret"]["bandit"][-1] == pytest.approx(0.0)
    assert found["recommended"] is None
    assert not found["some_better"]


def test_figures_are_means_over_logs():
    regret = {"bandit": [0.1] * 5, "uniform": [0.4] * 5}
    logs = [
        {"regret": regret, "recommended": "a", "better_than_logged": True},
        {"regret": regret, "recommended": None, "better_than_logged": None},
    ]
    found = plant_select.figures(logs)
    assert found["regret_vs_uniform"] == pytest.approx(0.25)
    assert (found["recommended"], found["sound_share"]) == (1, 1.0)


def test_the_tuned_loops_share_lies_between_random_and_oracle():
    row = {n: {"return": v} for n, v in (("random", 2.0), ("pid_tuned", 5.0), ("oracle", 6.0))}
    assert plant_oracle.tuned_share(row) == pytest.approx(0.75)


@pytest.mark.nightly
def test_both_sections_are_measured_written_and_shown(tmp_path):
    out = tmp_path / "plant.json"
    record = plant.run(plant.QUICK, ["select", "oracle"], out, "line", quick=True)
    assert record.result["complete"], record.result["errors"]
    kept = read_json(out)["raw"]
    assert [log["plant"] for log in kept["select"]["logs"]] == ["water"] * 4
    assert kept["oracle"]["dmsd"]["settings"]
    html = page.page("", plant_page.sections(kept))
    assert "Choosing among policies" in html
    assert "How well plants can be controlled" in html


@pytest.mark.nightly
def test_the_librarys_table_keeps_what_was_not_measured(tmp_path, monkeypatch):
    table = tmp_path / "references.json"
    monkeypatch.setattr(plant_oracle.references, "TABLE", table)
    row = {n: {"return": 1.23456789, "stderr": 0.0, "episodes": 2}
           for n in ("random", "pid_detuned", "pid_tuned", "oracle")}  # fmt: skip
    for name in ("b", "a"):
        result = tmp_path / f"{name}.json"
        result.write_text(json.dumps({"raw": {"oracle": {name: row | {"settings": name}}}}))
        plant_oracle.main(str(result))
    kept = json.loads(table.read_text())
    assert list(kept) == ["a", "b"]
    assert kept["b"]["oracle"]["return"] == 1.23457
    assert kept["b"]["settings"] == "b"
