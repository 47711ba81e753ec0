"""Published figures are those of the benchmark's file."""

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import figures

ROOT = Path(__file__).parents[2]
RESULT = {
    "ratios": {"time_to_500": 123.456, "world_steps_per_second": 1234.5},
    "machine": {"cpu": "a processor", "cores": 2},
    "versions": {"python": "3.11.7", "jax": "0.10.2"},
    "command": "worldloom bench grid",
}


def test_figures_stand_between_the_markers_and_nothing_else_changes():
    page = "before\n<!-- figures:grid -->\nstale row\n<!-- /figures:grid -->\nafter\n"
    table = figures.markdown("grid", RESULT)
    filled = figures.fill(page, "grid", table)
    assert filled.startswith("before\n<!-- figures:grid -->\n| figure")
    assert filled.endswith("<!-- /figures:grid -->\nafter\n")
    assert "| `time_to_500` | 123 |" in filled
    assert "| `world_steps_per_second` | 1,230 |" in filled
    assert "| `time_to_500_tuned` | not measured |" in filled
    assert "stale row" not in filled
    assert figures.fill(filled, "grid", table) == filled


def test_the_chart_is_valid_svg_with_the_values_and_no_costs():
    ratios = {"iql_vs_d3rlpy": 2.0, "shipped_filter_time_share": 25.0}
    picture = figures.charts({"grid": RESULT, "plant": {"ratios": ratios}})["speed.svg"]
    ElementTree.fromstring(picture)
    assert "training to the same score, against Sorrel" in picture
    assert "123x" in picture
    assert "25x" not in picture


def test_the_readme_has_one_table_of_what_matters():
    table = figures.headlines({"grid": RESULT})
    assert "| training to the same score | Sorrel's treasure hunt, PyTorch | 123x |" in table
    assert "| ARC steps a second, 1,024 worlds | JaxARC | not measured |" in table
    assert len(table.splitlines()) == 2 + 8
    for suite, name in figures.HEADLINES:
        assert name in figures.MEANING[suite]


def test_published_pages_and_charts_are_those_of_the_result_files(tmp_path):
    for folder in ("benchmarks/results", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    figures.main(tmp_path)
    pages = [path.relative_to(ROOT) for path in (ROOT / "docs").glob("*.md")]
    for page in (Path("README.md"), *pages):
        assert (tmp_path / page).read_text() == (ROOT / page).read_text(), f"{page}: make figures"
    for picture in ("speed.svg", "speed-algos.svg"):
        path = f"docs/images/{picture}"
        assert (tmp_path / path).read_text() == (ROOT / path).read_text(), f"{path}: make figures"
    published = (ROOT / "docs/benchmarks.md").read_text()
    for suite in figures.MEANING:
        assert f"<!-- figures:{suite} -->\n| figure" in published


def test_counts_in_sentences_are_those_of_the_registries():
    known = figures.words({})
    assert known["algorithms"].startswith("on-policy `mappo`, `ppo`")
    assert "`random`" not in known["algorithms"]
    assert known["walk_minutes"] == known["hunt_seconds"] == "some", "without a measurement"
    rates = {"512": {"steps_per_second": {"level4": 1000.0}}}
    robot = {"raw": {"levels": {"sizes": rates}}}
    assert figures.words({"robot": robot})["walk_minutes"] == "82"
    text = "all <!-- n:worlds -->3<!-- /n --> worlds"
    assert figures.fill_words(text, {"worlds": "14"}) == text.replace("3", "14")
    with pytest.raises(KeyError, match="wrolds"):
        figures.fill_words("<!-- n:wrolds --><!-- /n -->", known)


def test_modes_are_shown_with_their_parts():
    row = {"mode": "jax_fused", "num_agents": 4, "speedup": 2.514, "epoch_ms": 1234.5}
    result = {
        "parts": {"epoch": "a whole epoch"},
        "rows": [row | {"compile_seconds": 3.0}],
        "notes": ["Figures are medians."],
        "machine": {"cpu": "a processor", "cores": 2},
        "command": "worldloom bench modes",
    }
    marks = "<!-- figures:modes -->\n{}<!-- /figures:modes -->"
    text = figures.fill(marks.format("old\n"), "modes", figures.modes_markdown(result))
    assert "| mode | agents | speed-up | epoch, ms | compile, s | memory, MB |" in text
    assert "| jax_fused | 4 | 2.51 | 1,230 | 3 | - |" in text
    assert "- Figures are medians." in text
    assert "old" not in text
