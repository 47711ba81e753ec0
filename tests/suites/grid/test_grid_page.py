"""Pages are whole in one file, say what was measured, and say what is missing."""

import base64
import json
import shutil

import pytest

from benchmarks.pages.modes import write_comparison
from benchmarks.pages.results import write_bench
from report.reading import assert_self_contained, at, charts, drawings, read
from worldloom.core import files
from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.run_page import thin
from worldloom.report.runs import FORMAT, read_run
from worldloom.suites.grid.page import turn_profile, write_report
from worldloom.suites.plain.page import write_report as write_any_report
from worldloom.training import config

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>"


# Runs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(run_folder):
    return write_report(run_folder)


def test_the_page_of_a_run_is_one_self_contained_file(report, run_folder):
    assert report == run_folder / "report.html"
    reader = read(report)
    assert_self_contained(reader)
    assert not [path.name for path in run_folder.iterdir() if path.name.startswith(".")]


def test_the_title_names_world_algorithm_mode_and_seed(report):
    html = report.read_text()
    assert "<title>treasurehunt · iqn · jax_fused · seed 3</title>" in html


def test_headline_numbers_are_those_of_the_files(report, run_folder):
    last = json.loads((run_folder / "eval.jsonl").read_text().splitlines()[-1])
    text = read(report).text
    assert f"greedy score {number(last['mean'], 4)} ± {number(last['stderr'], 2)}" in text
    assert "mean of 200 episodes; random play: 255" in text
    assert "training time 7.92 s 192,000 steps" in text
    assert "speed 24,160 steps/s" in text
    assert "compilation 8.41 s" in text


def test_the_films_are_inside_the_page(report, run_folder):
    loads = [load for load in read(report).loads if load.startswith("data:image/gif;base64,")]
    inside = {base64.b64decode(load.split(",", 1)[1]) for load in loads}
    names = ("eval.gif", "training-000001600.gif", "training-000096000.gif")
    assert inside == {(run_folder / name).read_bytes() for name in names}


def test_charts_hold_what_the_run_recorded(report, run_folder):
    found = charts(report.read_text())
    assert {
        "Learning curve",
        "Learning curve over time",
        "loss",
        "exploration: chance of a random action",
        "Return of each agent",
        "Reward in each turn",
    } <= found.keys()
    assert ["random play", 255.0] in found["Learning curve"]["references"]
    for line in (run_folder / "eval.jsonl").read_text().splitlines():
        row = json.loads(line)
        said = f"{number(row['mean'], 4)} ± {number(row['stderr'], 2)}"
        for title, x in (("Learning curve", "steps"), ("Learning curve over time", "seconds")):
            assert at(found[title], float(f"{row[x]:.12g}"))["greedy evaluation ± s.e."] == said


def test_shares_run_from_0_to_100_per_cent_and_agents_alone_have_their_colours(report):
    found = charts(report.read_text())
    exploration = found["exploration: chance of a random action"]
    assert exploration["range"] == [0, 100]
    assert exploration["series"][0]["y"][0] == 100
    colours = [line["color"] for line in found.pop("Return of each agent")["series"]]
    assert len(set(colours)) == 5
    for chart in found.values():
        assert not {line["color"] for line in chart["series"]} & set(colours), chart["title"]


def test_where_agents_win_what_others_lose_their_sum_is_not_drawn(make_run, tmp_path):
    """In tag the sum is constant but for rounding, which must not look like learning."""
    folder = make_run(tmp_path / "run", iterations=8, films=False)
    for name, column in (("metrics", "return"), ("eval", "mean")):
        path = folder / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for i, row in enumerate(rows):
            row[column] = -5.0 + 1e-6 * i
            row |= {"agents": [1.0, -2, -1, -4, 1], "agents_stderr": [0.1] * 5, "paid": 9.5}
            row |= {"against_random": 0.75, "against_random_stderr": 0.25, "paid_stderr": 0.5}
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(folder)
    text, found = read(page).text, charts(page.read_text())
    assert "ahead of random 0.75 ± 0.25" in text
    assert "payments 9.5 ± 0.5" in text
    assert "together they get \u22125 however they play" in text
    assert "greedy score" not in text
    assert not {"Learning curve", "Reward in each turn"} & found.keys()
    ahead = found["return of an agent ahead of random ones"]
    assert ahead["references"] == [["random play", 0]]
    assert at(ahead, 8 * 1600.0) == {"greedy ± s.e.": "0.75 ± 0.25"}
    each = found["return of each agent, greedy ± s.e."]
    assert at(each, 8 * 1600.0)["agent 3"] == "\u22124 ± 0.1"


