"""Whether a server still does what it is for: loops that run, and a log that takes records."""

import asyncio
import contextlib
import shutil
import sys
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from worldloom.serving.journal import Content, Journal, Written

MOST_FAILURES, FAILURE_SECONDS = 5, 60.0  # so many within so long, and it gives up
PAUSE = 0.05  # seconds after a failure, doubled with each
STUCK_SECONDS = 10.0  # work that takes longer is called stuck
CHECK_SECONDS = 2.0  # for the log to say that it is well
ROOM = 1 << 20  # bytes that must be free on the log's disk


class Loop:
    """Takes up what waits and works on it, again and again, in a task.

    take() waits for something to do, work(what) does it. Both answer for failures that they expect;
    any other is reported and counted (restarted), and the loop goes on. gave_up(why) is called when
    it does not: after failure upon failure, or when its task was ended by somebody else.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[], Awaitable[Any]],
        work: Callable[[Any], Awaitable[None]],
        *,
        restarted: Callable[[str], None],
        gave_up: Callable[[str], None],
    ):
        self.name, self._take, self._work = name, take, work
        self._restarted, self._gave_up = restarted, gave_up
        self._busy_since: float | None = None
        self._failures: deque[float] = deque(maxlen=MOST_FAILURES)
        self._closing = False
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def problem(self) -> str | None:
        """Why nothing comes out of it; None: it runs."""
        if self._task.done():
            return f"the {self.name} loop has ended"
        since = self._busy_since
        if since is not None and time.monotonic() - since > STUCK_SECONDS:
            return f"the {self.name} loop has been stuck for more than {STUCK_SECONDS:g} s"
        return None

    async def close(self) -> None:
        """Ends it, between two of its awaits."""
        self._closing = True
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                self._busy_since = None
                what = await self._take()
                self._busy_since = time.monotonic()
                await self._work(what)
            except Exception:
                traceback.print_exc(file=sys.stderr)
                now = time.monotonic()
                self._failures.append(now)
                recent = [at for at in self._failures if now - at < FAILURE_SECONDS]
                if len(recent) == MOST_FAILURES:
                    raise
                self._restarted(self.name)
                self._busy_since = None
                await asyncio.sleep(PAUSE * 2 ** len(recent))

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if self._closing:
            return
        error = None if task.cancelled() else task.exception()
        why = "it was cancelled" if error is None else f"{type(error).__name__}: {error}"
        self._gave_up(f"the {self.name} loop cannot be kept running: {why}"[:300])


class Recorder:
    """Writes records to a journal, and knows whether the next one can be written.

    about: what every record says: the policy.
    """

    def __init__(self, journal: Journal, about: Mapping[str, Any]):
        self._journal, self.about = journal, about
        self._unwritten: str | None = None  # why the newest record could not be
        self._checking: asyncio.Future[None] | None = None

    def write(self, records: Sequence[tuple[str, Content]]) -> list[Written]:
        """`Journal.append`, from any thread."""
        try:
            written = self._journal.append(records)
        except OSError as error:
            self._unwritten = str(error)
            raise
        if written and self._unwritten is not None:
            reason, self._unwritten = self._unwritten, None
            with contextlib.suppress(OSError):  # the records themselves are there
                self.note("resume", {"reason": reason})
        return written

    def note(self, kind: str, content: Mapping[str, Any] | None = None) -> None:
        """Writes a record about the server itself."""
        self.write([(kind, {"time": time.time(), **self.about, **(content or {})})])

    async def problem(self) -> str | None:
        """Why no record can be written; None: one can."""
        if self._journal.broken is not None:
            return self._journal.broken
        # In a thread, and one at a time: a disk that hangs must hold up neither answers nor this.
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(asyncio.to_thread(self._check))
        await asyncio.wait([self._checking], timeout=CHECK_SECONDS)
        if not self._checking.done():
            return f"the audit log has not answered for {CHECK_SECONDS:g} s"
        error = self._checking.exception()
        return None if error is None else f"the audit log: {error}"

    def _check(self) -> None:
        self._journal.check()
        folder = self._journal.path.parent
        if shutil.disk_usage(folder).free < ROOM:
            raise OSError(f"the disk of {folder} is full")
        if self._unwritten is not None:  # whether that is over, a record shows
            reason, self._unwritten = self._unwritten, None
            self.note("resume", {"reason": reason})
