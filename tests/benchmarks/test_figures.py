"""Published figures are those of the benchmark's file."""

import json
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
    filled = figures.fill(page, "grid", RESULT)
    assert filled.startswith("before\n<!-- figures:grid -->\n| figure")
    assert filled.endswith("<!-- /figures:grid -->\nafter\n")
    assert "| `time_to_500` | 123 |" in filled
    assert "| `world_steps_per_second` | 1,230 |" in filled
    assert "| `time_to_500_tuned` | not measured |" in filled
    assert "stale row" not in filled
    assert figures.fill(filled, "grid", RESULT) == filled


def test_the_chart_is_valid_svg_with_the_values():
    picture = figures.chart("grid", RESULT)
    ElementTree.fromstring(picture)
    assert "123x" in picture


@pytest.mark.parametrize(
    ("suite", "page", "figure"),
    [
        ("grid", "README.md", "time_to_500"),
        ("grid", "docs/grid.md", "time_to_500"),
        ("algos", "docs/command-line.md", "ppo_vs_rejax"),
    ],
)
def test_published_tables_are_those_of_the_result_file(suite, page, figure):
    result = json.loads((ROOT / f"benchmarks/results/{suite}.json").read_text())
    text = (ROOT / page).read_text()
    assert figures.fill(text, suite, result) == text
    assert f"| `{figure}` |" in text


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
    text = figures.fill(marks.format("old\n"), "modes", result)
    assert "| mode | agents | speed-up | epoch, ms | compile, s | memory, MB |" in text
    assert "| jax_fused | 4 | 2.51 | 1,230 | 3 | - |" in text
    assert "- Figures are medians." in text
    assert "old" not in text