def test_settings_versions_and_machine_are_told(report):
    text = read(report).text
    assert "iqn.hidden 128" in text
    assert "steps 192,000" in text
    assert "jax 0.10.2" in text
    assert "a small one" in text


def test_commands_to_repeat_and_to_go_on(report, run_folder):
    text = read(report).text
    assert "worldloom train treasurehunt --mode jax_fused --seed 3" in text
    # The run is done: to go on it needs a new number of steps.
    assert f"worldloom train --resume {run_folder} --steps 384000" in text
    assert "This run is not complete" not in text


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("eval.jsonl", "has not been evaluated yet"),
        ("timing.json", "no timing results"),
        ("eval.gif", "no film of the trained agents"),
        ("metrics.jsonl", "Nothing has been learned yet"),
    ],
)
def test_a_run_without_one_of_its_files_gives_a_page_that_says_so(run_folder, tmp_path, gone, said):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    (folder / gone).unlink()
    text = read(write_report(folder)).text
    assert "This run is not complete" in text
    assert said in text


def test_a_folder_with_nothing_but_settings_gives_a_page(run_folder, tmp_path):
    shutil.copy(run_folder / "config.json", tmp_path)
    reader = read(write_report(tmp_path))
    assert reader.text.count("Nothing has been learned yet") == 1
    assert "It has no checkpoint to go on from." in reader.text
    assert "treasurehunt" in reader.headings
    assert "svg" not in reader.tags
    assert "Learning" not in reader.headings


def test_a_killed_run_keeps_what_was_written_before_the_torn_lines(make_run, tmp_path):
    folder = make_run(tmp_path / "run", films=False)
    for name in ("metrics.jsonl", "turns.csv"):
        whole = (folder / name).read_text()
        (folder / name).write_text(whole[: int(len(whole) * 0.6)])
    (folder / "timing.json").write_text('{"steps": 19')
    (folder / "eval.jsonl").unlink()
    played = len(read_run(folder).metrics)
    assert 60 < played < 80
    text = read(write_report(folder)).text
    assert f"{played * 1600:,} of 192,000 steps" in text
    assert "A line of metrics.jsonl could not be read" in text
    assert "The file timing.json could not be read" in text
    assert "training return" in text


def test_iterations_that_a_resumed_run_played_again_count_once(run_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    again = json.loads(lines[-1]) | {"return": 12345.0}
    (folder / "metrics.jsonl").write_text("\n".join([*lines, json.dumps(again)]))
    run = read_run(folder)
    assert [row["iteration"] for row in run.metrics] == list(range(1, 121))
    assert run.metrics[-1]["return"] == 12345.0


def test_a_torch_run_offers_no_resume(make_run, tmp_path):
    folder = make_run(tmp_path / "run", iterations=8, films=False)
    about = json.loads((folder / "config.json").read_text())
    about["config"]["mode"] = "torch_sequential"
    (folder / "config.json").write_text(json.dumps(about))
    text = read(write_report(folder)).text
    assert "cannot be resumed" in text
    assert "--resume" not in text


def test_hostile_names_stay_text(make_run, tmp_path):
    folder = make_run(tmp_path / "run & co <b>", iterations=8, films=False)
    about = json.loads((folder / "config.json").read_text())
    about |= {"command": HOSTILE, "hash": HOSTILE, "machine": HOSTILE}
    about |= {"versions": {"worldloom": HOSTILE}, "references": {HOSTILE: {"mean": 300.0}}}
    about["config"] |= {"env": HOSTILE, "algo": HOSTILE, "mode": HOSTILE, HOSTILE: HOSTILE}
    (folder / "config.json").write_text(json.dumps(about))
    report = write_report(folder)
    reader = read(report)
    assert_self_contained(reader)
    assert reader.text.count(HOSTILE) >= 6
    assert len(charts(report.read_text())) > 4


def test_a_run_of_an_earlier_format_is_refused_with_the_remedy(run_folder, tmp_path):
    about = json.loads((run_folder / "config.json").read_text())
    del about["format"]
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="is of format 1, and this version reads format 2; train"):
        write_report(tmp_path)
    assert config.FORMAT == FORMAT


