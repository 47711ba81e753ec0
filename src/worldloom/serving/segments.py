"""The files of an audit log, and what can be read in them.

    audit.jsonl           segment 0: where a log begins
    audit.jsonl.000001    segment 1: goes on after the last record of segment 0
    audit.jsonl.head      number and hash of the newest record: shows that none is gone

One chain of hashes runs through all segments. Each but segment 0 begins with a snapshot, which is a
record that holds the last record of every plant: reading can begin with any segment. A server reads
the last one when it starts, and those before it may be kept elsewhere.
"""

import glob
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from worldloom.serving.records import FIRST, MOVES, Line, as_line, check_line

_SEGMENT = re.compile(r"(.+)\.(\d{6,})")
_HEAD_FILE = re.compile(rb'\{"seq": *(-?\d+),"hash":"([0-9a-f]{64})"\}\n')

Group = list[tuple[Line, bytes]]  # lines that were written together


class LogProblem(Exception):
    """What is wrong with a log, and where. torn: a crash may have done it."""

    def __init__(self, text: str, torn: bool = False):
        super().__init__(text)
        self.torn = torn


class Written(NamedTuple):
    """A record that is in the log."""

    seq: int
    hash: str


NOTHING = Written(-1, FIRST)  # stands before the first record


def after(newest: Written | None) -> str:
    """Where that is, in words."""
    if newest is None or newest == NOTHING:
        return "before the first record"
    return f"after record {newest.seq}"


class Segment(NamedTuple):
    """One file of a log."""

    number: int
    path: Path


@dataclass
class Tail:
    """Where the whole groups of a log end, and what they leave behind."""

    end: int = 0  # bytes of the last segment that are whole
    size: int = 0  # bytes that it has
    snapshot: int = 0  # bytes of the snapshot that it begins with
    newest: Written = NOTHING
    latest: dict[str, bytes] = field(default_factory=dict)  # plant -> the line that moved it last
    start: bytes | None = None  # the line of the last start
    policy: str | None = None  # its policy's digest
    broken: str | None = None  # why what follows cannot be a torn tail


# Names -------------------------------------------------------------------------------------------


def segment_of(log: Path, number: int) -> Segment:
    """The segment of a log that has this number."""
    return Segment(number, log.with_name(f"{log.name}.{number:06d}") if number else log)


def named(path: str | Path) -> Segment:
    """The log that a path names, itself or by one of its segments, and that segment's number."""
    path = Path(path)
    parts = _SEGMENT.fullmatch(path.name)
    return Segment(int(parts[2]), path.with_name(parts[1])) if parts else Segment(0, path)


def segments_of(path: str | Path) -> list[Segment]:
    """The segments that are there, in order; if the path names one of them, from that one on."""
    first, log = named(path)
    files = [log, *log.parent.glob(f"{glob.escape(log.name)}.*")]
    segments = [Segment(named(file).number, file) for file in files if file.is_file()]
    # Another log's name may begin like this one's.
    return sorted(s for s in segments if s.number >= first and s == segment_of(log, s.number))


# The head ----------------------------------------------------------------------------------------


def head_path(path: str | Path) -> Path:
    """The file that holds the head of a log."""
    log = named(path).path
    return log.with_name(f"{log.name}.head")


def head_line(newest: Written) -> bytes:
    """A head as it is kept: always of the same length, to be written over the one before."""
    return f'{{"seq":{newest.seq:20d},"hash":"{newest.hash}"}}\n'.encode()


def read_head(path: str | Path) -> Written | None:
    """The newest record of a log according to its head file; None where there is no such file."""
    file = head_path(path)
    if not file.is_file():
        return None
    content, again = file.read_bytes(), b""
    while content != again:  # a server may be writing it
        content, again = file.read_bytes(), content
    parts = _HEAD_FILE.fullmatch(content)
    if parts is None:
        raise LogProblem(f"{file.name} does not hold the number and hash of a record")
    return Written(int(parts[1]), parts[2].decode())


# Records -----------------------------------------------------------------------------------------


def scan(segment: Segment, head: Written | None = None) -> Tail:
    """Reads a log's last segment: every hash, every link, and where its whole groups end."""
    tail = Tail(size=segment.path.stat().st_size)
    try:
        for end, group in groups([segment], head):
            tail.end, tail.newest = end, Written(group[-1][0].seq, group[-1][0].hash)
            for line, raw in group:
                if line.kind in MOVES and line.plant is not None:
                    keep_latest(tail.latest, line.plant, raw)
                elif line.kind == "start":
                    tail.start, tail.policy = raw, json.loads(raw)["policy"]
                elif line.kind == "segment":
                    content = json.loads(raw)
                    tail.snapshot, start, tail.policy = end, content["start"], content["policy"]
                    tail.start = None if start is None else as_line(start)
                    tail.latest = {name: as_line(x) for name, x in content["plants"].items()}
    except LogProblem as problem:
        tail.broken = None if problem.torn else str(problem)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        tail.broken = f"record {tail.newest.seq} lacks or garbles something: {error!r:.120}"
    return tail


