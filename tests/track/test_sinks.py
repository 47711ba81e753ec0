"""Rows on disk: whole, once each, and readable by others."""

import csv
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.track.sinks import (
    CsvTable,
    JsonLines,
    plain,
    read_json_lines,
    write_json,
    write_text,
)


def test_plain_is_what_json_knows():
    value = {
        "a": np.float32(1.5),
        "b": jnp.arange(3),
        "c": (1, np.int64(2), [True, None]),
        4: {"nan": math.nan, "inf": np.array([math.inf, 1.0])},
    }
    assert plain(value) == {
        "a": 1.5,
        "b": [0, 1, 2],
        "c": [1, 2, [True, None]],
        "4": {"nan": None, "inf": [None, 1.0]},
    }
    json.dumps(plain(value), allow_nan=False)


def test_rows_are_there_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "rows.jsonl"
    sink = JsonLines(path)
    sink.write({"epoch": 0, "score": np.float32(2.0)})
    assert path.read_text() == '{"epoch": 0, "score": 2.0}\n'
    sink.write({"epoch": 1, "score": math.nan})
    assert read_json_lines(path)[1] == {"epoch": 1, "score": None}
    sink.close()


def test_resumed_rows_replace_those_that_will_come_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    sink = JsonLines(path)
    for epoch in range(6):
        sink.write({"epoch": epoch, "run": 1})
    sink.close()
    sink = JsonLines(path, resume_at=4)
    for epoch in range(4, 8):
        sink.write({"epoch": epoch, "run": 2})
    sink.close()
    rows = read_json_lines(path)
    assert [row["epoch"] for row in rows] == list(range(8))
    assert [row["run"] for row in rows] == [1] * 4 + [2] * 4


def test_a_torn_line_is_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"epoch": 0}\n{"epoch": 1}\n{"epo')
    assert read_json_lines(path) == [{"epoch": 0}, {"epoch": 1}]
    JsonLines(path, resume_at=5).close()
    assert path.read_text() == '{"epoch": 0}\n{"epoch": 1}\n'
    assert read_json_lines(tmp_path / "missing.jsonl") == []


def test_a_table_has_its_columns_in_order_and_gaps_where_nothing_is_known(tmp_path):
    path = tmp_path / "table.csv"
    table = CsvTable(path, ["epoch", "agent", "loss"])
    table.write({"agent": 1, "epoch": 0, "loss": np.float32(0.5), "more": 3})
    table.write({"agent": 2, "epoch": 0, "loss": math.nan})
    table.close()
    assert path.read_text() == "epoch,agent,loss\n0,1,0.5\n0,2,\n"


def test_a_resumed_table_repeats_and_misses_nothing(tmp_path):
    path = tmp_path / "table.csv"
    table = CsvTable(path, ["epoch", "x"])
    for epoch in range(12):
        table.write({"epoch": epoch, "x": 1})
    table.close()
    table = CsvTable(path, ["epoch", "x"], resume_at=10)
    table.write({"epoch": 10, "x": 2})
    table.close()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == list(range(11))
    assert rows[-1]["x"] == "2"


@pytest.mark.parametrize("torn", ["1", "12", "12,", "12,0.7", ""])
def test_a_table_torn_by_a_crash_keeps_its_whole_rows_only(tmp_path, torn):
    # "1" may be the beginning of epoch 12, and must not be taken for epoch 1.
    path = tmp_path / "table.csv"
    path.write_text("epoch,x\n10,0.5\n11,0.5\n" + torn)
    CsvTable(path, ["epoch", "x"], resume_at=20).close()
    assert path.read_text() == "epoch,x\n10,0.5\n11,0.5\n"


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "timing.json"
    write_json(path, {"a": np.arange(2), "b": math.inf})
    assert json.loads(path.read_text()) == {"a": [0, 1], "b": None}
    assert [p.name for p in tmp_path.iterdir()] == ["timing.json"]

    class Unwritable:
        """Not JSON, whatever one does."""

    with pytest.raises(TypeError):
        write_json(path, {"a": Unwritable()})
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_text(path, "half")
    assert json.loads(path.read_text()) == {"a": [0, 1], "b": None}
