"""index.html of a folder of runs: every run, its page one click away, curves by world."""

import json
import shutil

import pytest

from report.reading import charts, read
from worldloom.cli.main import main
from worldloom.report.comparison import compare, write_comparison
from worldloom.report.index_page import write_index


@pytest.fixture
def folder(run_folder, tmp_path):
    """Two runs, one of them with a space in its name, and one that is damaged."""
    for name in ("one", "an other"):
        shutil.copytree(run_folder, tmp_path / name, ignore=shutil.ignore_patterns("*.html"))
    (tmp_path / "an other/report.html").write_text("a page")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    return tmp_path


def test_every_run_is_a_row_and_its_page_a_click_away(folder, capsys):
    assert main(["report", str(folder)]) == 0
    assert "next: " in capsys.readouterr().out
    written = folder / "index.html"
    page = read(written)
    text = page.text
    assert "3 runs and sweeps" in text
    assert "damaged: config.json" in text
    assert [load for load in page.loads if not load.startswith("data:")] == [
        "an%20other/report.html"
    ], "what is beside it, and nothing from elsewhere"


def test_runs_in_one_world_share_a_chart(folder):
    found = charts(write_index(folder).read_text())
    (title,) = found
    assert title == "treasurehunt: evaluation score"
    assert {line["name"] for line in found[title]["series"]} == {"one", "an other"}


def test_where_one_wins_what_another_loses_runs_are_told_apart_by_random_play(folder):
    for ahead, name in enumerate(("one", "an other")):
        path = folder / name / "eval.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        more = {"mean": -5.0, "against_random": 0.5 + ahead, "against_random_stderr": 0.25}
        path.write_text("".join(json.dumps(row | more) + "\n" for row in rows))
    page = write_index(folder).read_text()
    chart = charts(page)["treasurehunt: evaluation score"]
    assert {(line["name"], line["y"][-1]) for line in chart["series"]} == {
        ("one", 0.5), ("an other", 1.5)
    }  # fmt: skip
    assert dict(chart["references"]) == {"random play": 0.0}
    assert "1.5 ± 0.25" in page
    rows = compare([folder / "one", folder / "an other"], lambda run: {})
    assert [(row.run.path.name, row.score) for row in rows] == [("an other", 1.5), ("one", 0.5)]
    page = write_comparison(rows, folder / "comparison.html").read_text()
    curve = charts(page)["return ahead of random agents ± s.e."]
    assert dict(curve["references"]) == {"random play": 0.0}


def test_a_folder_without_runs_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()
