"""Rows of metrics written by a thread of their own, so that who logs never waits for a disk."""

import atexit
import math
import os
import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldloom.core.files import plain
from worldloom.training.sinks import JsonLines

if TYPE_CHECKING:
    from worldloom.core.protocols import Sink  # which imports jax

_PATIENCE = 30.0  # seconds that the end of the program waits for a sink


class MinimalAsyncLogger:
    """Takes rows at once and writes them when it can. Itself a sink.

    Call it between compiled chunks, never in one. Arrays of jax may still be computing when they
    are logged: the thread waits for them and converts them, so do not donate them afterwards.
    What is left is written when the logger is closed, or when the program ends.

    Args:
        sink: what writes the rows, closed with the logger; or the path of a file for JSON lines,
            which are added to those that are in it.
        capacity: how many rows may wait. One more is dropped, and counted in `dropped`.

    A row that the sink fails on is counted in `errors`; the first failure is printed on standard
    error, and the thread goes on.
    """

    def __init__(self, sink: "Sink | str | Path", capacity: int = 1024) -> None:
        if capacity < 1:
            raise ValueError(f"MinimalAsyncLogger: capacity={capacity}; it must be at least 1")
        if isinstance(sink, str | Path):
            sink = JsonLines(Path(sink), done=math.inf)  # keeps every row
        self.capacity = capacity
        self.dropped = 0  # rows that found no room
        self.errors = 0  # rows that the sink failed on
        self.written = 0
        self._sink = sink
        self._rows: queue.Queue[dict[str, Any] | None] = queue.Queue(capacity)
        self._lock, self._closed, self._process = threading.Lock(), False, os.getpid()
        self._thread = threading.Thread(target=self._work, name="worldloom-logger", daemon=True)
        self._thread.start()
        atexit.register(self.close, _PATIENCE)

    def log(self, row: Mapping[str, Any]) -> bool:
        """Takes a row without waiting; whether there was room for it."""
        kept = {name: _own(value) for name, value in row.items()}
        with self._lock:
            if self._closed:
                raise ValueError("MinimalAsyncLogger: it is closed; log before close()")
            try:
                self._rows.put_nowait(kept)
            except queue.Full:
                self.dropped += 1
                return False
            return True

    def write(self, row: Mapping[str, Any]) -> None:
        """`log`, under the name that sinks have for it."""
        self.log(row)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until no row is left; whether the sink was handed all of them in time."""
        changed = self._rows.all_tasks_done
        with changed:
            return changed.wait_for(lambda: not self._rows.unfinished_tasks, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Writes what waits, then closes the sink. Rows not written in time count as dropped."""
        if os.getpid() != self._process:
            return  # a forked child has no thread, and the rows are its parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        if not self.flush(timeout):
            lost = self._rows.unfinished_tasks
            self.dropped += lost
            with suppress(queue.Empty):
                while True:
                    self._rows.get_nowait()
            self._rows.put(None)
            _say(f"{lost} rows could not be written within {timeout:g} s")
            return  # the sink is still at work on one: closing it now might tear the row
        self._rows.put(None)
        self._thread.join()
        try:
            self._sink.close()
        except Exception as error:
            self._count(error)

    def __enter__(self) -> "MinimalAsyncLogger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        for row in iter(self._rows.get, None):
            try:
                self._sink.write(plain(row))
                self.written += 1
            except Exception as error:
                self._count(error)
            self._rows.task_done()

    def _count(self, error: Exception) -> None:
        self.errors += 1
        if self.errors == 1:
            message = " ".join(str(error).split())
            _say(f"{type(error).__name__}: {message}; further errors are only counted")


def _own(value: Any) -> Any:
    """An array that the caller may go on to write in is copied now."""
    flags = getattr(value, "flags", None)
    return value.copy() if getattr(flags, "writeable", False) else value


def _say(message: str) -> None:
    print(f"MinimalAsyncLogger: {message}", file=sys.stderr)
