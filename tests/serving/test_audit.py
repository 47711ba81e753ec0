"""Logs that prove what was done: changes are found, and answers come out again."""

import asyncio
import json
import shlex
import shutil

import numpy as np
import pytest

from worldloom.cli.audit import command
from worldloom.serving.audit import verify_log
from worldloom.serving.controller import Controller, Limits
from worldloom.serving.journal import Journal
from worldloom.serving.records import encode
from worldloom.serving.replay import replay_log
from worldloom.serving.segments import segments_of


@pytest.fixture(scope="module")
def kept(bundle, usual, tmp_path_factory):
    """A log of three plants with every kind of record but `unused`. Copy it to change it."""
    path = tmp_path_factory.mktemp("audit") / "audit.jsonl"

    async def story():
        controller = Controller(bundle, Journal(path, "none"), Limits(deadline=5.0))
        await controller.open()
        for i in range(3):
            controller.plants.find(f"p{i}", 0.0).known = True  # where a plant's log begins
        for step in range(5):
            obs = usual(3, step)
            obs[1, 0] += 4.0
            await asyncio.gather(*(controller.act(f"p{i}", obs[i]) for i in range(3)))
        for _ in range(3):
            await controller.act("p2", np.full(3, np.nan, np.float32))
        await controller.reset("p2", None)
        await controller.override("p0", np.asarray([0.1, 0.2], np.float32))
        await controller.act("p0", usual(1)[0])
        await controller.close()

    asyncio.run(story())
    return path


@pytest.fixture
def log(kept, tmp_path):
    return shutil.copy(kept, tmp_path / "audit.jsonl")


def rewrite(log, change):
    """Applies `change(row)` to every record and chains them anew, as a forger would."""
    lines, previous = [], "0" * 64
    for row in map(json.loads, log.read_text().splitlines()):
        change(row)
        content = {
            k: v for k, v in row.items() if k not in ("seq", "until", "prev", "kind", "hash")
        }
        line, previous = encode(row["seq"], row["until"], previous, row["kind"], content)
        lines.append(line)
    log.write_bytes(b"".join(lines))


def test_a_log_that_was_left_alone_is_sound(kept, bundle):
    found = verify_log(kept, policy=bundle.digest)
    assert (found.problem, found.records, found.answers, found.starts) == (None, 23, 19, 1)
    assert found.plants == {"p0", "p1", "p2"}
    assert found.policy == bundle.digest
    start = json.loads(kept.read_text().splitlines()[0])
    assert start["signals"] == bundle.manifest["signals"]  # what numbers mean is on record, too


def test_emergency_actions_of_the_filter_and_late_answers_are_counted_apart(kept, log, bundle):
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    acts = sum(row["kind"] == "act" and row["report"]["emergency"] for row in rows)
    assert acts >= 3  # p2 was blind three times
    for found in (verify_log(kept), replay_log(kept, bundle)):
        assert (found.filter_emergencies, found.late_emergencies) == (acts, 0)

    async def late():
        controller = Controller(bundle, Journal(log, "none"), Limits(deadline=1e-6))
        await controller.open()
        await controller.act("p0", np.zeros(3, np.float32))
        await controller.close()

    asyncio.run(late())
    for found in (verify_log(log), replay_log(log, bundle)):
        assert (found.filter_emergencies, found.late_emergencies) == (acts, 1)
        assert (found.problem, found.answers) == (None, 20)


def test_answers_come_out_again_over_segments_and_starts(bundle, usual, tmp_path):
    log = tmp_path / "audit.jsonl"

    async def story(step):
        controller = Controller(bundle, Journal(log, "none", 4000), Limits(deadline=5.0))
        await controller.open()
        for i in range(0 if step else 3):
            await controller.reset(f"p{i}", np.asarray([0.1, -0.1], np.float32))
        answers = [await controller.act(f"p{i}", row) for i, row in enumerate(usual(3, step))]
        await controller.override("p1", np.asarray([0.1 * step, 0.2], np.float32))
        await controller.close()
        return answers

    for step in range(4):
        for answer in asyncio.run(story(step)):
            assert answer["content"]["memory"]["step"] == step  # nothing was forgotten
    segments = segments_of(log)
    assert len(segments) > 3
    whole = replay_log(log, bundle)
    assert (whole.problem, whole.replayed, whole.different, whole.starts) == (None, 12, 0, 4)
    segments[0].path.unlink()
    for path in (log, segments[2].path):
        found = replay_log(path, bundle)
        assert (found.problem, found.different) == (None, 0)
        assert 0 < found.replayed < 12


def test_every_answer_comes_out_again_bit_for_bit(kept, bundle):
    found = replay_log(kept, bundle)
    assert (found.problem, found.replayed, found.different, found.largest) == (None, 19, 0, 0.0)


def test_every_changed_byte_is_found(kept, log):
    content = kept.read_bytes()
    luck = np.random.default_rng(0)
    for place in luck.integers(0, len(content), 200):
        changed = bytearray(content)
        changed[place] ^= 1
        log.write_bytes(changed)
        assert verify_log(log).problem is not None, place


