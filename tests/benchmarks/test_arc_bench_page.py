"""The page of `worldloom bench arc`: every figure is on it, and what was not measured is not."""

import copy
import json
import re
from xml.etree import ElementTree

import pytest

from report import reading
from worldloom.cli.report import write_page

SVG = "{http://www.w3.org/2000/svg}"
SPEEDS = {"ours": 3.1e6, "ours_single": 41_000.0, "jaxarc": 20_400.0, "arcle_single": 3_700.0}
RESULT = {
    "suite": "arc",
    "command": "worldloom bench arc",
    "ratios": {
        "steps_vs_jaxarc_30x30_1024": 152.0,
        "steps_vs_arcle_single": 11.1,
        "point_mix_vs_box_mix": 0.73,
        "demo_tasks_solved_share": 0.85,
    },
    "raw": {
        "speed": {
            "unit": "steps & resets",
            "batch": 1024,
            "steps_per_second": SPEEDS,
            "seconds_per_step": {
                name: {"samples": [0.5 / v, 1 / v, 2 / v]} for name, v in SPEEDS.items()
            },
            "facts": {"ours": {"devices": 2, "compile_seconds": 7.25, "bytes_per_world": 1096},
                      "jaxarc": {"version": "1.0.3"}},
        },
        "curve": {
            name: [
                {"batch": batch, "steps_per_second": factor * batch, "compile_seconds": 6.5,
                 "scratch_mb": 0.125 * batch, "bytes_per_world": 1096}
                for batch in (1, 64, 4096)
            ]
            for name, factor in (("mini-arc 5x5", 3000.0), ("arc-agi-1 30x30", 1000.0))
        },
        "parts": {
            "recompilations_in_steady_state": 0,
            "ablation": {
                "batch": 256,
                "steps_per_second": {"one_formulation": 220_000.0, "switch": 2_000.0},
                "compile_seconds": {"one_formulation": 4.95, "switch": 86.5},
            },
        },
        "learning": {
            "tasks": 20, "demo_tasks_solved": 17, "test_tasks_solved": 2,
            "rates": {"demo_pairs": 0.91, "demo_pass_at_k": 0.97, "test_pairs": 0.125, "k": 4},
            "per_task": [{"task": "<b>", "demos": 3, "demos_solved": 2, "demos_solved_in_k": 3,
                          "tests": 1, "tests_solved": 0, "tests_solved_in_k": 0, "steps": 4.5}],
            "curve": [{"update": 40 * n, "seconds": 10.0 * n, "demo_pairs": 0.1 * n,
                       "demo_tasks": 0.05 * n, "test_pairs": 0.01 * n} for n in range(1, 6)],
            "timing": {"train_seconds": 139.0, "compile_seconds": 15.5, "steps": 2_457_600,
                       "steps_per_second": 17_600.0},
        },
        "generalisation": {
            "tasks": {"new": 2, "held-out": 1},
            "search_cpu_seconds_per_task": 1.75,
            "policy": {"new": [
                {"test_pairs": 2, "pass_at_1": share, "pass_at_2": 0.5,
                 "solved_per_cpu_minute": 3.5, "families": {"flip rows": share, "swap": 0.0}}
                for share in (0.25, 0.75)]},
            "baselines": {"brute-force search": {"held-out": {
                "test_pairs": 1, "pass_at_1": 0.375, "pass_at_2": 0.625}}},
        },
    },
}  # fmt: skip
TITLES = {
    "speed": "Steps per second",
    "curve": "More worlds",
    "parts": "What each choice is worth",
    "learning": "Learning",
    "generalisation": "Generalisation",
}


def written(result, folder):
    """The body of the page, which must be well-formed, and its text before the raw figures."""
    (folder / "arc.json").write_text(json.dumps(result))
    html = write_page(folder / "arc.json").read_text(encoding="utf-8")
    body = ElementTree.fromstring(re.search(r"<body>.*</body>", html, re.S)[0])
    text = " ".join(" ".join(body.itertext()).split())
    return body, re.split("How it was measured|Raw figures", text)[0]


def charts(body):
    """The wide charts by their title."""
    wide = [div for div in body.iter("div") if div.get("class") == "wide"]
    return {div[0].get("aria-label"): div[0] for div in wide}


def headings(body):
    return [node.text for node in body.iter("h2")]


def test_the_page_has_a_chart_and_the_figures_of_every_section(tmp_path):
    body, text = written(RESULT, tmp_path)
    assert [title for title in headings(body) if title in TITLES.values()] == [*TITLES.values()]
    for said in (
        "Worldloom, 1,024 worlds, boxes", "3,100,000", "1,550,000", "6,200,000", "7.25", "1.0.3",
        "Medians of 3 blocks", "steps & resets", "12,288,000", "4,096,000", "86.5", "110",
        "Recompilations in steady state: 0", "17 of 20", "pass@4", "97", "12.5", "2 of 3", "<b>",
        "new policy 2 2 50 50 3.5", "held-out brute-force search 1 1 37.5 62.5", "1.75 s",
        "flip rows 50", "swap 0",
    ):  # fmt: skip
        assert said in text, said
    lines = [div for div in body.iter("div") if div.get("class") == "plot"]
    assert (len(charts(body)), len(lines)) == (3, 2)


def test_only_speed_ups_stand_on_the_axis_of_speed_ups(tmp_path):
    body, text = written(RESULT, tmp_path)
    chart = charts(body)["Ratios"]
    bars = [node.text for node in chart.iter(f"{SVG}title") if node.text]
    assert bars == ["steps vs jaxarc 30x30 1024: 152\u00d7", "steps vs arcle single: 11.1\u00d7"]
    for said in ("point mix vs box mix 0.73", "demo tasks solved share 0.85"):
        assert said in text, said


def test_the_lines_over_batches_are_log_log(tmp_path):
    (tmp_path / "arc.json").write_text(json.dumps(RESULT))
    html = write_page(tmp_path / "arc.json").read_text(encoding="utf-8")
    chart = reading.charts(html)["Steps per second over worlds"]
    assert chart["log"] == [True, True]
    assert [line["x"] for line in chart["series"]] == [[1, 64, 4096]] * 2
    assert chart["series"][1]["y"] == [1000, 64_000, 4_096_000]


@pytest.mark.parametrize("lost", [*TITLES])
def test_a_section_that_was_not_measured_is_left_out(tmp_path, lost):
    for empty in (None, {}):
        result = copy.deepcopy(RESULT)
        result["raw"][lost] = empty
        found = headings(written(result, tmp_path)[0])
        assert [t for t in found if t in TITLES.values()] == [
            title for name, title in TITLES.items() if name != lost
        ]


def test_a_result_of_nothing_is_a_page(tmp_path):
    ratios = dict.fromkeys(RESULT["ratios"])
    raw = {"speed": {"unit": "x"}, "curve": {"mini-arc 5x5": []}, "parts": {"ablation": {}},
           "learning": {"tasks": 20}}  # fmt: skip
    body, text = written({"suite": "arc", "ratios": ratios, "raw": raw}, tmp_path)
    assert not set(headings(body)) & set(TITLES.values())
    assert "not measured" in text
