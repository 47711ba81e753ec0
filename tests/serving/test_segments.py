"""What an auditor finds: whatever is done to segments, records, snapshots and the head of a log."""

import json
import shutil
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldloom.serving.audit import verify_log
from worldloom.serving.journal import Journal
from worldloom.serving.records import encode
from worldloom.serving.segments import head_path, read_head, segment_of, segments_of


def act(plant, step, row):
    return "act", {
        "plant": plant,
        "policy": "p",
        "batch": [2, row],
        "memory": {"step": step},
        "after": {"step": step + 1},
        "report": {"emergency": step == 3},
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A log of two plants in four segments. Copy it to change it."""
    path = tmp_path_factory.mktemp("kept") / "log"
    journal = Journal(path, "none", 1500)
    journal.append([("start", {"policy": "p"})])
    for step in range(9):
        journal.append([act("a", step, 0), act("b", step, 1)])
    journal.append([("stop", {"policy": "p"})])
    journal.close()
    assert len(segments_of(path)) == 4
    return path


@pytest.fixture
def log(kept, tmp_path):
    return copied(kept, tmp_path)


def copied(kept, folder):
    for file in kept.parent.iterdir():
        shutil.copy(file, folder)
    return folder / kept.name


def lines_of(segment):
    return segment.path.read_bytes().splitlines(keepends=True)


def test_a_log_that_was_left_alone_is_sound(kept):
    found = verify_log(kept)
    assert (found.problem, found.segments, found.follows) == (None, (0, 3), None)
    assert (found.answers, found.filter_emergencies, found.late_emergencies) == (18, 2, 0)
    assert found.records == 1 + 9 * 2 + 1 + 3
    assert found.head_file == found.records - 1


def test_a_log_can_be_verified_from_any_segment_on(kept):
    whole = verify_log(kept)
    for number, path in segments_of(kept):
        found = verify_log(path)
        assert (found.problem, found.segments, found.head) == (None, (number, 3), whole.head)
        first = json.loads(path.read_bytes().splitlines()[0])
        assert found.follows == (first["prev"] if number else None)
        assert found.plants == {"a", "b"}


def test_old_segments_are_verified_where_they_were_moved_to(log, tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    for segment in segments_of(log)[:2]:
        segment.path.rename(archive / segment.path.name)
    rest = verify_log(log)
    assert (rest.problem, rest.segments) == (None, (2, 3))
    moved = verify_log(archive / log.name, head=rest.follows)  # all that came before is there
    assert (moved.problem, moved.segments, moved.head_file) == (None, (0, 1), None)
    assert moved.head == rest.follows
    journal = Journal(log, "none")  # and the server goes on
    assert journal.seq == rest.head_file
    journal.close()


def test_every_changed_byte_is_found_and_placed(kept, tmp_path):
    log = copied(kept, tmp_path)
    for segment in segments_of(log):
        content = segment.path.read_bytes()
        for place in range(0, len(content), 7):
            changed = bytearray(content)
            changed[place] ^= 1
            segment.path.write_bytes(changed)
            problem = verify_log(log).problem
            assert segment.path.name in problem or "head" in problem, place
        segment.path.write_bytes(content)
    assert verify_log(log).problem is None


def test_every_cut_is_found_by_the_head_and_without_it_every_cut_within_a_group(log):
    last = segments_of(log)[-1]
    content = last.path.read_bytes()
    ends, snapshot = {0}, len(lines_of(last)[0])
    for line in lines_of(last):
        row = json.loads(line)
        size = content.index(line) + len(line)
        ends |= {size} if row["seq"] == row["until"] else set()
    cuts = range(len(content))
    for cut in cuts:
        last.path.write_bytes(content[:cut])
        found = verify_log(log)
        expected = "the log ends after record" if cut >= snapshot else "begin with a snapshot"
        assert expected in found.problem
        assert not found.torn
    head_path(log).unlink()
    for cut in cuts:
        last.path.write_bytes(content[:cut])
        found = verify_log(log)
        assert found.head_file is None  # which the command says
        if cut < snapshot:
            assert "does not begin with a snapshot" in found.problem
        else:
            assert found.torn == (cut not in ends)  # between groups nobody can know


@given(st.data())
def test_records_that_are_dropped_doubled_or_swapped_are_found(kept, tmp_path_factory, data):
    log = copied(kept, tmp_path_factory.mktemp("records"))
    segment = data.draw(st.sampled_from(segments_of(log)))
    lines = lines_of(segment)
    i = data.draw(st.integers(0, len(lines) - 1))
    j = data.draw(st.integers(0, len(lines) - 1).filter(lambda j: j != i))
    what = data.draw(st.sampled_from(["drop", "double", "swap"]))
    if what == "swap":
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines[i : i + 1] = [] if what == "drop" else [lines[i]] * 2
    segment.path.write_bytes(b"".join(lines))
    assert verify_log(log).problem is not None


def test_a_segment_that_is_missing_is_named(kept, tmp_path):
    for number in range(4):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        log = copied(kept, folder)
        segment_of(log, number).path.unlink()
        found = verify_log(log)
        if number == 0:  # it may have been moved to an archive
            assert (found.problem, found.segments) == (None, (1, 3))
        elif number == 3:
            assert "the log ends after record" in found.problem
            head_path(log).unlink()
            assert verify_log(log).problem is None  # without the head nobody can know
        else:
            assert found.problem.startswith(f"log.00000{number} is missing after record")


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (0, 3), (2, 3)])
def test_segments_that_are_swapped_or_doubled_are_found(kept, log, one, other):
    first, second = (segment_of(log, number).path for number in (one, other))
    contents = first.read_bytes(), second.read_bytes()
    for one_content, other_content in (contents[::-1], contents[:1] * 2, contents[1:] * 2):
        first.write_bytes(one_content)
        second.write_bytes(other_content)
        assert verify_log(log).problem.startswith("log")
    copied(kept, log.parent)
    shutil.copy(first, segment_of(log, 4).path)
    assert "log.000004, line 1" in verify_log(log).problem


def test_a_segment_without_its_snapshot_is_found(log):
    for segment in segments_of(log)[1:]:
        lines = lines_of(segment)
        segment.path.write_bytes(b"".join(lines[1:]))
        assert f"{segment.path.name}, line 1" in verify_log(log).problem
        assert f"{segment.path.name}, line 1" in verify_log(segment.path).problem
        segment.path.write_bytes(b"".join(lines))


def rewrite(log, change):
    """Applies `change(row)` to every record and chains them anew, as a forger would."""
    previous, latest = "0" * 64, {}
    for segment in segments_of(log):
        lines = []
        for row in map(json.loads, lines_of(segment)):
            if row["kind"] == "segment":
                row["plants"] = dict(latest)
            change(row)
            names = ("seq", "until", "prev", "kind", "hash")
            content = {k: v for k, v in row.items() if k not in names}
            line, previous = encode(row["seq"], row["until"], previous, row["kind"], content)
            lines.append(line)
            if "plant" in row:
                latest[row["plant"]] = json.loads(line)
        segment.path.write_bytes(b"".join(lines))


def test_a_log_that_was_chained_anew_is_found_by_its_head(log):
    def forge(row):
        if row["seq"] == 5:
            row["report"]["emergency"] = True

    known = read_head(log).hash
    rewrite(log, forge)
    assert verify_log(log).problem.startswith("record 22 or one before it was rewritten")
    head_path(log).unlink()
    assert verify_log(log).problem is None  # nobody can know, but for a hash that was kept
    assert "was cut off or rewritten" in verify_log(log, head=known).problem


def test_a_forged_snapshot_is_found(log):
    def forge(row):
        if row["kind"] == "segment":
            row["plants"]["a"]["after"]["step"] += 1

    rewrite(log, forge)
    head_path(log).unlink()
    assert "its snapshot is not what the records before left behind" in verify_log(log).problem


@pytest.mark.parametrize("field", ["start", "plants", "policy"])
def test_a_start_on_a_snapshot_that_lacks_something_is_one_line(log, field):
    rewrite(log, lambda row: row.pop(field, None) if row["kind"] == "segment" else None)
    head_path(log).unlink()
    with pytest.raises(ValueError, match=f"lacks or garbles something: KeyError\\('{field}'"):
        Journal(log)


def test_an_empty_log_is_found_by_its_head(tmp_path):
    journal = Journal(tmp_path / "log", "none")
    journal.close()
    assert verify_log(journal.path).problem is None  # nothing was written yet
    journal = Journal(tmp_path / "log", "none")
    journal.append([("start", {"policy": "p"})])
    journal.close()
    journal.path.write_bytes(b"")
    assert verify_log(journal.path).problem.startswith("the log ends before the first record")
    head_path(journal.path).write_bytes(b'{"seq": 0}')
    assert "log.head does not hold" in verify_log(journal.path).problem


def test_records_that_were_added_after_the_head_cannot_be_told_from_those_of_a_server(log):
    last = segments_of(log)[-1]
    newest = json.loads(lines_of(last)[-1])
    added, _ = encode(newest["seq"] + 1, newest["seq"] + 1, newest["hash"], "stop", {"policy": "p"})
    with last.path.open("ab") as file:
        file.write(added)
    found = verify_log(log)
    assert (found.problem, found.head_file) == (None, found.records - 2)


def test_snapshots_leave_out_plants_that_were_forgotten(tmp_path):
    log = tmp_path / "audit.jsonl"
    with closing(Journal(log, "none", segment_bytes=1)) as journal:
        journal.append([("start", {"time": 0.0, "policy": "p", "seed": "0", "batch_sizes": [1]})])
        for name, more in (("gone", {"forgotten": True}), ("here", {})):
            content = {"plant": name, "time": 0.0, "policy": "p", "memory": {}, "after": {}}
            journal.append([("reset", content | more)])
        assert list(journal._latest) == ["here"]
        journal.append([("stop", {"time": 0.0, "policy": "p"})])
    last = json.loads(segments_of(log)[-1].path.read_text().splitlines()[0])
    assert list(last["plants"]) == ["here"]
    assert verify_log(log).problem is None
