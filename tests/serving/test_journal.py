"""The file behind an audit log: chained, whole or trimmed, and closed to two writers."""

import contextlib
import json
import os
import shutil
import sys
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldloom.cli.main import main
from worldloom.serving.journal import Journal
from worldloom.serving.records import FIRST, array, check_line, encode, numbers, same_bits
from worldloom.serving.segments import read_head, scan, segment_of, segments_of

floats = st.floats(width=32)
ACT = ("act", {"plant": "a", "after": {"step": 1}})


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
    assert scan(segment_of(path, 0)).newest == written


def test_syncs_are_one_a_record_one_a_group_or_none(tmp_path, monkeypatch):
    counts = {}
    for fsync in ("always", "batch", "none"):
        journal = Journal(tmp_path / fsync, fsync)
        calls = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", calls.append)
            journal.append([ACT] * 3)
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
            journal.append([ACT])
    assert path.read_bytes() == before
    assert journal.append([("stop", {})])[0].seq == 7
    journal.close()
    assert scan(segment_of(path, 0)).newest.seq == 7


def test_a_file_that_cannot_grow_is_left_whole_and_used_again(tmp_path):
    """The same by the kernel: of a group, some bytes fit and the rest does not."""
    resource = pytest.importorskip("resource")
    journal = Journal(tmp_path / "log")
    journal.append([ACT])
    before, limits = journal.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
        for _ in range(2):
            with pytest.raises(OSError, match="cannot be written"):
                journal.append([ACT, ACT])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.path.read_bytes() == before
    assert journal.append([ACT])[0].seq == 1
    journal.close()
    assert scan(segment_of(journal.path, 0), read_head(journal.path)).broken is None


def test_nothing_is_written_to_a_file_that_is_not_at_its_place(tmp_path):
    path, aside = tmp_path / "log", tmp_path / "aside"
    fill(path)
    journal = Journal(path)
    content = path.read_bytes()

    def refused(message):
        with pytest.raises(OSError, match=message):
            journal.append([ACT])

    path.rename(aside)
    refused("was moved or removed")
    with pytest.raises(OSError, match="was moved or removed"):
        journal.check()
    path.write_bytes(content)
    refused("was replaced by another file")
    assert aside.read_bytes() == path.read_bytes() == content
    aside.replace(path)
    assert journal.append([ACT])[0].seq == 7  # it is back
    journal.check()
    path.unlink()
    refused("was moved or removed")
    journal.close()


@pytest.mark.parametrize("remove", [os.unlink, lambda path: os.rename(path, f"{path}.away")])
def test_a_record_whose_file_goes_away_while_it_is_written_is_none(tmp_path, monkeypatch, remove):
    path, fsync = tmp_path / "log", os.fsync
    journal = Journal(path, "batch")
    journal.append([ACT])
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), remove(path)))
    with pytest.raises(OSError, match="was moved or removed"):
        journal.append([ACT])
    monkeypatch.undo()
    assert journal.seq == 0
    journal.close()


def test_nothing_is_written_to_a_file_that_somebody_else_changed(tmp_path):
    journal = Journal(tmp_path / "log")
    journal.append([ACT])
    os.truncate(journal.path, 0)
    with pytest.raises(OSError, match="was changed by somebody else"):
        journal.append([ACT])
    assert journal.path.read_bytes() == b""
    journal.close()


def test_a_log_that_cannot_be_put_right_is_not_written_again(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "log")

    def fail(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="cannot be written"):
            journal.append([ACT])
    with pytest.raises(OSError, match="nor put right"):
        journal.append([ACT])
    journal.close()


# Segments ----------------------------------------------------------------------------------------


def memories_of(latest):
    return {plant: json.loads(line)["after"] for plant, line in latest.items()}


def steps(journal, counts):
    """Appends a group for each count: so many plants, each one step further."""
    for count in counts:
        group = []
        for plant in "abcd"[:count]:
            step = 1 + memories_of(journal._latest).get(plant, {"step": 0})["step"]
            group.append(("act", {"plant": plant, "after": {"step": step}}))
        journal.append(group)
    return dict(journal._latest)


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(1, 4), max_size=5), min_size=1, max_size=4),
    st.integers(1, 2000),
)
def test_a_start_reads_the_last_segment_and_knows_everything(tmp_path_factory, runs, size):
    path = tmp_path_factory.mktemp("segments") / "log"
    latest, newest = {}, (-1, FIRST)
    for counts in runs:
        journal = Journal(path, "none", size)
        assert journal.recovered.latest == latest
        assert journal.recovered.newest == read_head(path) == newest
        journal.append([("start", {"policy": "p"})])
        latest = steps(journal, counts)
        newest = (journal.seq, journal.hash)
        journal.close()
        *before, last = segments_of(path)
        for segment in before:
            segment.path.unlink()
    assert json.loads(scan(last).start)["policy"] == "p"


def test_a_segment_begins_when_the_one_before_is_full(tmp_path):
    journal = Journal(tmp_path / "log", "none", 1000)
    steps(journal, [4] * 12)
    journal.close()
    *before, last = [segment.path.stat().st_size for segment in segments_of(tmp_path / "log")]
    assert len(before) > 3
    snapshot = scan(segments_of(tmp_path / "log")[-1]).snapshot
    group = 4 * 300
    assert all(1000 <= size < 1000 + snapshot + group for size in before)
    assert last < 1000 + snapshot + group


