"""A measurement on its way to a file."""

import json
import re

from benchmarks import record
from benchmarks.pages.results import write_bench


def test_progress_lines_carry_the_time_and_keep_standard_output_clean(capsys):
    now = iter([100.0, 112.34])
    record.Progress(clock=lambda: next(now))("compiled")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "[   12.3 s] compiled\n"


def test_every_section_names_its_commit_and_date(tmp_path, monkeypatch):
    assert re.fullmatch(r"[0-9a-f]{40}(\+changes)?", record.commit() or "0" * 40)
    commits = iter(["a" * 40, "a" * 40, "b" * 40, "c" * 40])
    monkeypatch.setattr(record, "commit", lambda: next(commits))
    result = record.Record(tmp_path / "x.json", suite="grid", ratios={}, raw={})
    result.section("first", lambda: None)
    result.section("second", lambda: None)
    measured = json.loads((tmp_path / "x.json").read_text())["measured"]
    assert measured["first"]["commit"] == "a" * 40
    assert measured["second"]["commit"] == "b" * 40 + ", changed on the way"
    assert all(part["date"] and part["seconds"] >= 0.0 for part in measured.values())
    page = write_bench(result.result, tmp_path / "x.html").read_text()
    assert "a" * 40 in page
    assert "changed on the way" in page
