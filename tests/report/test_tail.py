"""Files that grow are read on from where the last look ended, and a half-written line waits."""

import json
from pathlib import Path

import pytest

from suites.grid.made_run import make_run
from worldloom.report.run_list import POINTS, RunList
from worldloom.report.run_page import thin
from worldloom.report.runs import read_run
from worldloom.report.tail import Columns, Tail
from worldloom.training.folders import locked
from worldloom.training.sinks import JsonLines


def row(n, **more):
    return {"iteration": n, "steps": 10 * n, "return": float(n)} | more


def add(path, *texts):
    with path.open("ab") as file:
        for text in texts:
            file.write(text if isinstance(text, bytes) else json.dumps(text).encode() + b"\n")


@pytest.fixture
def bytes_read(monkeypatch):
    """How many bytes were read of files named *.jsonl, in all."""
    total, opened = [0], Path.open

    def watched(self, mode="r", *args, **kwargs):
        file = opened(self, mode, *args, **kwargs)
        if self.suffix == ".jsonl" and mode == "rb":
            read = file.read

            class Watched:
                def __getattr__(self, name):
                    return getattr(file, name)

                def __enter__(self):
                    return self

                def __exit__(self, *_):
                    file.close()

                def read(self):
                    text = read()
                    total[0] += len(text)
                    return text

            return Watched()
        return file

    monkeypatch.setattr(Path, "open", watched)
    return total


def test_each_look_reads_what_is_new_and_no_more(tmp_path, bytes_read):
    path = tmp_path / "metrics.jsonl"
    add(path, *(row(n) for n in range(1, 1001)))
    tail = Tail(path)
    assert len(tail.rows()) == 1000
    before = bytes_read[0]
    assert before == path.stat().st_size
    assert tail.rows() == []
    add(path, row(1001))
    assert tail.rows() == [row(1001)]
    assert bytes_read[0] - before == path.stat().st_size - before
    assert tail.newest == row(1001)


def test_a_torn_last_line_counts_once_it_is_whole(tmp_path):
    path, tail = tmp_path / "metrics.jsonl", Tail(tmp_path / "metrics.jsonl")
    assert tail.rows() == []
    line = json.dumps(row(2)).encode() + b"\n"
    for cut in range(1, len(line)):  # wherever a write is cut in two
        path.unlink(missing_ok=True)
        tail = Tail(path)
        add(path, row(1), line[:cut])
        assert (tail.rows(), tail.torn, tail.damaged) == ([row(1)], True, False)
        add(path, line[cut:], row(3))
        assert (tail.rows(), tail.torn, tail.damaged) == ([row(2), row(3)], False, False)


def test_a_bad_line_costs_itself_alone(tmp_path):
    path = tmp_path / "metrics.jsonl"
    add(path, row(1), b"\xff nonsense\n", b"[1]\n", b"\n", {"no": "iteration"}, row(2))
    tail = Tail(path)
    assert (tail.rows(), tail.damaged) == ([row(1), row(2)], True)


def test_a_file_that_a_resumed_run_has_cut_is_read_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    add(path, *(row(n) for n in range(1, 9)))
    tail, columns = Tail(path), Columns(path)
    assert (len(tail.rows()), tail.restarted) == (8, True)
    assert columns.thinned(100)["return"] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    sink = JsonLines(path, done=4)  # drops what will come again
    for n in range(5, 12):  # and is as long as before, and longer, before anybody looks
        sink.write(row(n, **{"return": -float(n)}))
    sink.close()
    assert [r["return"] for r in tail.rows()] == [1, 2, 3, 4, -5, -6, -7, -8, -9, -10, -11]
    assert tail.restarted
    assert columns.thinned(100)["return"] == [1, 2, 3, 4, -5, -6, -7, -8, -9, -10, -11]


def test_columns_are_those_of_the_whole_file_thinned(tmp_path):
    run = make_run(tmp_path / "run", iterations=900, films=False)
    columns = Columns(run / "metrics.jsonl")
    whole = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(whole[: len(whole) // 2])
    columns.thinned(POINTS)
    add(run / "metrics.jsonl", whole[len(whole) // 2 :])
    found = columns.thinned(POINTS)
    made = read_run(run)
    for name in ("steps", "return", "loss", "seconds"):
        _, expected = thin(range(900), made.column(name), POINTS)
        assert found[name] == pytest.approx(expected), name
    assert "agent_returns" not in found


def test_looking_at_a_run_that_trains_reads_its_metrics_once(tmp_path, bytes_read):
    run = make_run(tmp_path / "run", iterations=300, films=False)
    runs = RunList(tmp_path)
    with locked(run):
        (first,) = runs.rows()
        curves = runs.curves("run")
        follower = runs.follow("run", 0, 0)
        assert len(follower.news()["training"]) == 300
        looked, bytes_read[0] = bytes_read[0], 0
        assert looked > 100_000
        for n in range(301, 311):
            line = json.dumps(row(n)).encode() + b"\n"
            add(run / "metrics.jsonl", line[:9])
            assert runs.rows()[0]["problem"] == "", "it is being written"
            assert not (follower.news() or {"training": []})["training"]
            add(run / "metrics.jsonl", line[9:])
            assert (runs.rows()[0]["steps"], runs.rows()[0]["status"]) == (10 * n, "running")
            assert [r["iteration"] for r in follower.news()["training"]] == [n]
            assert len(runs.curves("run")["training"]["steps"]) == n
    assert first["steps"] == curves["training"]["steps"][-1]
    assert bytes_read[0] < looked / 10
