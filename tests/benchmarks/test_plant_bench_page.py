"""The page of `worldloom bench plant`."""

import json

import pytest

from worldloom.cli.report import write_page

COUNTS = {"cases": 1_000_000, "violations": 0, "violation_rate_at_most": 3e-6, "worst": 0.01}
BENCH = {
    "suite": "plant",
    "command": "worldloom bench plant",
    "ratios": {"td3bc_vs_d3rlpy": 3.4, "dmsd_steps_vs_loop": 2100.0},
    "raw": {
        "speed": {"batch": 256, "updates_per_second": {
            "td3bc": {"ours": 310.0, "d3rlpy": 91.0}, "cql": {"ours": 15.5}}},
        "steps": {"batch": 4096, "steps_per_second": {"ours": 9.5e6, "loop": 4500.0}},
        "scores": [
            {"dataset": "dmsd", "algo": "bc", "mean": 65.5, "std": 1.25, "seeds": [0, 1, 2],
             "published": 65.1, "published_std": 1.6, "seconds": 300.0},
            {"dataset": "dmsd", "algo": "rebrac", "mean": 80.5, "std": 0.5, "seeds": 3,
             "published": None},
        ],
        "plants": [
            {"plant": "reactor", "quality": "expert", "algo": algo, "return": value, "data": 150.0,
             "filtered": value - 1}
            for algo, value in (("bc", 148.0), ("iql", 152.0))
        ],
        "safety": {
            "cost": {"linear": {"plant": "linear", "batch": 1024, "policy_seconds": 2e-3,
                                "filtered_seconds": 2.4e-3, "overhead": 0.2}},
            "attacks": {"linear": {"bang_bang": COUNTS, "nan_injector": COUNTS}},
        },
        "serving": {"requests_per_second": 1500.5, "p50_ms": 2.5, "p99_ms": 9.0, "kills": 20,
                    "lost_records": 0, "fsync": "every record"},
    },
}  # fmt: skip


def bench_page(tmp_path, raw):
    path = tmp_path / "plant.json"
    path.write_text(json.dumps(BENCH | {"raw": raw}))
    return write_page(path).read_text()


def test_every_figure_of_the_benchmark_is_on_its_page(tmp_path):
    page = bench_page(tmp_path, BENCH["raw"])
    for words in ("3.4\N{MULTIPLICATION SIGN}", "TD3+BC · Worldloom: 310",
                  "TD3+BC · d3rlpy (PyTorch): 91", "9,500,000", "a loop in numpy: 4,500",
                  "BC · published: 65.1", "65.5 ± 1.2", "65.1 ± 1.6", "ReBRAC",
                  "150</td><td>148</td><td>152", "150</td><td>147</td><td>151", "bang bang",
                  "1,000,000", "rate at most (95 %)", "the filter adds, %", "1,500",
                  "acknowledged records lost", "every record"):  # fmt: skip
        assert words in page, words
    assert "not measured" in page  # CQL of d3rlpy


def test_nested_figures_say_the_same(tmp_path):
    raw = BENCH["raw"] | {
        "scores": {"dmsd": {"bc": {"mean": 65.5, "std": 1.25, "published": [65.1, 1.6]}}},
        "plants": {"reactor": {"expert": {"bc": 148.0, "iql": {"return": 152.0}}}},
        "speed": {"td3bc": {"ours": {"median": 310.0}, "d3rlpy": {"median": 91.0}}},
        "safety": {"attacks": {"bang_bang": COUNTS}, "cost": {"overhead": 0.2, "batch": 1024}},
    }
    page = bench_page(tmp_path, raw)
    for words in ("65.5 ± 1.2", "65.1 ± 1.6", "148</td><td>152", "TD3+BC · Worldloom: 310",
                  "bang bang", "the filter adds, %"):  # fmt: skip
        assert words in page, words


@pytest.mark.parametrize("section", list(BENCH["raw"]))
def test_what_was_not_measured_is_left_out(tmp_path, section):
    titles = {
        "speed": "Updates per second", "steps": "Steps of the plant", "scores": "Scores",
        "plants": "Plants and qualities of data", "safety": "The safety filter",
        "serving": "Serving",
    }  # fmt: skip
    raw = {name: part for name, part in BENCH["raw"].items() if name != section}
    page = bench_page(tmp_path, raw)
    for name, title in titles.items():
        assert (f"<h2>{title}</h2>" in page) == (name != section)


@pytest.mark.parametrize(
    "odd", [3, "x", [3], {"a": 3}, {"a": {"b": None}}, {"a": {"b": {"c": []}}}]
)
def test_odd_figures_do_not_break_the_page(tmp_path, odd):
    page = bench_page(tmp_path, dict.fromkeys(BENCH["raw"], odd))
    assert "<h2>Ratios</h2>" in page
