"""When the time of requests is up: one timer for all of them, in place of one each."""

import asyncio
from collections import deque
from collections.abc import Callable

from worldloom.serving.batches import Asked


class Deadlines:
    """Calls `expire(asked)` when the time of a request is up that nobody has taken by then.

    Requests come in the order of their deadlines; one that waited for its turn may be behind later
    ones, and has a timer of its own.
    """

    def __init__(self, expire: Callable[[Asked], None]):
        self._expire = expire
        self._running = deque[Asked]()
        self._next: float | None = None  # when the timer goes off, if there is one

    def add(self, asked: Asked) -> None:
        """The time of this request runs from now on."""
        if self._running and asked.expires < self._running[-1].expires:
            asyncio.get_running_loop().call_at(asked.expires, self._expire, asked)
            return
        self._running.append(asked)
        if self._next is None:
            self._wait()

    def forget(self) -> None:
        """Lets go of requests that were taken, up to the first that was not."""
        while self._running and self._running[0].taken:
            self._running.popleft()

    def _wait(self) -> None:
        self._next = self._running[0].expires
        asyncio.get_running_loop().call_at(self._next, self._due)

    def _due(self) -> None:
        # A timer may go off a little early: it is as late as it was set for.
        now, self._next = max(asyncio.get_running_loop().time(), self._next or 0.0), None
        try:
            while self._running and (self._running[0].taken or self._running[0].expires <= now):
                asked = self._running.popleft()
                if not asked.taken:
                    self._expire(asked)
        finally:
            if self._running:
                self._wait()