def test_a_long_log_of_one_file_goes_on_in_segments(tmp_path):
    path = tmp_path / "log"
    fill(path)
    (tmp_path / "log.head").unlink()  # as it was before there were segments
    whole = path.read_bytes()
    journal = Journal(path, "none", 100)
    steps(journal, [1])
    journal.close()
    assert [segment.number for segment in segments_of(path)] == [0, 1]
    assert path.read_bytes() == whole
    first = json.loads(segment_of(path, 1).path.read_bytes().splitlines()[0])
    assert (first["kind"], first["seq"], first["policy"]) == ("segment", 7, "p")
    lines = [json.loads(line) for line in whole.splitlines()]
    assert (first["start"], first["plants"]) == (lines[0], dict(zip("abc", lines[4:], strict=True)))


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace", "pwrite", "close"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_while_a_segment_begins_loses_nothing(tmp_path, monkeypatch, call, moment):
    """Ends the process at each call of the system while a segment begins and a group is written."""
    for number in range(3):
        folder = tmp_path / f"{number}"
        journal = Journal(folder / "log", "batch", 1)
        latest = steps(journal, [4, 2])
        before = journal.seq
        real, calls = getattr(os, call), []

        def dies(*args, real=real, calls=calls, number=number):
            calls.append(args)
            if len(calls) == number + 1 and moment == "before":
                raise Killed
            result = real(*args)
            if len(calls) == number + 1:
                raise Killed
            return result

        with monkeypatch.context() as patch:
            patch.setattr(os, call, dies)
            with contextlib.suppress(Killed):
                steps(journal, [1])
        shutil.copytree(folder, folder.with_suffix(".crashed"))  # the lock stays with the other one
        after = Journal(folder.with_suffix(".crashed") / "log", "none", 1)
        memories = memories_of(latest)
        if after.recovered.newest.seq > before + 1:  # the group followed the snapshot
            memories |= {"a": {"step": 3}}
        assert memories_of(after.recovered.latest) == memories
        after.close()
        with contextlib.suppress(OSError):
            journal.close()


def test_where_no_segment_can_begin_the_one_before_goes_on(tmp_path, capsys):
    journal = Journal(tmp_path / "log", "none", 1)
    steps(journal, [1])
    segment_of(journal.path, 1).path.mkdir()  # something of this name is there
    steps(journal, [1, 1])
    assert "cannot be begun, and the segment before grows" in capsys.readouterr().err
    segment_of(journal.path, 1).path.rmdir()
    steps(journal, [1])
    journal.close()
    assert [segment.number for segment in segments_of(journal.path)] == [0, 1]
    assert not list(tmp_path.glob(".*.part"))


def test_a_segment_is_no_log(tmp_path):
    with pytest.raises(ValueError, match="is named like a segment of a log; name the log"):
        Journal(tmp_path / "log.000001")


def test_a_server_that_begins_a_segment_still_holds_the_log(tmp_path):
    journal = Journal(tmp_path / "log", "none", 1)
    steps(journal, [1, 1, 1])
    with pytest.raises(ValueError, match="is being written by another server"):
        Journal(tmp_path / "log")
    journal.close()


# The head ----------------------------------------------------------------------------------------


def test_the_head_is_that_of_the_newest_group(tmp_path):
    journal = Journal(tmp_path / "log", "none", 500)
    for _ in range(5):
        steps(journal, [2])
        assert read_head(tmp_path / "log") == (journal.seq, journal.hash)
    journal.close()


def test_a_head_that_lies_behind_is_on_the_chain(tmp_path):
    """As a process leaves it that is killed between a group and its head, or a power failure."""
    journal = Journal(tmp_path / "log", "none")
    steps(journal, [2])
    behind = (tmp_path / "log.head").read_bytes()
    steps(journal, [2])
    journal.close()
    (tmp_path / "log.head").write_bytes(behind)
    with closing(Journal(tmp_path / "log", "none")) as again:
        assert (again.seq, again.hash) == (journal.seq, journal.hash)


def test_a_system_without_posix_is_refused_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    for name in ("worldloom.serving.journal", "worldloom.cli.serve"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["serve", "bundle"]) == 2
    assert capsys.readouterr().err.startswith("worldloom serve: audit logs cannot be written on")


def test_a_log_that_ends_before_its_head_is_not_gone_on_with(tmp_path):
    path, head = tmp_path / "log", tmp_path / "log.head"
    fill(path)
    content, known = path.read_bytes(), head.read_bytes()
    for cut in (0, 100, len(content) - 400, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match="and its head is record 6: records were cut off"):
            Journal(path)
        assert (path.read_bytes(), head.read_bytes()) == (content[:cut], known)
        assert not list(tmp_path.glob("*.torn-*"))
    path.unlink()
    with pytest.raises(ValueError, match="the log is gone, and its head is record 6"):
        Journal(path)
    assert not path.exists()
    path.write_bytes(content)
    head.write_bytes(b"{}")
    with pytest.raises(ValueError, match="does not hold the number and hash of a record"):
        Journal(path)
    head.unlink()
    Journal(path).close()  # one is made
    assert head.read_bytes() == known
