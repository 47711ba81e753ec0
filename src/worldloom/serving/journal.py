"""The append-only file behind an audit log: what is written when, and what a crash leaves of it.

Records are appended in groups, and a group is written by one call before anybody hears of it. When
it also has to be on the disk is a choice:

    always  after every record
    batch   after every group (the default): like `always` it survives a power failure
    none    when the system sees fit: survives the death of the process, not that of the machine

A process that dies while it writes leaves a torn tail: part of a line, or the first lines of a
group. Nobody was told of any of them. The next `Journal` on the file cuts the tail off and keeps it
beside, in FILE.torn-N with N the number of the first record that is gone.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from worldloom.serving.records import FIRST, MOVES, Line, check_line, encode

try:
    import fcntl
except ImportError:  # where there is no POSIX, nothing keeps two servers off one log
    fcntl = None

Fsync = Literal["always", "batch", "none"]


class LogProblem(Exception):
    """What is wrong with a log, and where. torn: a crash may have done it."""

    def __init__(self, text: str, torn: bool = False):
        super().__init__(text)
        self.torn = torn


class Written(NamedTuple):
    """A record that is in the log."""

    seq: int
    hash: str


@dataclass
class Tail:
    """Where the whole groups of a log end, and what they leave behind."""

    end: int = 0  # bytes that are whole
    size: int = 0  # bytes there are
    seq: int = -1  # of the last whole record
    hash: str = FIRST
    latest: dict[str, bytes] = field(default_factory=dict)  # plant -> the line that moved it last
    start: bytes | None = None  # the line of the last start
    broken: str | None = None  # why what follows cannot be a torn tail


class Journal:
    """An audit log, open for appending. One process may hold it at a time; threads may share it.

    `recovered` says what was there when it was opened.
    """

    def __init__(self, path: str | Path, fsync: Fsync = "batch"):
        self.path, self.fsync = Path(path), fsync
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = os.open(self.path, flags, 0o640)
        self._lock = threading.Lock()
        self.broken: str | None = None  # why nothing can be written any more
        try:
            _hold(self._file, self.path)
            self.recovered = scan(self.path)
            if self.recovered.broken is not None:
                raise ValueError(
                    f"{self.path}: {self.recovered.broken}; this is no torn tail and nothing was "
                    "changed: examine it with `worldloom audit verify`, or start another log"
                )
            self._trim(self.recovered)
            if fsync != "none":
                _sync_folder(self.path.parent)
        except BaseException:
            os.close(self._file)
            raise
        self.size = self.recovered.end
        self.seq, self.hash = self.recovered.seq, self.recovered.hash

    def append(self, records: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Written]:
        """Writes a group of records (kind, content), all or none; where they are in the log.

        An OSError means that none is there.
        """
        if not records:
            return []
        with self._lock:
            if self.broken is not None:
                raise OSError(self.broken)
            self.check()
            seq, digest = self.seq, self.hash
            lines, written = [], []
            last = seq + len(records)
            for kind, content in records:
                seq += 1
                line, digest = encode(seq, last, digest, kind, content)
                lines.append(line)
                written.append(Written(seq, digest))
            try:
                for part in lines if self.fsync == "always" else [b"".join(lines)]:
                    self._write(part)
                    if self.fsync != "none":
                        os.fsync(self._file)
            except OSError as error:
                self._take_back(error)
                raise OSError(f"{self.path} cannot be written: {error}") from error
            self.size += sum(map(len, lines))
            self.seq, self.hash = seq, digest
            return written

    def check(self) -> None:
        """An OSError where the file on the disk is not the one that is open."""
        try:
            here, there = os.fstat(self._file), os.stat(self.path)
        except OSError as error:
            raise OSError(f"{self.path} is gone: {error.strerror}") from None
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise OSError(f"{self.path} was replaced by another file; put the log back, or restart")

    def close(self) -> None:
        """Puts everything on the disk and lets go of the file."""
        with self._lock:
            if self._file >= 0:
                if self.broken is None:
                    os.fsync(self._file)
                os.close(self._file)
                self._file, self.broken = -1, f"{self.path} is closed"

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _take_back(self, error: OSError) -> None:
        """Removes what was written of a group; if that fails too, nothing is written again."""
        try:
            os.ftruncate(self._file, self.size)
        except OSError as worse:
            self.broken = f"{self.path} cannot be written ({error}) nor put right ({worse})"

    def _trim(self, tail: Tail) -> None:
        if tail.size == tail.end:
            return
        first = f"{self.path.name}.torn-{tail.seq + 1}"
        beside, n = self.path.with_name(first), 2
        while beside.exists():
            beside, n = self.path.with_name(f"{first}-{n}"), n + 1
        with self.path.open("rb") as source, beside.open("xb") as kept:
            source.seek(tail.end)
            kept.write(source.read())
            kept.flush()
            os.fsync(kept.fileno())
        os.ftruncate(self._file, tail.end)
        os.fsync(self._file)
        print(
            f"{self.path}: {tail.size - tail.end} bytes after record {tail.seq} were torn off by a "
            f"crash; they were cut off and are kept in {beside}",
            file=sys.stderr,
            flush=True,
        )


def scan(path: str | Path) -> Tail:
    """Reads a log from its start: every hash, every link, and where its whole groups end."""
    tail = Tail(size=Path(path).stat().st_size)
    try:
        for end, group in groups(path):
            last = group[-1][0]
            tail.end, tail.seq, tail.hash = end, last.seq, last.hash
            for line, raw in group:
                if line.kind in MOVES and line.plant is not None:
                    tail.latest[line.plant] = raw
                elif line.kind == "start":
                    tail.start = raw
    except LogProblem as problem:
        tail.broken = None if problem.torn else str(problem)
    return tail


def groups(path: str | Path) -> Iterator[tuple[int, list[tuple[Line, bytes]]]]:
    """The lines that were written together, and the byte at which they end.

    LogProblem where the chain breaks, or, at the end, where a group is not whole.
    """
    group: list[tuple[Line, bytes]] = []
    size = Path(path).stat().st_size  # a server may go on writing
    end, whole, seq, digest = 0, 0, -1, FIRST
    with Path(path).open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = check_line(raw)
            problem = _problem(line, seq, digest)
            if line is None or problem is not None:
                # A crash can leave a last line that does not end, and nothing else.
                if raw.endswith(b"\n"):
                    raise LogProblem(f"line {number}, after record {seq}: {problem}")
                break
            end, seq, digest = end + len(raw), line.seq, line.hash
            group.append((line, raw))
            if line.until != group[0][0].until:
                raise LogProblem(
                    f"line {number}: record {seq} belongs to another group than it says"
                )
            if line.until == seq:
                yield end, group
                group, whole = [], end
    if whole < size:
        raise LogProblem(
            f"torn after record {seq - len(group)}: a server was killed while it wrote; what "
            "follows was never answered, and the next start on this log cuts it off",
            torn=True,
        )


def _problem(line: Line | None, seq: int, digest: str) -> str | None:
    """What is wrong with a line that follows record `seq` with this hash; None: nothing."""
    if line is None:
        return "a line that is no record, or whose hash is not that of its content"
    if line.seq != seq + 1:
        return f"record {line.seq} follows: records are missing or out of order"
    if line.prev != digest:
        return f"record {line.seq} names another hash than that record's as the one before it"
    if line.until < line.seq:
        return f"record {line.seq} says that its group ended at {line.until}"
    return None


def _hold(file: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(
            f"{path} is being written by another server; stop it, or name another log"
        ) from None


def _sync_folder(folder: Path) -> None:
    """Puts a new file's name on the disk, where folders can be synced."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
