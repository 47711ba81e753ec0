"""The file behind an audit log: chained, whole or trimmed, and closed to two writers."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldloom.serving.journal import Journal, scan
from worldloom.serving.records import FIRST, array, check_line, encode, numbers, same_bits

floats = st.floats(width=32)


def fill(path, groups=3, fsync="none"):
    """Groups of 1, 2, 3, ... records of plants a, b, c, ..."""
    journal = Journal(path, fsync)
    journal.append([("start", {"policy": "p"})])
    for count in range(1, groups + 1):
        rows = [("act", {"plant": "abc"[i], "after": {"step": count}}) for i in range(count)]
        journal.append(rows)
    journal.close()
    return journal


@given(st.lists(floats, min_size=1, max_size=6))
def test_numbers_come_back_bit_for_bit(values):
    before = np.asarray(values, np.float32)
    text = json.dumps(numbers(before), allow_nan=False)
    assert same_bits(array(json.loads(text)), before)


def test_zeros_of_different_signs_differ():
    assert not same_bits(np.float32([0.0]), np.float32([-0.0]))
    assert same_bits(np.float32([np.nan, 1.0]), -np.float32([np.nan, -1.0]))
    assert not same_bits(np.float32([1.0]), np.int32([1]))


def test_what_is_no_array_is_an_error():
    with pytest.raises(ValueError, match="not an array of numbers"):
        array([None, {}])


def test_each_record_names_the_hash_of_the_one_before(tmp_path):
    journal = fill(tmp_path / "log")
    previous = FIRST
    for seq, raw in enumerate((tmp_path / "log").read_bytes().splitlines(keepends=True)):
        line = check_line(raw)
        assert (line.seq, line.prev) == (seq, previous)
        assert json.loads(raw)["hash"] == line.hash
        previous = line.hash
    assert (journal.seq, journal.hash) == (6, previous)


@pytest.mark.parametrize("fsync", ["always", "batch", "none"])
def test_a_log_goes_on_where_it_ended(tmp_path, fsync):
    path = tmp_path / "log"
    first = fill(path, fsync=fsync)
    journal = Journal(path, fsync)
    assert (journal.seq, journal.hash) == (first.seq, first.hash)
    assert json.loads(journal.recovered.latest["b"])["seq"] == 5
    (written,) = journal.append([("stop", {})])
    journal.close()
    assert written.seq == 7
    assert scan(path).hash == written.hash


def test_syncs_are_one_a_record_one_a_group_or_none(tmp_path, monkeypatch):
    counts = {}
    for fsync in ("always", "batch", "none"):
        journal = Journal(tmp_path / fsync, fsync)
        calls = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", calls.append)
            journal.append([("act", {"plant": "a"})] * 3)
        counts[fsync] = len(calls)
        journal.close()
    assert counts == {"always": 3, "batch": 1, "none": 0}


def test_every_torn_tail_is_trimmed_to_whole_groups_and_kept(tmp_path, capsys):
    whole = tmp_path / "whole"
    fill(whole)
    content = whole.read_bytes()
    ends = [0]
    for raw in content.splitlines(keepends=True):
        ends.append(ends[-1] + len(raw))
    groups = [ends[i] for i in (0, 1, 2, 4, 7)]  # after which a group is whole
    for cut in {*range(ends[-2] - 3, ends[-1]), *(end + 1 for end in ends[:-1]), *ends}:
        path = tmp_path / f"cut-{cut}"
        path.write_bytes(content[:cut])
        keep = max(end for end in groups if end <= cut)
        journal = Journal(path, "none")
        journal.close()
        assert path.read_bytes() == content[:keep]
        kept = [f.read_bytes() for f in tmp_path.glob(f"cut-{cut}.torn-*")]
        assert kept == ([content[keep:cut]] if keep < cut else [])
        said = capsys.readouterr().err
        assert ("torn off by a crash" in said) == (keep < cut)


def test_a_record_that_was_changed_is_no_torn_tail(tmp_path):
    path = tmp_path / "log"
    fill(path)
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    for change in (
        content.replace(b'"step":2', b'"step":7', 1),
        b"".join(lines[:2] + lines[3:]),
        b"".join([*lines[:3], lines[4], lines[3], *lines[5:]]),
        b"".join([*lines[:-1], lines[-1].replace(b'"step":3', b'"step":4')]),
        content + b"\n",
    ):
        path.write_bytes(change)
        with pytest.raises(ValueError, match="this is no torn tail and nothing was changed"):
            Journal(path)
        assert path.read_bytes() == change


def test_a_chain_that_was_continued_by_somebody_else_is_noticed(tmp_path):
    path = tmp_path / "log"
    fill(path)
    line, _ = encode(7, 7, "0" * 64, "act", {"plant": "a"})
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(ValueError, match="names another hash"):
        Journal(path)


def test_two_servers_do_not_write_one_log(tmp_path):
    journal = Journal(tmp_path / "log")
    with pytest.raises(ValueError, match="is being written by another server"):
        Journal(tmp_path / "log")
    journal.close()
    Journal(tmp_path / "log").close()


def test_a_full_disk_leaves_the_log_whole_and_usable(tmp_path, monkeypatch):
    path = tmp_path / "log"
    fill(path)
    before = path.read_bytes()
    journal = Journal(path)
    real = os.write

    def full(file, data):
        real(file, bytes(data)[:10])  # some of it gets through
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="cannot be written"):
            journal.append([("act", {"plant": "a"})])
    assert path.read_bytes() == before
    assert journal.append([("stop", {})])[0].seq == 7
    journal.close()
    assert scan(path).seq == 7


def test_a_log_that_cannot_be_put_right_is_not_written_again(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "log")

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="cannot be written"):
            journal.append([("act", {"plant": "a"})])
    with pytest.raises(OSError, match="nor put right"):
        journal.append([("act", {"plant": "a"})])
    journal.close()
