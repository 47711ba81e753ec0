"""Published figures are those of the benchmark's file."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import figures, merge, tables

ROOT = Path(__file__).parents[2]
RESULT = {
    "ratios": {"time_to_500": 123.456, "world_steps_per_second": 1234.5},
    "machine": {"cpu": "a processor", "cores": 2},
    "versions": {"python": "3.11.7", "jax": "0.10.2"},
    "command": "worldloom bench grid",
    "date": "2030-01-02T03:04:05+00:00",
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


def test_every_section_is_told_with_its_day_and_commit():
    first = {"date": "2030-01-03T00:00:00+00:00", "commit": "a" * 40 + "+changes"}
    result = RESULT | {"sections": ["speed", "steps", "ope"], "measured": {"ope": first}}
    ope = "2030-01-03 at aaaaaaa+changes"
    assert tables.when(result) == f"speed, steps: 2030-01-02; ope: {ope}"
    assert tables.when(result, "ope") == ope
    assert tables.when(RESULT) == "2030-01-02"


def part_of(section, **changes):
    """A result of one section, measured apart."""
    at = {"date": "2030-01-04T00:00:00+00:00", "commit": "b" * 40, "seconds": 1.0}
    part = RESULT | {"command": f"worldloom bench grid --only {section}", "raw": {section: [2]}}
    part |= {"ratios": {"time_to_500": None, "time_to_500_tuned": 2.0}, "measured": {section: at}}
    return part | {"kind": "bench", "suite": "grid", "errors": {}, "complete": True} | changes


def test_a_section_measured_apart_joins_the_others_and_keeps_its_origin(tmp_path):
    whole = RESULT | {"kind": "bench", "suite": "grid", "sections": ["learning", "speed"]}
    whole |= {"raw": {"learning": [1], "speed": [1]}, "skipped": {"speed": "no torch"}}
    merged = merge.merge(whole, part_of("speed"))
    assert merged["raw"] == {"learning": [1], "speed": [2]}
    assert merged["ratios"] == RESULT["ratios"] | {"time_to_500_tuned": 2.0}
    assert merged["skipped"] == {}
    assert merged["measured"]["speed"]["command"] == "worldloom bench grid --only speed"
    assert tables.when(merged) == "learning: 2030-01-02; speed: 2030-01-04 at bbbbbbb"
    assert whole["raw"]["speed"] == [1]
    paths = [tmp_path / "part.json", tmp_path / "whole.json"]
    for path, content in zip(paths, (part_of("speed"), whole), strict=True):
        path.write_text(json.dumps(content))
    assert merge.main([str(path) for path in paths]) == 0
    assert json.loads(paths[1].read_text()) == merged


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"suite": "arc"}, "'arc' does not go into 'grid'"),
        ({"quick": True}, "figures mean nothing"),
        ({"errors": {"speed": "out of memory"}, "complete": False}, "out of memory"),
        ({"complete": False}, "it was stopped"),
        ({"skipped": {"speed": "no torch"}}, "speed was skipped: no torch"),
    ],
)
def test_what_is_no_whole_measurement_of_the_suite_is_not_merged(changes, message):
    whole = part_of("learning")
    with pytest.raises(ValueError, match=message):
        merge.merge(whole, part_of("speed", **changes))


def test_scores_stand_beside_constants_loops_and_published_ones():
    learned = {"algo": "iql", "mean": 84.67, "std": 0.69, "published": None, "how": "the paper's"}
    rows = [{"algo": "best constant", "mean": 90.7, "how": "[-1.0], of 11"}, learned]
    raw = {"scores": [{"dataset": "simglucose"} | row for row in rows]}
    raw["published_scores"] = {"simglucose": {"bc": (75.1, 0.7), "cql": (11.0, 3.4)}}
    text = tables.scores(RESULT | {"raw": raw})
    assert "| simglucose | best constant | 90.7 | - | [-1.0], of 11 |" in text
    assert "| simglucose | iql | 84.7 ± 0.7 | - | the paper's |" in text
    assert "The best published: simglucose bc 75.1 ± 0.7. Measured 2030-01-02." in text


def test_returns_of_plants_are_shown_bare_and_filtered_and_harm_is_counted():
    common = {"plant": "water", "quality": "medium", "data": 10.0, "loops": 12.0}
    rows = [
        {"algo": "mean action", "return": 8.0, "filtered": 8.0},
        {"algo": "iql", "return": 20.0, "filtered": 18.9},  # 5.5 % lost
    ]
    safe = {"violated_bare": 0.0, "violated_filtered": 0.0}
    raw = {"plants": [common | row | safe for row in rows]}
    raw["plants"].append(common | rows[0] | {"quality": "random", "loops": None} | safe)
    raw["plants"][0] |= {"violated_bare": 0.1, "violated_filtered": 0.2}
    text = tables.plants(RESULT | {"raw": raw})
    heads = "mean action | iql | mean action, filtered | iql, filtered |"
    assert f"| plant | data | logged | control loops | {heads}" in text
    assert "| water | medium | 10 | 12 | 8 | 20 | 8 | 18.9 |" in text
    assert "| water | random | 10 | - | 8 | - | 8 | - |" in text
    assert "Of 3 controllers, 1 cross hard limits in more steps" in text
    assert "of the 2 that cross none without it, 1 lose more than 5%" in text


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
    row = {"mode": "jax_fused", "num_agents": 4, "epochs_per_second": 0.8101}
    row |= {"speedup": 2.514, "epoch_ms": 1234.5}
    result = {
        "parts": {"epoch": "a whole epoch"},
        "rows": [row | {"compile_seconds": 3.0}],
        "notes": ["Figures are medians."],
        "errors": {"8 agents": "out of memory"},
        "machine": {"cpu": "a processor", "cores": 2},
        "versions": {"python": "3.11.7", "jax": "0.10.2"},
        "command": "worldloom bench modes",
        "date": "2030-01-02T03:04:05+00:00",
    }
    marks = "<!-- figures:modes -->\n{}<!-- /figures:modes -->"
    text = figures.fill(marks.format("old\n"), "modes", tables.modes(result))
    heads = "agents | mode | epochs/s | speed-up | epoch, ms | compile, s | memory, MB"
    assert f"| {heads} |\n| --- |" in text
    assert "| 4 | jax_fused | 0.81 | 2.51 | 1,230 | 3 | - |" in text
    assert "- Figures are medians." in text
    assert "- 8 agents failed: out of memory" in text
    assert "a processor, 2 cores, python 3.11.7, jax 0.10.2" in text
    assert text.endswith("`worldloom bench modes`; 2030-01-02.\n<!-- /figures:modes -->")
    assert "old" not in text


def test_agents_and_populations_are_shown_with_what_they_cost_and_gain():
    row = {"algo": "ppo", "agents": 64, "seconds_per_step": 4e-4, "learner_mb": 18.1}
    row |= {"peak_mb": 475.0, "compile_seconds": 3.8}
    agents = {"rows": [row], "sizes": {"worlds": 16, "side": 24}}
    found = {
        "scores": {"population": [5.0, 7.0], "random search": [4.0, 6.0]},
        "iqm": {"population": 6.0, "random search": 5.0},
        "interval": {"population": [5.0, 7.0], "random search": [4.0, 6.0]},
        "random play": 1.0,
        "ratio": 1.25,
    }
    result = RESULT | {"raw": {"agents": agents, "population": {"tag": found}}}
    assert "| `ppo` | 64 | 160,000 | 18.1 | 475 | 3.8 |" in tables.agents(result)
    text = tables.population(result)
    assert "| `tag` | 6.0 (5.0 to 7.0) | 5.0 (4.0 to 6.0) | 1.0 | 1.250 |" in text
    assert "over 2 seeds" in text


def test_welfare_in_cleanup_is_shown_with_its_spread():
    rows = [
        {"rewards": rewards, "welfare": welfare, "random_play": 17.6}
        for rewards, welfare in (("selfish", 0.0), ("shared", 700.0), ("shared", 900.0))
    ]
    means = {"welfare": {"selfish": 0.0, "shared": 800.0}, "gini": {"selfish": None, "shared": 0.2}}
    text = tables.cleanup(RESULT | {"raw": {"cleanup": {"rows": rows} | means}})
    assert "| selfish rewards | 0 | 0 | - |" in text
    assert "| shared rewards | 800 | 700, 900 | 0.20 |" in text
    assert "Random play: 18" in text


def test_generalisation_stands_beside_all_baselines():
    row = {"pass_at_1": 0.5, "pass_at_2": 0.75, "test_pairs": 8}
    told = {"tasks": {"mini-arc": 8}, "search_cpu_seconds_per_task": 0.19}
    told |= {
        way: {"mini-arc": [row, row | {"pass_at_1": 0.7}]}
        for way in ("policy", "policy with search")
    }
    told["baselines"] = {"brute-force search": {"mini-arc": row | {"pass_at_1": 0.25}}}
    text = tables.generalisation(RESULT | {"raw": {"generalisation": told}})
    assert "| policy with search | 60.0% (75.0%) |" in text
    assert "| brute-force search | 25.0% (75.0%) |" in text
    assert "over 2 seeds" in text
    assert "0.19 s" in text