def keep_latest(latest: dict[str, bytes], plant: str, line: bytes) -> None:
    """Notes the line that changed a plant's memory last; a plant that was forgotten has none."""
    if b'"forgotten":true' in line:
        latest.pop(plant, None)
    else:
        latest[plant] = line


def groups(segments: Sequence[Segment], head: Written | None = None) -> Iterator[tuple[int, Group]]:
    """The lines that were written together, and the byte of their segment at which they end.

    LogProblem where the chain breaks, or, at the end, where a group is not whole. head: what was
    once the newest record, and must be there.
    """
    # What comes before a later segment is known from that segment alone.
    newest = None if segments[0].number else NOTHING
    met, torn = head in (None, newest), None
    for i, segment in enumerate(segments):
        expected = segment_of(named(segment.path).path, segments[0].number + i)
        if segment != expected:
            raise LogProblem(f"{expected.path.name} is missing {after(newest)}")
        try:
            for end, group in _read(segment, newest, is_last=i + 1 == len(segments)):
                before = Written(group[0][0].seq - 1, group[0][0].prev)
                newest = Written(group[-1][0].seq, group[-1][0].hash)
                for record in (before, newest):
                    if head is not None and record.seq == head.seq:
                        if record != head:
                            raise LogProblem(
                                f"record {head.seq} or one before it was rewritten: its hash is "
                                f"{record.hash[:12]}, and the head is {head.hash[:12]}"
                            )
                        met = True
                yield end, group
        except LogProblem as problem:
            if not problem.torn:
                raise
            torn = problem
    if head is not None and not met:
        if newest is not None and newest.seq > head.seq:
            raise LogProblem(f"the head is record {head.seq}, with which no group here ends")
        raise LogProblem(
            f"the log ends {after(newest)}, and its head is record {head.seq}: records were cut "
            "off, or lost in a power failure with --fsync none"
        )
    if torn is not None:
        raise torn


def _read(segment: Segment, newest: Written | None, is_last: bool) -> Iterator[tuple[int, Group]]:
    """`groups` of one segment, which follows the record `newest` (None: it is not known)."""
    name, group = segment.path.name, Group()
    size = segment.path.stat().st_size  # a server may go on writing
    end, whole, known = 0, 0, newest
    with segment.path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = check_line(raw)
            problem = _problem(line, newest, begins=number == 1 and segment.number > 0)
            if line is None or problem is not None:
                # A crash can leave a last line that does not end, and nothing else.
                if raw.endswith(b"\n"):
                    raise LogProblem(f"{name}, line {number}, {after(newest)}: {problem}")
                break
            end, newest = end + len(raw), Written(line.seq, line.hash)
            group.append((line, raw))
            if line.until != group[0][0].until:
                raise LogProblem(
                    f"{name}, line {number}: record {line.seq} is of another group than it says"
                )
            if line.until == line.seq:
                yield end, group
                group, whole, known = Group(), end, newest
    if segment.number and not whole:
        # It was given its name after its snapshot was written: no crash of a server does this.
        raise LogProblem(f"{name} does not begin with a snapshot")
    if whole < size and not is_last:
        raise LogProblem(f"{name} ends within a group {after(known)}, and yet a segment follows")
    if whole < size:
        raise LogProblem(
            f"{name} is torn {after(known)}: a server was killed while it wrote; what follows was "
            "never answered, and the next start on this log cuts it off",
            torn=True,
        )


def _problem(line: Line | None, newest: Written | None, begins: bool) -> str | None:
    """What is wrong with a line that follows `newest`, or begins a later segment; None: nothing."""
    if line is None:
        return "a line that is no record, or whose hash is not that of its content"
    if newest is not None and line.seq != newest.seq + 1:
        return f"record {line.seq} follows: records are missing or out of order"
    if newest is not None and line.prev != newest.hash:
        return f"record {line.seq} names another hash than that record's as the one before it"
    if line.until < line.seq:
        return f"record {line.seq} says that its group ended at {line.until}"
    if begins != (line.kind == "segment"):
        return "a segment, and nothing else, begins with a snapshot"
    return None