def test_a_record_that_was_removed_or_moved_is_found(kept, log):
    lines = kept.read_bytes().splitlines(keepends=True)
    for change in (lines[1:], lines[:4] + lines[5:], [*lines[:3], lines[4], lines[3], *lines[5:]]):
        log.write_bytes(b"".join(change))
        assert "line" in verify_log(log).problem


def test_a_log_that_was_cut_off_is_found_by_a_hash_that_is_known(kept, log):
    head = verify_log(kept).head
    assert verify_log(kept, head=head).problem is None
    log.write_bytes(b"".join(kept.read_bytes().splitlines(keepends=True)[:-1]))
    assert verify_log(log).problem is None  # by itself it looks whole
    assert "was cut off or rewritten" in verify_log(log, head=head).problem


def test_a_torn_tail_is_told_from_a_change(kept, log):
    log.write_bytes(kept.read_bytes()[:-30])
    found = verify_log(log)
    assert found.torn
    assert "torn after record 21" in found.problem
    whole = [i for i, row in enumerate(map(json.loads, kept.read_text().splitlines()))
             if row["seq"] != row["until"]]  # fmt: skip
    lines = kept.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[: whole[0] + 1]))  # part of a batch
    assert verify_log(log).torn


@pytest.mark.parametrize(
    ("key", "value"),
    [("action", [0.5, 0.5]), ("proposed", [0.0, 0.0]), ("obs", [0.0, 10.0, -5.0])],
)
def test_a_forged_answer_does_not_come_out_again(log, bundle, key, value):
    def forge(row):
        if row["seq"] == 5:
            row[key] = value

    rewrite(log, forge)
    assert verify_log(log).problem is None  # the forger has chained it anew
    found = replay_log(log, bundle)
    assert found.different >= 1
    assert found.first.startswith("record ")


def test_a_forged_flag_does_not_come_out_again(log, bundle):
    def forge(row):
        if row["seq"] == 5:
            row["report"]["is_safe"] = not row["report"]["is_safe"]

    rewrite(log, forge)
    assert replay_log(log, bundle).first == "record 5: report.is_safe differs by inf"


def test_the_last_digit_counts_unless_a_tolerance_is_given(log, bundle):
    def forge(row):
        if row["seq"] == 5:
            row["proposed"][0] = float(np.nextafter(np.float32(row["proposed"][0]), np.float32(2)))

    rewrite(log, forge)
    assert replay_log(log, bundle).different == 1
    assert replay_log(log, bundle, tolerance=1e-6).different == 0


def test_a_memory_that_does_not_follow_is_found(log):
    def forge(row):
        if row["seq"] == 8:
            row["memory"]["step"] += 1

    rewrite(log, forge)
    assert "is not what the record before left behind" in verify_log(log).problem


def test_a_plant_that_does_not_begin_at_the_beginning_is_found(log, bundle):
    begun = set()

    def forge(row):
        if row.get("plant") == "p1":
            for part in ("memory", "after"):
                row[part]["step"] += 1
            row["report"]["step"] += 1
            begun.add(row["seq"])

    rewrite(log, forge)
    assert verify_log(log).problem is None  # without the bundle nobody knows where a plant begins
    found = replay_log(log, bundle)
    assert (found.different, found.first) == (
        1, f"record {min(begun)}: memory.step differs by inf",
    )  # fmt: skip


def test_answers_of_another_policy_are_found(kept, log):
    assert "it is of policy" in verify_log(kept, policy="0" * 64).problem

    def forge(row):
        if row["seq"] == 8:
            row["policy"] = "1" * 64

    rewrite(log, forge)
    assert "record 8: it is of policy 111111111111" in verify_log(log).problem


# Commands ----------------------------------------------------------------------------------------


def test_the_commands_tell_and_return_what_they_found(kept, log, bundle_folder, capsys):
    assert command(["verify", str(kept), str(bundle_folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["sound"], told["answers"], told["plants"]) == (True, 19, 3)
    assert command(["replay", str(kept), str(bundle_folder)]) == 0
    out = capsys.readouterr().out
    assert "19 answers come out again bit for bit" in out
    assert "agrees, up to record 22" in out
    assert "all, 0 to 0" in out
    assert out.split("next: ")[1].split("worldloom ")[1].split()[:2] == ["audit", "alarms"]
    assert command(["verify", str(kept), str(bundle_folder)]) == 0
    following = shlex.split(capsys.readouterr().out.split("next: ")[1])
    assert following[-4:] == ["audit", "replay", str(kept), str(bundle_folder)]
    assert command(["verify", str(log)]) == 0
    assert "none: whether records were cut off at the end is not known" in capsys.readouterr().out
    log.write_bytes(kept.read_bytes().replace(b'"reason"', b'"raisin"').replace(b"0.1", b"0.2", 1))
    assert command(["verify", str(log)]) == 1
    assert "is not that of its content" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["verfy"], "did you mean 'verify'"),
        (["verify", "nowhere"], "nowhere: there is no such log"),
        (["replay", "nowhere", "nobundle"], "nobundle is no bundle of a policy"),
    ],
)
def test_bad_input_is_one_line(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        command(argv)
