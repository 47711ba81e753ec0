"""Rows of metrics written by a thread of their own, so that who logs never waits for a disk."""

import atexit
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
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

    A row that the sink fails on is counted in `errors`; the first failure is told on standard
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
        self._waiting: deque[dict[str, Any]] = deque()
        self._accepted = 0
        self._handled = 0
        self._closed = False
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="worldloom-logger", daemon=True)
        self._thread.start()
        atexit.register(self.close, _PATIENCE)

    def log(self, row: Mapping[str, Any]) -> bool:
        """Takes a row without waiting; whether there was room for it."""
        kept = {name: _own(value) for name, value in row.items()}
        with self._changed:
            if self._closed:
                raise ValueError("MinimalAsyncLogger: it is closed; log before close()")
            if len(self._waiting) >= self.capacity:
                self.dropped += 1
                return False
            self._waiting.append(kept)
            self._accepted += 1
            self._changed.notify_all()
            return True

    def write(self, row: Mapping[str, Any]) -> None:
        """`log`, under the name that sinks have for it."""
        self.log(row)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits for the rows logged so far; whether the sink was handed all of them in time."""
        with self._changed:
            goal = self._accepted
            return self._changed.wait_for(lambda: self._handled >= goal, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Writes what waits, then closes the sink. Rows not written in time count as dropped."""
        if os.getpid() != self._process:
            return  # a forked child has no thread, and the rows are its parent's
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        if not self.flush(timeout):
            with self._changed:
                lost = self._accepted - self._handled
                self.dropped += lost
                self._waiting.clear()
            _say(f"{lost} rows could not be written within {timeout:g} s")
            return  # the sink is still at work on one: closing it now might tear the row
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
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                row = self._waiting.popleft()
            try:
                self._sink.write(plain(row))
                self.written += 1
            except Exception as error:
                self._count(error)
            with self._changed:
                self._handled += 1
                self._changed.notify_all()

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
