"""HTTP connections that end: limits on silence, on one request, and on how many there are.

uvicorn closes a connection that is kept alive and silent; one that begins a request and never ends
its headers, or does not read its answer, it keeps for ever.
"""

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ConnectionLimits:
    """How many connections there may be, and how long each may take over what it does."""

    connections: int = 1_000  # when there are more, those without a request are closed first
    idle_seconds: float = 10.0  # from its beginning, or its last answer, to the end of headers
    request_seconds: float = 60.0  # from there until the client has the answer
    header_bytes: int = 32 * 1024


def limited(base: Any, limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """A protocol of uvicorn's (h11's or httptools') that keeps these limits."""

    class Limited(base):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._last: tuple[Any, bool] = (None, False)  # request, and whether idle
            self._since, self._bytes = self.loop.time(), 0
            self._watch()
            if len(self.connections) > limits.connections:
                idle = [other for other in self.connections if other.idle()]
                first = min(idle, key=lambda c: (c.cycle is not None, c._since), default=self)
                first.end()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self.idle():
                self._bytes = 0
                return
            self._bytes += len(data)
            if self._bytes > limits.header_bytes:
                self.end()

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            super().connection_lost(exc)

        def idle(self) -> bool:
            """Whether no request is under way, or none whose headers are there."""
            return self.cycle is None or self.cycle.response_complete

        def end(self) -> None:
            self.connections.discard(self)  # now, and not when the transport gets round to it
            self.transport.abort()

        def _watch(self) -> None:
            idle, now = self.idle(), self.loop.time()
            # A request is known by its object, so that a few bytes now and then do not help.
            if self._last[0] is not self.cycle or self._last[1] is not idle:
                self._last, self._since = (self.cycle, idle), now
            limit = limits.idle_seconds if idle else limits.request_seconds
            if now - self._since >= limit:
                self.end()
                return
            self._timer = self.loop.call_later(limits.idle_seconds / 4.0, self._watch)

    return Limited
