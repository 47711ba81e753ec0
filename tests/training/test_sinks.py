"""Rows on disk: whole, once each, and readable by others."""

import csv
import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core.files import plain, write_json, write_text
from worldloom.training.sinks import CsvTable, JsonLines, read_json_lines


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
    sink.write({"iteration": 0, "score": np.float32(2.0)})
    assert path.read_text() == '{"iteration": 0, "score": 2.0}\n'
    sink.write({"iteration": 1, "score": math.nan})
    assert read_json_lines(path)[1] == {"iteration": 1, "score": None}
    sink.close()


def test_resumed_rows_replace_those_that_will_come_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    sink = JsonLines(path)
    for iteration in range(1, 7):
        sink.write({"iteration": iteration, "run": 1})
    sink.close()
    sink = JsonLines(path, done=4)
    for iteration in range(5, 9):
        sink.write({"iteration": iteration, "run": 2})
    sink.close()
    rows = read_json_lines(path)
    assert [row["iteration"] for row in rows] == list(range(1, 9))
    assert [row["run"] for row in rows] == [1] * 4 + [2] * 4


def test_a_torn_line_is_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"iteration": 0}\n{"iteration": 1}\n{"epo')
    assert read_json_lines(path) == [{"iteration": 0}, {"iteration": 1}]
    JsonLines(path, done=5).close()
    assert path.read_text() == '{"iteration": 0}\n{"iteration": 1}\n'
    assert read_json_lines(tmp_path / "missing.jsonl") == []


BAD_BYTES = {
    "not JSON": (b'{"iteration": 3', b'{"iteration" 3'),
    "not UTF-8": (b'{"iteration": 3', b'{"iteration\xff: 3'),
    "no row": (b'{"iteration": 3, "run": 1}', b"31"),
    "two rows in one": (b'"run": 1}\n{"iteration": 4', b'"run": 1}\x0b{"iteration": 4'),
    "an iteration to come": (b'{"iteration": 3', b'{"iteration": 9'),
    "the last one": (b'{"iteration": 6', b'{"iteration; 6'),
}


def test_a_row_that_a_kill_tore_is_no_damage(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"iteration": 1}\n{"iteration": 2}\n{"iterat')
    JsonLines(path, done=2).close()
    assert [row["iteration"] for row in read_json_lines(path)] == [1, 2]
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", BAD_BYTES)
def test_a_bad_byte_costs_its_line_alone_and_the_file_is_set_aside(tmp_path, capsys, damage):
    path = tmp_path / "rows.jsonl"
    whole = b"".join(b'{"iteration": %d, "run": 1}\n' % n for n in range(1, 7))
    harmed = whole.replace(*BAD_BYTES[damage])
    assert harmed != whole
    path.write_bytes(harmed)
    JsonLines(path, done=6).close()
    rows = [row["iteration"] for row in read_json_lines(path)]
    told = capsys.readouterr().err
    lost = {3, 4} if damage == "two rows in one" else {6} if "last" in damage else {3}
    assert rows == sorted({1, 2, 3, 4, 5, 6} - lost)
    assert (tmp_path / "rows.jsonl.damaged-1").read_bytes() == harmed
    assert told.count("\n") == 1
    assert "1 of" in told
    assert "kept as rows.jsonl.damaged-1" in told
    # What was set aside stays, and is not looked at again.
    JsonLines(path, done=6).close()
    assert len(list(tmp_path.iterdir())) == 2
    path.write_bytes(harmed)
    JsonLines(path, done=6).close()
    assert (tmp_path / "rows.jsonl.damaged-2").exists()


def test_what_will_come_again_is_dropped_without_a_word(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"iteration": {n}}}\n' for n in range(1, 9)) + '{"iter')
    JsonLines(path, done=4).close()
    assert [row["iteration"] for row in read_json_lines(path)] == [1, 2, 3, 4]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("good", "bad"), [("3,", "x,"), ("3,", "\x003"), ("1\n4", "1_4")])
def test_a_table_with_a_bad_byte_is_set_aside(tmp_path, capsys, good, bad):
    path = tmp_path / "table.csv"
    whole = "iteration,x\n" + "".join(f"{n},1\n" for n in range(1, 7))
    path.write_text(whole.replace(good, bad))
    CsvTable(path, ["iteration", "x"], done=6).close()
    kept = [line.split(",")[0] for line in path.read_text().splitlines()]
    assert kept == ["iteration", "1", "2", *(["4"] if "4" not in good else []), "5", "6"]
    assert (tmp_path / "table.csv.damaged-1").exists()
    assert "1 of 7 lines" in capsys.readouterr().err or "\n" in good


def test_a_table_has_its_columns_in_order_and_gaps_where_nothing_is_known(tmp_path):
    path = tmp_path / "table.csv"
    table = CsvTable(path, ["iteration", "agent", "loss"])
    table.write({"agent": 1, "iteration": 0, "loss": np.float32(0.5), "more": 3})
    table.write({"agent": 2, "iteration": 0, "loss": math.nan})
    table.close()
    assert path.read_text() == "iteration,agent,loss\n0,1,0.5\n0,2,\n"


def test_a_resumed_table_repeats_and_misses_nothing(tmp_path):
    path = tmp_path / "table.csv"
    table = CsvTable(path, ["iteration", "x"])
    for iteration in range(1, 13):
        table.write({"iteration": iteration, "x": 1})
    table.close()
    table = CsvTable(path, ["iteration", "x"], done=10)
    table.write({"iteration": 11, "x": 2})
    table.close()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["iteration"]) for row in rows] == list(range(1, 12))
    assert rows[-1]["x"] == "2"


@pytest.mark.parametrize("torn", ["1", "12", "12,", "12,0.7", ""])
def test_a_table_torn_by_a_crash_keeps_its_whole_rows_only(tmp_path, torn):
    # "1" may be the beginning of iteration 12, and must not be taken for iteration 1.
    path = tmp_path / "table.csv"
    path.write_text("iteration,x\n10,0.5\n11,0.5\n" + torn)
    CsvTable(path, ["iteration", "x"], done=20).close()
    assert path.read_text() == "iteration,x\n10,0.5\n11,0.5\n"


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


def test_files_are_on_the_disk_before_they_get_their_names(tmp_path, monkeypatch):
    from worldloom.core import files

    happened = []
    monkeypatch.setattr(files, "sync", lambda path: happened.append((Path(path), path.exists())))
    path = tmp_path / "config.json"
    write_text(path, "new")
    (draft, there), last = happened
    assert (draft.parent, there) == (tmp_path, True)
    assert draft != path
    assert last == (tmp_path, True)