def test_runs_of_any_suite_have_a_page(run_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    path = write_any_report(folder)
    assert_self_contained(read(path))
    assert "<title>treasurehunt · iqn · seed 3</title>" in path.read_text()
    assert {"Learning curve", "loss", "gradient norm"} <= charts(path.read_text()).keys()


def test_the_page_of_on_policy_runs_shows_what_they_measured(make_run, tmp_path):
    """No epsilon and no losses by agent: entropy, clipping and what else there is instead."""
    folder = make_run(tmp_path / "run", iterations=8, films=False)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    own = {"entropy": 1.2, "clip_fraction": 0.1, "skipped": 0.0}
    kept = ("iteration", "steps", "return", "agent_returns", "seconds")
    lines = [json.dumps({n: row[n] for n in kept} | own) for row in rows]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    path = write_report(folder)
    labels = charts(path.read_text()).keys()
    assert {"Return of each agent", "entropy of the policy"} <= labels
    assert not labels & {"loss", "skipped", "exploration: chance of a random action"}
    assert "agent returns" in read(path).text


@pytest.mark.parametrize("content", [None, "not json", "[]"])
def test_what_is_not_a_run_is_refused_in_one_line_and_left_alone(tmp_path, content):
    folder = tmp_path / "photos"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    before = sorted(folder.iterdir())
    with pytest.raises(ValueError, match="expected a folder written by `worldloom train`") as error:
        write_report(folder)
    assert "\n" not in str(error.value)
    assert "photos" in str(error.value)
    assert sorted(folder.iterdir()) == before


def test_a_path_that_does_not_exist_is_not_a_run(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        write_report(tmp_path / "nowhere")


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "a.html"
    page.write(target, "old")

    def crash(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.Path, "replace", crash)
    with pytest.raises(OSError, match="disk full"):
        page.write(target, "new")
    assert target.read_text() == "old"


def test_thin_averages_over_stretches_and_keeps_gaps():
    x, y = thin(range(10), [1, 3, None, None, 5, 7, 2, None, 4, 4], points=5)
    assert x == [0.5, 2.5, 4.5, 6.5, 8.5]
    assert y == [2, None, 6, 2, 4]
    assert thin([0, 1], [5, None]) == ([0, 1], [5, None])


def test_the_turn_profile_sums_agents_and_skips_iterations_that_were_cut():
    rows = [
        {"iteration": n, "turn": t, "agent": a, "reward": 10.0 * t + n}
        for n in (1, 2, 3)
        for t in (0, 1)
        for a in (0, 1)
    ]
    cut = rows[:-1]  # the run was killed in iteration 3
    profile = turn_profile(cut)
    assert profile == {"turn": [0, 1], "mean": [3, 23], "stderr": [1, 1], "iterations": (1, 2)}
    assert turn_profile([]) is None


def test_the_page_of_a_real_run_needs_no_jax_to_be_written(report):
    import subprocess
    import sys

    program = (
        "import sys; from worldloom.suites.grid.page import write_report; "
        f"write_report({str(report.parent)!r}); "
        "print([m for m in ('jax', 'flax', 'PIL', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


# Results -----------------------------------------------------------------------------------------


def comparison():
    rows = []
    for agents in (1, 4):
        for mode, speed in (("torch_sequential", 2.0), ("jax_fused", 300.0)):
            parts = {f"{name}_ms": 5.0 * agents / speed for name in ("act", "train", "sample")}
            rows.append(
                {
                    "mode": mode,
                    "num_agents": agents,
                    "compile_seconds": 7.5,
                    "epoch_ms": 1000 * agents / speed,
                    **parts,
                    "memory_mb": None,
                    "epochs_per_second": speed / agents,
                    "speedup": speed / 2.0,
                    "samples": [{"a": 1}],
                }
            )
    task = {"env": "treasurehunt", "turn_order": "interleaved", "iqn": {"hidden": 250}}
    return {"task": task, "rows": rows, "parts": {"act": "every agent's choice"}}


def test_a_comparison_shows_speeds_parts_and_every_figure(tmp_path):
    path = write_comparison(comparison(), tmp_path / "new" / "compare.html")
    reader = read(path)
    assert_self_contained(reader)
    assert "150\u00d7 the speed of torch_sequential" in reader.text
    assert "jax_fused with 4 agents" in reader.text
    assert "Act: every agent's choice." in reader.text
    assert "iqn.hidden 250" in reader.text
    assert charts(path.read_text()).keys() == {"Speed by number of agents"}
    assert drawings(path.read_text()).keys() == {"Speed", "Pieces"}
    table = path.read_text().split("All figures")[1].split("</table>")[0]
    assert table.count("<tr>") == 5
    assert "memory" not in table  # nobody measured it
    assert "samples" not in table


def test_a_comparison_says_what_failed_or_was_left_out(tmp_path):
    result = comparison() | {
        "skipped": {"torch_sequential": "torch is not installed"},
        "errors": {"16 agents": "MemoryError: no room"},
        "notes": ["Figures are medians."],
        "quick": True,
    }
    text = read(write_comparison(result, tmp_path / "a.html")).text
    assert "torch_sequential is left out: torch is not installed" in text
    assert "16 agents failed: MemoryError: no room" in text
    assert "its figures mean nothing" in text
    assert "Figures are medians." in text


def test_recorded_runs_are_compared_by_name(tmp_path):
    rows = [
        {"run": f"runs/seed-{s}", "mode": "jax_fused", "num_agents": 5, "seed": s,
         "score": 500.0 + s, "epochs_per_second": 10.0 + s, "speedup": 1.0 + s}
        for s in (0, 1)
    ]  # fmt: skip
    path = write_comparison({"task": {}, "rows": rows}, tmp_path / "a.html")
    text = read(path).text
    assert "Recorded runs compared" in text
    assert "2\u00d7 the speed of seed-0" in text
    assert "501" in text


def test_an_empty_comparison_and_an_empty_benchmark_say_so(tmp_path):
    for write in (write_comparison, write_bench):
        text = read(write({}, tmp_path / "a.html")).text
        assert "The result has no r" in text


def benchmark():
    return {
        "suite": "grid",
        "command": "worldloom bench grid",
        "versions": {"jax": "0.10.2"},
        "machine": {"cpu": "a small one"},
        "ratios": {"time_to_500": 112.4, "act": 0.61, "unknown": None, "matmul_share": 0.43},
        "raw": {
            "seconds": 12.5,
            "time_to_500": {"ours": [3.9, 4.1], "theirs": [402.0, 388.0]},
            "rows": [{"mode": "a", "ms": 1.5}, {"mode": "b", "ms": 2.5, "note": "warm"}],
        },
    }


def test_a_benchmark_shows_ratios_as_bars_and_raw_figures_as_tables(tmp_path):
    path = write_bench(benchmark(), tmp_path / "grid.html")
    reader = read(path)
    assert_self_contained(reader)
    assert "Benchmark grid" in reader.headings
    assert f'width="{page.WIDE}"' in path.read_text()
    narrow = drawings(path.read_text())["Ratios"]
    assert narrow.get("width") == str(page.NARROW)
    titles = [node.text for node in narrow.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["time to 500: 112\u00d7", "act: 0.61\u00d7"]  # a share is no speed-up
    faster, slower = (float(bar.get("x")) for bar in narrow.iter() if bar.get("class") == "bar")
    assert slower < faster  # bars start at 1 and point both ways
    for said in ("not measured", "worldloom bench grid", "402, 388", "time to 500", "warm", "0.43"):
        assert said in reader.text


def test_hostile_results_stay_text(tmp_path):
    result = benchmark() | {"title": HOSTILE, "command": HOSTILE, "notes": [HOSTILE]}
    result["ratios"] = {HOSTILE: 2.0, "b": 1.0}
    result["raw"] = {HOSTILE: {HOSTILE: HOSTILE}, "list": [{HOSTILE: HOSTILE}]}
    row = {"mode": HOSTILE, "num_agents": 1, "epochs_per_second": 2.0, "speedup": 1.0}
    compared = {
        "task": {"env": HOSTILE, HOSTILE: HOSTILE},
        "rows": [row | {HOSTILE: 3}],
        "errors": {HOSTILE: HOSTILE},
    }
    for write, data in ((write_bench, result), (write_comparison, compared)):
        reader = read(write(data, tmp_path / "a.html"))
        assert_self_contained(reader)
        assert HOSTILE in reader.text


def test_tables_round_numbers_and_name_nested_settings():
    assert page.flat({"a": {"b": 1, "c": {}}, "d": 2}) == {"a.b": 1, "a.c": {}, "d": 2}
    shown = [page.shown(v) for v in (None, True, 12345, 2026, 0.00025, [1, 2.5], "x")]
    assert shown == ["\u2013", "yes", "12,345", "2026", "0.00025", "1, 2.5", "x"]
    html = page.page("t", [page.table(["name", "ms"], [["a", 1.23456], ["b", None]])])
    assert '<td class="n">1.235</td>' in html
    assert '<td class="n">\u2013</td>' in html
    assert page.table([], []) is None


def test_films_that_are_too_large_for_a_page_are_left_out(make_run, tmp_path):
    folder = make_run(tmp_path / "run")
    film = (folder / "eval.gif").read_bytes()
    for thousands, size in enumerate((200_000, 300_000, 700_000)):
        path = folder / f"training-{1000 * thousands:09d}.gif"
        path.write_bytes(film + bytes(size))
    for path in (folder / "training-000001600.gif", folder / "training-000096000.gif"):
        path.unlink()
    (folder / "eval.gif").write_bytes(film + bytes(300_000))
    written = write_report(folder)
    assert written.stat().st_size < 2_000_000
    text = written.read_text()
    assert "Step 1,000" in text
    assert "Step 2,000" not in text, "the one most like the film of the trained agents"
